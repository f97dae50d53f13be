"""What every test shares: hypothesis is repeatable and knows no deadline; the default model, where it is there."""

from __future__ import annotations

import os

import presence
import pytest
from hypothesis import HealthCheck, settings

os.environ.pop("PYTEST_ADDOPTS", None)  # how this run is made is no business of those that tests start
settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
settings.register_profile("random", deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


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
