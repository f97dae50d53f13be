"""The report of a graph that is not compiled: every decision, and nothing allocated."""

from __future__ import annotations

from collections.abc import Sequence

from .graph import Tensor
from .report import Report, report_of
from .session import Output, PinList, Session

__all__ = ["explain"]


def explain(
    outputs: Output,
    device: str | None = None,
    *,
    policy: str | None = None,
    changes: Sequence[Tensor] = (),
    pins: PinList | None = None,
    max_copies: int | None = None,
) -> Report:
    """Where each step of these outputs would run, and why; arguments as of `compile`.

    Raises: what compile raises, except for want of memory.
    """
    with Session(device, policy=policy) as session:
        return report_of(session.draw(outputs, changes=changes, pins=pins, max_copies=max_copies))
