"""One CPU, or one part of it: its threads, its memory, its programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jackfield.backend import (
    BadIndex,
    Device,
    DeviceError,
    ForkedError,
    Group,
    KernelError,
    Memory,
    OutOfMemory,
    Place,
    Program,
    Step,
    Target,
    Usage,
)

from . import _native
from .steps import OPERANDS, placed_tuple, step_tuple

__all__ = ["CpuDevice", "CpuProgram"]


class CpuDevice(Device):
    """Host memory and a pool of workers. Synchronous: a run is done when its call returns."""

    def __init__(self, name: str, target: Target, threads: int) -> None:
        self.name = name
        self.target = target
        self.memory = _host_memory()
        self.pool = _native.Pool(threads)
        self._scratch: dict[Step, int] = {}

    @property
    def threads(self) -> int:
        return self.pool.size

    def alloc(self, nbytes: int, usage: Usage) -> _native.Memory:
        self._must_be_here()
        try:
            return _native.Memory(nbytes, usage is Usage.CONSTANT)
        except (MemoryError, OverflowError):
            raise OutOfMemory(f"{self.name}: no {nbytes} bytes of host memory for {usage.value}") from None

    def free(self, buffer: _native.Memory) -> None:
        buffer.free()

    def write(self, buffer: _native.Memory, offset: int, data: memoryview) -> None:
        buffer.write(offset, data)

    def read(self, buffer: _native.Memory, offset: int, out: memoryview) -> None:
        buffer.read(offset, out)

    def borrow(self, data: memoryview) -> _native.Memory | None:
        return _native.borrow(data)

    def scratch(self, group: Sequence[Step]) -> int:
        return max((self._step_scratch(step) for step in group), default=0)

    def _step_scratch(self, step: Step) -> int:
        nbytes = self._scratch.get(step)
        if nbytes is None:
            nbytes = self._scratch[step] = _native.scratch(step_tuple(step), self.target.arch, self.threads)
        return nbytes

    def compile(self, run: Sequence[Group], scratch: Place | None) -> Program:
        self._must_be_here()
        steps = [placed for group in run for placed in group.steps]
        address, nbytes = (scratch.buffer.address + scratch.offset, scratch.spec.nbytes) if scratch is not None else (0, 0)
        try:
            native = _native.Program(self.pool, self.target.arch, [placed_tuple(s) for s in steps], address, nbytes)
        except _native.Unsupported as e:
            raise DeviceError(f"{self.name}: {e}") from e
        keep = [s.result.buffer for s in steps] + [p.buffer for s in steps for p in s.operands if p is not None]
        return CpuProgram(self, native, keep)

    def _must_be_here(self) -> None:
        if self.pool.forked:
            raise ForkedError(f"{self.name} was opened by the parent process; start workers by spawn, or open it here anew")


class CpuProgram(Program):
    """A bound run; keeps the buffers it points into alive."""

    def __init__(self, device: CpuDevice, native: _native.Program, keep: Sequence[_native.Memory]) -> None:
        self._device, self._native = device, native
        self._keep = tuple({id(buffer): buffer for buffer in keep}.values())
        self._run = native.run

    def run(self) -> None:
        try:
            self._run()
        except RuntimeError as e:
            self._device._must_be_here()  # noqa: SLF001 (one wheel, one module)
            raise KernelError(f"{self._device.name}: {e}") from e

    def check(self) -> None:
        if self._native.faulty and (fault := self._native.take_fault()):
            op, what, operand, value = fault
            name = OPERANDS[op][operand]
            if what == "index":
                raise BadIndex(f"[{op}] {name} holds {value}, which lies outside")
            raise KernelError(f"[{op}] {name} holds NaN or inf in block {value}, which a block dtype can't store")


def _host_memory() -> Memory:
    """Bytes of the machine and of what is available, where the system tells."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return Memory()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines if len(line.split()) > 1}
    return Memory(kib.get("MemTotal", 0) * 1024, kib.get("MemAvailable", 0) * 1024)
