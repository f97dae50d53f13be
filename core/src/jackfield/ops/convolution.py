"""Convolutions over one to three axes: full, one kernel a channel, and transposed.

What lies outside of x counts as 0 and takes part: times a weight of inf or NaN it is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from jackfield.dtypes import f16, f32
from jackfield.errors import AttributeValueError, DTypeError, ShapeError
from jackfield.op import Array, Call, Check, ShapeRule, Work, case, ints, op, rand, values
from jackfield.ops.columns import channels_of
from jackfield.ops.elementwise import INF, NAN
from jackfield.ops.sliding import Extents, per_axis, slid, spread, windows
from jackfield.rules import F, always, like, rank_of, touched
from jackfield.spec import Shape, Spec


def _ranks(axes: int) -> Check:
    def check(call: Call) -> None:
        rank_of(call, "x", axes + 2, axes + 2)
        rank_of(call, "weight", axes + 2, axes + 2)

    return check


def _full(call: Call) -> Shape:
    (N, C, *extents), (O, inner, *kernel) = call["x"].shape, call["weight"].shape
    if inner != C:
        raise call.shape_error(f"x has {C} channels, weight {inner} on axis 1: they must be equal")
    return (N, O, *slid(call, tuple(extents), tuple(kernel)))


def _each(call: Call) -> Shape:
    (N, C, *extents), (channels, one, *kernel) = call["x"].shape, call["weight"].shape
    if channels != C or one != 1:
        raise call.shape_error(f"weight is {list(call['weight'].shape)}, must begin with [{C}, 1], the channels of x")
    return (N, C, *slid(call, tuple(extents), tuple(kernel)))


def _work(call: Call, result: Spec) -> Work:
    """A product for each element of the kernel and, but for one kernel a channel, for each channel of x."""
    return Work(result.size * math.prod(call["weight"].shape[1:]), touched(call, result))


def _volume_work(call: Call, result: Spec) -> Work:
    taps = math.prod(call["weight"].shape[1:]) * call.attr("channels")
    return Work(result.size * taps, touched(call, result))


def _scattered_work(call: Call, result: Spec) -> Work:
    """Each element of x meets the whole kernel of its channel."""
    return Work(call["x"].size * math.prod(call["weight"].shape[1:]), touched(call, result))


def _declared(shape: ShapeRule, axes: int) -> dict[str, Any]:
    """What the convolutions with an f32 result and a weight of any float share."""
    return {
        "shape": shape,
        "dtype": always(f32),
        "work": _work,
        "accepts": {"x": (f32,), "weight": F},
        "check": _ranks(axes),
        "tolerance": "M",
        "priority": "P1",
    }


@op(
    **_declared(_full, 1),
    cases=[
        case(rand(2, 3, 9), rand(4, 3, 3)),
        case(rand(2, 3, 9), rand(4, 3, 3), stride=2, padding=1),
        case(rand(1, 5, 33), rand(7, 5, 4), stride=(3,), padding=(2,), dilation=(2,)),
        case(values([[[1.0, INF, 2.0, 0.0, NAN, 1.0, -INF]]]), rand(2, 1, 3), padding=1),
        case(rand(1, 1, 1), rand(1, 1, 1)),
        case(rand(1, 2, 257), rand(3, 2, 255), padding=127),
        case(rand(0, 3, 9), rand(4, 3, 3)),
        case(rand(2, 0, 9), rand(4, 0, 3)),
        case(rand(2, 3, 9), rand(0, 3, 3)),
        case(rand(2, 3, 0), rand(4, 3, 2), padding=1),
        case(rand(2, 3, 2), rand(4, 3, 3), raises=ShapeError),
        case(rand(2, 3, 9), rand(4, 2, 3), raises=ShapeError),
        case(rand(2, 3, 9), rand(4, 3, 0), raises=ShapeError),
        case(rand(3, 9), rand(4, 3, 3), raises=ShapeError),
        case(rand(2, 3, 9), rand(3, 3), raises=ShapeError),
        case(rand(2, 3, 9), rand(4, 3, 3), stride=0, raises=AttributeValueError),
        case(rand(2, 3, 9), rand(4, 3, 3), stride=(1, 1), raises=AttributeValueError),
        case(rand(2, 3, 9), rand(4, 3, 3), dilation=0, raises=AttributeValueError),
        case(rand(2, 3, 9), rand(4, 3, 3), padding=-1, raises=AttributeValueError),
        case(rand(2, 3, 9, dtype=f16), rand(4, 3, 3), raises=DTypeError),
    ],
)
def conv_1d(x: Array, weight: Array, *, stride: Extents = 1, padding: Extents = 0, dilation: Extents = 1) -> Array:
    """A kernel slid along a line: y[n,o,l] = sum of x[n, c, l*stride + i*dilation - padding] * weight[o,c,i].

    x: f32 (N, C, L). weight: f32, f16 or bf16 (O, C, k). Outside of x is 0.
    Returns: f32 (N, O, (L + 2*padding - dilation*(k-1) - 1)//stride + 1).
    Raises: ShapeError where channels differ or no window fits; AttributeValueError.
    """
    return _convolved(x, weight, stride, padding, dilation)


def _convolved(x: Array, weight: Array, stride: Extents, padding: Extents, dilation: Extents) -> Array:
    """The sum over channels and kernel of windows times weight: (N, O, windows of each axis)."""
    axes = weight.ndim - 2
    found = windows(
        x, weight.shape[2:], stride=stride, padding=padding, dilation=dilation
    )  # (N, C, windows of each axis, elements of each axis)
    inner = [1, *range(axes + 2, found.ndim)]
    return np.moveaxis(np.tensordot(found, weight, (inner, [*range(1, axes + 2)])), -1, 1)


_PLANES = (
    case(rand(2, 3, 6, 7), rand(4, 3, 3, 2)),
    case(rand(2, 3, 6, 7), rand(4, 3, 3, 3), stride=2, padding=1),
    case(rand(1, 2, 9, 8), rand(5, 2, 2, 3), stride=(2, 1), padding=(0, 2), dilation=(3, 2)),
    case(values([[[[1.0, INF, 2.0], [0.0, NAN, 1.0], [1.0, 2.0, -INF], [1.0, 1.0, 1.0]]]]), rand(2, 1, 2, 2)),
    case(rand(1, 1, 1, 1), rand(1, 1, 1, 1)),
    case(rand(1, 2, 3, 257), rand(3, 2, 1, 4)),
    case(rand(0, 3, 6, 7), rand(4, 3, 3, 2)),
    case(rand(2, 0, 6, 7), rand(4, 0, 3, 2)),
    case(rand(2, 3, 2, 7), rand(4, 3, 3, 2), raises=ShapeError),
    case(rand(2, 3, 6, 7), rand(4, 2, 3, 2), raises=ShapeError),
    case(rand(3, 6, 7), rand(4, 3, 3, 2), raises=ShapeError),
    case(rand(2, 3, 6, 7), rand(4, 3, 3, 2), stride=(1, 0), raises=AttributeValueError),
    case(rand(2, 3, 6, 7), rand(4, 3, 3, 2), padding=(1, 1, 1), raises=AttributeValueError),
    case(ints(2, 3, 6, 7, high=9), rand(4, 3, 3, 2), raises=DTypeError),
)


@op(**_declared(_full, 2) | {"dtype": like("x"), "accepts": {"x": (f32, f16), "weight": F}}, cases=_PLANES)
def conv_2d(x: Array, weight: Array, *, stride: Extents = 1, padding: Extents = 0, dilation: Extents = 1) -> Array:
    """A kernel slid over a plane: the sum of x[n, c, oh*s + i*d - p, ow*s + j*d - p] * weight[o, c, i, j].

    x: f32 or f16 (N, C, H, W). weight: f32, f16 or bf16 (O, C, kh, kw). Outside of x is 0.
    stride, padding, dilation (s, p, d): a number for both axes, or (rows, columns).
    Returns: dtype of x (N, O, OH, OW). Raises: ShapeError where channels differ or no window fits; AttributeValueError.
    """
    return _convolved(x, weight, stride, padding, dilation)


def _volumes(call: Call) -> Shape:
    (batch, *extents), (count, *kernel) = call["x"].shape, call["weight"].shape
    channels = channels_of(call, "x")
    channels_of(call, "weight")
    N, O = batch // channels, count // channels
    return (N * O, *slid(call, tuple(extents), tuple(kernel)))


@op(
    **_declared(_volumes, 2) | {"work": _volume_work},
    cases=[
        case(rand(6, 4, 5, 6), rand(12, 2, 3, 2), channels=3),
        case(rand(2, 4, 5, 6), rand(3, 2, 2, 2), channels=1, stride=2, padding=1),
        case(rand(4, 5, 4, 7), rand(6, 2, 1, 3), channels=2, stride=(1, 2, 3), padding=(1, 0, 2), dilation=(2, 1, 1)),
        case(rand(1, 1, 1, 1), rand(1, 1, 1, 1), channels=1),
        case(rand(2, 1, 2, 33), rand(2, 1, 2, 3), channels=2),
        case(rand(0, 4, 5, 6), rand(12, 2, 3, 2), channels=3),
        case(rand(6, 4, 5, 6), rand(0, 2, 3, 2), channels=3),
        case(rand(6, 4, 5, 6), rand(12, 2, 3, 2), channels=4, raises=ShapeError),
        case(rand(6, 4, 5, 6), rand(10, 2, 3, 2), channels=3, raises=ShapeError),
        case(rand(6, 1, 5, 6), rand(12, 2, 3, 2), channels=3, raises=ShapeError),
        case(rand(6, 4, 5), rand(12, 2, 3, 2), channels=3, raises=ShapeError),
        case(rand(6, 4, 5, 6), rand(12, 2, 3, 2), channels=0, raises=AttributeValueError),
        case(rand(6, 4, 5, 6), rand(12, 2, 3, 2), channels=3, stride=(1, 1), raises=AttributeValueError),
        case(rand(6, 4, 5, 6, dtype=f16), rand(12, 2, 3, 2), channels=3, raises=DTypeError),
    ],
)
def conv_3d(
    x: Array,
    weight: Array,
    *,
    channels: int,
    stride: Extents = 1,
    padding: Extents = 0,
    dilation: Extents = 1,
) -> Array:
    """A kernel slid through a volume, summed over channels and the kernel's three axes.

    x: f32 (N*C, D, H, W), axis 0 holds pairs [n, c]. weight: f32, f16 or bf16 (O*C, kd, kh, kw), pairs [o, c].
    channels: C. stride, padding, dilation: a number for all axes, or (depth, rows, columns). Outside of x is 0.
    Returns: f32 (N*O, OD, OH, OW), pairs [n, o]. Raises: ShapeError where C does not divide or no window fits;
    AttributeValueError.
    """
    volumes = x.reshape(x.shape[0] // channels, channels, *x.shape[1:])
    kernels = weight.reshape(weight.shape[0] // channels, channels, *weight.shape[1:])
    y = _convolved(volumes, kernels, stride, padding, dilation)
    return y.reshape(y.shape[0] * y.shape[1], *y.shape[2:])


@op(
    **_declared(_each, 1),
    cases=[
        case(rand(2, 3, 9), rand(3, 1, 4)),
        case(rand(2, 3, 9), rand(3, 1, 3), stride=2, padding=1),
        case(rand(1, 5, 33), rand(5, 1, 4), stride=(3,), padding=(2,), dilation=(2,)),
        case(values([[[1.0, INF, 2.0, 0.0, NAN, 1.0]]]), rand(1, 1, 2)),
        case(rand(1, 1, 1), rand(1, 1, 1)),
        case(rand(1, 256, 5), rand(256, 1, 3), padding=2),
        case(rand(2, 0, 9), rand(0, 1, 3)),
        case(rand(2, 3, 9), rand(3, 2, 3), raises=ShapeError),
        case(rand(2, 3, 9), rand(4, 1, 3), raises=ShapeError),
        case(rand(2, 3, 2), rand(3, 1, 3), raises=ShapeError),
        case(rand(2, 3, 9), rand(3, 1, 3), stride=0, raises=AttributeValueError),
        case(ints(2, 3, 9, high=9), rand(3, 1, 3), raises=DTypeError),
    ],
)
def conv_1d_depthwise(
    x: Array, weight: Array, *, stride: Extents = 1, padding: Extents = 0, dilation: Extents = 1
) -> Array:
    """A kernel of its own for each channel of a line.

    x: f32 (N, C, L). weight: f32, f16 or bf16 (C, 1, k). stride, padding, dilation: as conv_1d. Outside of x is 0.
    Returns: f32 (N, C, OL). Raises: ShapeError where channels differ or no window fits; AttributeValueError.
    """
    return _channelwise(x, weight, stride, padding, dilation)


def _channelwise(x: Array, weight: Array, stride: Extents, padding: Extents, dilation: Extents) -> Array:
    axes = weight.ndim - 2
    found = windows(x, weight.shape[2:], stride=stride, padding=padding, dilation=dilation)
    kernels = weight.reshape(weight.shape[0], *[1] * axes, *weight.shape[2:])
    return np.sum(found * kernels, tuple(range(-axes, 0)))


@op(
    **_declared(_each, 2),
    cases=[
        case(rand(2, 3, 6, 7), rand(3, 1, 3, 2)),
        case(rand(2, 3, 6, 7), rand(3, 1, 3, 3), stride=2, padding=1),
        case(rand(1, 2, 9, 8), rand(2, 1, 2, 3), stride=(2, 1), padding=(0, 2), dilation=(3, 2)),
        case(values([[[[1.0, INF, 2.0], [0.0, NAN, 1.0], [1.0, 2.0, 3.0]]]]), rand(1, 1, 2, 2)),
        case(rand(1, 1, 1, 1), rand(1, 1, 1, 1)),
        case(rand(1, 257, 3, 3), rand(257, 1, 3, 3), padding=1),
        case(rand(0, 3, 6, 7), rand(3, 1, 3, 2)),
        case(rand(2, 3, 6, 7), rand(3, 3, 3, 2), raises=ShapeError),
        case(rand(2, 3, 6, 1), rand(3, 1, 3, 2), raises=ShapeError),
        case(rand(3, 6, 7), rand(3, 1, 3, 2), raises=ShapeError),
        case(rand(2, 3, 6, 7), rand(3, 1, 3, 2), dilation=(0, 1), raises=AttributeValueError),
        case(rand(2, 3, 6, 7, dtype=f16), rand(3, 1, 3, 2), raises=DTypeError),
    ],
)
def conv_2d_depthwise(
    x: Array, weight: Array, *, stride: Extents = 1, padding: Extents = 0, dilation: Extents = 1
) -> Array:
    """A kernel of its own for each channel of a plane.

    x: f32 (N, C, H, W), in whatever memory order. weight: f32, f16 or bf16 (C, 1, kh, kw). Outside of x is 0.
    stride, padding, dilation: a number for both axes, or (rows, columns).
    Returns: f32 (N, C, OH, OW). Raises: ShapeError where channels differ or no window fits; AttributeValueError.
    """
    return _channelwise(x, weight, stride, padding, dilation)


def _widened(call: Call) -> Shape:
    (N, inner, *extents), (I, O, *kernel) = call["x"].shape, call["weight"].shape
    if inner != I:
        raise call.shape_error(f"x has {inner} channels, weight {I} on axis 0: they must be equal")
    stride = per_axis(call, "stride", len(kernel), 1)
    lengths = [(n - 1) * s + k for n, s, k in zip(extents, stride, kernel, strict=True)]
    if any(k < 1 for k in kernel) or any(length < 1 for length in lengths):
        raise call.shape_error(
            f"x is {list(call['x'].shape)} and weight {list(call['weight'].shape)} with stride {list(stride)}: "
            f"the result's {lengths} must be at least 1"
        )
    return (N, O, *lengths)


def _transposed(axes: int) -> Mapping[str, Any]:
    accepts = {"x": (f32,), "weight": (f32, f16)}
    return _declared(_widened, axes) | {"work": _scattered_work, "accepts": accepts}


@op(
    **_transposed(1),
    cases=[
        case(rand(2, 3, 5), rand(3, 4, 3), stride=2),
        case(rand(3, 2, 7), rand(2, 3, 4), stride=1),
        case(rand(1, 2, 4), rand(2, 5, 2), stride=3),
        case(values([[[1.0, INF, NAN, 2.0]]]), rand(1, 2, 3), stride=(2,)),
        case(rand(1, 1, 1), rand(1, 1, 1)),
        case(rand(1, 2, 257), rand(2, 1, 4), stride=2),
        case(rand(0, 3, 5), rand(3, 4, 3), stride=2),
        case(rand(2, 0, 5), rand(0, 4, 3), stride=2),
        case(rand(2, 3, 0), rand(3, 4, 3), stride=2),
        case(rand(2, 3, 5), rand(4, 3, 3), stride=2, raises=ShapeError),
        case(rand(2, 3, 0), rand(3, 4, 2), stride=2, raises=ShapeError),
        case(rand(2, 3, 5), rand(3, 4, 0), stride=2, raises=ShapeError),
        case(rand(3, 5), rand(3, 4, 3), raises=ShapeError),
        case(rand(2, 3, 5), rand(3, 4, 3), stride=0, raises=AttributeValueError),
        case(rand(2, 3, 5), rand(3, 4, 3, dtype=F[2]), raises=DTypeError),
    ],
)
def conv_transpose_1d(x: Array, weight: Array, *, stride: Extents = 1) -> Array:
    """Each element of a line puts down a kernel times itself: y[n, o, l*stride + j] += x[n,i,l] * weight[i,o,j].

    x: f32 (N, I, L). weight: f32 or f16 (I, O, k). Returns: f32 (N, O, (L-1)*stride + k).
    Raises: ShapeError where channels differ or nothing would be left; AttributeValueError.
    """
    return _scattered(x[..., None], weight[..., None], stride=(*spread(stride, 1), 1))[..., 0]


def _scattered(x: Array, weight: Array, *, stride: Shape) -> Array:
    (N, _, H, W), (_, O, kh, kw) = x.shape, weight.shape
    y = np.zeros((N, O, (H - 1) * stride[0] + kh, (W - 1) * stride[1] + kw))
    rows, columns = stride[0] * np.arange(H)[:, None], stride[1] * np.arange(W)
    for i in range(kh):
        for j in range(kw):
            y[:, :, rows + i, columns + j] += np.moveaxis(np.tensordot(x, weight[:, :, i, j], (1, 0)), -1, 1)
    return y


@op(
    **_transposed(2),
    cases=[
        case(rand(2, 3, 4, 5), rand(3, 4, 3, 2), stride=2),
        case(rand(3, 2, 3, 3), rand(2, 1, 2, 2)),
        case(rand(1, 2, 3, 4), rand(2, 5, 2, 3), stride=(3, 1)),
        case(values([[[[1.0, INF], [NAN, 2.0]]]]), rand(1, 2, 3, 1), stride=2),
        case(rand(1, 1, 1, 1), rand(1, 1, 1, 1)),
        case(rand(1, 2, 3, 129), rand(2, 1, 2, 2), stride=2),
        case(rand(0, 3, 4, 5), rand(3, 4, 3, 2), stride=2),
        case(rand(2, 3, 4, 0), rand(3, 4, 3, 2), stride=1),
        case(rand(2, 3, 4, 5), rand(2, 4, 3, 2), stride=2, raises=ShapeError),
        case(rand(2, 3, 4, 0), rand(3, 4, 3, 2), stride=2, raises=ShapeError),
        case(rand(3, 4, 5), rand(3, 4, 3, 2), raises=ShapeError),
        case(rand(2, 3, 4, 5), rand(3, 4, 3, 2), stride=(0, 1), raises=AttributeValueError),
        case(rand(2, 3, 4, 5, dtype=f16), rand(3, 4, 3, 2), raises=DTypeError),
    ],
)
def conv_transpose_2d(x: Array, weight: Array, *, stride: Extents = 1) -> Array:
    """Each element of a plane puts down a kernel times itself, in every image of the batch.

    x: f32 (N, I, H, W). weight: f32 or f16 (I, O, kh, kw). stride: a number for both axes, or (rows, columns).
    Returns: f32 (N, O, (H-1)*stride + kh, (W-1)*stride + kw).
    Raises: ShapeError where channels differ or nothing would be left; AttributeValueError.
    """
    return _scattered(x, weight, stride=spread(stride, 2))
