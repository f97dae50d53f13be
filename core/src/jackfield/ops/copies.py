"""Ops that copy elements: into a dense tensor, another dtype, a larger tensor, or a region of one."""

from __future__ import annotations

import numpy as np

from jackfield.dtypes import by_name, f16, f32, q4_1, q4_K, q6_K, q8_0, u8
from jackfield.dtypes.arrays import dtype_of
from jackfield.errors import AttributeValueError, DTypeError, GraphError, ShapeError
from jackfield.op import Array, Call, Work, case, dtype_attr, ints, op, rand, recast, values
from jackfield.ops.elementwise import INF, NAN, NASTY
from jackfield.rules import ANY, F, I, Q, axis_of, like, per_element, same_as
from jackfield.spec import Shape, Spec

_COPY = per_element(0)
_BAD_BLOCKS = [[0.0] * 32, [65504.0 * 127] * 32, [1.0, NAN] + [0.5] * 30, [-2.0] * 32, [INF] * 32]


def _castable(call: Call) -> None:
    dtype = dtype_attr(call)
    if dtype not in (*F, *I, *Q):
        raise call.dtype_error(f"dtype is {dtype}, must be one of {', '.join(d.name for d in (*F, *I, *Q))}")


@op(
    shape=same_as("x"),
    dtype=like("x"),
    work=_COPY,
    accepts={"x": ANY},
    tolerance="E",
    stored=True,
    inplace=("x",),
    cases=[
        case(rand(3, 5)),
        case(rand(2, 3, 512)),
        case(values(NASTY)),
        case(rand()),
        case(rand(0, 4)),
        case(rand(2, 257)),
        case(raises=GraphError),
    ],
)
def contiguous(x: Array) -> Array:
    """A copy in row-major order without gaps. The planner puts one in where a kernel reads no strides.

    x: any dtype and shape. Returns: the same bits.
    """
    return np.array(x)


@op(
    shape=same_as("x"),
    dtype=dtype_attr,
    work=_COPY,
    accepts={"x": (*F, *I, *Q)},
    tolerance="E",
    stored=True,
    check=_castable,
    cases=[
        *(case(rand(2, 3, 256), dtype=d.name) for d in (*F, *I, q8_0, q4_K)),
        *(case(rand(2, 3, 256, dtype=f32), dtype=d.name) for d in Q if d not in (q8_0, q4_K)),
        case(values(NASTY), dtype="f16"),
        case(values(NASTY), dtype="bf16"),
        case(values([-INF, -3e9, -2.5, -0.5, -0.0, 0.5, 1.5, 2.5, 2147483520.0, 2147483648.0, INF, NAN]), dtype="i32"),
        case(values([65519.0, 65520.0, 2049.0, 2051.0, 5.96e-8, 2.98e-8]), dtype="f16"),
        case(values([1.00390625, 1.01171875, 3.3961775e38]), dtype="bf16"),
        case(ints(3, 5, low=-(2**31), high=2**31 - 1), dtype="f32"),
        case(ints(3, 5, low=-1000, high=1000), dtype="i8"),
        case(values(_BAD_BLOCKS), dtype="q8_0"),
        case(values([[0.0] * 32, [-1.0, 1.0] * 16, [1e-40] * 32, [1e8] * 32]), dtype="q4_0"),
        case(rand(0, 4), dtype="f16"),
        case(rand(), dtype="f16"),
        case(rand(3, 1), dtype="i32"),
        case(rand(3, 257), dtype="f16"),
        case(rand(3, 5), dtype="q8_0", raises=ShapeError),
        case(rand(3, 5), dtype="f33", raises=DTypeError),
        case(rand(3, 5), dtype="f64", raises=DTypeError),
        case(rand(3, 5), raises=AttributeValueError),
        case(rand(3, 5), dtype=5, raises=AttributeValueError),
    ],
)
def cast(x: Array, *, dtype: str) -> Array:
    """The same numbers in another dtype.

    x: a float, integer or block dtype. dtype: the name of one.
    Float to float: nearest even, overflow gives inf, NaN stays NaN. Float to integer: toward zero, saturating, NaN
    gives 0. Integer to integer: saturating. Integer to float: nearest even. Block to f32: exact. To a block dtype: by
    way of f32 with the format's reference encoder; a block with inf or NaN becomes 0 and an error of the run. Same
    dtype: the same bits. Raises: ShapeError for rows that are no whole blocks; DTypeError.
    """
    return recast(x, by_name(dtype))


def _tiled(call: Call) -> Shape:
    x, repeats = call["x"], call.attr("repeats")
    if len(repeats) != x.rank or any(r < 0 for r in repeats):
        raise call.attr_error(f"repeats is {list(repeats)}, must be a number >= 0 for each of the {x.rank} axes of x")
    return tuple(n * r for n, r in zip(x.shape, repeats, strict=True))


@op(
    shape=_tiled,
    dtype=like("x"),
    work=_COPY,
    accepts={"x": (*F, *I)},
    tolerance="E",
    stored=True,
    cases=[
        case(rand(3, 5), repeats=(2, 1)),
        case(rand(2, 1, 3, 5), repeats=(1, 3, 2, 2)),
        case(values(NASTY), repeats=(3,)),
        case(rand(3, 5), repeats=(0, 2)),
        case(rand(0, 5), repeats=(2, 2)),
        case(rand(1, 257), repeats=(3, 1)),
        case(rand(), repeats=()),
        case(rand(3, 5), repeats=(2,), raises=AttributeValueError),
        case(rand(3, 5), repeats=(2, -1), raises=AttributeValueError),
        case(rand(3, 32, dtype=q8_0), repeats=(2, 1), raises=DTypeError),
    ],
)
def tile(x: Array, *, repeats: Shape) -> Array:
    """x laid side by side, repeats[i] times along axis i.

    x: a float or integer dtype. repeats: one an axis, at least 0. Returns: extents times repeats.
    """
    return np.tile(x, repeats)


def _joined(call: Call) -> Shape:
    a, b = call["a"], call["b"]
    if a.dtype is not b.dtype:
        raise call.dtype_error(f"a is {a.dtype} and b is {b.dtype}: they must have one dtype")
    if a.rank != b.rank or a.rank == 0:
        raise call.shape_error(
            f"a is {list(a.shape)} and b {list(b.shape)}: they must have equally many axes, at least 1"
        )
    axis = axis_of(call, a.rank)
    rest = [shape[:axis] + shape[axis + 1 :] for shape in (a.shape, b.shape)]
    if rest[0] != rest[1]:
        raise call.shape_error(
            f"a is {list(a.shape)} and b {list(b.shape)}: all extents but that of axis {axis} must agree"
        )
    return (*a.shape[:axis], a.shape[axis] + b.shape[axis], *a.shape[axis + 1 :])


@op(
    shape=_joined,
    dtype=like("a"),
    work=_COPY,
    accepts={"a": ANY, "b": ANY},
    tolerance="E",
    stored=True,
    cases=[
        case(rand(3, 5), rand(2, 5), axis=0),
        case(rand(2, 256), rand(2, 512), axis=1),
        case(rand(2, 3, 1, 5), rand(2, 3, 4, 5), axis=-2),
        case(values(NASTY), values(NASTY), axis=0),
        case(rand(0, 5), rand(2, 5), axis=0),
        case(rand(2, 0), rand(2, 0), axis=1),
        case(rand(1, 1), rand(1, 257), axis=1),
        case(rand(3, 5), rand(2, 4), axis=0, raises=ShapeError),
        case(rand(3, 5), rand(2), axis=0, raises=ShapeError),
        case(rand(3, 5), rand(2, 5), axis=2, raises=AttributeValueError),
        case(rand(3, 5, dtype=f32), rand(2, 5, dtype=f16), axis=0, raises=DTypeError),
        case(rand(3, 5), rand(2, 5), raises=AttributeValueError),
    ],
)
def concatenate(a: Array, b: Array, *, axis: int) -> Array:
    """b behind a along one axis.

    a, b: any dtype, the same; all other extents equal. Returns: the same bits. Raises: ShapeError, DTypeError.
    """
    return np.concatenate([a, b], axis)


def _region(call: Call) -> Shape:
    target, x, start = call["target"], call["x"], call.attr("start")
    if x.rank != target.rank or len(start) != target.rank:
        raise call.shape_error(
            f"target is {list(target.shape)}, x {list(x.shape)}, start {list(start)}: they must have equally many axes"
        )
    for axis, (at, n, whole) in enumerate(zip(start, x.shape, target.shape, strict=True)):
        if at < 0 or at + n > whole:
            raise call.shape_error(f"{at}:{at + n} on axis {axis} must lie within the target's extent {whole}")
    if target.dtype.is_block and (start[-1] % target.dtype.block or x.shape[-1] % target.dtype.block):
        raise call.shape_error(
            f"target is {target.dtype}: start {start[-1]} and extent {x.shape[-1]} of the last axis "
            f"must be multiples of {target.dtype.block}"
        )
    return target.shape


def _one_kind(call: Call) -> None:
    target, x = call["target"].dtype, call["x"].dtype
    numbers = (*F, *I, *Q)
    if target is not x and not (target in numbers and x in numbers):
        raise call.dtype_error(f"target is {target} and x is {x}: there is no conversion, they must be equal")


def _written(call: Call, _: Spec) -> Work:
    x = call["x"]
    return Work(0, x.nbytes + Spec(call["target"].dtype, x.shape).nbytes)


@op(
    shape=_region,
    dtype=like("target"),
    work=_written,
    accepts={"target": ANY, "x": ANY},
    tolerance="E",
    stored=True,
    inplace=("target",),
    updates=True,
    check=_one_kind,
    cases=[
        case(rand(5, 7), rand(2, 3), start=(1, 2)),
        case(rand(2, 512), rand(1, 256), start=(1, 256)),
        case(rand(4, 64, dtype=q8_0), rand(2, 32), start=(1, 32)),
        case(rand(4, 5, dtype=f16), values([[NAN, 1e6, -0.0]]), start=(0, 1)),
        case(ints(4, 5, high=9), values([[NAN, 1e12, -1.5]], dtype=f32), start=(3, 2)),
        case(rand(5, 7), rand(5, 7), start=(0, 0)),
        case(rand(5, 7), rand(0, 3), start=(5, 2)),
        case(rand(), rand(), start=()),
        case(rand(2, 3, 4, 257), rand(2, 1, 2, 255), start=(0, 1, 2, 1)),
        case(rand(5, 7), rand(2, 3), start=(4, 2), raises=ShapeError),
        case(rand(5, 7), rand(2, 3), start=(-1, 2), raises=ShapeError),
        case(rand(5, 7), rand(3), start=(1,), raises=ShapeError),
        case(rand(4, 64, dtype=q4_1), rand(2, 32), start=(1, 16), raises=ShapeError),
        case(rand(4, 512, dtype=q6_K), rand(2, 32, dtype=f32), start=(1, 256), raises=ShapeError),
        case(rand(5, 7, dtype=u8), rand(2, 3, dtype=f32), start=(1, 2), raises=DTypeError),
        case(rand(5, 7), rand(2, 3), start=1, raises=AttributeValueError),
    ],
)
def write(target: Array, x: Array, *, start: Shape) -> Array:
    """target with x, cast to its dtype, put where `start` says.

    target: any dtype; strided in every axis if it likes. x: the region's shape; converted as `cast` does.
    Returns: the target's new value; a state is changed where it lies. Raises: ShapeError, DTypeError.
    """
    dtype = dtype_of(target)
    if target.ndim:
        first = (*start[:-1], start[-1] // dtype.block)
        new = recast(x, dtype)
        target[tuple(slice(at, at + n) for at, n in zip(first, new.shape, strict=True))] = new
    else:
        target[()] = recast(x, dtype)
    return target


def _added(call: Call, _: Spec) -> Work:
    x = call["x"]
    return Work(x.size, 2 * x.nbytes)


@op(
    shape=_region,
    dtype=like("target"),
    work=_added,
    accepts={"target": (f32,), "x": (f32,)},
    tolerance="A",
    stored=True,
    inplace=("target",),
    updates=True,
    priority="P2",
    cases=[
        case(rand(5, 7), rand(2, 3), start=(1, 2)),
        case(rand(2, 3, 4, 257), rand(2, 1, 2, 255), start=(0, 1, 2, 1)),
        case(values([[INF, -INF, NAN, 3e38, 1.0, -0.0]]), values([[-INF, 1.0, 1.0, 3e38, NAN, -0.0]]), start=(0, 0)),
        case(rand(5, 7), rand(5, 7), start=(0, 0)),
        case(rand(5, 7), rand(0, 3), start=(5, 2)),
        case(rand(), rand(), start=()),
        case(rand(5, 7), rand(2, 3), start=(4, 2), raises=ShapeError),
        case(rand(5, 7), rand(2, 3), start=(1, -2), raises=ShapeError),
        case(rand(5, 7), rand(3), start=(1,), raises=ShapeError),
        case(rand(5, 7, dtype=f16), rand(2, 3, dtype=f16), start=(1, 2), raises=DTypeError),
        case(rand(5, 7), rand(2, 3), raises=AttributeValueError),
    ],
)
def accumulate(target: Array, x: Array, *, start: Shape) -> Array:
    """target with x added to the region that `start` says.

    target: f32; strided in every axis if it likes. x: f32, the region's shape.
    Returns: the target's new value; a state is changed where it lies. Raises: ShapeError, DTypeError.
    """
    region = tuple(slice(at, at + n) for at, n in zip(start, x.shape, strict=True))
    target[region] = target[region] + x
    return target
