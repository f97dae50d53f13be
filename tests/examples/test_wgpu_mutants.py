"""The kit finds faults of a GPU's backend: the example with one fault in a shader or beside it, as the script has them.

Some at a landing; `wgpu_mutants.py` asks all of them, and of the right one that nothing fails, in .ci/full.
"""

from __future__ import annotations

import importlib.util
import os

import presence
import pytest
from wgpu_mutants import CONTROL, MUTANTS, SLOW, SOFTWARE, SOURCE, Bench, ids_about

from jackfield.errors import BackendError, DeviceNameError
from jackfield_conformance.suites import sampled

QUICK = (
    "wrong_index",
    "lost_barrier",
    "read_as_dense",
    "scale_of_the_next_byte",
    "rest_of_a_word_lost",
    "bad_index_kept_quiet",
)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    if importlib.util.find_spec("wgpu") is None:
        presence.absent("wgpu", "the package wgpu is not installed: uv sync --group wgpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        patch.setenv("JACKFIELD_CACHE", "off")
        made = Bench(tmp_path_factory.mktemp("mutants"))
        try:
            assert not list(made.bad("", CONTROL[0], ids_about(*CONTROL)[:1]))
        except (BackendError, DeviceNameError) as e:
            presence.absent("wgpu", f"no {SOFTWARE}; on Debian: apt-get install mesa-vulkan-drivers; {e}")
        yield made


@pytest.mark.parametrize("fault", MUTANTS)
def test_the_text_that_a_fault_changes_is_there(fault):
    mutant = MUTANTS[fault]
    assert (SOURCE / mutant.file).read_text().count(mutant.old) == 1
    assert mutant.new != mutant.old


@pytest.mark.parametrize("fault", QUICK)
def test_a_mutant_is_found_by_its_suite(bench, fault):
    assert fault not in SLOW
    result = bench.found(fault)
    assert result is not None, f"{MUTANTS[fault].suite} passes"
    assert result.suite == MUTANTS[fault].suite


def test_the_right_one_fails_nothing_of_that(bench):
    """A sample of the cases that find the faults."""
    places = {(MUTANTS[fault].suite, MUTANTS[fault].op) for fault in QUICK}
    for suite in {suite for suite, _ in places}:
        ids = [name for s, op in sorted(places) if s == suite for name in sampled(ids_about(s, op), 2, 0)]
        assert [result.id for result in bench.bad("", suite, ids)] == []
