"""claims.txt of each wheel in the tree is what the kit finds, and a richer target claims at least as much."""

from __future__ import annotations

from pathlib import Path

import pytest

from jackfield.conformance import claims
from jackfield.reference import ReferenceBackend
from jackfield_conformance.__main__ import main

PLUGINS = Path(__file__).parents[2] / "plugins"


def counted(text):
    return {line.rsplit(" ", 1)[0]: int(line.rsplit(" ", 1)[1].split("/")[0]) for line in text.splitlines()}


def test_committed_claims_are_true(on):
    backend, _ = on
    file = PLUGINS / backend.name / "claims.txt"
    if not file.parent.exists():
        pytest.skip(f"{backend.name} is no wheel of its own")
    found = claims(backend, backend.targets()[0])
    advice = f"python -m jackfield_conformance {backend.name} > plugins/{backend.name}/claims.txt"
    assert found.splitlines() == file.read_text().splitlines(), advice
    least = counted(found)
    for target in backend.targets()[1:]:
        richer = counted(claims(backend, target))
        assert all(richer[row] >= taken for row, taken in least.items()), target


def test_the_command_prints_them(capsys):
    assert main(["reference"]) == 0
    assert "softmax f32 11/11" in capsys.readouterr().out
    assert main([]) == 2
    assert capsys.readouterr().err == "usage: python -m jackfield_conformance NAME (cpu, reference, ...)\n"


def test_a_backend_without_targets_is_told_in_one_line(capsys, monkeypatch):
    monkeypatch.setattr(ReferenceBackend, "targets", lambda self: ())
    assert main(["reference"]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("Error: reference: its backend names no targets")
