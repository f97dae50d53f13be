"""Giving freed memory back to the operating system, where the C library lets us ask."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

__all__ = ["give_back"]


def give_back() -> None:
    """Return freed heap pages to the system.

    Building a tokenizer and a plan frees several megabytes in small pieces, which glibc keeps resident for later; a
    loaded model allocates little afterwards. Takes about a millisecond; does nothing where the library has no
    `malloc_trim` (man 3 malloc_trim).
    """
    if (trim := _malloc_trim()) is not None:
        trim(0)


@cache
def _malloc_trim() -> ctypes._NamedFuncPointer | None:
    if sys.platform != "linux":
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
