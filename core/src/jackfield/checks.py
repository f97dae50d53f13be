"""What JACKFIELD_CHECK looks at between the steps of a call: guards and dead memory, and results that hold NaN.

Such plans run one step at a time. Slow by design; never on unless asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .backend import Buffer, Device, Place
from .blueprint import Blueprint
from .errors import DeviceError, KernelError
from .memory import Life
from .partition import Item, Ref, Run

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
        self.nan = "nan" in drawn.request.checks
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

        def checked() -> None:
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
        place = self.place(item.result)
        raw = np.empty(spec.extent_nbytes, np.uint8)
        device.read(place.buffer, place.offset, raw.data)
        array = np.ndarray(spec.shape, spec.dtype.numpy, raw.data, 0, spec.byte_strides)
        bad = int(np.isnan(array).sum())
        if bad:
            raise KernelError(f"[{item.step.op}] {item.name} on {device.name}: {bad} of {array.size} results are NaN")
