"""What measurements mean: whether a side's output is right, which figures count, ratios and shares of the roofline.

Pure functions on data; compare_llama.py measures.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from machine import is_reference
from roofline import Roofline, read_rate
from sides import Task
from targets import TARGETS, goal_ratio, reached, too_slow, verdict

OURS = "jackfield"
POSSIBLE = 1.0
"""The share of the roofline that nothing can be above."""
NOISE = 0.1
"""The part of the median by which samples of one row differ on a quiet machine at most."""
FURTHEST_MEAN = 0.1
"""Nats by which the mean of -log probabilities may differ between right sides: 10 % of the perplexity."""
FURTHEST_RMS = 0.5
"""Nats a token: kernels that round differently are at 0.02 to 0.1, a broken one is above 1, also on random weights."""


@dataclass(frozen=True)
class Row:
    """The samples of one task at one number of threads, in tokens a second, by side; ours is OURS."""

    model: str
    task: Task
    threads: int
    samples: Mapping[str, Sequence[float]]


def noisy(samples: Sequence[float]) -> bool:
    """Whether they lie so far apart that the machine had other work meanwhile."""
    return max(samples) - min(samples) > NOISE * median(samples)


def spread(ours: Sequence[float], peers: Mapping[str, Sequence[float]]) -> tuple[float, float] | None:
    """Least and largest ratio of ours to the best of `peers` over the rounds in which every side was measured once.

    None of fewer than two rounds, or where nobody is to be compared with.
    """
    rounds = min([len(ours), *map(len, peers.values())])
    if not peers or rounds < 2:
        return None
    ratios = [ours[i] / max(samples[i] for samples in peers.values()) for i in range(rounds)]
    return min(ratios), max(ratios)


def undecided(goal: float | None, between: tuple[float, float] | None) -> bool:
    """Whether some rounds of a row reached the goal and others did not: its samples lie further apart than the median
    is from the goal, so another run may say the opposite.
    """
    return goal is not None and between is not None and between[0] < goal <= between[1]


def perplexity(surprises: Sequence[float]) -> float:
    """Infinity where it is too large for a number, NaN where one of them is."""
    mean = sum(surprises) / len(surprises)
    return math.exp(mean) if not mean > 700 else math.inf


def why_wrong(reference: Sequence[float], found: Sequence[float]) -> str | None:
    """Why these -log probabilities can't come from the same model as `reference`, in words; None where they can."""
    if not all(map(math.isfinite, found)):
        return "gives NaN"
    differences = [a - b for a, b in zip(found, reference, strict=True)]
    if not abs(sum(differences) / len(differences)) <= FURTHEST_MEAN:
        return f"perplexity {perplexity(found):.1f} instead of {perplexity(reference):.1f}"
    rms = math.sqrt(sum(d * d for d in differences) / len(differences))
    return None if rms <= FURTHEST_RMS else f"log probabilities move by {rms:.2f}"


def quality(scores: Mapping[str, Mapping[str, Sequence[float]]], reference: str) -> dict[str, dict[str, Any]]:
    """By side, for prompts and for tokens one by one: the perplexity, and why it is wrong (None where it is right)."""
    parts = {"prompt": "batch", "generate": "single"}
    return {
        side: {
            kind: {
                "perplexity": perplexity(found[part]),
                "wrong": why_wrong(scores[reference][part], found[part]),
            }
            for kind, part in parts.items()
        }
        for side, found in scores.items()
    }


def share(facts: Mapping[str, Any], task: Task, threads: int, tokens_per_s: float, roofline: Roofline) -> float:
    """The part of what the machine can do at most that a speed amounts to.

    Prompts: multiply-adds of the matrix products, logits of the last token only, against the peak of the arithmetic.
    Generation: bytes of weights and of the cache as long as it is in the middle, against the read rate.
    """
    if task.kind == "prompt":
        peak = roofline.get(facts["arithmetic"], roofline["f32"])[threads]
        return tokens_per_s * (facts["block_ops"] + facts["output_ops"] / task.tokens) / peak
    columns = task.depth + task.tokens / 2
    return tokens_per_s * (facts["weight_nbytes"] + columns * facts["column_nbytes"]) / read_rate(roofline, threads)


def wrong_sides(row: Row, found: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """By side, why its output is wrong, so that its figure of this row does not count."""
    wrong = {side: found.get(side, {}).get(row.task.kind, {}).get("wrong") for side in row.samples}
    return {side: f"wrong output: {why}" for side, why in wrong.items() if why}


def unfit_peers(
    row: Row, native: Mapping[str, bool], wrong: Mapping[str, str], *, reference_machine: bool
) -> dict[str, str]:
    """By side, why the peer is not at its best here, so that nothing can be concluded from this row at all."""
    reasons = {side: "not built for this CPU" for side in row.samples if not native.get(side, True)}
    if reference_machine and row.task.depth == 0:
        reasons.update(slow_peers(row, {**wrong, **reasons}))
    return reasons


def slow_peers(row: Row, void: Mapping[str, str]) -> dict[str, str]:
    """Peers of which no way of running comes near what was seen on the reference machine."""
    reasons = {}
    for peer in ("llama.cpp", "ik_llama.cpp"):
        sides = {s: median(v) for s, v in row.samples.items() if s.startswith(peer) and s not in void}
        slow = sides and too_slow(row.model, row.task.kind, peer, row.threads, max(sides.values()))
        if slow:
            reasons.update(dict.fromkeys(sides, slow))
    return reasons


def goal_of(
    row: Row,
    ratios: Mapping[str, float],
    part: float,
    wrong: Mapping[str, str],
    unfit: Mapping[str, str],
    least: float | None,
    between: tuple[float, float] | None,
) -> str:
    """`met`, `missed`, `noisy` or `void`, and why. least: a goal in place of the table's. between: see `spread`."""
    if unfit:
        return "void: " + "; ".join(dict.fromkeys(f"{side}: {why}" for side, why in unfit.items()))
    if OURS in wrong:
        return f"missed (our {wrong[OURS]})"
    told = verdict(row.model, row.task.kind, ratios, part) if least is None else reached(least, ratios)
    asked = goal_ratio(row.model, row.task.kind) if least is None else least
    if told and "bandwidth" not in told and undecided(asked, between):
        low, high = between or (0.0, 0.0)
        return f"noisy: {low:.2f} to {high:.2f} times in single rounds; by the medians {told}"
    return told or "void: no peer that counts has a figure"


def counting(row: Row, peers: Collection[str]) -> dict[str, Sequence[float]]:
    """Samples of those peers that the row's goal is about."""
    target = TARGETS.get((row.model, row.task.kind))
    return {side: row.samples[side] for side in peers if side.startswith(target.against if target else "")}


def too_high(above: Mapping[str, float]) -> str:
    """Why the roofline of a row is none; empty where it may be one. above: sides and shares that can't be."""
    sides = ", ".join(f"{side} at {part:.0%}" for side, part in above.items())
    return sides and f"{sides}: the roofline was measured too low, so no share of it counts"


def judged(
    row: Row,
    facts: Mapping[str, Any],
    found: Mapping[str, Mapping[str, Any]],
    native: Mapping[str, bool],
    roofline: Roofline,
    *,
    targets: bool,
    least: float | None = None,
) -> dict[str, Any]:
    """A row of the result. `targets`: whether the run is one that the table of targets speaks of. least: a goal for
    every row, in place of the table: so many times the better peer whose output is right.

    A side with wrong output does not count. A peer that is not at its best makes the whole row void: what is left
    would be a weaker peer.
    """
    wrong = wrong_sides(row, found)
    unfit = unfit_peers(row, native, wrong, reference_machine=targets and is_reference())
    middle = {side: median(values) for side, values in row.samples.items()}
    peers = {side: value for side, value in middle.items() if side != OURS and side not in wrong and not unfit}
    ours = middle.get(OURS) if OURS not in wrong else None
    ratios = {side: ours / value for side, value in peers.items()} if ours else {}
    parts = {side: share(facts, row.task, row.threads, value, roofline) for side, value in middle.items()}
    above = {side: part for side, part in parts.items() if part > POSSIBLE}
    between = spread(row.samples[OURS], counting(row, peers)) if ours else None
    goal = ""
    in_table = targets and row.task.depth == 0 and (row.model, row.task.kind) in TARGETS
    if OURS in middle and (in_table or least is not None):
        goal = goal_of(row, ratios, 0.0 if above else parts[OURS], wrong, unfit, least, between)
    return {
        "task": row.task.kind,
        "tokens": row.task.tokens,
        "depth": row.task.depth,
        "threads": row.threads,
        "samples": {side: list(values) for side, values in row.samples.items()},
        "median": middle,
        "share_of_roofline": parts,
        "roofline_void": too_high(above),
        "void": {**wrong, **unfit},
        "noisy": [side for side, values in row.samples.items() if noisy(values)],
        "better_peer": max(peers, key=peers.__getitem__, default=None),
        "ratio": min(ratios.values(), default=None),
        "ratio_of_rounds": between,
        "goal": goal,
    }
