"""Steps that change several states: their order, where they may lie, and what becomes of targets that are no states."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import Minimal, Picky, registered

import jackfield as jf
from jackfield import ops
from jackfield.errors import PlacementError, PlanError

PARAMS = np.array([0.1, 0.5, 0.5, 1e-8, 0.0, 2.0, 2.0], np.float32)
ONES = np.ones((2, 3), np.float32)


def only(name, *taken, **keywords):
    def refuse(step, _):
        return None if step.op in taken else f"{step.op}: not here"

    return Picky([Minimal(name)], refuse=refuse, **keywords)


def leaves():
    return [jf.state(name, (2, 3)) for name in ("w", "m", "v")]


def step(w, m, v):
    return ops.adamw_step(w, jf.constant(ONES), m, v, jf.constant(PARAMS))


def test_readers_of_what_changes_run_before():
    """The old value of m is wanted, and the graph names it after the step."""
    w, m, v = leaves()
    stepped = step(w, m, v)
    before = ops.add(m, m)
    session = jf.Session(device="reference")
    plan = session.compile((stepped, before))
    assert plan()[1].tolist() == np.zeros((2, 3)).tolist()
    assert plan()[1].tolist() == ONES.tolist()  # m became 0.5 in the first call
    assert session.states["m"].read()[0, 0] == np.float32(0.75)


def test_an_old_value_can_be_no_output():
    w, m, v = leaves()
    with pytest.raises(PlanError, match=r"state 'm': the output .* is the value from before"):
        jf.compile((step(w, m, v), m), device="reference")


def test_what_needs_both_values_of_a_state_is_refused():
    w, m, v = leaves()
    other = jf.state("other", (2, 3))
    with pytest.raises(PlanError, match=r"state '[mv]'"):
        jf.compile((step(w, m, v), step(other, m, v)), device="reference")
    with pytest.raises(PlanError, match="state 'm'"):
        jf.compile(ops.add(step(w, m, v), m), device="reference")


@pytest.mark.parametrize("swap", [False, True])
def test_targets_need_memory_of_their_own(swap):
    w, m, v = leaves()
    both = jf.state("both", (4, 3))
    with pytest.raises(PlanError, match=r"\[adamw_step\] two of its targets lie over each other"):
        jf.compile(step(w, both[1:3], both[2:4]) if swap else step(m, m, v), device="reference")
    plan = jf.compile(step(w, both[:2], both[2:]), device="reference")
    assert plan().tolist() == (-0.1 * ONES).astype(np.float32).tolist()


def test_a_target_that_repeats_itself_is_refused():
    w, m, _ = leaves()
    one = jf.state("one", (1, 3))
    with pytest.raises(PlanError, match="a target's elements must be distinct"):
        jf.compile(step(w, m, ops.broadcast_to(one, shape=(2, 3))), device="reference")


def test_views_of_states_are_changed_where_they_lie():
    w, m, _ = leaves()
    wide = jf.state("wide", (3, 5))
    session = jf.Session(device="reference")
    session.compile(step(w, m, wide.T[1:3, :]))()
    held = session.states["wide"].read()
    assert held[:, 1:3].tolist() == np.full((3, 2), 0.5).tolist()
    assert not held[:, 0].any()
    assert not held[:, 3:].any()


def test_targets_that_are_no_states_keep_their_value():
    """m and v are inputs: the step works on copies, and who reads them reads what came in."""
    w = jf.state("w", (2, 3))
    m, v = jf.input("m", (2, 3)), jf.input("v", (2, 3))
    doubled = ops.add(m, m)
    plan = jf.compile((step(w, doubled, v), doubled, ops.add(v, v)), device="reference")
    _, kept, twice = plan(m=ONES, v=ONES)
    assert kept.tolist() == (2 * ONES).tolist()
    assert twice.tolist() == (2 * ONES).tolist()


def test_states_that_change_together_share_a_home():
    w, m, v = leaves()
    early = ops.add(m, m)  # m comes first in the graph
    pair = only("one:0", "add"), only("two:0", "add", "adamw_step", "write")
    with registered(*pair):
        plan = jf.compile((early, step(w, m, v)), device="one:0+two:0")
        assert {s["device"] for s in plan.explain().to_dict()["homes"] if s["kind"] == "state"} == {"two:0"}
        assert plan()[0].tolist() == np.zeros((2, 3)).tolist()
        assert plan()[0].tolist() == ONES.tolist()


def test_states_that_live_apart_can_not_change_together():
    w, m, v = leaves()
    pair = only("one:0", "write", "adamw_step"), only("two:0", "add", "write", "adamw_step")
    with registered(*pair):
        session = jf.Session(device="one:0+two:0")
        session.compile(ops.write(m, jf.constant(ONES), start=(0, 0)), pins={m: "two:0"})
        session.compile(ops.write(w, jf.constant(ONES), start=(0, 0)), pins={w: "one:0"})
        with pytest.raises(PlacementError, match="change together, and no device can hold both"):
            session.compile(step(w, m, v))


def test_a_device_that_writes_dense_targets_only_refuses_others():
    w, m, _ = leaves()
    wide = jf.state("wide", (3, 2))
    text = "one:0: adamw_step: the v is strided, the kernel writes it dense"
    with registered(only("one:0", "adamw_step", targets="dense")), pytest.raises(PlacementError, match=text):
        jf.compile(step(w, m, wide.T), device="one:0", policy="strict")
