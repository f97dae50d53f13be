"""Sessions: states, shared constants, the arena, serial calls, clones, forks, closing."""

from __future__ import annotations

import dataclasses
import logging
import multiprocessing
import os
import threading
from collections import Counter

import numpy as np
import pytest
from fakes import Minimal, Mortal, Packer, Picky, Poisoner, Unpacker, registered
from hypothesis import given, settings
from hypothesis import strategies as st

import jackfield as jf
from jackfield import ops
from jackfield.backend import Limits
from jackfield.errors import (
    BadIndex,
    Busy,
    DeviceError,
    DeviceLost,
    ForkedError,
    OutOfMemory,
    PlacementError,
    PlanError,
)

DEVICES = ["reference", "sim", "sim+reference"]


def cache_graph(n: int, rows: int = 8):
    """One step of a decoder: a row into the cache, and a reader of all of it."""
    k = jf.state("k", (2, rows, 4))
    x, r = jf.input("x", (2, n, 4)), jf.input("r", (1, n), jf.i32)
    new = ops.put_rows(k, x, r)
    return ops.add(new, new)


@pytest.mark.parametrize("device", DEVICES)
def test_a_state_survives_calls_and_plans(device):
    truth = np.zeros((2, 8, 4), np.float32)
    rng = np.random.default_rng(0)
    with jf.Session(device) as session:
        plans = {n: session.compile(cache_graph(n)) for n in (1, 3)}
        for n in (3, 1, 1, 3, 1):
            rows = rng.permutation(8)[:n].astype(np.int32)
            x = rng.standard_normal((2, n, 4)).astype(np.float32)
            truth[:, rows] = x
            np.testing.assert_array_equal(plans[n](x=x, r=rows[None]), truth * 2)
        np.testing.assert_array_equal(session.states["k"].read(), truth)
        session.states["k"].write(truth + 1)
        np.testing.assert_array_equal(plans[1](x=x[:, :1], r=np.full((1, 1), -1, np.int32)), (truth + 1) * 2)
        session.states["k"].clear()
        assert not session.states["k"].read().any()


def test_states_are_zero_at_birth_on_memory_that_is_not():
    with registered(Picky([Poisoner("poison:0")])), jf.Session("poison") as session:
        k = jf.state("k", (700, 1000))
        plan = session.compile(ops.add(k, k))
        assert not plan().any()


@given(st.data())
@settings(max_examples=100)
def test_random_updates_of_a_state(data):
    """Either the compile says that an old value is read too late, or every value is what plain numpy says."""
    draw = data.draw
    k = jf.state("k", (4, 6))
    start = np.arange(24, dtype=np.float32).reshape(4, 6)
    values = [(k, start, np.arange(24).reshape(4, 6))]
    seed = draw(st.integers(0, 1000))
    rng = np.random.default_rng(seed)
    for _ in range(draw(st.integers(1, 7))):
        t, v, where = draw(st.sampled_from(values[-4:]))
        kind = draw(st.sampled_from(["slice", "transpose", "put_rows", "write", "add"]))
        if kind == "slice" and t.rank == 2:
            a, b = (draw(st.integers(0, n - 1)) for n in t.shape)
            cut = (slice(a, draw(st.integers(a + 1, t.shape[0]))), slice(b, draw(st.integers(b + 1, t.shape[1]))))
            values.append((t[cut], v[cut], None if where is None else where[cut]))
        elif kind == "transpose":
            values.append((t.T, v.T, None if where is None else where.T))
        elif kind == "add":
            values.append((ops.add(t, t), v + v, None))
        elif kind == "put_rows":
            row = draw(st.integers(0, t.shape[0] - 1))
            new = rng.integers(-9, 9, (1, t.shape[1])).astype(np.float32)
            result = v.copy()
            result[row] = new
            values.append((ops.put_rows(t, jf.constant(new), jf.constant(np.array([row], np.int32))), result, where))
        else:
            x, y, _ = draw(st.sampled_from(values))
            if x.shape[0] <= t.shape[0] and x.shape[1] <= t.shape[1]:
                result = v.copy()
                result[: x.shape[0], : x.shape[1]] = y
                values.append((ops.write(t, x, start=(0, 0)), result, where))
    outputs = [values[-1], draw(st.sampled_from(values))]
    backend = Picky([Poisoner("poison:0")], reads=draw(st.sampled_from(["dense", "any"])))
    with registered(backend), jf.Session("poison", policy="strict") as session:
        try:
            plan = session.compile([t for t, _, _ in outputs])
        except PlanError as e:
            assert "state 'k'" in str(e)
            return
        if "k" in session.states:
            session.states["k"].write(start)
        for got, (_, expected, _) in zip(plan(), outputs, strict=True):
            np.testing.assert_array_equal(got, expected)
        after = start.copy()
        needed = set(jf.graph.toposort([t for t, _, _ in outputs]))
        for t, v, where in values:
            if t in needed and t.op in ("put_rows", "write") and where is not None:
                after.reshape(-1)[where] = v
        if "k" in session.states:
            np.testing.assert_array_equal(session.states["k"].read(), after)


def test_layers_of_one_state_are_updated_side_by_side():
    cache = jf.state("cache", (3, 5, 4))
    x = jf.input("x", (1, 4))
    row = jf.constant(np.array([2], np.int32))
    outputs = []
    for layer in range(3):
        new = ops.put_rows(cache[layer], ops.multiply(x, jf.constant(np.float32(layer + 1))), row)
        outputs.append(ops.add(new, new))
    with jf.Session("sim+reference") as session:
        plan = session.compile(tuple(outputs))
        ones = np.ones((1, 4), np.float32)
        for layer, out in enumerate(plan(x=ones)):
            assert (out[2] == 2 * (layer + 1)).all()
            assert out.sum() == 8 * (layer + 1)


def test_halves_of_a_row_do_not_meet():
    k = jf.state("k", (4, 6))
    x = jf.input("x", (4, 3))
    left = ops.write(k[:, :3], x, start=(0, 0))
    right = ops.add(k[:, 3:], k[:, 3:])
    plan = jf.compile((left, right), "reference")
    a = np.ones((4, 3), np.float32)
    left_value, right_value = plan(x=a)
    assert (left_value == 1).all()
    assert not right_value.any()


def test_an_old_value_can_be_read_before_the_update():
    k = jf.state("k", (4,))
    x = jf.input("x", (4,))
    new = ops.write(k, x, start=(0,))
    old = ops.add(k, k)  # comes later in the graph, must run earlier
    plan = jf.compile((new, old), "reference")
    first = plan(x=np.arange(4, dtype=np.float32))
    second = plan(x=np.ones(4, np.float32))
    assert not first[1].any()
    np.testing.assert_array_equal(second[1], [0, 2, 4, 6])


def test_an_old_value_read_too_late_names_both():
    k = jf.state("k", (4,))
    new = ops.write(k, jf.input("x", (4,)), start=(0,))
    with pytest.raises(PlanError, match=r"state 'k': <add.*before <write"):
        jf.compile(ops.add(new, k), "reference")
    with pytest.raises(PlanError, match=r"state 'k': the output .* is the value from before <write"):
        jf.compile((new, k), "reference")
    with pytest.raises(PlanError, match="state 'k'"):
        jf.compile((new, ops.write(k, jf.input("z", (4,)), start=(0,))), "reference")


def test_targets_that_cannot_be_written():
    k = jf.state("k", (3, 4))
    with pytest.raises(PlanError, match=r"\[write\] the target is a copy of the state 'k'"):
        jf.compile(ops.write(ops.reshape(k.T, shape=(12,)), jf.input("x", (2,)), start=(0,)), "reference")
    wide = ops.broadcast_to(jf.state("s", (1, 4)), shape=(3, 4))
    with pytest.raises((PlanError, jf.Error), match="broadcast"):
        jf.compile(ops.write(wide, jf.input("x", (2, 2)), start=(0, 0)), "reference")


def test_one_name_has_one_spec():
    with jf.Session("reference") as session:
        session.compile(ops.add(jf.state("k", (4,)), jf.state("m", (4,))))
        with pytest.raises(PlanError, match=r"state 'k' is f32\[4\] in this Session, not f32\[5\]"):
            session.compile(ops.contiguous(jf.state("k", (5,))))
        with pytest.raises(PlanError, match="two states of one graph are called 'k'"):
            session.compile(ops.add(jf.state("k", (4,)), jf.state("k", (4,))))
        with pytest.raises(PlanError, match="no plan of this Session has a state 'nope'; it has: k, m"):
            session.states["nope"]
        assert sorted(session.states) == ["k", "m"]


def test_a_state_stays_where_it_was_born():
    backend = Picky([Minimal("one:0")], without=["multiply"])
    with registered(backend), jf.Session("one+reference") as session:
        session.compile(cache_graph(1))
        assert session.states["k"].device == "one:0"
        k = jf.state("k", (2, 8, 4))
        plan = session.compile(ops.multiply(k, k))
        assert plan.devices == ("reference:0",)
        assert session.states["k"].device == "one:0"


# Constants


def test_a_constant_is_uploaded_once_a_session():
    device = Minimal("one:0")
    w = np.ones((64, 64), np.float32)
    x = jf.input("x", (2, 64))
    with registered(Picky([device])), jf.Session("one") as session:
        session.compile(ops.linear(x, jf.constant(w)))
        before = len(device.log)
        plan = session.compile(ops.add(ops.linear(x, jf.constant(w)), ops.linear(x, jf.constant(w))))
        assert [nbytes for _, nbytes in device.log[before:]] == []
        assert (plan(x=np.ones((2, 64), np.float32)) == 128).all()


@pytest.mark.parametrize("part", [(64, 63), (0, 0), (-4, -4), (6, 6), (100, 100)])
def test_parts_that_do_not_make_the_packed_form_are_refused(part):
    class Wrong(Packer):
        def pack(self, constant, users, target):
            packing = super().pack(constant, users, target)
            return packing and dataclasses.replace(packing, part=part)

    x, w = jf.input("x", (2, 16)), jf.constant(np.ones((16, 16), np.float32))
    told = rf"one:0: the packing turned makes {part[1]} bytes of each {part[0]}: it"
    with registered(Wrong([Minimal("one:0")])), pytest.raises(DeviceError, match=told):
        jf.compile(ops.linear(x, w), device="one")


def test_constants_of_a_device_with_small_allocations_are_spread_over_some():
    """The first with room takes each; none straddles two, and one too large for any is refused with its size."""
    device = Minimal("one:0", limits=Limits(max_buffer=1000))
    x = jf.input("x", (1, 10))
    weights = [jf.constant(np.full((rows, 10), rows, np.float32), name=f"w{rows}") for rows in (15, 20, 5, 8, 2)]
    with registered(Picky([device])), jf.Session("one", policy="strict") as session:
        plan = session.compile(tuple(ops.linear(x, w) for w in weights))
        held = [h for layouts in session._store.constants["one:0"].values() for h in layouts.values()]
        for got, w in zip(plan(x=np.ones((1, 10), np.float32)), weights, strict=True):
            np.testing.assert_array_equal(got, np.full((1, w.shape[0]), 10 * w.shape[0], np.float32))
        buffers = {id(h.buffer): [] for h in held}
        for h in held:
            buffers[id(h.buffer)].append((h.offset, h.nbytes))
        assert list(buffers.values()) == [[(0, 600), (640, 200)], [(0, 800), (832, 80)], [(0, 320)]]
        with pytest.raises(OutOfMemory, match="one:0: one tensor takes 1024 bytes, an allocation at most 1000"):
            session.compile(ops.linear(x, jf.constant(np.ones((25, 10), np.float32))))


def test_packed_constants_are_shared_where_all_users_read_them():
    device = Unpacker("one:0")
    w = jf.constant(np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32), name="w")
    x = jf.input("x", (2, 16))
    r = jf.input("r", (3,), jf.i32)
    with registered(Packer([device])), jf.Session("one", policy="strict") as session:
        plan = session.compile(ops.linear(x, w))
        assert plan.explain().to_dict()["packed"] == [
            {"constant": "w", "device": "one:0", "layout": "turned", "bytes": 1024, "again": False}
        ]
        assert len(device.packed) == 1
        ones = np.ones((2, 16), np.float32)
        np.testing.assert_allclose(plan(x=ones), ones @ w.source.array.T, rtol=1e-5)
        before = device.counts["alloc"]
        rows = session.compile(ops.take_rows(w, r))
        assert rows.explain().to_dict()["packed"][0]["again"] is False
        np.testing.assert_array_equal(rows(r=np.array([3, 1, 3], np.int32)), w.source.array[[3, 1, 3]])
        assert sum(device.counts[m] for m in ("alloc",)) - before <= 1  # the arena only
        plain = session.compile(ops.add(w, w))
        assert plain.explain().to_dict()["packed"] == [
            {"constant": "w", "device": "one:0", "layout": "plain", "bytes": 1024, "again": True}
        ]
        np.testing.assert_array_equal(plain(), 2 * w.source.array)


def test_a_packed_constant_and_a_view_of_it_are_two_copies():
    device = Unpacker("one:0")
    w = jf.constant(np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32), name="w")
    x = jf.input("x", (2, 16))
    y = ops.add(ops.linear(x, w), w[2:4])
    with registered(Packer([device])), jf.Session("one", policy="strict") as session:
        plan = session.compile(y)
        assert [p["layout"] for p in plan.explain().to_dict()["packed"]] == ["turned", "plain"]
        ones = np.ones((2, 16), np.float32)
        np.testing.assert_allclose(plan(x=ones), ones @ w.source.array.T + w.source.array[2:4], rtol=1e-5)


def test_strided_views_of_constants_are_copied_at_build_time():
    device = Minimal("one:0")
    w = jf.constant(np.arange(12, dtype=np.float32).reshape(3, 4), name="w")
    x = jf.input("x", (4, 3))
    with registered(Picky([device])), jf.Session("one", policy="strict") as session:
        plan = session.compile(ops.add(ops.add(x, w.T), w.T))
        assert plan.explain().to_dict()["inserted"] == []
        assert device.log == [("write", 48)]
        np.testing.assert_array_equal(plan(x=np.ones((4, 3), np.float32)), 1 + 2 * w.source.array.T)


class Borrower(Minimal):
    """Takes host memory as it lies."""

    def borrow(self, data):
        buffer = self.alloc(0, None)
        buffer.bytes = np.frombuffer(data, np.uint8)
        self.counts["borrow"] += 1
        return buffer


class Tracked:
    """A source that knows what was asked of it."""

    def __init__(self, array, name):
        self.array, self.name, self.asked = array, name, []
        self.dtype, self.shape = jf.f32, array.shape

    @property
    def data(self):
        self.asked.append("data")
        return self.array.reshape(-1).view(np.uint8).data

    def release(self):
        self.asked.append("release")


def test_large_plain_constants_are_borrowed_and_the_rest_lets_go_of_its_source():
    device = Borrower("one:0")
    large, small = (Tracked(np.ones(n, np.float32), name) for n, name in ((1 << 14, "large"), (1 << 4, "small")))
    with registered(Picky([device])), jf.Session("one", policy="strict") as session:
        c, d = jf.constant(large), jf.constant(small)
        large.asked.clear()
        small.asked.clear()
        plan = session.compile((ops.add(c, c), ops.add(d, d)))
        assert device.counts["borrow"] == 1
        assert device.log == [("write", 64)]
        assert large.asked == ["data"]
        assert small.asked == ["data", "release", "release"]  # when it is read, and when all are
        assert [float(a.max()) for a in plan()] == [2.0, 2.0]


# The arena and the call


def test_a_call_allocates_nothing_and_moves_each_byte_once():
    device = Minimal("one:0")
    x = jf.input("x", (4, 5))
    with registered(Picky([device])), jf.Session("one") as session:
        plan = session.compile(ops.add(ops.multiply(x, x), x))
        before = Counter(device.counts)
        plan(x=np.ones((4, 5), np.float32))
        assert Counter(device.counts) - before == Counter(write=1, run=1, read=1)
        assert device.log[-2:] == [("write", 80), ("read", 80)]


def test_the_arena_is_as_large_as_the_largest_plan_and_earlier_plans_follow():
    device = Poisoner("poison:0")
    with registered(Picky([device])), jf.Session("poison") as session:
        plans = {}
        for n in (4, 400, 40, 4000):
            x = jf.input("x", (n,))
            plans[n] = session.compile(ops.add(ops.multiply(x, x), x))
        for n, plan in plans.items():
            a = np.arange(n, dtype=np.float32)
            np.testing.assert_array_equal(plan(x=a), a * a + a)
        assert len(device.live) == 1
        assert sum(device.live.values()) == plans[4000].memory()["poison:0"]["temporaries"]
    assert not device.live


def test_a_session_names_its_devices():
    assert jf.Session("sim+reference").devices == ("sim:0", "reference:0")
    assert jf.Session("auto").devices[-1] == "reference:0"


def test_kept_inputs():
    x, y = jf.input("x", (3,)), jf.input("y", (3,))
    with jf.Session("sim+reference") as session:
        plan, other = session.compile(ops.add(x, y)), session.compile(ops.multiply(x, y))
        a, b = np.arange(3, dtype=np.float32), np.ones(3, np.float32)
        with pytest.raises(PlanError, match="input 'x' can't be kept"):
            plan.call(("x",), y=b)
        plan(x=a, y=b)
        np.testing.assert_array_equal(plan.call(("x",), y=a), a + a)
        with pytest.raises(PlanError, match="input 'x' is given twice"):
            plan.call(("x",), x=a, y=a)
        with pytest.raises(PlanError, match="no input 'z'"):
            plan.call(("z",), x=a, y=a)
        other(x=a, y=b)
        with pytest.raises(PlanError, match="another plan was called since"):
            plan.call(("x",), y=b)


class Slow(Minimal):
    """Waits in a run until told to go on."""

    def __init__(self, name):
        super().__init__(name)
        self.entered, self.go = threading.Event(), threading.Event()

    def compile(self, run, scratch):
        program = super().compile(run, scratch)
        plain = program.run

        def run_slowly():
            self.entered.set()
            assert self.go.wait(30)
            plain()

        program.run = run_slowly
        return program


def beside(call):
    """A call in another thread, and what it gave."""
    box = []
    thread = threading.Thread(target=lambda: box.append(call()))
    thread.start()
    return thread, box


def test_a_second_call_is_busy_and_a_clone_is_not():
    device = Slow("slow:0")
    x = jf.input("x", (3,))
    ones = np.ones(3, np.float32)
    with registered(Picky([device])), jf.Session("slow") as session:
        plan, other = session.compile(ops.add(x, x)), session.compile(ops.multiply(x, x))
        clone = plan.clone()
        thread, box = beside(lambda: plan(x=ones))
        assert device.entered.wait(30)
        for call in (
            lambda: plan(x=ones),
            lambda: other(x=ones),
            plan.clone,
            lambda: session.compile(x),
            session.close,
        ):
            with pytest.raises(Busy):
                call()
        second, second_box = beside(lambda: clone(x=ones * 2))
        device.go.set()
        thread.join()
        second.join()
        np.testing.assert_array_equal(box[0], ones * 2)
        np.testing.assert_array_equal(second_box[0], ones * 4)


def test_two_calls_on_one_state_are_busy():
    device = Slow("slow:0")
    with registered(Picky([device])), jf.Session("slow") as session:
        plan = session.compile(cache_graph(1))
        clone = plan.clone()
        arrays = {"x": np.ones((2, 1, 4), np.float32), "r": np.zeros((1, 1), np.int32)}
        thread, box = beside(lambda: plan(**arrays))
        assert device.entered.wait(30)
        with pytest.raises(Busy, match="state 'k' is in use"):
            clone(**arrays)
        with pytest.raises(Busy, match="state 'k'"):
            session.states["k"].read()
        device.go.set()
        thread.join()
        assert box
        clone(**arrays)
        plan(**arrays)


def test_many_threads_give_results_or_busy():
    x = jf.input("x", (50,))
    plan = jf.compile(ops.add(ops.multiply(x, x), x), "reference")
    clones = [plan.clone() for _ in range(4)]
    wrong, busy = [], []

    def work(one, number):
        a = np.full(50, number, np.float32)
        for _ in range(50):
            try:
                if not (one(x=a) == number * number + number).all():
                    wrong.append(number)
            except Busy:
                busy.append(number)

    threads = [threading.Thread(target=work, args=(plan, n)) for n in range(4)]
    threads += [threading.Thread(target=work, args=(clone, n)) for n, clone in enumerate(clones)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert len(busy) < 200


# Errors


@pytest.mark.parametrize("device", DEVICES)
def test_a_bad_index_is_told_and_the_plan_goes_on(device):
    with jf.Session(device) as session:
        plan = session.compile(cache_graph(1))
        x = np.ones((2, 1, 4), np.float32)
        plan(x=x, r=np.array([[2]], np.int32))
        with pytest.raises(IndexError) as error:
            plan(x=x, r=np.array([[99]], np.int32))
        assert isinstance(error.value, BadIndex)
        out = plan(x=x, r=np.array([[3]], np.int32))
        assert out.sum() == 2 * 2 * 4 * 2


@pytest.mark.parametrize("method", ["write", "run", "read"])
def test_a_lost_device(method):
    device = Mortal("mortal:0", method, 3)
    x = jf.input("x", (3,))
    with registered(Picky([device])):
        session = jf.Session("mortal", policy="strict")
        plan = session.compile(ops.add(x, x))
        ones = np.ones(3, np.float32)
        for _ in range(3):
            plan(x=ones)
        for _ in range(2):
            with pytest.raises(DeviceLost, match=f"gone in {method}"):
                plan(x=ones)
        assert device.counts[method] == 3
        session.close()


class Failing(Minimal):
    fails = False

    def write(self, buffer, offset, data):
        if self.fails:
            raise jf.errors.KernelError("planted")
        super().write(buffer, offset, data)


def test_a_failed_call_marks_its_states():
    device = Failing("one:0")
    with registered(Picky([device])), jf.Session("one") as session:
        plan = session.compile(cache_graph(1))
        arrays = {"x": np.ones((2, 1, 4), np.float32), "r": np.zeros((1, 1), np.int32)}
        plan(**arrays)
        device.fails = True
        with pytest.raises(jf.errors.KernelError, match="planted"):
            plan(**arrays)
        device.fails = False
        with pytest.raises(PlanError, match="state 'k' is incomplete"):
            plan(**arrays)
        session.states["k"].clear()
        plan(**arrays)


def test_out_of_memory_allocates_nothing_and_says_how_much():
    x = jf.input("x", (1000,))
    y = ops.add(ops.multiply(x, x), jf.constant(np.ones(1000, np.float32)))
    device = Minimal("small:0", memory=1 << 20)
    with registered(Picky([device])):
        need = jf.compile(y, "small").memory()["small:0"]["peak"]
    exact, short = Minimal("small:0", memory=need), Minimal("small:0", memory=need - 1)
    with registered(Picky([exact])):
        plan = jf.compile(y, "small")
        assert sum(exact.live.values()) == need
        plan(x=np.ones(1000, np.float32))
    with registered(Picky([short])), pytest.raises(OutOfMemory, match="1 too few"):
        jf.compile(y, "small")
    assert short.counts["alloc"] == 0


def test_strict_allocates_nothing_when_it_refuses():
    device = Minimal("one:0")
    x = jf.input("x", (3,))
    backend = Picky([device], refuse=lambda step, target: "no" if step.op == "multiply" else None)
    with registered(backend), pytest.raises(PlacementError, match=r"multiply.0: multiply.*\n  one:0: no"):
        jf.compile(ops.add(ops.multiply(x, x), x), "one", policy="strict")
    assert device.counts["alloc"] == 0


def test_exactly_one_warning_and_each_reason_once(caplog):
    x = jf.input("x", (3,))
    y = ops.multiply(ops.multiply(x, x), ops.add(x, x))
    backend = Picky([Minimal("one:0")], refuse=lambda step, target: "no products" if step.op == "multiply" else None)
    with registered(backend), caplog.at_level(logging.INFO, "jackfield"):
        jf.compile(y, "one+reference")
        jf.compile(ops.add(x, x), "one+reference")
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert warnings == [
        (
            "3 nodes: one:0 1, reference:0 2 (multiply: no products); 1 copy, 12 bytes; "
            "one:0 was asked for and gets 33% of the declared work"
        )
    ]
    told = [r.getMessage() for r in caplog.records if "no products" in r.getMessage() and r.levelno == logging.INFO]
    assert told == ["multiply is not taken by one:0: no products"]


def test_arguments_that_are_not_known():
    x = jf.input("x", (3,))
    y = ops.add(x, x)
    for keyword, value in (("split", "columns"), ("copies", 2), ("on_lost", "rebuild")):
        with pytest.raises(PlanError, match=f"{keyword} is {value!r}; this version takes"):
            jf.compile(y, "reference", **{keyword: value})
    with pytest.raises(PlanError, match="policy is 'always', must be one of strict, prefer, auto"):
        jf.compile(y, "reference", policy="always")
    with pytest.raises(PlanError, match="keep_states is True"):
        jf.Session("reference", keep_states=True)
    with pytest.raises(PlanError, match="a pin is"):
        jf.compile(y, "reference", pins=[("x",)])
    with pytest.raises(PlanError, match="outputs are a int"):
        jf.compile(3, "reference")
    with pytest.raises(jf.errors.GraphError, match="an output is a str"):
        jf.compile(["x"], "reference")
    with pytest.raises(jf.errors.GraphError, match="no output"):
        jf.compile([], "reference")


def test_the_policy_of_the_environment(monkeypatch):
    monkeypatch.setenv("JACKFIELD_POLICY", "strict")
    assert jf.Session("reference").policy == "strict"
    assert jf.Session("reference", policy="prefer").policy == "prefer"
    monkeypatch.setenv("JACKFIELD_POLICY", "sometimes")
    with pytest.raises(PlanError, match="policy is 'sometimes'"):
        jf.Session("reference")


# Ends


def test_closing():
    device = Minimal("one:0")
    x = jf.input("x", (3,))
    with registered(Picky([device])):
        session = jf.Session("one")
        plan = session.compile(ops.add(x, jf.constant(np.ones(3, np.float32))))
        clone = plan.clone()
        session.close()
        session.close()
        for call in (lambda: plan(x=np.ones(3, np.float32)), lambda: clone(x=np.ones(3, np.float32)), plan.clone):
            with pytest.raises(PlanError, match="its Session is closed"):
                call()
        with pytest.raises(PlanError, match="compile: its Session is closed"):
            session.compile(x)
        assert not device.live


def test_memory_goes_with_the_plan():
    device = Minimal("one:0")
    x = jf.input("x", (3,))
    with registered(Picky([device])):
        for _ in range(3):
            plan = jf.compile(ops.add(x, jf.constant(np.ones(3, np.float32))), "one")
            plan.clone()(x=np.ones(3, np.float32))
            del plan
        import gc

        gc.collect()
        assert not device.live


def _child(plan, queue):
    try:
        plan(x=np.ones(3, np.float32))
    except ForkedError as e:
        queue.put(str(e))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_told():
    x = jf.input("x", (3,))
    plan = jf.compile(ops.add(x, x), "reference")
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(plan, queue))
    child.start()
    assert "start workers by spawn" in queue.get(timeout=60)
    child.join()
    assert (plan(x=np.ones(3, np.float32)) == 2).all()


# Work beside the constants


def weighed(rows=4096):
    return ops.linear(jf.input("x", (1, 512)), jf.constant(np.ones((rows, 512), np.float32)))


@pytest.mark.parametrize("device", DEVICES)
def test_compile_does_the_callers_work_once_and_is_busy_meanwhile(device):
    called = []
    with jf.Session(device) as session:

        def work():
            called.append(threading.current_thread())
            for refused in (lambda: session.compile(weighed()), session.close):
                with pytest.raises(Busy):
                    refused()

        y = weighed()
        plan = session.compile(y, meanwhile=work)
        assert called == [threading.current_thread()]
        np.testing.assert_array_equal(plan(x=np.ones((1, 512), np.float32)), np.full((1, 4096), 512, np.float32))
        session.compile(y, meanwhile=work)  # nothing to bring: all the same
        assert len(called) == 2


def test_the_callers_work_is_not_begun_where_nothing_can_be_planned():
    called = []
    with jf.Session("reference") as session:
        wrong = ops.add(jf.input("x", (1,)), jf.input("x", (1,)))
        with pytest.raises(PlanError):
            session.compile(wrong, meanwhile=lambda: called.append(1))
    assert not called


@pytest.mark.parametrize("device", DEVICES)
def test_where_the_callers_work_fails_so_does_compile_and_the_session_goes_on(device):
    def fails():
        raise ZeroDivisionError("mine")

    with jf.Session(device) as session:
        y = weighed()
        with pytest.raises(ZeroDivisionError, match="mine"):
            session.compile(y, meanwhile=fails)
        assert session.compile(y)(x=np.ones((1, 512), np.float32)).sum() == 512 * 4096


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_forked_by_the_callers_work_is_told_and_the_parent_goes_on():
    """The child has none of the threads that bring constants: it must not wait for them."""
    with jf.Session("reference") as session:
        child, told = -1, []

        def forks():
            nonlocal child
            child = os.fork()

        try:
            plan = session.compile(weighed(), meanwhile=forks)
        except ForkedError:
            told.append(True)
        finally:
            if child == 0:
                os._exit(0 if told else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert plan(x=np.ones((1, 512), np.float32)).sum() == 512 * 4096
