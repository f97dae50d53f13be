"""What a model file says of latent attention (DeepSeek)."""

from __future__ import annotations

import math
from dataclasses import replace

from jackfield_llm.config_rope import yarn_magnitude, yarn_multiplier
from jackfield_llm.hyperparameters import Latent, Rope
from jackfield_llm.metadata import Keys

__all__ = ["latent_rotation", "read_latent"]


def read_latent(keys: Keys) -> Latent:
    """Ranks and the parts of a head. Raises ModelError for files of the old form, which have no `key_length_mla`."""
    rank = keys.integer("attention.kv_lora_rank")
    turned = keys.integer("rope.dimension_count")
    whole = keys.integer("attention.key_length_mla", lowest=turned + 1)
    for name, size in (("attention.key_length", rank + turned), ("attention.value_length", rank)):
        if keys.integer(name) != size:
            raise keys.wrong(name, keys.get(name), f"{size}, what the cache holds of a token")
    return Latent(
        query_rank=keys.integer("attention.q_lora_rank", 0, lowest=0),
        rank=rank,
        plain=whole - turned,
        turned=turned,
        value=keys.integer("attention.value_length_mla"),
    )


def latent_rotation(keys: Keys, rope: Rope, latent: Latent) -> tuple[Rope, float]:
    """The rotation, and the factor on products of queries and keys.

    What YaRN makes larger is undone, where the file has a multiplier, and done to the products instead. The file states
    a tenth of it. Source: llama.cpp (build 11434), which explains it by its issue 7416 and pull request 17945.
    """
    multiplier = 10.0 * yarn_multiplier(keys)
    factor = 1.0 / rope.scale
    made = 1.0 + 0.1 * math.log(factor)
    if rope.ext_factor and multiplier:
        rope = replace(rope, attn_factor=keys.factor("rope.scaling.attn_factor", 1.0) / made)
    grown = rope.attn_factor * made * yarn_magnitude(factor, multiplier)
    return rope, grown**2 / math.sqrt(latent.plain + latent.turned)
