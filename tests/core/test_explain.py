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
from jackfield.backend import Rates
from jackfield.explain import explain
from jackfield.report import report_of
from jackfield.telling import duration, size

TEXT = """\
one+reference, policy prefer: 3 nodes: one:0 2 (56% of the work), reference:0 1 (44% of the work); 2 copies, 192 bytes
warned: 3 nodes: one:0 2, reference:0 1 (softmax: not today); 2 copies, 192 bytes
note: pin 'nothing' matches nothing
run 0 on one:0, 2 steps
  copy.0: inserted
  add.0 -> f32[6, 4]
    not on reference:0: cheaper on one:0: 0.2 us there, 30.2 us here
run 1 on reference:0, 1 step
  softmax.0 -> f32[6, 4]
    not on one:0: softmax: not today
    copied in: add from one:0, 96 bytes
run 2 on one:0, 1 step
  multiply.0 -> f32[6, 4]
    pinned by 'multiply.0'
    copied in: softmax from reference:0, 96 bytes
copy inserted before add.0 on one:0: transpose, 96 bytes; add reads its operand 0 dense
constant c on one:0 with add.0, not on reference:0: cheaper on one:0: 0.2 us there, 30.2 us here
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
        "pinned": None,
        "candidates": [
            {
                "device": "one:0",
                "takes": False,
                "seconds": None,
                "code": "other",
                "reason": "softmax: not today",
            },
            {"device": "reference:0", "takes": True, "seconds": 3.024e-05, "code": None, "reason": None},
        ],
        "copies_in": [{"tensor": "add", "from": "one:0", "bytes": 96}],
    }
    add = next(node for node in data["nodes"] if node["id"] == "add.0")
    dearer = {"seconds": 3.0208e-05, "reason": "cheaper on one:0: 0.2 us there, 30.2 us here"}
    assert add["candidates"][1] == {"device": "reference:0", "takes": True, "code": "cost", **dearer}
    assert data["homes"] == [
        {
            "tensor": "c",
            "kind": "constant",
            "device": "one:0",
            "bytes": 16,
            "step": "add.0",
            "lived_there": False,
            "pinned": None,
            "others": [{"device": "reference:0", **dearer}],
        }
    ]
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


def test_a_pin_that_matches_nothing_is_warned_of_once_a_session(caplog):
    with registered(backend()):
        session = jf.Session("one+reference")
        for _ in range(2):
            session.compile(graph(), pins=[("nothing", "one"), ("c", "one")])
    told = [r.getMessage() for r in caplog.records if r.levelname == "WARNING" and "matches" in r.getMessage()]
    assert told == [
        "pin 'nothing' matches nothing; it must be a constant's or state's whole name, or a node as explain() shows it"
    ]


def test_a_device_without_room_is_told_in_a_line_of_its_own():
    y = jf.input("x", (8, 64))
    for i in range(4):
        y = ops.linear(y, jf.constant(np.full((64, 64), i, np.float32), f"w{i}"))
    with jf.sim(mem="40KiB"):
        report = jf.compile(y, "sim+reference").explain()
    (note,) = report.to_dict()["notes"]
    assert note == (
        "sim:0 lacks memory for 2 of 4 steps, which go to reference:0: "
        "linear.2: 16384 bytes of constants and states, 8192 free of 40960"
    )
    assert f"note: {note}" in str(report).splitlines()
    with jf.sim(mem="1MiB"):
        assert jf.compile(y, "sim+reference").explain().to_dict()["notes"] == []


def test_a_plan_that_was_settled_reports_the_same():
    """What a plan lets go of is worked out again, word for word; calls, clones and traces do not need it."""
    with registered(backend()):
        session = jf.Session("one+reference")
        outputs = graph()
        outputs = (outputs, ops.tanh(outputs.operands[1]))
        before = report_of(session.draw(outputs, pins={"multiply.0": "one"}))
        plan = session.compile(outputs, pins={"multiply.0": "one"})
        assert plan._drawn._flow is None and not plan._drawn.placement.answers
        a = np.arange(24, dtype=np.float32).reshape(4, 6)
        assert all(map(np.array_equal, plan(x=a), plan.clone()(x=a)))
        assert str(plan.explain()) == str(before) == str(plan.explain())
        assert plan.explain().to_dict() == before.to_dict()


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


def test_a_step_may_go_where_it_is_slower_and_the_report_says_so():
    """What the second device would save is less than the two copies cost."""
    slow = Rates(multiply_adds=1e12, nbytes=1e9, launch=1e-7, copy_nbytes=1e10, copy_launch=1e-6)
    far = Rates(multiply_adds=1e12, nbytes=1e12, launch=1e-7, copy_nbytes=1e10, copy_launch=1e-3)
    x = jf.input("x", (2500,))
    s = jf.state("s", (2500,))
    with registered(Picky([Minimal("one:0", rates=slow)]), Picky([Minimal("two:0", rates=far)], without=["add"])):
        report = explain([ops.tanh(ops.add(x, x)), ops.write(s, x, start=(0,))], "one+two")
    text = "cheaper on one:0 with its copies: 20.1 us there, 0.12 us here"
    assert f"    not on two:0: {text}" in str(report).splitlines()
    (home,) = report.to_dict()["homes"]
    assert (home["tensor"], home["kind"], home["step"], home["lived_there"]) == ("s", "state", "write.0", False)
    assert [o["device"] for o in home["others"]] == [{"one:0": "two:0", "two:0": "one:0"}[home["device"]]]


def test_a_state_that_lives_somewhere_stays_there():
    s = jf.state("s", (4,))
    with registered(Picky([Minimal("one:0")]), Picky([Minimal("two:0")])):
        session = jf.Session("one+two")
        update = ops.write(s, jf.input("x", (4,)), start=(0,))
        first = session.compile(update).explain().to_dict()["homes"]
        again = session.compile(update).explain().to_dict()["homes"]
    assert [(h["device"], h["lived_there"]) for h in (*first, *again)] == [("one:0", False), ("one:0", True)]


def test_times_for_people():
    assert [duration(s) for s in (0.0, 1.25e-7, 9.99e-4, 1.5e-3, 2.0)] == [
        "0 us", "0.125 us", "999 us", "1.5 ms", "2 s"
    ]  # fmt: skip


def test_an_accelerator_that_was_named_and_gets_little_is_told_once(caplog):
    x = jf.input("x", (4, 4))
    y = ops.add(ops.softmax(x), x)
    slow = Rates(multiply_adds=1e3, nbytes=1e3, launch=1.0)
    with registered(Picky([Minimal("slow:0", rates=slow)])), registered(Picky([Minimal("one:0")]), device_class="cpu"):
        jf.compile(y, "slow+one")
        jf.compile(y, "one+slow")
        jf.compile(y, "one")
    told = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert told == ["2 nodes: one:0 2; 0 copies, 0 bytes; slow:0 was asked for and gets 0% of the declared work"] * 2


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
