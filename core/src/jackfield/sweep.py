"""The user's folder of what is known of backends stays small: what nobody used for long goes, and the oldest of many.

Every environment that was ever looked at and every build that was ever met leaves a document there, and a build a lock.
Several processes may sweep, read and write at once: who finds a document gone finds out anew.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from .markers import taken

__all__ = ["LISTS", "STALE_S", "VERDICTS", "sweep", "used"]

STALE_S = 90 * 86400  # what nobody used so long belongs to wheels and environments that are gone
LISTS, VERDICTS = 64, 256  # documents kept: of search paths, and of builds
_IDLE_S = 2 * 3600  # longer than any rehearsal: no lock so old is waited for, no half-written file is being written
_DAY_S = 86400
_NAME = re.compile(r"([a-z][a-z0-9_]*)-[0-9a-f]{32}(\..*)")  # others are not ours


def used(document: Path) -> None:
    """Its time becomes now, once a day at most."""
    with suppress(OSError):
        if document.stat().st_mtime < time.time() - _DAY_S:
            os.utime(document)


def sweep(folder: Path, mine: str) -> None:
    """Take away what is too old or too much. mine: the key the caller is at, of which nothing goes. Never raises."""
    with suppress(OSError):
        now, times = time.time(), dict(_times(folder))
        kept = set(_kept(times, now)) | {mine}
        for name, written in times.items():
            key, _, kind = name.partition(".")
            if key == mine:
                continue
            age = now - written
            if (kind == "json" and key not in kept) or (kind.endswith("part") and age > _IDLE_S):
                _unlink(folder / name)
            if (kind == "lock" and key not in kept and age > _IDLE_S) or (kind.endswith("busy") and age > STALE_S):
                _unlink_free(folder / name)


def _times(folder: Path) -> Iterator[tuple[str, float]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if _NAME.fullmatch(entry.name):
                with suppress(OSError):  # gone meanwhile
                    yield entry.name, entry.stat().st_mtime


def _kept(times: dict[str, float], now: float) -> Iterator[str]:
    """Keys of the documents that stay: the newest of either kind."""
    room = {True: LISTS, False: VERDICTS}
    for name in sorted(times, key=lambda name: (-times[name], name)):
        key, _, kind = name.partition(".")
        is_list = key.startswith("installed-")
        if kind == "json" and times[name] >= now - STALE_S and room[is_list]:
            room[is_list] -= 1
            yield key


def _unlink(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _unlink_free(path: Path) -> None:
    """One that a process holds stays. A process that opens a lock just then and another one that makes it anew would
    both meet the build, each in a child of its own: that costs time and no more.
    """
    if os.name == "posix":
        taken(path)
    else:
        _unlink(path)  # of an open file this fails there
