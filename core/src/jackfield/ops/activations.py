"""Activations: functions of each element that give a network its bends."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from jackfield.errors import AttributeValueError
from jackfield.graph import Attr
from jackfield.op import Array, case, rand, values
from jackfield.ops.elementwise import CASES, INF, NAN, NASTY, unary

_ROUNDED = 2.0**-24  # what one rounding to f32 costs, as a share of the number


@unary(1, "E")
def relu(x: Array) -> Array:
    """max(x, 0); NaN stays.

    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x; a zero may have either sign.
    """
    return np.where(np.isnan(x) | (x > 0), x, 0)


def _slope_rounded(arrays: Mapping[str, Array | None], attrs: Mapping[str, Attr]) -> Array:
    """The slope may be rounded to f32 before the product is."""
    return np.abs(leaky_relu.body(np.asarray(arrays["x"]), **attrs)) * _ROUNDED


@unary(
    1,
    "A",
    priority="P1",
    slack=_slope_rounded,
    cases=[
        *CASES,
        case(values(NASTY), slope=-2.0),
        case(rand(2, 257), slope=0.0),
        case(rand(3), slope=INF, raises=AttributeValueError),
        case(rand(3), slope=NAN, raises=AttributeValueError),
    ],
)
def leaky_relu(x: Array, *, slope: float = 0.01) -> Array:
    """x where x is above 0, else slope * x; NaN stays.

    x: f32, f16 or bf16, any shape. slope: finite. Returns: shape and dtype of x. Raises: AttributeValueError.
    Source: Maas et al. 2013, "Rectifier nonlinearities improve neural network acoustic models".
    """
    return np.where(x > 0, x, slope * x)


@unary(8, "T", priority="P1")
def elu(x: Array) -> Array:
    """x where x is above 0, else exp(x) - 1; -inf gives -1.

    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x.
    Source: Clevert et al. 2015, "Fast and accurate deep network learning by exponential linear units", with alpha 1.
    """
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


@unary(8, "T")
def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)).

    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x; -inf gives 0, also where exp(-x) overflows.
    """
    return 1 / (1 + np.exp(-x))


def _ramp_rounded(arrays: Mapping[str, Array | None], _: Mapping[str, Attr]) -> Array:
    """x + 3 is rounded before it is divided."""
    return np.abs(hardsigmoid.body(np.asarray(arrays["x"]))) * _ROUNDED


@unary(2, "A", priority="P1", slack=_ramp_rounded)
def hardsigmoid(x: Array) -> Array:
    """(x + 3) / 6, kept between 0 and 1; NaN stays.

    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x.
    Source: Howard et al. 2019, "Searching for MobileNetV3", section 5.2.
    """
    return np.clip((x + 3) / 6, 0, 1)


def _product_of_ramp_rounded(arrays: Mapping[str, Array | None], _: Mapping[str, Attr]) -> Array:
    """x + 3 is rounded, then the sixth of it, before the product is."""
    return np.abs(hardswish.body(np.asarray(arrays["x"]))) * 2 * _ROUNDED


@unary(3, "A", priority="P1", slack=_product_of_ramp_rounded)
def hardswish(x: Array) -> Array:
    """x times (x + 3) / 6 kept between 0 and 1.

    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x; -inf gives NaN by this formula.
    Source: Howard et al. 2019, "Searching for MobileNetV3", section 5.2.
    """
    return x * np.clip((x + 3) / 6, 0, 1)


@unary(8, "T")
def silu(x: Array) -> Array:
    """x / (1 + exp(-x)), also called swish.

    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x; -inf gives NaN by this formula.
    Source: Elfwing et al. 2017, "Sigmoid-weighted linear units".
    """
    return x / (1 + np.exp(-x))


@unary(12, "T")
def gelu(x: Array) -> Array:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): the tanh form.

    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x; -inf gives NaN, +inf gives inf.
    Source: Hendrycks and Gimpel 2016, "Gaussian error linear units", section 2.
    """
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def erf(x: Array) -> Array:
    """The error function of each element of x, in f64."""
    return np.fromiter(map(math.erf, x.reshape(-1).tolist()), np.float64, x.size).reshape(x.shape)


@unary(12, "T")
def gelu_erf(x: Array) -> Array:
    """0.5 x (1 + erf(x / sqrt 2)): the exact form.

    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x; -inf gives NaN, +inf gives inf.
    Source: Hendrycks and Gimpel 2016, "Gaussian error linear units", section 2.
    """
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


@unary(9, "T", priority="P1")
def gelu_quick(x: Array) -> Array:
    """x * sigmoid(1.702 x): the sigmoid form of gelu.

    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x; -inf gives NaN, +inf gives inf.
    Source: Hendrycks and Gimpel 2016, "Gaussian error linear units", section 2.
    """
    return x / (1 + np.exp(-1.702 * x))


@unary(10, "T", priority="P1")
def softplus(x: Array) -> Array:
    """ln(1 + exp(x)); for large x it is x.

    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x; -inf gives 0.
    Source: Dugas et al. 2000, "Incorporating second-order functional knowledge for better option pricing".
    """
    return np.logaddexp(0, x)


@unary(
    12,
    "T",
    priority="P1",
    cases=[
        case(rand(3, 5, low=-4, high=4), alpha_n=0.8, alpha_p=0.8),
        case(rand(2, 3, 1, 257, low=-30, high=30), alpha_n=0.3, alpha_p=1.1, beta=0.25, eps=-1e-3),
        case(values(NASTY), alpha_n=0.8, alpha_p=-0.8),
        case(rand(2, 256, low=-4, high=4), alpha_n=-40.0, alpha_p=40.0, beta=1.0, eps=0.0),
        case(rand(), alpha_n=0.8, alpha_p=0.8),
        case(rand(0, 4), alpha_n=0.8, alpha_p=0.8),
        case(rand(3), alpha_n=0.8, raises=AttributeValueError),
        case(rand(3), alpha_p=0.8, alpha_n="big", raises=AttributeValueError),
    ],
)
def xielu(x: Array, *, alpha_n: float, alpha_p: float, beta: float = 0.5, eps: float = -1e-6) -> Array:
    """p x^2 + beta x where x is above 0, else n (exp(min(x, eps)) - 1 - x) + beta x.

    p = softplus(alpha_p), n = beta + softplus(alpha_n).
    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x.
    Source: Huang and Schlag 2024, "Deriving activation functions using integration".
    """
    p, n = np.logaddexp(0, alpha_p), beta + np.logaddexp(0, alpha_n)
    return np.where(x > 0, p * x * x, (np.expm1(np.minimum(x, eps)) - x) * n) + beta * x
