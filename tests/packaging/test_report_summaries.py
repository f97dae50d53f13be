"""The summaries of the kit's reports in docs/reports: short, and no case is lost in them."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]


def script():
    spec = importlib.util.spec_from_file_location("ci_summary", ROOT / ".ci/summary.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


summaries = script()
REFUSALS = [
    ("op", "no kernel for abs"),
    ("dtype", "x is i8"),
    ("dtype", "x is i16"),
    ("attribute", "axis"),
    ("op", "no"),
]
CASES = st.lists(
    st.tuples(
        st.sampled_from(["ops", "views", "buffers"]),
        st.sampled_from(["abs", "sum", "linear"]),
        st.sampled_from(["passed", "failed", "crashed", *range(len(REFUSALS))]),
    ),
    max_size=40,
)


def report(rows):
    cases = []
    for number, (suite, op, what) in enumerate(rows):
        case = {"id": f"{suite}/{op}/f32/{number}", "result": what}
        if isinstance(what, int):
            case |= {"result": "unsupported", "code": REFUSALS[what][0], "reason": REFUSALS[what][1]}
        cases.append(case)
    kinds = ("passed", "failed", "unsupported", "crashed")
    suites = {s: dict.fromkeys(kinds, 0) for s in sorted({suite for suite, _, _ in rows})}
    for case in cases:
        suites[case["id"].split("/")[0]][case["result"]] += 1
    rest = dict.fromkeys(("core", "contract", "spoken", "device", "seed", "sample", "level", "digest"), "")
    return {**rest, "backend": {"name": "x", "build": "y"}, "suites": suites, "cases": cases}


@given(CASES)
def test_every_case_is_counted_once_and_what_is_bad_is_named(rows):
    whole = report(rows)
    short = json.loads(summaries.text(summaries.summary(whole)))
    assert short["schema"] == "jackfield.conformance-summary/2"
    assert short["suites"] == whole["suites"]
    assert "build" not in short["backend"]
    counts = Counter(short["no_kernel"]["cases"])
    for place, codes in short["unsupported"].items():
        counts[place.split("/")[0]] += sum(codes.values())
    assert counts == Counter({s: row["unsupported"] for s, row in whole["suites"].items() if row["unsupported"]})
    assert [case["id"] for case in short["bad"]] == [
        c["id"] for c in whole["cases"] if c["result"] in ("failed", "crashed")
    ]
    for code, row in short["reasons"].items():
        assert (code, row["reason"]) in REFUSALS
        assert row["other_reasons"] >= 0 < row["cases"]


def test_reports_are_short_enough_to_be_read():
    for path in (ROOT / "docs/reports").glob("conform-*.json"):
        assert path.stat().st_size < 64_000, path.name
        json.loads(path.read_text("utf-8"))
