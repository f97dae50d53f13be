"""How much of a long list a run tries: all of it where JACKFIELD_THOROUGH is set, as .ci/full does, else a part.

A module says `PART = 3` to have a third of its parametrised tests tried, always the same ones.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from zlib import crc32

__all__ = ["is_thorough", "some", "tried"]


def is_thorough() -> bool:
    return bool(os.environ.get("JACKFIELD_THOROUGH"))


def some(many: Sequence[int], part: int) -> Sequence[int]:
    """Every `part`-th, with the first and the last."""
    if is_thorough() or len(many) < 2:
        return many
    return [*many[:-1:part], many[-1]]


def tried(names: Sequence[str], part: int) -> set[str]:
    """Those names of tests that are tried: by a hash, so that no pattern of parameters decides, and of each function
    at least one.
    """
    if is_thorough() or part == 1:
        return set(names)
    chosen = {name for name in names if "[" not in name or crc32(name.encode()) % part == 0}
    seen = {name.partition("[")[0] for name in chosen}
    for name in names:
        if (function := name.partition("[")[0]) not in seen:
            chosen.add(name)
            seen.add(function)
    return chosen
