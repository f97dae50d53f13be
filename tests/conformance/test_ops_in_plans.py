"""Every declared case through a plan: views as operands, targets in states, results as fresh arrays."""

from __future__ import annotations

import numpy as np
import pytest

import jackfield as jf
from jackfield.conformance import compare, examples, expected, faults_agree
from jackfield.errors import DeviceError, PlacementError
from jackfield.graph import Attrs, view
from jackfield.op import OPS
from jackfield_conformance.direct import window_on

LAYOUTS = ("dense", "sliced", "transposed")


def usual(op):
    """The examples of plain dtypes, each case in its first dtype only."""
    seen = set()
    for example in examples(op):
        plain = all(not s.dtype.is_block for s in example.specs if s) and not example.result.dtype.is_block
        key = (example.case, example.layout, frozenset(example.views))
        if example.layout in LAYOUTS and plain and key not in seen:
            seen.add(key)
            yield example


def image(base, window, array):
    """The dense array a leaf holds so that the window on it shows the operand."""
    raw = np.zeros(max(1, base.nbytes), np.uint8)
    window_on(raw, window.offset, window.spec)[...] = array
    return raw[: base.nbytes].view(base.dtype.numpy).reshape(base.shape)


def planned(example, device):
    """(result, fault) of one example on this device."""
    session = jf.Session(device=device)
    tensors, feeds = [], {}
    for name, array in zip(example.op.operands, example.arrays(), strict=True):
        if array is None:
            tensors.append(None)
            continue
        base, window = example.bases[name], example.views[name]
        is_target = example.op.updates and not tensors
        leaf = jf.state(name, base.shape, base.dtype) if is_target else jf.input(name, base.shape, base.dtype)
        feeds[name] = image(base, window, array)
        tensors.append(leaf if window.spec == base else view("slice", leaf, Attrs(), window))
    plan = session.compile(example.op(*tensors, **example.attrs))
    if example.op.updates:
        session.states[example.op.operands[0]].write(feeds.pop(example.op.operands[0]))
    try:
        return plan(**feeds), None
    except DeviceError as fault:
        return None, fault


@pytest.mark.parametrize("name", jf.ops.__all__)
def test_op(name, on):
    _, device = on
    wrong, tried = [], 0
    for example in usual(OPS[name]):
        want, faults = expected(example)
        try:
            result, fault = planned(
                example, f"{device.name}+reference" if device.target.kind != "reference" else "reference"
            )
        except PlacementError as e:
            pytest.fail(f"{example}: {e}")
        tried += 1
        text = faults_agree(example.op, faults, fault) or ("" if faults else compare(example, np.asarray(result), want))
        if text:
            wrong.append(f"{example}: {text}")
    assert not wrong, f"{len(wrong)} mistakes\n" + "\n".join(wrong[:8])
    assert tried >= 3
