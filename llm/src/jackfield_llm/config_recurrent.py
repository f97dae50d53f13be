"""What models without attention have in common."""

from __future__ import annotations

from jackfield_llm.hyperparameters import Config, Layer, RecurrentKind, Rope
from jackfield_llm.metadata import Keys

__all__ = ["without_attention"]


def without_attention(keys: Keys, mixer: object, *, inner: int, eps: float, recurrent: RecurrentKind) -> Config:
    """Layers of one kind, none with attention: the head counts of 0 that files give are not read.

    inner: of the feed-forward, 0 for none.
    """
    return Config(
        architecture=keys.architecture,
        width=keys.integer("embedding_length"),
        heads=1,
        kv_heads=1,
        head_size=0,
        value_size=0,
        inner=inner,
        context=keys.integer("context_length"),
        eps=eps,
        layers=(Layer(Rope("normal", 0, 10000.0), mixer=mixer),) * keys.layers(),
        attention_scale=1.0,
        recurrent=recurrent,
    )
