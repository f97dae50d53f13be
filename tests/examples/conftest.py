"""The example's own modules can be imported without the package wgpu; only an adapter needs it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples/jackfield-wgpu/src"))
