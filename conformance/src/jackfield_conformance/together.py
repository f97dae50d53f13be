"""Groups as a device wishes them, run with room round every value: what a planner does for a run, with fences.

Each value has a place of its own, so that a byte is written by nobody but who makes it. What a group fuses away and
says to leave unwritten has the one byte that a planner gives it, and that byte is a fence as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from jackfield.backend import Buffer, Group, Place, PlacedStep, Usage
from jackfield.blueprint import Blueprint
from jackfield.dtypes.arrays import as_bytes
from jackfield.errors import Error
from jackfield.op import OPS, Array
from jackfield.partition import Item, Ref, Value
from jackfield.upload import plain_bytes

from .direct import GUARD_NBYTES, UNWRITTEN, packed, window_on
from .trials import Subject

__all__ = ["Bytes", "Left", "fused_away", "leave", "wanted"]

Bytes = NDArray[np.uint8]
WRITABLE = ("temporary", "copy", "state")


@dataclass(frozen=True)
class Left:
    """What a run left. made: bytes of every value that somebody may read afterwards. damage: changed bytes of nobody's.

    fault: what a check raised.
    """

    made: Mapping[Value, Bytes]
    damage: str
    fault: Error | None


def fused_away(items: Sequence[Item], groups: Sequence[Sequence[int]]) -> set[Value]:
    """Values that one step of a group makes for others of it: nobody reads them after the group."""
    found: set[Value] = set()
    for group in groups:
        read = {ref.value for i in group for ref in items[i].operands if ref is not None}
        changed = {items[i].result.value for i in group if items[i].updates}
        made = {items[i].result.value for i in group[:-1]} - changed
        found |= {value for value in made & read if value.kind == "temporary"}
    return found


class _Layout:
    """One buffer for all that a run touches, and one for each constant. room: memory also for what needs none."""

    def __init__(
        self, drawn: Blueprint, data: Mapping[str, Array], subject: Subject, guard: int, *, room: bool
    ) -> None:
        self.drawn, self.data, self.device, self.guard = drawn, data, subject.device, guard
        wished = zip(drawn.runs, drawn.memory.groups, strict=True)
        self.inner = {value for run, groups in wished for value in fused_away(run.items, groups)}
        self.items = [item for run in drawn.runs for item in run.items]
        refs = [ref for item in self.items for ref in (*item.operands, item.result) if ref is not None]
        self.values = list(dict.fromkeys(ref.value for ref in refs))
        self.nbytes = {value: self._room(value, room=room) for value in self.values}
        most = max((value.spec.nbytes for value in self.values if value.kind != "constant"), default=0)
        unit = self.device.alignment
        self.fence = -(-(most + GUARD_NBYTES) // unit) * unit  # who writes a whole value at a byte's place stays inside
        self.at: dict[Value, int] = {}
        self.image = self._image()
        self.buffers: list[Buffer] = []

    def _room(self, value: Value, *, room: bool) -> int:
        """Bytes of its place: those that the planner gave it, or with room those that its maker asks for."""
        if not room or value.kind != "temporary":
            return max(value.nbytes, 1) if value.kind == "temporary" else max(value.spec.nbytes, 1)
        steps = [item.step for item in self.items if item.result.value is value]
        return max(1, value.spec.nbytes, *(self.device.result_nbytes(step) for step in steps))

    def is_owned(self, value: Value) -> bool:
        """Whether anybody may write there."""
        only_address = value in self.inner and self.nbytes[value] < value.spec.nbytes
        return value.kind in WRITABLE and not only_address

    def _image(self) -> Bytes:
        parts, end, unit = [np.full(self.fence, self.guard, np.uint8)], self.fence, self.device.alignment
        for value in self.values:
            if value.kind == "constant":
                continue
            self.at[value] = end
            inside = self._inside(value)
            gap = -(end + inside.nbytes) % unit
            parts += [inside, np.full(gap + self.fence, self.guard, np.uint8)]
            end += inside.nbytes + gap + self.fence
        return np.concatenate(parts)

    def _inside(self, value: Value) -> Bytes:
        """What lies in a value's place before the run."""
        if value.kind in ("input", "state"):
            assert value.tensor is not None
            return as_bytes(self.data[value.tensor.name].reshape(-1)).reshape(-1)
        return np.full(self.nbytes[value], UNWRITTEN if self.is_owned(value) else self.guard, np.uint8)

    def alloc(self, image: Bytes, usage: Usage) -> Buffer:
        buffer = self.device.alloc(image.nbytes, usage)
        self.buffers.append(buffer)
        self.device.write(buffer, 0, image.data)
        return buffer

    def free(self) -> None:
        while self.buffers:
            self.device.free(self.buffers.pop())

    def damage(self, after: Bytes) -> str:
        """Bytes that changed and are nobody's to change, as text; "" for none."""
        changed = after != self.image
        for value, at in self.at.items():
            if self.is_owned(value):
                changed[at : at + self.nbytes[value]] = False
        if not changed.any():
            return ""
        first = int(changed.argmax())
        near = min(self.at, key=lambda value: abs(self.at[value] - first))
        what = f"{first - self.at[near]} bytes from the start of {_called(near, self.items)}"
        if near in self.inner and not self.is_owned(near):
            what += ", which is fused away and said to stay unwritten"
        return f"{int(changed.sum())} bytes that no step makes changed, the first {what}"


def _called(value: Value, items: Sequence[Item]) -> str:
    """A value in words."""
    maker = next((item.name for item in items if item.result.value is value), None)
    return (
        f"the result of {maker}" if maker else f"the {value.kind} {value.tensor.name if value.tensor else ''}".strip()
    )


def leave(drawn: Blueprint, data: Mapping[str, Array], subject: Subject, guard: int, *, room: bool = False) -> Left:
    """Run a blueprint of one device once.

    data: of inputs and states by name. guard: the byte of the fences. room: memory of its size for every value.
    """
    layout = _Layout(drawn, data, subject, guard, room=room)
    try:
        return _leave(layout)
    finally:
        layout.free()


def _leave(layout: _Layout) -> Left:
    device, drawn = layout.device, layout.drawn
    main = layout.alloc(layout.image, Usage.COMPUTE)
    places = {value: (main, at) for value, at in layout.at.items()}
    for constant in drawn.constants:
        tensor = constant.value.tensor
        assert tensor is not None
        plain = np.frombuffer(plain_bytes(tensor, constant.value.window), np.uint8)
        image = plain if constant.packing is None else packed(constant.packing, plain)
        places[constant.value] = layout.alloc(image, Usage.CONSTANT), 0

    def place(ref: Ref) -> Place:
        buffer, at = places[ref.value]
        return Place(buffer, at + ref.offset, ref.spec)

    def placed(item: Item) -> PlacedStep:
        operands = tuple(None if ref is None else place(ref) for ref in item.operands)
        return PlacedStep(item.step, operands, place(item.result))

    programs = []
    for run, groups, scratch in zip(drawn.runs, drawn.memory.groups, drawn.memory.scratch, strict=True):
        work = None
        if scratch is not None:
            room = np.full(scratch.nbytes, UNWRITTEN, np.uint8)
            work = Place(layout.alloc(room, Usage.COMPUTE), 0, scratch.spec)
        programs.append(device.compile([Group(tuple(placed(run.items[i]) for i in group)) for group in groups], work))
    fault = None
    for program in programs:
        program.run()
    try:
        device.synchronize()
        for program in programs:
            program.check()
    except Error as e:
        fault = e
    after = np.zeros_like(layout.image)
    device.read(main, 0, after.data)
    made = {
        value: after[at : at + value.spec.nbytes].copy()
        for value, at in layout.at.items()
        if value.kind in WRITABLE and value not in layout.inner
    }
    return Left(made, layout.damage(after), fault)


def wanted(drawn: Blueprint, data: Mapping[str, Array]) -> dict[Value, Bytes]:
    """What every value holds after the run by the ops' own bodies, as bytes."""
    raw: dict[Value, Bytes] = {}
    for constant in drawn.constants:
        assert constant.value.tensor is not None
        raw[constant.value] = np.frombuffer(plain_bytes(constant.value.tensor, constant.value.window), np.uint8)

    def window(ref: Ref) -> Array:
        value = ref.value
        if value not in raw:
            known = data[value.tensor.name] if value.kind in ("input", "state") and value.tensor is not None else None
            blank = np.zeros(value.spec.nbytes, np.uint8)
            raw[value] = blank if known is None else as_bytes(known.reshape(-1)).reshape(-1).copy()
        return window_on(raw[value], ref.offset, replace(ref.spec, layout=""))

    for run in drawn.runs:
        for item in run.items:
            arrays = [None if ref is None else window(ref) for ref in item.operands]
            made = OPS[item.step.op].evaluate(arrays, item.step.attrs, item.step.result.dtype)
            if item.step.result.size:
                window(item.result)[...] = made
    return raw
