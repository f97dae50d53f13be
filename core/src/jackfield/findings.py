"""What bodies of ops find in data and can't raise, because all other rows of the step go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple

import numpy as np

from .dtypes import DType
from .dtypes.arrays import convert

__all__ = ["Fault", "bad_index", "collect", "is_passing", "passing", "recast"]

Array = np.ndarray[Any, Any]


class Fault(NamedTuple):
    """What a body found in data and could not raise, because all other rows of the step go on.

    kind: "index" for an index outside its axis, "nonfinite" for a block that could not be coded.
    operand: the operand's name. value: the offending index, or the number of the block.
    """

    kind: Literal["index", "nonfinite"]
    operand: str
    value: int

    def text(self, op: str) -> str:
        if self.kind == "index":
            return f"[{op}] {self.operand} holds the index {self.value}, which lies outside its axis"
        return f"[{op}] {self.operand} holds inf, NaN or too large a value in block {self.value}: it must be codable"


_faults: ContextVar[list[Fault] | None] = ContextVar("faults", default=None)


@contextmanager
def collect(faults: list[Fault]) -> Iterator[None]:
    """What bodies find while this is open goes into the list, in order."""
    token = _faults.set(faults)
    try:
        yield
    finally:
        _faults.reset(token)


def bad_index(operand: str, value: int) -> None:
    """For bodies: an index that lies outside. The body goes on: it reads zeros, or writes nothing."""
    found = _faults.get()
    if found is not None:
        found.append(Fault("index", operand, value))


def passing(error: BaseException) -> None:
    """For bodies that call a function of the user's: what it raised reaches the user as it is."""
    error.jackfield_passing = True  # type: ignore[attr-defined]


def is_passing(error: BaseException) -> bool:
    """`passing` was told of it."""
    return getattr(error, "jackfield_passing", False) is True


def recast(array: Array, dtype: DType, operand: str = "x") -> Array:
    """For bodies: the same numbers in another dtype (`convert`); a block that can't be coded becomes 0 and a Fault."""
    converted, bad = convert(array, dtype)
    found = _faults.get()
    if bad is not None and found is not None:
        found.append(Fault("nonfinite", operand, bad))
    return converted
