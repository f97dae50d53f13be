"""The Python in README and docs runs as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from presence import absent

import jackfield as jf
from jackfield_llm import SourceError, sources

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(path: Path) -> list[str]:
    return BLOCK.findall(path.read_text("utf-8"))


PAGES = [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if blocks(path)]


def put_model(folder: Path) -> None:
    """The default model under the name the pages use."""
    try:
        (folder / "model.gguf").symlink_to(sources.default_model(offline=True))
    except SourceError as e:
        absent("model", str(e))


def test_there_are_pages_with_python():
    assert ROOT / "README.md" in PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_python_of_a_page_runs(page, tmp_path):
    """All blocks of a page one after the other, in a process of its own, warnings being errors."""
    program = "\n".join(blocks(page))
    if '"cpu' in program and not any(device.name.startswith("cpu") for device in jf.devices()):
        absent("cpu", "no cpu device here")
    if "model.gguf" in program:
        put_model(tmp_path)
    script = tmp_path / "page.py"
    script.write_text(program, "utf-8")
    command = [sys.executable, "-W", "error", script.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
