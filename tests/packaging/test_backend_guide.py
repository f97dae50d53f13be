"""docs/adding-a-backend.md as a stranger reads it: what it shows is a wheel that keeps the contract."""

from __future__ import annotations

import json
import os
import re
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
from jackfield_conformance.levels import suites_of
from jackfield_conformance.results import read_expected

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adding-a-backend.md").read_text("utf-8")


def blocks(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


TOY = blocks("python")[0]


def test_the_toy_is_whole_and_short():
    assert len(TOY.splitlines()) < 80
    assert {"class ToyProgram(Program)", "class ToyDevice(Device)", "class ToyBackend(Backend)"} <= set(
        re.findall(r"class \w+\(\w+\)", TOY)
    )


@pytest.fixture
def uv():
    program = shutil.which("uv")
    if program is None:
        presence.absent("uv", "uv is not installed")
    return program


def test_the_files_of_the_page_are_a_wheel_that_keeps_the_contract(uv, tmp_path):
    """The toy, the hook, pyproject.toml, backend.json and a licence, as they stand there, and nothing else."""
    package = tmp_path / "toy" / "src" / "jackfield_toy"
    package.mkdir(parents=True)
    (hook,) = [block for block in blocks("python") if "@hookimpl" in block]
    (package / "__init__.py").write_text(f"{TOY}\n{hook}", "utf-8")
    for name, kind in (("pyproject.toml", "toml"), ("backend.json", "json")):
        (text,) = blocks(kind)
        (tmp_path / "toy" / name).write_text(text, "utf-8")
    (tmp_path / "toy" / "LICENSE").write_text("MIT\n", "utf-8")
    build = [uv, "build", "-q", "--wheel", "--python", sys.executable, "--out-dir", tmp_path / "dist", tmp_path / "toy"]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    environment = Environment(tmp_path)
    environment.install(*(tmp_path / "dist").glob("*.whl"))
    suites = [word for suite in suites_of("bronze") for word in ("--suite", suite)]
    run = [environment.python, "-m", "jackfield", "conform", "toy:0", "--json", "--sample", "2", *suites]
    settings = {**os.environ, "JACKFIELD_CACHE": str(environment.cache)}
    done = subprocess.run(run, env=settings, capture_output=True, text=True, check=False)
    cases = json.loads(done.stdout)["cases"]
    assert [case for case in cases if case["result"] not in ("passed", "unsupported")] == []
    passed = {case["id"].split("/")[0] for case in cases if case["result"] == "passed"}
    assert passed == set(suites_of("bronze"))


def test_the_example_of_a_known_failure_is_one(tmp_path):
    """What a new repository shows in a comment is taken as it stands there."""
    lines = filled("acme", "pure")["xfail.toml"].splitlines()
    example = [line.removeprefix("# ") for line in lines if line.startswith("# [[") or " = " in line]
    (tmp_path / "xfail.toml").write_text("\n".join(example), "utf-8")
    (expected,) = read_expected(tmp_path / "xfail.toml")
    assert expected.case.startswith("ops/")


def commands():
    """Command lines of the page, without what stands behind them."""
    lines = [line.partition("  #")[0] for block in blocks("sh") for line in block.splitlines()]
    lines += re.findall(r"`(jackfield [a-z][^`]*)`", PAGE)
    return [line.split()[1:] for line in lines if line.startswith("jackfield ")]


def test_every_command_of_the_page_exists_with_its_options():
    found = commands()
    assert {words[0] for words in found} >= {"new-backend", "devices", "why", "conform", "doctor"}
    for name, *rest in found:
        done = CliRunner().invoke(app, [name, "--help"])
        assert done.exit_code == 0, name
        for option in (word for word in rest if word.startswith("--")):
            assert option in done.output, f"{name} {option}"
