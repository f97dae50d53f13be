"""Which level a report reaches."""

from __future__ import annotations

from itertools import pairwise

import pytest

from jackfield.errors import AttributeValueError
from jackfield_conformance import conform
from jackfield_conformance.levels import LEVELS, judged, suites_of
from jackfield_conformance.report import document
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


@pytest.mark.parametrize("more", [0, 1, 30])
def test_all_that_blocks_a_level_is_in_the_report_and_the_rest_of_it_is_counted(more, capsys):
    bad = [Result(f"ops/{i:03}", "failed", "planted") for i in range(conform.SHOWN + more)]
    results = [*passing("bronze"), *bad]
    about = {"device": {"name": "acme:0", "arch": "toy"}, "backend": {"dist": "jackfield-acme", "version": "1.0"}}
    fields = document(about, suites_of("bronze"), 0, results, None, "bronze")
    assert fields["level"]["blocked_by"] == [f"{one.id} failed" for one in bad]
    conform._print(fields, results, 0)
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("  blocked by ") for line in lines) == sum(line.startswith("failed: ") for line in lines)
    assert sum(line.startswith("  blocked by ") for line in lines) == conform.SHOWN
    told = f"... and {more} more; --json and --report FILE have them all"
    assert [line.strip() for line in lines if "have them all" in line] == ([told, told] if more else [])
