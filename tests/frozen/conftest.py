"""A core in which one name of the contract is another, for trials of what must then be red."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(Path(__file__).parents[1] / "plugins"))  # wheels.py, which builds wheels of fakes


@pytest.fixture(scope="session")
def renamed_core(tmp_path_factory):
    """A folder for PYTHONPATH: core and kit of the tree, in which `attrs` is called `settings_given` from end to end.

    They agree with each other: only who knows the old name, as plugins do, is left behind.
    """
    folder = tmp_path_factory.mktemp("renamed")
    for part in ("core", "conformance"):
        shutil.copytree(ROOT / part / "src", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for path in folder.rglob("*.py"):
        text = path.read_text("utf-8")
        path.write_text(re.sub(r"\battrs\b", "settings_given", text), "utf-8")
    return folder
