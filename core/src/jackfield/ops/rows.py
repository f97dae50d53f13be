"""Rows by index: reading them from a table, writing them into a cache."""

from __future__ import annotations

import numpy as np

from jackfield.dtypes import DType, f16, f32, i32, i64, q8_0
from jackfield.dtypes.arrays import dtype_of
from jackfield.errors import DTypeError, ShapeError
from jackfield.op import Array, Call, Work, case, ints, op, rand, recast, values
from jackfield.ops.elementwise import INF, NAN
from jackfield.rules import ROWS, F, Q, known, like, multiple, rank_of
from jackfield.spec import Shape, Spec


def _taken(call: Call) -> Shape:
    x, rows = call["x"], call["rows"]
    rank_of(call, "x", 2)
    if x.shape[:-2] != rows.shape[:-1] or rows.rank == 0:
        raise call.shape_error(
            f"x is {list(x.shape)} and rows {list(rows.shape)}: rows must have the leading extents of x, then a count"
        )
    return (*rows.shape, x.shape[-1])


def _taken_dtype(call: Call) -> DType:
    return i32 if call["x"].dtype is i32 else f32


def _taken_work(call: Call, result: Spec) -> Work:
    read = Spec(call["x"].dtype, result.shape).nbytes
    return Work(0, read + call["rows"].nbytes + result.nbytes)


@op(
    shape=_taken,
    dtype=_taken_dtype,
    work=_taken_work,
    accepts={"x": (*F, *Q, i32), "rows": ROWS},
    tolerance="E",
    stored=True,
    cases=[
        case(rand(9, 256), ints(4, high=9)),
        case(rand(5, 3), values([4, 4, 0, 4], dtype=i32)),
        case(rand(5, 3), ints(4, high=5, dtype=i64)),
        case(rand(2, 3, 5, 512), ints(2, 3, 4, high=5)),
        case(values([[NAN, INF, -0.0], [1.0, 2.0, 3.0]]), values([1, 0, 1], dtype=i32)),
        case(ints(5, 3, low=-9, high=9), ints(7, high=5)),
        case(rand(5, 256), values([], dtype=i32)),
        case(rand(1, 1), ints(1, high=1)),
        case(rand(5, 3), values([1, 5, -1, 2], dtype=i32)),
        case(rand(5, 3), values([2**40, 1], dtype=i64)),
        case(rand(5, 3), rand(4, dtype=f32), raises=DTypeError),
        case(rand(2, 5, 3), ints(4, high=5), raises=ShapeError),
        case(rand(5), ints(4, high=5), raises=ShapeError),
    ],
)
def take_rows(x: Array, rows: Array) -> Array:
    """Rows of x by number, decoded: an embedding look-up.

    x: f32, f16, bf16, i32 or a block dtype (..., R, C). rows: i32 or i64 (..., n), leading extents of x.
    Returns: f32 (i32 stays i32) (..., n, C). A row number outside 0 .. R-1 gives zeros and a BadIndex at the end.
    """
    inside = known("rows", rows, x.shape[-2])
    index = np.where(inside, rows, 0)[..., None]
    picked = _along(x, index) if x.shape[-2] else np.zeros((*rows.shape, x.shape[-1]), x.dtype)
    values = recast(picked, i32 if dtype_of(x) is i32 else f32)
    return np.where(inside[..., None], values, values.dtype.type(0))


def _along(x: Array, index: Array) -> Array:
    """x[b..., index[b..., i, 0]] for every leading b."""
    lead = np.indices(index.shape[:-1], sparse=True)[:-1]
    return x[(*lead, index[..., 0])]


def _put(call: Call) -> Shape:
    target, x, rows = call["target"], call["x"], call["rows"]
    rank_of(call, "target", 2)
    if x.rank != target.rank or x.shape[:-2] != target.shape[:-2] or x.shape[-1:] != target.shape[-1:]:
        raise call.shape_error(
            f"target is {list(target.shape)} and x {list(x.shape)}: all extents but the second-last must agree"
        )
    if not 1 <= rows.rank <= target.rank - 1 or rows.shape[-1] != x.shape[-2]:
        raise call.shape_error(f"rows is {list(rows.shape)}, must end in {x.shape[-2]}, one number a row of x")
    for axis in range(2, rows.rank + 1):
        multiple(call, "target", -axis - 1, "rows", -axis)
    return target.shape


def _put_dtype(call: Call) -> DType:
    return call["target"].dtype


def _put_work(call: Call, _: Spec) -> Work:
    x = call["x"]
    return Work(0, x.nbytes + call["rows"].nbytes + Spec(call["target"].dtype, x.shape).nbytes)


@op(
    shape=_put,
    dtype=_put_dtype,
    work=_put_work,
    accepts={"target": (*F, *Q), "x": (f32, f16), "rows": ROWS},
    tolerance="E",
    stored=True,
    inplace=("target",),
    updates=True,
    cases=[
        case(rand(9, 256), rand(3, 256), values([7, 0, 3], dtype=i32)),
        case(rand(3, 9, 4, dtype=f16), rand(3, 2, 4, high=1e6), values([8, 1], dtype=i64)),
        case(rand(2, 4, 9, 5), rand(2, 4, 2, 5), values([[8, 1], [0, 2]], dtype=i32)),
        case(rand(2, 4, 9, 5), rand(2, 4, 2, 5), values([[[8, 1]], [[5, 2]]], dtype=i32)),
        case(rand(9, 64, dtype=q8_0), rand(3, 64), values([2, -1, 4], dtype=i32)),
        case(rand(4, 2), values([[NAN, -0.0], [INF, 1.0], [2.0, 3.0]]), values([3, -1, 0], dtype=i32)),
        case(rand(4, 32, dtype=q8_0), values([[NAN] * 32, [1.0] * 32]), values([-1, 0], dtype=i32)),
        case(rand(4, 32, dtype=q8_0), values([[NAN] * 32, [1.0] * 32]), values([2, 0], dtype=i32)),
        case(rand(4, 2), rand(3, 2), values([1, 4, -2], dtype=i32)),
        case(rand(5, 3), rand(0, 3), values([], dtype=i32)),
        case(rand(1, 1), rand(1, 1), ints(1, high=1)),
        case(rand(5, 257), rand(2, 257), values([4, 0], dtype=i32)),
        case(rand(9, 8), rand(3, 7), ints(3, high=9), raises=ShapeError),
        case(rand(9, 8), rand(3, 8), ints(4, high=9), raises=ShapeError),
        case(rand(3, 9, 8), rand(3, 1, 8), ints(2, 1, high=9), raises=ShapeError),
        case(rand(8), rand(8), ints(1, high=9), raises=ShapeError),
        case(rand(9, 8), rand(3, 8), rand(3, dtype=f32), raises=DTypeError),
        case(rand(9, 8), rand(3, 8, dtype=F[2]), ints(3, high=9), raises=DTypeError),
    ],
)
def put_rows(target: Array, x: Array, rows: Array) -> Array:
    """target with rows of x, cast to its dtype, in the places `rows` says: the store of a KV cache.

    target: f32, f16, bf16 or a block dtype (..., R, C); may be a reshaped, transposed or sliced view of a state.
    x: f32 or f16 (..., n, C), leading extents of target.
    rows: i32 or i64 (..., n); leading extents divide those of target and repeat cyclically, missing ones count as 1.
    Returns: the target's new value; a state is changed where it lies. Row -1 is skipped; another number outside
    0 .. R-1 is skipped with a BadIndex at the end. Of rows written twice one wins, here the last.
    """
    dtype = dtype_of(target)
    lead = (*[1] * (target.ndim - 1 - rows.ndim), *rows.shape[:-1])
    cyclic = [np.arange(n) % b for n, b in zip(target.shape[:-2], lead, strict=True)]
    index = rows.reshape(*lead, rows.shape[-1])[np.ix_(*cyclic, np.arange(rows.shape[-1]))]
    kept = np.nonzero(known("rows", index, target.shape[-2], skip=lambda i: i == -1))
    if kept[0].size:
        target[(*kept[:-1], index[kept])] = recast(x[kept], dtype)
    return target


def _biased(call: Call) -> Shape:
    x, table, ids = call["x"], call["table"], call["ids"]
    for name, rank in (("x", 3), ("table", 2), ("ids", 2)):
        rank_of(call, name, rank, rank)
    if x.shape[:2] != ids.shape or x.shape[2] != table.shape[1]:
        raise call.shape_error(
            f"x is {list(x.shape)}, table {list(table.shape)}, ids {list(ids.shape)}: "
            "ids must have the first two extents of x, table its last"
        )
    return x.shape


def _biased_work(call: Call, result: Spec) -> Work:
    read = Spec(f32, result.shape).nbytes
    return Work(result.size, call["x"].nbytes + read + call["ids"].nbytes + result.nbytes)


@op(
    shape=_biased,
    dtype=like("x"),
    work=_biased_work,
    accepts={"x": (f32,), "table": (f32,), "ids": (i32,)},
    inplace=("x",),
    tolerance="A",
    priority="P1",
    cases=[
        case(rand(3, 2, 5), rand(4, 5), ints(3, 2, high=4)),
        case(rand(5, 4, 257), rand(32, 257), ints(5, 4, high=32)),
        case(rand(1, 1, 256), rand(1, 256), ints(1, 1, high=1)),
        case(rand(3, 2, 4), rand(5, 4), values([[2, -1], [-1, -1], [4, 4]], dtype=i32)),
        case(rand(2, 2, 4), rand(3, 4), values([[0, 3], [-2, 1]], dtype=i32)),
        case(values([[[NAN, INF, 1.0]], [[1.0, 2.0, -0.0]]]), values([[1.0, -INF, NAN]]), ints(2, 1, high=1)),
        case(rand(0, 2, 5), rand(4, 5), ints(0, 2, high=4)),
        case(rand(2, 1, 3), rand(0, 3), values([[-1], [0]], dtype=i32)),
        case(rand(3, 2, 5), rand(4, 6), ints(3, 2, high=4), raises=ShapeError),
        case(rand(3, 2, 5), rand(4, 5), ints(3, 1, high=4), raises=ShapeError),
        case(rand(3, 5), rand(4, 5), ints(3, 1, high=4), raises=ShapeError),
        case(rand(3, 2, 5), rand(4, 5), ints(3, 2, high=4, dtype=i64), raises=DTypeError),
        case(rand(3, 2, 5, dtype=f16), rand(4, 5), ints(3, 2, high=4), raises=DTypeError),
    ],
)
def add_rows(x: Array, table: Array, ids: Array) -> Array:
    """x with a row of a table added to each slot of a token: the bias of the expert chosen for it.

    x: f32 (T, E, N). table: f32 (X, N). ids: i32 (T, E). Id -1 leaves the slot of x as it is; another id outside
    0 .. X-1 makes it zeros, with a BadIndex at the end. Returns: f32 (T, E, N). Raises: ShapeError, DTypeError.
    """
    inside = known("ids", ids, len(table), skip=lambda i: i == -1)
    y = np.where((inside | (ids == -1))[..., None], x, 0)
    y[inside] += table[ids[inside]]
    return y
