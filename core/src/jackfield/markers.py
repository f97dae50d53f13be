"""Files that surround the first moments of a build, and tell the next process how one died in them.

A marker is a file that its process keeps locked. Its first line says what is being done: a process that dies while it
says nothing, or while another build is at work, says nothing about this one. Behind it is what Python's fault handler
wrote. `Guard` marks the moments of a plan that is made, for which `contained` asks it at each call of a device.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

__all__ = ["PLANNING", "Death", "Faults", "Guard", "Marker", "guards", "lock", "taken"]

_LONGEST = 4000  # characters of a dump


@dataclass(frozen=True)
class Death:
    """How a process ended in a first moment of a build. dump: what Python wrote when it crashed; "" for nothing.

    is_crash: it did, or nobody could have seen whether it did. Else it was ended from outside, or ended itself.
    """

    moment: str
    text: str
    is_crash: bool
    dump: str = ""

    @classmethod
    def read(cls, moment: str, process: str, marker: str) -> Death | None:
        """None: it says that nothing of the build was at work. moment: where it does not say which one."""
        first, _, dump = marker.partition("\n")
        how, *words = first.split()[:3] or [""]
        if how == _IDLE:
            return None
        moment, doing = (*words, moment, moment)[:2]
        what = moment if doing == moment else f"{moment} ({doing})"
        text = f"process {process} died in the first {what} on it"
        fatal = next((line.partition(":")[2].strip() for line in dump.splitlines() if line.startswith(_FATAL)), "")
        if fatal:
            return cls(moment, f"{text}: {fatal}", is_crash=True, dump=dump[-_LONGEST:])
        return cls(moment, text, is_crash=how == _BLIND)


_FATAL = "Fatal Python error"  # how a text of `faulthandler` begins
_BLIND, _SEEN = "blind", "seen"  # first word of a marker: whether a crash would be written into it
_IDLE = "idle"  # or that nothing of the build is at work
_HEAD = 64  # bytes of the first line


class Faults:
    """Python's fault handler, which writes into the newest marker while any is held: so the next process can tell a
    crash from an end that came from outside. A program that uses it for itself keeps it.
    """

    _lock = threading.Lock()
    held: ClassVar[list[int]] = []

    @classmethod
    def begin(cls, marker: int) -> bool:
        """Whether a crash is written into it from now on."""
        import faulthandler  # noqa: PLC0415 (only in the first moments of a build)

        with cls._lock:
            is_seen = bool(cls.held) or not faulthandler.is_enabled()
            if is_seen:
                cls.held.append(marker)
                faulthandler.enable(marker, all_threads=False)
        return is_seen

    @classmethod
    def point(cls, marker: int) -> None:
        """A crash is written into this one of those that are held."""
        import faulthandler  # noqa: PLC0415 (as in begin)

        with cls._lock:
            if marker in cls.held and cls.held[-1] != marker:
                cls.held.remove(marker)
                cls.held.append(marker)
                faulthandler.enable(marker, all_threads=False)

    @classmethod
    def ends(cls, marker: int) -> None:
        import faulthandler  # noqa: PLC0415 (as in begin)

        with cls._lock:
            if marker in cls.held:
                cls.held.remove(marker)
                if cls.held:
                    faulthandler.enable(cls.held[-1], all_threads=False)
                else:
                    faulthandler.disable()


def lock(marker: Path) -> int | None:
    """A descriptor that keeps the new file locked while this process lives; None in a folder that can't be written to.

    The file has its name only once it is locked: whoever finds one that is not knows that its process has died.
    """
    import fcntl  # noqa: PLC0415 (there is no marker without a child process, and no child but on POSIX)

    part = marker.with_suffix(".part")
    try:
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        part.rename(marker)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def taken(marker: Path) -> str | None:
    """The text of a file that is there and that nobody holds; it is taken away. Never makes one."""
    import fcntl  # noqa: PLC0415 (as in lock)

    try:
        descriptor = os.open(marker, os.O_RDWR)
    except OSError:  # its process came through meanwhile
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(descriptor), marker.stat()):
            return None
        text = os.read(descriptor, 1 << 16).decode("utf-8", "replace")
        marker.unlink()
    except OSError:  # its process lives, or came through meanwhile
        return None
    else:
        return text
    finally:
        os.close(descriptor)


class Marker:
    """A marker of this process. Says nothing until `mark` is called."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor
        self._how = _SEEN if Faults.begin(descriptor) else _BLIND
        with suppress(OSError):  # a full disk: then it counts as one that says nothing
            os.write(descriptor, _head(_IDLE))

    @classmethod
    def made(cls, path: Path) -> Marker | None:
        """None in a folder that can't be written to."""
        descriptor = lock(path)
        return None if descriptor is None else cls(path, descriptor)

    def mark(self, moment: str, doing: str) -> None:
        """Say that this is being done on the build."""
        Faults.point(self._descriptor)
        self._write(f"{self._how} {moment} {doing}")

    def rest(self) -> None:
        """Nothing is."""
        self._write(_IDLE)

    def _write(self, text: str) -> None:
        with suppress(OSError):
            os.pwrite(self._descriptor, _head(text), 0)

    def end(self) -> None:
        """Its process came through."""
        with suppress(OSError):
            self._path.unlink()
        Faults.ends(self._descriptor)
        os.close(self._descriptor)


def _head(text: str) -> bytes:
    """The first line, always of one length, so that what the fault handler wrote stays behind it."""
    return text.encode("ascii", "replace")[: _HEAD - 1].ljust(_HEAD - 1) + b"\n"


# What `contained` says of a call, to the moment it belongs to; all others bring constants and states.
_MOMENTS = {
    **dict.fromkeys(("question", "pack", "groups", "fuse", "scratch", "result_nbytes"), "question"),
    "alloc": "alloc",
    "compile": "compile",
}
_BRINGS = "write"
PLANNING = ("question", "alloc", _BRINGS, "compile")  # moments of a plan that is made, in their order


class Guard:
    """One build, while plans are made that ask it for what no process has outlived yet.

    unproven: those moments. make: its marker, or None where none can be made; called when the first of them comes.
    outlived: those that came back. Several threads may be inside at once.
    """

    def __init__(self, unproven: Iterable[str], make: Callable[[], Marker | None]) -> None:
        self.unproven = frozenset(unproven)
        self.outlived: set[str] = set()
        self.users = 0
        self._make = make
        self._marker: Marker | None = None
        self._inside: list[tuple[str, str]] = []
        self._lock = threading.Lock()

    def enter(self, doing: str) -> None:
        moment = _MOMENTS.get(doing, _BRINGS)
        if moment not in self.unproven:
            return
        with self._lock:
            if self._marker is None:
                self._marker = self._make()
            if self._marker is None:
                self.unproven = frozenset()  # nothing can be remembered
                return
            self._inside.append((moment, doing.partition(" ")[0]))
            self._marker.mark(*self._inside[-1])

    def leave(self, doing: str, *, well: bool) -> None:
        """well: nothing was raised."""
        moment = _MOMENTS.get(doing, _BRINGS)
        one = moment, doing.partition(" ")[0]
        with self._lock:
            if self._marker is None or one not in self._inside:
                return
            self._inside.remove(one)
            if well:
                self.outlived.add(moment)
            if self._inside:
                self._marker.mark(*self._inside[-1])
            else:
                self._marker.rest()

    def end(self) -> None:
        """No plan asks any more."""
        with self._lock:
            self.unproven = frozenset()
            if self._marker is not None:
                self._marker.end()
                self._marker = None


guards: dict[str, Guard] = {}  # by the name of a device
