"""What a test needs and may not find: without it the test skips, or fails where JACKFIELD_REQUIRE names it."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

__all__ = ["absent", "is_required"]


def is_required(what: str) -> bool:
    """JACKFIELD_REQUIRE holds this very word: a list of cpu, model, vocab, qemu and aarch64, by commas or spaces."""
    return what in os.environ.get("JACKFIELD_REQUIRE", "").replace(",", " ").split()


def absent(what: str, reason: str) -> NoReturn:
    """Ends the test that needs it. what: a word of JACKFIELD_REQUIRE."""
    if is_required(what):
        pytest.fail(f"{what} is required: {reason}")
    pytest.skip(reason)
