"""The reference device: host memory and the ops' own numpy bodies. It takes every op, and is the last resort.

`StepCall` is also how a simulated device computes: it needs only the bytes of a buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from . import ops
from .backend import (
    API,
    DTYPES,
    Backend,
    BadIndex,
    Buffer,
    Device,
    DeviceError,
    Error,
    Group,
    Kernel,
    KernelError,
    OutOfMemory,
    Place,
    PlacedStep,
    Program,
    Rates,
    Reads,
    Spec,
    Step,
    Target,
    Usage,
)
from .dtypes.arrays import decoded, element
from .op import OPS, Fault, Op, collect

__all__ = [
    "HostBuffer",
    "ReferenceBackend",
    "ReferenceDevice",
    "StepCall",
    "array_at",
    "fault_error",
    "kernels_of_all_ops",
]

Bytes = NDArray[np.uint8]
Decode = Callable[[Place, Bytes], np.ndarray[Any, Any]]

# Decoded block constants are kept up to here, so that a prompt does not decode the model at every call.
CACHE_NBYTES = 1 << 30


def kernels_of_all_ops() -> dict[str, Kernel]:
    """What the declarations accept, for every op that runs."""
    return {name: _kernel(OPS[name]) for name in ops.__all__ if not OPS[name].is_view}


def _kernel(op: Op) -> Kernel:
    every = frozenset(DTYPES)
    accepts = op.declared.accepts
    names = {name: frozenset(d.name for d in accepts[name]) if name in accepts else every for name in op.operands}
    return Kernel(names, every, frozenset(op.attrs))


def array_at(raw: Bytes, place: Place) -> np.ndarray[Any, Any]:
    """The tensor of a Place as a strided array on its buffer's bytes; block dtypes as arrays of blocks.

    Raises: DeviceError for a Place that reaches beyond the buffer.
    """
    spec = place.spec
    end = place.offset + spec.extent_nbytes
    if place.offset < 0 or end > raw.nbytes:
        raise DeviceError(f"{spec} at byte {place.offset} ends at byte {end} of a buffer of {raw.nbytes}")
    if spec.size == 0:
        return np.zeros(spec.units, element(spec.dtype))
    return np.ndarray(spec.units, element(spec.dtype), raw.data, place.offset, spec.byte_strides)


def fault_error(op: str, fault: Fault) -> Error:
    """The exception for what a kernel found in data: BadIndex, or KernelError for what no block can hold."""
    return BadIndex(fault.text(op)) if fault.kind == "index" else KernelError(fault.text(op))


class StepCall:
    """One placed step, bound to the bytes of its buffers. Calling it computes the result; it returns what it found.

    memory: from a buffer to all its bytes. decode: block constants as f32, perhaps from a cache.
    """

    def __init__(self, placed: PlacedStep, memory: Callable[[Buffer], Bytes], decode: Decode | None = None) -> None:
        self.op = OPS[placed.step.op]
        self.attrs = placed.step.attrs
        self.dtype = placed.step.result.dtype
        self.places = placed.operands
        self.raws = [None if place is None else memory(place.buffer) for place in placed.operands]
        self.arrays = [
            None if place is None or raw is None else array_at(raw, place)
            for place, raw in zip(self.places, self.raws, strict=True)
        ]
        self.out = array_at(memory(placed.result.buffer), placed.result)
        self.decode = decode

    def __call__(self) -> list[Fault]:
        faults: list[Fault] = []
        if self.out.size:
            with collect(faults):
                if self.op.updates:
                    self._update()
                else:
                    self.out[...] = self.op.evaluate(self._operands(), self.attrs, self.dtype)
        return faults

    def _operands(self) -> list[np.ndarray[Any, Any] | None]:
        arrays = list(self.arrays)
        if self.decode is not None and not self.op.stored:
            for i, (place, raw) in enumerate(zip(self.places, self.raws, strict=True)):
                if place is not None and raw is not None and _is_coded_constant(place.spec):
                    arrays[i] = self.decode(place, raw)
        return arrays

    def _update(self) -> None:
        """In place where the result lies on the target; else the old value is copied first."""
        target = self.arrays[0]
        assert target is not None
        if not _same_window(target, self.out):
            self.out[...] = target
        self.op.evaluate([self.out, *self.arrays[1:]], self.attrs, self.dtype)


def _is_coded_constant(spec: Spec) -> bool:
    return spec.role == "constant" and spec.dtype.is_block


def _same_window(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return a.__array_interface__["data"] == b.__array_interface__["data"] and a.strides == b.strides


class ReferenceProgram(Program):
    """Runs its steps one after the other. Only the first fault of a run is kept, as on every device."""

    def __init__(self, calls: Sequence[StepCall]) -> None:
        self.calls = calls
        self.fault: Error | None = None

    def run(self) -> None:
        for call in self.calls:
            faults = call()
            if faults and self.fault is None:
                self.fault = fault_error(call.op.name, faults[0])

    def check(self) -> None:
        fault, self.fault = self.fault, None
        if fault is not None:
            raise fault


@dataclass(eq=False)
class HostBuffer:
    """One allocation. decoded: block constants in it as f32, by offset and Spec; gone when the bytes change."""

    bytes: Bytes
    decoded: dict[tuple[int, Spec], np.ndarray[Any, Any]] = field(default_factory=dict)


class ReferenceDevice(Device):
    """Buffers are arrays of bytes in host memory. `memory` stays unknown: it is the host's."""

    name = "reference:0"
    target = Target(kind="reference", arch="numpy", rates=Rates(multiply_adds=1e9, nbytes=1e9, launch=3e-5))

    def __init__(self) -> None:
        self._buffers: WeakSet[HostBuffer] = WeakSet()

    def alloc(self, nbytes: int, usage: Usage) -> Buffer:
        try:
            return HostBuffer(np.zeros(nbytes, np.uint8))
        except (MemoryError, ValueError) as e:
            raise OutOfMemory(f"{self.name}: no {nbytes} bytes of host memory for {usage.value}") from e

    def free(self, buffer: Buffer) -> None:
        buffer.decoded.clear()  # the bytes go with the last Program that knows them

    def write(self, buffer: Buffer, offset: int, data: memoryview) -> None:
        if data.nbytes:
            buffer.decoded.clear()
            _window(buffer.bytes, offset, data.nbytes)[:] = np.frombuffer(data, np.uint8)

    def read(self, buffer: Buffer, offset: int, out: memoryview) -> None:
        if out.nbytes:
            np.frombuffer(out, np.uint8)[:] = _window(buffer.bytes, offset, out.nbytes)

    def borrow(self, data: memoryview) -> Buffer | None:
        return HostBuffer(np.frombuffer(data, np.uint8) if data.nbytes else np.zeros(0, np.uint8))

    def compile(self, run: Sequence[Group], scratch: Place | None) -> Program:
        steps = [placed for group in run for placed in group.steps]
        return ReferenceProgram([StepCall(placed, lambda buffer: buffer.bytes, self._decode) for placed in steps])

    def _decode(self, place: Place, raw: Bytes) -> np.ndarray[Any, Any]:
        cache = place.buffer.decoded
        found = cache.get((place.offset, place.spec))
        if found is None:
            found = decoded(array_at(raw, place))
            kept = sum(array.nbytes for buffer in self._buffers for array in buffer.decoded.values())
            if kept + found.nbytes <= CACHE_NBYTES:
                cache[place.offset, place.spec] = found
                self._buffers.add(place.buffer)
        return found


def _window(buffer: Bytes, offset: int, nbytes: int) -> Bytes:
    if offset < 0 or offset + nbytes > buffer.nbytes:
        raise DeviceError(f"bytes {offset} to {offset + nbytes} of a buffer of {buffer.nbytes}: must lie inside")
    return buffer[offset : offset + nbytes]


class ReferenceBackend(Backend):
    """Always there, never fast: what it computes is what the ops mean."""

    name = "reference"
    api = API

    def __init__(self) -> None:
        self._device = ReferenceDevice()
        self._kernels = kernels_of_all_ops()

    def devices(self) -> Sequence[Device]:
        return (self._device,)

    def kernels(self) -> Mapping[str, Kernel]:
        return self._kernels

    def targets(self) -> Sequence[Target]:
        return (ReferenceDevice.target,)

    def reads(self, step: Step, target: Target) -> tuple[Reads, ...]:
        return tuple(["any"] * len(step.operands))
