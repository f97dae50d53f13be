"""The kit finds what is wrong: a small native backend passes every suite, and each of its mutants fails the named one.

`mutants/mutant_runs.py` asks the other half, that no unrelated suite fails, of all pairs, and every case of the right
backend, of which here a sample will do; it takes some minutes.
"""

from __future__ import annotations

import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "mutants"))

from mutant_faults import MUTANTS, SLOW_QUEUE
from mutant_native import KIND
from mutant_runs import NONE, Bench
from test_devices_conform import sampled

from jackfield_conformance.suites import SUITES

# What a wheel is has no mutant of a native backend: wheels with one fault each, in tests/plugins.
# Host times, which are compared with a stored run, have tests of their own.
ABOUT_WHEELS = {"packaging", "manifest", "registry", "names", "free-threading", "window"}
OF_THEIR_OWN = ABOUT_WHEELS | {"overhead"}
RIGHT = (f"{KIND}:0", f"{KIND}:1", SLOW_QUEUE)


@pytest.fixture(scope="module")
def found(request, tmp_path_factory, absent):
    """What becomes of each run that a selected test asks for, by its name; two run at a time."""
    mine = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    asked = {value for item in mine for value in item.callspec.params.values()}
    if shutil.which("g++") is None:
        absent("cpu", "no g++ to build the mutants with, nor a CPU wheel")
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        patch.setenv("JACKFIELD_CACHE", "off")  # host times of a mutant are no yardstick for the next
        bench = Bench(tmp_path_factory.mktemp("mutants"))
        right = {
            device: pool.submit(bench.wrong, NONE, device, chosen=sampled) for device in RIGHT[:2] if device in asked
        }
        if SLOW_QUEUE in asked:
            right[SLOW_QUEUE] = pool.submit(bench.wrong, SLOW_QUEUE, f"{KIND}:1", ("buffers",))
        yield right | {fault: pool.submit(bench.found, fault) for fault in MUTANTS if fault in asked}


@pytest.mark.parametrize("run", RIGHT)
def test_the_right_backend_fails_nothing(found, run):
    wrong = found[run].result()
    assert not wrong, [f"{r.id}: {r.reason}" for results in wrong.values() for r in results][:5]


@pytest.mark.parametrize("fault", MUTANTS)
def test_a_mutant_fails_in_the_suite_named_for_it(found, fault):
    result = found[fault].result()
    assert result is not None, f"{MUTANTS[fault].suite} passes"
    assert result.suite == MUTANTS[fault].suite


def test_there_are_enough_of_them():
    assert len(MUTANTS) >= 35
    assert {m.suite for m in MUTANTS.values()} == set(SUITES) - OF_THEIR_OWN
    assert all(m.also <= set(SUITES) for m in MUTANTS.values())
