"""The JACKFIELD_* variables: known ones, mistyped ones, and README's table."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest

import jackfield as jf
from jackfield import registry as module
from jackfield.registry import Registry
from jackfield.variables import VARIABLES, setting, unknown

ROOT = Path(__file__).parents[2]


READ = re.compile(r"(?:environ(?:\.get\(|\[)|setting\(|getenv\()\"(JACKFIELD_\w+)\"")


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(module, "scan", lambda wishes, *, anew=False: ([], True))
    return Registry()


def warnings(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def test_a_mistyped_name_is_told_once(registry, monkeypatch, caplog):
    monkeypatch.setenv("JACKFIELD_DEVCE", "cpu")
    monkeypatch.setenv("JACKFIELD_WHATEVER_ELSE", "1")
    for _ in range(2):
        registry.status()
    registry.select("reference")
    assert warnings(caplog) == [
        "JACKFIELD_DEVCE is set, but nothing here reads it; did you mean JACKFIELD_DEVICE?",
        "JACKFIELD_WHATEVER_ELSE is set, but nothing here reads it",
    ]


def test_known_names_are_no_mistake(registry, monkeypatch, caplog):
    for name in VARIABLES:
        monkeypatch.setenv(name, "reference" if name == "JACKFIELD_DEVICE" else "")
    registry.status()
    assert warnings(caplog) == []


def test_names_of_manifests_are_known(monkeypatch, caplog):
    """Whatever plugins are installed: each name their manifests list is taken without a word."""
    manifests = [manifest for _, manifest in module.listed() if manifest is not None]
    for name in (name for manifest in manifests for name, _ in manifest.env):
        monkeypatch.setenv(name, "1")
    Registry().status()
    assert warnings(caplog) == []


def test_an_empty_value_counts_as_unset(monkeypatch):
    monkeypatch.setenv("JACKFIELD_DEVCE", "")
    monkeypatch.setenv("JACKFIELD_POLICY", "")
    assert list(unknown(())) == []
    assert setting("JACKFIELD_POLICY") is None


def test_variables_are_ignored_where_python_is_told_to(tmp_path):
    code = (
        f"import sys; sys.path[:0] = {[p for p in sys.path if p]!r}; import jackfield as jf, logging;"
        "logging.basicConfig(); print(jf.Session('reference').policy); jf.status()"
    )
    environment = {"JACKFIELD_POLICY": "strict", "JACKFIELD_DEVCE": "x"}
    seen = {}
    for flag in ("-I", "-E", "-s"):
        done = subprocess.run(
            [sys.executable, flag, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        seen[flag] = done.stdout.strip(), "JACKFIELD_DEVCE" in done.stderr
    assert seen == {"-I": ("prefer", False), "-E": ("prefer", False), "-s": ("strict", True)}


def test_the_table_of_readme_lists_them_all():
    table = set(re.findall(r"^\| (.*?) \|", (ROOT / "README.md").read_text(), re.MULTILINE))
    named = {name for cell in table for name in re.findall(r"`(JACKFIELD_\w+)`", cell)}
    plugins = {
        name
        for file in (ROOT / "plugins").glob("*/backend.json")
        for backend in json.loads(file.read_text())["backends"]
        for name in backend.get("env", {})
    }
    assert named == set(VARIABLES) | plugins


def test_every_variable_that_code_reads_is_known():
    folders = [*ROOT.glob("*/src"), *ROOT.glob("plugins/*/src"), ROOT / "tests", ROOT / "bench"]
    read = set()
    for file in (file for folder in folders for file in folder.rglob("*.py")):
        if file != Path(__file__):
            read |= set(READ.findall(file.read_text()))
    assert read
    plugins = [json.loads(f.read_text())["backends"] for f in (ROOT / "plugins").glob("*/backend.json")]
    assert read <= set(VARIABLES) | {name for backends in plugins for b in backends for name in b.get("env", {})}


def test_the_words_of_the_debug_variable_all_work(monkeypatch):
    x = jf.input("x", (2,))
    for word in ("replicas", "promise", "nam"):
        monkeypatch.setenv("JACKFIELD_CHECK", f"nan,{word}")
        text = f"JACKFIELD_CHECK names '{word}'; it is a list of memory, nan, promises"
        with pytest.raises(jf.errors.PlanError, match=text):
            jf.compile(jf.ops.add(x, x), "reference")
