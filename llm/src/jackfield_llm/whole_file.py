"""A file that is there whole or not at all: written beside its place under a hidden name, renamed when it is done."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["sync_folder", "whole_file"]


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path to write to; what lies there when the block ends without an error becomes `path`, replacing what was.

    After an error, Ctrl-C included, nothing is left. A process that is killed leaves the hidden file.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(part, path)  # noqa: PTH105 - named for what it is: the one atomic step
    finally:
        part.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes a new name survive a power cut, where folders can be synchronised."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
