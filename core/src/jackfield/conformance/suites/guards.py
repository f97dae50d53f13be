"""Suite `guards`: nothing outside the result is written, and nothing outside the operands is read."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from jackfield.conformance.cases import Example, examples
from jackfield.conformance.check import compare, expected
from jackfield.conformance.derived import derived
from jackfield.conformance.direct import GUARD, NAN_GUARD, run
from jackfield.conformance.trials import Subject, Trial
from jackfield.op import OPS

from .claims import RUNNING

__all__ = ["trials"]

LAYOUTS = ("dense", "rows", "sliced", "inplace", "constant")


def trials(seed: int) -> Iterator[Trial]:
    for name in RUNNING:
        seen = set()
        for example in examples(OPS[name], seed):
            key = example.layout, tuple(s and s.dtype for s in example.specs)
            if example.layout in LAYOUTS and key not in seen and example.result.size > 1:
                seen.add(key)
                yield Trial(f"guards/{example.id}", partial(keeps_to_itself, example))
        for made in derived(OPS[name], seed):
            if not made.what:
                yield Trial(f"guards/{made.id}", partial(keeps_to_itself, made.example))


def keeps_to_itself(example: Example, subject: Subject) -> list[str]:
    """Run between harmless bytes and between NaN: both stay as they are, and the result is the same.

    A result that takes its operand's place must also be right: what it overwrites may still be needed.
    """
    between = {
        what: run(example, subject.backend, subject.device, guard)
        for what, guard in (("small numbers", GUARD), ("NaN", NAN_GUARD))
    }
    found = [f"between {what}: {outcome.damage}" for what, outcome in between.items() if outcome.damage]
    a, b = (outcome.result for outcome in between.values())
    if a.tobytes() != b.tobytes():
        found.append("what lies outside the operands changes the result: it is read")
    if example.layout == "inplace" and (text := compare(example, a, expected(example)[0])):
        found.append(f"over its operand: {text}")
    return found
