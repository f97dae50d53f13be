"""Host times beside a stored run: kept by machine and build, told as a ratio, marked where they are a fifth slower."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_suites import NAME, Few

from jackfield import registry
from jackfield.loading import cache_folder
from jackfield_conformance import stored
from jackfield_conformance.stored import Figure, Runs
from jackfield_conformance.suites import overhead
from jackfield_conformance.trials import Refused, Subject, Trial
from jackfield_conformance.worker import outcome, subject_of

LONG = 1e3  # seconds that no call takes


@pytest.fixture
def subject(tmp_path, monkeypatch):
    """A device of a backend that is none of the core's, and an empty cache."""
    monkeypatch.setenv("JACKFIELD_CACHE", str(tmp_path))
    backend = registry.register_backend(Few())
    try:
        yield Subject(backend, registry.select(NAME).devices[0].device)
    finally:
        registry.unregister_backend(NAME)


def measuring(*seconds, yardstick=1e-5):
    """A measure that gives these times one after the other, the last for ever."""
    left = list(seconds)
    return lambda subject: Figure(left.pop(0) if len(left) > 1 else left[0], yardstick)


def compared(subject, *seconds, **given):
    return overhead.compared("call", measuring(*seconds, **given), subject)


def test_the_first_run_is_stored_and_told(subject):
    with pytest.raises(Refused, match="20 us a call; no run of this machine was stored to compare with: this run is"):
        compared(subject, 2e-5)
    (one,) = json.loads(Runs(subject).path.read_text())["runs"]
    assert one["call"] == {"seconds": 2e-5, "yardstick": 1e-5}
    assert one["build"] == Runs(subject).build == "jackfield 0.1.0, <registered>"


def test_the_ratio_is_told_and_a_fifth_more_is_marked(subject):
    Runs(subject).keep("call", Figure(2e-5, 1e-5))
    found = compared(subject, 2.3e-5)
    assert not found.mistakes
    assert found.note.startswith("23 us a call, 1.15 of the stored run of 2")
    assert "(jackfield 0.1.0, <registered>)" in found.note
    (mistake,) = compared(subject, 2.5e-5).mistakes
    assert "25 us a call, 1.25 of the stored run of" in mistake
    assert "over 20% slower" in mistake
    assert str(Runs(subject).path) in mistake


def test_one_busy_moment_marks_nothing(subject):
    Runs(subject).keep("call", Figure(2e-5, 1e-5))
    assert not compared(subject, 9e-5, 9e-5, 2.1e-5).mistakes
    assert compared(subject, *[9e-5] * overhead.TRIES, 2.1e-5).mistakes


def test_a_machine_that_is_slower_for_all_marks_nothing(subject):
    Runs(subject).keep("call", Figure(2e-5, 1e-5))
    assert "1.00 of the stored run" in compared(subject, 4e-5, yardstick=2e-5).note
    assert compared(subject, 4e-5, yardstick=1.1e-5).mistakes


def test_builds_that_are_each_a_little_slower_are_seen(subject, monkeypatch):
    """Each is compared with the best of all, not with the one before."""
    seconds, results = 2e-5, []
    for number in range(5):
        monkeypatch.setattr(stored, "CORE_VERSION", f"0.{number}.0")
        try:
            results.append(bool(compared(subject, seconds).mistakes))
        except Refused:
            results.append(None)
        seconds *= 1.1
    assert results == [None, False, True, True, True]
    assert len(json.loads(Runs(subject).path.read_text())["runs"]) == 5


@given(st.lists(st.floats(1e-7, 1e-3), min_size=1, max_size=6))
def test_the_best_of_a_build_is_kept(tmp_path_factory, seconds):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JACKFIELD_CACHE", str(tmp_path_factory.mktemp("cache")))
        runs = Runs(subject_of("sim", 0))
        for one in seconds:
            runs.keep("call", Figure(one, 1e-5))
            runs.keep("step", Figure(one / 2, 1e-5))
        assert runs.best("call").figure.seconds == min(seconds)
        assert runs.best("step").figure.seconds == min(seconds) / 2
        assert runs.best("other") is None
        assert len(json.loads(runs.path.read_text())["runs"]) == 1


def test_builds_of_long_ago_are_forgotten(subject, monkeypatch):
    for number in range(stored.MOST_BUILDS + 3):
        monkeypatch.setattr(stored, "CORE_VERSION", f"0.{number}.0")
        Runs(subject).keep("call", Figure(1e-5, 1e-5))
    assert len(json.loads(Runs(subject).path.read_text())["runs"]) == stored.MOST_BUILDS


def test_devices_and_machines_have_files_of_their_own(subject, monkeypatch):
    paths = {Runs(subject).path}
    device = subject.device
    for name, arch in (("liar:1", device.target.arch), (device.name, "other")):
        monkeypatch.setattr(device, "name", name)
        monkeypatch.setattr(device, "target", replace(device.target, arch=arch))
        paths.add(Runs(subject).path)
    monkeypatch.setattr(stored, "_machine", lambda: ["another"])
    paths.add(Runs(subject).path)
    assert len(paths) == 4
    assert {path.parent for path in paths} == {cache_folder().parent / "overhead"}


def written(*runs, schema=stored.SCHEMA):
    return json.dumps({"schema": schema, "runs": runs})


NO_TIME = {"seconds": 0, "yardstick": 1}
NO_RUNS = {
    "nothing": "",
    "a list": "[]",
    "an empty document": "{}",
    "a deep one": "[" * 10_000,
    "no runs": json.dumps({"schema": stored.SCHEMA}),
    "a number of runs": json.dumps({"schema": stored.SCHEMA, "runs": 3}),
    "of a later version": written({"build": "x", "date": "y", "call": {"seconds": 1, "yardstick": 1}}, schema="x/2"),
    "a build without a name": written({"build": 1, "date": "y"}),
    "no time": written({"build": "x", "date": "y", "call": NO_TIME}),
    "a text for a time": written({"build": "x", "date": "y", "call": {"seconds": "1"}}),
}


@pytest.mark.parametrize("name", NO_RUNS)
def test_a_file_that_is_none_counts_as_no_run(subject, name):
    runs = Runs(subject)
    runs.path.parent.mkdir()
    runs.path.write_text(NO_RUNS[name])
    assert runs.best("call") is None
    runs.keep("call", Figure(1e-5, 1e-5))
    assert runs.best("call").figure == Figure(1e-5, 1e-5)


def test_without_a_cache_there_is_nothing_to_compare_with(subject, monkeypatch):
    monkeypatch.setenv("JACKFIELD_CACHE", "off")
    for _ in range(2):
        with pytest.raises(Refused, match="JACKFIELD_CACHE is off"):
            compared(subject, 2e-5)


@pytest.mark.parametrize("device", ["reference", "sim"])
def test_it_is_not_asked_of_the_cores_own(device):
    found = [outcome(trial, subject_of(device, 0)) for trial in overhead.trials(0)]
    assert [(one["result"], one["reason"]) for one in found] == [
        ("unsupported", "not asked of the reference, nor of a simulated device")
    ] * 2


def test_it_measures(subject):
    """A device as it is: stored, then beside a run that took far longer, then beside one that took no time."""
    trials = {trial.id: trial for trial in overhead.trials(0)}
    first = {name: outcome(trial, subject) for name, trial in trials.items()}
    assert {one["result"] for one in first.values()} == {"unsupported"}, first
    (kept,) = json.loads(Runs(subject).path.read_text())["runs"]
    assert 0 < kept["step"]["seconds"] < kept["call"]["seconds"] < LONG
    for seconds, result in ((LONG, "passed"), (1e-12, "failed")):
        Runs(subject).path.unlink()
        for what in ("call", "step"):
            Runs(subject).keep(what, Figure(seconds, 1.0))
        found = {name: outcome(trial, subject) for name, trial in trials.items()}
        assert {one["result"] for one in found.values()} == {result}, found


def test_its_trials_are_these():
    assert [trial.id for trial in overhead.trials(0)] == ["overhead/call", "overhead/step"]
    assert all(isinstance(trial, Trial) for trial in overhead.trials(0))
