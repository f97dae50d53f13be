"""What the kit says of wheels: one without a fault, and one for each fault, all in one environment.

`wheel_faults.py` asks every suite of every wheel; it takes some minutes.
"""

from __future__ import annotations

import pytest
from wheel_faults import ABOUT, DISAGREE, FAULTS, LOCKS, LOST, REFUSED, bad, conform, installed

SUITES = tuple(word for suite in ABOUT for word in ("--suite", suite))


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    return installed(tmp_path_factory.mktemp("wheels"), FAULTS, LOCKS, DISAGREE, LOST, REFUSED)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_a_wheel_fails_in_its_case_alone(name, environment):
    report, code, _ = conform(environment, f"{name}:0", *SUITES)
    found = bad(report)
    assert found == FAULTS[name][2]
    assert code == bool(found)
    if not found:
        refused = {case["id"] for case in report["cases"] if case["result"] == "unsupported"}
        assert refused == {"manifest/claims", "names/ids"}


def test_imports_besides_the_contract_are_told_and_fail_nothing(environment):
    for name, says in (("nosy", True), ("good", False)):
        report, code, _ = conform(environment, f"{name}:0", "--suite", "packaging")
        (case,) = [case for case in report["cases"] if case["id"] == "packaging/imports"]
        assert (case["result"], code, "reason" in case) == ("passed", 0, says)
        if says:
            told, _, why = case["reason"].removeprefix("warning: ").rpartition(": ")
            assert told.split("; ") == [
                "jackfield_nosy/__init__.py:1 imports jackfield.session",
                "jackfield_nosy/__init__.py:2 imports jackfield.plan",
                "jackfield_nosy/inside.py:2 imports jackfield_acme.device",
            ]
            assert "jackfield.backend" in why


@pytest.mark.parametrize("name", LOCKS)
def test_a_module_that_turns_the_lock_on_fails_in_its_case_alone(name, environment):
    """On an interpreter that says it has none."""
    report, _, said = conform(environment, f"{name}:0", *SUITES, "--suite", "free-threading", PRETENDED="1")
    assert report is not None, said
    assert bad(report) == LOCKS[name][2]
    (case,) = [case for case in report["cases"] if case["id"].startswith("free-threading/")]
    assert case["result"] == ("passed" if name == "marked" else "failed")


@pytest.mark.parametrize("name", DISAGREE)
def test_a_manifest_that_the_code_contradicts_is_refused(name, environment):
    report, code, said = conform(environment, "other:0" if name == "miskind" else f"{name}:0", *SUITES)
    assert (report, code) == (None, 1)
    assert DISAGREE[name][2] in said


@pytest.mark.parametrize("name", REFUSED)
def test_code_of_another_distribution_is_refused_before_any_suite(name, environment):
    report, code, said = conform(environment, f"{name}:0", *SUITES)
    assert (report, code) == (None, 1)
    assert REFUSED[name][2] in said
    assert f"not from jackfield-{name} 1.0" in said
    assert "must name a module of its own distribution" in said


def test_a_claims_file_that_says_more_than_is_taken_fails(environment):
    report, _, _ = conform(environment, "lost:0", *SUITES, "--suite", "claims", "--sample", "1")
    assert bad(report) == LOST["lost"][2]


def test_a_level_is_reached_or_told_what_blocks_it(environment):
    report, code, _ = conform(environment, "good:0", "--level", "bronze")
    blocked = report["level"].pop("blocked_by")
    assert report["level"] == {"asked": "bronze", "reached": "bronze", "clean": True}, blocked
    assert (code, blocked) == (0, [])
    report, code, _ = conform(environment, "fixed:0", "--level", "bronze", "--sample", "1")
    assert code == 1
    assert report["level"] == {
        "asked": "bronze",
        "reached": None,
        "clean": False,
        "blocked_by": ["packaging/dependency failed", "only a sample was run"],
    }
