"""Rounding to whole numbers, exact at any size."""

from __future__ import annotations

import numpy as np

from jackfield.op import Array, case, rand, values
from jackfield.ops.elementwise import CASES, unary

_HALVES = [-3.5, -2.5, -1.5, -0.5, -0.49999997, 0.49999997, 0.5, 1.5, 2.5, 3.5, 0.9999999, -0.9999999]
_LARGE = [8388607.5, -8388607.5, 8388608.0, 8388609.0, 16777217.0, -2147483648.0, 4294967296.0, 1e20]
_CASES = (*CASES, case(values(_HALVES)), case(values(_LARGE)), case(rand(4, 255, low=-300, high=300)))


@unary(1, "E", priority="P1", cases=_CASES)
def floor(x: Array) -> Array:
    """The largest whole number that is not above x.

    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x; inf and NaN stay.
    """
    return np.floor(x)


@unary(1, "E", priority="P1", cases=_CASES)
def ceil(x: Array) -> Array:
    """The smallest whole number that is not below x.

    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x; inf and NaN stay.
    """
    return np.ceil(x)


@unary(1, "E", priority="P1", cases=_CASES)
def trunc(x: Array) -> Array:
    """x without its fraction: the next whole number towards zero.

    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x; inf and NaN stay.
    """
    return np.trunc(x)


@unary(2, "E", priority="P1", cases=_CASES)
def round_away(x: Array) -> Array:
    """The nearest whole number; halves go away from zero, not to the even one as in numpy.

    x: f32, f16 or bf16, any shape. Returns: shape and dtype of x; inf and NaN stay.
    """
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.copysign(1, x), whole)
