"""What one thread prints while it runs a plugin, apart from what all others print.

`contextlib.redirect_stdout` takes the prints of the whole process, and two threads that use it at once leave the wrong
stream behind.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

__all__ = ["Room", "aloud", "heard", "room_of_thread"]

_lock = threading.Lock()
_CORE = __name__.partition(".")[0]
_TOLD = 60  # characters


class Room(io.StringIO):
    """What was printed. printers: by the package whose code printed, as far as the core called it: how many characters,
    and their beginning.
    """

    def __init__(self) -> None:
        super().__init__()
        self.printers: dict[str, tuple[int, str]] = {}

    def write(self, text: str) -> int:
        who = _package()
        count, start = self.printers.get(who, (0, ""))
        self.printers[who] = count + len(text), (start + text)[:_TOLD]
        return super().write(text)


def _package() -> str:
    """The package that the core, or its thread, has called: of the outermost frame before the first one of the core."""
    frame, found = sys._getframe(2), ""  # noqa: SLF001 (only who prints pays for it)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if name == _CORE and found:
            return found
        found = name if name != _CORE else ""
        frame = cast("Any", frame.f_back)
    return found


class _Stream:
    """Stands for sys.stdout. rooms: where the prints of each thread that is heard go; all others print as before."""

    def __init__(self, real: Any) -> None:
        self.real = real  # None in a program without a stdout
        self.rooms: dict[int, list[Any]] = {}

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
def heard(room: Room | None = None) -> Iterator[Room]:
    """What this thread prints in here; nothing of it reaches stdout. Other threads print as they did.

    room: takes it, which may be that of another thread, too; None: a new one.
    """
    room = Room() if room is None else room
    with _led_to(lambda _: room):
        yield room


@contextmanager
def aloud() -> Iterator[None]:
    """Prints of this thread in here go where they would if nobody heard them: for what the user has the core call."""
    with _led_to(lambda stream: stream.real):
        yield


def room_of_thread() -> Room | None:
    """Where this thread's prints go now; None for stdout."""
    out: object = sys.stdout
    rooms = out.rooms.get(threading.get_ident()) if isinstance(out, _Stream) else None
    return rooms[-1] if rooms and isinstance(rooms[-1], Room) else None


@contextmanager
def _led_to(place: Callable[[_Stream], Any]) -> Iterator[None]:
    """The prints of this thread go there."""
    me = threading.get_ident()
    with _lock:
        stream = _installed()
        room = place(stream)
        stream.rooms.setdefault(me, []).append(room)
    try:
        yield
    finally:
        with _lock:
            rooms = stream.rooms[me]
            rooms.reverse()  # the last one: a room may be there twice
            rooms.remove(room)
            rooms.reverse()
            if not rooms:
                del stream.rooms[me]
            if not stream.rooms and cast("object", sys.stdout) is stream:
                sys.stdout = stream.real
