"""Arrays of metadata: sequences that decode what is asked for.

A vocabulary of 50,000 tokens costs a walk over their lengths when the file is opened, and becomes Python strings only
when somebody looks at it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import pairwise
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

_WINDOW = 1 << 15  # bytes that are searched for lengths at once
_SHORT = 256  # bytes; the lengths of strings below this have seven bytes of zero, which text does not
_FEW = 64  # strings; windows that hold fewer cost more than going from one to the next
_STRIDE = 2048  # strings that are then taken one by one
_SEPARATORS = "\x1f\n"  # letters that seldom occur in a text


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
        """A fresh array (count,) in native byte order; what `numpy.asarray` gives too."""
        raw = self._source.view(self._field, self._offset, self._count * self._dtype.itemsize)
        return np.frombuffer(raw, self._dtype).astype(self._dtype.newbyteorder("="))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:  # noqa: FBT001 - numpy's protocol
        if copy is False:
            raise ValueError("numbers of a file can't be had as an array without a copy")
        return self.numpy() if dtype is None else self.numpy().astype(dtype, copy=False)

    def to_list(self) -> list[Any]:
        return self.numpy().tolist()

    def _item(self, index: int) -> Any:
        size = self._dtype.itemsize
        raw = self._source.view(self._field, self._offset + index * size, size)
        return np.frombuffer(raw, self._dtype)[0].item()


class Strings(Array):
    """Strings, each with a u64 length before it."""

    __slots__ = ("_ends", "_field", "_first", "_source")

    def __init__(self, source: Source, field: str, first: int, ends: NDArray[Any]) -> None:
        """first: byte of the first length. ends: of each string, in bytes from there, with a 0 before: (count + 1,)."""
        super().__init__("string")
        self._source, self._field, self._first = source, field, first
        self._ends = ends.astype(np.uint32, copy=False) if ends[-1] < 1 << 32 else ends

    def __len__(self) -> int:
        return len(self._ends) - 1

    def to_list(self) -> list[str]:
        raw = self._bytes()
        for separator in _SEPARATORS:
            text = _at_once(raw, self._ends, separator)
            if text is not None:
                return text.split(separator)
        return self._one_by_one(raw)

    def joined(self, separator: str) -> str:
        """As `separator.join(strings)`; where it is one ASCII character, and rare, in a fraction of the time."""
        raw = self._bytes()
        text = _at_once(raw, self._ends, separator)
        return separator.join(self._one_by_one(raw)) if text is None else text

    def _bytes(self) -> bytes:
        """All strings with their lengths."""
        nbytes = int(self._ends[-1])
        raw = bytes(self._source.view(self._field, self._first, nbytes))
        self._source.release(self._first, nbytes)  # a vocabulary is decoded once, and its pages would stay resident
        return raw

    def _one_by_one(self, raw: bytes) -> list[str]:
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


def walk_strings(cursor: Cursor, count: int, field: str) -> NDArray[Any]:
    """Where each of `count` strings ends, in bytes from the first one's length, and a 0 before: (count + 1,).

    Strings are a chain: each length says where the next begins, and in Python a step costs more than the reading. So
    a window of the file is searched for what may be short lengths, all at once, and as many as form a chain are
    taken; where that fails (long strings, zeros in a text, a damaged file) some are walked with care.
    """
    ends = np.empty(count + 1, np.uint32 if cursor.left < 1 << 32 else np.int64)
    ends[0] = 0
    first, done = cursor.pos, 0
    raw = np.frombuffer(cursor.raw, np.uint8)
    while done < count:
        chain = _chain(raw, cursor.pos, count - done)
        if len(chain):
            ends[done + 1 : done + 1 + len(chain)] = chain - first
            done += len(chain)
            cursor.pos = int(chain[-1])
        if len(chain) < _FEW:
            for i in range(done, min(count, done + _STRIDE)):
                cursor.text_end(f"string {i} of {field}")
                ends[i + 1] = cursor.pos - first
                done = i + 1
    return ends


def _chain(raw: NDArray[np.uint8], start: int, count: int) -> NDArray[np.int64]:
    """Ends of the strings from byte `start` on, at most `count`, that follow each other without a gap: i64.

    Each begins where the one before ends, and is as long as it says; there may be more than are found.
    """
    zero = raw[start : start + _WINDOW] == 0
    two = zero[1:-1] & zero[2:]  # from the second byte on: the lowest byte of a length may be anything
    four = two[:-2] & two[2:]
    starts = np.flatnonzero(four[:-3] & four[3:])[:count] + start  # seven zeros behind each
    if not len(starts) or starts[0] != start:
        return starts[:0]
    ends = starts + 8 + raw[starts]
    broken = ends[:-1] != starts[1:]
    ends = ends[: int(broken.argmax()) + 1] if broken.any() else ends
    return ends[: int(np.searchsorted(ends, len(raw), "right"))]


def _at_once(raw: bytes, ends: NDArray[Any], separator: str) -> str | None:
    """Strings with a separator between; None where one is long, is no UTF-8, or holds a zero or the separator.

    The lowest byte of every length becomes the separator; the others are zeros, and are deleted.
    """
    starts = ends[:-1]
    if (
        not len(starts)
        or len(separator) != 1
        or not "\0" < separator < "\x80"
        or int(np.diff(ends).max()) >= _SHORT + 8
    ):
        return None
    changed = np.frombuffer(raw, np.uint8).copy()
    changed[starts] = 0
    if separator.encode() in changed.tobytes():
        return None
    changed[starts] = ord(separator)
    text = changed.tobytes().translate(None, b"\0")
    if len(text) != len(raw) - 7 * len(starts):
        return None
    try:
        return text[1:].decode()
    except UnicodeDecodeError:
        return None
