"""Hyperparameters of encoders (bert and nomic-bert), and what any file says of embeddings.

Source: names and defaults as llama.cpp (build 11434) reads them.
"""

from __future__ import annotations

import math

from jackfield_llm.config_rope import read_rope
from jackfield_llm.hyperparameters import Config, Encoder
from jackfield_llm.metadata import Keys

__all__ = ["check_causal", "read_bert", "read_nomic_bert", "read_pooling"]

_POOLINGS = ("", "mean", "cls", "last", "rank")  # by number


def read_bert(keys: Keys) -> Config:
    """Learned positions, a feed-forward without a gate."""
    return _encoder(keys, rotates=False)


def read_nomic_bert(keys: Keys) -> Config:
    """Rotation instead of learned positions, a gated feed-forward."""
    return _encoder(keys, rotates=True)


def read_pooling(keys: Keys) -> str:
    """How the file wants one vector made of many; "" where it leaves that open."""
    number = keys.integer("pooling_type", 0, lowest=0)
    if number >= len(_POOLINGS):
        raise keys.wrong("pooling_type", number, "0 (none), 1 (mean), 2 (cls), 3 (last) or 4 (rank)")
    return _POOLINGS[number]


def check_causal(keys: Keys, *, causal: bool) -> None:
    """Decoders look back, encoders to both sides; a file that says otherwise is another model than we would build."""
    name = "attention.causal"
    if keys.get(name) is not None and keys.flag(name) != causal:
        kind = "decoders that see what follows" if causal else "encoders that see only what came before"
        raise keys.wrong(name, not causal, f"{str(causal).lower()}: {kind} are not known here")


def _encoder(keys: Keys, *, rotates: bool) -> Config:
    width, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    if width % heads:
        raise keys.wrong("embedding_length", width, f"a multiple of the {heads} heads")
    _check_plain(keys, heads, width // heads)
    return Config(
        architecture=keys.architecture,
        width=width,
        heads=heads,
        kv_heads=heads,
        head_size=width // heads,
        value_size=width // heads,
        inner=keys.integer("feed_forward_length"),
        context=keys.integer("context_length"),
        eps=keys.number("attention.layer_norm_epsilon"),
        layers=(),
        attention_scale=1.0 / math.sqrt(width // heads),
        encoder=Encoder(
            layers=keys.layers(),
            rope=read_rope(keys, "neox", width // heads) if rotates else None,
            types=Keys(keys.metadata, "tokenizer.ggml").integer("token_type_count", 1),
            gated=rotates,
        ),
    )


def _check_plain(keys: Keys, heads: int, size: int) -> None:
    """What these encoders do not have, refused where a file asks for it."""
    keys.absent("expert_count", "layers of experts in this architecture are")
    keys.absent("moe_every_n_layers", "layers of experts in this architecture are")
    for name, must in (
        ("attention.head_count_kv", heads),
        ("attention.key_length", size),
        ("attention.value_length", size),
    ):
        if keys.integer(name, must) != must:
            raise keys.wrong(name, keys.get(name), f"{must}: encoders with other keys than queries are not known here")
    if read_pooling(keys) == "rank":
        raise keys.wrong("pooling_type", 4, "1 (mean), 2 (cls) or 3 (last): rankers are not known here")
