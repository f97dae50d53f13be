"""The conformance kit: declared cases run on a device, and compared with what `jackfield.conformance` says is right."""

from __future__ import annotations

from .direct import Outcome, Refused, run
from .verdicts import mistakes

__all__ = ["Outcome", "Refused", "mistakes", "run"]
