"""Changes of states that no output reads: `compile(outputs, changes=...)`."""

from __future__ import annotations

import numpy as np
import presence
import pytest

import jackfield as jf
from jackfield import ops
from jackfield.errors import GraphError, PlanError
from jackfield.explain import explain

DEVICES = ("reference", "sim", "cpu:0")


@pytest.fixture(params=DEVICES)
def device(request):
    return presence.opens(request.param)


def counter():
    """A sum of all rows that were given, which is kept, and an output that does not read what is kept."""
    x, kept = jf.input("x", (1, 3)), jf.state("kept", (2, 3))
    at = jf.input("at", (1,), jf.i32)
    before = ops.take_rows(kept, at)
    after = ops.add(before, x)
    return ops.scale(x, scale=2.0), ops.put_rows(kept, after, at)


def test_what_no_output_reads_is_made_all_the_same(device):
    y, change = counter()
    with jf.Session(device) as session:
        plan = session.compile(y, changes=[change])
        for n in (1, 2, 3):
            x = np.full((1, 3), n, np.float32)
            assert np.array_equal(plan(x=x, at=np.array([1], np.int32)), 2 * x)
        assert session.states["kept"].read().tolist() == [[0, 0, 0], [6, 6, 6]]


def test_without_it_the_state_stays(device):
    y, _ = counter()
    with jf.Session(device) as session:
        plan = session.compile(y)
        assert list(plan.inputs) == ["x"]
        assert not list(session.states)


def test_changes_alone_are_a_plan(device):
    _, change = counter()
    with jf.Session(device) as session:
        plan = session.compile((), changes=[change])
        assert plan(x=np.ones((1, 3), np.float32), at=np.array([0], np.int32)) == ()
        assert session.states["kept"].read()[0].tolist() == [1, 1, 1]


def test_a_view_of_the_new_value_will_do(device):
    y, change = counter()
    with jf.Session(device) as session:
        session.compile(y, changes=[change[1]])(x=np.ones((1, 3), np.float32), at=np.array([1], np.int32))
        assert session.states["kept"].read()[1].tolist() == [1, 1, 1]


def test_explain_and_draw_know_them():
    y, change = counter()
    assert "put_rows" not in str(explain(y, "reference"))
    assert "put_rows" in str(explain(y, "reference", changes=[change]))
    with jf.Session("reference") as session:
        assert "put_rows" in str(session.compile(y, changes=[change]).explain())


def test_a_report_after_the_plan_has_settled_has_them_still():
    y, change = counter()
    with jf.Session("reference") as session:
        plan = session.compile(y, changes=[change])
        plan(x=np.ones((1, 3), np.float32), at=np.array([1], np.int32))
        assert "put_rows" in str(plan.explain())


@pytest.mark.parametrize("wrong", ["input", "node", "old", "temporary"])
def test_what_is_no_change_of_a_state(wrong):
    y, _ = counter()
    x, kept = jf.input("other", (2, 3)), jf.state("still", (2, 3))
    change = {
        "input": x,
        "node": ops.add(x, x),
        "old": kept,
        "temporary": ops.put_rows(ops.add(x, x), x, jf.constant(np.array([0, 1], np.int32))),
    }[wrong]
    with jf.Session("reference") as session, pytest.raises(GraphError, match="no new value of a state"):
        session.compile(y, changes=[change])


def test_what_is_no_tensor():
    y, _ = counter()
    with pytest.raises(GraphError, match="a change is a ndarray"):
        jf.compile(y, "reference", changes=[np.zeros(3)])


def test_nothing_at_all():
    with jf.Session("reference") as session, pytest.raises(GraphError, match="no output"):
        session.compile((), changes=[])


def test_an_old_value_as_output_beside_a_change():
    y, change = counter()
    kept = change.operands[0]
    with jf.Session("reference") as session, pytest.raises(PlanError, match="value from before"):
        session.compile([y, kept], changes=[change])
