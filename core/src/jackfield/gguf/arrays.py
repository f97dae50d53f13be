"""Arrays of metadata: sequences that decode what is asked for.

A vocabulary of 50,000 tokens costs a walk over their lengths when the file is opened, and becomes Python strings only
when somebody looks at it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import pairwise, repeat
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from jackfield.gguf.source import Cursor, Source, decode

# Value types of fixed size, as they lie in a file.
NUMBERS = {
    kind: np.dtype(code)
    for kind, code in (
        ("u8", "u1"),
        ("i8", "i1"),
        ("u16", "<u2"),
        ("i16", "<i2"),
        ("u32", "<u4"),
        ("i32", "<i4"),
        ("f32", "<f4"),
        ("bool", "?"),
        ("u64", "<u8"),
        ("i64", "<i8"),
        ("f64", "<f8"),
    )
}

_PIECE = 4096  # strings whose lengths are checked together


class Array(Sequence[Any]):
    """An array of one value type. Equal to any sequence of the same values.

    kind: the value type of the elements: "u8" .. "f64", "bool", "string" or "array".
    """

    __slots__ = ("kind",)
    __hash__ = None  # type: ignore[assignment] # its values are read on demand

    def __init__(self, kind: str) -> None:
        self.kind = kind

    @abstractmethod
    def to_list(self) -> list[Any]:
        """All values as Python objects, decoded at once."""

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        chosen = range(len(self))[index]  # IndexError where lists raise it
        return [self._item(i) for i in chosen] if isinstance(chosen, range) else self._item(chosen)

    @abstractmethod
    def _item(self, index: int) -> Any: ...

    def __iter__(self) -> Iterator[Any]:
        return iter(self.to_list())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __repr__(self) -> str:
        return f"<{len(self)} {self.kind}>"


class Numbers(Array):
    """Numbers or bools; `numpy()` gives them as an array of their own type."""

    __slots__ = ("_count", "_dtype", "_field", "_offset", "_source")

    def __init__(self, source: Source, field: str, kind: str, offset: int, count: int) -> None:
        super().__init__(kind)
        self._source, self._field, self._offset, self._count = source, field, offset, count
        self._dtype = NUMBERS[kind]

    def __len__(self) -> int:
        return self._count

    def numpy(self) -> NDArray[Any]:
        """A fresh array (count,) in native byte order."""
        raw = self._source.view(self._field, self._offset, self._count * self._dtype.itemsize)
        return np.frombuffer(raw, self._dtype).astype(self._dtype.newbyteorder("="))

    def to_list(self) -> list[Any]:
        return self.numpy().tolist()

    def _item(self, index: int) -> Any:
        size = self._dtype.itemsize
        raw = self._source.view(self._field, self._offset + index * size, size)
        return np.frombuffer(raw, self._dtype)[0].item()


class Strings(Array):
    """Strings, each with a u64 length before it."""

    __slots__ = ("_ends", "_field", "_first", "_source")

    def __init__(self, source: Source, field: str, bounds: NDArray[np.int64]) -> None:
        super().__init__("string")
        self._source, self._field, self._first = source, field, int(bounds[0])
        ends = bounds - self._first
        self._ends = ends.astype(np.uint32) if ends[-1] < 1 << 32 else ends

    def __len__(self) -> int:
        return len(self._ends) - 1

    def to_list(self) -> list[str]:
        nbytes = int(self._ends[-1])
        raw = bytes(self._source.view(self._field, self._first, nbytes))
        self._source.release(self._first, nbytes)  # a vocabulary is decoded once, and its pages would stay resident
        try:
            return [raw[a + 8 : b].decode() for a, b in pairwise(self._ends.tolist())]
        except UnicodeDecodeError:
            return [self._item(i) for i in range(len(self))]  # raises the error that names the string

    def _item(self, index: int) -> str:
        start, end = (self._first + int(self._ends[i]) for i in (index, index + 1))
        start += 8
        field = f"string {index} of {self._field}"
        return decode(self._source.view(field, start, end - start), self._source.name, field, start)


class Arrays(Array):
    """Arrays in an array."""

    __slots__ = ("_items",)

    def __init__(self, items: Sequence[Array]) -> None:
        super().__init__("array")
        self._items = tuple(items)

    def __len__(self) -> int:
        return len(self._items)

    def to_list(self) -> list[Any]:
        return [item.to_list() for item in self._items]

    def __iter__(self) -> Iterator[Array]:
        return iter(self._items)

    def _item(self, index: int) -> Array:
        return self._items[index]


def walk_strings(cursor: Cursor, count: int, field: str) -> NDArray[np.int64]:
    """Where each of `count` strings begins (its length), and the end of the last: i64 (count + 1,).

    Strings are a chain: each length says where the next begins, and in Python a step costs more than the reading. So
    a piece of the chain is first followed by the lowest byte of each length alone, then all its lengths are checked
    at once; where that was wrong (a string of 256 bytes or more, or a damaged file) the piece is walked with care.
    """
    bounds = np.empty(count + 1, np.int64)
    bounds[0] = cursor.pos
    words = np.ndarray((max(cursor.source.size - 7, 0),), "<u8", cursor.raw, strides=(1,))  # the u64 at every byte
    for first in range(0, count, _PIECE):
        end = min(first + _PIECE, count)
        guess = _follow(cursor.raw, cursor.pos, end - first)
        if guess is not None and guess[-1] <= cursor.source.size:
            bounds[first + 1 : end + 1] = guess
            lengths = bounds[first + 1 : end + 1] - bounds[first:end] - 8
            if np.array_equal(words[bounds[first:end]], lengths.astype(np.uint64)):
                cursor.pos = guess[-1]
                continue
        for i in range(first, end):
            name = f"string {i} of {field}"
            length = cursor.u64(name)
            cursor.need(length, name)
            cursor.pos += length
            bounds[i + 1] = cursor.pos
    return bounds


def _follow(raw: memoryview, pos: int, count: int) -> list[int] | None:
    try:
        return [pos := pos + 8 + raw[pos] for _ in repeat(None, count)]
    except IndexError:
        return None
