"""What the core costs where kernels cost nothing: a call, a step, an op of a graph, a node of a plan, an import.

    uv run python bench/overhead.py [DEVICE] [--rounds N] [--threads 1,2] [--json FILE]

Prints the best of N rounds of each figure beside its goal: time on the wall for calls and steps, CPU time of the
process for what is Python alone, which other work on the machine disturbs less. A step is measured at each number of
threads, in a process of its own; its adds are too small to be shared, so one worker makes steps in a row alone, and
two threads cost no more than one. `pool.py` has the step that both work on.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from aims import Aim, counted
from machine import origin
from targets import CALL_S, STEP_S

import jackfield as jf
from jackfield import ops

US, NS, MS = ("us", 1e-6), ("ns", 1e-9), ("ms", 1e-3)
BUILDING_S, PLANNING_S, IMPORT_S = 15e-6, 20e-6, 40e-3
"""Goals of our own, as the other two are whatever the machine."""


def best_s(
    action: Callable[[], object], rounds: int, calls: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Seconds of one call: the best of some rounds."""
    times = []
    for _ in range(rounds):
        start = clock()
        for _ in range(calls):
            action()
        times.append((clock() - start) / calls)
    return min(times)


def adds(count: int) -> jf.Tensor:
    x = y = jf.input("x", (16,))
    for _ in range(count):
        y = ops.add(y, x)
    return y


def decoder(nodes: int) -> jf.Tensor:
    """About as many kinds of steps as a language model has, over and over."""
    y = jf.input("x", (1, 64))
    weights = [jf.constant(np.ones((64, 64), np.float32)) for _ in range(8)]
    scale = jf.constant(np.ones(64, np.float32))
    for i in range(nodes // 6):
        h = ops.multiply(ops.rms_norm(y), scale)
        h = ops.silu(ops.linear(h, weights[i % 8]))
        y = ops.add(y, ops.linear(h, weights[(i + 1) % 8]))
    return y


def call_us(device: str, rounds: int) -> float:
    plan = jf.compile(adds(1), device)
    x = np.ones(16, np.float32)
    return best_s(lambda: plan(x=x), rounds, 2000) * 1e6


def step_ns(device: str, rounds: int) -> float:
    """The difference of two lengths, so that the call itself does not count."""
    x = np.ones(16, np.float32)
    short, long = (jf.compile(adds(n), device) for n in (1, 1001))
    return (best_s(lambda: long(x=x), rounds, 200) - best_s(lambda: short(x=x), rounds, 200)) * 1e6


def building_us(rounds: int) -> float:
    """The first graph of a process is left out: its ops answer nothing from memory yet."""
    decoder(600)
    return best_s(lambda: decoder(600), rounds, 1, time.process_time) / 600 * 1e6


def planning_us(device: str, rounds: int) -> float:
    """All decisions, and nothing of the device's own: no memory, no programs."""
    graph = decoder(600)
    session = jf.Session(device)
    return best_s(lambda: session.draw(graph), rounds, 1, time.process_time) / 600 * 1e6


def step_at(device: str, rounds: int, threads: int) -> float:
    """Nanoseconds of a step, in a process with so many threads."""
    words = [sys.executable, __file__, device, "--rounds", str(rounds), "--step"]
    environment = os.environ | {"JACKFIELD_CPU_THREADS": str(threads)}
    return float(subprocess.run(words, capture_output=True, text=True, check=True, env=environment).stdout)


def import_ms(rounds: int) -> float:
    """Fresh interpreters; the median of the difference. By the thread's clock: threads of numpy's BLAS wait busily."""
    code = "import time; a = time.thread_time(); import {}; print(time.thread_time() - a)"

    def seconds(names: str) -> float:
        return float(
            subprocess.run(
                [sys.executable, "-c", code.format(names)], capture_output=True, text=True, check=True
            ).stdout
        )

    return statistics.median(seconds("numpy, jackfield") - seconds("numpy") for _ in range(rounds)) * 1e3


def most(goal: float, unit: tuple[str, float]) -> Aim:
    return Aim(goal, goal, unit, most=True)


def measured(device: str, rounds: int, threads: list[int]) -> dict[str, dict[str, Any]]:
    """Each figure in seconds with its goal and verdict."""
    found = {"a call with one tiny op": most(CALL_S, US).judged(1e-6 * call_us(device, rounds))}
    for count in threads:
        aim = most(STEP_S.get(count, STEP_S[2]), NS)
        found[f"a step of 1,000, {count} threads"] = aim.judged(1e-9 * step_at(device, rounds, count))
    found["building an op of 600"] = most(BUILDING_S, US).judged(1e-6 * building_us(rounds))
    found["planning a node of 600"] = most(PLANNING_S, US).judged(1e-6 * planning_us(device, rounds))
    found["import beyond numpy"] = most(IMPORT_S, MS).judged(1e-3 * import_ms(rounds))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", nargs="?", default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=lambda text: [int(part) for part in text.split(",")], default=[1, 2])
    parser.add_argument("--step", action="store_true", help="print the nanoseconds of a step and nothing else")
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    if chosen.step:
        print(step_ns(chosen.device, chosen.rounds))
        return
    found = measured(chosen.device, chosen.rounds, chosen.threads)
    for name, figure in found.items():
        unit = figure["unit"]
        print(f"{name:<28} {figure['figure'] / dict((US, NS, MS))[unit]:8.1f} {unit}   {figure['verdict']}")
    if chosen.json:
        goals = counted([figure["verdict"] for figure in found.values()])
        document = {"machine": origin(), "device": chosen.device, "goals": goals, "figures": found}
        chosen.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
