"""The Python in README and docs runs as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from itertools import takewhile
from pathlib import Path

import pytest
from click.testing import CliRunner
from presence import absent

import jackfield as jf
from jackfield.cli.app import app
from jackfield.manifest import read as read_manifest
from jackfield_llm import SourceError, sources
from jackfield_llm.config import known_architectures

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(path: Path) -> list[str]:
    return BLOCK.findall(path.read_text("utf-8"))


MODEL = "model.gguf"
PAGES = [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if blocks(path)]


def put_model(folder: Path) -> str:
    """The default model under the name the pages use; why it is not there, or ""."""
    try:
        (folder / MODEL).symlink_to(sources.default_model(offline=True))
    except SourceError as e:
        return str(e)
    return ""


def without_model(program: list[str]) -> list[str]:
    """The blocks before the first that opens the model."""
    return list(takewhile(lambda block: MODEL not in block, program))


def test_there_are_pages_with_python():
    assert {ROOT / "README.md", *(ROOT / "docs").glob("*.md")} - set(PAGES) == {
        ROOT / "docs" / "walk.md",
        ROOT / "docs" / "ops.md",
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_python_of_a_page_runs(page, tmp_path):
    """All blocks of a page one after the other, in a process of its own, warnings being errors."""
    program = blocks(page)
    if any('"cpu' in block for block in program) and not any(d.name.startswith("cpu") for d in jf.devices()):
        absent("cpu", "no cpu device here")
    lacking = put_model(tmp_path) if any(MODEL in block for block in program) else ""
    run(without_model(program) if lacking else program, tmp_path)
    if lacking:
        absent("model", lacking)


def test_the_readme_lists_the_dtypes_and_architectures_there_are():
    text = (ROOT / "README.md").read_text("utf-8")
    (said,) = re.findall(
        r"^Architectures: (.*?)\. Block dtypes of weights: (.*?), beside", text, re.DOTALL | re.MULTILINE
    )
    dtypes = [
        name
        for name in jf.__all__
        if isinstance(d := getattr(jf, name), jf.DType) and d.is_block and not d.is_activation
    ]
    assert sorted(said[0].split(", ")) == sorted(known_architectures())
    assert sorted(re.split(r",\s", said[1])) == sorted(dtypes)


def test_no_page_shows_a_selection_that_cannot_be_had():
    """Names of later wheels may stand in decisions, not in examples: what a reader types must work."""
    texts = [path.read_text("utf-8") for path in PAGES] + [command_help(name) for name in app.list_commands(None)]
    assert [found for text in texts for found in re.findall(r"\b(?:cuda|metal|hexagon)(?::|\+)", text)] == []


def command_help(name: str) -> str:
    return CliRunner().invoke(app, [name, "--help"]).stdout


def test_the_files_of_a_wheel_are_what_the_core_reads():
    page = (ROOT / "docs" / "adding-a-backend.md").read_text("utf-8")
    (manifest,) = re.findall(r"^```json\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (project,) = re.findall(r"^```toml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    entries = tomllib.loads(project)["project"]["entry-points"]["jackfield.backends"]
    read = read_manifest(manifest)
    assert list(read) == list(entries) == ["toy"]
    assert read["toy"].notes == ()


def run(program: list[str], tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text("\n".join(program), "utf-8")
    command = [sys.executable, "-W", "error", script.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
