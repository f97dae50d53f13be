"""How calls inside this process are timed: the median of rounds, each long enough for the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

ROUNDS, ROUND_S = 9, 0.02

Clock = Callable[[], float]
Call = Callable[[], object]


def clock_for(threads: int) -> Clock:
    """With one thread that of the thread, which other processes hardly disturb; else the clock on the wall."""
    return time.thread_time if threads == 1 else time.perf_counter


def seconds(call: Call, clock: Clock, round_s: float = ROUND_S) -> float:
    """Median over rounds of the time of one call, after a warm-up."""
    call()
    start = clock()
    call()
    repeats = max(1, int(round_s / max(clock() - start, 1e-7)))
    times = []
    for _ in range(ROUNDS):
        start = clock()
        for _ in range(repeats):
            call()
        times.append((clock() - start) / repeats)
    return median(times)


def in_turn(calls: Sequence[Call]) -> Call:
    """A call that makes the next of these each time, and begins again after the last."""
    turn = 0

    def one() -> None:
        nonlocal turn
        calls[turn]()
        turn = (turn + 1) % len(calls)

    return one
