"""Devices the planner's tests need, in plain memory: correct ones that are hard to please, and some that lie or die."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

import jackfield as jf
from jackfield import registry
from jackfield.backend import (
    Backend,
    Device,
    DeviceLost,
    Group,
    Grouping,
    Kernel,
    Limits,
    Link,
    Memory,
    OutOfMemory,
    Packing,
    Place,
    PlacedStep,
    Program,
    Rates,
    Step,
    Target,
    Usage,
)
from jackfield.op import OPS
from jackfield.reference import StepCall, fault_error, kernels_of_all_ops
from jackfield.registry import OpenDevice

FAST = Rates(multiply_adds=1e12, nbytes=1e12, launch=1e-7, copy_nbytes=1e10, copy_launch=1e-6)


class Buffer:
    def __init__(self, nbytes: int) -> None:
        self.bytes = np.full(nbytes, 0xFF, np.uint8)  # NaN as floats: nothing may rely on fresh zeros


class Minimal(Device):
    """The five methods. counts: how often each was called; log: what was moved."""

    def __init__(self, name: str, *, rates: Rates = FAST, limits: Limits | None = None, memory: int = 0) -> None:
        self.name = name
        self.target = Target(kind=name.split(":", maxsplit=1)[0], arch="numpy", rates=rates, limits=limits or Limits())
        self.counts: Counter[str] = Counter()
        self.log: list[tuple[str, int]] = []
        self.live: dict[int, int] = {}
        self._memory = memory

    @property
    def memory(self) -> Memory:  # type: ignore[override]
        return Memory(self._memory, self._memory - sum(self.live.values())) if self._memory else Memory()

    def alloc(self, nbytes: int, usage: Usage) -> Buffer:
        self.counts["alloc"] += 1
        if self._memory and sum(self.live.values()) + nbytes > self._memory:
            raise OutOfMemory(f"{self.name}: {nbytes} bytes")
        buffer = Buffer(nbytes)
        self.live[id(buffer)] = nbytes
        return buffer

    def free(self, buffer: Buffer) -> None:
        self.counts["free"] += 1
        del self.live[id(buffer)]
        buffer.bytes = np.full(0, 0, np.uint8)

    def write(self, buffer: Buffer, offset: int, data: memoryview) -> None:
        self.counts["write"] += 1
        self.log.append(("write", data.nbytes))
        assert data.format == "B" and data.ndim == 1
        assert offset + data.nbytes <= buffer.bytes.nbytes
        buffer.bytes[offset : offset + data.nbytes] = np.frombuffer(data, np.uint8)

    def read(self, buffer: Buffer, offset: int, out: memoryview) -> None:
        self.counts["read"] += 1
        self.log.append(("read", out.nbytes))
        assert offset + out.nbytes <= buffer.bytes.nbytes
        np.frombuffer(out, np.uint8)[:] = buffer.bytes[offset : offset + out.nbytes]

    def compile(self, run: Sequence[Group], scratch: Place | None) -> Program:
        self.counts["compile"] += 1
        return Steps(self, run)


class Steps(Program):
    def __init__(self, device: Minimal, run: Sequence[Group]) -> None:
        self.device = device
        self.placed = [placed for group in run for placed in group.steps]
        self.calls = [StepCall(placed, lambda buffer: buffer.bytes) for placed in self.placed]
        self.fault: Exception | None = None

    def run(self) -> None:
        self.device.counts["run"] += 1
        for call in self.calls:
            faults = call()
            if faults and self.fault is None:
                self.fault = fault_error(call.op.name, faults[0])

    def check(self) -> None:
        fault, self.fault = self.fault, None
        if fault is not None:
            raise fault


class Poisoner(Minimal):
    """Checks alignment, and spoils every result before it is computed: who reads memory he may not has NaN."""

    alignment = 32

    def compile(self, run: Sequence[Group], scratch: Place | None) -> Program:
        for group in run:
            for placed in group.steps:
                op = OPS[placed.step.op]
                for name, place in zip(op.operands, placed.operands, strict=True):
                    if place is not None and _meet(place, placed.result):
                        assert name in op.inplace, f"{op.name} would overwrite {name}"
                        assert place.offset == placed.result.offset
                        assert place.spec.byte_strides == placed.result.spec.byte_strides
        return SpoiledSteps(self, run)


class SpoiledSteps(Steps):
    def run(self) -> None:
        for placed, call in zip(self.placed, self.calls, strict=True):
            shared = any(p is not None and _meet(p, placed.result) for p in placed.operands)
            if not shared:
                result = placed.result
                result.buffer.bytes[result.offset : result.offset + result.spec.extent_nbytes] = 0xFF
            call()


def _meet(a: Place, b: Place) -> bool:
    if a.buffer is not b.buffer:
        return False
    return a.offset < b.offset + b.spec.extent_nbytes and b.offset < a.offset + a.spec.extent_nbytes


class Mortal(Minimal):
    """Dies at the nth call of one method, and stays dead."""

    def __init__(self, name: str, method: str, nth: int) -> None:
        super().__init__(name)
        self.method, self.nth, self.dead = method, nth, False

    def breathe(self, name: str) -> None:
        if self.method == name:
            self.nth -= 1
        if self.dead or (self.method == name and self.nth < 0):
            self.dead = True
            raise DeviceLost(f"{self.name}: gone in {name}")

    def alloc(self, nbytes: int, usage: Usage) -> Buffer:
        self.breathe("alloc")
        return super().alloc(nbytes, usage)

    def free(self, buffer: Buffer) -> None:
        self.breathe("free")
        super().free(buffer)

    def write(self, buffer: Buffer, offset: int, data: memoryview) -> None:
        self.breathe("write")
        super().write(buffer, offset, data)

    def read(self, buffer: Buffer, offset: int, out: memoryview) -> None:
        self.breathe("read")
        super().read(buffer, offset, out)

    def compile(self, run: Sequence[Group], scratch: Place | None) -> Program:
        return MortalSteps(self, run)


class MortalSteps(Steps):
    def run(self) -> None:
        self.device.breathe("run")
        super().run()


class Liar(Minimal):
    """Answers of groups, fuse, result_nbytes and scratch as told."""

    def __init__(
        self,
        name: str,
        *,
        groups: Callable[[Sequence[Step]], Grouping] | None = None,
        fuse: Callable[[Sequence[Step], Sequence[Link]], Grouping] | None = None,
        result_nbytes: Callable[[Step], int] | None = None,
        scratch: Callable[[Sequence[Step]], int] | None = None,
    ) -> None:
        super().__init__(name)
        self.told_groups, self.told_nbytes, self.told_scratch = groups, result_nbytes, scratch
        self.told_fuse = fuse
        self.scratches: list[Place | None] = []

    def groups(self, steps: Sequence[Step]) -> Grouping:
        return self.told_groups(steps) if self.told_groups else super().groups(steps)

    def fuse(self, steps: Sequence[Step], links: Sequence[Link]) -> Grouping:
        return self.told_fuse(steps, links) if self.told_fuse else super().fuse(steps, links)

    def result_nbytes(self, step: Step) -> int:
        return self.told_nbytes(step) if self.told_nbytes else step.result.nbytes

    def scratch(self, group: Sequence[Step]) -> int:
        return self.told_scratch(group) if self.told_scratch else 0

    def compile(self, run: Sequence[Group], scratch: Place | None) -> Program:
        self.scratches.append(scratch)
        return super().compile(run, scratch)


class Picky(Backend):
    """Takes what `refuse` gives no reason for. asked: how often each op was asked for."""

    api = (0, 1)

    def __init__(
        self,
        devices: Sequence[Device],
        *,
        refuse: Callable[[Step, Target], str | None] = lambda step, target: None,
        without: Sequence[str] = (),
        reads: str = "dense",
        targets: str = "any",
    ) -> None:
        self.name = devices[0].name.split(":")[0]
        self._devices = tuple(devices)
        self.refuse, self.without, self.how, self.targets = refuse, frozenset(without), reads, targets
        self.asked: Counter[str] = Counter()

    def devices(self) -> Sequence[Device]:
        return self._devices

    def kernels(self) -> Mapping[str, Kernel]:
        return {op: kernel for op, kernel in kernels_of_all_ops().items() if op not in self.without}

    def why_not(self, step: Step, target: Target) -> str | None:
        self.asked[step.op] += 1
        return self.refuse(step, target)

    def reads(self, step: Step, target: Target):
        how = "any" if step.op == "contiguous" else self.how
        changed = OPS[step.op].targets
        return tuple(self.targets if i in changed else how for i in range(len(step.operands)))


class Packer(Picky):
    """Packs matrices of linear by turning every byte round; take_rows reads them so as well, when asked to."""

    layouts = frozenset({"turned"})
    both = True

    def kernels(self):
        table = dict(super().kernels())
        for op in ("linear", "take_rows") if self.both else ("linear",):
            operand = "weight" if op == "linear" else "x"
            operand = (
                operand if operand in table[op].operands else next(iter([n for n in table[op].operands if n == "w"]))
            )
            kernel = table[op]
            table[op] = type(kernel)(kernel.operands, kernel.results, kernel.attributes, {operand: self.layouts})
        return table

    def pack(self, constant, users, target):
        known = {"linear", "take_rows"} if self.both else {"linear"}
        if constant.rank != 2 or {step.op for step in users} - known:
            return None

        def turn(source, result):
            np.frombuffer(result, np.uint8)[:] = ~np.frombuffer(source, np.uint8)

        return Packing("turned", constant.nbytes, turn, turn)


class Unpacker(Minimal):
    """Turns packed constants back at compile, so that plain bodies can run."""

    def compile(self, run, scratch):
        def plain(place):
            if place is None or place.spec.layout != "turned":
                return place
            buffer = type(place.buffer)(place.spec.nbytes)
            part = place.buffer.bytes[place.offset : place.offset + place.spec.nbytes]
            buffer.bytes[:] = ~part
            return replace(place, buffer=buffer, offset=0, spec=replace(place.spec, layout=""))

        self.packed = [p for g in run for s in g.steps for p in s.operands if p is not None and p.spec.layout]
        groups = [
            Group(tuple(PlacedStep(s.step, tuple(plain(p) for p in s.operands), s.result) for s in g.steps))
            for g in run
        ]
        return super().compile(groups, scratch)


def opened(*backends: Backend) -> list[OpenDevice]:
    """The devices of backends as the registry hands them out."""
    return [OpenDevice(device, backend, backend.kernels()) for backend in backends for device in backend.devices()]


def minimal(name: str = "fake:0", **keywords) -> OpenDevice:
    (one,) = opened(Picky([Minimal(name)], **keywords))
    return one


@contextmanager
def registered(*backends: Backend, device_class: str = "accel") -> Iterator[None]:
    """These backends can be named."""
    for backend in backends:
        jf.register_backend(backend, device_class=device_class)
    try:
        yield
    finally:
        for backend in backends:
            registry.unregister_backend(backend.name)
