"""Absolute goals: what they come to on the machine of a run, and whether a figure reaches them.

A goal is written down for the reference machine. Elsewhere a rate is the same share of the peak measured in the run
as the goal is of the reference machine's peak; a time is the same part of the peer's, measured in the run, as the goal
is of the peer's there. Bytes of memory and times of plain Python are taken as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from machine import is_reference
from roofline import REFERENCE, Roofline, read_rate
from targets import FIRST_LONG_S, FIRST_SHORT_S, MATMUL, MATMUL_ROW, MEMORY, PEER_LONG_S, PEER_SHORT_S


@dataclass(frozen=True)
class Aim:
    """One absolute goal. reference, here: on the reference machine and on this. unit: (name, how many make one).

    scale: what took it from there to here, empty where nothing did. most: whether figures must be below it.
    """

    reference: float
    here: float
    unit: tuple[str, float]
    scale: str = ""
    most: bool = False

    def told(self) -> str:
        """The goal in words, of both machines."""
        name, factor = self.unit
        words = f"at {'most' if self.most else 'least'} {self.here / factor:.4g} {name}"
        there = f" ({self.reference / factor:.4g} on the reference machine, by {self.scale})"
        return words + (there if self.scale else "")

    def judged(self, figure: float, *, void: str = "", samples: Sequence[float] = ()) -> dict[str, Any]:
        """The part of a document: figure, goal of both machines, and the verdict in words. void: why none counts.

        samples: figures of single rounds; where some reach the goal and others don't, the verdict is `noisy`.
        """
        met = self.reached(figure)
        told = f"{'met' if met else 'missed'} ({self.told()})"
        if len({self.reached(sample) for sample in samples}) > 1:
            name, factor = self.unit
            ends = f"{min(samples) / factor:.4g} to {max(samples) / factor:.4g} {name}"
            told = f"noisy: {ends} in single rounds; by the median {told}"
        return {
            "figure": figure,
            "goal_on_reference": self.reference,
            "goal_here": self.here,
            "scaled_by": self.scale,
            "unit": self.unit[0],
            "verdict": f"void: {void}" if void else told,
        }

    def reached(self, figure: float) -> bool:
        return figure <= self.here if self.most else figure >= self.here


GOPS, MS, MB = ("GOPS", 1e9), ("ms", 1e-3), ("MB", 1e6)


def peak_aim(goal: float, kind: str, threads: int, peaks: Roofline, unit: tuple[str, float] = GOPS) -> Aim:
    """A rate that is bound by a peak: an arithmetic's, or "read", whatever the pages."""
    if is_reference():
        return Aim(goal, goal, unit)
    if kind == "read":
        return Aim(goal, goal * read_rate(peaks, threads) / read_rate(REFERENCE, threads), unit, "the rate of reading")
    return Aim(goal, goal * peaks[kind][threads] / REFERENCE[kind][threads], unit, f"the peak of {kind}")


def peer_aim(goal: float, there: float, here: float | None) -> Aim:
    """Seconds at most, by those of llama.cpp there and in this run."""
    if is_reference() or here is None:
        return Aim(goal, goal, MS, most=True)
    return Aim(goal, goal * here / there, MS, "llama.cpp's time", most=True)


def matmul_aim(dtype: str, rows: int, heat: str, threads: int, peaks: Roofline) -> Aim | None:
    """Operations a second of a product of 4096 x 4096; None where there is no goal.

    One row is bound by bringing the weight, hot from a cache whose rate nobody knows of the reference machine: both
    goals of it move with the rate of reading.
    """
    if threads != 1:
        return None
    if rows == 1 and dtype == "q4_0":
        return peak_aim(MATMUL_ROW[heat], "read", threads, peaks)
    if rows == 512 and heat == "hot" and dtype in MATMUL:
        return peak_aim(MATMUL[dtype], "int8", threads, peaks)
    return None


Times = Mapping[str, Sequence[Mapping[str, float]]]


def first_goals(model: str, times: Times, void: str) -> dict[str, dict[str, Any]]:
    """Verdicts on the times to a first token of the default model, 32 and 512 tokens, two threads; else none."""
    ours = times.get("jackfield")
    if model != "Q4_1" or not ours:
        return {}
    found = {}
    for name, goal, there in (("first_short", FIRST_SHORT_S, PEER_SHORT_S), ("first_long", FIRST_LONG_S, PEER_LONG_S)):
        peer = times.get("llama.cpp")
        aim = peer_aim(goal, there, middle(peer, name) if peer else None)
        lacking = "" if peer or is_reference() else "llama.cpp has no time to scale the goal by"
        rounds = [middle([one], name) for one in ours]
        found[name] = aim.judged(middle(ours, name), void=void or lacking, samples=rounds)
    return found


def middle(samples: Sequence[Mapping[str, float]], name: str) -> float:
    """Median seconds of loading and the first short prompt, or of the long one."""
    if name == "first_short":
        return median(one["load_s"] + one["short_s"] for one in samples)
    return median(one["long_s"] for one in samples)


def memory_goals(model: str, sizes: Mapping[int, Mapping[str, int]]) -> dict[str, dict[str, Any]]:
    """Verdicts on the largest resident size at each number of threads; the default model's goal leaves out an
    interpreter with our imports.
    """
    found = {}
    for threads, one in sizes.items():
        if model in MEMORY and "jackfield" in one:
            goal = MEMORY[model] + (one["imports"] if model == "Q4_1" else 0)
            found[f"memory_{threads}"] = Aim(goal, goal, MB, most=True).judged(one["jackfield"])
    return found


def counted(verdicts: Sequence[str]) -> dict[str, int]:
    """How many goals are met, missed, void and, where some are, noisy."""
    words = [verdict.partition(" ")[0].rstrip(":") for verdict in verdicts if verdict]
    kinds = ("met", "missed", "void", *(["noisy"] if "noisy" in words else []))
    return {kind: words.count(kind) for kind in kinds}
