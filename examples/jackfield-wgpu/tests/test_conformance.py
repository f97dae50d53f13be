"""Level silver of the conformance kit on the adapter that is here, and what the wheel says of itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jackfield as jf
import pytest

ROOT = Path(__file__).parents[1]


def device() -> str:
    for info in jf.devices():
        if info.kind == "wgpu":
            return info.name
    pytest.skip("no adapter; on Debian: apt-get install mesa-vulkan-drivers")


def test_level_silver(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = ["conform", device(), "--level", "silver", "--report", str(report), "--xfail", str(ROOT / "xfail.toml")]
    done = subprocess.run([sys.executable, "-m", "jackfield", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(report.read_text())["level"]["clean"]


def test_claims_are_what_the_kernels_take() -> None:
    """A kernel that gets lost is a changed line. Written anew by `python -m jackfield_conformance wgpu`."""
    done = subprocess.run(
        [sys.executable, "-m", "jackfield_conformance", "wgpu"], capture_output=True, text=True, check=True
    )
    assert done.stdout == (ROOT / "claims.txt").read_text()
