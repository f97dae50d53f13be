"""What a model file says of Mamba's layers."""

from __future__ import annotations

from jackfield_llm.config_recurrent import without_attention
from jackfield_llm.hyperparameters import Config, Mamba, Mamba2, RecurrentKind
from jackfield_llm.metadata import Keys

__all__ = ["read_mamba", "read_mamba2"]


def read_mamba(keys: Keys) -> Config:
    """Every channel has a step size of its own. Source: names and defaults as llama.cpp (build 11434) reads them."""
    inner, state, taps = _sizes(keys)
    mixer = Mamba(
        inner=inner,
        state=state,
        taps=taps,
        rank=keys.integer("ssm.time_step_rank"),
        normed=keys.flag("ssm.dt_b_c_rms"),
    )
    return _model(keys, mixer, RecurrentKind(taps - 1, snapshots=False))


def read_mamba2(keys: Keys) -> Config:
    """Heads of channels share a step size, groups of heads what is taken in and read out. Source: likewise."""
    inner, state, taps = _sizes(keys)
    heads, groups = keys.integer("ssm.time_step_rank"), keys.integer("ssm.group_count")
    if inner % heads:
        raise keys.wrong("ssm.time_step_rank", heads, f"a divisor of the {inner} channels: the heads")
    if heads % groups:
        raise keys.wrong("ssm.group_count", groups, f"a divisor of the {heads} heads")
    mixer = Mamba2(inner=inner, state=state, taps=taps, heads=heads, groups=groups)
    return _model(keys, mixer, RecurrentKind(taps - 1, snapshots=True))


def _sizes(keys: Keys) -> tuple[int, int, int]:
    """Channels, numbers of the state a channel, taps of the convolution."""
    return (
        keys.integer("ssm.inner_size"),
        keys.integer("ssm.state_size"),
        keys.integer("ssm.conv_kernel", lowest=2),
    )


def _model(keys: Keys, mixer: Mamba | Mamba2, recurrent: RecurrentKind) -> Config:
    """Layers without a feed-forward too: what files say of its width is 0 and not read."""
    eps = keys.number("attention.layer_norm_rms_epsilon")
    return without_attention(keys, mixer, inner=0, eps=eps, recurrent=recurrent)
