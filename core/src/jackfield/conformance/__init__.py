"""What right means: the declared cases drawn, what the oracle makes of them, and how near a device must come.

What runs them on a device and reports is a wheel of its own, jackfield-conformance.
"""

from __future__ import annotations

from .cases import Example, examples, made, wrong_uses
from .check import compare, expected, faults_agree
from .claims import claims

__all__ = [
    "Example",
    "claims",
    "compare",
    "examples",
    "expected",
    "faults_agree",
    "made",
    "wrong_uses",
]
