"""Runs suites of the kit on mutants. As a script: every suite on every mutant, and failures that nobody expects.

Usage: python mutant_runs.py [MUTANT ...]; without names the right backend, then all. Exit code 1 when a mutant is not
found by its suite, or when another suite fails that its entry does not name.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from threading import Lock

from jackfield.op import OPS
from jackfield_conformance.results import Result
from jackfield_conformance.runner import Request, Runner
from jackfield_conformance.suites import SUITES, sampled, trials_of

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from mutant_faults import MUTANTS, SLOW_QUEUE  # noqa: E402 (beside this file, which need not be on the path)
from mutant_native import KERNELS, KIND  # noqa: E402 (likewise)

NONE = ""
DEADLINE = 300.0  # seconds of one case, as in the kit: a busy machine took 60 for one that takes 4
IMPATIENT = 5.0  # for that one
FLAGS = ("-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread")

Chosen = Callable[[Sequence[str]], Sequence[str]]


LISTING = Lock()  # two threads that want the same list would both make it, for seconds


def ids_of(suite: str) -> tuple[str, ...]:
    with LISTING:
        return listed(suite)


@cache
def listed(suite: str) -> tuple[str, ...]:
    return tuple(trial.id for trial in trials_of((suite,), 0))


def op_of(name: str) -> str | None:
    """The op a case is of, None where it is of none."""
    return next((part for part in name.split("/")[1:] if part in OPS), None)


def ids_about(suites: Sequence[str], ops: Sequence[str]) -> list[str]:
    """Of the suites' cases those of these ops, and those of no op; coverage where a kernel has all operands."""
    whole = [op for op in ops if op in KERNELS and KERNELS[op].operands.keys() == set(OPS[op].operands)]
    chosen = {suite: whole if suite == "coverage" else ops for suite in suites}
    return [name for suite in suites for name in ids_of(suite) if (op := op_of(name)) is None or op in chosen[suite]]


class Bench:
    """The library of kernels, built into a folder by this machine's compiler, and modules that register mutants."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.library = folder, folder / "kernels.so"
        command = [os.environ.get("CXX", "g++"), *FLAGS, HERE / "kernels.cpp", "-o", self.library]
        subprocess.run(command, check=True)
        path = [str(folder), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(path)  # of the workers

    def module(self, fault: str) -> str:
        """Name of a module that registers the backend with this fault."""
        name = f"with_{fault or 'none'}"
        text = "import jackfield as jf\nfrom mutant_faults import backend\n\njf.register_backend(backend({!r}, {!r}))\n"
        (self.folder / f"{name}.py").write_text(text.format(str(self.library), fault))
        return name

    def results(self, fault: str, device: str, suites: Sequence[str], ids: Sequence[str]) -> Iterator[Result]:
        deadline = IMPATIENT if fault.startswith("hangs") else DEADLINE
        with Runner(Request(device, tuple(suites), imports=(self.module(fault),), deadline=deadline)) as runner:
            yield from runner.results(ids)

    def found(self, fault: str) -> Result | None:
        """The first case of the named suite that does not pass; nothing runs behind it. A sample goes first."""
        mutant = MUTANTS[fault]
        ids = ids_about((mutant.suite,), self.ops(fault))
        few = sampled(ids, 1, 0)
        ids = [*few, *(name for name in ids if name not in few)]
        results = self.results(fault, mutant.device, (mutant.suite,), ids)
        return next((result for result in results if result.is_bad), None)

    def wrong(
        self, fault: str, device: str, suites: Sequence[str] = tuple(SUITES), chosen: Chosen = list
    ) -> dict[str, list[Result]]:
        """By suite: all that does not pass; suites without any are left out. chosen: some of the cases' ids."""
        ids = chosen(ids_about(suites, self.ops(fault)))
        rows: dict[str, list[Result]] = {}
        for result in self.results(fault, device, suites, ids):
            if result.is_bad:
                rows.setdefault(result.suite, []).append(result)
        return rows

    def ops(self, fault: str) -> Sequence[str]:
        """All that its entry names: what a kernel does wrong can't reach the cases of another op alone."""
        return MUTANTS[fault].ops if fault in MUTANTS and MUTANTS[fault].ops else tuple(KERNELS)


def told(bench: Bench, fault: str, device: str) -> tuple[bool, str]:
    """Whether exactly those suites fail that may, and a report of it."""
    mutant = MUTANTS.get(fault)
    named = {mutant.suite} if mutant is not None else set()
    may = mutant.also - named if mutant is not None else set()  # whether these fail or not tells nothing
    found = bench.wrong(fault, device, [suite for suite in SUITES if suite not in may])
    right = set(found) == named
    sums = ", ".join(f"{suite} {len(results)}" for suite, results in found.items())
    lines = [f"{'as told' if right else 'NOT AS TOLD'}: {device} {fault or 'no fault'}: {sums or 'nothing fails'}"]
    for suite in sorted(set(found) - named):
        lines += [f"  {r.id}: {r.result}: {r.reason[:200]}" for r in found[suite][:3]]
    return right, "\n".join(lines)


def main(names: Sequence[str]) -> int:
    faults = names or [NONE, SLOW_QUEUE, *MUTANTS]
    rows = [(f, MUTANTS[f].device) for f in faults if f in MUTANTS]
    rows += [(f, f"{KIND}:{i}") for f in faults if f not in MUTANTS for i in (0, 1)]
    wrong = []
    os.environ["JACKFIELD_CACHE"] = "off"  # host times of a mutant are no yardstick for the next
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        bench = Bench(Path(folder))
        for right, text in pool.map(lambda row: told(bench, *row), rows):
            print(text, flush=True)
            wrong += [] if right else [text]
    print(f"{len(rows)} backends, {len(wrong)} not as told", *wrong, sep="\n")  # again, where the end is all one sees
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
