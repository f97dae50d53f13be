"""The simulated device `sim`: memory the host can't see, a queue that runs late, and faults on request.

Host-memory devices hide every missing copy, wait and lifetime; this one does not. It is reached by its exact name only.

* Memory: a buffer is an opaque number. Fresh and freed bytes hold a pattern that is NaN in every float dtype and far
  outside every axis as an index. Guard bytes round each allocation are checked at free, read and synchronize.
* Queue: programs, copies and waits run as late as they may: when somebody reads, synchronizes, or another queue waits
  for an event. `write` takes the caller's bytes at once and lands in queue order.
* Laws: a strided operand that no kernel asked for, a place outside its buffer, a result laid over an operand it may not
  take over, a buffer of another device: each is a DeviceError, not a wrong number.

A long file, and better whole: memory, queue and laws of a device lean on one another's state.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np

from .backend import (
    Backend,
    Buffer,
    Device,
    DeviceError,
    DeviceLost,
    Error,
    Event,
    ForkedError,
    Group,
    Kernel,
    KernelError,
    Limits,
    Memory,
    OutOfMemory,
    Place,
    PlacedStep,
    Program,
    Reads,
    Span,
    Spec,
    Step,
    Target,
    Usage,
    hookimpl,
    refusal,
)
from .dtypes import DTYPES
from .dtypes.arrays import decoded
from .faults import Shape
from .op import OPS
from .reference import StepCall, array_at, fault_error, kernels_of_all_ops

__all__ = ["POISON", "Shape", "SimBackend", "SimBuffer", "SimDevice", "SimEvent", "SimProgram", "jackfield_spans"]

POISON = b"\xff\x7f"  # repeated: NaN as f16, bf16, f32 and f64; a huge index as i16, i32 and i64
GUARD = 64  # bytes before and after each allocation
GUARD_BYTE = 0xA5
COPY = "contiguous"  # the op that a planner inserts where an operand must be dense
QUEUE_LIMIT = 4096  # entries; a longer queue is worked off, as a device would
SPANS = 10_000  # steps whose times are kept

log = logging.getLogger("jackfield")
_numbers = count(1)


class _Turn:
    """The lock of all simulated devices: a queue that waits for another one works that one off too.

    The collector may drop a Session in the middle of any call. What it frees then waits until that call is over, or
    the entries behind the one that runs would come before its end.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self._late: deque[Callable[[], None]] = deque()

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1

    def __exit__(self, *raised: object) -> None:
        try:
            while self._depth == 1 and self._late:
                try:
                    self._late.popleft()()
                except Error as e:
                    log.warning("freed late: %s", e)
        finally:
            self._depth -= 1
            self._lock.release()

    @property
    def nested(self) -> bool:
        """True: this turn is inside another one."""
        return self._depth > 1

    def at_end(self, work: Callable[[], None]) -> None:
        """Do this at the end of the outermost call under way; to be called in a turn."""
        self._late.append(work)


_lock = _Turn()


@dataclass(frozen=True, eq=False)
class SimBuffer:
    """A handle; the bytes are the owner's. usage: what it was allocated for."""

    owner: SimDevice
    number: int
    nbytes: int
    usage: Usage


@dataclass(frozen=True, eq=False)
class SimEvent:
    """A point in a queue: everything up to entry `number` is done."""

    device: SimDevice
    number: int


class _Block:
    """The bytes of one allocation between two guards."""

    def __init__(self, nbytes: int) -> None:
        raw = np.empty(nbytes + 3 * GUARD, np.uint8)
        start = GUARD + -(raw.ctypes.data + GUARD) % GUARD
        self._before, self._after = raw[start - GUARD : start], raw[start + nbytes : start + nbytes + GUARD]
        self.bytes = raw[start : start + nbytes]
        self._before[:] = self._after[:] = GUARD_BYTE
        poison(self.bytes)
        self.decoded: dict[tuple[int, Spec], np.ndarray[Any, Any]] = {}

    def broken_guard(self) -> str:
        """Which guard was overwritten, and how far from the buffer; "" for none."""
        if (self._before != GUARD_BYTE).any():
            return f"{GUARD - int((self._before != GUARD_BYTE).argmax())} bytes before its start"
        if (self._after != GUARD_BYTE).any():
            return f"{int((self._after != GUARD_BYTE).argmax())} bytes behind its end"
        return ""


def poison(data: np.ndarray[Any, Any]) -> None:
    """Fill bytes with the pattern that no computation survives unnoticed."""
    data[0::2] = POISON[0]
    data[1::2] = POISON[1]


class SimDevice(Device):
    """One simulated queue with its memory.

    allocated, peak: bytes asked for and not given back, now and at most. steps: executed so far. lost: it is gone.
    """

    alignment = 64

    def __init__(self, name: str, shape: Shape, kernels: Mapping[str, Kernel]) -> None:
        self.name = name
        self.shape = shape
        self.kernels = kernels
        limits = Limits(max_buffer=shape.max_buffer, max_operand=shape.max_operand)
        self.target = Target("sim", "sim", limits=limits)
        self.allocated = self.peak = self.steps = 0
        self.lost = False
        self._pid = os.getpid()
        self._blocks: dict[int, _Block] = {}
        self._queue: deque[tuple[int, Callable[[], None]]] = deque()
        self._entries = 0
        self._faulty: list[SimProgram] = []
        self._spans: deque[Span] = deque(maxlen=SPANS)
        self._account(0)

    def _account(self, nbytes: int) -> None:
        self.allocated += nbytes
        self.peak = max(self.peak, self.allocated)
        total = self.shape.mem or 0
        self.memory = Memory(total, total - self.allocated if total else 0)

    def alloc(self, nbytes: int, usage: Usage) -> Buffer:
        with _lock:
            self._alive()
            if nbytes < 0:
                raise DeviceError(f"{self.name}: alloc of {nbytes} bytes, must be 0 or more")
            if self.shape.max_buffer is not None and nbytes > self.shape.max_buffer:
                raise OutOfMemory(f"{self.name}: one buffer of {nbytes} bytes, at most {self.shape.max_buffer}")
            if self.shape.mem is not None and self.allocated + nbytes > self.shape.mem:
                short = self.allocated + nbytes - self.shape.mem
                used = f"{self.allocated} of {self.shape.mem} bytes are in use"
                raise OutOfMemory(f"{self.name}: {nbytes} bytes asked for, {used}: {short} bytes short")
            buffer = SimBuffer(self, next(_numbers), nbytes, usage)
            try:
                self._blocks[buffer.number] = _Block(nbytes)
            except (MemoryError, ValueError):
                raise OutOfMemory(f"{self.name}: no {nbytes} bytes of host memory to simulate {usage.value}") from None
            self._account(nbytes)
            return buffer

    def free(self, buffer: Buffer) -> None:
        if self._pid != os.getpid():  # the parent frees it
            return
        with _lock:
            if _lock.nested:
                _lock.at_end(lambda: self._release(buffer))
            else:
                self._release(buffer)

    def _release(self, buffer: Buffer) -> None:
        if not self.lost:
            with suppress(DeviceLost):  # what the queue lost is told to those who read
                self._work_off()
        block = self._block(buffer)
        del self._blocks[buffer.number]
        self._account(-buffer.nbytes)
        self._check_guard(buffer.number, block)
        poison(block.bytes)

    def write(self, buffer: Buffer, offset: int, data: memoryview) -> None:
        with _lock:
            self._alive()
            taken = np.frombuffer(data, np.uint8) if data.nbytes else np.empty(0, np.uint8)
            self._block(buffer).decoded.clear()
            target = self._span(buffer, offset, taken.nbytes)
            if not self._queue:
                target[:] = taken
                return
            late = taken.copy()
            self._enqueue(lambda: np.copyto(target, late))

    def read(self, buffer: Buffer, offset: int, out: memoryview) -> None:
        with _lock:
            self.synchronize()
            room = np.frombuffer(out, np.uint8) if out.nbytes else np.empty(0, np.uint8)
            room[:] = self._span(buffer, offset, room.nbytes)
            self._check_guard(buffer.number, self._block(buffer))

    def compile(self, run: Sequence[Group], scratch: Place | None) -> Program:
        with _lock:
            self._alive()
            steps = tuple(placed for group in run for placed in group.steps)
            for placed in steps:
                self._check_law(placed)
            calls = tuple(StepCall(placed, lambda b: self._block(b).bytes, self._decoded) for placed in steps)
            return SimProgram(self, steps, calls)

    def copy(self, src: Place, dst: Place) -> bool:
        if not isinstance(src.buffer, SimBuffer) or not self.shape.direct:
            return False
        source = src.buffer.owner
        with _lock:
            self._alive()
            self.window(dst)
            self._block(dst.buffer).decoded.clear()
            self._enqueue(lambda: np.copyto(self.window(dst), source.window(src)))
        return True

    def synchronize(self) -> None:
        with _lock:
            self._alive()
            self._work_off()
            for number, block in self._blocks.items():
                self._check_guard(number, block)
            faulty, self._faulty = self._faulty, []
            for program in faulty:
                program.check()

    def record(self) -> Event:
        with _lock:
            self._alive()
            return SimEvent(self, self._entries)

    def wait(self, event: Event) -> None:
        if event is None:  # of a synchronous device: it is over already
            return
        if not isinstance(event, SimEvent):
            raise DeviceError(
                f"{self.name}: can't wait for a {type(event).__name__}, only for an event of a sim device"
            )
        with _lock:
            self._alive()
            self._enqueue(lambda: event.device.reach(event.number))

    def reach(self, number: int) -> None:
        """Work the queue off up to this entry."""
        self._alive()
        self._work_off(number)

    def enqueue(self, work: Callable[[], None]) -> None:
        """One more entry; it runs when somebody waits for it."""
        with _lock:
            self._alive()
            self._enqueue(work)

    def _enqueue(self, work: Callable[[], None]) -> None:
        self._entries += 1
        self._queue.append((self._entries, work))
        if len(self._queue) > QUEUE_LIMIT:
            self._work_off()

    def _work_off(self, until: int | None = None) -> None:
        while self._queue and (until is None or self._queue[0][0] <= until):
            _, work = self._queue.popleft()
            work()

    def execute(self, program: SimProgram) -> None:
        """One run of a program, now. What fails is kept for `check`; a lost device is told at once."""
        if self.shape.delay:
            time.sleep(self.shape.delay)
        for placed, call in zip(program.steps, program.calls, strict=True):
            if self.shape.lost_after is not None and self.steps >= self.shape.lost_after:
                self.lost = True
                self._queue.clear()
                self._alive()
            self.steps += 1
            began = time.perf_counter()
            if error := self._failure(placed, call):
                program.errors.append(error)
            self._spans.append(Span(placed.step.op, began, time.perf_counter() - began))
        if program.errors and program not in self._faulty:
            self._faulty.append(program)

    def take_spans(self) -> list[Span]:
        """Times of steps since this was last asked."""
        with _lock:
            taken = list(self._spans)
            self._spans.clear()
            return taken

    def _failure(self, placed: PlacedStep, call: StepCall) -> Error | None:
        """Run one step; the first thing that went wrong."""
        step = placed.step
        try:
            for place in (*placed.operands, placed.result):
                if place is not None:
                    self._block(place.buffer)
            faults = call()
        except Error as e:
            return e
        except Exception as e:  # noqa: BLE001 (a body may raise anything numpy does; a kernel's failure is told at read)
            return KernelError(f"[{step.op}] {self.name}: {type(e).__name__}: {e}")
        return fault_error(step.op, faults[0]) if faults else None

    def _alive(self) -> None:
        if self._pid != os.getpid():
            raise ForkedError(f"{self.name} belongs to process {self._pid}, this is its child; start workers by spawn")
        if self.lost:
            raise DeviceLost(f"{self.name} was lost after {self.steps} steps, with all its buffers")

    def _block(self, buffer: Buffer) -> _Block:
        if not isinstance(buffer, SimBuffer) or buffer.owner is not self:
            owner = buffer.owner.name if isinstance(buffer, SimBuffer) else type(buffer).__name__
            raise DeviceError(f"{self.name}: a buffer of {owner} was used here")
        block = self._blocks.get(buffer.number)
        if block is None:
            raise DeviceError(f"{self.name}: buffer {buffer.number} of {buffer.nbytes} bytes was freed before")
        return block

    def _span(self, buffer: Buffer, offset: int, nbytes: int) -> np.ndarray[Any, Any]:
        block = self._block(buffer)
        if offset < 0 or offset + nbytes > buffer.nbytes:
            where = f"{nbytes} bytes at {offset}"
            raise DeviceError(f"{self.name}: {where} reach outside buffer {buffer.number} of {buffer.nbytes} bytes")
        return block.bytes[offset : offset + nbytes]

    def window(self, place: Place) -> np.ndarray[Any, Any]:
        """The bytes of a place as an array of elements (of blocks for a block dtype), strided as its Spec says."""
        self._span(place.buffer, place.offset, place.spec.extent_nbytes)
        return array_at(self._block(place.buffer).bytes, place)

    def _decoded(self, place: Place, raw: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """A block constant as f32, decoded once: no step may write where constants lie."""
        known = self._block(place.buffer).decoded
        if place.buffer.usage is not Usage.CONSTANT:
            return decoded(array_at(raw, place))
        key = place.offset, place.spec
        if key not in known:
            known[key] = decoded(array_at(raw, place))
        return known[key]

    def _check_guard(self, number: int, block: _Block) -> None:
        if where := block.broken_guard():
            raise DeviceError(f"{self.name}: buffer {number} of {block.bytes.nbytes} bytes was overrun, {where}")

    def _check_law(self, placed: PlacedStep) -> None:
        """What the planner owes every device, and a host-memory device would forgive."""
        step = placed.step
        op = OPS.get(step.op)
        if (reason := refusal(step, self.kernels, self.target)) or op is None:
            raise DeviceError(f"{self.name}: a step was compiled that it refuses: {reason}")
        for name, place, spec in _pairs(placed):
            if (place.spec.dtype, place.spec.shape, place.spec.strides) != (spec.dtype, spec.shape, spec.strides):
                raise DeviceError(f"{self.name}: [{step.op}] {name} is {spec} in the step, {place.spec} in its place")
            self.window(place)
        if placed.result.buffer.usage is Usage.CONSTANT:
            raise DeviceError(f"{self.name}: [{step.op}] the result lies among the constants")
        self._check_operands(placed)

    def _check_operands(self, placed: PlacedStep) -> None:
        step = placed.step
        op = OPS[step.op]
        for i, (name, place) in enumerate(zip(op.operands, placed.operands, strict=True)):
            if place is None or i in op.targets:  # a target is changed where it lies
                continue
            if self.shape.reads == "dense" and not place.spec.is_dense and step.op != COPY:
                raise DeviceError(f"{self.name}: [{step.op}] {name} is strided and no copy made it dense: {place.spec}")
            takes_over = name in op.inplace and place.offset == placed.result.offset
            if _collide(place, placed.result) and not (takes_over and place.spec.nbytes == placed.result.spec.nbytes):
                raise DeviceError(f"{self.name}: [{step.op}] the result lies over {name}, which is still being read")


def _pairs(placed: PlacedStep) -> Iterator[tuple[str, Place, Spec]]:
    names = OPS[placed.step.op].operands
    for name, place, spec in zip(names, placed.operands, placed.step.operands, strict=True):
        if place is not None and spec is not None:
            yield name, place, spec
        elif place is not None or spec is not None:
            raise DeviceError(f"[{placed.step.op}] {name} is present in the step or in its place, not in both")
    yield "result", placed.result, placed.step.result


def _collide(a: Place, b: Place) -> bool:
    """Two dense places share bytes. Strided ones may interleave without touching, so they are not judged."""
    if a.buffer is not b.buffer or not (a.spec.is_dense and b.spec.is_dense):
        return False
    return a.offset < b.offset + b.spec.nbytes and b.offset < a.offset + a.spec.nbytes


class SimProgram(Program):
    """One run. errors: what its kernels found since the last check."""

    def __init__(self, device: SimDevice, steps: tuple[PlacedStep, ...], calls: tuple[StepCall, ...]) -> None:
        self.device = device
        self.steps, self.calls = steps, calls
        self.errors: list[Error] = []

    def run(self) -> None:
        self.device.enqueue(lambda: self.device.execute(self))

    def check(self) -> None:
        errors, self.errors = self.errors, []
        if errors:
            raise errors[0]


class SimBackend(Backend):
    """All ops by the numpy bodies of their declarations, less what its shape refuses."""

    name = "sim"
    api = (0, 1)

    def __init__(self, shape: Shape | None = None) -> None:
        self.shape = shape or Shape()
        self._devices: tuple[SimDevice, ...] | None = None

    def devices(self) -> Sequence[Device]:
        if self._devices is None:
            n = self.shape.parts
            names = [f"sim:0:{i}" for i in range(n)] if n > 1 else ["sim:0"]
            kernels = self.kernels()
            self._devices = tuple(SimDevice(name, self.shape, kernels) for name in names)
        return self._devices

    def kernels(self) -> Mapping[str, Kernel]:
        mine = {op: k for op, k in kernels_of_all_ops().items() if not OPS[op].is_of_the_host}
        table = {op: k for op, k in mine.items() if op not in self.shape.refuse}
        return {op: self._narrow(kernel) for op, kernel in table.items()}

    def _narrow(self, kernel: Kernel) -> Kernel:
        """Without the dtypes this shape does not know."""
        known = self.shape.dtypes
        if not known:
            return kernel
        names = known | {d.name for d in DTYPES.values() if not d.is_float and not d.is_block}
        operands = {name: dtypes & names for name, dtypes in kernel.operands.items()}
        return replace(kernel, operands=operands, results=kernel.results & names)

    def reads(self, step: Step, target: Target) -> tuple[Reads, ...]:
        """Dense, unless its shape says "any". Targets lie where they lie and a copy makes dense: both take strides."""
        wish: Reads = "any" if self.shape.reads == "any" else "dense"
        free = (0,) if step.op == COPY else OPS[step.op].targets
        return tuple("any" if i in free else wish for i in range(len(step.operands)))


@hookimpl
def jackfield_spans(device: Device) -> list[Span]:
    """Times of the steps of a simulated device."""
    return device.take_spans() if isinstance(device, SimDevice) else []
