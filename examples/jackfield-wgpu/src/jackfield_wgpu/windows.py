"""Which part of which buffer each binding shows.

WebGPU lets a shader see a buffer through windows of limited size, and write to a buffer only where every window on it
is open for writing. So tensors of one buffer share a window where it is wide enough; the arena of a plan mostly is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jackfield.backend as jb

from .shading import WIDTHS, Access, Tensor, unit_of


@dataclass
class Window:
    """Bytes low to high of a buffer."""

    block: Any
    low: int
    high: int


@dataclass
class Windows:
    """The bindings of one dispatch. bases: by tensor, where its first element is, in units, from its window's start."""

    windows: list[Window] = field(default_factory=list)
    accesses: list[Access] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    bases: dict[str, int] = field(default_factory=dict)


def windows(places: Mapping[str, jb.Place], units: Mapping[str, str], alignment: int, most: int) -> Windows:
    """The windows on these tensors; "out" is written. alignment: of a window's start. most: its bytes."""
    found = Windows()
    slots: dict[str, int] = {}
    for name, place in places.items():
        low, high = _reach(place, alignment)
        for slot, window in enumerate(found.windows):
            wide = min(low, window.low), max(high, window.high)
            if window.block is place.buffer and wide[1] - wide[0] <= most:
                window.low, window.high = wide
                slots[name] = slot
                break
        else:
            slots[name] = len(found.windows)
            found.windows.append(Window(place.buffer, low, high))
    unit = {name: units.get(name) or unit_of(place.spec.dtype) for name, place in places.items()}
    writing: Access = "write" if WIDTHS.get(unit["out"], 1) >= 4 else "atomic"
    found.accesses = [writing if w.block is places["out"].buffer else "read" for w in found.windows]
    for name, place in places.items():
        found.tensors.append(Tensor(name, unit[name], slots[name]))
        start = place.offset - found.windows[slots[name]].low
        found.bases[f"{name}_base"] = start // WIDTHS.get(unit[name], 1)
    return found


def _reach(place: jb.Place, alignment: int) -> tuple[int, int]:
    """The bytes of a tensor, out to where a window may start and to a whole word; never none."""
    size = place.buffer.size
    low = min(place.offset, size - 4) // alignment * alignment
    return low, min(size, max(low + 4, -(-(place.offset + place.spec.extent_nbytes) // 4) * 4))
