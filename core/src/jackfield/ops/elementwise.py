"""Ops that work on each element by itself: one operand, or two that broadcast."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jackfield.draws import UnboundCase
from jackfield.dtypes import f16, f32, q8_0
from jackfield.errors import AttributeValueError, DTypeError, ShapeError
from jackfield.graph import Attr
from jackfield.op import Array, Call, Check, Op, Priority, Slack, Tolerance, case, op, rand, values
from jackfield.rules import F, Q, broadcast, like, per_element, same_as
from jackfield.spec import Shape

NAN, INF = math.nan, math.inf
NASTY = (-INF, -1e30, -100.0, -1.0, -1e-30, -0.0, 0.0, 1e-30, 1.0, 100.0, 1e30, INF, NAN)

CASES = (
    case(rand(3, 5, low=-4, high=4)),
    case(values(NASTY)),
    case(rand(2, 3, 1, 257, low=-30, high=30)),
    case(rand()),
    case(rand(0, 4)),
    case(rand(256), wrong=1, raises=AttributeValueError),
)


def unary(
    multiply_adds: int,
    tolerance: Tolerance,
    *,
    priority: Priority = "P0",
    check: Check | None = None,
    slack: Slack | None = None,
    infinite: Sequence[str] = (),
    cases: Sequence[UnboundCase] = CASES,
) -> Callable[[Callable[..., Any]], Op]:
    """An op of x alone: shape and dtype of x, and its memory where x dies."""
    return op(
        shape=same_as("x"),
        dtype=like("x"),
        work=per_element(multiply_adds),
        accepts={"x": F},
        inplace=("x",),
        tolerance=tolerance,
        priority=priority,
        check=check,
        slack=slack,
        infinite=infinite,
        cases=cases,
    )


@unary(1, "A")
def square(x: Array) -> Array:
    """x times itself.

    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x. Overflow gives inf.
    """
    return x * x


@unary(1, "E", priority="P1")
def abs(x: Array) -> Array:
    """The magnitude of each element.

    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x.
    """
    return np.abs(x)


@unary(1, "E", priority="P1")
def negative(x: Array) -> Array:
    """-x.

    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x.
    """
    return -x


@unary(1, "E", priority="P2")
def sign(x: Array) -> Array:
    """1 above zero, -1 below, 0 for a zero of either sign; NaN stays.

    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x.
    """
    return np.sign(x)


@unary(1, "E", priority="P2")
def step(x: Array) -> Array:
    """1 above zero, else 0; NaN stays.

    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x.
    """
    return np.where(np.isnan(x), x, x > 0)


@unary(2, "A", priority="P1")
def sqrt(x: Array) -> Array:
    """The square root; below zero it is NaN.

    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x.
    """
    return np.sqrt(x)


@unary(8, "T", priority="P1")
def log(x: Array) -> Array:
    """The natural logarithm; 0 gives -inf, below zero it is NaN.

    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x.
    """
    return np.log(x)


@unary(8, "T", priority="P1")
def exp(x: Array) -> Array:
    """e to the power x; overflow gives inf.

    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x.
    """
    return np.exp(x)


@unary(8, "T", priority="P1")
def expm1(x: Array) -> Array:
    """e to the power x, less 1; overflow gives inf.

    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x; near 0 right to 1e-6, not to the last digit.
    """
    return np.expm1(x)


FAR = 1e4  # beyond it an angle in f32 has lost the digits that tell where on the circle it is


def _far_angles(arrays: Mapping[str, Array | None], _: Mapping[str, Attr]) -> Array:
    """Of a far angle only the range of the result is asked."""
    return np.where(np.abs(np.asarray(arrays["x"])) > FAR, 2.0, 0.0)


_ANGLES = (*CASES, case(rand(4, 257, low=-FAR, high=FAR)))


@unary(10, "T", priority="P1", slack=_far_angles, cases=_ANGLES)
def sin(x: Array) -> Array:
    """The sine of an angle in radians; inf gives NaN.

    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x; beyond 1e4 any number from -1 to 1.
    """
    return np.sin(x)


@unary(10, "T", priority="P1", slack=_far_angles, cases=_ANGLES)
def cos(x: Array) -> Array:
    """The cosine of an angle in radians; inf gives NaN.

    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x; beyond 1e4 any number from -1 to 1.
    """
    return np.cos(x)


@unary(8, "T")
def tanh(x: Array) -> Array:
    """Hyperbolic tangent.

    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x; +-inf gives +-1.
    """
    return np.tanh(x)


def _bounds_in_order(call: Call) -> None:
    low, high = call.attr("min"), call.attr("max")
    if not low <= high:
        raise call.attr_error(f"min is {low} and max is {high}: min must not be above max, and neither NaN")


@unary(
    1,
    "E",
    check=_bounds_in_order,
    infinite=("min", "max"),
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


def _one_dtype_or_f32(call: Call) -> None:
    a, b = call["a"].dtype, call["b"].dtype
    if a.is_block and b is not f32:
        raise call.dtype_error(f"a is {a} and b is {b}: what is added to a block dtype must be f32")
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


def _sum(call: Call) -> Shape:
    a, b = call["a"], call["b"]
    if a.dtype.is_block and a.shape != b.shape:
        raise call.shape_error(f"a is {a} and b {b}: what is added to a block dtype must have its shape")
    return broadcast("a", "b")(call)


@op(
    shape=_sum,
    dtype=like("a"),
    work=per_element(1),
    accepts={"a": (*F, *Q), "b": F},
    inplace=("a", "b"),
    tolerance="A",
    check=_one_dtype_or_f32,
    cases=[
        *_PAIR,
        case(rand(3, 512), rand(3, 512)),
        case(rand(2, 64, dtype=q8_0), values([[INF] + [1.0] * 63, [0.5] * 63 + [NAN]])),
        case(rand(3, 64, dtype=q8_0), rand(64), raises=ShapeError),
        case(rand(3, 64, dtype=q8_0), rand(3, 64, dtype=f16), raises=DTypeError),
    ],
)
def add(a: Array, b: Array) -> Array:
    """a + b with numpy's broadcasting both ways.

    a, b: f32, f16 or bf16, of one dtype or one of them f32; or a of a block dtype and b f32 of the same shape.
    Returns: dtype of a. Blocks are decoded, added to in f32 and encoded again; a block of a sum with inf or NaN becomes
    0 and an error of the run. Raises: ShapeError, DTypeError.
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


@unary(
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
