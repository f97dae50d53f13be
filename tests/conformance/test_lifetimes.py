"""Whatever order things are let go of in, nothing of a simulated device stays taken."""

from __future__ import annotations

import gc
import itertools

import numpy as np
import pytest

import jackfield as jf
from jackfield import ops, registry

NAMES = ("plan", "clone", "state", "session", "device")


@pytest.mark.parametrize("closes", [False, True])
def test_no_byte_stays_taken_in_any_order(closes):
    for order in list(itertools.permutations(NAMES))[:: 5 + closes]:
        registry.refresh()
        opened = registry.select("sim").devices[0]
        device = opened.device
        session = jf.Session("sim", policy="strict")
        x = jf.input("x", (4, 8))
        cache = jf.state("cache", (16, 8), jf.f32)
        weight = jf.constant(np.ones((8, 8), np.float32))
        rows = jf.input("rows", (4,), jf.i32)
        plan = session.compile(ops.put_rows(cache, ops.linear(x, weight), rows))
        held = {"plan": plan, "clone": plan.clone(), "state": session.states["cache"], "session": session}
        held["device"] = opened
        for one in (plan, held["clone"]):
            one(x=np.ones((4, 8), np.float32), rows=np.arange(4, dtype=np.int32))
        assert device.allocated > 0
        if closes:
            session.close()
        del opened, session, plan, one
        registry.refresh()
        for name in order:
            del held[name]
        gc.collect()
        assert device.allocated == 0, order
