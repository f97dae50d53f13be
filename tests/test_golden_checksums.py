"""The golden files are the ones that were recorded."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"
LIST = dict(reversed(line.split("  ", 1)) for line in (GOLDEN / "SHA256SUMS").read_text("ascii").splitlines())


def test_every_recorded_file_is_listed():
    """Data only a recording can make again; what is generated has checksums of its own."""
    assert {path.name for path in GOLDEN.iterdir() if path.suffix in (".json", ".npz")} <= set(LIST)


@pytest.mark.parametrize("name", LIST)
def test_the_file_is_as_recorded(name):
    assert hashlib.sha256((GOLDEN / name).read_bytes()).hexdigest() == LIST[name]
