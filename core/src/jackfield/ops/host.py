"""Python of the user's own as an op."""

from __future__ import annotations

import numpy as np

from jackfield.dtypes import DTYPES, DType, by_name, f32, q8_0
from jackfield.dtypes.arrays import element
from jackfield.errors import AttributeValueError, DTypeError, ShapeError
from jackfield.graph import Function
from jackfield.op import Array, Call, case, dtype_attr, ints, op, passing, rand
from jackfield.rules import per_element
from jackfield.spec import Shape

_PLAIN = (f32, *(d for d in DTYPES.values() if not d.is_block and d is not f32))


def _shape(call: Call) -> Shape:
    shape = call.attr("shape")
    if any(n < 0 for n in shape):
        raise call.attr_error(f"shape is {list(shape)}, its extents must be at least 0")
    return tuple(shape)


def _dtype(call: Call) -> DType:
    dtype = dtype_attr(call)
    if dtype.is_block:
        raise call.dtype_error(f"dtype is {dtype}: numpy has no arrays of a block dtype")
    return dtype


def _largest(*arrays: Array) -> Array:
    every = [array.astype(np.float32).reshape(-1) for array in arrays]
    return np.asarray(max([float(part.max()) for part in every if part.size], default=0.0), np.float32)


def _counted(*arrays: Array) -> Array:
    return np.array([array.size for array in arrays] + [-1] * (8 - len(arrays)), np.int32)


@op(
    shape=_shape,
    dtype=_dtype,
    work=per_element(0),
    accepts=dict.fromkeys("abcdefgh", _PLAIN),
    tolerance="E",
    priority="P2",
    stored=True,
    cases=[
        case(rand(3, 5), function=_largest, shape=(), dtype="f32"),
        case(rand(2, 3), ints(4, high=9), function=_counted, shape=(8,), dtype="i32"),
        case(*[rand(n) for n in range(1, 9)], function=_counted, shape=(8,), dtype="i32"),
        case(None, rand(2), None, rand(3), function=_counted, shape=(8,), dtype="i32"),
        case(function=_largest, shape=(), dtype="f32"),
        case(rand(0, 4), function=_largest, shape=(), dtype="f32"),
        case(rand(3), function=_largest, shape=(-3,), dtype="f32", raises=AttributeValueError),
        case(rand(3), function="largest", shape=(), dtype="f32", raises=AttributeValueError),
        case(rand(3), shape=(), dtype="f32", raises=AttributeValueError),
        case(rand(3), function=_largest, shape=(32,), dtype="q8_0", raises=DTypeError),
        case(rand(32, dtype=q8_0), function=_largest, shape=(), dtype="f32", raises=DTypeError),
    ],
)
def host_call(
    a: Array | None = None,
    b: Array | None = None,
    c: Array | None = None,
    d: Array | None = None,
    e: Array | None = None,
    f: Array | None = None,
    g: Array | None = None,
    h: Array | None = None,
    *,
    function: Function,
    shape: Shape,
    dtype: str,
) -> Array:
    """What a Python function makes of arrays in the host's memory: function(a, b, ...), absent ones left out.

    a to h (a, b, c, d, e, f, g, h): any dtype but a block dtype, any shape; the function gets windows on their memory
    that it may only read, and must keep none of them. It should depend on nothing else: a plan may call it anywhere.
    function: gives an array of the named `shape` and `dtype`, which is copied. Its exceptions reach the caller of the
    plan. Only the reference device runs it, and no graph file can keep it.
    Returns: what the function gave. Raises: AttributeValueError, DTypeError; in a call, ShapeError or DTypeError where
    the function gives an array of another shape or dtype.
    """
    views = [array.view() for array in (a, b, c, d, e, f, g, h) if array is not None]
    for view in views:
        view.flags.writeable = False
    try:
        given = np.asarray(function.call(*views))
    except (Exception, SystemExit) as error:
        passing(error)
        raise
    if given.dtype != element(by_name(dtype)):
        raise DTypeError(f"[host_call] {function!r} gave {given.dtype}, must give {dtype}")
    if given.shape != tuple(shape):
        raise ShapeError(f"[host_call] {function!r} gave {list(given.shape)}, must give {list(shape)}")
    return given
