"""These tests are about the CPU plugin itself: without it they skip, or fail where JACKFIELD_REQUIRE names cpu."""

from __future__ import annotations

import importlib.util

import pytest
from presence import is_required

if importlib.util.find_spec("jackfield_cpu") is None:
    if is_required("cpu"):
        pytest.exit("cpu is required, but jackfield-cpu is not installed", returncode=1)
    collect_ignore_glob = ["*.py"]
else:
    from jackfield_cpu import _native
    from jackfield_cpu.settings import read_settings

    @pytest.fixture(autouse=True)
    def bf16_products():
        """Every test begins with bf16 weights widened, whatever this CPU would choose, and may choose another way by
        calling this. Afterwards it is as the settings of this process say.
        """
        _native.set_bf16_products("widened")
        yield _native.set_bf16_products
        _native.set_bf16_products(read_settings().bf16)
