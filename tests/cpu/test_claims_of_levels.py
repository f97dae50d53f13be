"""What this plugin must take at every level; that claims.txt is what the kernels say is tested in tests/conformance."""

from __future__ import annotations

from functools import cache

import pytest

from jackfield import ops
from jackfield.backend import refusal
from jackfield.conformance import claims
from jackfield.conformance.cases import examples
from jackfield.op import OPS
from jackfield_conformance.direct import step_of
from jackfield_cpu import backend as backend_module
from jackfield_cpu.backend import CpuBackend

BASE, *RICHER = CpuBackend().targets()


def counts(text):
    """(op, dtype) to (taken, declared)."""
    rows = (line.split() for line in text.splitlines())
    return {(op, dtype): tuple(map(int, share.split("/"))) for op, dtype, share in rows}


def test_richer_levels_claim_at_least_as_much():
    least = counts(claims(CpuBackend(), BASE))
    for target in RICHER:
        more = counts(claims(CpuBackend(), target))  # a fresh one, that has no answers of another level
        assert all(more[key][0] >= taken for key, (taken, _) in least.items())


@cache
def asked():
    """The declared cases of P0 and P1 ops in f32 and f16: name and step."""
    running = [OPS[name] for name in ops.__all__ if OPS[name].priority != "P2" and not OPS[name].is_view]
    found = [example for op in running for example in examples(op) if example.layout == "dense"]
    return [(example.id, step_of(example)) for example in found if example.dtype.name in ("f32", "f16")]


@pytest.mark.parametrize("target", [BASE, *RICHER], ids=lambda target: target.arch)
def test_every_p0_and_p1_op_takes_f32_and_f16(target):
    backend = CpuBackend()
    kernels = backend.kernels()
    refused = [name for name, step in asked() if refusal(step, kernels, target) or backend.why_not(step, target)]
    assert not refused


def test_each_level_is_asked_itself(monkeypatch):
    """Levels answer alike; where one would not, its own answer counts, whoever was asked before."""
    name, step = asked()[0]
    backend, heard = CpuBackend(), []
    monkeypatch.setattr(backend_module._native, "why_not", lambda step, arch: heard.append(arch))
    for target in [BASE, *RICHER, BASE]:
        assert backend.why_not(step, target) is None, name
    assert heard == [target.arch for target in [BASE, *RICHER]]
