"""Files that surround the first moments of a build, and tell the next process how one died in them."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

__all__ = ["Death", "Faults", "lock", "taken"]

_LONGEST = 4000  # characters of a dump


@dataclass(frozen=True)
class Death:
    """How a process ended in a first open, compile or call. dump: what Python wrote when it crashed; "" for nothing.

    is_crash: it did, or nobody could have seen whether it did. Else it was ended from outside, or ended itself.
    """

    moment: str
    text: str
    is_crash: bool
    dump: str = ""

    @classmethod
    def read(cls, moment: str, process: str, marker: str) -> Death:
        text = f"process {process} died in the first {moment} on it"
        how, _, dump = marker.partition("\n")
        fatal = next((line.partition(":")[2].strip() for line in dump.splitlines() if line.startswith(_FATAL)), "")
        if fatal:
            return cls(moment, f"{text}: {fatal}", is_crash=True, dump=dump[-_LONGEST:])
        return cls(moment, text, is_crash=how == _BLIND)


_FATAL = "Fatal Python error"  # how a text of `faulthandler` begins
_BLIND, _SEEN = "blind", "seen"  # first line of a marker: whether a crash would be written into it


class Faults:
    """Python's fault handler, which writes into the newest marker while any is held: so the next process can tell a
    crash from an end that came from outside. A program that uses it for itself keeps it.
    """

    _lock = threading.Lock()
    held: ClassVar[list[int]] = []

    @classmethod
    def begin(cls, marker: int) -> None:
        import faulthandler  # noqa: PLC0415 (only in the first moments of a build)

        with cls._lock:
            is_seen = bool(cls.held) or not faulthandler.is_enabled()
            if is_seen:
                cls.held.append(marker)
                faulthandler.enable(marker, all_threads=False)
        with suppress(OSError):  # a full disk: then it counts as one that says nothing
            os.write(marker, f"{_SEEN if is_seen else _BLIND}\n".encode())

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
