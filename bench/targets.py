"""What was seen of the peers on the reference machine, and how much of the better one ours must reach.

Figures are tokens a second at 1 and 2 threads, medians of alternating runs. They are no results: they tell whether a
peer runs as fast as it should, on the reference machine alone. A goal is a ratio to a peer measured in the same run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ENOUGH = 0.8
"""A run on the reference machine is void where a peer gives less than this part of what was seen there."""
BANDWIDTH = 0.9
"""The part of the measured bandwidth that counts as reaching the goal."""

EXCUSED = 0.9
"""A missed goal is excused from this share of the measured roofline on."""


@dataclass(frozen=True)
class Target:
    """One row of the table. goal: times the better peer (`against` names one where only that one counts).

    bandwidth: whether BANDWIDTH of the read rate will do instead.
    """

    seen: Mapping[str, tuple[float, float]]
    goal: float
    against: str = ""
    bandwidth: bool = False


def _target(
    llama: tuple[float, float],
    ik: tuple[float, float],
    goal: float,
    against: str = "",
    *,
    bandwidth: bool = False,
) -> Target:
    return Target({"llama.cpp": llama, "ik_llama.cpp": ik}, goal, against, bandwidth)


TARGETS: Mapping[tuple[str, str], Target] = {
    # ik's Q4_1 was seen with its matrix kernel mended; as shipped its output is wrong; peer_sources.py mends it.
    ("Q4_1", "prompt"): _target((169, 317), (704, 1226), 1.2),
    ("Q4_0", "prompt"): _target((462, 895), (744, 1269), 1.2),
    ("Q8_0", "prompt"): _target((390, 779), (767, 1342), 1.2),
    ("IQ4_NL", "prompt"): _target((454, 888), (733, 1076), 1.2),
    ("1.1B-Q4_0", "prompt"): _target((66, 131), (109, 216), 1.15),
    ("1.1B-Q4_K_M", "prompt"): _target((107, 205), (105, 198), 1.15),
    ("1.1B-Q8_0", "prompt"): _target((53, 105), (113, 215), 1.15),
    ("BF16", "prompt"): _target((538, 965), (755, 1368), 1.05),
    ("F16", "prompt"): _target((347, 673), (760, 1199), 1.1, "llama.cpp"),  # ik computes it in bf16
    ("Q4_1", "generate"): _target((87, 130), (136, 209), 1.2),
    ("Q4_0", "generate"): _target((159, 224), (222, 315), 1.1),
    ("Q8_0", "generate"): _target((107, 143), (137, 190), 1.1),
    ("IQ4_NL", "generate"): _target((166, 230), (131, 202), 1.2),
    ("1.1B-Q4_0", "generate"): _target((30, 52), (41, 50), 1.05, bandwidth=True),
    ("1.1B-Q4_K_M", "generate"): _target((33, 54), (41, 70), 1.05, bandwidth=True),
    ("1.1B-Q8_0", "generate"): _target((18, 27), (25, 45), 1.05, bandwidth=True),
}
"""By model and task: a prompt of 512, a generation of 128 (32 for the 1.1B) from an empty cache."""

FIRST_SHORT_S = 0.130
"""Seconds of loading and the first token of 32 tokens, default model, 2 threads, packing included."""
FIRST_LONG_S = 0.350
"""Seconds of the first token of 512 tokens, default model, 2 threads, loaded."""
PEER_SHORT_S, PEER_LONG_S = 0.084 + 0.092, 1.607
"""What llama.cpp takes for these two on the reference machine."""
MEMORY = {"Q4_1": 143_000_000, "1.1B-Q4_0": 800_000_000}
"""Bytes of resident memory at most, an interpreter with the same imports left out of the first."""


def too_slow(model: str, task: str, peer: str, threads: int, tokens_per_s: float) -> str | None:
    """Why a peer's figure on the reference machine can't be believed, in words; None where it can or none is known."""
    target = TARGETS.get((model, task))
    if target is None or threads not in {1, 2}:
        return None
    seen = target.seen[peer][threads - 1]
    if tokens_per_s >= ENOUGH * seen:
        return None
    return f"{peer} at {tokens_per_s:.0f} t/s is below {ENOUGH} of the {seen:.0f} seen on the reference machine"


def verdict(model: str, task: str, ratios: Mapping[str, float], share: float) -> str:
    """`met` or `missed`, with the goal; empty where there is none. ratios: to each peer whose figure counts."""
    target = TARGETS.get((model, task))
    counted = [ratio for peer, ratio in ratios.items() if target and peer.startswith(target.against)]
    if target is None or not counted:
        return ""
    if min(counted) >= target.goal:
        return f"met ({target.goal} times)"
    if target.bandwidth and share >= BANDWIDTH:
        return f"met ({BANDWIDTH:.0%} of the bandwidth)"
    excused = f", at {share:.0%} of the roofline" if share >= EXCUSED else ""
    return f"missed ({target.goal} times{excused})"


def goal_ratio(model: str, task: str) -> float | None:
    """How many times the better peer the table asks for; None where it has no such row."""
    target = TARGETS.get((model, task))
    return target.goal if target else None


def reached(least: float, ratios: Mapping[str, float]) -> str:
    """`met` or `missed` of a goal that no table has: so many times every peer; empty where no peer's figure counts."""
    if not ratios:
        return ""
    return f"{'met' if min(ratios.values()) >= least else 'missed'} ({least:.4g} times)"


MATMUL: Mapping[str, float] = {
    **dict.fromkeys(("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "mxfp4"), 300e9),
    **dict.fromkeys(("q4_K", "q5_K"), 280e9),
    **dict.fromkeys(("q2_K", "q3_K", "q6_K", "iq4_xs"), 200e9),
}
"""Operations a second of `linear` by type: 512 rows, K = N = 4096, one thread, on the reference machine."""
MATMUL_ROW = {"hot": 110e9, "cold": 75e9}
"""The same of one row with a q4_0 weight, from the cache and from memory."""
COPIES_SHARE = 0.5
"""Memory-bound kernels at 16 MiB reach this part of the rate of copying."""
CALL_S = 10e-6
"""Seconds of a call of a plan with one tiny op, whatever the machine."""
STEP_S = {1: 0.05e-6, 2: 0.1e-6}
"""Seconds of an op in a run, by threads, whatever the machine."""
