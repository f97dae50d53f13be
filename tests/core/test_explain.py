"""The report: golden text and data, and that it says what runs."""

from __future__ import annotations

import json

import numpy as np
from fakes import Minimal, Picky, registered
from graphs import graphs
from hypothesis import given, settings
from hypothesis import strategies as st

import jackfield as jf
from jackfield import ops
from jackfield.explain import explain
from jackfield.report import size

TEXT = """\
one+reference, policy prefer: 3 nodes: one:0 2 (56% of the work), reference:0 1 (44% of the work); 2 copies, 192 bytes
note: pin 'nothing' matches nothing
run 0 on one:0, 2 steps
  copy.0: inserted
  add.0 -> f32[6, 4]
run 1 on reference:0, 1 steps
  softmax.0 -> f32[6, 4]
    not on one:0: softmax: not today
    copied in: add from one:0, 96 bytes
run 2 on one:0, 1 steps
  multiply.0 -> f32[6, 4]
    copied in: softmax from reference:0, 96 bytes
copy inserted before add.0 on one:0: transpose, 96 bytes; add reads its operand 0 dense
memory one:0: constants 64 bytes, states 0 bytes, temporaries 384 bytes (at least 384 bytes), peak 448 bytes
memory reference:0: constants 0 bytes, states 0 bytes, temporaries 128 bytes (at least 128 bytes), peak 128 bytes"""


def graph():
    x = jf.input("x", (4, 6))
    c = jf.constant(np.ones(4, np.float32), "c")
    a = ops.add(x.T, c)
    return ops.multiply(ops.softmax(a), a)


def backend():
    def refuse(step, target):
        return "softmax: not today" if step.op == "softmax" else None

    return Picky([Minimal("one:0")], refuse=refuse)


def test_the_text():
    with registered(backend()):
        plan = jf.compile(graph(), "one+reference", pins=[("nothing", "one"), ("multiply.0", "one")])
        assert str(plan.explain()) == TEXT


def test_the_data():
    with registered(backend()):
        data = jf.compile(graph(), "one+reference", pins={"multiply.0": "one"}).explain().to_dict()
    assert next(iter(data)) == "schema"
    assert data["schema"] == "jackfield.explain/1"
    assert (data["policy"], data["selection"], data["profile"]) == ("prefer", "one+reference", None)
    assert data["runs"] == [
        {"device": "one:0", "nodes": ["copy.0", "add.0"]},
        {"device": "reference:0", "nodes": ["softmax.0"]},
        {"device": "one:0", "nodes": ["multiply.0"]},
    ]
    softmax = next(node for node in data["nodes"] if node["id"] == "softmax.0")
    assert softmax == {
        "id": "softmax.0",
        "op": "softmax",
        "out": "f32[6, 4]",
        "device": "reference:0",
        "wanted": "one:0",
        "candidates": [
            {"device": "one:0", "takes": False, "code": "other", "reason": "softmax: not today"},
            {"device": "reference:0", "takes": True, "code": None, "reason": None},
        ],
        "copies_in": [{"tensor": "add", "from": "one:0", "bytes": 96}],
    }
    assert data["inserted"] == [
        {
            "before": "add.0",
            "operand": "transpose",
            "device": "one:0",
            "why": "add reads its operand 0 dense",
            "bytes": 96,
        }
    ]
    assert data["summary"]["copies"] == 2
    assert data["summary"]["bytes_moved"] == 192
    assert sum(data["summary"]["share"].values()) == 1
    assert set(data["memory"]["one:0"]) == {"constants", "states", "temporaries", "peak", "lower_bound", "limit"}


def test_json_is_json():
    with registered(backend()):
        report = jf.compile(graph(), "one+reference").explain()
    assert json.loads(report.to_json()) == json.loads(json.dumps(report.to_dict()))


def test_a_report_without_a_plan_allocates_nothing():
    device = Minimal("one:0")
    with registered(Picky([device])):
        report = explain(graph(), "one")
        assert device.counts["alloc"] == 0
        assert str(report) == str(jf.compile(graph(), "one").explain())


def test_sizes_for_people():
    assert [size(n) for n in (0, 1023, 1024, 1536, 1024**2, 5 * 1024**3, 1024**5)] == [
        "0 bytes", "1023 bytes", "1.0 KiB", "1.5 KiB", "1.0 MiB", "5.0 GiB", "1024.0 TiB",
    ]  # fmt: skip


@given(graphs(), st.sets(st.sampled_from(["add", "multiply", "contiguous", "write"])))
@settings(max_examples=50)
def test_the_report_says_what_runs(built, refused):
    """Devices, counts of copies and bytes equal what two watched devices saw."""
    one, two = Minimal("one:0"), Minimal("two:0")
    with registered(Picky([one], without=sorted(refused)), Picky([two])):
        plan = jf.compile(built.tensors(), "one+two", policy="strict")
        data = plan.explain().to_dict()
        for device in (one, two):
            device.counts.clear()
            device.log.clear()
        plan(**{name: built.inputs[name] for name in plan.inputs})
        runs = {name: sum(run["device"] == name for run in data["runs"]) for name in ("one:0", "two:0")}
        assert (one.counts["run"], two.counts["run"]) == (runs["one:0"], runs["two:0"])
        written = sum(n for device in (one, two) for way, n in device.log if way == "write")
        read = sum(n for device in (one, two) for way, n in device.log if way == "read")
        fed = sum(value.nbytes for kind, value in placed_inputs(plan))
        out = sum(o.type.nbytes for o in plan._outputs if o.read is not None)
        assert written - fed == read - out == data["summary"]["bytes_moved"]


def placed_inputs(plan):
    return [(v.device, v.spec) for v in plan._drawn.parts.leaves if v.kind == "input"]
