"""A model file's metadata by short names; every miss is an error that names the key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from jackfield_llm.errors import ModelError, shown

__all__ = ["Keys", "parts_of"]

_LARGEST = 2**31 - 1
_MOST_LAYERS = 1024  # the largest models known have 126


def parts_of(metadata: Mapping[str, Any]) -> int:
    """Of how many files the one with this metadata is a part; 1 for a whole model."""
    parts = metadata.get("split.count", 1)
    return parts if isinstance(parts, int) and parts > 1 else 1


class Keys:
    """Metadata of one architecture, which remembers what was asked for."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str) -> None:
        self.metadata, self.architecture = metadata, architecture
        self._asked: set[str] = set()

    def integer(self, name: str, default: int | None = None, *, lowest: int = 1, highest: int = _LARGEST) -> int:
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
            raise self.wrong(name, value, f"a whole number from {lowest} to {highest:,}")
        return value

    def blocks(self) -> int:
        """How many layers the file has: those that give logits, and behind them those that predict further tokens."""
        return self.integer("block_count", highest=_MOST_LAYERS)

    def predicting(self) -> int:
        """How many of these predict further tokens."""
        count, blocks = self.integer("nextn_predict_layers", 0, lowest=0), self.blocks()
        if count >= blocks:
            raise self.wrong("nextn_predict_layers", count, f"fewer than the {blocks} of block_count")
        return count

    def layers(self) -> int:
        """How many give logits."""
        return self.blocks() - self.predicting()

    def number(self, name: str, default: float | None = None, *, zero: bool = False) -> float:
        """A finite number above 0, or 0 where that has a meaning."""
        value = self._get(name, default)
        known = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not known or value < 0 or (value == 0 and not zero):
            raise self.wrong(name, value, f"a finite number {'not below' if zero else 'above'} 0")
        return float(value)

    def factor(self, name: str, default: float) -> float:
        """A number that something is multiplied or divided by, 1e-6 to 1e6; 0 means that nothing is."""
        value = self.number(name, default, zero=True) or 1.0
        if not 1e-6 <= value <= 1e6:
            raise self.wrong(name, value, "from 1e-6 to 1e6")
        return value

    def flag(self, name: str) -> bool:
        """Whether it is set; absent is not."""
        value = self._get(name, default=False)
        if not isinstance(value, bool):
            raise self.wrong(name, value, "true or false")
        return value

    def text(self, name: str, default: str) -> str:
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, value, "a text")
        return value

    def absent(self, name: str, lacking: str) -> None:
        """Raises ModelError when the file asks for something we lack, by a number other than 0."""
        value = self.get(name)
        if value is not None and (isinstance(value, bool) or value != 0):
            raise self.wrong(name, value, f"0: {lacking} not known here")

    def pass_over(self, name: str) -> None:
        """Say that what the file states here is knowingly not heeded; the caller says why."""
        self._asked.add(name)

    def unread(self, name: str) -> Any:
        """The value of a name that nothing asked for or passed over, or None."""
        return None if name in self._asked else self.metadata.get(f"{self.architecture}.{name}")

    def get(self, name: str) -> Any:
        """The value as it is, or None."""
        self._asked.add(name)
        return self.metadata.get(f"{self.architecture}.{name}")

    def wrong(self, name: str, value: object, must: str) -> ModelError:
        return ModelError(f"{self.architecture}.{name} is {shown(value)}: must be {must}")

    def lacks(self, name: str) -> ModelError:
        return ModelError(f"the file lacks {self.architecture}.{name}, which a {self.architecture} model needs")

    def _get(self, name: str, default: Any) -> Any:
        value = self.get(name)
        if value is None:
            value = default
        if value is None:
            raise self.lacks(name)
        return value
