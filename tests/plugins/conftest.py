"""A search path of its own for each test, with a fresh registry."""

from __future__ import annotations

import importlib
import sys

import pytest

from jackfield.registry import Registry


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder at the front of the search path; no variable of the user counts."""
    for name in ("JACKFIELD_DEVICE", "JACKFIELD_BACKENDS", "JACKFIELD_SIM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JACKFIELD_CACHE", "off")  # what is kept is tried in test_discovery_cache.py
    monkeypatch.setenv("JACKFIELD_PROBE", "never")  # test_probe.py has wheels and processes of its own
    place = tmp_path / "site"
    place.mkdir()
    monkeypatch.syspath_prepend(str(place))
    known = set(sys.modules)
    importlib.invalidate_caches()
    yield place
    for name in set(sys.modules) - known:
        if name.startswith("jackfield_"):
            del sys.modules[name]


@pytest.fixture
def registry(folder):
    return Registry()
