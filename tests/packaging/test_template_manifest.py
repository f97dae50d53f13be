"""The manifest of both templates lies where `Distribution.read_text` finds it, also in an editable install."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import presence
import pytest
from click.testing import CliRunner
from environments import Environment

from jackfield.cli.app import app

READ = """
import json
from importlib.metadata import distribution
import jackfield as jf
dist = distribution("jackfield-acme")
texts = [dist.read_text(name) for name in ("backend.json", "extra_metadata/backend.json")]
claims = [dist.read_text(name) for name in ("claims.txt", "extra_metadata/claims.txt")]
(status,) = (s for s in jf.status() if s.name == "acme")
print(json.dumps([[t for t in texts if t], any(claims), status.state, status.error, list(status.notes)]))
"""


@pytest.mark.parametrize("kind", ["pure", "native"])
def test_an_editable_install_shows_the_manifest(kind, tmp_path):
    """That their wheels do is part of test_new_backend.py, which builds them."""
    uv = shutil.which("uv")
    if uv is None:
        presence.absent("uv", "uv is not installed")
    source = tmp_path / "acme"
    done = CliRunner().invoke(
        app, ["new-backend", "acme", "--into", str(source), *(["--native"] if kind == "native" else [])]
    )
    assert done.exit_code == 0, done.output
    environment = Environment(tmp_path)
    words = [uv, "pip", "install", "-q", "--no-deps", "--python", environment.python]
    quick = {**os.environ, "SKBUILD_CMAKE_BUILD_TYPE": "Debug"}
    subprocess.run([*words, "-e", source], env=quick, check=True, capture_output=True)
    code, out, err = environment.run(READ)
    assert code == 0, err
    texts, claims, state, error, notes = json.loads(out)
    assert [json.loads(text) for text in texts] == [json.loads((source / "backend.json").read_text())]
    assert claims
    assert (state, error) == ("pending", ""), "nothing of it has run yet"
    assert notes == ["editable install"]
