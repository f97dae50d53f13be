"""Each suite has teeth: a reference device with one lie fails in the suite named for it, an honest one in none."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from jackfield import registry
from jackfield.backend import (
    BadIndex,
    DeviceError,
    Grouping,
    Kernel,
    Packing,
    Reason,
    operand_names,
)
from jackfield.conformance.cases import examples
from jackfield.conformance.check import expected
from jackfield.dtypes import DTYPES, bf16, f32, i64, q4_0
from jackfield.op import OPS
from jackfield.reference import (
    HostBuffer,
    ReferenceBackend,
    ReferenceDevice,
    ReferenceProgram,
    kernels_of_all_ops,
)
from jackfield_conformance.suites import SUITES, coverage, errors, memory
from jackfield_conformance.suites.claims import RUNNING
from jackfield_conformance.trials import Subject
from jackfield_conformance.worker import outcome

NAME = "liar"
ONLY = ("add", "tanh", "softmax", "linear", "take_rows", "put_rows", "cast", "sum")  # enough ops for every suite
ALL = kernels_of_all_ops()  # as of now: who asks the core each time claims what a later core has
SLOW = {"memory/constants", "memory/plan-cycles", "memory/clones"}


class Few(ReferenceBackend):
    """The reference with few ops, so that a suite is quick."""

    name = NAME

    def __init__(self, device=None):
        super().__init__()
        self._device = device or ReferenceDevice()
        self._device.name = f"{NAME}:0"

    def kernels(self):
        return {name: kernel for name, kernel in ALL.items() if name in ONLY}


def tried(suite, backend, contains="", without=()):
    """Results of the trials of a suite by id, in this process."""
    registry.register_backend(backend)
    try:
        (opened,) = registry.select(NAME).devices
        subject = Subject(backend, opened.device)
        wanted = [t for t in SUITES[suite](0) if contains in t.id and t.id not in without]
        wanted = [t for t in wanted if suite == "buffers" or _is_known(t.id)]
        return {trial.id: outcome(trial, subject) for trial in wanted}
    finally:
        registry.unregister_backend(NAME)


def _is_known(name):
    """Trials of ops that this backend does not have are all refused."""
    words = name.split("/")[1:]
    return not any(word in OPS and word not in ONLY for word in words) and "exit" not in words


def bad(suite, backend, contains="", without=()):
    found = tried(suite, backend, contains, without)
    assert found
    return {name: one["reason"] for name, one in found.items() if one["result"] == "failed"}


@pytest.mark.parametrize("suite", [s for s in SUITES if s not in ("ops", "coverage", "overhead")])
def test_an_honest_device_fails_nothing(suite):
    assert bad(suite, Few(), without=SLOW) == {}


# Memory of a device


class WritesOneOff(ReferenceDevice):
    def write(self, buffer, offset, data):
        super().write(buffer, offset + (1 if offset and data.nbytes + offset < buffer.bytes.nbytes else 0), data)


class KeepsTheCallersMemory(ReferenceDevice):
    """Copies when somebody reads or runs, not when it is told to."""

    late = ()

    def write(self, buffer, offset, data):
        self.late = [*self.late, (buffer, offset, data)]

    def _land(self):
        for buffer, offset, data in self.late:
            ReferenceDevice.write(self, buffer, offset, data)
        self.late = []

    def read(self, buffer, offset, out):
        self._land()
        super().read(buffer, offset, out)

    def compile(self, run, scratch):
        program, land = super().compile(run, scratch), self._land
        inner = program.run
        program.run = lambda: (land(), inner())
        return program


class NoEmptyBuffers(ReferenceDevice):
    def alloc(self, nbytes, usage):
        if not nbytes:
            raise DeviceError("nothing asked for")
        return super().alloc(nbytes, usage)


class AnyError(ReferenceDevice):
    def alloc(self, nbytes, usage):
        if nbytes > 1 << 50:
            raise RuntimeError("too much")
        return super().alloc(nbytes, usage)


class OneBlock(ReferenceDevice):
    """Gives a freed block away twice."""

    def __init__(self):
        super().__init__()
        self.free_blocks = []

    def alloc(self, nbytes, usage):
        at = next((i for i, b in enumerate(self.free_blocks) if b.nbytes >= nbytes > 0), None)
        return super().alloc(nbytes, usage) if at is None else HostBuffer(self.free_blocks.pop(at)[:nbytes])

    def free(self, buffer):
        self.free_blocks.append(buffer.bytes)


class Wraps(ReferenceDevice):
    """What reaches outside a buffer comes back at its start."""

    def write(self, buffer, offset, data):
        for i, byte in enumerate(bytes(data) if offset + data.nbytes > buffer.bytes.nbytes else b""):
            buffer.bytes[(offset + i) % buffer.bytes.nbytes] = byte
        super().write(buffer, offset, data)


class Shows(ReferenceDevice):
    """Its buffers can be filled where they lie; as `shown` has it."""

    def __init__(self, shown=lambda buffer, offset, nbytes: buffer.bytes[offset : offset + nbytes].data):
        super().__init__()
        self.host_bytes = shown


class Promises(ReferenceDevice):
    """New buffers hold `filler`, and are said to hold zeros."""

    def __init__(self, filler=0):
        super().__init__()
        self.target = replace(self.target, features=self.target.features | {"zeroed"})
        self.filler = filler

    def alloc(self, nbytes, usage):
        buffer = super().alloc(nbytes, usage)
        if self.filler:
            buffer.bytes[:] = self.filler
        return buffer


class Queue(ReferenceDevice):
    """Runs when it is told to synchronize, which it forgets to do before a read."""

    def __init__(self):
        super().__init__()
        self.waiting = []

    def compile(self, run, scratch):
        program = super().compile(run, scratch)
        inner = program.run
        program.run = lambda: self.waiting.append(inner)
        return program

    def synchronize(self):
        while self.waiting:
            self.waiting.pop(0)()


@pytest.mark.parametrize(
    ("device", "where"),
    [
        (WritesOneOff, "buffers/write/3+5"),
        (KeepsTheCallersMemory, "buffers/data-is-free-on-return"),
        (NoEmptyBuffers, "buffers/zero-bytes"),
        (AnyError, "buffers/out-of-memory"),
        (OneBlock, "buffers/double-free"),
        (Wraps, "buffers/outside"),
        (Queue, "buffers/queue/read-waits"),
        (lambda: Shows(lambda buffer, at, n: buffer.bytes[at : at + n].copy().data), "buffers/host-bytes"),
        (lambda: Shows(lambda buffer, at, n: buffer.bytes[at : at + n].data.toreadonly()), "buffers/host-bytes"),
        (lambda: Shows(lambda buffer, at, n: buffer.bytes[:n].data), "buffers/host-bytes"),
        (lambda: Shows(lambda buffer, at, n: None if at else buffer.bytes[:n].data), "buffers/host-bytes"),
        (lambda: Promises(7), "buffers/zeroed"),
    ],
)
def test_buffers(device, where):
    assert where in bad("buffers", Few(device()))


@pytest.mark.parametrize("device", [Shows, Promises])
def test_an_honest_device_that_promises_more(device):
    assert bad("buffers", Few(device()), without=SLOW) == {}


# Programs


class After(ReferenceDevice):
    """Does something to each placed step after it runs."""

    def __init__(self, harm, op="add"):
        super().__init__()
        self.harm, self.op = harm, op

    def compile(self, run, scratch):
        program = super().compile(run, scratch)
        steps = [p for group in run for p in group.steps if p.step.op == self.op]
        inner, harm = program.run, self.harm
        program.run = lambda: (inner(), [harm(placed) for placed in steps])
        return program


def put(placed, at, value=7):
    placed.result.buffer.bytes[placed.result.offset + at] = value


def stale():
    """The second run of anything adds to what the first one left."""
    runs = []

    def harm(placed):
        runs.append(placed)
        if len(runs) > 1:
            put(placed, 3, len(runs) % 100)

    return harm


class RunsAtOnce(ReferenceDevice):
    def compile(self, run, scratch):
        program = super().compile(run, scratch)
        program.run()
        return program


class Forgetful(ReferenceDevice):
    def groups(self, steps):
        return Grouping(tuple((i,) for i in range(len(steps) - (len(steps) > 1))))


class Dies(ReferenceDevice):
    compiled = 0

    def compile(self, run, scratch):
        self.compiled += 1
        if self.compiled == 200:
            raise SystemExit(3)
        return super().compile(run, scratch)


@pytest.mark.parametrize(
    ("device", "where"),
    [
        (lambda: After(stale()), "lifecycle/same-bytes"),
        (RunsAtOnce, "lifecycle/never-run"),
        (Forgetful, "lifecycle/groups"),
        (Dies, "lifecycle/many-compiles"),
    ],
)
def test_lifecycle(device, where):
    assert where in bad("lifecycle", Few(device()))


class Check(ReferenceDevice):
    """Programs with another `check`."""

    def __init__(self, check):
        super().__init__()
        self.told = check

    def compile(self, run, scratch):
        program = super().compile(run, scratch)
        inner = program.check
        program.check = lambda: self.told(inner)
        return program


def swallow(check):
    with contextlib.suppress(BadIndex):
        check()


def other_class(check):
    try:
        check()
    except BadIndex as e:
        raise ValueError(*e.args) from None


class TellsForEver(ReferenceProgram):
    def check(self):
        if self.fault is not None:
            raise self.fault


class Repeats(ReferenceDevice):
    def compile(self, run, scratch):
        return TellsForEver(super().compile(run, scratch).calls)


class Prints(ReferenceDevice):
    def alloc(self, nbytes, usage):
        if nbytes > 1 << 50:
            os.write(1, b"out of memory!")
        return super().alloc(nbytes, usage)


@pytest.mark.parametrize(
    ("device", "where"),
    [
        (lambda: Check(swallow), "errors/bad-index/take_rows"),
        (lambda: Check(other_class), "errors/bad-index/take_rows"),
        (Repeats, "errors/bad-index/put_rows"),
        (Prints, "errors/prints/wrong-use"),
    ],
)
def test_errors(device, where):
    found = tried("errors", Few(device()), where)
    assert [one["result"] for one in found.values()] == ["failed"]


# Beside other devices


class CopiesNothing(ReferenceDevice):
    """Says that it has brought what another device made."""

    def copy(self, src, dst):
        return True


class CopiesHalf(ReferenceDevice):
    def copy(self, src, dst):
        half = src.spec.nbytes // 2
        dst.buffer.bytes[dst.offset : dst.offset + half] = src.buffer.bytes[src.offset : src.offset + half]
        return True


class Everywhere(Few):
    """Takes every op, so that the kit must refuse one in its place."""

    def kernels(self):
        return ALL


@pytest.mark.parametrize("backend", [Few, Everywhere])
@pytest.mark.parametrize("device", [CopiesNothing, CopiesHalf])
def test_fallback(device, backend):
    assert set(bad("fallback", backend(device()))) == {"fallback/mixed"}
    found = tried("fallback", backend())
    assert {one["result"] for one in found.values()} == {"passed"}, found


class TakesItBack(Everywhere):
    """Refuses, and when it is asked again it does not."""

    asked = 0

    def why_not(self, step, target):
        self.asked += step.op == "relu"
        return Reason("relu: not now", "other") if step.op == "relu" and self.asked == 1 else None


def test_fallback_finds_who_takes_a_refusal_back():
    assert "fallback/strict" in bad("fallback", TakesItBack(), "strict")


# Views and guards


class ReadsDense(ReferenceDevice):
    """Says it reads strides, and takes every operand, or those of one dtype, for a dense one."""

    def __init__(self, only=None):
        super().__init__()
        self.only = only

    def dense(self, spec):
        return spec.dense() if self.only in (None, spec.dtype) else spec

    def compile(self, run, scratch):
        groups = []
        for group in run:
            steps = []
            for placed in group.steps:
                places = tuple(p and replace(p, spec=self.dense(p.spec)) for p in placed.operands)
                steps.append(replace(placed, operands=places))
            groups.append(replace(group, steps=tuple(steps)))
        return super().compile(groups, scratch)


@pytest.mark.parametrize("op", RUNNING)
def test_bad_indices_are_looked_for_once_in_a_case(op, monkeypatch):
    """In every dtype of a case, as its data are the same, they cost an emulated device minutes and find no more."""
    asked = []
    monkeypatch.setattr(errors, "expected", lambda example: asked.append(example.case) or expected(example))
    errors.faulty.cache_clear()
    found = errors.faulty(op)
    assert len(asked) == len(set(asked))
    dense = [example for example in examples(OPS[op]) if example.layout == "dense"]
    assert {e.case for e in found} == {e.case for e in dense if expected(e)[1]}


def test_views():
    found = bad("views", Few(ReadsDense()), "/f32")
    assert any(name.startswith("views/add/") for name in found)
    assert any(name.endswith("/windows") for name in found)


@pytest.mark.parametrize(
    ("op", "dtype", "layouts"),
    [
        ("add", bf16, ("sliced", "transposed", "broadcast")),
        ("linear", bf16, ("sliced", "transposed", "broadcast")),
        ("linear", q4_0, ("sliced", "broadcast")),  # a product has no axes to swap but the one of its blocks
        ("put_rows", i64, ("sliced",)),  # nor has a list of rows
    ],
)
def test_views_in_every_dtype(op, dtype, layouts):
    found = bad("views", Few(ReadsDense(dtype)), f"views/{op}/")
    assert {name.rpartition("/")[2] for name in found} >= set(layouts)


class LosesNonFinite(ReferenceDevice):
    """Takes NaN and inf in one operand for 0."""

    def __init__(self, op, operand):
        super().__init__()
        self.op, self.operand = op, OPS[op].operands.index(operand)

    def compile(self, run, scratch):
        program, kept = super().compile(run, scratch), []
        inner = program.run
        operands = [p.operands[self.operand] for group in run for p in group.steps if p.step.op == self.op]
        places = [p for p in operands if p is not None and p.spec.dtype is f32 and p.spec.is_dense]

        def run_without():
            for place in places:
                raw = place.buffer.bytes[place.offset : place.offset + place.spec.nbytes].view(np.float32)
                kept.append(raw.copy())
                raw[~np.isfinite(raw)] = 0
            inner()
            for place in reversed(places):
                raw = place.buffer.bytes[place.offset : place.offset + place.spec.nbytes].view(np.float32)
                raw[:] = kept.pop()

        program.run = run_without
        return program


@pytest.mark.parametrize(("op", "operand"), [("linear", "weight"), ("softmax", "sinks")])
@pytest.mark.parametrize("edge", ["nan", "inf"])
def test_ops_put_what_is_not_finite_into_every_operand(op, operand, edge):
    found = bad("ops", Few(LosesNonFinite(op, operand)), f"{edge}-{operand}")
    assert len(found) == 1


class StepOfZero(Few):
    """step(0) is 1."""

    def __init__(self):
        super().__init__(After(self.harm, "step"))

    def kernels(self):
        return {"step": ALL["step"]}

    @staticmethod
    def harm(placed):
        x, y = placed.operands[0], placed.result
        if x.spec.dtype is f32 and x.spec.is_dense and y.spec.nbytes:
            given, made = (p.buffer.bytes[p.offset : p.offset + p.spec.nbytes].view(np.float32) for p in (x, y))
            made[given == 0] = 1


def test_ops_put_a_zero_into_a_step():
    registry.register_backend(backend := StepOfZero())
    try:
        subject = Subject(backend, registry.select(NAME).devices[0].device)
        tries = [t for t in SUITES["ops"](0) if t.id.startswith("ops/step/f32/")]
        results = {trial.id: outcome(trial, subject)["result"] for trial in tries}
    finally:
        registry.unregister_backend(NAME)
    assert "failed" in results.values()


@pytest.mark.parametrize(
    "harm",
    [
        lambda p: put(p, p.result.spec.nbytes),
        lambda p: put(p, -1),
        lambda p: put(p, p.operands[0].offset - p.result.offset),
    ],
)
def test_guards(harm):
    found = bad("guards", Few(After(harm)), "guards/add")
    assert found
    apart = {name: reason for name, reason in found.items() if not name.endswith("/inplace")}
    assert all("outside the result changed" in reason for reason in apart.values())


def test_what_is_read_outside_the_operands_is_found():
    def harm(placed):
        x = placed.operands[0]
        put(placed, 0, x.buffer.bytes[x.offset + x.spec.extent_nbytes])

    found = bad("guards", Few(After(harm)), "guards/add")
    assert any("it is read" in reason for reason in found.values())


class Scratch(ReferenceDevice):
    """Asks for less scratch than it uses."""

    def scratch(self, group):
        return 32

    def compile(self, run, scratch):
        program = super().compile(run, scratch)
        inner = program.run

        def run_and_use():
            inner()
            scratch.buffer.bytes[scratch.offset : scratch.offset + 48] = 1

        program.run = run_and_use
        return program


def test_scratch_that_is_larger_than_told():
    found = bad("guards", Few(Scratch()), "guards/add")
    assert any("outside the scratch changed" in reason for reason in found.values())


# Constants


class Packs(Few):
    """Weights as they are, with a mistake. name of the layout: "own"."""

    def __init__(self, pack=None, unpack=None, nbytes=0, layout="own", part=0, *, looks=False):
        super().__init__(ReadsOwn())
        self.packing = pack or self.copy, unpack or self.copy, nbytes, layout, part, looks

    @staticmethod
    def copy(source, target):
        count = min(source.nbytes, target.nbytes)
        target[:count] = source[:count]

    def kernels(self):
        table = super().kernels()
        return table | {"linear": replace(table["linear"], layouts={"weight": frozenset({"own"})})}

    def pack(self, constant, users, target):
        pack, unpack, more, layout, part, looks = self.packing
        if constant.role != "constant" or any(step.op != "linear" for step in users):
            return None
        unit = constant.dtype.block_nbytes
        parts = (unit, unit + part - 1) if part else None
        return Packing(layout, constant.nbytes + more, pack, unpack, parts, looks)


class ReadsOwn(ReferenceDevice):
    def compile(self, run, scratch):
        plain = [
            replace(
                group,
                steps=tuple(
                    replace(
                        placed,
                        operands=tuple(p and replace(p, spec=replace(p.spec, layout="")) for p in placed.operands),
                    )
                    for placed in group.steps
                ),
            )
            for group in run
        ]
        return super().compile(plain, scratch)


def short(source, target):
    target[: source.nbytes - 1] = source[:-1]


def twisted(source, target):
    target[: source.nbytes] = bytes(source)[::-1]


def too_long(source, target):
    raw = np.frombuffer(target, np.uint8)
    np.lib.stride_tricks.as_strided(raw, (raw.size + 1,))[-1] = 1
    target[: source.nbytes] = source


def counted(source, target):
    """As it is, with its length in the first byte: parts would differ from the whole."""
    Packs.copy(source, target)
    target[0] = source.nbytes % 251


@pytest.mark.parametrize(
    ("lie", "where", "words"),
    [
        ({"pack": counted, "part": 1}, "identity/f32/5", "pack gives other bytes where it is given 1 of"),
        ({"part": 2}, "identity/f32/5", "bytes each are not the"),
        ({"looks": True}, "damage/q4_0", "pack tells of a bad scale in block None, must be"),
        ({"nbytes": 5}, "identity/f32/5", "leaves bytes unwritten"),
        ({"pack": too_long}, "identity/f32/5", "writes outside"),
        ({"unpack": twisted}, "identity/f32/5", "does not give the plain bytes back"),
        ({"pack": twisted}, "product/f32/5", "elements"),
        ({"pack": short}, "identity/f32/5", "leaves bytes unwritten"),
        ({"layout": "other"}, "identity/f32/5", "does not list"),
    ],
)
def test_packed(lie, where, words):
    assert any(words in reason for reason in bad("packed", Packs(**lie), where).values())
    assert bad("packed", Packs(), "f32") == {}
    assert bad("packed", Packs(part=1), "identity") == {}


def test_block_dtypes():
    def nibbles(placed):
        if placed.operands[0].spec.dtype is q4_0:
            x, y = placed.operands[0], placed.result
            if y.spec.size:
                raw = y.buffer.bytes[y.offset : y.offset + y.spec.nbytes].view(np.float32)
                raw[:32] = raw[:32].reshape(2, 16)[::-1].reshape(-1)
                del x

    found = bad("block-dtypes", Few(After(nibbles, "take_rows")), "decode")
    assert "block-dtypes/decode/q4_0/take_rows-random" in found
    assert all("q4_0" in name for name in found)


# Memory and threads


class Leaks(ReferenceDevice):
    """Keeps a copy of what each program would need."""

    kept = ()

    def compile(self, run, scratch):
        self.kept = [*self.kept, np.ones(4096, np.float32)]
        return super().compile(run, scratch)


class LeaksByCall(ReferenceDevice):
    def compile(self, run, scratch):
        program, kept = super().compile(run, scratch), []
        inner = program.run
        program.run = lambda: (inner(), kept.append(object()))
        return program


@pytest.mark.parametrize(("device", "where"), [(Leaks, "memory/programs"), (LeaksByCall, "memory/calls")])
def test_memory(device, where):
    assert set(bad("memory", Few(device()), where)) >= {where}


@pytest.mark.parametrize("kept", [object, lambda: bytearray(64 << 10)])
def test_growth_is_a_leak_where_it_goes_on(kept):
    """A cache that fills once, late, is none; what is left behind each time is, however late it begins."""
    pile = []

    def once(number):
        if 150 <= number < 400:
            pile.append(kept())

    def always(number):
        if number >= 150:
            pile.append(kept())

    assert memory.grows(once, 500, "turns") == []
    found = memory.grows(always, 500, "turns")
    assert any("objects of Python" in text for text in found)
    assert any("in memory" in text for text in found) == (kept is not object)


class OneScratch(ReferenceDevice):
    """All programs compute in the same place."""

    shared = np.zeros(1 << 20, np.uint8)

    def compile(self, run, scratch):
        program = super().compile(run, scratch)
        inner = program.run
        results = [p.result for group in run for p in group.steps if p.result.spec.is_dense]

        def slowly():
            inner()
            for place in results:
                window = place.buffer.bytes[place.offset : place.offset + place.spec.nbytes]
                self.shared[: window.size] = window
                time.sleep(0)  # another thread takes over here
                window[:] = self.shared[: window.size]

        program.run = slowly
        return program


class HoldsTheGil(ReferenceDevice):
    def compile(self, run, scratch):
        program = super().compile(run, scratch)
        steps = sum(len(group.steps) for group in run)
        program.run = lambda: 3 ** (20_000 * steps)  # one operation of the interpreter, longer for more steps
        return program


@pytest.mark.parametrize(("device", "where"), [(OneScratch, "threads/op/linear"), (HoldsTheGil, "threads/gil")])
def test_threads(device, where):
    assert set(bad("threads", Few(device()), where)) == {where}


# Claims


class Lists(Few):
    def __init__(self, **changed):
        super().__init__()
        self.changed = changed

    def kernels(self):
        table = super().kernels()
        return table | {name: change(table.get(name)) for name, change in self.changed.items()}


class AsksTheCore(Few):
    """Has kernels for whatever operands the core lists."""

    def kernels(self):
        f32_only = frozenset({"f32"})
        return {"add": replace(ALL["add"], operands=dict.fromkeys(operand_names("add"), f32_only))}


class OpensADriver(Few):
    def why_not(self, step, target):
        Path(os.devnull).read_bytes()


class AsksTheDevices(Few):
    def why_not(self, step, target):
        self.devices()


class Changes(Few):
    asked = 0

    def why_not(self, step, target):
        self.asked += 1
        return Reason(f"{step.op}: asked {self.asked} times", "other")


class Missing(ReferenceDevice):
    def compile(self, run, scratch):
        if any(placed.step.op == "tanh" for group in run for placed in group.steps):
            raise DeviceError("no tanh after all")
        return super().compile(run, scratch)


class IgnoresTheMask(ReferenceDevice):
    def compile(self, run, scratch):
        plain = [
            replace(
                group,
                steps=tuple(
                    replace(p, operands=(p.operands[0], None, *p.operands[2:])) if p.step.op == "softmax" else p
                    for p in group.steps
                ),
            )
            for group in run
        ]
        return super().compile(plain, scratch)


def more_attributes(kernel):
    return replace(kernel, attributes=kernel.attributes | {"colour"})


class Everything(frozenset):
    def __contains__(self, name):
        return True


class AnyOperand(dict):
    """Has whatever it is asked for."""

    def __contains__(self, name):
        return True

    def __missing__(self, name):
        return Everything()


class Defaults(AnyOperand):
    """As well, and the dtypes make up for it: refused, but as if the operand were known."""

    def __missing__(self, name):
        return frozenset({"bf16"})


@pytest.mark.parametrize(
    ("backend", "where"),
    [
        (lambda: Lists(frobnicate=lambda _: Kernel({}, frozenset({"f32"}))), "claims/table"),
        (lambda: Lists(add=more_attributes), "claims/table"),
        (lambda: Lists(add=lambda k: replace(k, attributes=Everything())), "claims/unknown/add"),
        (lambda: Lists(add=lambda k: replace(k, operands=AnyOperand(k.operands))), "claims/unknown/add"),
        (lambda: Lists(add=lambda k: replace(k, operands=Defaults(k.operands))), "claims/unknown/add"),
        (lambda: Lists(add=lambda k: replace(k, results=frozenset())), "claims/table"),
        (AsksTheCore, "claims/unknown/add"),
        (OpensADriver, "claims/no-hardware"),
        (AsksTheDevices, "claims/no-hardware"),
        (Changes, "claims/reasons/add"),
        (lambda: Few(Missing()), "claims/runs/tanh"),
        (lambda: Few(IgnoresTheMask()), "claims/reads/softmax"),
    ],
)
def test_claims(backend, where):
    assert where in bad("claims", backend(), where)


class Narrow(Few):
    """Some operands of some ops, by "op operand", in fewer dtypes, or in none: those are not listed."""

    def __init__(self, **without):
        super().__init__()
        self.without = without

    def kernels(self):
        table = super().kernels()
        for name, changes in self.without.items():
            kept = {o: d - changes.get(o, frozenset()) for o, d in table[name].operands.items()}
            table[name] = replace(table[name], operands={o: d for o, d in kept.items() if d})
        return table


ANY = frozenset(DTYPES)
HALVES = frozenset({"f16", "bf16"})


def test_coverage_asks_for_f32_and_f16():
    found = tried("coverage", Narrow(add={"a": HALVES, "b": HALVES}))
    assert found["coverage/add/f32"]["result"] == "passed"
    assert found["coverage/add/f16"]["result"] == "failed"
    assert found["coverage/tanh/f16"]["result"] == "passed"
    assert "the kernel reads" in found["coverage/add/f16"]["reason"]


@pytest.mark.parametrize(
    ("without", "case", "words"),
    [
        ({"add": {"b": HALVES}}, "add/f16", "b: refused: add: b is f16"),
        ({"linear": {"x": HALVES}}, "linear/f16", "weight: refused: linear: x is f16"),
        ({"tanh": {"x": frozenset({"f16"})}}, "tanh/f16", "x: refused: tanh: x is f16"),
        ({"softmax": {"mask": HALVES}}, "softmax/f16", "mask: refused: softmax: mask is f16"),
        ({"softmax": {"mask": frozenset({"f32"})}}, "softmax/f32", "mask: refused: softmax: mask is f32"),
        ({"softmax": {"sinks": ANY}}, "softmax/f32", "sinks: refused: softmax"),
        ({"put_rows": {"x": HALVES}}, "put_rows/f16", "x: refused: put_rows: x is f16"),
    ],
)
def test_coverage_asks_for_every_operand_and_for_all_in_one_dtype(without, case, words):
    backend = Narrow(**without)
    found = bad("coverage", backend)
    assert words in found[f"coverage/{case}"]
    others = {f"coverage/{next(iter(without))}/{dtype}" for dtype in ("f32", "f16")}
    assert found.keys() <= others, "other ops are as they were"


def test_coverage_asks_for_results_that_an_attribute_names():
    class NoHalves(Few):
        def kernels(self):
            table = super().kernels()
            return table | {"cast": replace(table["cast"], results=table["cast"].results - HALVES)}

    assert "the result: refused: cast" in bad("coverage", NoHalves())["coverage/cast/f16"]


class Choosy(ReferenceBackend):
    """The reference, which refuses one op where its attributes are so."""

    def __init__(self, name, refuses):
        super().__init__()
        self.op, self.refuses = name, refuses

    def why_not(self, step, target):
        if step.op == self.op and self.refuses(step.attrs):
            return Reason("not in this way", "attribute")
        return super().why_not(step, target)


FORMS = [
    ("rope", lambda a: a["mode"] == "imrope", "mode is 'imrope'"),
    ("rope", lambda a: a["offset"] > 0, "offset is not 0"),
    ("rope", lambda a: a["ext_factor"] != 0, "ext_factor is not 0.0"),
    ("rope", lambda a: a["beta_fast"] != 32, "beta_fast is not 32.0"),
    ("resize", lambda a: a["mode"] == "bicubic", "mode is 'bicubic'"),
    ("resize", lambda a: a["antialias"], "antialias is True"),
    ("pad", lambda a: a["mode"] == "wrap", "mode is 'wrap'"),
    ("attention", lambda a: a["window"] > 0, "window is not 0"),
    ("attention", lambda a: a["kv_limit"] > 0, "kv_limit is not 0"),
    ("conv_2d", lambda a: a["dilation"] != 1, "dilation is not 1"),
    ("pool_2d", lambda a: a["kind"] == "max", "kind is 'max'"),
    ("sum", lambda a: a["axis"] is None, "axis is None"),
    ("sum", lambda a: a["axis"] is not None, "axis is not -1"),
    ("linear", lambda a: a["precision"] == "f32", "precision is 'f32'"),
    ("swiglu", lambda a: not a["swapped"], "swapped is False"),
]


@pytest.mark.parametrize(("name", "refuses", "form"), FORMS, ids=[f"{name}-{form}" for name, _, form in FORMS])
def test_coverage_asks_for_every_form_that_attributes_give(name, refuses, form):
    device = ReferenceDevice()
    found = coverage.is_claimed(OPS[name], f32, Subject(Choosy(name, refuses), device))
    assert f"{form}: refused: not in this way" in found
    assert coverage.is_claimed(OPS[name], f32, Subject(ReferenceBackend(), device)) == []


def test_coverage_asks_for_no_form_that_the_catalogue_makes_p2():
    """Only the defaults of solve_triangular are P1; who takes them alone has no gap."""
    choosy = Choosy("solve_triangular", lambda a: not a["lower"] or a["unit_diagonal"] or not a["left"])
    assert coverage.is_claimed(OPS["solve_triangular"], f32, Subject(choosy, ReferenceDevice())) == []
    picky = Choosy("solve_triangular", lambda a: a["lower"])
    found = coverage.is_claimed(OPS["solve_triangular"], f32, Subject(picky, ReferenceDevice()))
    assert "lower is True: refused: not in this way" in found
