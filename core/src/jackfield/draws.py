"""What a declaration's cases are made of: operands to be drawn, attributes, and the error that must come.

Cases describe; the conformance kit draws them for each dtype and layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .dtypes import DType, i32
from .errors import Error
from .graph import Attr
from .spec import Shape

__all__ = ["Case", "Draw", "UnboundCase", "case", "ints", "rand", "values"]


@dataclass(frozen=True)
class Draw:
    """A tensor to be drawn for a case. dtype None: the dtype under test. fill: what to put in, see `draw`."""

    shape: Shape
    low: float = -1.0
    high: float = 1.0
    dtype: DType | None = None
    shut: float = 0.0  # share of entries at -inf, for masks
    fixed: tuple[float, ...] | None = None

    def draw(self, rng: np.random.Generator) -> np.ndarray[Any, Any]:
        """float64 (or int64) values; the runner casts them to the dtype under test."""
        if self.fixed is not None:
            kind = np.float64 if self.dtype is None or self.dtype.is_float else np.int64
            return np.array(self.fixed, kind).reshape(self.shape)
        if self.dtype is not None and self.dtype.is_integer:
            return rng.integers(int(self.low), int(self.high), self.shape, dtype=np.int64)
        array = rng.uniform(self.low, self.high, self.shape)
        if self.shut:
            array[rng.random(self.shape) < self.shut] = -np.inf
        return array


def rand(*shape: int, low: float = -1.0, high: float = 1.0, dtype: DType | None = None, shut: float = 0.0) -> Draw:
    """Uniform floats in [low, high); a share `shut` of them at -inf. dtype None: the one under test."""
    return Draw(shape, low, high, dtype, shut)


def ints(*shape: int, low: int = 0, high: int, dtype: DType = i32) -> Draw:
    """Uniform integers in [low, high)."""
    return Draw(shape, low, high, dtype)


def values(array: Any, dtype: DType | None = None) -> Draw:
    """These very values."""
    fixed = np.asarray(array)
    return Draw(fixed.shape, dtype=dtype, fixed=tuple(fixed.reshape(-1).tolist()))


@dataclass(frozen=True)
class Case:
    """One use of an op to try: draws by operand name, attributes, and the error it must raise, if any."""

    operands: Mapping[str, Draw]
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    raises: type[Error] | None = None

    def __str__(self) -> str:
        parts = [f"{n}={'x'.join(map(str, d.shape)) or 'scalar'}" for n, d in self.operands.items()]
        return "-".join(parts + [f"{k}={v}" for k, v in self.attrs.items()])


@dataclass(frozen=True)
class UnboundCase:
    """What `case` was told, before the op's signature says which names are operands."""

    args: tuple[Draw | None, ...]
    kwargs: dict[str, Any]
    raises: type[Error] | None


def case(*operands: Draw | None, raises: type[Error] | None = None, **kwargs: Any) -> UnboundCase:
    """A conformance case: operands by position or name, attributes by name."""
    return UnboundCase(operands, kwargs, raises)
