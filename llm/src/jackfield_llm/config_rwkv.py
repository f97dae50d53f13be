"""What a model file says of RWKV's layers."""

from __future__ import annotations

from dataclasses import replace

from jackfield_llm.config_recurrent import without_attention
from jackfield_llm.hyperparameters import Config, QwenRwkv6, RecurrentKind, Rwkv6, Rwkv7
from jackfield_llm.metadata import Keys

__all__ = ["read_arwkv7", "read_rwkv6", "read_rwkv6_qwen2", "read_rwkv7"]


def read_rwkv6(keys: Keys) -> Config:
    """Finch. Source: names and defaults as llama.cpp (build 11434) reads them; likewise below."""
    mixer = Rwkv6(
        head=_head(keys),
        mix_rank=keys.integer("time_mix_extra_dim"),
        decay_rank=keys.integer("time_decay_extra_dim"),
        rescale=keys.integer("rescale_every_n_layers", 0, lowest=0),
    )
    return _whole(keys, mixer)


def read_rwkv7(keys: Keys) -> Config:
    """Goose."""
    keys.integer("attention.gate_lora_rank")
    return _whole(keys, _version_7(keys))


def read_rwkv6_qwen2(keys: Keys) -> Config:
    """Qwen 2 with version 6 in the place of attention."""
    head = _head(keys)
    heads = keys.integer("embedding_length") // head
    kv_heads = keys.integer("attention.head_count_kv", keys.integer("attention.head_count", 0, lowest=0), lowest=0)
    if kv_heads and heads % kv_heads:
        raise keys.wrong("attention.head_count_kv", kv_heads, f"0, or a divisor of the {heads} heads")
    mixer = QwenRwkv6(
        head=head,
        kv_heads=kv_heads or heads,
        mix_rank=keys.integer("time_mix_extra_dim"),
        decay_rank=keys.integer("time_decay_extra_dim"),
    )
    return _in_qwen(keys, mixer)


def read_arwkv7(keys: Keys) -> Config:
    """Qwen 2 with version 7 in the place of attention."""
    return _in_qwen(keys, replace(_version_7(keys), whole=False))


def _version_7(keys: Keys) -> Rwkv7:
    return Rwkv7(
        head=_head(keys),
        decay_rank=keys.integer("attention.decay_lora_rank"),
        rate_rank=keys.integer("attention.iclr_lora_rank"),
        value_rank=keys.integer("attention.value_residual_mix_lora_rank"),
        gate_rank=keys.integer("attention.gate_lora_rank", 0, lowest=0),
    )


def _head(keys: Keys) -> int:
    size, width = keys.integer("wkv.head_size"), keys.integer("embedding_length")
    if width % size:
        raise keys.wrong("wkv.head_size", size, f"a divisor of {width}, the width of the model")
    return size


def _whole(keys: Keys, mixer: Rwkv6 | Rwkv7) -> Config:
    """Norms with biases, and a second shift in the feed-forward."""
    plain = _model(keys, mixer, shifts=2, eps=keys.number("attention.layer_norm_epsilon"))
    return replace(plain, layer_norms=True, embedding_norm=True)


def _in_qwen(keys: Keys, mixer: QwenRwkv6 | Rwkv7) -> Config:
    return _model(keys, mixer, shifts=1, eps=keys.number("attention.layer_norm_rms_epsilon"))


def _model(keys: Keys, mixer: object, *, shifts: int, eps: float) -> Config:
    keys.absent("expert_count", "layers of experts in this architecture are")
    stated = keys.integer("token_shift_count", 2)
    if stated != shifts:
        raise keys.wrong("token_shift_count", stated, f"{shifts}, as the layers of this architecture have it")
    recurrent = RecurrentKind(taps=1, snapshots=False)
    return without_attention(keys, mixer, inner=keys.integer("feed_forward_length"), eps=eps, recurrent=recurrent)
