"""Every kernel on steps that several workers share: the op's values, and the same bits for any number of workers.

Declared cases are small, and a kernel makes a small step with one worker; so that these are shared is seen from the
workers, which sleep unless they have a part.
"""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path

import pytest
from one_step import BACKEND, LEVELS, device
from shared_cases import CASES, examples_of

from jackfield.conformance import compare, expected
from jackfield_conformance.direct import bind
from jackfield_cpu.device import CpuDevice

KERNELS = sorted(BACKEND.kernels())
TASKS = Path("/proc/self/task")
HANGS_S = 10.0  # a worker that was called has come by then, on a busy machine too


class SeenWorkers:
    """A device of three workers, and the two threads that are not the caller's. A worker that wakes and sleeps again
    has one more voluntary switch. `came` is true where the system does not count them.
    """

    def __init__(self, level: str) -> None:
        target = next(t for t in BACKEND.targets() if t.arch == level)
        before = self._tasks()
        self.device = CpuDevice("cpu:0", target, 3)
        self.workers = sorted(self._tasks() - before)
        assert len(self.workers) == (2 if before else 0)
        self.switches: list[int] = []

    @staticmethod
    def _tasks() -> set[int]:
        return {int(task.name) for task in TASKS.iterdir()} if TASKS.exists() else set()

    def watch(self) -> None:
        """Waits until all sleep."""
        assert self._until(lambda: all(self._field(w, "State") == "S" for w in self.workers)), (
            "workers that never sleep"
        )
        self.switches = self._counts()

    def came(self) -> bool:
        """Since `watch`, all of them were awake."""
        return self._until(lambda: all(now > was for now, was in zip(self._counts(), self.switches, strict=True)))

    def _counts(self) -> list[int]:
        return [int(self._field(worker, "voluntary_ctxt_switches")) for worker in self.workers]

    @staticmethod
    def _field(worker: int, name: str) -> str:
        lines = (TASKS / str(worker) / "status").read_text().splitlines()
        return next(line for line in lines if line.startswith(f"{name}:")).split()[1]

    @staticmethod
    def _until(holds) -> bool:
        end = time.monotonic() + HANGS_S
        while not holds():
            if time.monotonic() > end:
                return False
            time.sleep(1e-4)
        return True


seen_workers = cache(SeenWorkers)


@cache
def wanted(name):
    """Examples and what the op makes of them; no faults."""
    pairs = [(example, *expected(example)) for example in examples_of(name)]
    assert all(faults == [] for *_, faults in pairs)
    return [(example, want) for example, want, _ in pairs]


def outcome(example, on, seen=None):
    bound = bind(example, BACKEND, on)
    try:
        if seen:
            seen.watch()
        made = bound.run()
        assert seen is None or seen.came(), f"{example}: not shared; tests/cpu/shared_cases.py must have a larger case"
    finally:
        bound.free()
    assert (made.fault, made.damage) == (None, "")
    return made.result


@pytest.mark.parametrize("level", sorted({LEVELS[0], LEVELS[-1]}))
@pytest.mark.parametrize("name", KERNELS)
def test_workers_share_a_step(name, level):
    for example, want in wanted(name):
        one = outcome(example, device(level, 1))
        assert not (wrong := compare(example, one, want)), f"{example}: {wrong}"
        seen = seen_workers(level)
        for threads, result in (
            (2, outcome(example, device(level, 2))),
            (3, outcome(example, seen.device, seen)),
            (7, outcome(example, device(level, 7))),
        ):
            assert result.tobytes() == one.tobytes(), f"{example}: {threads} workers make something else than one"


def test_every_case_is_of_a_kernel():
    assert set(CASES) <= set(KERNELS)
