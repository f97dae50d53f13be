"""Hyper-connections: several residual streams beside each other, mixed by weights that depend on the token."""

from __future__ import annotations

import math

import numpy as np

from jackfield.dtypes import f16, f32
from jackfield.errors import AttributeValueError, DTypeError, ShapeError
from jackfield.op import Array, Call, Work, case, op, rand, values
from jackfield.ops.elementwise import INF, NAN
from jackfield.rules import all_of, always, extents, not_negative, touched
from jackfield.spec import Shape, Spec


def _streams(length: int) -> int:
    """c of (2 + c) * c numbers, or of the nearest number below that has one."""
    return math.isqrt(length + 1) - 1


def _square(call: Call) -> Shape:
    e = extents(call, mixes="T L", base="L")
    length, c = e["L"], _streams(e["L"])
    if (2 + c) * c != length:
        raise call.shape_error(f"mixes has {length} numbers a token, must be (2 + c) * c of them for c streams")
    scale = call["scale"]
    if scale.rank != 1 or scale.shape[0] < 3:
        raise call.shape_error(f"scale is {list(scale.shape)}, must be at least [3]")
    return (e["T"], c, c)


def _iterates(call: Call) -> None:
    if call.attr("iterations") < 1:
        raise call.attr_error(f"iterations is {call.attr('iterations')}, must be at least 1")


def _balanced_work(call: Call, result: Spec) -> Work:
    return Work(result.size * (10 + 4 * call.attr("iterations")), touched(call, result))


@op(
    shape=_square,
    dtype=always(f32),
    work=_balanced_work,
    accepts={"mixes": (f32,), "scale": (f32,), "base": (f32,)},
    check=all_of(not_negative("eps"), _iterates),
    tolerance="R",
    priority="P1",
    cases=[
        case(rand(3, 24, low=-4, high=4), rand(3), rand(24), eps=1e-6, iterations=20),
        case(rand(5, 24, low=-4, high=4), rand(3), rand(24), eps=1e-6, iterations=1),
        case(rand(1, 24, low=-4, high=4), rand(3), rand(24), eps=1e-6, iterations=3),
        case(rand(2, 8), rand(4, low=0.5, high=2), rand(8), eps=0.0, iterations=2),
        case(rand(257, 24, low=-50, high=50), rand(3), rand(24), eps=1e-3, iterations=3),
        case(rand(3, 3), rand(3), rand(3), eps=1e-6, iterations=4),
        case(
            values([[1.0] * 4 + [NAN, 0.0, 1.0, 2.0], [NAN] * 4 + [1.0] * 4]), rand(3), rand(8), eps=0.1, iterations=2
        ),
        case(rand(0, 24), rand(3), rand(24), eps=1e-6, iterations=2),
        case(rand(3, 0), rand(3), rand(0), eps=1e-6, iterations=2),
        case(rand(3, 25), rand(3), rand(25), eps=1e-6, iterations=2, raises=ShapeError),
        case(rand(3, 24), rand(2), rand(24), eps=1e-6, iterations=2, raises=ShapeError),
        case(rand(3, 24), rand(3), rand(8), eps=1e-6, iterations=2, raises=ShapeError),
        case(rand(24), rand(3), rand(24), eps=1e-6, iterations=2, raises=ShapeError),
        case(rand(3, 24), rand(3), rand(24), eps=-1.0, iterations=2, raises=AttributeValueError),
        case(rand(3, 24), rand(3), rand(24), eps=1e-6, iterations=0, raises=AttributeValueError),
        case(rand(3, 24), rand(3), rand(24), iterations=2, raises=AttributeValueError),
        case(rand(3, 24, dtype=f16), rand(3), rand(24), eps=1e-6, iterations=2, raises=DTypeError),
    ],
)
def hyper_connection_weights(mixes: Array, scale: Array, base: Array, *, eps: float, iterations: int) -> Array:
    """How much of each residual stream goes into each: a matrix a token whose rows and columns sum to about one.

    mixes: f32 (T, (2 + c) * c): of each token c numbers for going in, c for coming out, then a square [source, target]
        for c streams, which alone is read here. scale: f32 (3 or more,), of which the third is the square's.
    base: f32 ((2 + c) * c,), added to mixes * scale. eps: at least 0, added to the softmax and to every sum.
    iterations: at least 1; each divides by the sums over targets (the first by softmax), then over sources.
    Returns: f32 (T, c, c) as [token, source, target]. Raises: ShapeError, DTypeError, AttributeValueError.
    Source: Sinkhorn and Knopp 1967; Xie et al. 2025, "mHC: Manifold-constrained hyper-connections".
    """
    c = _streams(len(base))
    logits = (mixes * scale[2] + base)[:, 2 * c :].reshape(len(mixes), c, c)
    w = np.exp(logits - logits.max(-1, keepdims=True, initial=-np.inf))
    w = w / w.sum(-1, keepdims=True) + eps
    w = w / (w.sum(-2, keepdims=True) + eps)
    for _ in range(iterations - 1):
        w = w / (w.sum(-1, keepdims=True) + eps)
        w = w / (w.sum(-2, keepdims=True) + eps)
    return w


def _gathered(call: Call) -> Shape:
    e = extents(call, x="T c E", weights="T c")
    return (e["T"], e["E"])


@op(
    shape=_gathered,
    dtype=always(f32),
    work=lambda call, result: Work(call["x"].size, touched(call, result)),
    accepts={"x": (f32,), "weights": (f32,)},
    tolerance="R",
    priority="P1",
    cases=[
        case(rand(3, 4, 33), rand(3, 4)),
        case(rand(2, 4, 256), rand(2, 4, low=-100, high=100)),
        case(rand(5, 1, 257), rand(5, 1)),
        case(values([[[NAN, 1.0], [1.0, INF]], [[1.0, 2.0], [3.0, 4.0]]]), rand(2, 2, low=0.5)),
        case(rand(0, 4, 8), rand(0, 4)),
        case(rand(3, 0, 8), rand(3, 0)),
        case(rand(3, 4, 0), rand(3, 4)),
        case(rand(3, 4, 8), rand(3, 5), raises=ShapeError),
        case(rand(4, 8), rand(4), raises=ShapeError),
        case(rand(3, 4, 8, dtype=f16), rand(3, 4), raises=DTypeError),
    ],
)
def hyper_connection_in(x: Array, weights: Array) -> Array:
    """The one stream that a layer reads: the sum over streams of x * weights.

    x: f32 (T, c, E): tokens, streams, width. weights: f32 (T, c).
    Returns: f32 (T, E). Raises: ShapeError, DTypeError. Source: Zhu et al. 2024, "Hyper-connections".
    """
    return np.sum(x * weights[:, :, None], 1)


def _spread(call: Call) -> Shape:
    e = extents(call, x="T E", residual="T c E", post="T c", mix="T c c")
    return (e["T"], e["c"], e["E"])


@op(
    shape=_spread,
    dtype=always(f32),
    work=lambda call, result: Work(result.size * (call["post"].shape[1] + 1), touched(call, result)),
    accepts={"x": (f32,), "residual": (f32,), "post": (f32,), "mix": (f32,)},
    tolerance="R",
    priority="P1",
    cases=[
        case(rand(3, 33), rand(3, 4, 33), rand(3, 4), rand(3, 4, 4)),
        case(rand(2, 256), rand(2, 4, 256), rand(2, 4, low=-100, high=100), rand(2, 4, 4)),
        case(rand(5, 257), rand(5, 2, 257), rand(5, 2), rand(5, 2, 2)),
        case(values([[NAN, 1.0], [1.0, INF]]), rand(2, 2, 2), rand(2, 2, low=0.5), rand(2, 2, 2)),
        case(rand(1, 1), rand(1, 1, 1), rand(1, 1), rand(1, 1, 1)),
        case(rand(0, 8), rand(0, 4, 8), rand(0, 4), rand(0, 4, 4)),
        case(rand(3, 0), rand(3, 4, 0), rand(3, 4), rand(3, 4, 4)),
        case(rand(3, 8), rand(3, 0, 8), rand(3, 0), rand(3, 0, 0)),
        case(rand(3, 8), rand(3, 4, 9), rand(3, 4), rand(3, 4, 4), raises=ShapeError),
        case(rand(3, 8), rand(3, 4, 8), rand(3, 4), rand(3, 4, 5), raises=ShapeError),
        case(rand(3, 8), rand(3, 4, 8), rand(3, 5), rand(3, 4, 4), raises=ShapeError),
        case(rand(3, 8, dtype=f16), rand(3, 4, 8), rand(3, 4), rand(3, 4, 4), raises=DTypeError),
    ],
)
def hyper_connection_out(x: Array, residual: Array, post: Array, mix: Array) -> Array:
    """The residual streams after a layer: y[t, d] = x[t] * post[t, d] + sum over s of residual[t, s] * mix[t, s, d].

    x: f32 (T, E), what the layer made. residual: f32 (T, c, E), the streams before it. post: f32 (T, c).
    mix: f32 (T, c, c) as [token, source, target], of `hyper_connection_weights`.
    Returns: f32 (T, c, E). Raises: ShapeError, DTypeError. Source: Zhu et al. 2024, "Hyper-connections".
    """
    return x[:, None, :] * post[:, :, None] + np.swapaxes(mix, 1, 2) @ residual
