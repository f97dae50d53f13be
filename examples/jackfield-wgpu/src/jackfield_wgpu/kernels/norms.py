"""Normalisation along the last axis, and softmax."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jackfield.backend as jb
import numpy as np

from ..dispatch import Dispatch, four, rows_of, strides
from ..shading import Number, Shader
from .entry import F32, FLOATS, Entry, attrs_of, place_of

# The length that a row is divided by; where it was made small, so is eps.
LENGTHS = {
    "norm": "sqrt(squares / f32(p.count) + eps * shrink * shrink)",
    "rms_norm": "sqrt(squares / f32(p.count) + eps * shrink * shrink)",
    "l2_norm": "at_least(sqrt(squares), eps * shrink)",
}
MASK = """let entry = mask_at(at_strides(vec4(s % p.mask_shape.x, h % p.mask_shape.y, m, j), p.mask_strides));
    z += table[h] * entry;"""
SINK = """sink = sinks_at(h * p.sinks_stride);
    sinks = true;
    best = max(best, key_of(sink));"""


def norm(placed: jb.PlacedStep) -> Iterator[Dispatch]:
    step, x = placed.step, place_of(placed, 0)
    words = (("centred", "true" if step.op == "norm" else "false"), ("length", LENGTHS[step.op]))
    numbers: dict[str, Number] = {
        "rows": (*four(x.spec.shape)[:3], 1),
        "x_strides": strides(x.spec),
        "count": x.spec.shape[-1],
        "eps": float(attrs_of(step)["eps"]),
    }
    yield Dispatch(Shader("norm", words), {"x": x}, placed.result, numbers, rows_of(x.spec.shape))


def slopes(heads: int, max_bias: Any) -> np.ndarray[Any, Any]:
    """f32 (heads,): how much of the mask each head sees. Source: Press et al. 2021, "Train short, test long"."""
    if max_bias <= 0:
        return np.ones(heads, np.float32)
    power = 1 << (heads.bit_length() - 1)
    h = np.arange(heads)
    exponent = np.where(h < power, (h + 1) / power, (2 * (h - power) + 1) / (2 * power))
    return (2.0 ** (-max_bias * exponent)).astype(np.float32)


def softmax(placed: jb.PlacedStep) -> Iterator[Dispatch]:
    step, x = placed.step, place_of(placed, 0)
    _, mask, sinks = placed.operands
    shape = four(x.spec.shape)
    numbers: dict[str, Number] = {
        "shape": shape,
        "x_strides": strides(x.spec),
        "scale": float(attrs_of(step)["scale"]),
    }
    reads = {"x": x}
    if mask is not None:
        reads["mask"] = mask
        numbers |= {"mask_shape": four(mask.spec.shape), "mask_strides": strides(mask.spec)}
    if sinks is not None:
        reads["sinks"] = sinks
        numbers["sinks_stride"] = strides(sinks.spec)[3]
    words = (("mask", MASK if mask else ""), ("sink", SINK if sinks else ""))
    table = slopes(shape[1], step.attrs["max_bias"])
    shader = Shader("softmax", words, table=True)
    yield Dispatch(shader, reads, placed.result, numbers, rows_of(x.spec.shape), table)


NORM = Entry(jb.Kernel({"x": FLOATS}, FLOATS, frozenset({"eps"})), norm)
MASKS = frozenset({"f32", "f16"})
ENTRIES = {
    **dict.fromkeys(LENGTHS, NORM),
    "softmax": Entry(
        jb.Kernel({"x": F32, "mask": MASKS, "sinks": F32}, F32, frozenset({"scale", "max_bias"})), softmax
    ),
}
