"""What JACKFIELD_CHECK looks at between the steps of a call: guards and dead memory, results that hold NaN, and
operands that are not what the caller promised.

Such plans run one step at a time. Slow by design; never on unless asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from .backend import Buffer, Device, Place
from .blueprint import Blueprint
from .dtypes.arrays import element
from .errors import DeviceError, KernelError
from .memory import Life
from .op import OPS, Call
from .partition import Item, Ref, Run
from .reference import array_at
from .upload import plain_bytes

__all__ = ["GUARD", "Watch"]

GUARD = 64  # bytes behind every reservation
_GUARD_BYTE = 0xA5
_FRESH = 0xFE  # repeated: large negative numbers, and indices far outside
_DEAD = 0xFF  # repeated: NaN in every float dtype


@dataclass(frozen=True, slots=True)
class _Range:
    """One reservation in an arena, its guard included, and when it is needed."""

    device: Device
    buffer: Buffer
    offset: int
    life: Life
    is_input: bool

    @property
    def inner(self) -> int:
        return self.life.nbytes - GUARD

    def fill(self, offset: int, nbytes: int, byte: int) -> None:
        if nbytes:
            self.device.write(self.buffer, self.offset + offset, memoryview(bytes([byte]) * nbytes))

    def is_whole(self) -> bool:
        guard = bytearray(GUARD)
        self.device.read(self.buffer, self.offset + self.inner, memoryview(guard))
        return guard == bytes([_GUARD_BYTE]) * GUARD


class Watch:
    """The checks of one bound plan. chunk: the buffer of an arena's chunk; place: where something lies."""

    def __init__(self, drawn: Blueprint, chunk: Callable[[int, int], Buffer], place: Callable[[Ref], Place]) -> None:
        self.panel, self.place = drawn.panel, place
        self.nan, self.promises = ("nan" in drawn.request.checks), ("promises" in drawn.request.checks)
        self.ranges: list[_Range] = []
        if "memory" in drawn.request.checks:
            for number, reservations in drawn.memory.reserved.items():
                device = drawn.panel.device(number)
                for life, (part, offset), is_input in reservations:
                    if life.nbytes > GUARD:
                        self.ranges.append(_Range(device, chunk(number, part), offset, life, is_input))

    def begin(self) -> None:
        """Before inputs are written. What they hold may be kept from the last call."""
        for one in self.ranges:
            if one.is_input:
                one.fill(one.inner, GUARD, _GUARD_BYTE)

    def around(self, step: Callable[[], None], moment: int, run: Run, *, copies: bool) -> Callable[[], None]:
        """The same step, looked at before and after."""
        born = [one for one in self.ranges if one.life.start == moment and not one.is_input]
        alive = [one for one in self.ranges if one.life.start <= moment <= one.life.end]
        dying = [one for one in self.ranges if one.life.end == moment and not one.is_input]
        items = [] if copies else run.items
        what = "a copy" if copies else run.items[0].name
        device = self.panel.device(run.device)
        promises = [one for item in items for one in self._promises(device, item)] if self.promises else []

        def checked() -> None:
            for keep in promises:
                keep()
            for one in born:
                one.fill(0, one.inner, _FRESH)
                one.fill(one.inner, GUARD, _GUARD_BYTE)
            step()
            for one in alive:
                if not one.is_whole():
                    raise DeviceError(f"{one.device.name}: {what} wrote past the end of its memory (rule M7)")
            for item in items if self.nan else ():
                self._check_nan(device, item)
            for one in dying:
                one.fill(0, one.inner, _DEAD)

        return checked

    def _check_nan(self, device: Device, item: Item) -> None:
        spec = item.result.spec
        if not spec.dtype.is_float or spec.dtype.numpy is None:
            return
        array = self._array(device, item.result)
        bad = int(np.isnan(array).sum())
        if bad:
            raise KernelError(f"[{item.step.op}] {item.name} on {device.name}: {bad} of {array.size} results are NaN")

    def _promises(self, device: Device, item: Item) -> Iterator[Callable[[], None]]:
        """One check for each operand that something was promised of."""
        op, promises = OPS[item.step.op], OPS[item.step.op].declared.promises
        if not promises:
            return
        call = op.call(item.step.operands, item.step.attrs)
        for name, ref in zip(op.operands, item.operands, strict=True):
            if name in promises and ref is not None:
                yield partial(self._check_promise, device, item, call, name, ref)

    def _check_promise(self, device: Device, item: Item, call: Call, name: str, ref: Ref) -> None:
        broken = call.op.broken(name, self._array(device, ref), call)
        if broken is not None:
            raise KernelError(f"[{call.op.name}] {item.name} on {device.name}: {broken}")

    def _array(self, device: Device, ref: Ref) -> np.ndarray[Any, Any]:
        """What lies there, as stored. Only its backend can read a packed constant; its plain bytes are at hand."""
        spec = ref.spec
        if spec.layout:
            assert ref.value.tensor is not None
            plain = plain_bytes(ref.value.tensor, ref.value.window)
            return np.frombuffer(plain, element(spec.dtype)).reshape(spec.units)
        place = self.place(ref)
        raw = np.empty(spec.extent_nbytes, np.uint8)
        if raw.nbytes:
            device.read(place.buffer, place.offset, raw.data)
        return array_at(raw, Place(place.buffer, 0, spec))
