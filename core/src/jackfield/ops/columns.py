"""Windows as columns, so that a convolution becomes a product of matrices; and columns added up to a line."""

from __future__ import annotations

import math

import numpy as np

from jackfield.dtypes import DType, f16, f32
from jackfield.errors import AttributeValueError, DTypeError, ShapeError
from jackfield.op import Array, Call, case, dtype_attr, ints, op, rand, values
from jackfield.ops.elementwise import INF, NAN
from jackfield.ops.sliding import Extents, per_axis, slid, spread, windows
from jackfield.rules import F, like, per_element, per_operand_element, rank_of
from jackfield.spec import Shape


def _float_dtype(call: Call) -> DType:
    dtype = dtype_attr(call)
    if dtype not in F:
        raise call.dtype_error(f"dtype is {dtype}, must be one of {', '.join(d.name for d in F)}")
    return dtype


def _columns(call: Call) -> Shape:
    rank_of(call, "x", 3, 4)
    N, C, *extents = call["x"].shape
    kernel = per_axis(call, "kernel", len(extents), 1)
    return (N, *slid(call, tuple(extents), kernel), C * math.prod(kernel))


@op(
    shape=_columns,
    dtype=_float_dtype,
    work=per_element(0),
    accepts={"x": (f32, f16)},
    tolerance="E",
    priority="P1",
    stored=True,
    cases=[
        case(rand(2, 3, 5, 6), kernel=(3, 2), padding=(1, 0), dtype="f32"),
        case(rand(2, 3, 9), kernel=3, stride=2, padding=1),
        case(rand(1, 2, 7, 8), kernel=(3, 3), stride=(2, 1), padding=(2, 1), dilation=(1, 2)),
        case(rand(1, 2, 5, 5), kernel=2, dtype="bf16"),
        case(rand(1, 1, 3, 257), kernel=(1, 3), padding=(0, 1), dtype="f32"),
        case(values([[[NAN, INF, -0.0, 65520.0, -INF, 1e-9]]]), kernel=(3,), padding=2),
        case(rand(2, 3, 1, 1), kernel=(1, 1)),
        case(rand(0, 3, 5, 6), kernel=(3, 2)),
        case(rand(2, 0, 5, 6), kernel=(3, 2)),
        case(rand(2, 3, 5, 6), kernel=(6, 2), raises=ShapeError),
        case(rand(3, 5), kernel=3, raises=ShapeError),
        case(rand(2, 3, 5, 6), kernel=(3, 3, 3), raises=AttributeValueError),
        case(rand(2, 3, 5, 6), kernel=(3, 0), raises=AttributeValueError),
        case(rand(2, 3, 5), kernel=3, stride=0, raises=AttributeValueError),
        case(rand(2, 3, 5), kernel=3, padding=-1, raises=AttributeValueError),
        case(rand(2, 3, 5), kernel=3, dilation=0, raises=AttributeValueError),
        case(rand(2, 3, 5), kernel=3.0, raises=AttributeValueError),
        case(rand(2, 3, 5), kernel=3, dtype="i32", raises=DTypeError),
        case(ints(2, 3, 5, high=9), kernel=3, raises=DTypeError),
    ],
)
def im2col(
    x: Array,
    *,
    kernel: Extents,
    stride: Extents = 1,
    padding: Extents = 0,
    dilation: Extents = 1,
    dtype: str = "f16",  # noqa: ARG001 - results are cast to it
) -> Array:
    """Each window of the image as one row: channels outermost, then the kernel's axes; outside of x is 0.

    x: f32 or f16 (N, C, L) or (N, C, H, W). kernel, stride, padding, dilation: a number for all axes or one for each.
    dtype: f16, f32 or bf16, to which elements are cast.
    Returns: (N, OL, C*k) or (N, OH, OW, C*kh*kw). Raises: ShapeError where no window fits; AttributeValueError.
    """
    axes = x.ndim - 2
    sizes = spread(kernel, axes)
    found = windows(x, sizes, stride=stride, padding=padding, dilation=dilation)
    rows = np.moveaxis(found, 1, axes + 1)
    return rows.reshape(*rows.shape[: axes + 1], x.shape[1] * math.prod(sizes))


def _volume_columns(call: Call) -> Shape:
    rank_of(call, "x", 4, 4)
    batch, *extents = call["x"].shape
    channels = channels_of(call, "x")
    kernel = per_axis(call, "kernel", 3, 1)
    D, H, W = slid(call, tuple(extents), kernel)
    return (batch // channels * D, H, W, channels * math.prod(kernel))


def channels_of(call: Call, name: str) -> int:
    """The attribute `channels`, which must divide the first axis of this operand."""
    channels, batch = int(call.attr("channels")), call[name].shape[0]
    if channels < 1:
        raise call.attr_error(f"channels is {channels}, must be at least 1")
    if batch % channels:
        raise call.shape_error(f"{name} has {batch} on axis 0, must be a multiple of the {channels} channels")
    return channels


@op(
    shape=_volume_columns,
    dtype=_float_dtype,
    work=per_element(0),
    accepts={"x": (f32, f16)},
    tolerance="E",
    priority="P1",
    stored=True,
    cases=[
        case(rand(6, 3, 4, 5), channels=3, kernel=(2, 3, 2), padding=(0, 1, 0), dtype="f32"),
        case(rand(2, 5, 4, 6), channels=1, kernel=2, stride=(2, 1, 3), padding=1, dilation=(2, 1, 1)),
        case(rand(4, 1, 3, 33), channels=2, kernel=(1, 1, 3), padding=(0, 0, 1)),
        case(rand(1, 1, 1, 1), channels=1, kernel=1),
        case(rand(1, 2, 3, 4), channels=1, kernel=2, dtype="bf16"),
        case(rand(0, 3, 4, 5), channels=3, kernel=2),
        case(rand(6, 3, 4, 5), channels=4, kernel=2, raises=ShapeError),
        case(rand(6, 3, 4, 5), channels=3, kernel=(4, 1, 1), raises=ShapeError),
        case(rand(6, 3, 4), channels=3, kernel=2, raises=ShapeError),
        case(rand(6, 3, 4, 5), channels=0, kernel=2, raises=AttributeValueError),
        case(rand(6, 3, 4, 5), channels=3, kernel=(2, 2), raises=AttributeValueError),
        case(rand(6, 3, 4, 5), channels=3, kernel=2, dtype="q8_0", raises=DTypeError),
    ],
)
def im2col_3d(
    x: Array,
    *,
    channels: int,
    kernel: Extents,
    stride: Extents = 1,
    padding: Extents = 0,
    dilation: Extents = 1,
    dtype: str = "f16",  # noqa: ARG001 - results are cast to it
) -> Array:
    """Each window of a volume as one row: channels outermost, then the kernel's axes; outside of x is 0.

    x: f32 or f16 (N*C, D, H, W). channels: C. kernel, stride, padding, dilation: a number for all axes or one for each.
    dtype: f16, f32 or bf16, to which elements are cast.
    Returns: (N*OD, OH, OW, C*kd*kh*kw). Raises: ShapeError where no window fits or C does not divide; DTypeError;
    AttributeValueError.
    """
    sizes = spread(kernel, 3)
    volumes = x.reshape(x.shape[0] // channels, channels, *x.shape[1:])
    rows = np.moveaxis(windows(volumes, sizes, stride=stride, padding=padding, dilation=dilation), 1, 4)
    N, D, H, W = rows.shape[:4]
    return rows.reshape(N * D, H, W, channels * math.prod(sizes))


def _line(call: Call) -> Shape:
    rank_of(call, "x", 2, 2)
    (T, width), O = call["x"].shape, int(call.attr("channels"))
    if O < 1:
        raise call.attr_error(f"channels is {O}, must be at least 1")
    if width % O or width == 0:
        raise call.shape_error(f"x is {list(call['x'].shape)}, its last axis must be a multiple of the {O} channels")
    stride, padding = per_axis(call, "stride", 1, 1)[0], per_axis(call, "padding", 1, 0)[0]
    length = (T - 1) * stride + width // O - 2 * padding
    if length < 1:
        raise call.shape_error(
            f"{T} columns of {width // O} with padding {padding} give a line of {length}, at least 1"
        )
    return (O, length)


@op(
    shape=_line,
    dtype=like("x"),
    work=per_operand_element("x", 1),
    accepts={"x": F},
    tolerance="M",
    priority="P1",
    cases=[
        case(rand(5, 6), stride=2, channels=2),
        case(rand(7, 12), stride=3, channels=3, padding=2),
        case(rand(4, 5), stride=7, channels=1),
        case(rand(257, 4), stride=1, channels=1, padding=1),
        case(values([[1.0, NAN, 3.0], [INF, 20.0, 30.0], [-INF, 1.0, 2.0]]), stride=2, channels=1),
        case(rand(1, 1), stride=1, channels=1),
        case(rand(0, 6), stride=1, channels=2),
        case(rand(5, 7), stride=2, channels=2, raises=ShapeError),
        case(rand(1, 4), stride=2, channels=1, padding=2, raises=ShapeError),
        case(rand(5, 0), stride=1, channels=2, raises=ShapeError),
        case(rand(2, 5, 6), stride=2, channels=2, raises=ShapeError),
        case(rand(5, 6), stride=0, channels=2, raises=AttributeValueError),
        case(rand(5, 6), stride=2, channels=0, raises=AttributeValueError),
        case(rand(5, 6), stride=2, channels=2, padding=-1, raises=AttributeValueError),
        case(ints(5, 6, high=9), stride=2, channels=2, raises=DTypeError),
    ],
)
def col2im_1d(x: Array, *, stride: int, channels: int, padding: int = 0) -> Array:
    """Columns added up where they overlap: what a transposed convolution does after its product.

    x: f32, f16 or bf16 (T, O*k). channels: O. stride: from one column's start to the next. padding: cut off both ends.
    Returns: dtype of x (O, (T-1)*stride + k - 2*padding). Raises: ShapeError, AttributeValueError.
    """
    T, width = x.shape
    k = width // channels
    columns = x.reshape(T, channels, k)
    line = np.zeros((channels, (T - 1) * stride + k))
    for j in range(k):
        line[:, stride * np.arange(T) + j] += columns[:, :, j].T
    return line[:, padding : line.shape[1] - padding]
