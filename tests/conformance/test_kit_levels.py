"""Which level a report reaches."""

from __future__ import annotations

from itertools import pairwise

import pytest

from jackfield.errors import AttributeValueError
from jackfield_conformance.levels import LEVELS, judged, suites_of
from jackfield_conformance.results import Result
from jackfield_conformance.suites import SUITES


def passing(level):
    return [Result(f"{suite}/x", "passed") for suite in suites_of(level)]


def test_levels_build_on_each_other():
    for lower, upper in pairwise(LEVELS):
        assert suites_of(upper)[: len(suites_of(lower))] == suites_of(lower)
    assert set(suites_of("gold")) == set(SUITES)
    with pytest.raises(AttributeValueError, match="bronze, silver, gold"):
        suites_of("tin")


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_is_reached_when_nothing_of_it_is_bad(level):
    found = judged(level, suites_of(level), passing(level), whole=True)
    assert found == {"asked": level, "reached": level, "clean": True, "blocked_by": []}
    for suite in suites_of(level):
        for bad in ("failed", "crashed", "hung", "xpass"):
            found = judged(level, suites_of(level), [*passing(level), Result(f"{suite}/y", bad)], whole=True)
            assert found["reached"] != level
            assert found["blocked_by"] == [f"{suite}/y {bad}"]
        refused = judged(level, suites_of(level), [*passing(level), Result(f"{suite}/y", "unsupported")], whole=True)
        assert refused["reached"] == level
        fewer = [s for s in suites_of(level) if s != suite]
        short = judged(level, fewer, [r for r in passing(level) if r.suite != suite], whole=True)
        assert short["reached"] != level
        assert f"suite {suite} was not run" in short["blocked_by"]


def test_a_fault_of_a_higher_level_leaves_the_lower():
    found = judged(None, suites_of("gold"), [*passing("gold"), Result("views/y", "failed")], whole=True)
    assert (found["reached"], found["clean"]) == ("bronze", True)
    assert found["blocked_by"] == ["views/y failed"]


def test_a_known_failure_is_not_clean():
    found = judged("bronze", suites_of("bronze"), [*passing("bronze"), Result("ops/y", "xfail")], whole=True)
    assert (found["reached"], found["clean"], found["blocked_by"]) == ("bronze", False, [])


def test_who_refuses_everything_reaches_nothing():
    refusing = [Result(f"{suite}/x", "unsupported" if suite == "ops" else "passed") for suite in suites_of("gold")]
    found = judged("bronze", suites_of("gold"), refusing, whole=True)
    assert (found["reached"], found["blocked_by"]) == (None, ["no case of ops passed"])


def test_a_sample_reaches_nothing():
    found = judged("bronze", suites_of("bronze"), passing("bronze"), whole=False)
    assert (found["reached"], found["blocked_by"]) == (None, ["only a sample was run"])
