"""What one thread prints while it runs a plugin, apart from what all others print.

`contextlib.redirect_stdout` takes the prints of the whole process, and two threads that use it at once leave the wrong
stream behind.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

__all__ = ["heard"]

_lock = threading.Lock()


class _Stream:
    """Stands for sys.stdout. rooms: what each thread that is heard has printed; all others print as before."""

    def __init__(self, real: Any) -> None:
        self.real = real  # None in a program without a stdout
        self.rooms: dict[int, list[io.StringIO]] = {}

    def _mine(self) -> Any:
        rooms = self.rooms.get(threading.get_ident())
        return rooms[-1] if rooms else self.real

    def write(self, text: str) -> int:
        mine = self._mine()
        return len(text) if mine is None else int(mine.write(text))

    def flush(self) -> None:
        mine = self._mine()
        if mine is not None:
            mine.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mine(), name)


def _installed() -> _Stream:
    out: object = sys.stdout
    if isinstance(out, _Stream):
        return out
    stream = _Stream(out)
    sys.stdout = cast("TextIO", stream)
    return stream


@contextmanager
def heard() -> Iterator[io.StringIO]:
    """What this thread prints in here; nothing of it reaches stdout. Other threads print as they did."""
    room, me = io.StringIO(), threading.get_ident()
    with _lock:
        stream = _installed()
        stream.rooms.setdefault(me, []).append(room)
    try:
        yield room
    finally:
        with _lock:
            rooms = stream.rooms[me]
            rooms.remove(room)
            if not rooms:
                del stream.rooms[me]
            if not stream.rooms and cast("object", sys.stdout) is stream:
                sys.stdout = stream.real
