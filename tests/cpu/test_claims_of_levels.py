"""What claims.txt must hold for this plugin; that it is what the kernels say is tested in tests/conformance."""

from __future__ import annotations

from pathlib import Path

from jackfield import ops
from jackfield.conformance import claims
from jackfield.op import OPS
from jackfield_cpu.backend import CpuBackend

FILE = Path(__file__).parents[2] / "plugins" / "cpu" / "claims.txt"


def counts(text):
    """(op, dtype) to (taken, declared)."""
    rows = (line.split() for line in text.splitlines())
    return {(op, dtype): tuple(map(int, share.split("/"))) for op, dtype, share in rows}


def targets():
    backend = CpuBackend()
    return backend, backend.targets()


def test_richer_levels_claim_at_least_as_much():
    backend, (base, *richer) = targets()
    least = counts(claims(backend, base))
    for target in richer:
        more = counts(claims(backend, target))
        assert all(more[key][0] >= taken for key, (taken, _) in least.items())


def test_every_p0_op_that_runs_has_a_kernel_for_f32():
    took = counts(FILE.read_text())
    running = [name for name in ops.__all__ if OPS[name].priority == "P0" and not OPS[name].is_view]
    assert {name for name in running if took[name, "f32"][0] == 0} == set()
