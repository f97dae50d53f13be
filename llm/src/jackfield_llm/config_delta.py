"""What a model file says of layers with a gated delta net (Qwen3-Next, Qwen 3.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jackfield_llm.hyperparameters import Delta, Experts
from jackfield_llm.metadata import Keys

__all__ = ["check_sections", "layers_without_attention", "read_delta", "with_gated_shared"]

_MOST_TAPS = 64  # the models known have 4


def read_delta(keys: Keys) -> Delta:
    """Heads and taps. Source: names as llama.cpp (build 11434) reads them."""
    size, heads = keys.integer("ssm.state_size"), keys.integer("ssm.time_step_rank")
    key_heads = keys.integer("ssm.group_count")
    if heads % key_heads:
        raise keys.wrong("ssm.group_count", key_heads, f"a divisor of the {heads} heads of ssm.time_step_rank")
    if keys.integer("ssm.inner_size") != heads * size:
        raise keys.wrong("ssm.inner_size", keys.get("ssm.inner_size"), f"{heads * size}, {heads} heads of {size}")
    taps = keys.integer("ssm.conv_kernel", lowest=2, highest=_MOST_TAPS)
    return Delta(taps=taps, key_heads=key_heads, heads=heads, size=size)


def layers_without_attention(keys: Keys) -> list[bool]:
    """Which layers have a delta net: as the file lists them, or all but every n-th.

    The list has entries for layers that predict further tokens too.
    """
    name = "attention.recurrent_layers"
    listed = keys.get(name)
    if listed is None:
        period = keys.integer("full_attention_interval", 4)
        return [(i + 1) % period != 0 for i in range(keys.layers())]
    is_list = isinstance(listed, Sequence) and not isinstance(listed, str)
    if not is_list or len(listed) != keys.blocks() or not all(isinstance(entry, (bool, int)) for entry in listed):
        raise keys.wrong(name, listed, f"{keys.blocks()} flags, one a layer")
    return [bool(entry) for entry in listed[: keys.layers()]]


def check_sections(keys: Keys) -> None:
    """Pairs of a head turn by a token's time, row or column, which in a text are one: if each turns by one of them.

    Source: llama.cpp (build 11434), where pair i goes by entry i % 3 as long as i // 3 is below it.
    """
    name = "rope.dimension_sections"
    if keys.get(name) is None:
        raise keys.lacks(name)
    sections = keys.get(name)
    is_list = isinstance(sections, Sequence) and not isinstance(sections, str)
    counts = is_list and all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= 2**15 for n in sections)
    if not counts or len(sections) != 4 or not sum(sections):
        raise keys.wrong(name, sections, "4 counts of pairs that are not all 0")
    if any(i // 3 >= sections[i % 3] for i in range(sum(sections))):
        raise keys.wrong(name, sections, "so that each pair turns by time, row or column, which a text has")


def with_gated_shared(keys: Keys, experts: Experts, inner: int) -> Experts:
    """The experts with one that every token takes, as far as its gate lets it.

    inner: `feed_forward_length`, of which an expert has its part where the file does not say more.
    """
    width = experts.inner if keys.get("expert_feed_forward_length") is not None else max(1, inner // experts.used)
    shared = keys.integer("expert_shared_feed_forward_length", inner, lowest=0) or inner
    return replace(experts, inner=width, shared_inner=shared, shared_gate=True)
