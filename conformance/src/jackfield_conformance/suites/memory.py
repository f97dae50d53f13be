"""Suite `memory`: a thousand plans, programs, buffers and calls leave no more behind than one."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from jackfield.backend import Buffer, Device, Usage
from jackfield.dtypes import f32
from jackfield.graph import constant
from jackfield.graph import input as graph_input
from jackfield.op import OPS
from jackfield_conformance.build import Bench, filled
from jackfield_conformance.plans import chain, strict_session
from jackfield_conformance.trials import Subject, Trial, named

__all__ = ["trials"]

CYCLES = 1000
CALLS = 3000
WARM_UP = 5  # a fifth of the cycles comes first: caches fill, the allocator finds its size
SHARE = 0.02  # of resident memory may be added
TURNS = 3  # in all of which something must grow
SLACK = 1 << 20  # bytes; what an allocator keeps back at its own pace
BLOCKS = 0.25  # objects of Python a cycle; a leak is one at least
FEW_BLOCKS = 30  # objects that come and go with the interpreter's own caches
COUNT = 4096  # elements of a vector: one that leaks a thousand times is 16 MiB


def trials(seed: int) -> Iterator[Trial]:
    checks = {
        "plan-cycles": plan_cycles,
        "constants": constant_cycles,
        "clones": clone_cycles,
        "programs": program_cycles,
        "buffers": buffer_cycles,
        "large-buffers": large_buffer_cycles,
        "calls": calls_are_flat,
        "calls-allocate-nothing": calls_allocate_nothing,
        "all-given-back": all_given_back,
    }
    yield from named("memory", seed, checks)


def resident() -> int:
    """Bytes of this process in memory; where the system does not tell, its peak so far."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        pass
    try:
        import resource  # noqa: PLC0415 (not on every system)
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def grows(cycle: Callable[[int], object], cycles: int, what: str) -> list[str]:
    """Resident memory and objects of Python after many cycles against those after a few; what grew, in words.

    Growth is looked at again: a leak goes on, what caches and allocators do at their own pace does not.
    """
    warm = cycles // WARM_UP
    for number in range(warm):
        cycle(number)
    rest, found = cycles - warm, list[str]()
    for turn in range(TURNS):
        first = warm + turn * rest
        found = _growth(cycle, range(first, first + rest), what)
        if not found:
            break
    return found


def _growth(cycle: Callable[[int], object], numbers: range, what: str) -> list[str]:
    gc.collect()
    bytes_before, blocks_before = resident(), sys.getallocatedblocks()
    for number in numbers:
        cycle(number)
    gc.collect()
    more, blocks = resident() - bytes_before, sys.getallocatedblocks() - blocks_before
    found, count = [], len(numbers)
    if more > max(SLACK, SHARE * bytes_before):
        found.append(f"{count} {what} added {more} bytes to {bytes_before} in memory: {more // count} each")
    if blocks > FEW_BLOCKS + BLOCKS * count:
        found.append(f"{count} {what} left {blocks} objects of Python behind")
    return found


def plan_cycles(seed: int, subject: Subject) -> list[str]:
    """Compile, run, close."""
    data = np.random.default_rng(seed).uniform(0, 1, COUNT).astype(np.float32)

    def cycle(_: int) -> None:
        with strict_session(subject) as session:
            plan = session.compile(chain(subject, graph_input("x", (COUNT,), f32), 2))
            plan(x=data)

    return grows(cycle, CYCLES, "plans")


def constant_cycles(seed: int, subject: Subject) -> list[str]:
    """As plans, with a constant that a device may pack."""
    rng = np.random.default_rng(seed)
    weight, data = rng.uniform(-1, 1, (64, 64)).astype(np.float32), rng.uniform(-1, 1, (1, 64)).astype(np.float32)

    def cycle(_: int) -> None:
        with strict_session(subject) as session:
            plan = session.compile(OPS["linear"](graph_input("x", (1, 64), f32), constant(weight)))
            plan(x=data)

    return grows(cycle, CYCLES // 2, "plans with a constant")


def clone_cycles(seed: int, subject: Subject) -> list[str]:
    data = np.random.default_rng(seed).uniform(0, 1, COUNT).astype(np.float32)
    with strict_session(subject) as session:
        plan = session.compile(chain(subject, graph_input("x", (COUNT,), f32), 2))
        return grows(lambda _: plan.clone()(x=data), CYCLES, "clones")


def program_cycles(seed: int, subject: Subject) -> list[str]:
    """Without a planner: allocate, compile, run, free."""

    def cycle(_: int) -> None:
        with Bench(subject, seed) as bench:
            bench.vector(COUNT).run()

    return grows(cycle, CYCLES, "programs")


def buffer_cycles(seed: int, subject: Subject) -> list[str]:
    device, image, usages = subject.device, filled(16 << 10, seed), list(Usage)

    def cycle(number: int) -> None:
        buffer = device.alloc(image.nbytes, usages[number % len(usages)])
        device.write(buffer, 0, image.data)
        device.free(buffer)

    return grows(cycle, CALLS, "buffers")


def large_buffer_cycles(seed: int, subject: Subject) -> list[str]:
    device, image = subject.device, filled(4 << 20, seed)

    def cycle(_: int) -> None:
        buffer = device.alloc(image.nbytes, Usage.COMPUTE)
        device.write(buffer, 0, image.data)
        device.free(buffer)

    return grows(cycle, 100, "buffers of 4 MiB")


def calls_are_flat(seed: int, subject: Subject) -> list[str]:
    data = np.random.default_rng(seed).uniform(0, 1, COUNT).astype(np.float32)
    with strict_session(subject) as session:
        plan = session.compile(chain(subject, graph_input("x", (COUNT,), f32), 3))
        return grows(lambda _: plan(x=data), CALLS, "calls")


@contextmanager
def counted(device: Device) -> Iterator[dict[str, int]]:
    """What is asked of the device inside the block: allocs, frees and compiles."""
    seen = {"alloc": 0, "free": 0, "compile": 0}

    def spy(name: str) -> Callable[..., object]:
        inner = getattr(device, name)

        def counting(*args: object) -> object:
            seen[name] += 1
            return inner(*args)

        return counting

    for name in seen:
        setattr(device, name, spy(name))
    try:
        yield seen
    finally:
        for name in seen:
            delattr(device, name)


def calls_allocate_nothing(seed: int, subject: Subject) -> list[str]:
    """A call asks the device for no memory and no program."""
    data = np.random.default_rng(seed).uniform(0, 1, COUNT).astype(np.float32)
    with strict_session(subject) as session:
        plan = session.compile(chain(subject, graph_input("x", (COUNT,), f32), 3))
        with counted(subject.device) as seen:
            for _ in range(50):
                plan(x=data)
    return [f"50 calls made {count} {name}s" for name, count in seen.items() if count]


def all_given_back(seed: int, subject: Subject) -> list[str]:
    """What a Session allocated it frees when it closes, and the device's free memory is what it was."""
    device = subject.device
    owned = device.memory.total and "host_visible" not in device.target.features
    device.synchronize()
    before = device.memory.free
    alive: list[Buffer] = []
    inner_alloc, inner_free = device.alloc, device.free

    def alloc(nbytes: int, usage: Usage) -> Buffer:
        alive.append(inner_alloc(nbytes, usage))
        return alive[-1]

    def free(buffer: Buffer) -> None:
        alive[:] = [b for b in alive if b is not buffer]
        inner_free(buffer)

    device.alloc, device.free = alloc, free  # type: ignore[method-assign]
    try:
        plan_once(seed, subject)
    finally:
        del device.alloc, device.free
    found = [f"a closed Session left {len(alive)} buffers"] if alive else []
    device.synchronize()
    if owned and device.memory.free != before:
        found.append(f"{before} bytes were free before a Session, {device.memory.free} after it")
    return found


def plan_once(seed: int, subject: Subject) -> None:
    with strict_session(subject) as session:
        plan = session.compile(chain(subject, graph_input("x", (COUNT,), f32), 3))
        plan(x=np.random.default_rng(seed).uniform(0, 1, COUNT).astype(np.float32))
