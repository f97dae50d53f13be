"""What several tests of the language models share: the default model's metadata and tiny models."""

from __future__ import annotations

import families
import pytest

import jackfield as jf


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
