"""Placement: candidates, pins, homes, and the search against brute force."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from fakes import FAST, Minimal, Picky, minimal, opened, registered
from graphs import graphs
from hypothesis import given, settings
from hypothesis import strategies as st

import jackfield as jf
from jackfield import ops
from jackfield.backend import Limits, Rates
from jackfield.blueprint import Request, draw
from jackfield.candidates import Panel
from jackfield.errors import PlacementError, PlanError
from jackfield.placement import assign, steps_of
from jackfield.report import report_of
from jackfield.search import Crossing, Decision, Problem, predict, solve
from jackfield.updates import order

times = st.floats(1e-7, 1e-3)


@st.composite
def problems(draw, chain=False):
    """Small random problems: a chain, or a graph with inputs, joins, and outputs."""
    devices = draw(st.integers(1, 3))
    count = draw(st.integers(1, 7))
    inputs = 1 if chain else draw(st.integers(1, 2))
    decisions = []
    for i in range(count):
        made = inputs + i
        few = draw(st.sets(st.integers(0, devices - 1), min_size=1))
        uses = (made - 1,) if chain else tuple(draw(st.sets(st.integers(0, made - 1), max_size=3)))
        decisions.append(Decision({d: draw(times) for d in sorted(few)}, uses, made))
    nbytes = {v: draw(st.integers(0, 100_000)) for v in range(inputs + count)}
    legs = [Crossing(draw(times), draw(st.floats(1e6, 1e11))) for _ in range(devices)]
    wanted = {inputs + count - 1} if chain else draw(st.sets(st.integers(inputs, inputs + count - 1)))
    return Problem(decisions, legs, nbytes, frozenset(wanted))


def brute_force(problem):
    return min(predict(problem, choice) for choice in product(*(list(d.seconds) for d in problem.decisions)))


@given(problems(chain=True))
def test_chains_are_exact(problem):
    choice, seconds = solve(problem)
    assert seconds == pytest.approx(predict(problem, choice))
    assert seconds == pytest.approx(brute_force(problem))


@given(problems())
def test_small_graphs_are_within_five_percent(problem):
    choice, seconds = solve(problem)
    assert seconds == pytest.approx(predict(problem, choice))
    assert seconds <= brute_force(problem) * 1.05


@given(st.integers(0, 10_000))
@settings(max_examples=25)
def test_large_graphs_are_never_worse_than_one_device(seed):
    rng = np.random.default_rng(seed)
    decisions = [
        Decision(
            {d: float(rng.uniform(1e-6, 1e-4)) for d in range(3)},
            tuple(sorted(set(rng.integers(0, i + 1, 2).tolist()))),
            i + 1,
        )
        for i in range(120)
    ]
    nbytes = {v: int(rng.integers(0, 100_000)) for v in range(121)}
    problem = Problem(decisions, [Crossing(1e-5, 1e9)] * 3, nbytes, frozenset({120}))
    choice, seconds = solve(problem)
    assert seconds == pytest.approx(predict(problem, choice))
    assert seconds <= min(predict(problem, [d] * 120) for d in range(3))


def test_ties_go_to_the_device_listed_first():
    problem = Problem([Decision({1: 1e-5, 0: 1e-5}, (0,), 1)], [Crossing(1e-6, 1e9)] * 2, {0: 4, 1: 4}, frozenset({1}))
    assert solve(problem)[0] in ([0], [1])
    first = Problem([Decision({0: 1e-5, 1: 1e-5}, (0,), 1)], [Crossing(1e-6, 1e9)] * 2, {0: 4, 1: 4}, frozenset({1}))
    assert solve(first)[0] == [0]


# Devices


SLOW_LINK = Rates(multiply_adds=1e12, nbytes=1e12, launch=1e-7, copy_nbytes=1e6, copy_launch=1e-3)


def two(refused_by_one=(), refused_by_two=(), rates=FAST):
    one = Picky([Minimal("one:0", rates=rates)], without=refused_by_one)
    other = Picky([Minimal("two:0", rates=rates)], without=refused_by_two)
    return [*opened(one), *opened(other)]


def devices_of(y, devices, *, chosen=2, policy="prefer", pins=(), **keywords):
    outputs = y if isinstance(y, (list, tuple)) else [y]
    flow = order(outputs)
    panel = Panel(devices, range(chosen), range(chosen, len(devices)))
    placed = assign(flow, panel, steps_of(flow), policy=policy, pins=pins, **keywords)
    return {flow.ids[n]: panel.name(placed.device[n]) for n in flow.nodes}, placed


def test_what_one_refuses_the_other_takes():
    x = jf.input("x", (8,))
    y = ops.add(ops.multiply(x, x), x)
    where, _ = devices_of(y, two(refused_by_one=["multiply"]))
    assert where["multiply.0"] == "two:0"
    where, placed = devices_of(y, two(refused_by_one=["multiply"]), chosen=1)
    assert where == {"multiply.0": "two:0", "add.0": "one:0"}
    (asked,) = [by for node, by in placed.asked.items() if node.op == "multiply"]
    assert [(d, str(r)) for d, r in asked] == [(0, "no kernel for multiply"), (1, "None")]
    with pytest.raises(PlacementError, match=r"1 of 2 steps are not taken by a chosen device\nmultiply.0: multiply"):
        devices_of(y, two(refused_by_one=["multiply"]), chosen=1, policy="strict")


def test_a_lone_step_stays_with_its_neighbours():
    """No ping-pong: a device that is a little faster is not worth two crossings."""
    x = jf.input("x", (1000,))
    y = ops.multiply(ops.add(ops.multiply(x, x), x), x)
    fast = Rates(multiply_adds=1e12, nbytes=2e12, launch=1e-7, copy_nbytes=1e10, copy_launch=1e-6)
    devices = two(refused_by_two=["multiply"])
    devices[1].device.target = type(devices[1].device.target)("two", "numpy", rates=fast)
    where, _ = devices_of(y, devices)
    assert set(where.values()) == {"one:0"}


def test_pins():
    x = jf.input("x", (4, 8))
    w, v = jf.constant(np.ones((8, 8), np.float32), "blk.0.w"), jf.constant(np.ones((8, 8), np.float32), "blk.1.w")
    y = ops.softmax(ops.linear(ops.linear(x, w), v))
    where, _ = devices_of(y, two(), pins=[(r"blk\.1\..*", "two:0"), (r"blk\..*", "one:0")])
    assert (where["linear.0"], where["linear.1"]) == ("one:0", "two:0")
    where, _ = devices_of(y, two(), pins=[(w, "two")])
    assert where["linear.0"] == "two:0"
    where, _ = devices_of(y, two(), pins=[("softmax.0", "two:0")])
    assert where["softmax.0"] == "two:0"
    _, placed = devices_of(y, two(), pins=[("softm", "two:0")])
    assert placed.notes == ["pin 'softm' matches nothing"]
    with pytest.raises(PlanError, match="no device 'three:0' in this selection; it has one:0, two:0"):
        devices_of(y, two(), pins=[("softmax.0", "three:0")])
    with pytest.raises(PlanError, match="is no regular expression"):
        devices_of(y, two(), pins=[("(", "two:0")])


def test_a_pin_on_one_of_two_equal_steps_is_no_pin_on_the_other():
    """They are one Step, and the first answer must not stand for the second."""
    x, y = jf.input("x", (8,)), jf.input("y", (8,))
    pair = [ops.add(x, x), ops.add(y, y)]
    for pinned in (0, 1):
        where, placed = devices_of(pair, two(), pins=[(f"add.{pinned}", "two")])
        assert where[f"add.{pinned}"] == "two:0"
        asked = [[number for number, _ in by] for by in placed.asked.values()]
        assert asked == ([[1], [0, 1]] if pinned == 0 else [[0, 1], [1]])


def test_a_pin_that_is_refused():
    x = jf.input("x", (4, 8))
    y = ops.softmax(x)
    devices = two(refused_by_two=["softmax"])
    where, placed = devices_of(y, devices, pins=[("softmax.0", "two:0")])
    assert where == {"softmax.0": "one:0"}
    assert placed.notes == ["softmax.0 is pinned to two:0, which refuses it: no kernel for softmax"]
    with pytest.raises(PlacementError, match="pinned to two:0, which refuses it: no kernel for softmax"):
        devices_of(y, devices, pins=[("softmax.0", "two:0")], policy="strict")


def test_steps_that_write_a_state_go_where_it_lives():
    k = jf.state("k", (4, 8))
    x, r = jf.input("x", (1, 8)), jf.input("r", (1,), jf.i32)
    y = ops.multiply(ops.put_rows(k, ops.add(x, x), r), jf.constant(np.ones((4, 8), np.float32)))
    where, _ = devices_of(y, two(), homes={"k": 1})
    assert where["put_rows.0"] == "two:0"
    where, _ = devices_of(y, two(), pins=[("k", "two:0")])
    assert where["put_rows.0"] == "two:0"
    where, _ = devices_of(y, two(refused_by_one=["put_rows"]))
    assert where["put_rows.0"] == "two:0"
    with pytest.raises(PlacementError, match="state 'k' lives on two:0"):
        devices_of(y, two(refused_by_two=["put_rows"]), homes={"k": 1})
    with pytest.raises(PlacementError, match="no device takes all steps that change state 'k'"):
        devices_of(y, two(refused_by_one=["put_rows"], refused_by_two=["put_rows"]))


def test_a_strided_target_needs_a_kernel_that_writes_by_strides():
    k = jf.state("k", (4, 8))
    y = ops.write(k[:, 2:4], jf.input("x", (1, 2)), start=(0, 0))
    (one,) = opened(Picky([Minimal("one:0")], targets="dense"))
    with pytest.raises(PlacementError, match="one:0: write: the target is strided, the kernel writes it dense"):
        devices_of(y, [one], chosen=1)
    (rows,) = opened(Picky([Minimal("one:0")], targets="rows"))
    assert devices_of(y, [rows], chosen=1)[0] == {"write.0": "one:0"}


def test_constants_that_do_not_fit_move_their_steps():
    x = jf.input("x", (1, 64))
    y = x
    for i in range(4):
        y = ops.linear(y, jf.constant(np.ones((64, 64), np.float32), f"w{i}"))
    devices = two()
    slow = Rates(nbytes=1e8, launch=1e-4, copy_nbytes=1e10, copy_launch=1e-6)
    devices[1].device.target = type(devices[1].device.target)("two", "numpy", rates=slow)
    where, placed = devices_of(y, devices, room={0: 2 * 16384 + 100})
    assert list(where.values()) == ["one:0", "one:0", "two:0", "two:0"]
    reasons = [str(r) for by in placed.asked.values() for d, r in by if r is not None]
    assert reasons == [f"linear.{i}: 16384 bytes of constants and states, 100 free of 32868" for i in (2, 3)]


def test_limits_of_a_target():
    x = jf.input("x", (4, 8))
    w = jf.constant(np.ones((8, 8), np.float32))
    limited = opened(Picky([Minimal("one:0", limits=Limits(min_rows={"linear": 8}, max_operand=100))]))
    _, placed = devices_of(ops.linear(x, w), [*limited, *two()[1:]], chosen=1)
    ((_, reason), _) = next(iter(placed.asked.values()))
    assert str(reason) == "linear: x spans 128 bytes, the limit is 100"
    limited[0].device.target = type(limited[0].device.target)(
        "one", "n", limits=Limits(min_rows={"linear": 8}), stamp=1
    )
    _, placed = devices_of(ops.linear(x, w), [*limited, *two()[1:]], chosen=1)
    ((_, reason), _) = next(iter(placed.asked.values()))
    assert str(reason) == "linear: 4 rows, worth it from 8"


def test_a_plugin_that_raises_is_a_refusal():
    def angry(step, target):
        raise RuntimeError("boom")

    one = opened(Picky([Minimal("one:0")], refuse=angry))
    x = jf.input("x", (4,))
    where, placed = devices_of(ops.add(x, x), [*one, *two()[1:]], chosen=1)
    assert where == {"add.0": "two:0"}
    assert "one:0 raised RuntimeError when asked: boom" in str(next(iter(placed.asked.values())))


def test_every_step_is_asked_once():
    backend = Picky([Minimal("one:0")])
    y = jf.input("x", (4,))
    for _ in range(20):
        y = ops.add(y, y)
    devices_of(y, [*opened(backend), *two()[1:]], chosen=1)
    assert backend.asked["add"] == 2  # of an input, and of a temporary


# auto


def request(accelerators, host):
    return Request([*accelerators, *host], lambda: host, "auto", named=False, policy="auto")


@pytest.mark.parametrize(("first", "chosen"), [(0.49, "two:0"), (0.51, "one:0")])
def test_auto_takes_the_first_that_takes_half_of_the_work(first, chosen):
    """Work counts, not nodes: the first device takes more nodes either way."""
    total = 10_000
    x = jf.input("x", (int(total * first), 4))
    y = jf.input("y", (total - int(total * first), 4))
    small = jf.input("z", (1,))
    outputs = [ops.add(x, x), ops.multiply(y, y)]
    for _ in range(5):
        small = ops.add(small, small)
    devices = two(refused_by_one=["multiply"], refused_by_two=["add"])
    host = opened(Picky([Minimal("host:0", rates=SLOW_LINK)]), Picky([Minimal("last:0", rates=SLOW_LINK)]))
    drawn = draw([*outputs, small], request(devices, host))
    accelerators = {drawn.panel.name(i) for i in drawn.panel.chosen}
    assert chosen in accelerators
    rule = "auto: the first accelerator that takes at least 50% of the declared work, and class cpu; "
    seen = "one:0 takes 51%: one:0+host:0" if chosen == "one:0" else "one:0 takes 49%, two:0 takes 51%: two:0+host:0"
    assert drawn.notes == [rule + seen]
    assert f"note: {rule}{seen}" in str(report_of(drawn))


def test_auto_without_accelerators_is_the_cpu_then_the_reference():
    x = jf.input("x", (4,))
    cpu, last = two(refused_by_one=["multiply"])
    drawn = draw([ops.add(ops.multiply(x, x), x)], request([], [cpu, last]))
    assert [drawn.panel.name(r.device) for r in drawn.runs] == ["two:0", "one:0"]
    assert drawn.notes == [
        (
            "auto: the first accelerator that takes at least 50% of the declared work, and class cpu; "
            "no accelerator is here: one:0"
        )
    ]


def test_auto_passes_over_accelerators_that_take_little():
    x = jf.input("x", (4,))
    devices = two(refused_by_one=["multiply", "add"], refused_by_two=["multiply"])
    host = [minimal("host:0"), minimal("last:0")]
    drawn = draw([ops.multiply(ops.multiply(ops.multiply(x, x), x), ops.add(x, x))], request(devices, host))
    assert [drawn.panel.name(n) for n in drawn.panel.chosen] == ["host:0"]
    assert [drawn.panel.name(n) for n in drawn.panel.fallback] == ["last:0"]
    (note,) = drawn.notes
    assert note.endswith("one:0 takes 0%, two:0 takes 25%: host:0")


@given(graphs(), st.data())
@settings(max_examples=40)
def test_the_same_request_gives_the_same_plan(built, data):
    without = data.draw(st.sets(st.sampled_from(["add", "multiply", "contiguous"]), max_size=2))
    texts = set()
    for _ in range(2):
        backend = Picky([Minimal("one:0")], without=sorted(without))
        with registered(backend):
            plan = jf.compile(built.tensors(), "one")
            texts.add(str(plan.explain()))
    assert len(texts) == 1


# The cost a backend states


class Priced(Picky):
    """Says what `multiply` costs."""

    price = None

    def cost(self, step, target):
        return self.price if step.op == "multiply" else super().cost(step, target)


@pytest.mark.parametrize(("price", "winner"), [(None, "one:0"), (1e-9, "one:0"), (1.0, "two:0"), (0, "one:0")])
def test_a_stated_cost_decides(price, winner):
    priced, other = Priced([Minimal("one:0")]), Picky([Minimal("two:0")])
    priced.price = price
    x = jf.input("x", (4,))
    with registered(priced, other):
        plan = jf.compile(ops.multiply(x, x), "one+two")
        assert plan.devices == (winner,)


@pytest.mark.parametrize("price", [float("nan"), -1.0, float("inf"), -1e-30])
def test_a_cost_that_is_none_is_a_refusal_with_its_value(price):
    priced = Priced([Minimal("one:0")])
    priced.price = price
    x = jf.input("x", (4,))
    with registered(priced):
        with pytest.raises(PlacementError, match=f"multiply: its cost is {price} seconds, must be a finite number"):
            jf.compile(ops.multiply(x, x), "one", policy="strict")
        plan = jf.compile(ops.multiply(x, x), "one+reference")
        assert plan.devices == ("reference:0",)
        assert "its cost is" in plan.explain().to_json()
