"""Run one example on one device without a planner: operands, result and guard bytes in one buffer of the device.

This is what a planner does for one step, and no more: it honours `reads`, `pack`, `scratch` and `result_nbytes`. It
sees what a planner can't: bytes changed outside the result, operands that were written to, results left unwritten.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from jackfield.backend import (
    Backend,
    Buffer,
    Device,
    DeviceError,
    Group,
    Place,
    PlacedStep,
    Reason,
    Spec,
    Step,
    Usage,
    refusal,
)
from jackfield.dtypes import u8
from jackfield.dtypes.arrays import element
from jackfield.errors import Error
from jackfield.op import Array
from jackfield.spec import View

from .cases import Example

__all__ = ["Outcome", "Refused", "run", "step_of"]

GUARD_NBYTES = 64
GUARD = 0xA5
UNWRITTEN = 0xFF  # NaN in every float dtype, -1 in every integer one


@dataclass(frozen=True)
class Outcome:
    """What came out. fault: what the program's check raised. damage: bytes changed that are nobody's to change."""

    result: Array
    fault: Error | None
    damage: str


class Refused(Exception):
    """The device does not take this step; the text is its reason."""


def step_of(example: Example) -> Step:
    return Step(example.op.name, example.specs, example.result, example.attrs)


def run(example: Example, backend: Backend, device: Device) -> Outcome:
    """Raises: Refused with the device's reason; whatever the device raises but faults found in data."""
    step, views, bases = _readable(example, backend, device)
    reason = refusal(step, backend.kernels(), device.target) or backend.why_not(step, device.target)
    if reason is not None:
        raise Refused(reason)
    arena = _Arena(device.alignment)
    offsets = [
        None if view is None or base is None or array is None else arena.put(base, view, array)
        for view, base, array in zip(views, bases, example.arrays(), strict=True)
    ]
    result_at = _place_result(example, step, offsets, arena, device)
    return _execute(arena, step, offsets, result_at, backend, device)


def _readable(example: Example, backend: Backend, device: Device) -> tuple[Step, list[View | None], list[Spec | None]]:
    """The step as a planner would pose it: operands that the kernel does not read strided are dense."""
    step = step_of(example)
    names = example.op.operands
    views: list[View | None] = [example.views.get(name) for name in names]
    bases: list[Spec | None] = [example.bases.get(name) for name in names]
    for i, (view, reads) in enumerate(zip(views, backend.reads(step, device.target), strict=True)):
        if view is None or reads == "any" or view.spec.is_dense or (reads == "rows" and view.spec.rows_are_dense):
            continue
        if example.op.updates and i == 0:
            text = f"{step.op}: a strided {names[0]} is not read, and a target can't be copied"
            raise Refused(Reason(text, "layout"))
        views[i], bases[i] = View(view.spec.dense(), 0), view.spec.dense()
    specs = tuple(None if view is None else view.spec for view in views)
    result = step.result
    if example.op.updates and specs[0] is not None:
        result = replace(result, strides=specs[0].strides)
    return replace(step, operands=specs, result=result), views, bases


class _Arena:
    """Bytes of a buffer to be, with guards round every tensor, and a mask of those that may change."""

    def __init__(self, alignment: int) -> None:
        self.alignment = alignment
        self.parts: list[NDArray[np.uint8]] = []
        self.nbytes = 0
        self.free = np.zeros(0, bool)
        self._add(np.full(GUARD_NBYTES, GUARD, np.uint8))

    def _add(self, part: NDArray[np.uint8]) -> int:
        gap = -self.nbytes % self.alignment
        at = self.nbytes + gap
        self.parts += [np.full(gap, GUARD, np.uint8), part, np.full(GUARD_NBYTES, GUARD, np.uint8)]
        self.nbytes = at + part.nbytes + GUARD_NBYTES
        return at

    def put(self, base: Spec, view: View, array: Array) -> int:
        """Lay an operand out; the byte its first element is at, which is not aligned for a view."""
        image = np.full(base.nbytes, GUARD, np.uint8)
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


def _execute(
    arena: _Arena, step: Step, offsets: list[int | None], result_at: int, backend: Backend, device: Device
) -> Outcome:
    before = arena.image()
    buffers: list[Buffer] = []

    def alloc(nbytes: int, usage: Usage) -> Buffer:
        buffers.append(device.alloc(nbytes, usage))
        return buffers[-1]

    try:
        main = alloc(before.nbytes, Usage.COMPUTE)
        device.write(main, 0, before.data)
        places = [
            None if spec is None or at is None else _operand(spec, at, main, before, step, backend, device, alloc)
            for spec, at in zip(step.operands, offsets, strict=True)
        ]
        placed_step = replace(step, operands=tuple(None if p is None else p.spec for p in places))
        placed = PlacedStep(placed_step, tuple(places), Place(main, result_at, step.result))
        need = device.scratch([placed_step])
        scratch = Place(alloc(need, Usage.COMPUTE), 0, Spec(u8, (need,))) if need else None
        program = device.compile([Group((placed,))], scratch)
        fault = _run(program.run, program.check, device)
        after = np.zeros_like(before)
        device.read(main, 0, after.data)
    finally:
        for buffer in buffers:
            device.free(buffer)
    result = window_on(after, result_at, step.result).copy()
    return Outcome(result, fault, _damage(before, after, result_at, step.result, device.result_nbytes(step)))


def _run(start: Callable[[], None], check: Callable[[], None], device: Device) -> Error | None:
    start()
    try:
        device.synchronize()
        check()
    except DeviceError as fault:  # found in data: part of the outcome
        return fault
    return None


def _operand(
    spec: Spec,
    at: int,
    main: Buffer,
    image: NDArray[np.uint8],
    step: Step,
    backend: Backend,
    device: Device,
    alloc: Callable[[int, Usage], Buffer],
) -> Place:
    """Where an operand lies: in the main buffer, or, for a constant, in its own in the layout the device asks for."""
    if spec.role != "constant":
        return Place(main, at, spec)
    plain = image[at : at + spec.nbytes].copy()
    packing = backend.pack(spec, [step], device.target)
    if packing is not None:
        packed = np.zeros(packing.nbytes, np.uint8)
        packing.pack(plain.data, packed.data)
        plain, spec = packed, replace(spec, layout=packing.name)
    buffer = alloc(plain.nbytes, Usage.CONSTANT)
    device.write(buffer, 0, plain.data)
    return Place(buffer, 0, spec)


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
