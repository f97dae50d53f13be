"""A model file's hyperparameters, read from GGUF metadata: one reader an architecture."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jackfield_llm.config_delta import check_sections, layers_without_attention, read_delta, with_gated_shared
from jackfield_llm.config_encoder import check_causal, read_bert, read_nomic_bert, read_pooling
from jackfield_llm.config_experts import read_experts, read_grouped, read_routed
from jackfield_llm.config_latent import latent_rotation, read_latent
from jackfield_llm.config_rope import original_context, read_rope
from jackfield_llm.config_rwkv import read_arwkv7, read_rwkv6, read_rwkv6_qwen2, read_rwkv7
from jackfield_llm.config_state_space import read_mamba, read_mamba2
from jackfield_llm.config_unread import check_unread
from jackfield_llm.errors import ModelError, shown
from jackfield_llm.hyperparameters import Config, Delta, Experts, Layer, RecurrentKind, Rope, Temperature
from jackfield_llm.metadata import Keys, parts_of

__all__ = ["Config", "Layer", "Rope", "known_architectures", "read_config"]


def read_config(metadata: Mapping[str, Any]) -> Config:
    """The hyperparameters of a model file. Raises ModelError, by name, for an architecture or a variant we lack."""
    parts = parts_of(metadata)
    if parts > 1:
        raise ModelError(f"the file is one of {parts} parts of a model (split.count); join them first")
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise ModelError("the file has no general.architecture: not a language model")
    if architecture not in _READERS:
        raise ModelError(
            f"architecture {shown(architecture)} is not known here; known: {', '.join(known_architectures())}"
        )
    keys = Keys(metadata, architecture)
    if architecture not in _PREDICTING:
        keys.absent("nextn_predict_layers", "layers that predict further tokens in this architecture are")
    config = _READERS[architecture](keys)
    check_causal(keys, causal=config.encoder is None)
    config = replace(config, pooling=read_pooling(keys), predicting=keys.predicting())
    check_unread(keys, config)
    return config


def known_architectures() -> list[str]:
    return sorted(_READERS)


def _llama(keys: Keys) -> Config:
    """A window that a file states is passed over, as in llama.cpp.

    `yarn_log_multiplier` is heeded, though llama.cpp does not: the converter writes it into Mistral's files of this
    architecture as it does into those of mistral3.
    """
    keys.pass_over("attention.sliding_window")
    return _decoder(keys, "normal", experts=read_grouped, undone=True)


def _qwen2(keys: Keys) -> Config:
    return _decoder(keys, "neox")


def _qwen3(keys: Keys) -> Config:
    return replace(_decoder(keys, "neox"), head_norms=True)


def _gemma2(keys: Keys) -> Config:
    """Every other layer has a sliding window; products of attention and logits are bent."""
    plain = _decoder(keys, "neox")
    rope = plain.layers[0].rope
    local = replace(rope, base=keys.number("rope.freq_base_swa", rope.base))
    # The 27B model scales by the width a head would have, not by the one it has.
    per_head = plain.width / plain.heads if len(plain.layers) == 46 else plain.head_size
    return replace(
        plain,
        layers=_windows(keys, plain.layers, keys.integer("attention.sliding_window", 4096, lowest=0), local, period=2),
        attention_scale=1.0 / math.sqrt(per_head),
        embedding_scale=math.sqrt(plain.width),
        activation="gelu",
        softcap=keys.number("final_logit_softcapping", 30.0, zero=True),
        attention_softcap=keys.number("attn_logit_softcapping", 50.0, zero=True),
        post_norms=True,
    )


def _gemma3(keys: Keys) -> Config:
    """Layers with a sliding window and a rope of their own between layers that see everything."""
    plain = _decoder(keys, "neox")
    local = Rope("neox", plain.layers[0].rope.n_dims, keys.number("rope.freq_base_swa", 10000.0))
    # The 27B model scales by the width a head would have, not by the one it has.
    per_head = plain.width / plain.heads if len(plain.layers) == 62 else plain.head_size
    return replace(
        plain,
        layers=_windows(keys, plain.layers, keys.integer("attention.sliding_window", 0, lowest=0), local, period=6),
        attention_scale=1.0 / math.sqrt(per_head),
        embedding_scale=math.sqrt(plain.width),
        activation="gelu",
        softcap=keys.number("final_logit_softcapping", 0.0, zero=True),
        head_norms=True,
        post_norms=True,
    )


def _phi3(keys: Keys) -> Config:
    """A window the file states is passed over: files state ones their models were not made with, as llama.cpp found."""
    keys.pass_over("attention.sliding_window")
    return replace(_decoder(keys, "neox"), fused=True)


def _mistral3(keys: Keys) -> Config:
    name = "attention.temperature_scale"
    growth = keys.factor(name, 1.0) if keys.number(name, 0.0, zero=True) else 0.0
    temperature = Temperature(growth, original_context(keys)) if growth else None
    return replace(_decoder(keys, "normal", experts=read_grouped, undone=True), temperature=temperature)


def _qwen3moe(keys: Keys) -> Config:
    keys.integer("expert_count")
    keys.integer("expert_feed_forward_length")
    return replace(_decoder(keys, "neox", experts=read_grouped), head_norms=True)


def _qwen3next(keys: Keys) -> Config:
    """An expert without a width of its own has a part of `feed_forward_length`."""
    keys.integer("expert_count")
    return _delta_hybrid(keys, read_delta(keys), experts=True)


def _qwen35(keys: Keys) -> Config:
    check_sections(keys)
    return _delta_hybrid(keys, replace(read_delta(keys), in_turn=True, parted=True), experts=False)


def _qwen35moe(keys: Keys) -> Config:
    keys.integer("expert_count")
    check_sections(keys)
    return _delta_hybrid(keys, replace(read_delta(keys), in_turn=True, parted=True), experts=True)


def _delta_hybrid(keys: Keys, delta: Delta, *, experts: bool) -> Config:
    """Layers with a gated delta net, and some with attention, whose result is gated; a shared expert with a gate."""
    plain = _decoder(keys, "neox", experts=read_grouped if experts else None)
    if plain.value_size != plain.head_size:
        raise keys.wrong("attention.value_length", plain.value_size, f"{plain.head_size}, the attention.key_length")
    rope, chosen = plain.layers[0].rope, plain.layers[0].experts
    if chosen is not None:
        chosen = with_gated_shared(keys, chosen, plain.inner)
    recurrent = layers_without_attention(keys)
    return replace(
        plain,
        layers=tuple(Layer(rope, experts=chosen, mixer=delta if without else None) for without in recurrent),
        head_norms=True,
        attention_gate=True,
        ffn_norm="post_attention_norm",
        recurrent=RecurrentKind(taps=delta.taps - 1, snapshots=True) if any(recurrent) else None,
    )


def _gpt_oss(keys: Keys) -> Config:
    """Sinks in attention, every other layer with a window, experts that take biases and limit what they gate."""
    keys.integer("expert_count")
    keys.integer("expert_feed_forward_length")
    plain = _decoder(keys, "neox", experts=read_experts)
    rope = plain.layers[0].rope
    local = replace(rope, base=keys.number("rope.freq_base_swa", rope.base))
    return replace(
        plain,
        layers=_windows(keys, plain.layers, keys.integer("attention.sliding_window"), local, period=2),
        activation="limited",
        sinks=True,
        ffn_norm="post_attention_norm",
    )


def _deepseek2(keys: Keys) -> Config:
    """Latent attention; leading layers without experts, then experts of which one or more are taken by every token."""
    keys.absent("attention.temperature_scale", "queries that grow with the position in this architecture are")
    latent = read_latent(keys)
    plain = _decoder(keys, "normal", experts=read_routed)
    rope, scale = latent_rotation(keys, plain.layers[0].rope, latent)
    experts = plain.layers[0].experts
    if experts is not None and _is_glm_lite(keys, len(plain.layers)):
        experts = replace(experts, gating="sigmoid")
    dense = keys.integer("leading_dense_block_count", 0, lowest=0)
    layers = tuple(Layer(rope, experts=experts if i >= dense else None) for i in range(len(plain.layers)))
    return replace(plain, layers=layers, latent=latent, attention_scale=scale)


def _is_glm_lite(keys: Keys, layers: int) -> bool:
    """GLM 4.7 Lite, whose files call it DeepSeek and may not say that its router has sigmoids.

    Source: llama.cpp (build 11434) tells it so.
    """
    words = keys.metadata.get("tokenizer.ggml.tokens")
    known = layers in {47, 48} and isinstance(words, Sequence) and len(words) == 154880
    return known and not keys.integer("expert_gating_func", 0, lowest=0)


def _windows(keys: Keys, layers: tuple[Layer, ...], window: int, local: Rope, *, period: int) -> tuple[Layer, ...]:
    """The layers, those with a window turning as `local` says."""
    if not window:
        return layers
    slides = _sliding(keys, len(layers), period)
    return tuple(
        replace(layer, rope=local, window=window) if slide else layer
        for layer, slide in zip(layers, slides, strict=True)
    )


def _sliding(keys: Keys, layers: int, usual: int) -> list[bool]:
    """Which layers have the window: a list, or all but every n-th; usual: that n where the file says none."""
    name = "attention.sliding_window_pattern"
    pattern = keys.get(name)
    if not isinstance(pattern, Sequence) or isinstance(pattern, str):
        period = keys.integer(name, usual)
        return [(i + 1) % period != 0 for i in range(layers)]
    if len(pattern) != layers or not all(isinstance(entry, (bool, int)) for entry in pattern):
        raise keys.wrong(name, pattern, f"a number, or {layers} flags, one a layer")
    return [bool(entry) for entry in pattern]


def _decoder(
    keys: Keys, mode: str, *, experts: Callable[[Keys, int], Experts | None] | None = None, undone: bool = False
) -> Config:
    """What all of the kind share.

    experts: reads those of an architecture that may have them, given a width; another's are refused. undone: as of
        read_rope.
    """
    if experts is None:
        keys.absent("expert_count", "layers of experts in this architecture are")
    width, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    kv_heads = keys.integer("attention.head_count_kv", heads)
    if heads % kv_heads:
        raise keys.wrong("attention.head_count_kv", kv_heads, f"a divisor of the {heads} heads")
    if keys.get("attention.key_length") is None and width % heads:
        raise keys.wrong(
            "embedding_length", width, f"a multiple of {heads} heads where there is no attention.key_length"
        )
    head_size = keys.integer("attention.key_length", width // heads)
    inner = keys.integer("feed_forward_length")
    rope = read_rope(keys, mode, head_size, undone=undone)
    layer = Layer(rope, experts=None if experts is None else experts(keys, inner))
    return Config(
        architecture=keys.architecture,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        value_size=keys.integer("attention.value_length", width // heads),
        inner=inner,
        context=keys.integer("context_length"),
        eps=keys.number("attention.layer_norm_rms_epsilon"),
        layers=(layer,) * keys.layers(),
        attention_scale=1.0 / math.sqrt(head_size),
    )


_READERS: dict[str, Callable[[Keys], Config]] = {
    "arwkv7": read_arwkv7,
    "bert": read_bert,
    "deepseek2": _deepseek2,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gpt-oss": _gpt_oss,
    "llama": _llama,
    "mamba": read_mamba,
    "mamba2": read_mamba2,
    "mistral3": _mistral3,
    "nomic-bert": read_nomic_bert,
    "phi3": _phi3,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3moe": _qwen3moe,
    "qwen3next": _qwen3next,
    "qwen35": _qwen35,
    "qwen35moe": _qwen35moe,
    "rwkv6": read_rwkv6,
    "rwkv6qwen2": read_rwkv6_qwen2,
    "rwkv7": read_rwkv7,
}
_PREDICTING = {"deepseek2", "qwen3next", "qwen35", "qwen35moe"}
"""Architectures whose files may have layers that predict further tokens.

Source: llama.cpp (build 11434), which looks for the tensors of such layers.
"""
