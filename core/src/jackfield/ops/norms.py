"""Normalisation along the last axis, and softmax."""

from __future__ import annotations

import math

import numpy as np

from jackfield.dtypes import f16, f32
from jackfield.errors import AttributeValueError, DTypeError, ShapeError
from jackfield.op import Array, Call, WorkRule, case, ints, op, rand, values
from jackfield.ops.elementwise import INF, NAN
from jackfield.rules import (
    F,
    all_of,
    four,
    has_last_axis,
    like,
    multiple,
    not_negative,
    padded,
    per_element,
    rank_of,
    same_as,
    slopes,
)
from jackfield.spec import Shape

_NASTY = values([[0.0, 0.0, 0.0, 0.0], [1.0, INF, 2.0, 3.0], [NAN, 1.0, 2.0, 3.0], [1e18, -1e18, 1.0, 0.0]])
_CASES = (
    case(rand(3, 5)),
    case(rand(2, 3, 4, 257, low=-10, high=30)),
    case(rand(3, 256), eps=1e-2),
    case(_NASTY),
    case(rand(4, 1)),
    case(rand(0, 4)),
    case(rand(4, 0)),
    case(rand(5)),
    case(rand(3, 5), eps=-1e-6, raises=AttributeValueError),
    case(rand(3, 5), eps=NAN, raises=AttributeValueError),
    case(rand(), raises=ShapeError),
    case(ints(3, 5, high=9), raises=DTypeError),
)
_CHECK = all_of(has_last_axis("x"), not_negative("eps"))
_WORK: WorkRule = per_element(3)
_ACCEPTS = {"x": F}


@op(
    shape=same_as("x"),
    dtype=like("x"),
    work=per_element(4),
    accepts=_ACCEPTS,
    check=_CHECK,
    inplace=("x",),
    tolerance="R",
    cases=_CASES,
)
def norm(x: Array, *, eps: float = 1e-5) -> Array:
    """(x - mean) / sqrt(variance + eps) along the last axis, with the population variance of a second pass.

    x: f32, f16 or bf16 (..., n). eps: at least 0. Returns: shape and dtype of x; one column gives 0.
    Source: Ba et al. 2016, "Layer normalization".
    """
    n = max(1, x.shape[-1])
    centred = x - np.sum(x, -1, keepdims=True) / n
    return centred / np.sqrt(np.sum(centred * centred, -1, keepdims=True) / n + eps)


@op(
    shape=same_as("x"),
    dtype=like("x"),
    work=_WORK,
    accepts=_ACCEPTS,
    check=_CHECK,
    inplace=("x",),
    tolerance="R",
    cases=[*_CASES, case(values([[0.0, 0.0], [3.0, 4.0]]), eps=0.0)],
)
def rms_norm(x: Array, *, eps: float = 1e-6) -> Array:
    """x / sqrt(mean(x^2) + eps) along the last axis.

    x: f32, f16 or bf16 (..., n). eps: at least 0. Returns: shape and dtype of x; a zero row gives 0, with eps 0 NaN.
    Source: Zhang and Sennrich 2019, "Root mean square layer normalization".
    """
    return x / np.sqrt(np.sum(x * x, -1, keepdims=True) / max(1, x.shape[-1]) + eps)


@op(
    shape=same_as("x"),
    dtype=like("x"),
    work=_WORK,
    accepts=_ACCEPTS,
    check=_CHECK,
    inplace=("x",),
    tolerance="R",
    cases=[*_CASES, case(values([[0.0, 0.0], [3.0, 4.0]]), eps=0.0), case(values([[1e-9, 0.0]]), eps=1.0)],
)
def l2_norm(x: Array, *, eps: float = 1e-12) -> Array:
    """x / max(sqrt(sum(x^2)), eps) along the last axis.

    x: f32, f16 or bf16 (..., n). eps: at least 0. Returns: shape and dtype of x; a zero row gives 0, with eps 0 NaN.
    """
    return x / np.maximum(np.sqrt(np.sum(x * x, -1, keepdims=True)), eps)


def _has_channels(call: Call) -> None:
    rank_of(call, "x", 2)
    if call.attr("groups") < 1:
        raise call.attr_error(f"groups is {call.attr('groups')}, must be at least 1")


@op(
    shape=same_as("x"),
    dtype=like("x"),
    work=per_element(4),
    accepts=_ACCEPTS,
    check=all_of(_has_channels, not_negative("eps")),
    inplace=("x",),
    tolerance="R",
    priority="P1",
    cases=[
        case(rand(2, 6, 4, 5), groups=3),
        case(rand(1, 7, 3, 5, low=-10, high=30), groups=3),
        case(rand(2, 5, 3, 3), groups=4, eps=1e-2),
        case(rand(6, 3, 5), groups=2),
        case(rand(6, 257), groups=6),
        case(rand(4, 8), groups=1),
        case(rand(3, 4), groups=9),
        case(values([[[1.0, INF], [2.0, 3.0]], [[0.0, 0.0], [0.0, 0.0]], [[NAN, 1.0], [2.0, 3.0]]]), groups=3),
        case(values([[0.0, 0.0], [3.0, 4.0]]), groups=2, eps=0.0),
        case(rand(3, 1), groups=3),
        case(rand(0, 4, 3, 3), groups=2),
        case(rand(2, 0, 3, 3), groups=2),
        case(rand(2, 4, 0, 3), groups=2),
        case(rand(3, 5), groups=0, raises=AttributeValueError),
        case(rand(3, 5), groups=2, eps=-1e-6, raises=AttributeValueError),
        case(rand(3, 5), raises=AttributeValueError),
        case(rand(5), groups=1, raises=ShapeError),
        case(rand(1, 1, 1, 1, 5), groups=1, raises=ShapeError),
        case(ints(3, 5, high=9), groups=1, raises=DTypeError),
    ],
)
def group_norm(x: Array, *, groups: int, eps: float = 1e-6) -> Array:
    """(x - mean) / sqrt(variance + eps) over groups of neighbouring channels and all places of an image.

    x: f32, f16 or bf16 (N, C, H, W), (C, H, W) or (C, L). eps: at least 0.
    groups: at least 1; each has C / groups channels, rounded up, the last ones fewer or none.
    Returns: shape and dtype of x. Raises: ShapeError, DTypeError, AttributeValueError.
    Source: Wu and He 2018, "Group normalization".
    """
    images = x if x.ndim == 4 else x[None]
    each = max(1, -(-images.shape[1] // groups))
    y = np.empty(images.shape)
    for first in range(0, images.shape[1], each):
        group = images[:, first : first + each]
        flat = group.reshape(len(group), math.prod(group.shape[1:]))
        y[:, first : first + each] = norm.body(flat, eps=eps).reshape(group.shape)
    return y.reshape(x.shape)


def _fits(call: Call) -> None:
    rank_of(call, "x", 1)
    x, mask, sinks = call["x"], call.get("mask"), call.get("sinks")
    _, H, M, N = padded(x.shape)
    if mask is not None:
        m, n = padded(mask.shape)[2:]
        if m < M or n != N:
            raise call.shape_error(f"mask is {list(mask.shape)}, its last axes must be at least {M} and exactly {N}")
        multiple(call, "x", -4, "mask", -4)
        multiple(call, "x", -3, "mask", -3)
    if sinks is not None and sinks.shape != (H,):
        raise call.shape_error(f"sinks is {list(sinks.shape)}, must be [{H}], one a head")
    if call.attr("max_bias") > 0 and mask is None:
        raise call.attr_error(f"max_bias is {call.attr('max_bias')} and mask is absent: the slope needs a mask")


def _shape(call: Call) -> Shape:
    return call["x"].shape


@op(
    shape=_shape,
    dtype=like("x"),
    work=per_element(10),
    inplace=("x",),
    tolerance="R",
    check=_fits,
    accepts={"x": (f32,), "mask": (f32, f16), "sinks": (f32,)},
    cases=[
        case(rand(1, 2, 3, 5, low=-4, high=4)),
        case(rand(2, 4, 3, 5, low=-4, high=4), mask=rand(1, 2, 4, 5, shut=0.3), scale=0.5),
        case(rand(2, 12, 3, 33), mask=rand(2, 1, 3, 33, shut=0.3), sinks=rand(12), max_bias=8.0, scale=0.125),
        case(rand(1, 2, 3, 257, low=-1e4, high=1e4), sinks=rand(2)),
        case(values([[[INF, 1.0], [NAN, 1.0], [-INF, -INF], [-INF, 0.0]]])),
        case(values([[-INF, -INF, -INF]]), sinks=values([0.5])),
        case(rand(3, 1)),
        case(rand(5, low=-100, high=100), scale=0.0),
        case(rand(0, 4)),
        case(rand(4, 0)),
        case(rand(2, 3, 1, 256)),
        case(rand(1, 2, 3, 5), max_bias=8.0, raises=AttributeValueError),
        case(rand(1, 2, 3, 5), mask=rand(2, 5), raises=ShapeError),
        case(rand(1, 2, 3, 5), mask=rand(3, 6), raises=ShapeError),
        case(rand(1, 4, 3, 5), mask=rand(1, 3, 3, 5), raises=ShapeError),
        case(rand(1, 2, 3, 5), sinks=rand(3), raises=ShapeError),
        case(rand(3, 5, dtype=f16), raises=DTypeError),
        case(rand(), raises=ShapeError),
    ],
)
def softmax(
    x: Array, mask: Array | None = None, sinks: Array | None = None, *, scale: float = 1.0, max_bias: float = 0.0
) -> Array:
    """Exponentials along the last axis, scaled so that they sum to one.

    x: f32 (sequences, heads, rows, columns); leading axes may be missing.
    mask: f32 or f16 (s, h, r, columns), r >= rows, added after `scale`; s and h repeat cyclically. Absent means 0.
    sinks: f32 (heads,), one more logit a head that takes weight and yields none.
    max_bias: above 0, slopes the mask by head; needs a mask.
    Returns: f32, shape of x; a row that is -inf throughout gives zeros, one with NaN or +inf is NaN.
    Raises: ShapeError, DTypeError; AttributeValueError for max_bias without mask.
    Source: slopes as in Press et al. 2021, "Train short, test long", section 3.
    """
    z = scale * four(x)
    S, H, M, _ = z.shape
    if mask is not None:
        mask = four(mask)
        rows = mask[np.ix_(np.arange(S) % mask.shape[0], np.arange(H) % mask.shape[1])][:, :, :M]
        z = z + slopes(H, max_bias)[:, None, None] * rows
    sink = np.full((H, 1, 1), -np.inf) if sinks is None else sinks[:, None, None]
    top = np.maximum(z.max(-1, keepdims=True, initial=-np.inf), sink)
    e = np.where(z == -np.inf, 0, np.exp(z - top))
    total = e.sum(-1, keepdims=True) + np.where(sink == -np.inf, 0, np.exp(sink - top))
    return np.where((top == -np.inf) & ~np.isnan(total), 0, e / total).reshape(x.shape)
