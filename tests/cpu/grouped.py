"""A CPU device that remembers which steps it made together, and results of a graph with and without that."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from one_step import BACKEND, LEVELS

import jackfield as jf
from jackfield import registry
from jackfield_cpu.backend import CpuBackend
from jackfield_cpu.device import CpuDevice


class Watched(CpuDevice):
    """Remembers the ops of the groups it compiled."""

    def __init__(self, name, target, threads, *, fuses):
        super().__init__(name, target, threads, fuses=fuses)
        self.groups_made = []

    def compile(self, run, scratch):
        self.groups_made += [tuple(placed.step.op for placed in group.steps) for group in run]
        return super().compile(run, scratch)


class Only(CpuBackend):
    def __init__(self, device):
        super().__init__()
        self.name, self._device = "watched", device

    def devices(self):
        return [self._device]


DEVICES = {}


def watched(level, threads, fuses):
    key = level, threads, fuses
    if key not in DEVICES:
        target = next(t for t in BACKEND.targets() if t.arch == level)
        DEVICES[key] = Watched("watched:0", replace(target, kind="watched"), threads, fuses=fuses)
    return DEVICES[key]


@contextmanager
def opened(level=LEVELS[0], threads=1, *, fuses=True):
    """A Session on a device of its own, and the device."""
    device = watched(level, threads, fuses)
    device.groups_made.clear()
    jf.register_backend(Only(device), device_class="accel")
    try:
        with jf.Session("watched:0", policy="strict") as session:
            yield session, device
    finally:
        registry.unregister_backend("watched")


def groups_of(outputs, **how):
    """Groups of more than one step."""
    with opened(**how) as (session, device):
        session.compile(outputs)
        return [group for group in device.groups_made if len(group) > 1]


def same_bits(got, want):
    for name, y in want.items():
        np.testing.assert_array_equal(got[name].view(np.uint32), y.view(np.uint32), err_msg=name)


def results(outputs, threads, level, *, fuses=True, seed=5):
    data = np.random.default_rng(seed)
    with opened(level, threads, fuses=fuses) as (session, _):
        plan = session.compile(outputs)
        inputs = {
            name: data.standard_normal(t.shape).astype(t.spec.dtype.numpy)
            for name, t in sorted(inputs_of(outputs).items())
        }
        plan(**inputs)
        return plan(**inputs)  # twice: states have changed once


def inputs_of(outputs):
    found, stack = {}, list(outputs.values())
    while stack:
        tensor = stack.pop()
        if tensor.kind == "input":
            found[tensor.name] = tensor
        stack += [operand for operand in tensor.operands if operand is not None]
    return found
