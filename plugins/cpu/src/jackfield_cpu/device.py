"""One CPU, or one part of it: its threads, its memory, its programs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from jackfield.backend import (
    BadIndex,
    Device,
    DeviceError,
    ForkedError,
    Group,
    Grouping,
    KernelError,
    Link,
    Memory,
    OutOfMemory,
    Packing,
    Place,
    Program,
    Step,
    Target,
    Usage,
)

from . import _native
from .fusion import fuse, kernel_of
from .steps import OPERANDS, placed_tuple, step_tuple
from .system import host_memory

__all__ = ["CpuDevice", "CpuProgram"]

MOST_ANSWERS = 8192  # remembered answers about steps; a process that builds graphs for ever must not grow for ever


class CpuDevice(Device):
    """Host memory and a pool of workers. Synchronous: a run is done when its call returns."""

    def __init__(
        self, name: str, target: Target, threads: int, *, fuses: bool = True, cpus: Sequence[int] = ()
    ) -> None:
        self.name = name
        self.target = target
        try:
            self.pool = _native.Pool(threads, cpus)
        except RuntimeError as e:
            raise DeviceError(
                f"{name}: {threads} threads could not be started ({e}); lower JACKFIELD_CPU_THREADS"
            ) from e
        self._scratch: dict[tuple[Step, ...], int] = {}
        self._fuses = fuses

    @property
    def memory(self) -> Memory:  # type: ignore[override]
        """Bytes of the machine, or of the container where that is less, and how many are free now."""
        return host_memory()

    @property
    def threads(self) -> int:
        return self.pool.size

    def alloc(self, nbytes: int, usage: Usage) -> _native.Memory:
        self._must_be_here()
        try:
            return _native.Memory(nbytes, huge=usage is Usage.CONSTANT)
        except (MemoryError, OverflowError):
            raise OutOfMemory(f"{self.name}: no {nbytes} bytes of host memory for {usage.value}") from None

    def free(self, buffer: _native.Memory) -> None:
        buffer.free()

    def write(self, buffer: _native.Memory, offset: int, data: memoryview) -> None:
        buffer.write(offset, data)

    def read(self, buffer: _native.Memory, offset: int, out: memoryview) -> None:
        buffer.read(offset, out)

    def host_bytes(self, buffer: _native.Memory, offset: int, nbytes: int) -> memoryview:
        return buffer.host_bytes(offset, nbytes)

    def fill(self, pieces: Sequence[tuple[Packing | None, memoryview, memoryview]]) -> tuple[int, int] | None:
        """All of them in one native call, for which the GIL is given up once."""
        return _native.fill([(_how(packing), plain, packed) for packing, plain, packed in pieces])

    def borrow(self, data: memoryview) -> _native.Memory | None:
        return _native.borrow(data)

    def fuse(self, steps: Sequence[Step], links: Sequence[Link]) -> Grouping:
        return fuse(steps, links) if self._fuses else self.groups(steps)

    def scratch(self, group: Sequence[Step]) -> int:
        name = kernel_of([step.op for step in group])
        if name is None:
            return max(self._scratch_of("", (step,)) for step in group)
        return self._scratch_of(name, tuple(group))

    def _scratch_of(self, name: str, steps: tuple[Step, ...]) -> int:
        nbytes = self._scratch.get(steps)
        if nbytes is None:
            if len(self._scratch) >= MOST_ANSWERS:
                self._scratch.clear()
            group = name, [step_tuple(step) for step in steps]
            nbytes = self._scratch[steps] = _native.scratch(group, self.target.arch, self.threads)
        return nbytes

    def compile(self, run: Sequence[Group], scratch: Place | None) -> Program:
        self._must_be_here()
        groups = [bound for group in run for bound in _bound(group)]
        address, nbytes = (
            (scratch.buffer.address + scratch.offset, scratch.spec.nbytes) if scratch is not None else (0, 0)
        )
        try:
            native = _native.Program(self.pool, self.target.arch, groups, address, nbytes)
        except _native.Unsupported as e:
            raise DeviceError(f"{self.name}: {e}") from e
        places = [scratch] + [p for group in run for s in group.steps for p in (s.result, *s.operands)]
        keep = [place.buffer for place in places if place is not None]
        return CpuProgram(self, native, keep)

    def _must_be_here(self) -> None:
        if self.pool.forked:
            raise ForkedError(
                f"{self.name} was opened by the parent process; start workers by spawn, or open it here anew"
            )


def _how(packing: Packing | None) -> tuple[str, _native.View, int, int] | None:
    """What the native module must know of a packing of ours."""
    if packing is None:
        return None
    assert isinstance(packing.pack, partial), "packings of this device come from CpuBackend.pack"
    name, plain, block, block_nbytes = packing.pack.args
    return name, plain, block, block_nbytes


def _bound(group: Group) -> list[_native.Group]:
    """As the native module takes it: under the name of the kernel that makes all its steps, else one by one."""
    steps = [placed_tuple(placed) for placed in group.steps]
    name = kernel_of([placed.step.op for placed in group.steps])
    return [("", [step]) for step in steps] if name is None else [(name, steps)]


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
                raise BadIndex(f"[{op}] {name} holds the index {value}, which lies outside its axis")
            raise KernelError(f"[{op}] {name} holds inf, NaN or too large a value in block {value}: it must be codable")
