"""These tests are about the CPU plugin itself: without it they skip, or fail where JACKFIELD_REQUIRE names cpu."""

from __future__ import annotations

import importlib.util

import pytest
from presence import is_required

if importlib.util.find_spec("jackfield_cpu") is None:
    if is_required("cpu"):
        pytest.exit("cpu is required, but jackfield-cpu is not installed", returncode=1)
    collect_ignore_glob = ["*.py"]
