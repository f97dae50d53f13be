"""What several tests of the language models share: the default model's metadata, and what may not be absent."""

from __future__ import annotations

import os

import families
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


@pytest.fixture(scope="session")
def family_path(tmp_path_factory):
    """family_path(name): the tiny model's file, written once."""
    folder = tmp_path_factory.mktemp("families")

    def path(name: str):
        found = folder / f"{name}.gguf"
        return found if found.exists() else families.write(name, found)

    return path


@pytest.fixture(scope="session")
def chat_path(tmp_path_factory):
    """A tiny model's file with a chat template."""
    return families.write("llama", tmp_path_factory.mktemp("chat") / "chat.gguf", template=families.TEMPLATE)
