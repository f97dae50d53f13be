"""What happened in a call: `explain` says before what the trace says after, and devices tell of their own work."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from fakes import Minimal, Picky, registered
from graphs import graphs
from hypothesis import given, settings
from hypothesis import strategies as st

import jackfield as jf
from jackfield import ops, trace
from jackfield.simulated import SimDevice

pytestmark = pytest.mark.usefixtures("only_core")


def spans(found):
    return [e for e in found["traceEvents"] if e["ph"] == "X"]


def done_by(found, device):
    return [e for e in spans(found) if e["tid"] and e["args"]["device"] == device]


@given(graphs(), st.sets(st.sampled_from(["add", "multiply", "contiguous", "write"])), st.sampled_from([1, 2]))
@settings(max_examples=50)
def test_explain_equals_what_runs(built, refused, parts):
    """Devices of nodes, copies and bytes, against the trace and against what devices saw of it."""
    one = Minimal("one:0")
    with jf.sim(refuse=sorted(refused), parts=parts, direct=False), registered(Picky([one])):
        plan = jf.compile(built.tensors(), "sim+one", policy="strict")
        data = plan.explain().to_dict()
        one.counts.clear()
        plan(**{name: built.inputs[name] for name in plan.inputs})
        found = plan.trace()
    ran = [e["args"] for e in spans(found) if "nodes" in e["args"]]
    assert ran == [{"device": run["device"], "nodes": run["nodes"]} for run in data["runs"]]
    moved = [(e["args"]["device"], copy) for e in spans(found) for copy in e["args"].get("copies", ())]
    told = [(n["device"], copy) for n in data["nodes"] for copy in n["copies_in"]]
    assert len(moved) == data["summary"]["copies"]
    assert sum(copy["bytes"] for _, copy in moved) == data["summary"]["bytes_moved"]
    if not any(n.startswith("copy.") for run in data["runs"] for n in run["nodes"]):  # which may read a copy as well
        assert Counter(map(repr, moved)) == Counter(map(repr, told))
    ops_of = {n["id"]: n["op"] for n in data["nodes"]}
    for device in {run["device"] for run in data["runs"]} - {"one:0"}:
        told = [ops_of.get(n, "contiguous") for run in data["runs"] if run["device"] == device for n in run["nodes"]]
        assert [e["name"] for e in done_by(found, device)] == told, "by the device's own account"
    assert one.counts["run"] == sum(run["device"] == "one:0" for run in data["runs"])


def plan_of(device="sim", steps=20, size=64):
    x = jf.input("x", (size, size))
    for _ in range(steps):
        x = ops.softmax(ops.scale(x, scale=1.5))
    return jf.compile(x, device)


def call(plan, size=64):
    plan(x=np.ones((size, size), np.float32))


def test_spans_of_a_device_lie_in_the_call(tmp_path):
    plan = plan_of()
    assert plan.trace()["traceEvents"] == []
    call(plan)
    trace.save(plan, tmp_path / "trace.json")
    found = json.loads((tmp_path / "trace.json").read_text())
    (whole,) = [e for e in spans(found) if e["name"] == "call"]
    inside = [e for e in spans(found) if e is not whole]
    assert all(e["ts"] >= whole["ts"] and e["ts"] + e["dur"] <= whole["ts"] + whole["dur"] + 1e-3 for e in inside)
    device = done_by(found, "sim:0")
    assert [e["name"] for e in device] == ["scale", "softmax"] * 20
    assert sum(e["dur"] for e in device) <= whole["dur"]
    for before, after in pairwise(device):
        assert before["ts"] + before["dur"] <= after["ts"] + 1e-3, "one queue"
    host = [e for e in inside if e["tid"] == 0]
    assert sum(e["dur"] for e in host) == pytest.approx(whole["dur"])
    assert {e["tid"]: e["args"]["name"] for e in found["traceEvents"] if e["ph"] == "M"} == {0: "host", 1: "sim:0"}


def test_a_trace_is_of_the_last_call_alone_and_stays_as_it_is():
    plan, other = plan_of(steps=3), plan_of(steps=2)
    call(plan)
    call(plan)
    call(other)
    first = plan.trace()
    assert len(done_by(first, "sim:0")) == 6
    assert plan.trace() == first
    call(plan)
    assert plan.trace() != first
    assert len(done_by(plan.trace(), "sim:0")) == 6


def test_nobody_is_asked_in_a_call(monkeypatch):
    asked = []
    monkeypatch.setattr(SimDevice, "take_spans", lambda self: asked.append(self.name) or [])
    plan = plan_of(steps=500, size=2)
    for _ in range(100):
        call(plan, size=2)
    assert asked == []
    plan.trace()
    plan.trace()
    assert asked == ["sim:0"]


def test_a_device_without_spans_has_the_calls_parts():
    plan = plan_of("reference", steps=1)
    call(plan)
    assert [e["name"] for e in spans(plan.trace())] == ["call", "write inputs", "reference:0: 2 steps", "read outputs"]
