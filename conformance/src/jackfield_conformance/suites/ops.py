"""Suite `ops`: every declared case, in every dtype and layout and without its optional operands; then derived ones."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from jackfield import ops
from jackfield.conformance.cases import Example, examples
from jackfield.op import OPS
from jackfield_conformance.derived import derived
from jackfield_conformance.direct import refused, step_of
from jackfield_conformance.trials import Subject, Trial, Verdict
from jackfield_conformance.verdicts import judged

__all__ = ["trials"]


def trials(seed: int) -> Iterator[Trial]:
    """Raised index errors, damage outside the result and unwritten elements are judged as well as the numbers."""
    yield Trial("ops/any/claimed", any_claimed)
    for name in ops.__all__:
        if OPS[name].is_view:
            continue
        named: dict[str, Example] = {}  # a case without an optional operand may be another case
        for example in examples(OPS[name], seed):
            named.setdefault(example.id, example)
        for made in derived(OPS[name], seed):
            named.setdefault(made.id, made.example)
        yield from (Trial(f"ops/{what}", partial(_judged, example)) for what, example in named.items())


def _judged(example: Example, subject: Subject) -> Verdict:
    return judged(example, subject.backend, subject.device)


def any_claimed(subject: Subject) -> list[str]:
    """A backend that refuses everything is not right, it is empty."""
    for name in ops.__all__:
        if name not in subject.backend.kernels() or OPS[name].is_view:
            continue
        for example in examples(OPS[name]):
            if refused(step_of(example), subject.backend, subject.device) is None:
                return []
    return ["no case of any op is taken: a backend needs at least one kernel"]
