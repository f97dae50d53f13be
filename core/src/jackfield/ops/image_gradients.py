"""Gradients of windows that slide over images: of their columns, and of pooling."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jackfield.dtypes import f16, f32
from jackfield.errors import AttributeValueError, DTypeError, ShapeError
from jackfield.op import Array, Call, Work, case, op, rand, values
from jackfield.ops.elementwise import INF, NAN
from jackfield.ops.pooling import pooled
from jackfield.ops.sliding import Extents, per_axis, slid, spread, taps
from jackfield.rules import like, per_operand_element, rank_of, touched
from jackfield.spec import Shape, Spec


def _image(call: Call) -> Shape:
    grad, shape = call["grad"].shape, call.attr("shape")
    if len(shape) not in (3, 4) or any(n < 0 for n in shape):
        raise call.attr_error(f"shape is {list(shape)}, must be (N, C, L) or (N, C, H, W), extents of at least 0")
    N, C, *extents = shape
    kernel = per_axis(call, "kernel", len(extents), 1)
    wanted = (N, *slid(call, tuple(extents), kernel), C * math.prod(kernel))
    if grad != wanted:
        raise call.shape_error(f"grad is {list(grad)}, must be {list(wanted)}, what im2col makes of {list(shape)}")
    return tuple(shape)


@op(
    shape=_image,
    dtype=like("grad"),
    work=per_operand_element("grad", 1),
    accepts={"grad": (f32,)},
    tolerance="R",
    priority="P2",
    cases=[
        case(rand(2, 5, 5, 18), shape=(2, 3, 5, 6), kernel=(3, 2), padding=(1, 0)),
        case(rand(2, 5, 9), shape=(2, 3, 9), kernel=3, stride=2, padding=1),
        case(rand(1, 9, 7, 12), shape=(1, 3, 7, 8), kernel=2, padding=(2, 1), dilation=(2, 3)),
        case(values([[[NAN, 1.0], [INF, 2.0], [-INF, 1.0]]]), shape=(1, 1, 4), kernel=2),
        case(rand(1, 1, 1, 1), shape=(1, 1, 1, 1), kernel=1),
        case(rand(0, 5, 5, 18), shape=(0, 3, 5, 6), kernel=(3, 2), padding=(1, 0)),
        case(rand(2, 5, 5, 17), shape=(2, 3, 5, 6), kernel=(3, 2), padding=(1, 0), raises=ShapeError),
        case(rand(2, 5, 5, 18), shape=(2, 3, 2, 6), kernel=(3, 2), raises=ShapeError),
        case(rand(2, 5, 9), shape=(2, 9), kernel=3, raises=AttributeValueError),
        case(rand(2, 5, 9), shape=(2, 3, -9), kernel=3, raises=AttributeValueError),
        case(rand(2, 5, 9), shape=(2, 3, 9), kernel=(3, 3), raises=AttributeValueError),
        case(rand(2, 5, 9, dtype=f16), shape=(2, 3, 9), kernel=3, stride=2, padding=1, raises=DTypeError),
    ],
)
def im2col_backward(
    grad: Array,
    *,
    shape: Shape,
    kernel: Extents,
    stride: Extents = 1,
    padding: Extents = 0,
    dilation: Extents = 1,
) -> Array:
    """The gradient of im2col: each element of a column added to the place of the image that it came from.

    grad: f32 (N, OL, C*k) or (N, OH, OW, C*kh*kw). shape: of the image. kernel, stride, padding, dilation: those of
    im2col. Returns: f32 of this shape. Raises: ShapeError where grad is not what im2col makes; AttributeValueError.
    """
    N, C, *extents = shape
    axes = len(extents)
    sizes = spread(kernel, axes)
    image = np.zeros((N, C, *[n + 2 * p for n, p in zip(extents, spread(padding, axes), strict=True)]))
    columns = np.moveaxis(grad.reshape(*grad.shape[:-1], C, *sizes), axes + 1, 1)  # (N, C, windows, kernel)
    for taken, at in taps(grad.shape[1 : 1 + axes], sizes, stride=stride, dilation=dilation):
        image[at] += columns[taken]
    for axis, (n, p) in enumerate(zip(extents, spread(padding, axes), strict=True), 2):
        image = np.take(image, np.arange(p, p + n), axis)
    return image


def _pooled_image(call: Call) -> Shape:
    rank_of(call, "x", 4, 4)
    x, grad = call["x"].shape, call["grad"].shape
    wanted = (*x[:2], *pooled(call, "x", 2))
    if grad != wanted:
        raise call.shape_error(f"grad is {list(grad)}, must be {list(wanted)}, what pool_2d makes of {list(x)}")
    return x


def _pooled_work(call: Call, result: Spec) -> Work:
    kh, kw = spread(call.attr("kernel"), 2)
    return Work(call["grad"].size * kh * kw, touched(call, result))


@op(
    shape=_pooled_image,
    dtype=like("x"),
    work=_pooled_work,
    accepts={"grad": (f32,), "x": (f32,)},
    tolerance="R",
    priority="P2",
    cases=[
        case(rand(2, 3, 2, 3), rand(2, 3, 6, 7), kind="max", kernel=(3, 2), stride=2),
        case(rand(2, 3, 3, 6), rand(2, 3, 6, 7), kind="mean", kernel=(3, 2), stride=(2, 1), padding=(1, 0)),
        case(rand(1, 2, 5, 33), rand(1, 2, 5, 33), kind="max", kernel=3, stride=1, padding=1),
        case(values([[[[1.0, 2.0, 4.0]]]]), values([[[[5.0, NAN, 5.0, 5.0]]]]), kind="max", kernel=(1, 2), stride=1),
        case(values([[[[1.0, NAN]]]]), values([[[[-INF, -INF, INF, -INF]]]]), kind="max", kernel=(1, 2), stride=2),
        case(rand(2, 3, 1, 1), rand(2, 3, 1, 1), kind="mean", kernel=1, stride=1),
        case(rand(0, 3, 3, 3), rand(0, 3, 6, 6), kind="max", kernel=2, stride=2),
        case(rand(2, 3, 3, 2), rand(2, 3, 6, 7), kind="max", kernel=2, stride=2, raises=ShapeError),
        case(rand(3, 3, 3), rand(3, 6, 7), kind="max", kernel=2, stride=2, raises=ShapeError),
        case(rand(2, 3, 3, 3), rand(2, 3, 6, 7), kind="sum", kernel=2, stride=2, raises=AttributeValueError),
        case(rand(2, 3, 3, 3), rand(2, 3, 6, 7, dtype=f16), kind="max", kernel=2, stride=2, raises=DTypeError),
    ],
)
def pool_2d_backward(
    grad: Array, x: Array, *, kind: str, kernel: Extents, stride: Extents, padding: Extents = 0
) -> Array:
    """The gradient of pool_2d: to the first maximum of each window, or evenly to all of its cells inside of x.

    grad: f32 (N, C, OH, OW). x: f32 (N, C, H, W), what was pooled. kind: max, where the first NaN of a window is its
    maximum, or mean: grad / (kh*kw) each. kernel, stride, padding: those of pool_2d.
    Returns: f32, shape of x. Raises: ShapeError where grad is not what pool_2d makes; AttributeValueError.
    """
    (kh, kw), (ph, pw) = spread(kernel, 2), spread(padding, 2)
    H, W = x.shape[2:]
    padded = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)), constant_values=-np.inf)
    inside = np.pad(np.ones((H, W), bool), ((ph, ph), (pw, pw)))
    image = np.zeros(padded.shape)
    places = list(taps(grad.shape[2:], (kh, kw), stride=stride))
    largest = _first_maximum(padded, inside, [at for _, at in places]) if kind == "max" else None
    for number, (_, at) in enumerate(places):
        image[at] += grad / (kh * kw) if largest is None else np.where(largest == number, grad, 0)
    return image[:, :, ph : ph + H, pw : pw + W]


def _first_maximum(padded: Array, inside: Array, places: list[Any]) -> Array:
    """The number of the tap that is the first maximum, or NaN, of each window."""
    real = np.stack([inside[at] for at in places])[:, None, None]
    cells = np.stack([padded[at] for at in places])
    return np.asarray((real & ((cells == cells.max(0)) | np.isnan(cells))).argmax(0))
