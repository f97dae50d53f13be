"""Ctrl-C at each place where the interpreter looks for it: whatever was under way, the Session goes on afterwards."""

from __future__ import annotations

import gc
import traceback

import numpy as np
import pytest
from interrupts import Interrupt
from thorough import some

import jackfield as jf
from jackfield import errors, ops

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
        for at in some(range(1, whole.seen + 1), 7):
            with pytest.raises(KeyboardInterrupt), Interrupt(holds_locks, at):
                action(session, plan)
            gc.collect()
            session.states["m"].clear()  # what a call wrote into may be told to be incomplete
            assert plan(x=ONES).tolist() == [1, 1], at
            action(session, plan)


def ways(plan, clone):
    """Both locks, and whether each call can be made."""
    for one in (plan, clone):
        assert not one._arenas.lock.locked()
        assert one(x=ONES).tolist() == [1, 1]


def test_an_interrupt_of_a_pause_leaves_no_lock_held():
    """All locks of a Session, taken and given back in one go, as at its end."""

    def pause(store):
        with store.quiet("close"):
            assert all(arenas.lock.locked() for arenas in (store.arenas, *store.clones))

    with jf.Session(device="reference") as session:
        plan = session.compile(graph())
        clone, store = plan.clone(), session._store
        with Interrupt(holds_locks) as whole:
            pause(store)
        assert whole.seen > 10
        for at in range(1, whole.seen + 1):
            with pytest.raises(KeyboardInterrupt), Interrupt(holds_locks, at):
                pause(store)
            gc.collect()
            ways(plan, clone)
        pause(store)


@pytest.mark.parametrize("busy", ["plan", "clone"])
def test_who_finds_one_lock_taken_gives_the_others_back(busy):
    with jf.Session(device="reference") as session:
        plan = session.compile(graph())
        clone = plan.clone()
        with {"plan": plan, "clone": clone}[busy]._arenas.lock, pytest.raises(errors.Busy, match="close: a call"):
            session.close()
        ways(plan, clone)
    assert session._store.closed


def test_a_session_whose_end_was_interrupted_can_be_closed():
    def close(at):
        session = jf.Session(device="reference")
        plan = session.compile(graph())
        clone = plan.clone()
        with Interrupt(holds_locks, at) as interrupt:
            session.close()
        assert clone is not plan  # both have lived until here
        return interrupt.seen, session

    seen, _ = close(0)
    assert seen > 10
    for at in range(1, seen + 1):
        with pytest.raises(KeyboardInterrupt) as caught:
            close(at)
        session = next(
            frame.f_locals["session"] for frame, _ in traceback.walk_tb(caught.tb) if "session" in frame.f_locals
        )
        session.close()
        assert session._store.closed
        assert not any(arenas.lock.locked() for arenas in (session._store.arenas, *session._store.clones))
