"""The least predicted time for a list of decisions, each with a few devices to choose from. Numbers only.

A frontier search: decisions are taken in order, and of two partial answers that leave the same situation behind (device
of the last step, whereabouts of what is still needed) only the cheaper one lives. On a chain that is dynamic
programming, hence exact; on graphs the number of situations kept is bounded, so time stays linear in decisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["RUN_SECONDS", "Crossing", "Decision", "Problem", "predict", "solve"]

RUN_SECONDS = 2e-6  # fixed cost of one more run: a native call and its bookkeeping
_FEWEST, _MOST, _EFFORT = 12, 512, 6_000  # situations kept: about _EFFORT / decisions, within these bounds

_Link: TypeAlias = "tuple[_Link, int] | None"


@dataclass(slots=True)  # never changed, but hundreds are made, and frozen ones take three times as long
class Decision:
    """One step, or one state that looks for a home.

    seconds: by device, best listed first. uses: values it reads, each once. makes: the value it brings.
    tied: a value whose home must be this step's device. runs: a step, not a state.
    """

    seconds: Mapping[int, float]
    uses: tuple[int, ...]
    makes: int
    tied: int | None = None
    runs: bool = True


@dataclass(frozen=True, slots=True)
class Crossing:
    """One leg between a device and the host: seconds each, bytes a second."""

    launch: float
    rate: float

    def seconds(self, nbytes: int) -> float:
        return self.launch + nbytes / self.rate


@dataclass(frozen=True)
class Problem:
    """decisions: makers before users. legs: one a device. nbytes: by value, what a crossing moves.

    A value that no decision makes comes from the host. wanted: values that the host reads at the end.
    """

    decisions: Sequence[Decision]
    legs: Sequence[Crossing]
    nbytes: Mapping[int, int]
    wanted: frozenset[int]

    @property
    def host(self) -> int:
        """The host's number among the devices: the first free one."""
        return len(self.legs)

    def crossing(self, value: int, source: int, target: int) -> float:
        """Seconds to bring a value from one device, or the host, to another."""
        nbytes, host = self.nbytes[value], self.host
        total = self.legs[source].seconds(nbytes) if source != host else 0.0
        return total + (self.legs[target].seconds(nbytes) if target != host else 0.0)


def predict(problem: Problem, choice: Sequence[int]) -> float:
    """Seconds of a call with these devices: steps, runs, and every crossing once a value and device."""
    homes: dict[int, int] = {}
    held: set[tuple[int, int]] = set()
    total, last = 0.0, -1
    for decision, device in zip(problem.decisions, choice, strict=True):
        total += decision.seconds[device]
        if decision.runs and device != last:
            total, last = total + RUN_SECONDS, device
        for value in decision.uses:
            home = homes.get(value, problem.host)
            if home != device and (value, device) not in held:
                held.add((value, device))
                total += problem.crossing(value, home, device)
        homes[decision.makes] = device
        if decision.makes in problem.wanted:
            total += problem.crossing(decision.makes, device, problem.host)
    return total


def solve(problem: Problem) -> tuple[list[int], float]:
    """A device for every decision, and the predicted seconds. Never worse than one device for all that it can take.

    Ties go to devices listed earlier. Every decision needs at least one device; tied ones must share one with the rest.
    """
    best: tuple[list[int], float] | None = None
    for device in range(problem.host):
        choice = _mostly(problem, device)
        if choice is not None:
            seconds = predict(problem, choice)
            if best is None or seconds < best[1]:
                best = choice, seconds
    if best is not None and (problem.host == 1 or best[1] <= _bound(problem) * (1 + 1e-9)):
        return best
    found = _frontier(problem)
    if best is None or (found is not None and found[1] < best[1] * (1 - 1e-12)):
        assert found is not None, "every decision has a device"
        return found
    return best


def _mostly(problem: Problem, device: int) -> list[int] | None:
    """One device wherever it takes the step, the first listed one elsewhere; None if a tie forbids it."""
    homes: dict[int, int] = {}
    choice = []
    for decision in problem.decisions:
        taken = device if device in decision.seconds else next(iter(decision.seconds))
        if decision.tied is not None:
            taken = homes[decision.tied]
            if taken not in decision.seconds:
                return None
        homes[decision.makes] = taken
        choice.append(taken)
    return choice


def _bound(problem: Problem) -> float:
    """Seconds no answer can beat: the cheapest device for every step, the cheapest leg for all that meets the host."""
    made = {d.makes for d in problem.decisions}
    total = RUN_SECONDS if any(d.runs for d in problem.decisions) else 0.0
    devices = range(problem.host)
    entering = {value for d in problem.decisions for value in d.uses if value not in made}
    for value in sorted(entering):
        total += min(problem.crossing(value, problem.host, d) for d in devices)
    for decision in problem.decisions:
        total += min(decision.seconds.values())
        if decision.makes in problem.wanted:
            total += min(problem.crossing(decision.makes, d, problem.host) for d in decision.seconds)
    return total


class _Frontier:
    """Which values still matter after each decision, and where each partial answer has them.

    A value's whereabouts are one integer: its home in the high bits, a bit for every device that holds it in the low.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.shift = problem.host
        self.live: list[int] = []
        self.last_use: dict[int, int] = {}
        for k, decision in enumerate(problem.decisions):
            for value in decision.uses if decision.tied is None else (*decision.uses, decision.tied):
                self.last_use[value] = k

    def enter(self, decision: Decision) -> int:
        """Values from the host that this decision is the first to read: how many joined."""
        known = set(self.live)
        fresh = [value for value in decision.uses if value not in known]
        self.live += fresh
        return len(fresh)

    def leave(self, k: int, decision: Decision) -> tuple[list[int], bool]:
        """Positions that live on after decision k, and whether its own value does."""
        kept = [i for i, value in enumerate(self.live) if self.last_use[value] > k]
        stays = decision.makes in self.last_use
        self.live = [self.live[i] for i in kept] + ([decision.makes] if stays else [])
        return kept, stays


def _frontier(problem: Problem) -> tuple[list[int], float] | None:
    width = max(_FEWEST, min(_MOST, _EFFORT // max(1, len(problem.decisions))))
    frontier = _Frontier(problem)
    shift, host = frontier.shift, problem.host
    beam: list[tuple[float, int, tuple[int, ...], _Link]] = [(0.0, -1, (), None)]
    for k, decision in enumerate(problem.decisions):
        joined = (host << shift,) * frontier.enter(decision)
        uses = [(frontier.live.index(value), value) for value in decision.uses]
        tied = None if decision.tied is None else frontier.live.index(decision.tied)
        kept, stays = frontier.leave(k, decision)
        found: dict[tuple[int, tuple[int, ...]], tuple[float, int, tuple[int, ...], _Link]] = {}
        for cost, last, held, link in beam:
            places = held + joined
            for device, seconds in decision.seconds.items():
                if tied is not None and places[tied] >> shift != device:
                    continue
                total, after = _step(problem, decision, (cost + seconds, last, places), device, uses, shift)
                left = tuple([after[i] for i in kept])
                if stays:
                    left += ((device << shift) | (1 << device),)
                run = device if decision.runs else last
                old = found.get((run, left))
                if old is None or total < old[0]:
                    found[run, left] = (total, run, left, (link, device))
        beam = sorted(found.values(), key=_cost)[:width]
    if not beam:
        return None
    cost, _, _, link = beam[0]
    choice = []
    while link is not None:
        link, device = link
        choice.append(device)
    return choice[::-1], cost


def _cost(entry: tuple[float, int, tuple[int, ...], _Link]) -> float:
    return entry[0]


def _step(
    problem: Problem,
    decision: Decision,
    before: tuple[float, int, tuple[int, ...]],
    device: int,
    uses: Sequence[tuple[int, int]],
    shift: int,
) -> tuple[float, Sequence[int]]:
    """Cost so far and whereabouts after one decision on one device."""
    total, last, places = before
    after: list[int] | tuple[int, ...] = places
    if decision.runs and device != last:
        total += RUN_SECONDS
    for position, value in uses:
        where = places[position]
        if not where >> device & 1:
            total += problem.crossing(value, where >> shift, device)
            if after is places:
                after = list(places)
            after[position] = where | (1 << device)  # type: ignore[index]
    if decision.makes in problem.wanted:
        total += problem.crossing(decision.makes, device, problem.host)
    return total, after
