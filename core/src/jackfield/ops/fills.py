"""Tensors from attributes alone: one value throughout, or numbers at equal steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from jackfield.dtypes import DType, by_name, f32
from jackfield.dtypes.arrays import element
from jackfield.errors import AttributeValueError, DTypeError, ShapeError
from jackfield.op import Array, Call, case, dtype_attr, op
from jackfield.ops.elementwise import INF, NAN
from jackfield.rules import F, I, always, per_element
from jackfield.spec import MAX_NBYTES, Shape


def _fillable(call: Call) -> DType:
    dtype = dtype_attr(call)
    if dtype not in (*F, *I):
        raise call.dtype_error(f"dtype is {dtype}, must be one of {', '.join(d.name for d in (*F, *I))}")
    return dtype


def _value_fits(call: Call) -> None:
    dtype, value = _fillable(call), call.attr("value")
    if dtype.is_integer:
        info = np.iinfo(element(dtype))
        if not float(value).is_integer() or not info.min <= int(value) <= info.max:
            raise call.attr_error(f"value is {value}, must be a whole number from {info.min} to {info.max} for {dtype}")


@op(
    shape=lambda call: call.attr("shape"),
    dtype=_fillable,
    work=per_element(0),
    accepts={},
    tolerance="E",
    priority="P1",
    check=_value_fits,
    infinite=("value",),
    cases=[
        *(case(shape=(3, 5), value=-7, dtype=d.name) for d in (*F, *I)),
        case(shape=(2, 3, 1, 257), value=0.1),
        case(shape=(255,), value=0.1, dtype="bf16"),
        case(shape=(4, 256), value=1e30, dtype="f16"),
        *(case(shape=(3,), value=value) for value in (INF, -INF, NAN, 1e300)),
        case(shape=(2, 2), value=2**53 + 1, dtype="i64"),
        case(shape=(), value=1.5),
        case(shape=(0, 4), value=1.0),
        case(shape=(2, -1), value=1.0, raises=ShapeError),
        case(shape=2, value=1.0, raises=AttributeValueError),
        case(shape=(2,), value=1.5, dtype="i32", raises=AttributeValueError),
        case(shape=(2,), value=NAN, dtype="i32", raises=AttributeValueError),
        case(shape=(2,), value=128, dtype="i8", raises=AttributeValueError),
        case(shape=(2,), value=2.0**63, dtype="i64", raises=AttributeValueError),
        case(shape=(2,), raises=AttributeValueError),
        case(shape=(32,), value=1.0, dtype="q8_0", raises=DTypeError),
        case(shape=(2,), value=1.0, dtype="f33", raises=DTypeError),
    ],
)
def full(*, shape: Shape, value: float | int, dtype: str = "f32") -> Array:  # noqa: PYI041 - no float has all of i64
    """One value in every place.

    shape: extents, at least 0. value: rounded to the nearest of a float dtype; a whole number inside the range of an
    integer one. dtype: the name of a float or integer dtype.
    Returns: that shape and dtype. Raises: ShapeError, DTypeError, AttributeValueError.
    """
    return np.full(shape, value, np.int64 if by_name(dtype).is_integer else np.float64)


def _count(call: Call) -> int:
    start, stop, step = (float(call.attr(name)) for name in ("start", "stop", "step"))
    if step == 0:
        raise call.attr_error("step is 0, must be another number")
    exact = (stop - start) / step
    if not 0 < exact <= MAX_NBYTES / f32.block_nbytes:
        raise call.attr_error(f"from {start} to {stop} by steps of {step} there is no number, or too many")
    return math.ceil(exact)


def _steps_rounded(_: Mapping[str, Array | None], attrs: Mapping[str, Any]) -> Array:
    """Start, step and index, and the product of the last two, may each be rounded to f32."""
    start = attrs["start"]
    return (abs(start) + 3 * np.abs(arange.body(**attrs) - start)) * 2.0**-24


@op(
    shape=lambda call: (_count(call),),
    dtype=always(f32),
    work=per_element(1),
    accepts={},
    tolerance="A",
    slack=_steps_rounded,
    priority="P1",
    cases=[
        case(start=0.0, stop=5.0),
        *(case(start=0, stop=n) for n in (1, 255, 256, 257, 1023, 1024, 1025)),
        case(start=-100.0, stop=100.0, step=0.3),
        case(start=5.0, stop=-3.0, step=-0.7),
        case(start=1.0, stop=1.1, step=7.0),
        case(start=1e8, stop=2e8, step=1e7),
        case(start=0.0, stop=1.0, step=0.0, raises=AttributeValueError),
        case(start=0.0, stop=NAN, raises=AttributeValueError),
        case(start=0.0, stop=INF, raises=AttributeValueError),
        case(start=1.0, stop=1.0, raises=AttributeValueError),
        case(start=1.0, stop=0.0, raises=AttributeValueError),
        case(start=0.0, stop=1.0, step=-1.0, raises=AttributeValueError),
        case(start=0.0, stop=1e300, step=1e-300, raises=AttributeValueError),
        case(start=0.0, stop=1e300, raises=AttributeValueError),
        case(start=0.0, raises=AttributeValueError),
    ],
)
def arange(*, start: float, stop: float, step: float = 1.0) -> Array:
    """start, start + step, start + 2 step, and so on before stop: each by one product, not by a running sum.

    start, stop, step: finite; step may be negative, not 0.
    Returns: f32 (n,), n = (stop - start) / step rounded up. Raises: AttributeValueError where that is no number from 1.
    """
    return start + np.arange(math.ceil((stop - start) / step)) * step
