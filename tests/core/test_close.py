"""A close that Ctrl-C interrupts: the next one frees the rest, and nothing is freed twice."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import Minimal, Picky, registered

import jackfield as jf


class Counting(Minimal):
    """Knows its buffers. interrupt: at which free from now on Ctrl-C comes, before or after the buffer is gone."""

    def __init__(self, name):
        super().__init__(name)
        self.held, self.twice, self.interrupt, self.is_before = {}, 0, 0, False

    def alloc(self, nbytes, usage):
        buffer = super().alloc(nbytes, usage)
        self.held[id(buffer)] = buffer
        return buffer

    def free(self, buffer):
        self.interrupt -= 1
        if not self.interrupt and self.is_before:
            raise KeyboardInterrupt
        self.twice += self.held.pop(id(buffer), None) is None
        super().free(buffer)
        if not self.interrupt:
            raise KeyboardInterrupt


def opened(device):
    """A session with constants, a state and the arenas of a plan and a clone."""
    session = jf.Session(device.name)
    x = jf.input("x", (3,))
    ones = [jf.constant(np.full(3, float(n), np.float32)) for n in range(3)]
    y = x
    for one in ones:
        y = jf.ops.add(y, one)
    plan = session.compile(y)
    clone = plan.clone()
    assert clone(x=np.ones(3, np.float32)).tolist() == plan(x=np.ones(3, np.float32)).tolist() == [4, 4, 4]
    return session, plan, clone


def buffers():
    device = Counting("one:0")
    with registered(Picky([device])):
        kept = opened(device)
        count = len(device.held)
        kept[0].close()
    assert not device.held
    return count


@pytest.mark.parametrize("is_before", [False, True])
def test_closing_again_frees_the_rest(is_before):
    count = buffers()
    assert count >= 3
    for at in range(1, count + 1):
        device = Counting("one:0")
        with registered(Picky([device])):
            session, plan, _ = opened(device)
            device.interrupt, device.is_before = at, is_before
            with pytest.raises(KeyboardInterrupt):
                session.close()
            with pytest.raises(jf.errors.PlanError, match="closed"):
                plan(x=np.ones(3, np.float32))
            session.close()
            session.close()
        assert device.twice == 0
        assert len(device.held) == is_before, "the one whose free did not come to its end is not tried again"
