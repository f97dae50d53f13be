"""Suite `errors`: what is found in data is told in the right class, once; nothing is printed, and work goes on."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial

import numpy as np

from jackfield.backend import Reason, Usage
from jackfield.conformance.cases import Example, examples
from jackfield.conformance.check import expected
from jackfield.dtypes import f32, i32
from jackfield.errors import BadIndex, Error, PlacementError
from jackfield.graph import input as graph_input
from jackfield.op import OPS
from jackfield.session import Session
from jackfield_conformance.build import Bench
from jackfield_conformance.direct import bind, refused, step_of
from jackfield_conformance.plans import strict_session
from jackfield_conformance.trials import Refused, Subject, Trial, named
from jackfield_conformance.verdicts import verdict

from .claims import RUNNING, kernel_of

__all__ = ["captured", "trials"]

COUNT = 257


def trials(seed: int) -> Iterator[Trial]:
    for name in RUNNING:
        if any(all(d.is_integer for d in dtypes) for dtypes in OPS[name].declared.accepts.values()):
            yield Trial(f"errors/bad-index/{name}", partial(told_once, name, seed))
        yield Trial(f"errors/dtype/{name}", partial(unlisted_dtype, name))
    checks = {
        "in-a-plan": in_a_plan,
        "goes-on": goes_on,
        "prints/work": prints_nothing_at_work,
        "prints/wrong-use": prints_nothing_on_wrong_use,
        "prints/fault": prints_nothing_of_faults,
        "refused-in-a-plan": refused_in_a_plan,
    }
    yield from named("errors", seed, checks)


@cache
def faulty(name: str) -> tuple[Example, ...]:
    """The declared cases of an op that hold a bad index, dense and in their first dtypes."""
    first: dict[int, Example] = {}
    for example in examples(OPS[name]):
        if example.layout == "dense":
            first.setdefault(example.case, example)
    return tuple(example for example in first.values() if expected(example)[1])


def taken(found: tuple[Example, ...], subject: Subject) -> list[Example]:
    """Those that the device takes. Raises: Refused where it takes none."""
    if not found:
        raise Refused(Reason("no declared case holds a bad index", "other"))
    reasons = [refused(step_of(example), subject.backend, subject.device) for example in found]
    if all(reason is not None for reason in reasons):
        raise Refused(reasons[0])
    return [example for example, reason in zip(found, reasons, strict=True) if reason is None]


def told_once(name: str, seed: int, subject: Subject) -> list[str]:
    """The fault of each run is raised by one check, and the run after it tells its own."""
    del seed
    mistakes = []
    for example in taken(faulty(name), subject):
        bound = bind(example, subject.backend, subject.device)
        try:
            for turn in ("the first run", "the second run"):
                bound.reset()
                mistakes += [f"{example}: {turn}: {text}" for text in verdict(example, bound.run()).mistakes]
            try:
                bound.program.check()
            except Error as e:
                mistakes.append(f"{example}: a second check raises again: {e}")
        finally:
            bound.free()
    return mistakes


def unlisted_dtype(name: str, subject: Subject) -> list[str]:
    """Every dtype of the op that its kernel does not list is refused, with code dtype."""
    kernel = kernel_of(name, subject.backend)
    for example in examples(OPS[name]):
        pairs = zip(OPS[name].operands, example.specs, strict=True)
        strange = [n for n, s in pairs if s and n in kernel.operands and s.dtype.name not in kernel.operands[n]]
        if not strange or example.layout != "dense":
            continue
        reason = refused(step_of(example), subject.backend, subject.device)
        if reason is None:
            return [f"{example} is taken, and the kernel does not list the dtype of {strange[0]}"]
        if getattr(reason, "code", "") not in ("dtype", "operand"):
            return [f"{example} is refused with code {getattr(reason, 'code', None)!r}, must be 'dtype'"]
    return []


# Through a plan


def in_a_plan(seed: int, subject: Subject) -> list[str]:
    """A bad index in the middle of a plan is a BadIndex that is also an IndexError; the next call is right."""
    table = np.random.default_rng(seed).uniform(-1, 1, (5, 7)).astype(np.float32)
    with strict_session(subject) as session:
        x, rows = graph_input("x", (5, 7), f32), graph_input("rows", (3,), i32)
        plan = session.compile(OPS["take_rows"](x, rows))
        found = []
        for wrong in (5, -1, 1 << 30):
            try:
                plan(x=table, rows=np.array([0, wrong, 2], np.int32))
            except BadIndex as e:
                if "take_rows" not in str(e) or str(wrong) not in str(e):
                    found.append(f"the error must name take_rows and {wrong}: {e}")
            else:
                found.append(f"a plan with the row {wrong} of 5 raises nothing")
            right = plan(x=table, rows=np.array([4, 0, 2], np.int32))
            if not np.array_equal(right, table[[4, 0, 2]]):
                found.append(f"the call after the row {wrong} is wrong")
    return found


def goes_on(seed: int, subject: Subject) -> list[str]:
    """After a failed allocation, a fault in data and a wrong read, the device computes as before."""
    device, found = subject.device, []
    with Bench(subject, seed) as bench:
        vector = bench.vector(COUNT)
        found += vector.mistakes()
        _wrong_uses(bench)
        for name in ("take_rows", "put_rows"):
            for example in faulty(name):
                if refused(step_of(example), subject.backend, device) is None:
                    bound = bind(example, subject.backend, device)
                    bound.run()
                    bound.free()
        return found + [f"after errors: {text}" for text in vector.mistakes()]


def _wrong_uses(bench: Bench) -> None:
    """What must raise, and may do no more."""
    device = bench.device
    with suppress(Exception):
        device.alloc(1 << 60, Usage.COMPUTE)
    buffer = bench.alloc(8)
    for offset in (9, -1):
        with suppress(Exception):
            device.read(buffer, offset, memoryview(bytearray(8)))


# Nothing is printed


@contextmanager
def captured() -> Iterator[list[str]]:
    """The list gets what native code and Python wrote to both output streams inside the block."""
    said: list[str] = []
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as log:
        kept = [os.dup(1), os.dup(2)]
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            yield said
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for fd, old in zip((1, 2), kept, strict=True):
                os.dup2(old, fd)
                os.close(old)
            log.seek(0)
            said += [" ".join(log.read().decode("utf-8", "replace").split())]


def _silent(work: Callable[[], object]) -> list[str]:
    with captured() as said:
        work()
    return [f"printed {len(said[0])} characters: {said[0][:80]!r}"] if said[0] else []


def prints_nothing_at_work(seed: int, subject: Subject) -> list[str]:
    with Bench(subject, seed) as bench:
        return _silent(lambda: bench.vector(COUNT).run())


def prints_nothing_on_wrong_use(seed: int, subject: Subject) -> list[str]:
    with Bench(subject, seed) as bench:
        return _silent(lambda: _wrong_uses(bench))


def prints_nothing_of_faults(seed: int, subject: Subject) -> list[str]:
    del seed
    known = [example for name in RUNNING for example in faulty(name)]
    bounds = [bind(example, subject.backend, subject.device) for example in taken(tuple(known), subject)]
    try:
        return _silent(lambda: [bound.run() for bound in bounds])
    finally:
        for bound in bounds:
            bound.free()


def refused_in_a_plan(seed: int, subject: Subject) -> list[str]:
    """A plan of a step that the device refuses is a PlacementError with the reason; nothing is compiled."""
    del seed
    for name in RUNNING:
        for example in examples(OPS[name]):
            plain = example.layout == "dense" and not any(s and s.dtype.is_block for s in example.specs)
            if plain and not OPS[name].updates:
                reason = refused(step_of(example), subject.backend, subject.device)
                if reason is not None:
                    return _refused_plan(example, str(reason), subject)
    raise Refused(Reason("nothing is refused", "other"))


def _refused_plan(example: Example, reason: str, subject: Subject) -> list[str]:
    leaves = [
        None if spec is None else graph_input(name, spec.shape, spec.dtype)
        for name, spec in zip(example.op.operands, example.specs, strict=True)
    ]
    with Session(subject.device.name, policy="strict") as session:
        try:
            session.compile(example.op(*leaves, **example.attrs))
        except PlacementError as e:
            return [] if reason in str(e) else [f"{example}: the PlacementError does not give the reason: {e}"]
    return [f"{example}: refused by the device, and compiled for it all the same"]
