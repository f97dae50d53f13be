"""Policies: what becomes of a missing device, a refused step and a lost device; what is told; how `auto` chooses."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from fakes import Minimal, Picky, registered
from graphs import graphs
from hypothesis import given, settings

import jackfield as jf
from jackfield import ops, registry
from jackfield.errors import DeviceLost, DeviceNameError, OutOfMemory, PlacementError, PlanError
from jackfield.explain import explain
from jackfield.simulated import SimDevice

POLICIES = ("strict", "prefer", "auto")
ONES = np.ones((4, 6), np.float32)


pytestmark = pytest.mark.usefixtures("only_core")


@pytest.fixture
def allocated(monkeypatch):
    """What any simulated device was asked to allocate."""
    found = []
    plain = SimDevice.alloc

    def alloc(self, nbytes, usage):
        found.append(nbytes)
        return plain(self, nbytes, usage)

    monkeypatch.setattr(SimDevice, "alloc", alloc)
    return found


def outputs():
    x = jf.input("x", (4, 6))
    return ops.softmax(ops.add(x, x))


def warnings(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


# S1: a named device is missing


@pytest.mark.parametrize("policy", POLICIES)
def test_the_next_set_is_taken_where_one_device_is_missing(policy, caplog):
    plan = jf.compile(outputs(), "sim:7, sim", policy=policy)
    assert plan.devices == ("sim:0",)
    (told,) = warnings(caplog)
    assert told.startswith("passed over in 'sim:7, sim': 'sim:7, sim', column 1: 1 device of kind sim: sim:0")
    assert told in plan.explain().to_dict()["notes"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("text", ["sim:7", "nix", "sim:7, nix:1"])
def test_without_another_set_it_is_an_error(policy, text, allocated):
    with pytest.raises(DeviceNameError):
        jf.compile(outputs(), text, policy=policy)
    assert allocated == []


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("text", ["sim:7+sim", "nix+sim", "sim+nix", "nix+sim+sim:7"])
def test_only_auto_leaves_a_device_out_of_its_set(policy, text, allocated, caplog, monkeypatch):
    monkeypatch.setenv("JACKFIELD_POLICY", policy)
    if policy != "auto":
        with pytest.raises(DeviceNameError):
            jf.compile(outputs(), text)
        assert allocated == []
        return
    plan = jf.compile(outputs(), text)
    assert plan.devices == ("sim:0",)
    told = warnings(caplog)
    assert len(told) == text.count("+")
    assert all(line.startswith(f"passed over in {text!r}: ") for line in told)
    assert set(told) <= set(plan.explain().to_dict()["notes"])


def test_auto_takes_what_is_left_only_where_something_is():
    with pytest.raises(DeviceNameError, match="no kind of device is called 'nix'"):
        jf.compile(outputs(), "nix+nax", policy="auto")
    assert jf.compile(outputs(), "nix+nax, sim", policy="auto").devices == ("sim:0",)
    with pytest.raises(DeviceNameError, match="stands twice"):
        jf.compile(outputs(), "nix+sim+sim:0", policy="auto")


# S1: a step is refused


@pytest.mark.parametrize("policy", POLICIES)
def test_a_refused_step(policy, allocated, caplog):
    with jf.sim(refuse="softmax"):
        if policy == "strict":
            with pytest.raises(PlacementError) as caught:
                jf.compile(outputs(), "sim", policy=policy)
            assert str(caught.value) == (
                "1 of 2 steps are not taken by a chosen device\n"
                "softmax.0: softmax(f32[4, 6], -, -, scale=1.0, max_bias=0.0) -> f32[4, 6]\n"
                "  sim:0: no kernel for softmax"
            )
            assert allocated == []
            return
        plan = jf.compile(outputs(), "sim", policy=policy)
        assert plan.devices == ("sim:0", "reference:0")
        np.testing.assert_allclose(plan(x=ONES), np.full((4, 6), 1 / 6), rtol=1e-6)
        (told,) = warnings(caplog)
        assert told == "2 nodes: sim:0 1, reference:0 1 (softmax: no kernel for softmax); 1 copy, 96 bytes"
        assert f"warned: {told}" in str(plan.explain()).splitlines()


@pytest.mark.parametrize("policy", ["prefer", "auto"])
def test_who_takes_over(policy):
    """The next of the set, then class cpu by priority, then the reference."""
    host, other = Picky([Minimal("host:0")]), Picky([Minimal("zz:0")], without=["add"])
    deaf = Picky([Minimal("deaf:0")], without=["softmax"])
    with jf.sim(refuse="softmax"), registered(other), registered(deaf, host, device_class="cpu"):
        assert jf.compile(outputs(), "sim+zz", policy=policy).devices == ("sim:0", "zz:0")
        assert jf.compile(outputs(), "sim", policy=policy).devices == ("sim:0", "host:0")
        host.without = frozenset(["softmax"])
        registry.refresh()
        assert jf.compile(outputs(), "sim", policy=policy).devices == ("sim:0", "reference:0")


# S1: a device is lost in a call


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("after", [0, 1])
def test_a_device_that_is_lost(policy, after):
    with jf.sim(lost_after=after):
        plan = jf.compile(outputs(), "sim", policy=policy)
        for _ in range(2):
            with pytest.raises(DeviceLost, match=f"sim:0 was lost after {after} steps"):
                plan(x=ONES)


# S2: what is told


def accelerator(name="acc:0", refuse=(), reason="{}: only the last axis"):
    def why(step, target):
        return reason.format(step.op) if step.op in refuse else None

    return Picky([Minimal(name)], refuse=why)


def test_the_one_line(caplog):
    y = jf.input("x", (8, 128))
    for _ in range(200):
        y = ops.scale(y, scale=1.5)
    y = ops.sum(y, axis=0, keepdims=True)
    y = ops.sum(ops.reshape(y, shape=(128, 1)), axis=0, keepdims=True)
    y = ops.sum(y, axis=0, keepdims=True)
    for _ in range(209):
        y = ops.scale(y, scale=0.5)
    host = registered(Picky([Minimal("host:0")]), device_class="cpu")
    with registered(accelerator(refuse=["sum"])), host, caplog.at_level(logging.INFO, "jackfield"):
        plan = jf.compile(y, "acc")
    line = "412 nodes: acc:0 409, host:0 3 (sum: only the last axis); 2 copies, 4.0 KiB"
    assert warnings(caplog) == [line]
    told = [r.getMessage() for r in caplog.records if r.levelno == logging.INFO]
    assert told == ["sum is not taken by acc:0: sum: only the last axis"]
    report = plan.explain()
    assert report.to_dict()["warning"] == line
    assert str(report).splitlines()[1] == f"warned: {line}"
    refused = [n["id"] for n in report.to_dict()["nodes"] if not n["candidates"][0]["takes"]]
    assert refused == ["sum.0", "sum.1", "sum.2"]


def test_nothing_is_warned_of_where_all_is_as_it_was_asked_for(caplog):
    with registered(accelerator()):
        report = jf.compile(outputs(), "acc").explain()
    assert warnings(caplog) == []
    assert report.to_dict()["warning"] is None
    assert "warned" not in str(report)


def split_work(first, second):
    """Two steps of the first op and one of the second, each as large as the others."""
    x = jf.input("x", (64, 64))
    return getattr(ops, second)(getattr(ops, first)(getattr(ops, first)(x)))


def test_each_accelerator_that_was_named_should_get_its_part(caplog):
    one, two = accelerator("one:0", refuse=["tanh"]), accelerator("two:0", refuse=["relu"])
    with registered(one, two):
        jf.compile(split_work("relu", "tanh"), "one+two", policy="strict")
        assert all("was asked for" not in line for line in warnings(caplog)), "47% is more than half of a half"
        caplog.clear()
        jf.compile(ops.relu(jf.input("x", (4,))), "one+two", policy="strict")
        assert warnings(caplog) == [
            "1 node: one:0 1; 0 copies, 0 bytes; two:0 was asked for and gets 0% of the declared work"
        ]
        caplog.clear()
        jf.compile(split_work("relu", "tanh"), "two+reference")
        (line,) = warnings(caplog)
        assert line.endswith("; two:0 was asked for and gets 47% of the declared work")


def test_little_less_than_half_does_not_read_as_half():
    from jackfield.blueprint import percent

    assert [percent(s) for s in (0.0, 0.333, 0.4999, 0.496, 0.5, 0.504, 1.0)] == [
        "0%", "33%", "49.9%", "49.6%", "50%", "50%", "100%"
    ]  # fmt: skip


def test_how_auto_chose_is_data():
    y = split_work("relu", "tanh")
    with registered(accelerator("one:0", refuse=["relu"]), accelerator("two:0", refuse=["tanh"]), device_class="gpu"):
        data = explain(y).to_dict()
    assert data["auto"] == {"at_least": 0.5, "shares": {"one:0": 0.4706, "two:0": 0.5294}, "chosen": ["two:0"]}
    assert explain(y, "sim").to_dict()["auto"] is None


# Pins in the report


def test_pins_are_told():
    x, k = jf.input("x", (4, 6)), jf.state("k", (4, 6))
    w = jf.constant(np.ones((6, 6), np.float32), "w")
    small = jf.constant(np.ones(6, np.float32), "small")
    y = ops.tanh(ops.add(ops.linear(x, w), small))
    changed = ops.write(k, y, start=(0, 0))
    with registered(accelerator("one:0"), accelerator("two:0")):
        session = jf.Session("one+two")
        pins = [("tanh.0", "two"), ("w", "two"), ("k", "one"), ("x", "one"), (y.T, "one")]
        report = session.compile((y, changed), pins=pins).explain()
        data = report.to_dict()
        again = session.compile(ops.write(k, x, start=(0, 0)), pins={"k": "two"}).explain()
    assert data["pins"] == [
        {"pin": "tanh.0", "device": "two:0", "tensors": ["tanh.0"]},
        {"pin": "w", "device": "two:0", "tensors": ["linear.0"]},
        {"pin": "k", "device": "one:0", "tensors": ["k"]},
    ]
    assert {n["id"]: n["pinned"] for n in data["nodes"]} == {
        "linear.0": "w", "add.0": None, "tanh.0": "tanh.0", "write.0": None
    }  # fmt: skip
    assert [h["pinned"] for h in data["homes"] if h["tensor"] == "k"] == ["k"]
    assert "    pinned by 'w'" in str(report).splitlines()
    assert "state k on one:0, pinned by 'k'" in str(report)
    assert "pin 'x' is on an input, which lies where it is read" in data["notes"]
    assert "state 'k' stays on one:0, although a pin names two:0" in again.to_dict()["notes"]
    assert again.to_dict()["pins"] == []


def test_a_pin_on_a_view_holds_what_makes_it_and_one_on_a_small_constant_nothing(caplog):
    w, small = (jf.constant(np.ones(shape, np.float32), name) for shape, name in (((6, 6), "w"), ((6,), "small")))
    y = ops.multiply(w, small)
    with registered(accelerator("one:0"), accelerator("two:0")):
        assert jf.compile(y.T, "one+two", pins=[(y.T, "two")]).devices == ("two:0",)
        assert jf.compile(y.T, "one+two", pins={"small": "two"}).devices == ("one:0",)
    assert "pin 'small' draws no node: each that reads it has a larger constant" in caplog.text


# X5: copies are bounded


def alternating(rounds):
    x = jf.input("x", (4, 6))
    for _ in range(rounds):
        x = ops.tanh(ops.relu(x))
    return x


@pytest.mark.parametrize("rounds", [1, 3])
def test_copies_are_counted_and_bounded(rounds):
    one, two = Minimal("one:0"), Minimal("two:0")
    backends = Picky([one], without=["tanh"]), Picky([two], without=["relu"])
    count = 2 * rounds - 1
    with registered(*backends):
        plan = jf.compile(alternating(rounds), "one+two", max_copies=count)
        summary = plan.explain().to_dict()["summary"]
        assert (summary["copies"], summary["bytes_moved"]) == (count, count * 96)
        before = one.counts["alloc"], two.counts["alloc"]
        for compiled in (jf.compile, explain):
            with pytest.raises(PlacementError) as caught:
                compiled(alternating(rounds), "one+two", max_copies=count - 1)
            copies = "1 copy" if count == 1 else "5 copies"
            assert str(caught.value).startswith(
                f"a call would take {copies} between devices, max_copies is {count - 1}\n"
            )
            assert "  relu: one:0 to two:0, 96 bytes" in str(caught.value)
        assert (one.counts["alloc"], two.counts["alloc"]) == before
        assert jf.compile(ops.relu(jf.input("x", (2,))), "one+two", max_copies=0).devices == ("one:0",)


@pytest.mark.parametrize("most", [-1, 1.5, "4", True])
def test_a_bound_that_is_none(most):
    with pytest.raises(PlanError, match="must be a whole number from 0 on, or None"):
        jf.compile(outputs(), "sim", max_copies=most)


# X3: memory is known before it is taken


@given(graphs())
@settings(max_examples=40)
def test_the_predicted_peak_is_the_devices_own(built):
    with jf.sim() as use:
        plan = jf.compile(built.tensors(), "sim", policy="strict")
        plan(**{name: built.inputs[name] for name in plan.inputs})
        report = plan.memory().to_dict()
        peak = report["sim:0"]["peak"] if "sim:0" in report else 0
        assert use.device.peak == peak
    if not peak:
        return
    with jf.sim(mem=f"{peak}B"):
        jf.compile(built.tensors(), "sim", policy="strict")
    with jf.sim(mem=f"{peak - 1}B") as use:
        with pytest.raises(OutOfMemory, match="1 too few"):
            jf.compile(built.tensors(), "sim", policy="strict")
        assert (use.device.allocated, use.device.peak) == (0, 0)
