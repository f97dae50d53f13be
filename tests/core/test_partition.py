"""Exact runs and copies on devices with filters; each value is brought to a device at most once a making."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import Minimal, Picky, Poisoner, opened, registered
from graphs import graphs
from hypothesis import given, settings
from hypothesis import strategies as st

import jackfield as jf
from jackfield import ops
from jackfield.backend import Limits
from jackfield.blueprint import Request, draw
from jackfield.errors import PlacementError


def planned(y, *backends, policy="prefer", pins=(), **keywords):
    devices = [one for backend in backends for one in opened(backend)]
    outputs = list(y) if isinstance(y, (tuple, list)) else [y]
    return draw(outputs, Request(devices, tuple, "test", named=True, policy=policy, pins=pins, **keywords))


def text(drawn):
    """Runs with the copies before them."""
    lines = []
    for run in drawn.runs:
        name = drawn.panel.name(run.device)
        lines += [
            f"{name} < {c.tensor or '?'} {c.nbytes} from {drawn.panel.name(c.source.value.device)}" for c in run.copies
        ]
        lines.append(f"{name}: {' '.join(item.name for item in run.items)}")
    return lines


def only(name, *ops_, **keywords):
    """A device that takes only these ops, and contiguous."""
    from jackfield.reference import kernels_of_all_ops

    others = [op for op in kernels_of_all_ops() if op not in (*ops_, "contiguous")]
    return Picky([Minimal(name, **keywords)], without=others)


def test_runs_and_copies():
    x = jf.input("x", (4,))
    a = ops.add(x, x)
    y = ops.add(ops.multiply(a, a), ops.multiply(ops.add(a, x), a))
    drawn = planned(y, only("one:0", "add"), only("two:0", "multiply"))
    assert text(drawn) == [
        "one:0: add.0",
        "two:0 < add 16 from one:0",
        "two:0: multiply.0",
        "one:0: add.1",
        "two:0 < add 16 from one:0",
        "two:0: multiply.1",
        "one:0 < multiply 16 from two:0",
        "one:0 < multiply 16 from two:0",
        "one:0: add.2",
    ]


def test_only_the_rows_that_are_read_are_copied():
    x = jf.input("x", (100, 16))
    a = ops.add(x, x)
    y = ops.multiply(a[40:50], a[42:52])
    drawn = planned(y, only("one:0", "add"), Picky([Minimal("two:0")], without=["add"], reads="any"))
    assert text(drawn)[1] == "two:0 < add 768 from one:0"


def test_broadcast_axes_are_copied_once():
    x = jf.input("x", (1, 16))
    wide = ops.broadcast_to(ops.add(x, x), shape=(50, 16))
    drawn = planned(ops.multiply(wide, wide), only("one:0", "add"), only("two:0", "multiply"))
    assert text(drawn)[1] == "two:0 < add 64 from one:0"


def test_limits_cut_runs():
    x = y = jf.input("x", (4,))
    for _ in range(5):
        y = ops.add(y, x)
    drawn = planned(y, Picky([Minimal("one:0", limits=Limits(max_steps=2))]))
    assert text(drawn) == ["one:0: add.0 add.1", "one:0: add.2 add.3", "one:0: add.4"]
    inputs = [jf.input(f"x{i}", (4,)) for i in range(5)]
    total = inputs[0]
    for other in inputs[1:]:
        total = ops.add(total, other)
    drawn = planned(total, Picky([Minimal("one:0", limits=Limits(max_operands=3))]))
    assert text(drawn) == ["one:0: add.0 add.1", "one:0: add.2 add.3"]


def test_a_strided_operand_gets_a_copy_where_it_is_not_taken():
    x = jf.input("x", (4, 6))
    a = ops.add(x, x)
    y = ops.add(ops.multiply(a.T, a.T), ops.multiply(a[:, :3].T, a[:, :3].T)[:1, 0:1])
    dense = planned(y, Picky([Minimal("one:0")]))
    assert text(dense) == ["one:0: add.0 copy.0 multiply.0 copy.1 multiply.1 add.1"]
    assert [(i.before, i.nbytes) for i in dense.inserted] == [("multiply.0", 96), ("multiply.1", 48)]
    assert text(planned(y, Picky([Minimal("one:0")], reads="any"))) == ["one:0: add.0 multiply.0 multiply.1 add.1"]
    rows = ops.multiply(a[:, :3], a[:, :3])
    assert text(planned(rows, Picky([Minimal("one:0")], reads="rows"))) == ["one:0: add.0 multiply.0"]
    assert text(planned(rows, Picky([Minimal("one:0")]))) == ["one:0: add.0 copy.0 multiply.0"]
    assert text(planned(y, Picky([Minimal("one:0")], reads="rows")))[0].count("copy") == 2


def test_no_device_makes_the_copy():
    x = jf.input("x", (4, 6))
    with pytest.raises(
        PlacementError, match=r"no device takes the copy that is needed: contiguous.*\n  one:0: no kernel"
    ):
        planned(ops.add(x.T, x.T), Picky([Minimal("one:0")], without=["contiguous"]))


def test_temporaries_are_changed_in_place_where_nobody_looks():
    x = jf.input("x", (4, 3))
    rows, new = jf.constant(np.array([1], np.int32)), jf.constant(np.ones((1, 3), np.float32))
    a = ops.add(x, x)
    alone = planned(ops.put_rows(a, new, rows), Picky([Minimal("one:0")]))
    assert text(alone) == ["one:0: add.0 put_rows.0"]
    shared = planned(ops.add(ops.put_rows(a, new, rows), a), Picky([Minimal("one:0")]))
    assert text(shared) == ["one:0: add.0 copy.0 put_rows.0 add.1"]
    assert shared.inserted[0].why == "put_rows changes it, and its old value is still needed"
    disjoint = planned(ops.add(ops.put_rows(a[:2], new, rows), a[2:]), Picky([Minimal("one:0")]))
    assert text(disjoint) == ["one:0: add.0 put_rows.0 add.1"]


def test_an_update_elsewhere_changes_its_own_copy():
    x = jf.input("x", (4, 3))
    rows, new = jf.constant(np.array([1], np.int32)), jf.constant(np.ones((1, 3), np.float32))
    a = ops.add(x, x)
    y = ops.multiply(ops.put_rows(a, new, rows), ops.multiply(a, a))
    drawn = planned(y, only("one:0", "add"), only("two:0", "put_rows", "multiply"))
    assert text(drawn) == [
        "one:0: add.0",
        "two:0 < add.0 48 from one:0",
        "two:0 < add 48 from one:0",
        "two:0: put_rows.0 multiply.0 multiply.1",
    ]


def test_an_operand_that_overlaps_the_target_is_copied():
    k = jf.state("k", (6, 2))
    drawn = planned(ops.write(k[1:], k[:-1], start=(0, 0)), Picky([Minimal("one:0")], reads="any"))
    assert text(drawn) == ["one:0: copy.0 write.0"]
    with registered(Picky([Poisoner("one:0")], reads="any")), jf.Session("one", policy="strict") as session:
        plan = session.compile(ops.write(k[1:], k[:-1], start=(0, 0)))
        before = np.arange(12, dtype=np.float32).reshape(6, 2)
        session.states["k"].write(before)
        plan()
        np.testing.assert_array_equal(session.states["k"].read(), np.concatenate([before[:1], before[:-1]]))


def test_states_that_another_device_reads_are_copied_each_time_they_change():
    k = jf.state("k", (4, 3))
    rows, new = jf.constant(np.array([1], np.int32)), jf.constant(np.ones((1, 3), np.float32))
    old = ops.multiply(k, k)
    fresh = ops.put_rows(k, new, rows)
    drawn = planned(
        (old, ops.multiply(fresh, fresh), ops.multiply(fresh, old)),
        only("one:0", "put_rows"),
        only("two:0", "multiply"),
    )
    copies = [line for line in text(drawn) if "<" in line]
    assert copies == ["two:0 < k 48 from one:0", "two:0 < k 48 from one:0"]


@given(
    graphs(),
    st.sets(st.sampled_from(["add", "multiply", "contiguous", "full", "write", "put_rows", "concatenate"])),
)
@settings(max_examples=80)
def test_each_value_is_brought_once_a_making(built, one_takes):
    one, two = only("one:0", *one_takes), Picky([Minimal("two:0")], without=sorted(one_takes - {"contiguous"}))
    drawn = planned(built.tensors(), one, two)
    seen, changed = set(), {}
    for run in drawn.runs:
        for copy in run.copies:
            value = copy.source.value
            key = (value, changed.get(value, 0), run.device)
            private = any(i.updates and i.result.value is copy.target.value for i in run.items)
            assert private or key not in seen, f"{copy.tensor} comes twice"
            if not private:
                seen.add(key)
            assert value.device != run.device
        for item in run.items:
            assert all(ref is None or ref.value.device == run.device for ref in item.operands)
            if item.updates:
                changed[item.result.value] = changed.get(item.result.value, 0) + 1
