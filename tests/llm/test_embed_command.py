"""`jackfield embed`, in this process."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import families
import numpy as np
import pytest
from click.testing import CliRunner

import jackfield_llm
from jackfield_llm import ContextOverflow
from jackfield_llm.embed_command import embed

import embedding_files  # isort: skip # beside family_files, which `families` found

assert families.FOLDER


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    found = tmp_path_factory.mktemp("embed") / "bert.gguf"
    embedding_files.write_any("bert", found)
    return found


@pytest.fixture(scope="module")
def vectors(path):
    """Of "the sea" and "a tree"."""
    with jackfield_llm.load(path, "reference") as model:
        return model.embed(["the sea", "a tree"])


def run(path, *arguments, text=None):
    return CliRunner().invoke(embed, ["-m", str(path), "-d", "reference", *arguments], input=text)


def numbers(text):
    return np.array([line.split() for line in text.splitlines()], np.float32)


def test_one_line_a_text(path, vectors):
    result = run(path, "the sea", "a tree")
    assert (result.exit_code, result.stderr) == (0, "")
    assert np.allclose(numbers(result.stdout), vectors, atol=1e-7)


def test_texts_from_standard_input(path, vectors):
    assert np.allclose(numbers(run(path, "-", text="the sea\na tree\n").stdout), vectors, atol=1e-7)
    assert run(path, "-", text="").stdout == ""
    both = run(path, "-", "a tree", text="never read")
    assert len(numbers(both.stdout)) == 2


def test_options(path):
    with jackfield_llm.load(path, "reference") as model:
        want = model.embed(["the sea"], pooling="mean", normalize=False)
    assert np.allclose(numbers(run(path, "--raw", "--pooling", "mean", "the sea").stdout), want, rtol=1e-6)
    assert run(path, "--pooling", "rank", "the sea").exit_code == 2
    assert run(path).exit_code == 2
    assert isinstance(run(path, "-c", "4", "the sea").exception, ContextOverflow)


def test_json(path, vectors):
    document = json.loads(run(path, "--json", "the sea", "a tree").stdout)
    assert np.allclose(document.pop("embeddings"), vectors, atol=1e-7)
    assert document == {
        "schema": "jackfield.embed/1",
        "device": "reference:0",
        "architecture": "bert",
        "pooling": "cls",
        "normalized": True,
        "width": 96,
    }


def test_it_is_a_command_of_this_package():
    project = tomllib.loads((Path(__file__).parents[2] / "llm" / "pyproject.toml").read_text("utf-8"))
    assert project["project"]["entry-points"]["jackfield.commands"]["embed"] == "jackfield_llm.embed_command:embed"
