"""An example run on a device, and all that is wrong with what came out."""

from __future__ import annotations

from jackfield.backend import Backend, Device
from jackfield.conformance.cases import Example
from jackfield.conformance.check import compare, faults_agree, max_ulp, oracle

from .direct import GUARD, Outcome, run
from .trials import Verdict

__all__ = ["judged", "mistakes", "verdict"]


def mistakes(example: Example, backend: Backend, device: Device) -> list[str]:
    """Everything that is wrong with one example on one device, in words. Raises: Refused."""
    return [f"{example}: {text}" for text in judged(example, backend, device).mistakes]


def judged(example: Example, backend: Backend, device: Device, guard: int = GUARD) -> Verdict:
    """Run one example and compare it with the oracle. guard: as `run`. Raises: Refused."""
    return verdict(example, run(example, backend, device, guard))


def verdict(example: Example, outcome: Outcome) -> Verdict:
    """What is wrong with an outcome: numbers, faults in data, and bytes that were nobody's."""
    (want, *further), faults = oracle(example)
    names = [example.op.operands[i] for i in example.op.targets[1:]]
    found = (
        compare(example, outcome.result, want),
        *(
            f"{name}: {text}"
            for name, got, new in zip(names, outcome.changed, further, strict=True)
            if (text := compare(example, got, new))
        ),
        # no plan runs a step for an empty result: what a device finds in its operands is neither asked nor forbidden
        faults_agree(example.op, faults, outcome.fault) if want.size else "",
        outcome.damage,
    )
    return Verdict(tuple(text for text in found if text), max_ulp(outcome.result, want))
