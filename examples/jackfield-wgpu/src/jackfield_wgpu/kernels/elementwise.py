"""Ops of each element by itself: one operand, two that broadcast, and gated units."""

from __future__ import annotations

from collections.abc import Iterator

import jackfield.backend as jb

from ..dispatch import Dispatch, each, four, spread, strides
from ..shading import Number, Shader
from .entry import FLOATS, Entry, attrs_of, place_of

UNARY = {
    "square": "x * x",
    "tanh": "tanh_of(x)",
    "relu": "relu_of(x)",
    "sigmoid": "sigmoid_of(x)",
    "silu": "silu_of(x)",
    "gelu": "gelu_of(x)",
    "gelu_erf": "gelu_erf_of(x)",
    "clip": "clip_of(x, p.min, p.max)",
    "scale": "p.scale * x + p.bias",
}
BINARY = {"add": "a + b", "subtract": "a - b", "multiply": "a * b", "divide": "ratio_of(a, b)"}
GATED = {"swiglu": "silu_of(g) * u", "geglu": "gelu_of(g) * u", "geglu_erf": "gelu_erf_of(g) * u"}
ATTRIBUTES = {"clip": frozenset({"min", "max"}), "scale": frozenset({"scale", "bias"})}


def unary(placed: jb.PlacedStep) -> Iterator[Dispatch]:
    step, x = placed.step, place_of(placed, 0)
    attributes: dict[str, Number] = {name: float(attrs_of(step)[name]) for name in ATTRIBUTES.get(step.op, ())}
    size, shape = step.result.size, four(step.result.shape)
    numbers = {"size": size, "shape": shape, "x_strides": strides(x.spec), **attributes}
    shader = Shader("unary", (("value", UNARY[step.op]),))
    yield Dispatch(shader, {"x": x}, placed.result, numbers, each(size))


def binary(placed: jb.PlacedStep) -> Iterator[Dispatch]:
    step, a, b = placed.step, place_of(placed, 0), place_of(placed, 1)
    size, shape = step.result.size, four(step.result.shape)
    pair: dict[str, Number] = {"a_strides": spread(a.spec, shape), "b_strides": spread(b.spec, shape)}
    shader = Shader("binary", (("value", BINARY[step.op]),))
    yield Dispatch(shader, {"a": a, "b": b}, placed.result, {"size": size, "shape": shape, **pair}, each(size))


def gated(placed: jb.PlacedStep) -> Iterator[Dispatch]:
    step, gate = placed.step, place_of(placed, 0)
    up = placed.operands[1] or gate
    size, shape = step.result.size, four(step.result.shape)
    half = 0 if placed.operands[1] else shape[3] * strides(gate.spec)[3]
    starts = (half, 0) if step.attrs["swapped"] else (0, half)
    numbers: dict[str, Number] = {
        "size": size,
        "shape": shape,
        "gate_strides": strides(gate.spec),
        "up_strides": strides(up.spec),
        "gate_start": starts[0],
        "up_start": starts[1],
    }
    shader = Shader("gated", (("value", GATED[step.op]),))
    yield Dispatch(shader, {"gate": gate, "up": up}, placed.result, numbers, each(size))


ENTRIES = {
    **{op: Entry(jb.Kernel({"x": FLOATS}, FLOATS, ATTRIBUTES.get(op, frozenset())), unary) for op in UNARY},
    **{op: Entry(jb.Kernel({"a": FLOATS, "b": FLOATS}, FLOATS), binary) for op in BINARY},
    **{op: Entry(jb.Kernel({"gate": FLOATS, "up": FLOATS}, FLOATS, frozenset({"swapped"})), gated) for op in GATED},
}
