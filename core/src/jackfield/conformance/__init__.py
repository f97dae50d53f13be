"""The conformance kit: every declared case drawn, run on a device, and compared with the oracle."""

from __future__ import annotations

from .cases import Example, examples, wrong_uses
from .check import compare, faults_agree
from .claims import claims
from .direct import Outcome, Refused, run

__all__ = ["Example", "Outcome", "Refused", "claims", "compare", "examples", "faults_agree", "run", "wrong_uses"]
