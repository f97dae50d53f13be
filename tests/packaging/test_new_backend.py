"""`jackfield new-backend`: what it writes builds, passes the kit as it stands, works beside cpu, leaves no trace."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import presence
import pytest
from click.testing import CliRunner
from environments import Environment

from jackfield.cli.app import app
from jackfield.cli.new_backend import filled

KINDS = ("pure", "native")
MIXED = """
import numpy as np, jackfield as jf
x = jf.input("x", (4, 8))
plan = jf.compile(jf.ops.softmax(jf.ops.relu(jf.ops.add(x, x))), device="acme+cpu", pins={"(add|relu).0": "acme:0"})
rows = np.linspace(-4, 4, 32, dtype=np.float32).reshape(4, 8)
want = np.exp(np.maximum(2 * rows, 0))
assert np.allclose(plan(x=rows), want / want.sum(-1, keepdims=True), rtol=1e-5)
print(*plan.devices)
"""
MANIFEST = """
import json
from importlib.metadata import distribution
texts = [distribution("jackfield-acme").read_text(name) for name in ("backend.json", "extra_metadata/backend.json")]
print(json.dumps([text for text in texts if text]))
"""


def made(folder, *words):
    done = CliRunner().invoke(app, ["new-backend", *words, "--into", str(folder)])
    assert done.exit_code == 0, done.output
    return folder


@pytest.fixture(scope="module")
def uv():
    program = shutil.which("uv")
    if program is None:
        presence.absent("uv", "uv is not installed")
    return program


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_repository_is_a_backend(kind, uv, tmp_path):
    presence.opens("cpu:0")
    source = made(tmp_path / "acme", "acme", *(["--native"] if kind == "native" else []))
    build = [uv, "build", "-q", "--wheel", "--out-dir", tmp_path / "dist", "--python", sys.executable, source]
    subprocess.run(build, check=True, capture_output=True, text=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    environment = Environment(tmp_path)
    before = set(environment.site.rglob("*"))
    environment.install(wheel)
    (listed,) = json.loads(environment.run(MANIFEST)[1])
    assert json.loads(listed) == json.loads((source / "backend.json").read_text())

    def jackfield(*words):
        settings = {**os.environ, "JACKFIELD_CACHE": str(environment.cache)}
        run = [environment.python, "-m", "jackfield", *words]
        return subprocess.run(run, env=settings, capture_output=True, text=True, check=False)

    report = tmp_path / "report.json"
    whole = ("--level", "bronze") if kind == "native" else ("--sample", "2")  # the kernels of both take the same cases
    done = jackfield("conform", "acme:0", *whole, "--report", report, "--xfail", source / "xfail.toml")
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(report.read_text())["suites"]
    assert counts["ops"]["passed"] > (50 if kind == "native" else 3)
    assert not any(row[bad] for row in counts.values() for bad in ("failed", "crashed", "hung"))
    code, out, err = environment.run(MIXED)
    assert (code, out.split()) == (0, ["acme:0", "cpu:0"]), err
    # Its first test is what was just done.
    own = [environment.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not every_case", "tests"]
    done = subprocess.run(own, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    subprocess.run([uv, "pip", "uninstall", "-q", "--python", environment.python, "jackfield-acme"], check=True)
    assert {path for path in set(environment.site.rglob("*")) - before if "__pycache__" not in str(path)} == set()
    assert "acme" not in jackfield("doctor").stdout


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["acme", "two_words", "x9"])
def test_what_is_written_is_clean(kind, name, tmp_path):
    """Its own style and types hold, whatever it is called; no word of the template is left."""
    folder = made(tmp_path / "new", name, *(["--native"] if kind == "native" else []))
    for tool in (("ruff", "check"), ("ruff", "format", "--check"), *([("mypy",)] if name == "two_words" else [])):
        done = subprocess.run([sys.executable, "-m", *tool], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
    for path, text in filled(name, kind).items():
        assert (folder / path).read_text() == text
        assert "NAME" not in path
        assert "$name" not in text
    (package,) = folder.glob(f"src/jackfield_{name}/__init__.py")
    assert len(package.read_text().split("\nclass ", 1)[1].splitlines()) < 80


@pytest.mark.parametrize("name", ["int", "std", "linux", "none"])
def test_a_word_of_the_language_is_a_name_too(name, tmp_path):
    """Keywords and names of C++ and Python, and what compilers for Linux take for a macro."""
    compiler = shutil.which("c++") or presence.absent("compiler", "no C++ compiler is installed")
    folder = made(tmp_path / "new", name, "--native")
    (tmp_path / "all.cpp").write_text(
        "".join(f'#include "{path}"\n' for path in sorted(folder.glob("kernels/*.h")))
        + f"using namespace jackfield_{name};\nint main() {{ return 0; }}\n"
    )
    assert f"using namespace jackfield_{name};" in (folder / "src/native.cpp").read_text()
    words = [compiler, "-std=gnu++17", "-fsyntax-only", "-Wall", "-Wno-unused-function", tmp_path / "all.cpp"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for path in folder.rglob("*.py"):
        compile(path.read_text(), path, "exec")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Acme", "lower-case"),
        ("a", "2 to 32"),
        ("9x", "lower-case"),
        ("sim", "device string"),
        ("gpu", "device string"),
    ],
)
def test_a_name_that_is_none(name, says, tmp_path):
    done = CliRunner().invoke(app, ["new-backend", name, "--into", str(tmp_path / "new")])
    assert (done.exit_code, says in done.output) == (2, True)
    assert not (tmp_path / "new").exists()


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "mine").write_text("x")
    done = CliRunner().invoke(app, ["new-backend", "acme", "--into", str(tmp_path)])
    assert done.exit_code == 1
    assert "not empty" in done.output
    assert [path.name for path in Path(tmp_path).iterdir()] == ["mine"]
