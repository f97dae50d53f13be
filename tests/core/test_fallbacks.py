"""Backends that nobody needs are not run: what takes over is opened when a named device refuses, and not before."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from fakes import Minimal, Picky, registered

import jackfield as jf
from jackfield import ops
from jackfield.errors import PlacementError, PlanError
from jackfield.explain import explain


class Shy(Picky):
    """A backend of class cpu, the first of its class by name, that counts how often it was opened."""

    def __init__(self) -> None:
        super().__init__([Minimal("bashful:0")])
        self.name, self.opened = "bashful", 0

    def devices(self):
        self.opened += 1
        return super().devices()


def refusing(op="softmax", name="one:0"):
    return Picky([Minimal(name)], without=[op])


def outputs():
    x = jf.input("x", (2, 4))
    return ops.softmax(ops.add(x, x))


@pytest.fixture
def shy():
    backend = Shy()
    with registered(backend, device_class="cpu"):
        yield backend


@pytest.mark.parametrize("policy", ["strict", "prefer", "auto", None])
def test_a_device_that_takes_everything_wakes_no_other(shy, policy):
    plan = jf.compile(outputs(), "reference", policy=policy)
    plan(x=np.ones((2, 4), np.float32))
    state = jf.state("s", (2, 4))
    plan.session.compile(ops.write(state, outputs(), start=(0, 0)))
    plan.session.compile(ops.add(state, state))
    explain(outputs(), "reference", policy=policy)
    assert shy.opened == 0


def test_strict_never_wakes_another(shy):
    with registered(refusing()), pytest.raises(PlacementError, match=r"one:0: no kernel for softmax"):
        jf.compile(outputs(), "one", policy="strict")
    with registered(refusing()), pytest.raises(PlanError, match=r"no device .bashful. in this selection; it has one:0"):
        jf.compile(outputs(), "one", policy="strict", pins={"add.0": "bashful"})
    assert shy.opened == 0


def test_a_refusal_wakes_the_fallbacks_once(shy):
    with registered(refusing()):
        session = jf.Session("one")
        session.compile(ops.add(jf.input("x", (2, 4)), jf.input("y", (2, 4))))
        assert shy.opened == 0
        for _ in range(2):
            assert session.compile(outputs()).devices == ("one:0", "bashful:0")
        assert shy.opened == 1


def test_a_copy_that_the_device_refuses_wakes_the_fallbacks(shy):
    x = jf.input("x", (2, 4))
    with registered(refusing("contiguous")):
        plan = jf.compile(ops.add(x.T, x.T), "one")
    assert shy.opened == 1
    assert set(plan.devices) == {"one:0", "bashful:0"}
    a = np.arange(8, dtype=np.float32).reshape(2, 4)
    assert np.array_equal(plan(x=a), (a + a).T)


def test_a_pin_on_a_fallback_wakes_it(shy):
    with registered(refusing("tanh")):
        plan = jf.compile(outputs(), "one", pins={"softmax.0": "bashful"})
    assert (plan.devices, shy.opened) == (("one:0", "bashful:0"), 1)


def test_a_state_that_was_born_on_a_fallback_is_found_there(shy):
    x = jf.input("x", (2, 4))
    s = jf.state("s", (2, 4))
    with registered(refusing("write")):
        session = jf.Session("one")
        assert session.compile(ops.write(s, x, start=(0, 0))).devices == ("bashful:0",)
        assert session.compile(ops.write(s, ops.add(x, x), start=(0, 0))).devices == ("one:0", "bashful:0")
    assert session.states["s"].device == "bashful:0"


def test_no_plugin_is_imported_for_another_device():
    """A crash inside a native module can hit only who named it, or named nothing."""
    code = (
        "import sys, jackfield as jf; x = jf.input('x', (4,));"
        "jf.compile(jf.ops.add(x, x), 'reference'); jf.compile(jf.ops.add(x, x), 'sim', policy='strict');"
        "from importlib.metadata import entry_points;"
        "names = [e.value.partition(':')[0] for e in entry_points(group='jackfield.backends')];"
        "print([n for n in names if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
