"""Ctrl-C at each place where the interpreter looks for it: whatever was under way, the Session goes on afterwards."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from interrupts import Interrupt

import jackfield as jf
from jackfield import ops

OURS = ("plan.py", "session.py", "store.py", "contextlib.py")  # where locks are held


def holds_locks(code):
    return code.co_filename.endswith(OURS)


def graph():
    x = jf.input("x", (2,))
    memory = jf.state("m", (2,))
    return ops.add(x, memory)


ONES = np.ones(2, np.float32)


def call(session, plan):
    plan(x=ONES)


def clone(session, plan):
    plan.clone()(x=ONES)


def compile_(session, plan):
    session.compile(graph())


def read_state(session, plan):
    session.states["m"].read()


def clear_state(session, plan):
    session.states["m"].clear()


@pytest.mark.parametrize("action", [call, clone, compile_, read_state, clear_state])
def test_an_interrupt_leaves_no_session_busy(action):
    with jf.Session(device="reference") as session:
        plan = session.compile(graph())
        with Interrupt(holds_locks) as whole:
            action(session, plan)
        assert whole.seen > 10
        for at in range(1, whole.seen + 1):
            with pytest.raises(KeyboardInterrupt), Interrupt(holds_locks, at):
                action(session, plan)
            gc.collect()
            session.states["m"].clear()  # what a call wrote into may be told to be incomplete
            assert plan(x=ONES).tolist() == [1, 1], at
            action(session, plan)
