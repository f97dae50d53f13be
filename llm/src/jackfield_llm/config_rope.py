"""Rotary settings of a model file: base, turned elements, linear and YaRN scaling."""

from __future__ import annotations

import math
from dataclasses import replace

from jackfield_llm.hyperparameters import Rope
from jackfield_llm.metadata import Keys

__all__ = ["original_context", "read_rope", "yarn_magnitude", "yarn_multiplier"]


def read_rope(keys: Keys, mode: str, head_size: int, *, undone: bool = False) -> Rope:
    """The rotation of a layer.

    head_size: elements of a head; all turn where the file does not say otherwise.
    undone: the file may say how much of YaRN's magnitude is undone, by `yarn_log_multiplier`.
    Source: names and defaults as llama.cpp (build 11434) reads them; a file that gives a factor and no type is linear.
    """
    n_dims = keys.integer("rope.dimension_count", head_size)
    if n_dims % 2 or n_dims > head_size:
        raise keys.wrong("rope.dimension_count", n_dims, f"even and at most {head_size}, the size of a head")
    given = keys.factor("rope.scaling.attn_factor", 1.0)
    plain = Rope(
        mode,
        n_dims,
        keys.number("rope.freq_base", 10000.0),
        attn_factor=given,
        original_context=original_context(keys),
    )
    kind = keys.text("rope.scaling.type", "linear")
    if kind not in {"none", "linear", "yarn", "longrope"}:
        raise keys.wrong("rope.scaling.type", kind, "none, linear, yarn or longrope, which are known here")
    factor = keys.factor("rope.scaling.factor", keys.factor("rope.scale_linear", 1.0))
    if kind == "none":
        return plain
    scaled = replace(plain, scale=1.0 / factor)
    if kind != "yarn":
        return scaled
    return _yarn(keys, scaled, factor, yarn_multiplier(keys) if undone else 0.0)


def original_context(keys: Keys) -> int:
    """Tokens the model was made for before its rotation was stretched."""
    return keys.integer("rope.scaling.original_context_length", keys.integer("context_length"))


def yarn_multiplier(keys: Keys) -> float:
    """How much of YaRN's magnitude the file wants undone, as a factor on its logarithm; 0 for none of it."""
    name = "rope.scaling.yarn_log_multiplier"
    return keys.factor(name, 1.0) if keys.number(name, 0.0, zero=True) else 0.0


def yarn_magnitude(factor: float, multiplier: float = 1.0) -> float:
    """How much larger YaRN makes what it turns. Source: Peng et al. 2023, "YaRN", section 3.4."""
    return 1.0 if factor <= 1.0 else 1.0 + 0.1 * multiplier * math.log(factor)


def _yarn(keys: Keys, rope: Rope, factor: float, multiplier: float) -> Rope:
    """The multiplier says how much of the magnitude is undone; `jf.ops.rope` makes all of it, whatever the factor.

    The betas are heeded in every architecture: the converter writes those the model was made with, and they mean one
    thing. llama.cpp takes 32 and 1 whatever a file says, but of mistral3.
    """
    if factor < 1.0:
        raise keys.wrong("rope.scaling.factor", factor, "at least 1 where rope.scaling.type is yarn")
    undone = yarn_magnitude(factor, multiplier)
    made = 1.0 + 0.1 * math.log(factor)
    return replace(
        rope,
        ext_factor=1.0,
        attn_factor=rope.attn_factor * yarn_magnitude(factor) / undone / made,
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
    )
