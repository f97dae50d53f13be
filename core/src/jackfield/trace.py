"""Times of a call as a file that Chrome's trace viewer (chrome://tracing) and Perfetto open."""

from __future__ import annotations

import json
from pathlib import Path

from .errors import PlanError
from .plan import Plan

__all__ = ["save"]


def save(plan: Plan, path: str | Path) -> None:
    """Write the times of the plan's last call. Raises: PlanError when it was not called yet."""
    trace = plan.trace()
    if not trace["traceEvents"]:
        raise PlanError("trace: the plan was not called yet")
    Path(path).write_text(json.dumps(trace), encoding="utf-8")
