"""The conformance kit: every declared case drawn, run on a device, and compared with the oracle."""

from __future__ import annotations

from .cases import Example, examples, made, wrong_uses
from .check import compare, expected, faults_agree, mistakes
from .claims import claims
from .direct import Outcome, Refused, run

__all__ = [
    "Example",
    "Outcome",
    "Refused",
    "claims",
    "compare",
    "examples",
    "expected",
    "faults_agree",
    "made",
    "mistakes",
    "run",
    "wrong_uses",
]
