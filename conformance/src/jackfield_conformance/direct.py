"""Run one example on one device without a planner: operands, result and guard bytes in one buffer of the device.

This is what a planner does for one step, and no more: it honours `reads`, `pack`, `scratch` and `result_nbytes`. It
sees what a planner can't: bytes changed outside the result, operands that were written to, results left unwritten,
scratch and packed constants that were overrun.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from jackfield.backend import (
    Backend,
    Buffer,
    Device,
    DeviceError,
    Group,
    Packing,
    Place,
    PlacedStep,
    Program,
    Reason,
    Spec,
    Step,
    Usage,
    refusal,
)
from jackfield.conformance.cases import Example
from jackfield.dtypes import u8
from jackfield.dtypes.arrays import element
from jackfield.errors import Error
from jackfield.op import OPS, Array
from jackfield.spec import View

from .trials import Refused

__all__ = ["GUARD", "NAN_GUARD", "Bound", "Outcome", "Refused", "bind", "refused", "run", "step_of", "window_on"]

GUARD_NBYTES = 64
SCRATCH_GUARD_NBYTES = 4096  # more than one row of most kernels
GUARD = 0xA5  # a harmless small number in every float dtype
NAN_GUARD = 0xFF
UNWRITTEN = 0xFF  # NaN in every float dtype, -1 in every integer one


@dataclass(frozen=True)
class Outcome:
    """What came out. fault: what the program's check raised. damage: bytes changed that are nobody's to change.

    changed: what the op's targets besides the first hold.
    """

    result: Array
    fault: Error | None
    damage: str
    changed: tuple[Array, ...] = ()


def step_of(example: Example) -> Step:
    return Step(example.op.name, example.specs, example.result, example.attrs)


def refused(step: Step, backend: Backend, device: Device) -> Reason | str | None:
    """Why the device does not take this step, or None."""
    reason = refusal(step, backend.kernels(), device.target)
    return reason if reason is not None else backend.why_not(step, device.target)


def run(example: Example, backend: Backend, device: Device, guard: int = GUARD) -> Outcome:
    """Run once. guard: the byte that everything outside the operands holds.

    Raises: Refused with the device's reason; whatever the device raises but faults found in data.
    """
    bound = bind(example, backend, device, guard)
    try:
        return bound.run()
    finally:
        bound.free()


@dataclass
class Bound:
    """An example compiled on a device, with the memory it owns."""

    device: Device
    program: Program
    step: Step
    main: Buffer
    before: NDArray[np.uint8]
    result_at: int
    changing: list[tuple[int, Spec]] = field(default_factory=list)  # targets besides the first: byte and Spec
    fences: list[_Fence] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)

    def run(self) -> Outcome:
        """Run the program, and look at every byte it may have touched."""
        fault = _run(self.program.run, self.program.check, self.device)
        after = np.zeros_like(self.before)
        self.device.read(self.main, 0, after.data)
        result = window_on(after, self.result_at, self.step.result).copy()
        changed = tuple(window_on(after, at, spec).copy() for at, spec in self.changing)
        return Outcome(result, fault, self._damage(after), changed)

    def reset(self) -> None:
        """All bytes of the operands and of the result as they were before the first run."""
        self.device.write(self.main, 0, self.before.data)

    def free(self) -> None:
        while self.buffers:
            self.device.free(self.buffers.pop())

    def _damage(self, after: NDArray[np.uint8]) -> str:
        reserved = self.device.result_nbytes(self.step)
        before = self.before
        if self.changing:
            before = before.copy()
            for at, spec in self.changing:
                window_on(before, at, spec)[...] = window_on(after, at, spec)
        found = [_damage(before, after, self.result_at, self.step.result, reserved)]
        found += [fence.damage(self.device) for fence in self.fences]
        return "; ".join(text for text in found if text)


@dataclass
class _Fence:
    """Bytes round a buffer's inside that must stay: what, and the whole buffer as it was written."""

    what: str
    buffer: Buffer
    image: NDArray[np.uint8]
    inside: slice  # may change

    def damage(self, device: Device) -> str:
        after = np.zeros_like(self.image)
        device.read(self.buffer, 0, after.data)
        changed = after != self.image
        changed[self.inside] = False
        if not changed.any():
            return ""
        where = int(changed.argmax()) - self.inside.start
        return f"{int(changed.sum())} bytes outside {self.what} changed, the first {where} bytes from its start"


def bind(example: Example, backend: Backend, device: Device, guard: int = GUARD) -> Bound:
    """Lay an example out in the device's memory and compile it. Raises: as `run`."""
    if example.op.name not in backend.kernels():  # of such an op a backend is asked nothing else, as by a planner
        raise Refused(refused(step_of(example), backend, device))
    step, views, bases = _readable(example, backend, device)
    reason = refused(step, backend, device)
    if reason is not None:
        raise Refused(reason)
    arena = _Arena(device.alignment, guard)
    offsets = [
        None if view is None or base is None or array is None else arena.put(base, view, array)
        for view, base, array in zip(views, bases, example.arrays(), strict=True)
    ]
    result_at = _place_result(example, step, offsets, arena, device)
    return _Binder(backend, device, step, arena.image(), guard).bound(offsets, result_at)


def _readable(example: Example, backend: Backend, device: Device) -> tuple[Step, list[View | None], list[Spec | None]]:
    """The step as a planner would pose it: operands that the kernel does not read strided are dense."""
    step = step_of(example)
    names = example.op.operands
    views: list[View | None] = [example.views.get(name) for name in names]
    bases: list[Spec | None] = [example.bases.get(name) for name in names]
    for i, (view, reads) in enumerate(zip(views, backend.reads(step, device.target), strict=True)):
        if view is None or reads == "any" or view.spec.is_dense or (reads == "rows" and view.spec.rows_are_dense):
            continue
        if i in example.op.targets:
            text = f"{step.op}: a strided {names[i]} is not read, and a target can't be copied"
            raise Refused(Reason(text, "layout"))
        views[i], bases[i] = View(view.spec.dense(), 0), view.spec.dense()
    specs = tuple(None if view is None else view.spec for view in views)
    result = step.result
    if example.op.updates and specs[0] is not None:
        result = replace(result, strides=specs[0].strides)
    return replace(step, operands=specs, result=result), views, bases


class _Arena:
    """Bytes of a buffer to be, with guards round every tensor."""

    def __init__(self, alignment: int, guard: int) -> None:
        self.alignment, self.guard = alignment, guard
        self.parts: list[NDArray[np.uint8]] = []
        self.nbytes = 0
        self._add(np.full(GUARD_NBYTES, guard, np.uint8))

    def _add(self, part: NDArray[np.uint8]) -> int:
        gap = -self.nbytes % self.alignment
        at = self.nbytes + gap
        self.parts += [np.full(gap, self.guard, np.uint8), part, np.full(GUARD_NBYTES, self.guard, np.uint8)]
        self.nbytes = at + part.nbytes + GUARD_NBYTES
        return at

    def put(self, base: Spec, view: View, array: Array) -> int:
        """Lay an operand out; the byte its first element is at, which is not aligned for a view."""
        image = np.full(base.nbytes, self.guard, np.uint8)
        if view.spec.size:
            window = window_on(image, view.offset, view.spec)
            if view.spec.overlaps_itself:
                array = np.ascontiguousarray(array)
            window[...] = array
        return self._add(image) + view.offset

    def reserve(self, nbytes: int) -> int:
        return self._add(np.full(nbytes, UNWRITTEN, np.uint8))

    def image(self) -> NDArray[np.uint8]:
        return np.concatenate(self.parts)


def window_on(raw: NDArray[np.uint8], offset: int, spec: Spec) -> Array:
    """The tensor that lies at this byte."""
    if spec.size == 0:
        return np.zeros(spec.units, element(spec.dtype))
    return np.ndarray(spec.units, element(spec.dtype), raw.data, offset, spec.byte_strides)


def _place_result(example: Example, step: Step, offsets: list[int | None], arena: _Arena, device: Device) -> int:
    if example.op.updates:
        assert offsets[0] is not None
        return offsets[0]
    if example.layout == "inplace":
        for name, spec, offset in zip(example.op.operands, step.operands, offsets, strict=True):
            if name in example.op.inplace and spec == step.result and offset is not None:
                return offset
    return arena.reserve(max(step.result.nbytes, device.result_nbytes(step)))


class _Binder:
    """Allocates, writes and compiles; frees all again where that fails."""

    def __init__(self, backend: Backend, device: Device, step: Step, image: NDArray[np.uint8], guard: int) -> None:
        self.backend, self.device, self.step, self.image, self.guard = backend, device, step, image, guard
        self.buffers: list[Buffer] = []
        self.fences: list[_Fence] = []

    def bound(self, offsets: list[int | None], result_at: int) -> Bound:
        try:
            return self._bound(offsets, result_at)
        except BaseException:
            for buffer in self.buffers:
                self.device.free(buffer)
            raise

    def _bound(self, offsets: list[int | None], result_at: int) -> Bound:
        step = self.step
        main = self._alloc(self.image, Usage.COMPUTE)
        places = [
            None if spec is None or at is None else self._operand(spec, at, main)
            for spec, at in zip(step.operands, offsets, strict=True)
        ]
        placed_step = replace(step, operands=tuple(None if p is None else p.spec for p in places))
        placed = PlacedStep(placed_step, tuple(places), Place(main, result_at, step.result))
        program = self.device.compile([Group((placed,))], self._scratch(self.device.scratch([placed_step])))
        changing = [(offsets[i], step.operands[i]) for i in OPS[step.op].targets[1:]]
        known = [(at, spec) for at, spec in changing if at is not None and spec is not None]
        return Bound(self.device, program, step, main, self.image, result_at, known, self.fences, self.buffers)

    def _alloc(self, image: NDArray[np.uint8], usage: Usage) -> Buffer:
        buffer = self.device.alloc(image.nbytes, usage)
        self.buffers.append(buffer)
        self.device.write(buffer, 0, image.data)
        return buffer

    def _fenced(self, what: str, inside: NDArray[np.uint8], usage: Usage, *, free: bool) -> Place:
        """A buffer with guards before and behind. free: the inside may change."""
        ahead = -(-GUARD_NBYTES // self.device.alignment) * self.device.alignment
        image = np.full(ahead + inside.nbytes + SCRATCH_GUARD_NBYTES, self.guard, np.uint8)
        image[ahead : ahead + inside.nbytes] = inside
        buffer = self._alloc(image, usage)
        self.fences.append(_Fence(what, buffer, image, slice(ahead, ahead + (inside.nbytes if free else 0))))
        return Place(buffer, ahead, Spec(u8, (inside.nbytes,)))

    def _scratch(self, nbytes: int) -> Place | None:
        if not nbytes:
            return None
        return self._fenced("the scratch", np.full(nbytes, UNWRITTEN, np.uint8), Usage.COMPUTE, free=True)

    def _operand(self, spec: Spec, at: int, main: Buffer) -> Place:
        """Where an operand lies: in the main buffer, or, for a constant, in the layout the device asks for."""
        if spec.role != "constant":
            return Place(main, at, spec)
        plain = self.image[at : at + spec.nbytes].copy()
        packing = self.backend.pack(spec, [self.step], self.device.target)
        if packing is None:
            what = "a constant"
        else:
            plain, spec, what = packed(packing, plain), replace(spec, layout=packing.name), "a packed constant"
        return replace(self._fenced(what, plain, Usage.CONSTANT, free=False), spec=spec)


def packed(packing: Packing, plain: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The packed form of a constant's bytes."""
    into = np.zeros(packing.nbytes, np.uint8)
    packing.pack(plain.data, into.data)
    return into


def _run(start: Callable[[], None], check: Callable[[], None], device: Device) -> Error | None:
    start()
    try:
        device.synchronize()
        check()
    except DeviceError as fault:  # found in data: part of the outcome
        return fault
    return None


def _damage(before: NDArray[np.uint8], after: NDArray[np.uint8], at: int, result: Spec, reserved: int) -> str:
    """Bytes that changed outside the result, as text; "" for none."""
    changed = before != after
    if result.size:
        written = np.ndarray(
            (*result.units, result.dtype.block_nbytes), bool, changed.data, at, (*result.byte_strides, 1)
        )
        written[...] = False
        if result.is_dense:
            changed[at : at + max(reserved, result.nbytes)] = False
    if not changed.any():
        return ""
    first = int(changed.argmax())
    return f"{int(changed.sum())} bytes outside the result changed, the first {first - at} bytes from its start"
