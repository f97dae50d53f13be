"""What a model file says of RWKV's layers."""

from __future__ import annotations

from jackfield_llm.hyperparameters import Config, Layer, RecurrentKind, Rope, Rwkv6, Rwkv7
from jackfield_llm.metadata import Keys

__all__ = ["read_rwkv6", "read_rwkv7"]

_MOST_LAYERS = 1024  # the largest models known have 61


def read_rwkv6(keys: Keys) -> Config:
    """Finch. Source: names and defaults as llama.cpp (build 11434) reads them; likewise below."""
    return _model(
        keys,
        Rwkv6(
            head=_head(keys),
            mix_rank=keys.integer("time_mix_extra_dim"),
            decay_rank=keys.integer("time_decay_extra_dim"),
            rescale=keys.integer("rescale_every_n_layers", 0, lowest=0),
        ),
    )


def read_rwkv7(keys: Keys) -> Config:
    """Goose."""
    return _model(
        keys,
        Rwkv7(
            head=_head(keys),
            decay_rank=keys.integer("attention.decay_lora_rank"),
            rate_rank=keys.integer("attention.iclr_lora_rank"),
            value_rank=keys.integer("attention.value_residual_mix_lora_rank"),
            gate_rank=keys.integer("attention.gate_lora_rank"),
        ),
    )


def _head(keys: Keys) -> int:
    size, width = keys.integer("wkv.head_size"), keys.integer("embedding_length")
    if width % size:
        raise keys.wrong("wkv.head_size", size, f"a divisor of {width}, the width of the model")
    return size


def _model(keys: Keys, mixer: Rwkv6 | Rwkv7) -> Config:
    """Layers of one kind, without attention: the head count of 0 that files give is not read."""
    keys.absent("expert_count", "layers of experts in this architecture are")
    shifts = keys.integer("token_shift_count", 2)
    if shifts != 2:
        raise keys.wrong("token_shift_count", shifts, "2: a shift for each of the two parts of a layer")
    return Config(
        architecture=keys.architecture,
        width=keys.integer("embedding_length"),
        heads=1,
        kv_heads=1,
        head_size=0,
        value_size=0,
        inner=keys.integer("feed_forward_length"),
        context=keys.integer("context_length"),
        eps=keys.number("attention.layer_norm_epsilon"),
        layers=(Layer(Rope("normal", 0, 10000.0), mixer=mixer),) * keys.integer("block_count", highest=_MOST_LAYERS),
        attention_scale=1.0,
        layer_norms=True,
        embedding_norm=True,
        recurrent=RecurrentKind(taps=1, snapshots=False),
    )
