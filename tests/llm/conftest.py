"""What several tests of the language models share: the default model's metadata and tiny models."""

from __future__ import annotations

import families
import pytest

import jackfield as jf
from jackfield_llm import model
from jackfield_llm.config import read_config


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


@pytest.fixture
def opened(family_path, monkeypatch):
    """opened(name): metadata and tensors of a file as dicts; load() takes what the test left in them."""

    def open_(name):
        file = jf.gguf.open(family_path(name))
        changed = families.Changed(dict(file.metadata), dict(file.tensors))
        monkeypatch.setattr(model, "_opened", lambda _path: changed)
        return changed

    return open_


class Metadata(dict):
    """By the name of a tiny model, read when it is asked for."""

    def __init__(self, path):
        self.path = path

    def __missing__(self, name):
        self[name] = dict(jf.gguf.open(self.path(name)).metadata)
        return self[name]


@pytest.fixture(scope="session")
def metadata(family_path):
    """metadata[name]: of a tiny model's file; to be left as it is."""
    return Metadata(family_path)


@pytest.fixture
def config(metadata):
    """config(name, key=value, ...): what is read of changed metadata; dots in keys are written as __, None takes a key
    away.
    """

    def read(name, **keys):
        architecture = metadata[name]["general.architecture"]
        found = metadata[name] | {f"{architecture}.{key.replace('__', '.')}": value for key, value in keys.items()}
        return read_config({key: value for key, value in found.items() if value is not None})

    return read
