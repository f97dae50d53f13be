"""What this backend says about an op, beside the function that makes its dispatches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jackfield.backend as jb

from ..dispatch import Dispatch

FLOATS = frozenset({"f32", "f16", "bf16"})
F32 = frozenset({"f32"})
I32 = frozenset({"i32"})
ROWS = frozenset({"i32", "i64"})
BLOCKS = frozenset({"q8_0", "q4_0", "q4_1"})


@dataclass(frozen=True)
class Entry:
    """kernel: what the core may offer. starts: its dispatches, none for an empty result.

    why_not: further limits. cost: seconds, where the declared work of the op is not what its kernel does.
    """

    kernel: jb.Kernel
    starts: Callable[[jb.PlacedStep], Iterable[Dispatch]]
    why_not: Callable[[jb.Step], jb.Reason | None] = lambda _: None
    cost: Callable[[jb.Step, jb.Rates], float] | None = None


def attrs_of(step: jb.Step) -> Any:
    """Its attributes, whose types are the op's."""
    return step.attrs


def place_of(placed: jb.PlacedStep, operand: int) -> jb.Place:
    """An operand that is always there."""
    place = placed.operands[operand]
    assert place is not None
    return place
