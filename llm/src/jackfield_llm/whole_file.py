"""A file that is there whole or not at all: written beside its place under a hidden name, renamed when it is done."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows, where a file that is open can't be removed anyway
    fcntl = None  # type: ignore[assignment]

__all__ = ["sync_folder", "whole_file"]

_numbers = itertools.count()  # of files of this process, whose threads may write the same one
_LONGEST_NAME = 200  # bytes; file systems take 255, and the hidden name is longer than the file's


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path to write to; what lies there when the block ends without an error becomes `path`, replacing what was.

    After an error, Ctrl-C included, nothing is left. A process that is killed leaves the hidden file, which the next
    one that writes `path` removes: a lock tells it from one that is still being written.
    """
    before = _hidden(path)
    for old in path.parent.iterdir():
        if re.fullmatch(re.escape(before) + r"\d+(-\d+)?\.part", old.name):
            _remove_abandoned(old)
    part, lock = _made(path, before)
    try:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        if fcntl is None:  # nor can a file that is open be renamed there
            os.close(lock)
            lock = -1
        os.replace(part, path)  # noqa: PTH105 - named for what it is: the one atomic step
    finally:
        if lock >= 0:
            os.close(lock)
        part.unlink(missing_ok=True)
    sync_folder(path.parent)


def _hidden(path: Path) -> str:
    """How the hidden names of a file begin; what follows is the number of a process."""
    raw = os.fsencode(path.name)
    if len(raw) <= _LONGEST_NAME:
        return f".{path.name}."
    return f".{hashlib.sha256(raw).hexdigest()[:32]}."


def _made(path: Path, before: str) -> tuple[Path, int]:
    """A new hidden file and its handle, locked. Before, another writer may take it for abandoned: then once more."""
    while True:
        part = path.with_name(f"{before}{os.getpid()}-{next(_numbers)}.part")
        lock = os.open(part, os.O_RDWR | os.O_CREAT, 0o666)
        _lock(lock)
        if _is_at(part, lock):
            return part, lock
        os.close(lock)


def _lock(handle: int) -> None:
    if fcntl is not None:
        with suppress(OSError):  # a file system without locks: then nobody can take one there either
            fcntl.flock(handle, fcntl.LOCK_EX)  # who looks whether it is abandoned holds it for a moment


def _is_at(path: Path, handle: int) -> bool:
    """Whether the path still names the file that was opened."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(handle))  # noqa: PTH116 - beside fstat
    except FileNotFoundError:
        return False


def _remove_abandoned(part: Path) -> None:
    """Remove what a process left that was killed; a file that somebody writes, or can't be touched, stays."""
    if part.is_symlink() or not part.is_file():
        return
    with suppress(OSError):
        if fcntl is None:
            part.unlink()
            return
        handle = os.open(part, os.O_RDWR)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails also where there are no locks
            if _is_at(part, handle):  # else another has removed it, and the name may be taken again
                part.unlink()
        finally:
            os.close(handle)


def sync_folder(folder: Path) -> None:
    """Makes a new name survive a power cut, where folders can be synchronised."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
