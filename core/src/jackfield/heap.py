"""The memory of the process while plans are made: what the C library holds back, and Python's search for garbage."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

__all__ = ["give_back", "no_collection"]


@contextmanager
def no_collection() -> Iterator[None]:
    """No search for garbage inside: for code that makes tens of thousands of objects in milliseconds and keeps them.

    Every 700 new objects set off a search among the new ones, and every seventy thousand one through all objects of
    the process, which takes as long as a plan. The switch is the process's: cycles that other threads leave
    meanwhile are found afterwards. Inside another such block, or where the user has switched it off, it stays off.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def give_back() -> None:
    """Return freed pages of the C heap to the system: glibc keeps those below the highest block in use.

    Building a plan, and what came before it (a tokenizer, say), frees far more than it keeps. Takes 0.3 ms; nothing
    happens with other C libraries.
    """
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library, or a system without one for all
        return None
