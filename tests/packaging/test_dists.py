"""What every dist of the tree must carry, read from its sources; wheels are built and tried in .ci/full."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DISTS = {
    "core": "jackfield",
    "conformance": "jackfield_conformance",
    "plugins/cpu": "jackfield_cpu",
    "llm": "jackfield_llm",
}


def project(folder):
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("folder", DISTS)
def test_licence_readme_and_types_are_in_every_dist(folder):
    assert (ROOT / folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert b"Apache License" in (ROOT / "LICENSE").read_bytes()
    data = project(folder)
    assert data["license"] == "Apache-2.0" and data["license-files"] == ["LICENSE"]
    assert (ROOT / folder / data["readme"]).stat().st_size > 100
    assert (ROOT / folder / "src" / DISTS[folder] / "py.typed").exists()
    assert data["requires-python"] == ">=3.11"


@pytest.mark.parametrize("folder", [f for f in DISTS if f not in ("core", "conformance")])
def test_a_dist_bounds_the_core_and_never_pins_it(folder):
    (core,) = [d for d in project(folder)["dependencies"] if d.startswith("jackfield")]
    assert ">=" in core and "==" not in core


def test_the_kit_and_the_core_are_one_release():
    """It looks into the core, and a report names one version of both."""
    kit, core = project("conformance"), project("core")
    assert kit["version"] == core["version"]
    assert f"jackfield=={core['version']}" in kit["dependencies"]


def test_the_kit_needs_no_distribution_that_the_core_does_not():
    """K1 of the kit: no pytest; the extra of the core brings it for those who want it."""
    asked = set(project("conformance")["dependencies"])
    assert {need for need in asked if not need.startswith("jackfield")} <= set(project("core")["dependencies"])


def test_the_core_is_light_and_names_no_plugin_but_in_extras():
    allowed = {"numpy", "ml_dtypes", "pluggy", "importlib-metadata", "click", "rich", "platformdirs", "filelock"}
    names = {d.split(">")[0].split("=")[0] for d in project("core")["dependencies"]}
    assert names <= allowed


def test_the_plugin_has_a_manifest_that_names_its_claims():
    (backend,) = json.loads((ROOT / "plugins/cpu/backend.json").read_text())["backends"]
    assert backend["name"] == "cpu"
    assert (ROOT / "plugins/cpu" / backend["claims"]).stat().st_size > 0


def test_changed_sources_are_a_reason_to_build_the_plugin_again_and_running_it_is_none():
    """uv's cache keys name sources by their endings: `**/*` would match the bytecode that an import writes. But a
    source that is not named is a reason without effect.
    """
    tool = tomllib.loads((ROOT / "plugins/cpu/pyproject.toml").read_text())["tool"]
    keys = [key["file"] for key in tool["uv"]["cache-keys"]]
    assert [key for key in keys if key.endswith("*")] == []
    for pattern in keys:
        assert list((ROOT / "plugins/cpu").glob(pattern)) or pattern.startswith("../"), pattern
    sources = [f for ending in ("cpp", "h") for f in (ROOT / "plugins/cpu").glob(f"*/*.{ending}")]
    sources += (ROOT / "plugins/common").glob("*/*.h")
    assert [f for f in sources if not any(f.match(pattern.removeprefix("../")) for pattern in keys)] == []


def test_constraints_are_said_the_same_for_pip_and_for_uv():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]
    listed = (ROOT / "constraints.txt").read_text().split()
    assert settings["constraint-dependencies"] == listed
    assert all("==" in line and "/" not in line for line in listed)


def test_every_variable_of_the_tree_is_in_the_readme():
    """Each JACKFIELD_* name that code reads stands in README's table."""
    table = set(re.findall(r"`(JACKFIELD_\w+)`", (ROOT / "README.md").read_text()))
    files = [
        f
        for folder in ("core/src", "conformance/src", "plugins", "llm/src", "bench")
        for f in (ROOT / folder).rglob("*")
    ]
    files += [ROOT / "tests/conftest.py", ROOT / "tests/presence.py"]
    texts = [f.read_text() for f in files if f.suffix in {".py", ".json", ".cpp"} and "build" not in f.parts]
    read = {name for text in texts for name in re.findall(r"\"(JACKFIELD_[A-Z]\w+)\"", text)}
    assert {"JACKFIELD_SIM", "JACKFIELD_CPU_ISA", "JACKFIELD_REQUIRE", "JACKFIELD_PEER_DIR"} <= read
    assert read - table == set()


def test_no_lock_file_and_no_build_is_committed():
    ignored = (ROOT / ".gitignore").read_text().split()
    assert {"uv.lock", "*.so", "*.whl", "*.gguf"} <= set(ignored)
