"""Ops that work on each element by itself: one operand, or two that broadcast."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jackfield.draws import UnboundCase
from jackfield.dtypes import f16, f32
from jackfield.errors import AttributeValueError, DTypeError, ShapeError
from jackfield.graph import Attr
from jackfield.op import Array, Call, Check, Op, Slack, Tolerance, case, op, rand, values
from jackfield.rules import F, broadcast, like, per_element, same_as

NAN, INF = math.nan, math.inf
NASTY = (-INF, -1e30, -100.0, -1.0, -1e-30, -0.0, 0.0, 1e-30, 1.0, 100.0, 1e30, INF, NAN)

_CASES = (
    case(rand(3, 5, low=-4, high=4)),
    case(values(NASTY)),
    case(rand(2, 3, 1, 257, low=-30, high=30)),
    case(rand()),
    case(rand(0, 4)),
    case(rand(256), wrong=1, raises=AttributeValueError),
)


def _unary(
    multiply_adds: int,
    tolerance: Tolerance,
    *,
    check: Check | None = None,
    slack: Slack | None = None,
    cases: Sequence[UnboundCase] = _CASES,
) -> Callable[[Callable[..., Any]], Op]:
    """An op of x alone: shape and dtype of x, and its memory where x dies."""
    return op(
        shape=same_as("x"),
        dtype=like("x"),
        work=per_element(multiply_adds),
        accepts={"x": F},
        inplace=("x",),
        tolerance=tolerance,
        check=check,
        slack=slack,
        cases=cases,
    )


@_unary(1, "A")
def square(x: Array) -> Array:
    """x times itself.

    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x. Overflow gives inf.
    """
    return x * x


@_unary(8, "T")
def tanh(x: Array) -> Array:
    """Hyperbolic tangent.

    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x; +-inf gives +-1.
    """
    return np.tanh(x)


def _bounds_in_order(call: Call) -> None:
    low, high = call.attr("min"), call.attr("max")
    if not low <= high:
        raise call.attr_error(f"min is {low} and max is {high}: min must not be above max, and neither NaN")


@_unary(
    1,
    "E",
    check=_bounds_in_order,
    cases=[
        case(rand(3, 5), min=-0.5, max=0.25),
        case(values(NASTY), min=-INF, max=INF),
        case(values(NASTY), min=-2.0, max=3.0),
        case(rand(2, 3, 1, 257), min=0.0, max=0.0),
        case(rand(0, 4), min=0.0, max=1.0),
        case(rand(3), min=1.0, max=0.0, raises=AttributeValueError),
        case(rand(3), min=NAN, max=0.0, raises=AttributeValueError),
        case(rand(3), min=0.0, raises=AttributeValueError),
    ],
)
def clip(x: Array, *, min: float, max: float) -> Array:
    """Elements below `min` become `min`, above `max` become `max`; NaN stays.

    x: f32, f16 or bf16, any shape. min, max: may be infinite.
    Returns: shape and dtype of x. Raises: AttributeValueError for min > max or NaN.
    """
    return np.where(np.isnan(x), x, np.minimum(np.maximum(x, min), max))


@_unary(1, "E")
def relu(x: Array) -> Array:
    """max(x, 0); NaN stays.

    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x; a zero may have either sign.
    """
    return np.where(np.isnan(x) | (x > 0), x, 0)


@_unary(8, "T")
def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)).

    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x; -inf gives 0, also where exp(-x) overflows.
    """
    return 1 / (1 + np.exp(-x))


@_unary(8, "T")
def silu(x: Array) -> Array:
    """x / (1 + exp(-x)), also called swish.

    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x; -inf gives NaN by this formula.
    Source: Elfwing et al. 2017, "Sigmoid-weighted linear units".
    """
    return x / (1 + np.exp(-x))


@_unary(12, "T")
def gelu(x: Array) -> Array:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): the tanh form.

    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x; -inf gives NaN, +inf gives inf.
    Source: Hendrycks and Gimpel 2016, "Gaussian error linear units", section 2.
    """
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def erf(x: Array) -> Array:
    """The error function of each element of x, in f64."""
    return np.fromiter(map(math.erf, x.reshape(-1).tolist()), np.float64, x.size).reshape(x.shape)


@_unary(12, "T")
def gelu_erf(x: Array) -> Array:
    """0.5 x (1 + erf(x / sqrt 2)): the exact form.

    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x; -inf gives NaN, +inf gives inf.
    Source: Hendrycks and Gimpel 2016, "Gaussian error linear units", section 2.
    """
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def _one_dtype_or_f32(call: Call) -> None:
    a, b = call["a"].dtype, call["b"].dtype
    if a is not b and f32 not in (a, b):
        raise call.dtype_error(f"a is {a} and b is {b}: they must have one dtype, or one must be f32")


_PAIR = (
    case(rand(3, 5), rand(3, 5, low=0.5, high=2)),
    case(rand(2, 3, 5), rand(5, low=0.5, high=2)),
    case(rand(2, 1, 5), rand(3, 1, low=-2, high=-0.5)),
    case(rand(2, 3, 4, 257), rand(low=1.0, high=3.0)),
    case(values([[INF], [-INF], [NAN], [0.0], [1.0], [1e30]]), values([0.0, INF, NAN, 2.0, -1e30])),
    case(rand(0, 4), rand(4, low=1.0, high=2.0)),
    case(rand(1), rand(2, 1, 256, low=1.0, high=2.0)),
    case(rand(3, 5), rand(4), raises=ShapeError),
    case(rand(3, dtype=f16), rand(3, dtype=F[2]), raises=DTypeError),
)

_binary = op(
    shape=broadcast("a", "b"),
    dtype=like("a"),
    work=per_element(1),
    accepts={"a": F, "b": F},
    inplace=("a", "b"),
    tolerance="A",
    check=_one_dtype_or_f32,
    cases=_PAIR,
)


@_binary
def add(a: Array, b: Array) -> Array:
    """a + b with numpy's broadcasting both ways.

    a, b: f32, f16 or bf16, of one dtype or one of them f32. Returns: dtype of a.
    Raises: ShapeError, DTypeError.
    """
    return a + b


@_binary
def subtract(a: Array, b: Array) -> Array:
    """a - b with numpy's broadcasting both ways.

    a, b: f32, f16 or bf16, of one dtype or one of them f32. Returns: dtype of a.
    Raises: ShapeError, DTypeError.
    """
    return a - b


@_binary
def multiply(a: Array, b: Array) -> Array:
    """a * b with numpy's broadcasting both ways.

    a, b: f32, f16 or bf16, of one dtype or one of them f32. Returns: dtype of a.
    Raises: ShapeError, DTypeError.
    """
    return a * b


@_binary
def divide(a: Array, b: Array) -> Array:
    """a / b with numpy's broadcasting both ways; 0/0 gives NaN, x/0 inf.

    a, b: f32, f16 or bf16, of one dtype or one of them f32. Returns: dtype of a.
    Raises: ShapeError, DTypeError.
    """
    return a / b


def _product_rounded(arrays: Mapping[str, Array | None], attrs: Mapping[str, Attr]) -> Array:
    """The product may be rounded before the bias is added: an ulp of the product, which matters when they cancel."""
    factor: Any = attrs["scale"]
    return np.abs(np.asarray(arrays["x"]) * factor) * 2.0**-23


@_unary(
    1,
    "A",
    slack=_product_rounded,
    cases=[
        case(rand(3, 5), scale=0.125),
        case(rand(3, 257), scale=-3.0, bias=0.3),
        case(values(NASTY), scale=2.0, bias=-1.0),
        case(rand(2, 3), scale=0.0, bias=7.0),
        case(rand(2, 3)),
        case(rand(0, 4), scale=2.0),
        case(rand(3), scale="big", raises=AttributeValueError),
    ],
)
def scale(x: Array, *, scale: float = 1.0, bias: float = 0.0) -> Array:
    """scale * x + bias, with one rounding or two.

    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x.
    """
    return scale * x + bias
