"""Ours against llama.cpp and its fork ik_llama.cpp: speed, first token, memory, rightness; all in one run.

    uv run python bench/compare_llama.py [MODEL ...] [--threads 1,2] [--runs 5] [--depths 0 512 2048] [--json FILE
                                         [--plot]] [--quick]

MODEL is a name of models.py (all of them where none is given) or the path of a GGUF file. For each model: what every
side makes of a text; then, `--runs` times in turn, the machine's roofline and every side at every task; the first
token; the largest resident memory. Each measurement is a process of its own. Printed are medians in tokens a second,
their spread, the ratio to the better peer whose output is right, and the share of the roofline. bench/NOTES.md says
what is compared with what, and why. `--quick` does all of it with counts so small that the figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import roofline
from aims import Times, counted, first_goals, memory_goals, middle
from judging import Row, judged, quality
from machine import origin
from peer import BENCH, build_all, read_peers
from peer_sources import PeerError, peer_dir
from sides import Ours, Side, Task, answer_of, run_child, shown, sides_of, tokens_per_s

NAMES = ("Q4_1", "Q4_0", "Q8_0", "IQ4_NL", "F16", "BF16", "1.1B-Q4_0", "1.1B-Q4_K_M", "1.1B-Q8_0")
"""Those of models.py, which is too large to be imported here: see sides.py."""

FIRST_THREADS = 2
"""The goals of first tokens are for two threads."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured. Tokens, but for `runs`; first: of the two times to a first token.

    ids, singles: of the check of output. context, tail: of the memory, the tail one by one.
    """

    runs: int = 5
    prompt: int = 512
    generate: int = 128
    depths: tuple[int, ...] = (0, 512, 2048)
    first: tuple[int, int] = (32, 512)
    ids: int = 288
    singles: int = 32
    context: int = 1024
    tail: int = 128

    def tasks(self, model: str) -> list[Task]:
        """Large models generate a quarter as much."""
        generate = max(1, self.generate // 4) if model.startswith("1.1B") else self.generate
        return [Task("prompt", self.prompt), *(Task("generate", generate, depth) for depth in self.depths)]


QUICK = Sizes(1, prompt=16, generate=4, depths=(0, 8), first=(4, 16), ids=24, singles=8, context=32, tail=4)


@dataclass(frozen=True)
class Run:
    """What all measurements of a run share."""

    sides: tuple[Side | Ours, ...]
    roofline: str
    sizes: Sizes
    threads: tuple[int, ...]
    quick: bool
    least: float | None = None
    """A goal for every prompt and generation, times the better peer; None: those of targets.py."""

    @property
    def native(self) -> dict[str, bool]:
        return {side.name: side.peer.native for side in self.sides if isinstance(side, Side)}

    @property
    def void(self) -> str:
        """Why nothing can be concluded from the run at all; empty where something can."""
        return "; ".join(f"{side}: not built for this CPU" for side, native in self.native.items() if not native)

    @property
    def whole(self) -> bool:
        """Whether the goals speak of this run: they are for its full sizes."""
        return not self.quick and replace(self.sizes, runs=0, depths=()) == replace(Sizes(), runs=0, depths=())

    @property
    def ours(self) -> Ours | None:
        return next((side for side in self.sides if isinstance(side, Ours)), None)


def file_of(model: str) -> Path:
    """The file of a name or a path, made where it is not there."""
    if model not in NAMES:
        return Path(model)
    done = subprocess.run(
        [sys.executable, str(BENCH / "models.py"), model], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise PeerError(f"compare: {model} could not be made; its error is above")
    return Path(done.stdout.strip())


Failures = dict[str, str]
"""By side, why it is no longer asked about a model: a peer may crash where ours may not."""


def asked(side: Side | Ours, command: Sequence[str], threads: int, failures: Failures) -> Any:
    """The answer, or None from a peer that fails now or has failed. Raises: PeerError where ours fails."""
    if side.name in failures:
        return None
    try:
        return answer_of(command, threads)
    except PeerError as error:
        if isinstance(side, Ours):
            raise
        failures[side.name] = str(error).removeprefix("compare: ")
        print(f"  {side.name:<18} VOID: {failures[side.name]}", flush=True)
        return None


def check_output(run: Run, model: Path, ids: Sequence[int], failures: Failures) -> dict[str, dict[str, Any]]:
    """What every side makes of a text; the first side, llama.cpp as plain as it is, is what others must agree with."""
    threads, first = max(run.threads), run.sides[0].name
    singles = min(run.sizes.singles, len(ids) // 2)
    answers = {s.name: asked(s, s.score(model, ids, singles, threads), threads, failures) for s in run.sides}
    if answers[first] is None:
        raise PeerError(f"compare: {first} fails with {model.name}, so nothing tells which output is right")
    found = quality({name: answer for name, answer in answers.items() if answer is not None}, first)
    for side, parts in found.items():
        print(f"  {side:<18} " + ", ".join(rightness(kind, part) for kind, part in parts.items()), flush=True)
    return found


def rightness(kind: str, part: Mapping[str, Any]) -> str:
    return f"{kind}: perplexity {part['perplexity']:.2f}" + (f", VOID: {part['wrong']}" if part["wrong"] else "")


def speeds(run: Run, name: str, model: Path, rooflines: list[roofline.Roofline], failures: Failures) -> list[Row]:
    """Alternating: in each round the roofline, then every task on every side that does not fail."""
    samples: dict[tuple[Task, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for _ in range(run.sizes.runs):
        rooflines.append(roofline.measure(run.roofline, max(run.threads), quick=run.quick))
        for threads in run.threads:
            for task in run.sizes.tasks(name):
                for side in run.sides:
                    answer = asked(side, side.speed(model, task, threads), threads, failures)
                    if answer is not None:
                        samples[task, threads][side.name].append(tokens_per_s(answer))
    return [
        Row(name, task, threads, {side: values for side, values in found.items() if side not in failures})
        for (task, threads), found in samples.items()
    ]


BACKING = "import numpy; numpy.ones(1 << 30, 'u1')"  # which asks for huge pages: those are what is given out next


def back_memory() -> None:
    """Use a gigabyte and free it again, so that what is measured next finds memory that the machine really has.

    A virtual machine tells its host which memory is free, and the host takes it back within seconds: filling 93 MB then
    takes 100 to 190 ms of the processor instead of 11. That is the host's time, and it hits whoever packs weights. In a
    process of its own, or this one's size would be told of its children.
    """
    run_child([sys.executable, "-c", BACKING], 1)


def first_tokens(run: Run, model: Path, failures: Failures) -> dict[str, list[dict[str, float]]]:
    """Seconds of loading, of a first token right then and of a later one, by side; the most threads there are."""
    threads, (shorter, longer) = max(run.threads), run.sizes.first
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    for _ in range(run.sizes.runs):
        for side in run.sides:
            back_memory()
            answer = asked(side, side.first(model, shorter, longer, threads), threads, failures)
            if answer is not None:
                found[side.name].append(answer)
    return dict(found)


def memory(run: Run, model: Path, failures: Failures) -> dict[int, dict[str, int]]:
    """Largest resident size in bytes by number of threads and side: every worker has memory of its own. "imports": of
    an interpreter that only imports what ours imports.
    """
    sizes, found = run.sizes, {}
    sides = [side for side in run.sides if side.name not in failures]
    for threads in run.threads:
        one = {s.name: run_child(s.memory(model, sizes.tail, sizes.context, threads), threads)[1] for s in sides}
        if run.ours:
            one["imports"] = run_child(run.ours.imports(model), threads)[1]
        found[threads] = one
    return found


def command_lines(run: Run, name: str, model: Path) -> list[str]:
    """Every command of the run but for numbers of threads and ids, without paths."""
    threads, sizes = max(run.threads), run.sizes
    lines = []
    for side in run.sides:
        lines += [shown(side.speed(model, task, threads)) for task in sizes.tasks(name)]
        lines.append(shown(side.first(model, *sizes.first, threads)))
        lines.append(shown(side.score(model, [], sizes.singles, threads)) + " ID...")
        lines.append(shown(side.memory(model, sizes.tail, sizes.context, threads)))
    return lines


def compare(run: Run, name: str) -> dict[str, Any]:
    """All of one model, printed as it comes; the part of the document that tells it."""
    model = file_of(name)
    facts = answer_of(Ours("cpu").facts(model, run.sizes.ids), 1)
    print(f"\n{name}: {facts['type']}, {facts['file_nbytes'] / 1e6:.0f} MB", flush=True)
    failures: Failures = {}
    found = check_output(run, model, facts.pop("ids"), failures)
    rooflines: list[roofline.Roofline] = []
    raw = speeds(run, name, model, rooflines, failures)
    peaks = roofline.medians(rooflines)
    rows = [judged(row, facts, found, run.native, peaks, targets=run.whole, least=run.least) for row in raw]
    print_rows(rows)
    times = first_tokens(run, model, failures)
    goals = first_goals(name, times, run.void) if run.whole and max(run.threads) == FIRST_THREADS else {}
    print_first(times, run.sizes.first, goals)
    sizes = memory(run, model, failures)
    goals |= memory_goals(name, sizes) if run.whole else {}
    print_memory(sizes, run.sizes.context, goals)
    return {
        "name": name if name in NAMES else model.name,
        "facts": facts,
        "output": found,
        "failed": failures,
        "roofline": peaks,
        "roofline_samples": rooflines,
        "rows": rows,
        "goals": goals,
        "first": times,
        "memory_bytes": sizes,
        "commands": command_lines(run, name, model),
    }


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    print(f"  {'task':<22} {'threads':>7}  {'side':<18} {'t/s':>9}  {'spread':<19} {'roofline':>8}  {'ours to it':>10}")
    for row in rows:
        depth = f" at {row['depth']}" if row["depth"] else ""
        for side, samples in row["samples"].items():
            middle, ours = row["median"][side], row["median"].get("jackfield")
            spread = f"{min(samples):.1f} .. {max(samples):.1f}"
            ratio = f"{ours / middle:10.2f}" if ours and side != "jackfield" else " " * 10
            told = "  noisy" if side in row["noisy"] else ""
            told += f"  VOID: {row['void'][side]}" if side in row["void"] else ""
            print(
                f"  {row['task'] + ' ' + str(row['tokens']) + depth:<22} {row['threads']:>7}  {side:<18} "
                f"{middle:9.1f}  {spread:<19} {share_told(row, side):>8}  {ratio}{told}"
            )
        if row["roofline_void"]:
            print(f"    ROOFLINE VOID: {row['roofline_void']}")
        if row["goal"]:
            ratio = f"; to the better peer, {row['better_peer']}: {row['ratio']:.2f}" if row["ratio"] else ""
            print(f"    goal {row['goal']}{ratio}")


def share_told(row: Mapping[str, Any], side: str) -> str:
    return "void" if row["roofline_void"] else f"{row['share_of_roofline'][side]:.0%}"


def print_first(times: Times, counts: tuple[int, int], goals: Mapping[str, Mapping[str, Any]]) -> None:
    print(f"  loading + first token of {counts[0]}; first token of {counts[1]}, loaded and warm")
    for side, found in times.items():
        short, long = middle(found, "first_short"), middle(found, "first_long")
        load = sorted(one["load_s"] for one in found)[len(found) // 2]
        print(f"    {side:<18} {1e3 * short:8.0f} ms (loading {1e3 * load:.0f}) {1e3 * long:8.0f} ms")
    for name, count in zip(("first_short", "first_long"), counts, strict=True):
        if name in goals:
            print(f"    goal of {count}: {goals[name]['verdict']}")


def print_memory(sizes: Mapping[int, Mapping[str, int]], context: int, goals: Mapping[str, Mapping[str, Any]]) -> None:
    for threads, found in sizes.items():
        print(f"  largest resident memory, context {context}, threads: {threads}")
        if f"memory_{threads}" in goals:
            print(f"    goal {goals[f'memory_{threads}']['verdict']}")
        for side, size in found.items():
            own = f", {(size - found['imports']) / 1e6:.0f} without the imports" if side == "jackfield" else ""
            print(f"    {side:<18} {size / 1e6:8.1f} MB{own}")


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"path of a GGUF file, or one of {' '.join(NAMES)}")
    parser.add_argument("--threads", type=numbers, default=(1, 2))
    parser.add_argument("--runs", type=int, help="samples of each side; default 5")
    parser.add_argument(
        "--depths", nargs="+", type=numbers, metavar="N", help="tokens before a generation; default 0 512 2048"
    )
    parser.add_argument("--generate", type=int, metavar="TOKENS", help="how many are generated; default 128")
    parser.add_argument(
        "--goal", type=float, metavar="RATIO", help="to the better right peer, in place of targets.py; not with --quick"
    )
    parser.add_argument("--device", default="cpu", help="our device")
    parser.add_argument("--peer-only", action="store_true", help="measure the peers alone")
    parser.add_argument("--quick", action="store_true", help="everything with tiny counts; figures mean nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample there, after each model")
    parser.add_argument("--plot", action="store_true", help="draw FILE as a picture beside it; needs matplotlib")
    parser.add_argument("--dir", help="where the peers are built, as in peer.py")
    parser.add_argument(
        "--peers", type=Path, metavar="FILE", help="peers that are built already, as peer.py prints them"
    )
    parser.add_argument("--roofline", metavar="PROGRAM", help="a roofline that is built already")
    chosen = parser.parse_args(arguments)
    chosen.depths = tuple(depth for depths in chosen.depths or () for depth in depths)
    return chosen


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def prepared(chosen: argparse.Namespace) -> Run:
    """Peers and roofline, built where they are not there; the sizes as options change them."""
    folder = peer_dir(chosen.dir)
    peers = read_peers(chosen.peers) if chosen.peers else build_all(folder, os.cpu_count() or 1)
    program = chosen.roofline or str(roofline.build(folder))
    sizes = QUICK if chosen.quick else Sizes()
    changes = {key: getattr(chosen, key) for key in ("runs", "depths", "generate") if getattr(chosen, key)}
    sizes = Sizes(**{**vars(sizes), **changes})
    ours = () if chosen.peer_only else (Ours(chosen.device),)
    for peer in peers:
        print(
            f"{peer.version} ({peer.package}), {peer.compiler}"
            + ("" if peer.native else "; NOT built for this CPU: remove its build folder")
        )
    least = None if chosen.quick else chosen.goal
    return Run((*sides_of(peers), *ours), program, sizes, chosen.threads, chosen.quick, least)


def header(run: Run) -> dict[str, Any]:
    peers = {side.peer.name: side.peer.origin for side in run.sides if isinstance(side, Side)}
    command = shown([Path(sys.argv[0]).name, *sys.argv[1:]])
    found = {"machine": origin(), "command": command, "quick": run.quick, "void": run.void, "sizes": vars(run.sizes)}
    found |= {} if run.least is None else {"goal": run.least}
    return found | {"peers": list(peers.values())}


def verdicts(models: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of every goal of the models, in words."""
    rows = [row["goal"] for model in models for row in model["rows"]]
    return [*rows, *(goal["verdict"] for model in models for goal in model["goals"].values())]


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parsed(arguments)
    for model in chosen.models:  # told now, not after the minutes that building the peers takes
        if model not in NAMES and not Path(model).is_file():
            print(
                f"compare: {model}: no such file; give the path of a GGUF model or one of {' '.join(NAMES)}",
                file=sys.stderr,
            )
            return 1
    try:
        run = prepared(chosen)
        document = {**header(run), "models": []}
        for model in chosen.models or NAMES:
            document["models"].append(compare(run, model))
            document["goals"] = counted(verdicts(document["models"]))
            if chosen.json:
                chosen.json.write_text(json.dumps(document, indent=1) + "\n")
    except PeerError as error:
        print(error, file=sys.stderr)
        return 1
    print("\ngoals: " + ", ".join(f"{count} {kind}" for kind, count in document["goals"].items()))
    if run.void:
        print(f"THE RUN IS VOID: {run.void}")
    if chosen.json and chosen.plot:  # a process of its own: it needs a library that measuring must do without
        picture = chosen.json.with_suffix(".png")
        return subprocess.run(
            [sys.executable, str(BENCH / "plot.py"), str(chosen.json), str(picture)], check=False
        ).returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
