"""The kit on the devices of the tree: a sample of long suites, all of the short ones. The whole is in `.ci/full`."""

from __future__ import annotations

import os
import re
import zlib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from jackfield.errors import Unavailable
from jackfield_conformance.levels import judged
from jackfield_conformance.runner import Request, Runner
from jackfield_conformance.suites import SUITES, trials_of

KINDS = ("reference", "sim", "cpu")
LONG = {
    "ops": 60,
    "views": 40,
    "guards": 40,
    "block-dtypes": 12,
    "packed": 6,
    "claims": 16,
    "threads": 16,
    "memory": 3,
}
SKIPPED = {"memory/plan-cycles", "memory/constants", "memory/clones"}  # some seconds each


# Suites of which nothing is asked: the core's own devices come from no wheel. Nor does any of these owe `overhead`, as
# no run is stored, and `free-threading`, as this Python has its lock.
REFUSED = {"reference": ("packaging", "manifest"), "sim": ("packaging", "manifest", "packed")}


@cache
def listed(suites):
    """Ids of all cases; listing them takes some seconds."""
    return tuple(trial.id for trial in trials_of(suites, 0))


def sampled(names):
    """Every id of a short suite, one of so many of a long one; always the same."""
    return [n for n in names if zlib.crc32(n.encode()) % LONG.get(n.partition("/")[0], 1) == 0 and n not in SKIPPED]


def tried(device, chosen=sampled, suites=tuple(SUITES), imports=()):
    with Runner(Request(device, suites, imports=imports)) as runner:
        results = list(runner.results(chosen(listed(suites))))
    wrong = [f"{r.result}: {r.id}: {r.reason}" for r in results if r.is_bad]
    assert not wrong, "\n".join(wrong[:8])
    assert len(results) > 100
    return results


def counted(results):
    return Counter((r.suite, r.result) for r in results)


@pytest.mark.parametrize("kind", KINDS)
def test_gold_is_reached_as_far_as_a_sample_shows(kind, absent, tmp_path, monkeypatch):
    monkeypatch.setenv("JACKFIELD_CACHE", str(tmp_path))
    try:
        results = tried(kind)
    except Unavailable as e:
        absent(kind, str(e))
    level = judged("gold", tuple(SUITES), results, whole=False)
    assert level == {"asked": "gold", "reached": None, "clean": False, "blocked_by": ["only a sample was run"]}
    assert judged("gold", tuple(SUITES), results, whole=True)["reached"] == "gold"
    counts = counted(results)
    owed = {suite for suite in SUITES if suite not in REFUSED.get(kind, ())} - {"free-threading", "overhead"}
    assert {suite for suite in owed if not counts[suite, "passed"]} == set(), counts


def test_the_backend_of_the_vendors_page_is_right(tmp_path, monkeypatch):
    """The whole backend of docs/adding-a-backend.md: two ops, and everything else refused."""
    page = (Path(__file__).parents[2] / "docs/adding-a-backend.md").read_text("utf-8")
    code = re.search(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)[1]
    (tmp_path / "toy_of_the_page.py").write_text(
        f"{code}\nimport jackfield\njackfield.register_backend(ToyBackend())\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")])))

    def its_ops(names):
        return [n for n in names if "/add/f32" in n or "/relu/f32" in n or n.startswith("buffers/")]

    counts = counted(tried("toy", its_ops, ("ops", "buffers", "views", "guards"), ("toy_of_the_page",)))
    assert all(counts[suite, "passed"] for suite in ("ops", "buffers", "views", "guards")), counts
