"""What the workers of the CPU wheel cost and lose, without kernels: a step, idling, a busy process on one of the cores.

    uv run python bench/pool.py [--threads 1,2,5] [--seconds 1] [--json FILE]

`pool.cpp` is compiled with the wheel's own pool.cpp and program.cpp. Goals: 50 ns a step at one thread, 100 ns at two;
no more than 50 us of CPU time a worker after a run; beside a busy process at least 0.85 of the fair share. What two
threads take at least is told as well: to read one cache line of each other. Needs an idle machine and Linux.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aims import Aim, counted
from machine import origin
from peer import BENCH, tool
from peer_sources import PeerError, peer_dir, run
from targets import STEP_S

CPU = BENCH.parent / "plugins" / "cpu"
SOURCES = (BENCH / "pool.cpp", CPU / "src" / "pool.cpp", CPU / "src" / "program.cpp")
INCLUDES = (CPU / "src", CPU / "fused", CPU / "include")


def build(folder: Path) -> Path:
    """The program, compiled anew: it must be the tree's own."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "pool"
    include = [word for path in INCLUDES for word in ("-I", path)]
    run([tool("c++"), "-std=c++17", "-O2", "-pthread", *include, *SOURCES, "-o", program], folder)
    return program


def measure(program: Path, threads: int, seconds: float) -> dict[str, float]:
    done = subprocess.run([str(program), str(threads), str(seconds)], check=False, capture_output=True, text=True)
    if done.returncode:
        raise PeerError(f"pool: the program ended with {done.returncode}: {done.stderr.strip()[:200]}")
    return {name: float(value) for name, value in (line.split() for line in done.stdout.splitlines())}


SHARED = 2
"""Threads at which the fair share is judged."""
FAIR = 0.85
"""Of the fair share, beside a busy process."""
IDLE_S = 50e-6
"""Seconds of CPU time a worker may use after a run."""


def goals(threads: int, found: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """Verdicts by figure; at two threads the step is also told as a multiple of what a bare exchange takes."""
    ns = ("ns", 1e-9)
    made = {"idle": Aim(IDLE_S, IDLE_S, ("us", 1e-6), most=True).judged(1e-6 * found["idle_us"])}
    if threads in STEP_S:
        figure = found["one_ns"] if threads == 1 else found["all_ns"]
        made["step"] = Aim(STEP_S[threads], STEP_S[threads], ns, most=True).judged(1e-9 * figure)
    if threads == SHARED:
        for name, fair in (("beside", "fair"), ("bound", "bound_fair")):
            made[name] = Aim(FAIR, FAIR, ("of the fair share", 1)).judged(found[name] / found[fair])
    return made


def shown(threads: int, found: dict[str, float]) -> str:
    bare = f", {found['all_ns'] / found['exchange_ns']:.2f} times a bare exchange" if threads == 2 else ""
    return (
        f"{threads} threads: a step of one worker {found['one_ns']:.0f} ns, of all {found['all_ns']:.0f} ns{bare}, in "
        f"turn {found['turns_ns']:.0f} ns; idle {found['idle_us']:.0f} us; "
        + "; ".join(neighbour(*names, found) for names in (("beside", "fair"), ("bound", "bound_fair")))
    )


def neighbour(name: str, fair: str, found: dict[str, float]) -> str:
    where = {"beside": "beside a busy process", "bound": "beside one bound to a CPU"}[name]
    return f"{where} {found[name]:.2f} of the rate, {found[name] / found[fair]:.2f} of the fair share"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1,2,5")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    program, figures = build(peer_dir(None)), {}
    judged: dict[int, dict[str, dict[str, Any]]] = {}
    for threads in map(int, asked.threads.split(",")):
        figures[threads] = measure(program, threads, asked.seconds)
        print(shown(threads, figures[threads]))
        judged[threads] = goals(threads, figures[threads])
        for name, goal in judged[threads].items():
            print(f"  {name}: {goal['verdict']}")
    if asked.json:
        count = counted([goal["verdict"] for found in judged.values() for goal in found.values()])
        document = {"machine": origin(), "goals": count, "judged": judged, "figures": figures}
        asked.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
