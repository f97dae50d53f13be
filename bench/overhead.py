"""What the core costs where kernels cost nothing: a call, a step, an op of a graph, a node of a plan, an import.

uv run python bench/overhead.py [DEVICE] [--rounds N]

Prints the best of N rounds of each figure beside its aim: time on the wall for calls and steps, CPU time of the process
for what is Python alone, which other work on the machine disturbs less. Set JACKFIELD_CPU_THREADS=1 for the figure of
one step.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

import jackfield as jf
from jackfield import ops

AIMS = {
    "a call with one tiny op": (15.0, "us"),
    "a step of 1,000 tiny adds": (100.0, "ns"),
    "building an op of 600": (15.0, "us"),
    "planning a node of 600": (20.0, "us"),
    "import beyond numpy": (40.0, "ms"),
}


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


def import_ms(rounds: int) -> float:
    """Fresh interpreters; the median of the difference."""
    code = "import time; a = time.process_time(); import {}; print(time.process_time() - a)"

    def seconds(names: str) -> float:
        return float(
            subprocess.run(
                [sys.executable, "-c", code.format(names)], capture_output=True, text=True, check=True
            ).stdout
        )

    return statistics.median(seconds("numpy, jackfield") - seconds("numpy") for _ in range(rounds)) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", nargs="?", default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    device, rounds = arguments.device, arguments.rounds
    figures = [
        call_us(device, rounds),
        step_ns(device, rounds),
        building_us(rounds),
        planning_us(device, rounds),
        import_ms(rounds),
    ]
    for (name, (aim, unit)), figure in zip(AIMS.items(), figures, strict=True):
        print(f"{name:<28} {figure:8.1f} {unit}   aim {aim:.0f} {unit}")


if __name__ == "__main__":
    main()
