"""The bytes of a file, and a cursor that never reads past their end."""

from __future__ import annotations

import mmap
import os
import stat
import struct
from contextlib import suppress
from pathlib import Path

from jackfield.gguf.faults import fault

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Source:
    """Bytes with a name, and the question whether they are all still there.

    A mapping of a file that was cut short after opening kills the process when the missing part is read. So `view`
    asks for the size again; what happens between that and the reading stays the risk of whoever changes the file.
    """

    def __init__(self, name: str, raw: memoryview) -> None:
        self.name = name
        self.size = len(raw)
        self._raw: memoryview | None = raw

    def size_now(self) -> int:
        """Bytes in memory stay."""
        return self.size

    def view(self, field: str, offset: int, nbytes: int) -> memoryview:
        """Read-only bytes, not copied. Raises: GGUFError when the file has shrunk or is closed."""
        if self._raw is None:
            raise fault("closed", self.name, field, offset)
        now = self.size_now()
        if now < self.size:
            raise fault("shrunk", self.name, field, offset, now=now, before=self.size)
        return self._raw[offset : offset + nbytes]

    def release(self, offset: int, nbytes: int) -> None:
        """Bytes in memory have nothing to give back."""

    def close(self) -> None:
        self._raw = None


class MappedSource(Source):
    """A file mapped for reading."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        name = Path(path).name
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - asked before opening: a pipe would block there
            raise fault("irregular", name, "file", 0)
        with Path(path).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if not size:  # an empty file can't be mapped
                raise fault("short", name, "header", 0, size=0)
            self._map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        super().__init__(name, memoryview(self._map))

    def size_now(self) -> int:
        return self._map.size()

    def release(self, offset: int, nbytes: int) -> None:
        """Tell the kernel that the pages of this range are not needed for now; they may be read again.

        Pages that reach beyond the range go too: else those on the border of two tensors would stay for good.
        """
        if self._raw is None or not nbytes or not hasattr(self._map, "madvise"):
            return
        first = offset // mmap.PAGESIZE * mmap.PAGESIZE
        self._map.madvise(mmap.MADV_DONTNEED, first, offset + nbytes - first)

    def close(self) -> None:
        """Unmap, or leave that to the last view of tensor data still alive."""
        raw, self._raw = self._raw, None
        if raw is None:
            return
        with suppress(BufferError):
            raw.release()
            self._map.close()
        del self._map


class Cursor:
    """Reads forward; what is not there raises GGUFError naming the field and its first byte."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.raw = source.view("header", 0, source.size)
        self.pos = 0

    @property
    def left(self) -> int:
        return self.source.size - self.pos

    def need(self, nbytes: int, field: str) -> None:
        if nbytes > self.left:
            raise fault("end", self.source.name, field, self.pos, need=nbytes, left=self.left)

    def u32(self, field: str) -> int:
        self.need(4, field)
        value: int = _U32.unpack_from(self.raw, self.pos)[0]
        self.pos += 4
        return value

    def u64(self, field: str) -> int:
        self.need(8, field)
        value: int = _U64.unpack_from(self.raw, self.pos)[0]
        self.pos += 8
        return value

    def count(self, field: str, each: int) -> int:
        """A u64 number of entries that take at least `each` bytes; so no later allocation exceeds the file's size."""
        at = self.pos
        count = self.u64(field)
        if count * each > self.left:
            raise fault("count", self.source.name, field, at, count=count, need=count * each, left=self.left)
        return count

    def text(self, field: str) -> str:
        start = self.text_end(field)
        return decode(self.raw[start : self.pos], self.source.name, field, start)

    def text_end(self, field: str) -> int:
        """Go behind a text; its first byte."""
        length = self.u64(field)
        self.need(length, field)
        start, self.pos = self.pos, self.pos + length
        return start


def decode(raw: memoryview, file: str, field: str, offset: int) -> str:
    """UTF-8 to text. Raises: GGUFError with the place of the first wrong byte."""
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError as error:
        raise fault("utf-8", file, field, offset, at=error.start) from None
