"""A model file's hyperparameters as data, read from GGUF metadata. Nothing here knows a graph or a device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jackfield_llm.errors import ModelError

__all__ = ["Config", "Rope", "known_architectures", "read_config"]


@dataclass(frozen=True)
class Rope:
    """Rotary embedding as `jf.ops.rope` takes it. mode: "normal" or "neox"."""

    mode: str
    n_dims: int
    base: float
    scale: float = 1.0
    ext_factor: float = 0.0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    original_context: int = 0


@dataclass(frozen=True)
class Layer:
    """What may differ from layer to layer. window: columns of a sliding window, 0 for the whole context."""

    rope: Rope
    window: int = 0


@dataclass(frozen=True)
class Config:
    """A decoder-only transformer of the Llama kind.

    width: of the residual stream; heads, kv_heads, head_size, value_size: of attention; context: longest the model knows.
    eps: of the RMS norms. embedding_scale: factor on token embeddings. attention_scale: factor on query-key products.
    activation: "silu" or "gelu" (tanh form) of the gated feed-forward. softcap: on the logits, 0 for none.
    """

    architecture: str
    width: int
    heads: int
    kv_heads: int
    head_size: int
    value_size: int
    context: int
    eps: float
    layers: tuple[Layer, ...]
    attention_scale: float
    embedding_scale: float = 1.0
    activation: str = "silu"
    softcap: float = 0.0


class _Keys:
    """Metadata of one architecture; every miss is an error that names the key."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str) -> None:
        self.metadata, self.architecture = metadata, architecture

    def integer(self, name: str, default: int | None = None, *, lowest: int = 1) -> int:
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value < 2**31:
            raise ModelError(f"{self.architecture}.{name} is {value!r}: must be a whole number, at least {lowest}")
        return value

    def number(self, name: str, default: float | None = None, *, positive: bool = True) -> float:
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or (positive and value <= 0):
            raise ModelError(f"{self.architecture}.{name} is {value!r}: must be a finite number{' above 0' if positive else ''}")
        return float(value)

    def text(self, name: str, default: str) -> str:
        return str(self._get(name, default))

    def has(self, name: str) -> bool:
        return f"{self.architecture}.{name}" in self.metadata

    def _get(self, name: str, default: Any) -> Any:
        value = self.metadata.get(f"{self.architecture}.{name}", default)
        if value is None:
            raise ModelError(f"the file lacks {self.architecture}.{name}, which a {self.architecture} model needs")
        return value


def read_config(metadata: Mapping[str, Any]) -> Config:
    """The hyperparameters of a model file. Raises ModelError, by name, for an architecture or a variant we lack."""
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise ModelError("the file has no general.architecture: not a language model")
    if architecture not in _READERS:
        raise ModelError(f"architecture {architecture!r} is not known here; known: {', '.join(known_architectures())}")
    return _READERS[architecture](_Keys(metadata, architecture))


def known_architectures() -> list[str]:
    return sorted(_READERS)


def _llama(keys: _Keys) -> Config:
    return _decoder(keys, "normal")


def _qwen(keys: _Keys) -> Config:
    return _decoder(keys, "neox")


def _gemma3(keys: _Keys) -> Config:
    """Five layers with a sliding window and their own rope base, then one that sees everything."""
    plain = _decoder(keys, "neox", activation="gelu")
    window = keys.integer("attention.sliding_window")
    period = keys.integer("attention.sliding_window_pattern", 6)
    rope = plain.layers[0].rope
    local = Rope("neox", rope.n_dims, keys.number("rope.freq_base_swa", 10000.0))
    layers = tuple(Layer(rope) if (i + 1) % period == 0 else Layer(local, window) for i in range(len(plain.layers)))
    # The 27B model scales by the width a head would have, not by the one it has.
    per_head = plain.width / plain.heads if len(layers) == 62 else plain.head_size
    return _with(
        plain,
        layers=layers,
        attention_scale=1.0 / math.sqrt(per_head),
        embedding_scale=math.sqrt(plain.width),
        softcap=keys.number("final_logit_softcapping", 0.0, positive=False),
    )


_READERS: dict[str, Callable[[_Keys], Config]] = {"llama": _llama, "qwen2": _qwen, "qwen3": _qwen, "gemma3": _gemma3}


def _with(config: Config, **changes: Any) -> Config:
    return Config(**{**config.__dict__, **changes})


def _decoder(keys: _Keys, mode: str, activation: str = "silu") -> Config:
    """What all of the kind share."""
    if keys.has("expert_count") and keys.integer("expert_count", lowest=0) > 0:
        raise ModelError(f"{keys.architecture} with experts (expert_count {keys.integer('expert_count')}) is not known here")
    width, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    kv_heads = keys.integer("attention.head_count_kv", heads)
    if heads % kv_heads:
        raise ModelError(f"{heads} heads can't share {kv_heads} key-value heads evenly")
    if not keys.has("attention.key_length") and width % heads:
        raise ModelError(f"embedding_length {width} is not a multiple of {heads} heads, and there is no attention.key_length")
    head_size = keys.integer("attention.key_length", width // heads)
    value_size = keys.integer("attention.value_length", head_size)
    rope = _rope(keys, mode, head_size)
    layers = (Layer(rope),) * keys.integer("block_count")
    return Config(
        architecture=keys.architecture,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        value_size=value_size,
        context=keys.integer("context_length"),
        eps=keys.number("attention.layer_norm_rms_epsilon"),
        layers=layers,
        attention_scale=1.0 / math.sqrt(head_size),
        activation=activation,
    )


def _rope(keys: _Keys, mode: str, head_size: int) -> Rope:
    """Rotary settings; linear and YaRN scaling as the file says."""
    n_dims = keys.integer("rope.dimension_count", head_size)
    if n_dims % 2 or n_dims > head_size:
        raise ModelError(f"{keys.architecture}.rope.dimension_count is {n_dims}: must be even and at most {head_size}")
    base = keys.number("rope.freq_base", 10000.0)
    kind = keys.text("rope.scaling.type", "linear" if keys.has("rope.scale_linear") else "none")
    if kind == "none":
        return Rope(mode, n_dims, base)
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0))
    if kind == "linear":
        return Rope(mode, n_dims, base, scale=1.0 / factor)
    if kind == "yarn":
        return Rope(
            mode,
            n_dims,
            base,
            scale=1.0 / factor,
            ext_factor=1.0,
            attn_factor=keys.number("rope.scaling.attn_factor", 1.0),
            beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
            original_context=keys.integer("rope.scaling.original_context_length"),
        )
    raise ModelError(f"{keys.architecture}.rope.scaling.type {kind!r} is not known here; known: none, linear, yarn")
