"""What several tests of the language models share: the default model's metadata, and what may not be absent."""

from __future__ import annotations

import os

import pytest

import jackfield as jf
from jackfield_llm import sources
from jackfield_llm.errors import SourceError


def skip_or_fail(what: str, reason: str) -> None:
    """Skips, or fails where `JACKFIELD_REQUIRE` holds `what`."""
    if what in os.environ.get("JACKFIELD_REQUIRE", "").replace(",", " ").split():
        pytest.fail(f"{what} is required: {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def absent():
    """What to call where something a test needs is not there: absent(what, reason)."""
    return skip_or_fail


@pytest.fixture(scope="session")
def default_model():
    """Path of the default model."""
    try:
        return sources.default_model(offline=True)
    except SourceError as e:
        skip_or_fail("model", str(e))


@pytest.fixture(scope="session")
def default_metadata(default_model):
    """Metadata of the default model."""
    return jf.gguf.open(default_model).metadata
