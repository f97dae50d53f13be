"""What the workers of the CPU wheel cost and lose, without kernels: a step, idling, a busy process on one of the cores.

    uv run python bench/pool.py [--threads 1,2,5] [--seconds 1] [--rounds 3] [--json FILE]

`pool.cpp` is compiled with the wheel's own pool.cpp and program.cpp. Goals: 50 ns a step at one thread, 100 ns at two;
no more than 50 us of CPU time a worker after a run; beside a busy process at least 0.85 of the fair share. What two
threads take at least is told as well: to read one cache line of each other. The program runs `--rounds` times, and
medians are judged; where some rounds reach a goal and others don't, it is `noisy`. Ends with 1 where a goal is missed.
Needs an idle machine and Linux.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
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


Rounds = Sequence[Mapping[str, float]]
"""Figures by name of each time the program ran."""


def medians(rounds: Rounds) -> dict[str, float]:
    return {name: median(one[name] for one in rounds) for name in rounds[0]}


def goals(threads: int, rounds: Rounds) -> dict[str, dict[str, Any]]:
    """Verdicts by figure; at two threads, also which part of a step a bare exchange of cache lines takes."""

    def told(aim: Aim, figure: Callable[[Mapping[str, float]], float]) -> dict[str, Any]:
        samples = [figure(one) for one in rounds]
        return aim.judged(median(samples), samples=samples)

    made = {"idle": told(Aim(IDLE_S, IDLE_S, ("us", 1e-6), most=True), lambda one: 1e-6 * one["idle_us"])}
    if threads in STEP_S:
        name = "one_ns" if threads == 1 else "all_ns"
        aim = Aim(STEP_S[threads], STEP_S[threads], ("ns", 1e-9), most=True)
        made["step"] = told(aim, lambda one: 1e-9 * one[name])
    if threads == SHARED:
        made["step"]["exchange_share"] = median(one["exchange_ns"] / one["all_ns"] for one in rounds)
        for name, fair in (("beside", "fair"), ("bound", "bound_fair")):
            aim = Aim(FAIR, FAIR, ("of the fair share", 1))
            made[name] = told(aim, lambda one, name=name, fair=fair: one[name] / one[fair])
    return made


def line(name: str, goal: Mapping[str, Any]) -> str:
    share = goal.get("exchange_share")
    bare = "" if share is None else f"; {share:.0%} of it is what a bare exchange of cache lines takes here"
    return f"  {name}: {goal['verdict']}{bare}"


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


def closed(judged: Mapping[int, Mapping[str, Mapping[str, Any]]], figures: object, place: Path | None) -> int:
    """The exit status of a run whose goals were judged by number of threads, which is written to `place`."""
    count = counted([goal["verdict"] for found in judged.values() for goal in found.values()])
    if place:
        document = {"machine": origin(), "goals": count, "judged": judged, "figures": figures}
        place.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if count["missed"] else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1,2,5")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    program, figures = build(peer_dir(None)), {}
    judged: dict[int, dict[str, dict[str, Any]]] = {}
    for threads in map(int, asked.threads.split(",")):
        figures[threads] = [measure(program, threads, asked.seconds) for _ in range(asked.rounds)]
        print(shown(threads, medians(figures[threads])))
        judged[threads] = goals(threads, figures[threads])
        for name, goal in judged[threads].items():
            print(line(name, goal))
    return closed(judged, figures, asked.json)


if __name__ == "__main__":
    sys.exit(main())
