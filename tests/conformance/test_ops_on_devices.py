"""Every declared case, in every dtype and layout, on every device: right, and nothing else touched."""

from __future__ import annotations

import pytest

from jackfield import ops
from jackfield.conformance import examples
from jackfield.op import OPS
from jackfield_conformance import Refused, mistakes

RUNNING = [name for name in ops.__all__ if not OPS[name].is_view]
SHOWN = 8


@pytest.mark.parametrize("name", RUNNING)
def test_op(name, on):
    backend, device = on
    if name not in backend.kernels():
        pytest.skip(f"{device.name}: no kernel for {name}")
    wrong, taken, refused = [], 0, {}
    for example in examples(OPS[name]):
        try:
            wrong += mistakes(example, backend, device)
            taken += 1
        except Refused as reason:
            refused.setdefault(str(reason), example)
    assert not wrong, f"{len(wrong)} mistakes on {device.name}\n" + "\n".join(wrong[:SHOWN])
    assert taken, f"{device.name} has a kernel for {name} and refuses every case: {sorted(refused)}"
    if device.target.kind in ("reference", "sim"):
        assert not refused
    for reason in refused:
        assert reason.startswith(f"{name}: "), f"a reason names the op: {reason!r}"


def test_a_missing_kernel_is_refused_by_name(on):
    backend, _ = on
    assert set(backend.kernels()) <= set(RUNNING)
