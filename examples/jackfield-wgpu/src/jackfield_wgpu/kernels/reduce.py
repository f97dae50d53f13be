"""Sums, averages and searches along an axis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jackfield.backend as jb

from ..dispatch import Dispatch, Extents, each, four, rows_of, strides
from ..shading import Number, Shader
from .entry import F32, FLOATS, I32, Entry, attrs_of, place_of

MOST_SORTED = 1 << 16  # columns: every element looks at every other one of its row


def _axes(spec: jb.Spec, axis: Any) -> tuple[Extents, Extents]:
    """Which of four axes are kept and which are gone through, as extents; the others are 1."""
    shape = four(spec.shape)
    if axis is None:
        return (1, 1, 1, 1), shape
    along = 4 - spec.rank + axis % spec.rank
    outer = tuple(1 if i == along else n for i, n in enumerate(shape))
    return outer, (1, 1, 1, shape[along])  # type: ignore[return-value]


def _numbers(x: jb.Spec, axis: Any) -> dict[str, Number]:
    outer, inner = _axes(x, axis)
    found = strides(x)
    along = found if axis is None else (0, 0, 0, found[4 - x.rank + axis % x.rank])
    count = inner[0] * inner[1] * inner[2] * inner[3]
    return {"outer": outer, "outer_strides": found, "inner": inner, "inner_strides": along, "count": count}


def summed(placed: jb.PlacedStep) -> Iterator[Dispatch]:
    step, x = placed.step, place_of(placed, 0)
    value = "found / f32(p.count)" if step.op == "mean" else "found"
    numbers = _numbers(x.spec, step.attrs["axis"])
    yield Dispatch(Shader("sum", (("value", value),)), {"x": x}, placed.result, numbers, step.result.size)


def argmax(placed: jb.PlacedStep) -> Iterator[Dispatch]:
    x = place_of(placed, 0)
    numbers = _numbers(x.spec, placed.step.attrs["axis"])
    yield Dispatch(Shader("argmax"), {"x": x}, placed.result, numbers, placed.step.result.size)


def argsort(placed: jb.PlacedStep) -> Iterator[Dispatch]:
    step, x = placed.step, place_of(placed, 0)
    count = x.spec.shape[-1]
    falls = step.op == "top_k" or bool(step.attrs["descending"])
    key = "~order_key(bits)" if falls else "order_key(bits)"
    numbers: dict[str, Number] = {
        "size": x.spec.size,
        "rows": (*four(x.spec.shape)[:3], 1),
        "x_strides": strides(x.spec),
        "count": count,
        "kept": attrs_of(step)["k"] if step.op == "top_k" else count,
    }
    yield Dispatch(Shader("argsort", (("key", key),)), {"x": x}, placed.result, numbers, each(x.spec.size))


def _sortable(step: jb.Step) -> jb.Reason | None:
    x = step.operands[0]
    assert x is not None
    if x.shape[-1] > MOST_SORTED:
        return jb.Reason(f"{step.op}: {x.shape[-1]} columns, at most {MOST_SORTED}", "size")
    return None


def _sorting(step: jb.Step, rates: jb.Rates) -> float:
    x = step.operands[0]
    assert x is not None
    return rates.launch + 4 * rows_of(x.shape) * x.shape[-1] ** 2 / rates.multiply_adds


AXIS = frozenset({"axis"})
KEPT = frozenset({"axis", "keepdims"})
ENTRIES = {
    "sum": Entry(jb.Kernel({"x": FLOATS}, FLOATS, KEPT), summed),
    "mean": Entry(jb.Kernel({"x": FLOATS}, FLOATS, KEPT), summed),
    "argmax": Entry(jb.Kernel({"x": FLOATS}, I32, AXIS), argmax),
    "argsort": Entry(jb.Kernel({"x": F32}, I32, frozenset({"descending"})), argsort, _sortable, _sorting),
    "top_k": Entry(jb.Kernel({"x": F32}, I32, frozenset({"k"})), argsort, _sortable, _sorting),
}
