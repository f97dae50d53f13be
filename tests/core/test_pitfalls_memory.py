"""Figures of memory when devices know nothing, share it, or lie; and what the planner shows a device that keeps it."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import Minimal, Picky, registered

import jackfield as jf
from jackfield import ops
from jackfield.backend import Grouping, Memory, Packing
from jackfield.errors import OutOfMemory

ONES = np.ones((2, 64), np.float32)
WEIGHT = 64 * 64 * 4  # bytes of the f32 matrix of these tests


def product(rows=64, name="w", seed=0):
    """linear of an input (2, 64) with a constant (rows, 64), and the constant's array."""
    array = np.random.default_rng(seed).standard_normal((rows, 64)).astype(np.float32)
    return ops.linear(jf.input("x", (2, 64)), jf.constant(array, name=name)), array


# what is unknown


@pytest.mark.parametrize("told", [Memory(), Memory(1 << 40, 0), Memory(0, 0)])
def test_free_bytes_that_are_not_known_forbid_nothing(told):
    """Item 70: 0 is "unknown", not "full": the plan is made, and its report says no limit."""

    class Silent(Minimal):
        memory = told

    y, array = product()
    with registered(Picky([Silent("one:0")])), jf.Session("one", policy="strict") as session:
        plan = session.compile(y)
        np.testing.assert_allclose(plan(x=ONES), ONES @ array.T, rtol=1e-5, atol=1e-5)
        report = plan.memory()
        assert report["one:0"]["limit"] == 0
        assert report["one:0"]["constants"] == WEIGHT
        assert "free" not in str(report)


def test_free_bytes_that_are_a_lie_end_in_an_error_and_nothing_stays():
    """Item 70: a device that boasts is asked, refuses, and has everything back; the Session goes on."""

    class Boaster(Minimal):
        @property
        def memory(self):
            return Memory(1 << 50, 1 << 50)

    device = Boaster("one:0", memory=3 * WEIGHT)
    with registered(Picky([device])), jf.Session("one", policy="strict") as session:
        big, _ = product(rows=640)
        with pytest.raises(OutOfMemory):
            session.compile(big)
        assert sum(device.live.values()) == 0
        small, array = product()
        plan = session.compile(small)
        np.testing.assert_allclose(plan(x=ONES), ONES @ array.T, rtol=1e-5, atol=1e-5)
        assert plan.memory()["one:0"]["limit"] == 1 << 50


# what is counted twice


class Doubler(Picky):
    """Packs the matrices of linear into twice their bytes."""

    def kernels(self):
        table = dict(super().kernels())
        kernel = table["linear"]
        table["linear"] = type(kernel)(
            kernel.operands, kernel.results, kernel.attributes, {"weight": frozenset({"double"})}
        )
        return table

    def pack(self, constant, users, target):
        if {step.op for step in users} != {"linear"}:
            return None

        def pack(plain, packed):
            np.frombuffer(packed, np.uint8)[: constant.nbytes] = np.frombuffer(plain, np.uint8)

        return Packing("double", 2 * constant.nbytes, pack, None)


@pytest.mark.parametrize("times", [1, 3])
def test_a_packed_constant_is_counted_once_and_with_its_packed_bytes(times):
    """Item 70: however many steps and plans read it; a plain copy for views beside it is counted as well."""
    device = Minimal("one:0")
    weight = jf.constant(np.ones((64, 64), np.float32), name="w")
    x = jf.input("x", (2, 64))
    with registered(Doubler([device])), jf.Session("one", policy="strict") as session:
        for _ in range(times):
            y = ops.linear(x, weight)
            for _ in range(times - 1):
                y = ops.add(y, ops.linear(x, weight))
            plan = session.compile(y)
            assert plan.memory()["one:0"]["constants"] == 2 * WEIGHT
        both = session.compile(ops.add(ops.linear(x, weight), ops.sum(weight[2:4], axis=None)))
        assert both.memory()["one:0"]["constants"] == 3 * WEIGHT
        plain = session.compile(ops.sum(weight))
        assert plain.memory()["one:0"]["constants"] == WEIGHT
        arenas = max(p.memory()["one:0"]["temporaries"] for p in (plan, both, plain))
        assert sum(device.live.values()) == 3 * WEIGHT + arenas


class Part(Minimal):
    """One of two devices on one memory of so many bytes."""

    def __init__(self, name, pool):
        super().__init__(name)
        self.pool = pool
        pool.parts.append(self)

    @property
    def memory(self):
        return Memory(self.pool.nbytes, self.pool.free)

    def alloc(self, nbytes, usage):
        if nbytes > self.pool.free:
            raise OutOfMemory(f"{self.name}: {nbytes} bytes, {self.pool.free} are free")
        return super().alloc(nbytes, usage)


class Pool:
    def __init__(self, nbytes):
        self.nbytes, self.parts = nbytes, []

    @property
    def free(self):
        return self.nbytes - sum(sum(part.live.values()) for part in self.parts)


def halves(pool):
    """Two parts of one card: the first multiplies, the second adds; each brings a constant of its own."""
    backends = [Picky([Part("left:0", pool)], without=["add"]), Picky([Part("right:0", pool)], without=["linear"])]
    y, array = product()
    bias = np.random.default_rng(1).standard_normal((256, 2, 64)).astype(np.float32)
    return backends, ops.add(jf.constant(bias), y), bias + ONES @ array.T


def test_parts_that_share_memory_report_their_own_bytes_and_one_limit():
    """Item 70: what one part holds is not the other's; the sum of the peaks is what the card gave, and no more."""
    pool = Pool(1 << 24)
    backends, y, want = halves(pool)
    with registered(*backends), jf.Session("left:0+right:0", policy="prefer") as session:
        plan = session.compile(y)
        np.testing.assert_allclose(plan(x=ONES), want, rtol=1e-5, atol=1e-5)
        report = plan.memory()
        assert report["left:0"]["constants"] == WEIGHT
        assert report["right:0"]["constants"] == 256 * 2 * 64 * 4
        held = {part.name: sum(part.live.values()) for part in pool.parts}
        assert held == {name: report[name]["peak"] for name in held}
        assert pool.free == pool.nbytes - sum(report[name]["peak"] for name in held)
    assert pool.free == pool.nbytes


def test_what_fits_each_part_but_not_both_is_an_error_and_goes_with_the_session():
    """Item 70: both parts say that the whole card is free, which it is for one of them.

    Constants that were brought over stay the Session's, as those of any plan; the next try finds them there.
    """
    pool = Pool(1 << 24)
    backends, y, want = halves(pool)
    with registered(*backends), jf.Session("left:0+right:0", policy="prefer") as session:
        report = session.compile(y).memory()
    needs = [report[name]["peak"] for name in ("left:0", "right:0")]
    assert pool.free == pool.nbytes
    pool.nbytes = sum(needs) - 1
    assert max(needs) < pool.nbytes
    with registered(*backends), jf.Session("left:0+right:0", policy="prefer") as session:
        with pytest.raises(OutOfMemory):
            session.compile(y)
        assert pool.free >= 0
        pool.nbytes += 1
        np.testing.assert_allclose(session.compile(y)(x=ONES), want, rtol=1e-5, atol=1e-5)
        assert pool.free == 0
    assert pool.free == pool.nbytes


# what is shown


class Grasping(Minimal):
    """Empties every list it is shown, once it has made its own of it; keeps the tuples and answers from them."""

    def groups(self, steps):
        count = len(steps)
        _empty(steps)
        return Grouping(tuple((i,) for i in range(count)))

    def scratch(self, group):
        _empty(group)
        return 64

    def compile(self, run, scratch):
        program = super().compile(run, scratch)
        _empty(run)
        return program


def _empty(shown):
    if isinstance(shown, list):
        shown.clear()


def test_the_planner_does_not_need_the_lists_back_that_it_shows():
    """Item 55 from the other side: what a device does to a list it was shown changes no plan."""
    x = jf.input("x", (4, 8))
    y = x
    for _ in range(6):
        y = ops.add(ops.relu(y), ops.scale(y, scale=0.5))
    z = ops.softmax(y)
    value = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    want = jf.compile([y, z], device="reference")(x=value)
    with registered(Picky([Grasping("one:0")])), jf.Session("one", policy="strict") as session:
        plan = session.compile([y, z])
        for _ in range(2):
            got = plan(x=value)
            np.testing.assert_allclose(got[0], want[0], rtol=1e-5)
            np.testing.assert_allclose(got[1], want[1], rtol=1e-5)
        assert len(plan.explain().to_dict()["nodes"]) == 19
        assert len(plan.explain().to_dict()["runs"][0]["nodes"]) == 19
