"""The figures of discovery: what is asked, the verdicts, and the exit code."""

from __future__ import annotations

import json
import sys

import discovery
import pytest


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """asked(*words) -> exit code and document of a short run."""

    def ask(*words):
        place = tmp_path / "found.json"
        monkeypatch.setattr(sys, "argv", ["discovery.py", "--distributions", "5", "--runs", "1", *words])
        sys.argv += ["--json", str(place)]
        return discovery.main(), json.loads(place.read_text())

    return ask


def test_each_goal_has_its_verdict(asked, monkeypatch):
    monkeypatch.setattr(discovery, "FIRST_S", 3600.0)
    monkeypatch.setattr(discovery, "NEXT_S", 0.0)
    code, document = asked()
    assert code == 1
    assert document["goals"] == {"met": 2, "missed": 1, "void": 0}
    verdicts = {name: figure["verdict"].partition(" ")[0] for name, figure in document["figures"].items()}
    assert verdicts == {
        "first look": "met",
        "next look": "missed",
        "first call": "",
        "next call": "",
        "import": "met",
    }
    assert document["machine"]["cpu"]
    for name in ("first", "next"):
        look, call = (document["figures"][f"{name} {part}"] for part in ("look", "call"))
        assert call["figure"] > look["figure"] > 0
        assert "goal_here" not in call


def test_an_import_that_reads_them_is_seen(asked, monkeypatch):
    monkeypatch.setattr(discovery, "FIRST_S", 3600.0)
    monkeypatch.setattr(discovery, "NEXT_S", 3600.0)
    reads = "import jackfield as jf\nopen(place + '/package_0-1.0.dist-info/METADATA').close()"
    assert asked()[0] == 0
    monkeypatch.setattr(discovery, "CODE", discovery.CODE.replace("import jackfield as jf", reads))
    code, document = asked()
    assert (code, document["figures"]["import"]["figure"]) == (1, 1)


def test_a_look_that_misses_a_backend_proves_nothing(asked, monkeypatch):
    monkeypatch.setattr(discovery, "CODE", discovery.CODE.replace("len(found)", "1"))
    with pytest.raises(RuntimeError, match="of 3 that are new"):
        asked()
