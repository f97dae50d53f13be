"""Kernels that share work out by fixed parts, beside a busy process, and with more threads than cores.

    uv run python bench/beside.py [--threads 1,2,5] [--rounds 7] [--seconds 0.3] [--json FILE]

Attention of one token over a long cache, a norm and a unary op, each a plan of its own on the CPU device; by turns the
busy process is stopped and goes on. The fair share is what the scheduler gives to THREADS of THREADS + 1 busy threads
over what they had alone: with n threads on c cores n * min(1, c / (n + 1)) / min(n, c). At least 0.85 of it is the
goal; where some rounds reach it and others don't, the verdict is `noisy`. Threads beyond the cores have the same goal
and are also told as a part of the rate that as many threads as cores have alone. What the busy process got of a core is
told as well, and how many times the rate of one thread so many have alone. Where that is below 1.2 the verdict is
`void`: threads that bring nothing, or had no cores of their own, lose nothing to a neighbour. One thread is always
measured. Ends with 1 where a goal is missed.
Needs an idle machine, and signals that stop a process.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from aims import Aim
from pool import FAIR, closed

import jackfield as jf
from jackfield import ops

SETTLE_S = 0.05
"""Seconds until the scheduler has moved everything to where it belongs."""
BUSY = "while True: pass"
FASTER = 1.2
"""Times the rate of one thread that more must have alone, or a share of their rate says nothing."""
HEADS, CACHED, SIZE = 8, 4096, 64
ROWS, WIDTH = 64, 4096


def fair_share(threads: int, cores: int) -> float:
    """The part of their rate alone that `threads` busy threads keep beside one more."""
    return threads * min(1.0, cores / (threads + 1)) / min(threads, cores)


def calls() -> dict[str, Callable[[], object]]:
    """A call of a plan by name; its inputs lie ready."""
    rng = np.random.default_rng(0)
    q, k = jf.input("q", (1, HEADS, 1, SIZE)), jf.input("k", (1, HEADS, CACHED, SIZE))
    v, x = jf.input("v", (1, HEADS, CACHED, SIZE)), jf.input("x", (ROWS, WIDTH))
    graphs = {
        "attention of one token": ops.attention(q, k, v, scale=SIZE**-0.5),
        "rms_norm": ops.rms_norm(x),
        "silu": ops.silu(x),
    }
    arrays = {
        t: rng.standard_normal(shape, np.float32) for t, shape in (("x", (ROWS, WIDTH)), ("q", (1, HEADS, 1, SIZE)))
    }
    arrays |= {name: rng.standard_normal((1, HEADS, CACHED, SIZE), np.float32) for name in ("k", "v")}
    wanted = {"attention of one token": ("q", "k", "v"), "rms_norm": ("x",), "silu": ("x",)}

    def call(name: str) -> Callable[[], object]:
        plan = jf.compile(graphs[name], "cpu")
        given = {one: arrays[one] for one in wanted[name]}
        return lambda: plan(**given)

    return {name: call(name) for name in graphs}


def rate(call: Callable[[], object], seconds: float) -> float:
    """Calls a second."""
    count, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        call()
        count += 1
    return count / (time.perf_counter() - begin)


def cpu_seconds(process: int) -> float:
    """CPU time of another process of one thread, to the nanosecond."""
    return int(Path(f"/proc/{process}/schedstat").read_text().split()[0]) * 1e-9


def sampled(rounds: int, seconds: float) -> dict[str, list[list[float]]]:
    """By kernel and round: calls a second alone and beside the busy process, and cores that this one had then."""
    found: dict[str, list[list[float]]] = {}
    busy = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        for name, call in calls().items():
            call()
            for _ in range(rounds):
                pair = []
                for word in (signal.SIGSTOP, signal.SIGCONT):
                    busy.send_signal(word)
                    time.sleep(SETTLE_S)
                    used, begin = cpu_seconds(busy.pid), time.perf_counter()
                    pair.append(rate(call, seconds))
                    had = (cpu_seconds(busy.pid) - used) / (time.perf_counter() - begin)
                pair.append(had)
                found.setdefault(name, []).append(pair)
    finally:
        busy.kill()
        busy.wait()
    return found


def judged(pairs: Sequence[Sequence[float]], threads: int, cores: int, single: float) -> dict[str, Any]:
    """The verdict on rates alone and beside, as parts of the fair share. single: the rate of one thread alone."""
    fair = fair_share(threads, cores)
    times = alone(pairs) / single
    slow = min(threads, cores) > 1 and times < FASTER
    void = f"alone they have {times:.2f} times the rate of one thread, so no share of it counts" if slow else ""
    parts = [beside / before / fair for before, beside, *_ in pairs]
    return Aim(FAIR, FAIR, ("of the fair share", 1)).judged(median(parts), samples=parts, void=void)


def measure(threads: int, rounds: int, seconds: float) -> dict[str, list[list[float]]]:
    """`sampled` in a process with so many threads."""
    words = [sys.executable, __file__, "--rounds", str(rounds), "--seconds", str(seconds), "--samples"]
    environment = os.environ | {"JACKFIELD_CPU_THREADS": str(threads)}
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return dict(json.loads(done.stdout))


def alone(found: Sequence[Sequence[float]]) -> float:
    return median(one[0] for one in found)


def told(name: str, threads: int, goal: Mapping[str, Any], found: Sequence[Sequence[float]], others: str) -> str:
    """others: what the rate alone is beside that at other numbers of threads."""
    had = median(one[2] for one in found)
    share = f"{goal['figure']:.2f} of the fair share, {goal['verdict']}"
    rates = f"{alone(found):.0f} calls a second alone{others}; the other had {had:.2f} cores"
    return f"{threads} threads, {name}: {share}; {rates}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1,2,5")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--samples", action="store_true", help="print samples of this process and nothing else")
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args(arguments)
    if chosen.samples:
        print(json.dumps(sampled(chosen.rounds, chosen.seconds)))
        return 0
    cores, figures, goals = len(os.sched_getaffinity(0)), {}, {}
    for threads in sorted({1, *map(int, chosen.threads.split(","))}):
        figures[threads] = measure(threads, chosen.rounds, chosen.seconds)
        goals[threads] = {
            name: judged(found, threads, cores, alone(figures[1][name])) for name, found in figures[threads].items()
        }
        for name, goal in goals[threads].items():
            found, others = figures[threads][name], ""
            for count in {1, cores} & figures.keys() - {threads}:
                others += f", {alone(found) / alone(figures[count][name]):.2f} times the rate of {count}"
            print(told(name, threads, goal, found, others), flush=True)
    return closed(goals, figures, chosen.json)


if __name__ == "__main__":
    sys.exit(main())
