"""The scripts under bench/ are modules here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Path:
    """A model file that takes no time."""
    import models
    from bench_runs import TINY

    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    models.write_random(TINY, "Q8_0", path)
    return path
