"""What a test needs and may not find: without it the test skips, or fails where JACKFIELD_REQUIRE names it."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

__all__ = ["absent", "is_required", "opens"]


def is_required(what: str) -> bool:
    """JACKFIELD_REQUIRE holds this very word; a list of cpu, model, vocab, qemu, wgpu, aarch64, by commas or spaces."""
    return what in os.environ.get("JACKFIELD_REQUIRE", "").replace(",", " ").split()


def absent(what: str, reason: str) -> NoReturn:
    """Ends the test that needs it. what: a word of JACKFIELD_REQUIRE."""
    if is_required(what):
        pytest.fail(f"{what} is required: {reason}")
    pytest.skip(reason)


def opens(device: str) -> str:
    """The device, where a Session on it opens; else ends the test, which needs the plugin called like it."""
    import jackfield as jf

    try:
        jf.Session(device).close()
    except (jf.errors.DeviceNameError, jf.errors.BackendError) as e:
        absent(device.split(":", maxsplit=1)[0], f"no device {device} here: {e}")
    return device
