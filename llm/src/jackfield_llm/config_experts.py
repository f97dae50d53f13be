"""What a model file says of its experts."""

from __future__ import annotations

from dataclasses import replace

from jackfield_llm.hyperparameters import Experts
from jackfield_llm.metadata import Keys

__all__ = ["read_experts", "read_grouped", "read_routed"]

_MOST_EXPERTS = 4096  # the largest models known have 512
_GATING = {0: "softmax", 1: "softmax", 2: "sigmoid"}  # 0: the file leaves it open


def read_experts(keys: Keys, inner: int) -> Experts | None:
    """The experts of a layer, or None where the file has none: softmax, the weights of the chosen sum to one.

    inner: width of an expert where the file does not say it.
    Source: names and defaults as llama.cpp (build 11434) reads them, and which architectures heed them; likewise below.
    """
    count = keys.integer("expert_count", 0, lowest=0, highest=_MOST_EXPERTS)
    if not count:
        return None
    return Experts(
        count=count,
        used=keys.integer("expert_used_count", highest=count),
        inner=keys.integer("expert_feed_forward_length", inner),
    )


def read_grouped(keys: Keys, inner: int) -> Experts | None:
    """The same, where the file may limit the choice to groups."""
    experts = read_experts(keys, inner)
    if experts is None:
        return None
    groups = keys.integer("expert_group_count", 1, lowest=0) or 1
    if groups == 1:
        return experts
    used = keys.integer("expert_group_used_count", highest=groups)
    experts = replace(experts, groups=groups, groups_used=used)
    _check_groups(keys, experts)
    return experts


def read_routed(keys: Keys, inner: int) -> Experts | None:
    """The same, where the file also says how scores become weights, and what every token takes besides."""
    experts = read_grouped(keys, inner)
    if experts is None:
        return None
    return replace(
        experts,
        shared_inner=experts.inner * keys.integer("expert_shared_count", 0, lowest=0, highest=_MOST_EXPERTS),
        gating=_gating(keys),
        normed=keys.flag("expert_weights_norm"),
        scale=keys.factor("expert_weights_scale", 1.0),
    )


def _gating(keys: Keys) -> str:
    number = keys.integer("expert_gating_func", 0, lowest=0)
    if number not in _GATING:
        raise keys.wrong("expert_gating_func", number, "1 (softmax) or 2 (sigmoid), which are known here")
    return _GATING[number]


def _check_groups(keys: Keys, experts: Experts) -> None:
    """Groups are judged by their two best, and must hold as many experts as a token takes."""
    size = experts.count // experts.groups
    if experts.count % experts.groups or size < 2:
        raise keys.wrong(
            "expert_group_count", experts.groups, f"so that the {experts.count} experts make groups of two or more"
        )
    if experts.groups_used * size < experts.used:
        raise keys.wrong(
            "expert_group_used_count", experts.groups_used, f"enough groups of {size} for {experts.used} experts"
        )
