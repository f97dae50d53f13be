"""Pooling: the largest or the mean of every window."""

from __future__ import annotations

import numpy as np

from jackfield.dtypes import f16, f32
from jackfield.errors import AttributeValueError, DTypeError, ShapeError
from jackfield.op import Array, Call, Work, case, ints, op, rand, values
from jackfield.ops.elementwise import INF, NAN
from jackfield.ops.sliding import Extents, per_axis, slid, spread, windows
from jackfield.rules import always, one_of, rank_of, touched
from jackfield.spec import Shape, Spec

KINDS = ("max", "mean")


def pooled(call: Call, name: str, axes: int) -> Shape:
    """The extents of the result along the last axes of this operand; no window is without an element."""
    one_of(call, "kind", KINDS)
    extents = call[name].shape[-axes:]
    kernel, padding = per_axis(call, "kernel", axes, 1), per_axis(call, "padding", axes, 0)
    if any(p >= k for p, k in zip(padding, kernel, strict=True)):
        raise call.attr_error(
            f"padding is {call.attr('padding')} and kernel {call.attr('kernel')}: padding must be smaller, "
            "so that each window holds an element"
        )
    if 0 in extents:
        raise call.shape_error(f"{name} is {list(call[name].shape)}: there is nothing to pool")
    return slid(call, extents, kernel)


def _line(call: Call) -> Shape:
    rank_of(call, "x", 1)
    return (*call["x"].shape[:-1], *pooled(call, "x", 1))


def _plane(call: Call) -> Shape:
    rank_of(call, "x", 4, 4)
    return (*call["x"].shape[:-2], *pooled(call, "x", 2))


def _line_work(call: Call, result: Spec) -> Work:
    return Work(result.size * spread(call.attr("kernel"), 1)[0], touched(call, result))


def _plane_work(call: Call, result: Spec) -> Work:
    kh, kw = spread(call.attr("kernel"), 2)
    return Work(result.size * kh * kw, touched(call, result))


_NASTY = [1.0, NAN, 3.0, -INF, -INF, -2.0, -1.0, INF, 0.0]


@op(
    shape=_line,
    dtype=always(f32),
    work=_line_work,
    accepts={"x": (f32, f16)},
    tolerance="M",
    priority="P1",
    cases=[
        case(rand(3, 9), kind="max", kernel=3, stride=2),
        case(rand(3, 9), kind="mean", kernel=3, stride=2, padding=1),
        case(rand(2, 3, 4, 33), kind="max", kernel=4, stride=3, padding=3),
        case(rand(2, 257), kind="mean", kernel=(5,), stride=(1,), padding=(4,)),
        case(rand(5, low=-3, high=-2), kind="max", kernel=3, stride=3, padding=2),
        case(values([_NASTY]), kind="max", kernel=2, stride=1),
        case(values([_NASTY]), kind="mean", kernel=2, stride=2, padding=1),
        case(rand(4, 1), kind="mean", kernel=1, stride=1),
        case(rand(0, 5), kind="max", kernel=2, stride=2),
        case(rand(3, 2), kind="max", kernel=3, stride=1, raises=ShapeError),
        case(rand(3, 0), kind="max", kernel=3, stride=1, padding=2, raises=ShapeError),
        case(rand(), kind="max", kernel=1, stride=1, raises=ShapeError),
        case(rand(3, 9), kind="max", kernel=3, stride=1, padding=3, raises=AttributeValueError),
        case(rand(3, 9), kind="sum", kernel=3, stride=1, raises=AttributeValueError),
        case(rand(3, 9), kind="max", kernel=0, stride=1, raises=AttributeValueError),
        case(rand(3, 9), kind="max", kernel=3, stride=0, raises=AttributeValueError),
        case(ints(3, 9, high=9), kind="max", kernel=3, stride=1, raises=DTypeError),
    ],
)
def pool_1d(x: Array, *, kind: str, kernel: Extents, stride: Extents, padding: Extents = 0) -> Array:
    """The largest or the mean of every window of the last axis.

    x: f32 or f16 (..., L). kind: max, where padding does not count and NaN in a window gives NaN; or mean, divided by
    the number of elements inside the row. padding: less than kernel.
    Returns: f32 (..., (L + 2*padding - kernel)//stride + 1). Raises: ShapeError where no window fits or L is 0;
    AttributeValueError.
    """
    size = spread(kernel, 1)
    if kind == "max":
        return np.max(windows(x, size, stride=stride, padding=padding, fill=-np.inf), -1)
    inside = windows(np.ones(x.shape[-1:]), size, stride=stride, padding=padding).sum(-1)
    return np.sum(windows(x, size, stride=stride, padding=padding), -1) / inside


@op(
    shape=_plane,
    dtype=always(f32),
    work=_plane_work,
    accepts={"x": (f32, f16)},
    tolerance="M",
    priority="P1",
    cases=[
        case(rand(2, 3, 6, 7), kind="max", kernel=(3, 2), stride=2),
        case(rand(2, 3, 6, 7), kind="mean", kernel=(3, 2), stride=(2, 1), padding=(1, 1)),
        case(rand(1, 2, 9, 33), kind="max", kernel=3, stride=(1, 3), padding=(2, 0)),
        case(rand(1, 1, 2, 257), kind="mean", kernel=2, stride=1),
        case(values([[[_NASTY, _NASTY[::-1]]]]), kind="max", kernel=(1, 2), stride=1),
        case(values([[[_NASTY, _NASTY[::-1]]]]), kind="mean", kernel=2, stride=1, padding=1),
        case(rand(2, 3, 1, 1), kind="mean", kernel=1, stride=1),
        case(rand(0, 3, 6, 7), kind="max", kernel=2, stride=2),
        case(rand(2, 3, 6, 1), kind="max", kernel=2, stride=2, raises=ShapeError),
        case(rand(2, 3, 6, 0), kind="max", kernel=2, stride=2, padding=1, raises=ShapeError),
        case(rand(3, 6, 7), kind="max", kernel=2, stride=2, raises=ShapeError),
        case(rand(2, 3, 6, 7), kind="max", kernel=(3, 2), stride=2, padding=(1, 2), raises=AttributeValueError),
        case(rand(2, 3, 6, 7), kind="min", kernel=2, stride=2, raises=AttributeValueError),
        case(rand(2, 3, 6, 7), kind="max", kernel=2, stride=(1, 1, 1), raises=AttributeValueError),
        case(ints(2, 3, 6, 7, high=9), kind="max", kernel=2, stride=2, raises=DTypeError),
    ],
)
def pool_2d(x: Array, *, kind: str, kernel: Extents, stride: Extents, padding: Extents = 0) -> Array:
    """The largest or the mean of every window of the last two axes.

    x: f32 or f16 (N, C, H, W). kind: max, where padding does not count and NaN in a window gives NaN; or mean, divided
    by kh*kw, padding counted as zeros (pool_1d divides otherwise). padding: less than kernel, on each axis.
    kernel, stride, padding: a number for both axes, or (rows, columns).
    Returns: f32 (N, C, OH, OW). Raises: ShapeError where no window fits or H or W is 0; AttributeValueError.
    """
    size = spread(kernel, 2)
    if kind == "max":
        return np.max(windows(x, size, stride=stride, padding=padding, fill=-np.inf), (-2, -1))
    return np.sum(windows(x, size, stride=stride, padding=padding), (-2, -1)) / (size[0] * size[1])
