"""Windows that slide over the last axes of a tensor: what convolutions, columns and pooling have in common.

Attributes such as `stride` hold one number for every axis, or a tuple with a number for each. Axes are padded with a
fill on both sides; window o of an axis starts at o * stride - padding and takes every dilation-th element.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from jackfield.op import Array, Call
from jackfield.spec import Shape

Extents = int | Shape


def spread(value: Extents, axes: int) -> Shape:
    """One number for each of these axes."""
    return (value,) * axes if isinstance(value, int) else value


def per_axis(call: Call, attr: str, axes: int, least: int) -> Shape:
    """The numbers of an attribute, one an axis. Raises: AttributeValueError for too many, too few or too small ones."""
    value = spread(call.attr(attr), axes)
    if len(value) != axes or any(n < least for n in value):
        many = "a whole number" if axes == 1 else f"a whole number, or {axes} of them, each"
        raise call.attr_error(f"{attr} is {call.attr(attr)}, must be {many} at least {least}")
    return value


def slid(call: Call, extents: Shape, kernel: Shape) -> Shape:
    """How many windows fit on each axis. Raises: ShapeError where none does, AttributeValueError."""
    axes = len(extents)
    if any(k < 1 for k in kernel):
        raise call.shape_error(f"the kernel is {list(kernel)}, its extents must be at least 1")
    stride, padding = per_axis(call, "stride", axes, 1), per_axis(call, "padding", axes, 0)
    dilation = per_axis(call, "dilation", axes, 1) if "dilation" in call.attrs else (1,) * axes
    rooms = [n + 2 * p - d * (k - 1) for n, p, d, k in zip(extents, padding, dilation, kernel, strict=True)]
    if any(room < 1 for room in rooms):
        raise call.shape_error(
            f"a kernel of {list(kernel)} with dilation {list(dilation)} does not fit into {list(extents)} "
            f"with padding {list(padding)}: there must be room for one window"
        )
    return tuple((room - 1) // s + 1 for room, s in zip(rooms, stride, strict=True))


def windows(
    x: Array, kernel: Shape, *, stride: Extents, padding: Extents = 0, dilation: Extents = 1, fill: float = 0.0
) -> Array:
    """Every window of the last axes: (..., windows of each axis, elements of each axis)."""
    axes = len(kernel)
    steps, gaps = spread(stride, axes), spread(dilation, axes)
    widths = [(0, 0)] * (x.ndim - axes) + [(p, p) for p in spread(padding, axes)]
    padded = np.pad(x, widths, constant_values=fill)
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, gaps, strict=True)]
    every = sliding_window_view(padded, reach, tuple(range(x.ndim - axes, x.ndim)))
    cuts: tuple[Any, ...] = (..., *(slice(None, None, s) for s in (*steps, *gaps)))
    return every[cuts]


def taps(count: Sequence[int], kernel: Shape, *, stride: Extents, dilation: Extents = 1) -> Iterator[tuple[Any, Any]]:
    """For each element of a kernel, as indices of the last axes: its place in the kernel, and where it lies in the
    padded axes for all of so many windows.
    """
    steps, gaps = spread(stride, len(kernel)), spread(dilation, len(kernel))
    for element in np.ndindex(*kernel):
        starts = [i * d for i, d in zip(element, gaps, strict=True)]
        lies = [slice(a, a + s * (o - 1) + 1, s) for a, s, o in zip(starts, steps, count, strict=True)]
        yield (..., *element), (..., *lies)
