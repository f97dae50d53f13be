"""Rotary position embedding, modes normal and neox."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jackfield.backend as jb
import numpy as np

from ..dispatch import Dispatch, each, four, strides
from ..shading import Number, Shader
from .entry import F32, I32, Entry, attrs_of, place_of

MODES = ("normal", "neox")
HALVES = frozenset({"f32", "f16"})


def rope(placed: jb.PlacedStep) -> Iterator[Dispatch]:
    attrs = attrs_of(placed.step)
    x, positions = place_of(placed, 0), place_of(placed, 1)
    factors = placed.operands[2]
    shape = four(x.spec.shape)
    pairs = attrs["n_dims"] // 2
    neox = attrs["mode"] == "neox"
    lanes = shape[3] - pairs
    table, magnitude = angles(attrs)
    numbers: dict[str, Number] = {
        "lanes": (*shape[:3], lanes),
        "x_strides": strides(x.spec),
        "size": shape[0] * shape[1] * shape[2] * lanes,
        "channels": shape[3],
        "pairs": pairs,
        "offset": attrs["offset"],
        "pair_step": 1 if neox else 2,
        "pair_gap": pairs if neox else 1,
        "positions_stride": strides(positions.spec)[3],
        "magnitude": magnitude,
    }
    reads, text = {"x": x, "positions": positions}, ""
    if factors is not None:
        reads["factors"] = factors
        numbers["factors_stride"] = strides(factors.spec)[3]
        text = "angle /= factors_at(place.w * p.factors_stride);"
    shader = Shader("rope", (("factor", text),), table=True)
    groups = each(shape[0] * shape[1] * shape[2] * lanes)
    yield Dispatch(shader, reads, placed.result, numbers, groups, table)


def angles(attrs: Any) -> tuple[np.ndarray[Any, Any], float]:
    """f32 (pairs,): the angle of each pair at position 1, and what the result is multiplied by.

    Source of the blend: Peng et al. 2023, "YaRN".
    """
    n, base, scale = attrs["n_dims"], attrs["base"], attrs["scale"]
    pairs = np.arange(n // 2)
    turn, size = base ** (-2.0 * pairs / n), float(attrs["attn_factor"])
    if not attrs["ext_factor"]:
        return (scale * turn).astype(np.float32), size

    def pair(turns: float) -> float:
        return n * math.log(attrs["original_context"] / (2 * math.pi * turns)) / (2 * math.log(base))

    low, high = max(0, math.floor(pair(attrs["beta_fast"]))), min(n - 1, math.ceil(pair(attrs["beta_slow"])))
    w = (1 - np.clip((pairs - low) / max(0.001, high - low), 0, 1)) * attrs["ext_factor"]
    return (turn * (scale * (1 - w) + w)).astype(np.float32), size * (1 + 0.1 * math.log(1 / scale))


def _mode(step: jb.Step) -> jb.Reason | None:
    if step.attrs["mode"] not in MODES:
        return jb.Reason(f"rope: mode is {step.attrs['mode']}, the kernel knows {' and '.join(MODES)}", "attribute")
    return None


ATTRIBUTES = frozenset(
    {"mode", "n_dims", "offset", "base", "scale", "ext_factor", "attn_factor"}
    | {"beta_fast", "beta_slow", "original_context"}
)
ENTRIES = {
    "rope": Entry(jb.Kernel({"x": HALVES, "positions": I32, "frequency_factors": F32}, HALVES, ATTRIBUTES), rope, _mode)
}
