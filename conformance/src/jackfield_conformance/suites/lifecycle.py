"""Suite `lifecycle`: compile, run and free in any order, often, and the same bytes each time."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from functools import partial

import numpy as np

from jackfield.backend import Step, Usage
from jackfield.dtypes import f32, i32
from jackfield.graph import Tensor
from jackfield.graph import input as graph_input
from jackfield.graph import state as graph_state
from jackfield.op import OPS
from jackfield_conformance.build import Bench, simple_op, vector_step
from jackfield_conformance.plans import chain, strict_session
from jackfield_conformance.script import ran
from jackfield_conformance.trials import Check, Subject, Trial, named

__all__ = ["trials"]

COUNT = 257  # elements of most vectors here
COMPILES = 300
LONG = 1000  # steps of a long run
PARTS = ("program", "operands", "result")


def trials(seed: int) -> Iterator[Trial]:
    for order in itertools.permutations(PARTS):
        yield Trial(f"lifecycle/drop/{'-'.join(order)}", partial(dropped_in_order, order, seed))
    checks: dict[str, Check] = {
        "same-bytes": same_bytes,
        "never-run": never_run,
        "many-compiles": many_compiles,
        "two-programs": two_programs,
        "long-run": long_run,
        "groups": groups_are_whole,
        "devices-again": devices_again,
        "constants-and-states": usages_live_apart,
        "session/close-twice": close_twice,
        "session/plan-dropped": plan_dropped,
        "session/state-survives": state_survives,
        "session/plans-share-a-state": plans_share_a_state,
        "session/any-order": partial(exits_clean, ANY_ORDER),
        "exit/live-program": partial(exits_clean, LIVE_PROGRAM),
        "exit/live-plan": partial(exits_clean, LIVE_PLAN),
    }
    yield from named("lifecycle", seed, checks)


# Programs and buffers


def dropped_in_order(order: tuple[str, ...], seed: int, subject: Subject) -> list[str]:
    """Let go of a program, its operands and its result, one after the other; what comes after works."""
    with Bench(subject, seed) as bench:
        vector = bench.vector(COUNT, apart=True)
        found = vector.mistakes()
        operands, result = [p.buffer for p in vector.operands], vector.result.buffer
        del vector
        program = bench.vector(COUNT, mark=1).program
        for part in order:
            if part == "program":
                del program
                gc.collect()
            for buffer in operands if part == "operands" else [result] if part == "result" else []:
                bench.free(buffer)
        return found + bench.vector(COUNT, mark=2).mistakes()


def same_bytes(seed: int, subject: Subject) -> list[str]:
    """One program, run five times on the same bytes, and compiled anew: equal bits."""
    with Bench(subject, seed) as bench:
        vector = bench.vector(4099)
        found = vector.mistakes()
        first = vector.get().tobytes()
        for number in range(5):
            vector.run()
            if vector.get().tobytes() != first:
                return [*found, f"run {number + 2} of one program gives other bytes than run 1"]
        again = bench.vector(4099)
        again.run()
        return found + (["the same step compiled anew gives other bytes"] if again.get().tobytes() != first else [])


def never_run(seed: int, subject: Subject) -> list[str]:
    """A program that is compiled and thrown away touches nothing."""
    with Bench(subject, seed) as bench:
        vector = bench.vector(COUNT)
        subject.device.write(
            vector.result.buffer, vector.result.offset, np.full(COUNT, 7, np.float32).view(np.uint8).data
        )
        program = bench.compile([vector.placed])
        subject.device.synchronize()
        program.check()
        return [] if (vector.get() == 7).all() else ["compile writes the result before anybody runs it"]


def many_compiles(seed: int, subject: Subject) -> list[str]:
    """Hundreds of programs, a few of them alive, each right."""
    found: list[str] = []
    with Bench(subject, seed) as bench:
        alive = []
        for number in range(COMPILES):
            alive.append(bench.vector(1 + number % 70, mark=number))
            if len(alive) > 5:
                vector = alive.pop(number % 5)
                found += [f"program {number} of {COMPILES}: {text}" for text in vector.mistakes()]
                bench.free(vector.result.buffer)
    return found


def two_programs(seed: int, subject: Subject) -> list[str]:
    """Two programs, run by turns, keep apart."""
    with Bench(subject, seed) as bench:
        a, b = bench.vector(COUNT, mark=1), bench.vector(COUNT, mark=2)
        found = []
        for turn in range(6):
            found += (a if turn % 2 else b).mistakes()
        return found + a.mistakes(run=False) + b.mistakes(run=False)


def long_run(seed: int, subject: Subject) -> list[str]:
    """A thousand steps in one program, each on the result of the one before."""
    length = min(LONG, subject.device.target.limits.max_steps or LONG)
    with strict_session(subject) as session:
        x = graph_input("x", (7,), f32)
        plan = session.compile(chain(subject, x, length))
        data = np.random.default_rng(seed).uniform(0.1, 0.9, 7).astype(np.float32)
        got, want = plan(x=data), data
        op = OPS[simple_op(subject, (7,))]
        count = sum(operand not in op.optional for operand in op.operands)
        for _ in range(length):
            want = op.run(*([want, data][:count]))
    near = np.allclose(got, want, rtol=1e-3, atol=1e-4, equal_nan=True)
    return [] if near else [f"{length} steps of {op.name}: {got} instead of {want}"]


def groups_are_whole(seed: int, subject: Subject) -> list[str]:
    """`groups` gives every step once and keeps makers before users; steps shown twice get the same answer."""
    del seed
    steps: list[Step] = [vector_step(simple_op(subject, (COUNT,)), (COUNT,))] * 7
    for shown in (steps[:1], steps):
        grouping = subject.device.groups(shown)
        order = [i for group in grouping.groups for i in group]
        if sorted(order) != list(range(len(shown))):
            return [f"groups of {len(shown)} steps are {grouping.groups}: each step must be there once"]
        if any(not 0 <= step < len(shown) or not step < until < len(shown) for step, until in grouping.keeps):
            return [f"keeps are {grouping.keeps}: each must name a step and a later one"]
    return []


def devices_again(seed: int, subject: Subject) -> list[str]:
    """Asking for the devices again changes no name."""
    del seed
    first = [device.name for device in subject.backend.devices()]
    second = [device.name for device in subject.backend.devices()]
    return [] if first == second and subject.device.name in first else [f"devices are {first}, then {second}"]


def usages_live_apart(seed: int, subject: Subject) -> list[str]:
    """Buffers of every usage, alive together, keep their bytes while programs run."""
    found = []
    with Bench(subject, seed) as bench:
        held = [(usage, data, bench.hold(data, usage)) for usage in Usage for data in [bench.floats(99, 5)]]
        for _ in range(3):
            found += bench.vector(COUNT).mistakes()
        for usage, data, place in held:
            if bench.read(place).tobytes() != data.tobytes():
                found.append(f"a {usage.value} buffer changed while programs ran")
    return found


# Sessions


def close_twice(seed: int, subject: Subject) -> list[str]:
    del seed
    with strict_session(subject) as session:
        plan = session.compile(chain(subject, graph_input("x", (7,), f32), 3))
        plan(x=np.ones(7, np.float32))
        session.close()
        session.close()
    return []


def plan_dropped(seed: int, subject: Subject) -> list[str]:
    """A plan that nobody holds takes nothing with it that another one needs."""
    with strict_session(subject) as session:
        x = graph_input("x", (33,), f32)
        kept = session.compile(chain(subject, x, 2))
        data = np.random.default_rng(seed).uniform(-1, 1, 33).astype(np.float32)
        first = kept(x=data).tobytes()
        for length in (1, 3, 40):
            session.compile(chain(subject, x, length))(x=data)
            gc.collect()
        return [] if kept(x=data).tobytes() == first else ["a plan gives other bytes after others were dropped"]


def _put_into_cache() -> tuple[Tensor, Tensor, Tensor]:
    """The state "cache" after the input "row" was put where the input "rows" says; the state; that input."""
    cache, rows = graph_state("cache", (4, 5), f32), graph_input("rows", (1,), i32)
    return OPS["put_rows"](cache, graph_input("row", (1, 5), f32), rows), cache, rows


def state_survives(seed: int, subject: Subject) -> list[str]:
    """A state keeps its value between calls, is zeros at birth, and can be written, read and cleared."""
    new = np.random.default_rng(seed).uniform(-1, 1, (1, 5)).astype(np.float32)
    with strict_session(subject) as session:
        plan = session.compile(_put_into_cache()[0])
        state, want, found = session.states["cache"], np.zeros((4, 5), np.float32), []
        if state.read().any():
            found.append("a state is not zeros at birth")
        for number in (2, 0, 2):
            want[number] = new[0] * (number + 1)
            plan(row=new * np.float32(number + 1), rows=np.array([number], np.int32))
            if not np.array_equal(state.read(), want):
                found.append(f"after row {number} was put, the state is\n{state.read()}")
        state.write(want[::-1].copy())
        if not np.array_equal(state.read(), want[::-1]):
            found.append("a state that was written reads otherwise")
        state.clear()
        return found + (["a cleared state is not zeros"] if state.read().any() else [])


def plans_share_a_state(seed: int, subject: Subject) -> list[str]:
    new = np.random.default_rng(seed).uniform(-1, 1, (1, 5)).astype(np.float32)
    with strict_session(subject) as session:
        filled, cache, rows = _put_into_cache()
        put, take = session.compile(filled), session.compile(OPS["take_rows"](cache, rows))
        put(row=new, rows=np.array([3], np.int32))
        got = take(rows=np.array([3], np.int32))
    return [] if np.array_equal(got, new) else [f"a row put by one plan is {got} to another, must be {new}"]


# The end of a process

LIVE_PROGRAM = """
from jackfield_conformance.build import Bench
from jackfield_conformance.worker import subject_of
subject = subject_of(device, 0)
bench = Bench(subject)
vector = bench.vector(99)
assert not vector.mistakes()
vector.program.run()
"""
LIVE_PLAN = """
import numpy
import jackfield
from jackfield_conformance.plans import chain
from jackfield_conformance.worker import subject_of
subject = subject_of(device, 0)
session = jackfield.Session(device, policy="strict")
plan = session.compile(chain(subject, jackfield.input("x", (99,), jackfield.f32), 3))
plan(x=numpy.ones(99, numpy.float32))
clone = plan.clone()
"""
ANY_ORDER = """
import gc
import itertools
import numpy
import jackfield
from jackfield.backend import Usage
from jackfield_conformance.plans import chain
from jackfield_conformance.worker import subject_of
names = ("plan", "clone", "session", "buffer", "device")
for order in list(itertools.permutations(names))[::5]:
    subject = subject_of(device, 0)
    session = jackfield.Session(device, policy="strict")
    plan = session.compile(chain(subject, jackfield.input("x", (99,), jackfield.f32), 3))
    held = {"plan": plan, "clone": plan.clone(), "session": session, "device": subject}
    held["buffer"] = subject.device.alloc(999, Usage.COMPUTE)
    for one in (plan, held["clone"]):
        one(x=numpy.ones(99, numpy.float32))
    del subject, session, plan, one
    jackfield.refresh()  # the list of devices lets go of it, too
    for name in order:
        del held[name]
    gc.collect()
"""


def exits_clean(script: str, seed: int, subject: Subject) -> list[str]:
    """A process that lets go of plans, buffers and devices in any order, or ends while they are alive, ends with code 0
    and without a word.
    """
    del seed
    simple_op(subject, (99,))
    code, _, words = ran(script, subject)
    if code:
        return [f"a process that holds plans and buffers ends with code {code}: {words}"]
    return [f"a process that holds plans and buffers says: {words}"] if words else []
