"""Views: windows on the bytes of their operand. They never run; their bodies say what the window shows."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from jackfield.dtypes import q8_0
from jackfield.dtypes.arrays import dtype_of
from jackfield.errors import AttributeValueError, DTypeError, ShapeError
from jackfield.op import Array, Call, case, op, rand
from jackfield.rules import ANY, like, nothing
from jackfield.spec import (
    Shape,
    View,
    broadcast_view,
    reshape_view,
    slice_view,
    transpose_view,
    units_of,
    window_view,
)


def _new_shape(call: Call) -> Shape:
    """The attribute `shape` with its -1 filled in."""
    x, wanted = call["x"], call.attr("shape")
    free = [axis for axis, n in enumerate(wanted) if n == -1]
    if len(free) > 1 or any(n < -1 for n in wanted):
        raise call.attr_error(f"shape is {list(wanted)}: extents must be at least 0, one of them may be -1")
    known = int(np.prod([n for n in wanted if n != -1], dtype=object))
    if free and known and x.size % known == 0:
        wanted = tuple(x.size // known if n == -1 else n for n in wanted)
        known = x.size
    elif free:
        known = -1
    if known != x.size:
        raise call.shape_error(f"x is {list(x.shape)} with {x.size} elements, shape {list(wanted)} must have as many")
    return wanted


@op(
    shape=_new_shape,
    dtype=like("x"),
    work=nothing,
    accepts={"x": ANY},
    tolerance="E",
    stored=True,
    view=lambda call: reshape_view(call["x"], _new_shape(call)),
    cases=[
        case(rand(3, 4), shape=(2, 6)),
        case(rand(2, 3, 4), shape=(-1, 4)),
        case(rand(6), shape=(1, 6, 1)),
        case(rand(), shape=(1, 1)),
        case(rand(0, 4), shape=(2, 0)),
        case(rand(2, 512), shape=(4, -1)),
        case(rand(3, 4), shape=(5, -1), raises=ShapeError),
        case(rand(3, 4), shape=(3, 5), raises=ShapeError),
        case(rand(3, 4), shape=(-1, -1), raises=AttributeValueError),
        case(rand(0, 4), shape=(0, -1), raises=ShapeError),
        case(rand(3, 4), shape=12, raises=AttributeValueError),
    ],
)
def reshape(x: Array, *, shape: Shape) -> Array:
    """The same elements in another shape. A view where strides can express it, else of a `contiguous` copy.

    x: any dtype; the last extent of a block dtype must stay a multiple of its block.
    shape: one extent may be -1: what is left over. Raises: ShapeError, AttributeValueError.
    """
    dtype = dtype_of(x)
    whole = tuple(n if n != -1 else x.size * dtype.block // -int(np.prod(shape)) for n in shape)
    return x.reshape(units_of(dtype, whole))


def _permutation(call: Call) -> tuple[int, ...]:
    x, axes = call["x"], call.attr("axes")
    front = tuple(a + x.rank if a < 0 else a for a in axes)
    if sorted(front) != list(range(x.rank)):
        raise call.attr_error(f"axes is {list(axes)}, must be an order of the {x.rank} axes of x")
    if x.dtype.is_block and front[-1] != x.rank - 1:
        raise call.dtype_error(
            f"x is {x.dtype}, its last axis holds the blocks and must stay last: axes is {list(axes)}"
        )
    return front


@op(
    shape=lambda call: tuple(call["x"].shape[a] for a in _permutation(call)),
    dtype=like("x"),
    work=nothing,
    accepts={"x": ANY},
    tolerance="E",
    stored=True,
    view=lambda call: transpose_view(call["x"], _permutation(call)),
    cases=[
        case(rand(3, 4), axes=(1, 0)),
        case(rand(2, 3, 4, 5), axes=(2, 0, 3, 1)),
        case(rand(2, 3, 256), axes=(1, 0, -1)),
        case(rand(), axes=()),
        case(rand(0, 4), axes=(1, 0)),
        case(rand(3, 4), axes=(0, 0), raises=AttributeValueError),
        case(rand(3, 4), axes=(0,), raises=AttributeValueError),
        case(rand(3, 256, dtype=ANY[-1]), axes=(1, 0), raises=DTypeError),
    ],
)
def transpose(x: Array, *, axes: Shape) -> Array:
    """The axes in another order; a view.

    x: any dtype; the last axis of a block dtype stays last. axes: result axis i is axis axes[i] of x.
    Raises: AttributeValueError, DTypeError.
    """
    return x.transpose(axes)


def _per_axis(call: Call) -> list[tuple[int, int, int]]:
    x = call["x"]
    start, stop, step = call.attr("start"), call.attr("stop"), call.attr("step")
    step = (step,) * x.rank if isinstance(step, int) else step
    if not len(start) == len(stop) == len(step) == x.rank:
        raise call.attr_error(f"start {list(start)}, stop {list(stop)}, step {list(step)}: one each for {x.rank} axes")
    bounds = list(zip(start, stop, step, strict=True))
    for axis, (a, b, by) in enumerate(bounds):
        if by < 1:
            raise call.attr_error(f"step is {by} on axis {axis}, must be at least 1")
        if not 0 <= a <= b <= x.shape[axis]:
            raise call.shape_error(f"{a}:{b} on axis {axis} must lie in order within its extent {x.shape[axis]}")
    if x.dtype.is_block and (any(n % x.dtype.block for n in bounds[-1][:2]) or bounds[-1][2] != 1):
        a, b, by = bounds[-1]
        block = x.dtype.block
        raise call.shape_error(f"x is {x.dtype}: its last axis is cut at multiples of {block}, not {a}:{b}:{by}")
    return bounds


def _window(call: Call) -> View:
    return slice_view(call["x"], _per_axis(call))


@op(
    shape=lambda call: _window(call).spec.shape,
    dtype=like("x"),
    work=nothing,
    accepts={"x": ANY},
    tolerance="E",
    stored=True,
    view=_window,
    cases=[
        case(rand(5, 7), start=(1, 2), stop=(4, 7)),
        case(rand(5, 7), start=(0, 1), stop=(5, 6), step=(2, 3)),
        case(rand(3, 512), start=(1, 256), stop=(3, 512)),
        case(rand(5, 7), start=(2, 0), stop=(2, 7)),
        case(rand(), start=(), stop=()),
        case(rand(5, 7), start=(1, 2), stop=(6, 7), raises=ShapeError),
        case(rand(5, 7), start=(3, 2), stop=(1, 7), raises=ShapeError),
        case(rand(5, 7), start=(1, 2), stop=(5, 7), step=0, raises=AttributeValueError),
        case(rand(5, 7), start=(1,), stop=(5,), raises=AttributeValueError),
        case(rand(3, 512, dtype=ANY[-1]), start=(0, 32), stop=(3, 512), raises=ShapeError),
    ],
)
def slice(x: Array, *, start: Shape, stop: Shape, step: int | Shape = 1) -> Array:
    """A window of every step-th element from start up to stop on each axis; a view. `x[1:3, ::2]` builds it too.

    x: any dtype; the last axis of a block dtype is cut at multiples of its block, with step 1.
    start, stop: inside the extents, start <= stop. step: at least 1, one number or one an axis.
    Raises: ShapeError, AttributeValueError.
    """
    steps = (step,) * x.ndim if isinstance(step, int) else step
    cuts: list[Any] = [builtins.slice(*bounds) for bounds in zip(start, stop, steps, strict=True)]
    block = dtype_of(x).block
    if block > 1:
        cuts[-1] = builtins.slice(start[-1] // block, stop[-1] // block)
    return np.asarray(x[(*cuts, ...)])  # with the ellipsis no axis is no scalar


def _stretched(call: Call) -> Shape:
    x, shape = call["x"], call.attr("shape")
    fits = (
        len(shape) >= x.rank
        and all(n >= 0 for n in shape)
        and all(n in (1, m) for n, m in zip(x.shape[::-1], shape[::-1], strict=False))
    )
    if not fits:
        raise call.shape_error(f"x is {list(x.shape)}, shape {list(shape)} must repeat its extents or stretch a 1")
    return tuple(shape)


@op(
    shape=_stretched,
    dtype=like("x"),
    work=nothing,
    accepts={"x": ANY},
    tolerance="E",
    stored=True,
    view=lambda call: broadcast_view(call["x"], _stretched(call)),
    cases=[
        case(rand(3, 1), shape=(3, 4)),
        case(rand(256), shape=(2, 3, 256)),
        case(rand(), shape=(2, 2)),
        case(rand(3, 1), shape=(3, 0)),
        case(rand(3, 2), shape=(3, 4), raises=ShapeError),
        case(rand(3, 2), shape=(2,), raises=ShapeError),
        case(rand(3, 1), shape=3, raises=AttributeValueError),
    ],
)
def broadcast_to(x: Array, *, shape: Shape) -> Array:
    """Extents of 1 stretched, and axes added in front, with stride 0; a view that nothing can write through.

    x: any dtype. shape: its last extents are those of x, or stretch a 1. Raises: ShapeError.
    """
    return np.broadcast_to(x, units_of(dtype_of(x), tuple(shape)))


def _strided(call: Call) -> View:
    x, shape = call["x"], call.attr("shape")
    strides, offset = call.attr("strides"), call.attr("offset")
    if len(strides) != len(shape) or min((*strides, *shape, offset)) < 0:
        raise call.attr_error(
            f"shape is {list(shape)}, strides {list(strides)}, offset {offset}: "
            "there must be one stride an axis, and none of them negative"
        )
    return window_view(x.dense(), shape, strides, offset)


@op(
    shape=lambda call: _strided(call).spec.shape,
    dtype=like("x"),
    work=nothing,
    accepts={"x": ANY},
    tolerance="E",
    stored=True,
    priority="P1",
    view=lambda call: _strided(call) if call["x"].is_dense else None,
    cases=[
        case(rand(3, 4), shape=(2, 5), strides=(4, 1), offset=1),
        case(rand(10), shape=(7, 4), strides=(1, 1)),
        case(rand(2, 3, 5), shape=(5, 2, 3), strides=(1, 15, 5)),
        case(rand(3, 4), shape=(3, 2), strides=(0, 3), offset=8),
        case(rand(3, 4), shape=(1,), strides=(1000,), offset=11),
        case(rand(5), shape=(), strides=(), offset=4),
        case(rand(3, 4), shape=(0, 9), strides=(100, 100), offset=50),
        case(rand(0), shape=(2, 0), strides=(1, 1)),
        case(rand(4, 512), shape=(3, 256), strides=(1, 1), offset=1),
        case(rand(3, 4), shape=(2, 5), strides=(5, 1), offset=3, raises=ShapeError),
        case(rand(3, 4), shape=(1,), strides=(0,), offset=12, raises=ShapeError),
        case(rand(0), shape=(1,), strides=(1,), raises=ShapeError),
        case(rand(3, 4), shape=(2,), strides=(2**62,), raises=ShapeError),
        case(rand(2, 64, dtype=q8_0), shape=(2, 40), strides=(1, 1), raises=ShapeError),
        case(rand(2, 64, dtype=q8_0), shape=(2, 64), strides=(32, 1), raises=ShapeError),
        case(rand(3, 4), shape=(2, 2), strides=(4,), raises=AttributeValueError),
        case(rand(3, 4), shape=(2, 2), strides=(4, -1), raises=AttributeValueError),
        case(rand(3, 4), shape=(-1, 2), strides=(4, 1), raises=AttributeValueError),
        case(rand(3, 4), shape=(2, 2), strides=(4, 1), offset=-1, raises=AttributeValueError),
        case(rand(3, 4), shape=(2, 2), raises=AttributeValueError),
    ],
)
def strided_view(x: Array, *, shape: Shape, strides: Shape, offset: int = 0) -> Array:
    """Any window on the elements of x in row-major order, also one that overlaps itself.

    Index i, j, ... is element offset + i * strides[0] + j * strides[1] + ... A view of a dense x, else of a
    `contiguous` copy; one that overlaps itself can't be written through.
    x: any dtype. shape: extents; the last one of a block dtype is a multiple of its block. strides: one an axis, at
    least 0. offset: of the first element. Strides and offset count the blocks of a block dtype.
    Raises: ShapeError for a window that reaches beyond x; AttributeValueError.
    """
    units = units_of(dtype_of(x), shape)
    steps = tuple(s * x.itemsize if n > 1 else 0 for n, s in zip(units, strides, strict=True))
    line = np.ascontiguousarray(x).reshape(-1)[min(offset, x.size) :]
    return np.lib.stride_tricks.as_strided(line, units, steps) if 0 not in units else np.zeros(units, x.dtype)
