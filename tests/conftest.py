"""Settings every test shares: hypothesis is repeatable and knows no deadline."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
settings.register_profile("random", deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
