"""Keys that change what a model computes, and the values of them that change nothing.

An architecture's reader asks for the keys it heeds. One of these that it did not ask for must have such a value, else
another model would be computed than the file describes. Not here are keys that come with tensors of their own, as those
of an indexer do in part: a tensor that nothing uses is refused anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jackfield_llm.config_rope import yarn_magnitude
from jackfield_llm.errors import shown
from jackfield_llm.hyperparameters import Config, Layer, Rope
from jackfield_llm.metadata import Keys

__all__ = ["CHANGING", "Changing", "check_unread"]

_CLOSE = 1e-6  # of what a file states as f32, in which 1/sqrt(96) is off by 3e-8


def _always(_config: Config) -> bool:
    return True


def _nothing(_config: Config) -> tuple[object, ...]:
    return ()


@dataclass(frozen=True)
class Changing:
    """A key that changes numbers.

    neutral: values that change nothing. own: more of them, what this model computes with anyway. matters: whether the
        model has what the key speaks of. longer: so are all above `own`.
    """

    neutral: tuple[object, ...] = (0,)
    own: Callable[[Config], tuple[object, ...]] = _nothing
    matters: Callable[[Config], bool] = _always
    longer: bool = False

    def wanted(self, config: Config) -> tuple[object, ...]:
        return tuple(dict.fromkeys((*self.neutral, *self.own(config))))

    def changes(self, value: object, config: Config) -> bool:
        """Whether this value makes another model of it; a list does when one of its entries does."""
        if not self.matters(config):
            return False
        if isinstance(value, Sequence) and not isinstance(value, str):
            return any(self.changes(entry, config) for entry in value)
        wanted = self.wanted(config)
        if self.longer and isinstance(value, int) and any(value >= own for own in wanted[1:] if isinstance(own, int)):
            return False
        return not any(_same(value, neutral) for neutral in wanted)


def check_unread(keys: Keys, config: Config) -> None:
    """Raises ModelError, by name, for a key that the architecture's reader did not heed and that changes numbers."""
    for name, key in CHANGING.items():
        value = keys.unread(name)
        if value is not None and key.changes(value, config):
            wanted = " or ".join(shown(neutral) for neutral in key.wanted(config)) or "absent"
            more = " or more" if key.longer else ""
            raise keys.wrong(name, value, f"{wanted}{more}: others in this architecture are not known here")


def _same(value: object, neutral: object) -> bool:
    if isinstance(value, (int, float)) and isinstance(neutral, (int, float)):
        return math.isclose(value, neutral, rel_tol=_CLOSE)
    return value == neutral


# ---- what a model has


def _slides(config: Config) -> Layer | None:
    """A layer with a window."""
    return next((layer for layer in config.layers if layer.window), None)


def _has_windows(config: Config) -> bool:
    return _slides(config) is not None


def _window_dims(config: Config) -> tuple[object, ...]:
    layer = _slides(config)
    return () if layer is None else (layer.rope.n_dims,)


def _local_base(config: Config) -> tuple[object, ...]:
    layer = _slides(config)
    return () if layer is None else (layer.rope.base,)


def _global_base(config: Config) -> tuple[object, ...]:
    """Of layers that see everything; encoders have none of these layers."""
    return tuple(layer.rope.base for layer in config.layers if not layer.window)


def _has_experts(config: Config) -> bool:
    return any(layer.experts is not None for layer in config.layers)


def _shared(config: Config) -> tuple[object, ...]:
    """Experts that every token takes: those with a gate are one."""
    return (1,) if any(layer.experts is not None and layer.experts.shared_gate for layer in config.layers) else ()


def _yarn(config: Config) -> Rope | None:
    ropes = [layer.rope for layer in config.layers]
    if config.encoder is not None and config.encoder.rope is not None:
        ropes.append(config.encoder.rope)
    return next((rope for rope in ropes if rope.ext_factor), None)


def _has_yarn(config: Config) -> bool:
    return _yarn(config) is not None


def _magnitude(config: Config) -> tuple[object, ...]:
    rope = _yarn(config)
    return () if rope is None else (yarn_magnitude(1.0 / rope.scale),)


def _has_temperature(config: Config) -> bool:
    return config.temperature is not None


def _temperature_length(config: Config) -> tuple[object, ...]:
    return () if config.temperature is None else (config.temperature.length,)


def _has_feed_forward(config: Config) -> bool:
    return config.inner > 0


def _activations(config: Config) -> tuple[object, ...]:
    """What the feed-forward's is called; RWKV's own, which takes the norms with biases, has no name."""
    if config.encoder is not None:
        return _ACTIVATIONS["silu"] if config.encoder.gated else ("gelu",)
    return () if config.layer_norms else _ACTIVATIONS[config.activation]


_ACTIVATIONS = {"silu": ("silu", "swish"), "gelu": ("gelu_pytorch_tanh", "gelu_tanh"), "limited": ()}
_NOT = Changing()
_FACTOR = Changing(neutral=(0, 1))  # 0 means that nothing is multiplied
_OFF = Changing(neutral=(False,))

CHANGING: dict[str, Changing] = {
    "activation.situ_beta": _NOT,
    "activation.situ_linear_beta": _NOT,
    "activation_sparsity_scale": _NOT,
    "attention.clamp_kqv": _NOT,
    "attention.compress_ratios": _NOT,
    "attention.indexer.block_size": _NOT,
    "attention.indexer.head_count": _NOT,
    "attention.indexer.kpool": _NOT,
    "attention.indexer.local_blocks": _NOT,
    "attention.indexer.top_k": _NOT,
    "attention.key_length_swa": Changing((), lambda c: (c.head_size,), _has_windows),
    "attention.max_alibi_bias": _NOT,
    "attention.output_scale": _FACTOR,
    "attention.rope_pattern": Changing(neutral=(True,)),
    "attention.scale": Changing(own=lambda c: (c.attention_scale,)),
    "attention.shared_kv_layers": _NOT,
    "attention.sliding_window": Changing(own=lambda c: (c.context,), longer=True),
    "attention.temperature_length": Changing((), _temperature_length, _has_temperature),
    "attention.temperature_scale": _NOT,
    "attention.value_length_swa": Changing((), lambda c: (c.value_size,), _has_windows),
    "attention.value_scale": _FACTOR,
    "attn_logit_softcapping": _NOT,
    "attn_res.block_size": _NOT,
    "embedding_length_out": Changing(own=lambda c: (c.width,)),
    "embedding_scale": Changing(own=lambda c: (c.embedding_scale,)),
    "expert_gating_func": Changing(neutral=(0, 1), matters=_has_experts),
    "expert_group_count": Changing(neutral=(0, 1), matters=_has_experts),
    "expert_group_scale": Changing(neutral=(0, 1), matters=_has_experts),
    "expert_shared_count": Changing(own=_shared, matters=_has_experts),
    "expert_weights_norm": Changing(neutral=(True,), matters=_has_experts),
    "expert_weights_scale": Changing(neutral=(0, 1), matters=_has_experts),
    "final_logit_softcapping": _NOT,
    "hidden_activation": Changing((), _activations, _has_feed_forward),
    "hrm.h_cycles": _FACTOR,
    "hrm.l_cycles": _FACTOR,
    "interleave_moe_layer_step": Changing(neutral=(0, 1), matters=_has_experts),
    "leading_dense_block_count": Changing(matters=_has_experts),
    "logit_scale": _FACTOR,
    "moe_every_n_layers": Changing(neutral=(0, 1), matters=_has_experts),
    "num_loops": _FACTOR,
    "rescale_every_n_layers": _NOT,
    "residual_scale": _FACTOR,
    "rope.dimension_count_swa": Changing((), _window_dims, _has_windows),
    "rope.global.freq_base": Changing((), _global_base),
    "rope.local.freq_base": Changing((), _local_base, _has_windows),
    "rope.scaling.alpha": _FACTOR,
    "rope.scaling.yarn_attn_factor": Changing((0, 1), _magnitude, _has_yarn),
    "rope.scaling.yarn_ext_factor": Changing(neutral=(1,), matters=_has_yarn),
    "rope.scaling.yarn_log_multiplier": Changing(matters=_has_yarn),
    "router_logit_softcapping": Changing(matters=_has_experts),
    "ssm.dt_b_c_rms": _OFF,
    "swiglu_clamp_exp": _NOT,
    "swiglu_clamp_shexp": _NOT,
    "swin_norm": _OFF,
    "use_parallel_residual": _OFF,
}
"""By name, without the architecture.

Source: the names that llama.cpp (build 11434) knows. Its converters write each for the architectures that heed it, but
for what they take from any model's settings: groups and gating of experts, YaRN's factors. Ollama's files of Gemma 3
have `rope.global` and `rope.local` for what is `rope.freq_base` and `rope.freq_base_swa` elsewhere.
"""
