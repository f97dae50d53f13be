"""A model file's hyperparameters as data, read from GGUF metadata. Nothing here knows a graph or a device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jackfield_llm.errors import ModelError, shown

__all__ = ["Config", "Layer", "Rope", "known_architectures", "read_config"]

_LARGEST = 2**31 - 1
_MOST_LAYERS = 1024  # the largest models known have 126


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

    width: of the residual stream. heads, kv_heads, head_size, value_size: of attention. inner: width of the
        feed-forward. context: tokens, the most the model was made for.
    eps: of the RMS norms. embedding_scale: factor on token embeddings. attention_scale: factor on query-key products.
    activation: "silu" or "gelu" (tanh form) of the gated feed-forward. softcap: on the logits, 0 for none.
    head_norms: queries and keys are normed head by head. post_norms: so are what attention and feed-forward give.
    """

    architecture: str
    width: int
    heads: int
    kv_heads: int
    head_size: int
    value_size: int
    inner: int
    context: int
    eps: float
    layers: tuple[Layer, ...]
    attention_scale: float
    embedding_scale: float = 1.0
    activation: str = "silu"
    softcap: float = 0.0
    head_norms: bool = False
    post_norms: bool = False


class _Keys:
    """Metadata of one architecture; every miss is an error that names the key."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str) -> None:
        self.metadata, self.architecture = metadata, architecture

    def integer(self, name: str, default: int | None = None, *, lowest: int = 1, highest: int = _LARGEST) -> int:
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
            raise self.wrong(name, value, f"a whole number from {lowest} to {highest:,}")
        return value

    def number(self, name: str, default: float | None = None, *, zero: bool = False) -> float:
        """A finite number above 0, or 0 where that has a meaning."""
        value = self._get(name, default)
        known = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not known or value < 0 or (value == 0 and not zero):
            raise self.wrong(name, value, f"a finite number {'not below' if zero else 'above'} 0")
        return float(value)

    def text(self, name: str, default: str) -> str:
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, value, "a text")
        return value

    def get(self, name: str) -> Any:
        """The value as it is, or None."""
        return self.metadata.get(f"{self.architecture}.{name}")

    def wrong(self, name: str, value: object, must: str) -> ModelError:
        return ModelError(f"{self.architecture}.{name} is {shown(value)}: must be {must}")

    def _get(self, name: str, default: Any) -> Any:
        value = self.get(name)
        if value is None:
            value = default
        if value is None:
            raise ModelError(f"the file lacks {self.architecture}.{name}, which a {self.architecture} model needs")
        return value


def read_config(metadata: Mapping[str, Any]) -> Config:
    """The hyperparameters of a model file. Raises ModelError, by name, for an architecture or a variant we lack."""
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise ModelError("the file has no general.architecture: not a language model")
    if architecture not in _READERS:
        raise ModelError(
            f"architecture {shown(architecture)} is not known here; known: {', '.join(known_architectures())}"
        )
    return _READERS[architecture](_Keys(metadata, architecture))


def known_architectures() -> list[str]:
    return sorted(_READERS)


def _llama(keys: _Keys) -> Config:
    return _decoder(keys, "normal")


def _qwen2(keys: _Keys) -> Config:
    return _decoder(keys, "neox")


def _qwen3(keys: _Keys) -> Config:
    return replace(_decoder(keys, "neox"), head_norms=True)


def _gemma3(keys: _Keys) -> Config:
    """Layers with a sliding window and a rope of their own between layers that see everything."""
    plain = _decoder(keys, "neox")
    window = keys.integer("attention.sliding_window", 0, lowest=0)
    rope = plain.layers[0].rope
    local = Layer(Rope("neox", rope.n_dims, keys.number("rope.freq_base_swa", 10000.0)), window)
    slides = _sliding(keys, len(plain.layers)) if window else [False] * len(plain.layers)
    # The 27B model scales by the width a head would have, not by the one it has.
    per_head = plain.width / plain.heads if len(plain.layers) == 62 else plain.head_size
    return replace(
        plain,
        layers=tuple(local if slide else Layer(rope) for slide in slides),
        attention_scale=1.0 / math.sqrt(per_head),
        embedding_scale=math.sqrt(plain.width),
        activation="gelu",
        softcap=keys.number("final_logit_softcapping", 0.0, zero=True),
        head_norms=True,
        post_norms=True,
    )


def _sliding(keys: _Keys, layers: int) -> list[bool]:
    """Which layers have the window: a list, or all but every n-th."""
    name = "attention.sliding_window_pattern"
    pattern = keys.get(name)
    if not isinstance(pattern, Sequence) or isinstance(pattern, str):
        period = keys.integer(name, 6)
        return [(i + 1) % period != 0 for i in range(layers)]
    if len(pattern) != layers or not all(isinstance(entry, (bool, int)) for entry in pattern):
        raise keys.wrong(name, pattern, f"a number, or {layers} flags, one a layer")
    return [bool(entry) for entry in pattern]


_READERS: dict[str, Callable[[_Keys], Config]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma3": _gemma3,
}


def _decoder(keys: _Keys, mode: str) -> Config:
    """What all of the kind share."""
    if keys.integer("expert_count", 0, lowest=0):
        raise keys.wrong("expert_count", keys.get("expert_count"), "0: layers of experts are not known here")
    width, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    kv_heads = keys.integer("attention.head_count_kv", heads)
    if heads % kv_heads:
        raise keys.wrong("attention.head_count_kv", kv_heads, f"a divisor of the {heads} heads")
    if keys.get("attention.key_length") is None and width % heads:
        raise keys.wrong(
            "embedding_length", width, f"a multiple of {heads} heads where there is no attention.key_length"
        )
    head_size = keys.integer("attention.key_length", width // heads)
    return Config(
        architecture=keys.architecture,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        value_size=keys.integer("attention.value_length", width // heads),
        inner=keys.integer("feed_forward_length"),
        context=keys.integer("context_length"),
        eps=keys.number("attention.layer_norm_rms_epsilon"),
        layers=(Layer(_rope(keys, mode, head_size)),) * keys.integer("block_count", highest=_MOST_LAYERS),
        attention_scale=1.0 / math.sqrt(head_size),
    )


def _rope(keys: _Keys, mode: str, head_size: int) -> Rope:
    """Rotary settings; linear and YaRN scaling as the file says.

    Source: names and defaults as llama.cpp (build 11434) reads them; a file that gives a factor and no type is linear.
    """
    n_dims = keys.integer("rope.dimension_count", head_size)
    if n_dims % 2 or n_dims > head_size:
        raise keys.wrong("rope.dimension_count", n_dims, f"even and at most {head_size}, the size of a head")
    plain = Rope(mode, n_dims, keys.number("rope.freq_base", 10000.0))
    kind = keys.text("rope.scaling.type", "linear")
    if kind == "none":
        return plain
    old = keys.number("rope.scale_linear", 0.0, zero=True)
    scaled = replace(plain, scale=1.0 / (keys.number("rope.scaling.factor", old, zero=True) or 1.0))
    if kind == "linear":
        return scaled
    if kind == "yarn":
        return replace(
            scaled,
            ext_factor=1.0,
            attn_factor=keys.number("rope.scaling.attn_factor", 1.0),
            beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
            original_context=keys.integer("rope.scaling.original_context_length", keys.integer("context_length")),
        )
    raise keys.wrong("rope.scaling.type", kind, "none, linear or yarn, which are known here")
