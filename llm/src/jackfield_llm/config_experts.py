"""What a model file says of its experts."""

from __future__ import annotations

from jackfield_llm.hyperparameters import Experts
from jackfield_llm.metadata import Keys

__all__ = ["read_experts"]

_MOST_EXPERTS = 4096  # the largest models known have 512
_GATING = {0: "softmax", 1: "softmax", 2: "sigmoid"}  # 0: the file leaves it open


def read_experts(keys: Keys, *, inner: int, normed: bool) -> Experts | None:
    """The experts of a layer, or None where the file has none.

    inner: width of an expert where the file does not say it. normed: the weights of the chosen are divided by their
        sum.
    Source: names and defaults as llama.cpp (build 11434) reads them.
    """
    count = keys.integer("expert_count", 0, lowest=0, highest=_MOST_EXPERTS)
    if not count:
        return None
    inner = keys.integer("expert_feed_forward_length", inner)
    groups = keys.integer("expert_group_count", 1, lowest=0) or 1
    experts = Experts(
        count=count,
        used=keys.integer("expert_used_count", highest=count),
        inner=inner,
        shared_inner=inner * keys.integer("expert_shared_count", 0, lowest=0, highest=_MOST_EXPERTS),
        gating=_gating(keys),
        normed=normed,
        scale=keys.factor("expert_weights_scale", 1.0),
        groups=groups,
        groups_used=keys.integer("expert_group_used_count", highest=groups) if groups > 1 else 1,
    )
    _check_groups(keys, experts)
    return experts


def _gating(keys: Keys) -> str:
    number = keys.integer("expert_gating_func", 0, lowest=0)
    if number not in _GATING:
        raise keys.wrong("expert_gating_func", number, "1 (softmax) or 2 (sigmoid), which are known here")
    return _GATING[number]


def _check_groups(keys: Keys, experts: Experts) -> None:
    """Groups are judged by their two best, and must hold as many experts as a token takes."""
    if experts.groups == 1:
        return
    size = experts.count // experts.groups
    if experts.count % experts.groups or size < 2:
        raise keys.wrong(
            "expert_group_count", experts.groups, f"so that the {experts.count} experts make groups of two or more"
        )
    if experts.groups_used * size < experts.used:
        raise keys.wrong(
            "expert_group_used_count", experts.groups_used, f"enough groups of {size} for {experts.used} experts"
        )
