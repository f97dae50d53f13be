"""The kernels, a module for each family of ops; each names its ops in ENTRIES."""

from __future__ import annotations

from collections.abc import Sequence

import jackfield.backend as jb

from ..dispatch import Dispatch
from . import attention, copies, elementwise, norms, position, products, reduce, rows
from .entry import Entry

__all__ = ["ENTRIES", "dispatches"]

ENTRIES: dict[str, Entry] = {
    name: entry
    for module in (elementwise, reduce, norms, copies, rows, products, position, attention)
    for name, entry in module.ENTRIES.items()
}


def dispatches(placed: jb.PlacedStep) -> Sequence[Dispatch]:
    """What a placed step starts, in order."""
    if not placed.result.spec.size:
        return ()
    return tuple(ENTRIES[placed.step.op].starts(placed))
