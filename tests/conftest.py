"""What every test shares: hypothesis is repeatable and knows no deadline; the default model, where it is there."""

from __future__ import annotations

import atexit
import gc
import os
import tempfile
from collections import defaultdict
from pathlib import Path

import presence
import pytest
import thorough
from hypothesis import HealthCheck, settings

os.environ.pop("PYTEST_ADDOPTS", None)  # how this run is made is no business of those that tests start


def _own_cache():
    """A folder for what is known of backends, for this run and all it starts; fetched models stay where they are."""
    import platformdirs

    if os.environ.get("JACKFIELD_CACHE"):
        return  # chosen by who runs the tests
    models = platformdirs.user_cache_path("jackfield") / "models"
    models.mkdir(parents=True, exist_ok=True)
    folder = tempfile.TemporaryDirectory(prefix="jackfield-tests-")
    atexit.register(folder.cleanup)
    (Path(folder.name) / "models").symlink_to(models)
    os.environ["JACKFIELD_CACHE"] = folder.name


_own_cache()  # before any module of the tests is imported
settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
settings.register_profile("random", deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_collection_modifyitems(config, items):
    """Of modules that say so, a part of the tests; what the command line names by `::` is tried whole."""
    if any("::" in word for word in config.args):
        return
    names = defaultdict(list)
    for item in items:
        names[item.module].append(item.name)
    chosen = {module: thorough.tried(found, getattr(module, "PART", 1)) for module, found in names.items()}
    left = [item for item in items if item.name not in chosen[item.module]]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item.name in chosen[item.module]]


def pytest_collection_finish():
    """Thousands of collected tests are not the garbage that some tests look for; no search need pass through them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def absent():
    """What to call where something a test needs is not there: absent(what, reason)."""
    return presence.absent


@pytest.fixture(scope="session")
def default_model():
    """Path of the default model."""
    from jackfield_llm import sources
    from jackfield_llm.errors import SourceError

    try:
        return sources.default_model(offline=True)
    except SourceError as e:
        presence.absent("model", str(e))
