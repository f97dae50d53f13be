"""Suite `views`: operands and targets that lie strided, in every dtype and rank; all bytes between them are NaN."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import partial

from jackfield.conformance.cases import Example, Layout, examples, relaid
from jackfield.op import OPS
from jackfield_conformance.direct import NAN_GUARD
from jackfield_conformance.trials import Subject, Trial, Verdict
from jackfield_conformance.verdicts import judged

from .claims import RUNNING

__all__ = ["trials"]

LAYOUTS: tuple[Layout, ...] = ("rows", "sliced", "transposed", "broadcast", "pitched", "swapped", "stepped", "windows")


def trials(seed: int) -> Iterator[Trial]:
    for name in RUNNING:
        for plain in _few(name, seed):
            for layout in LAYOUTS:
                changed = relaid(plain, layout)
                if changed is not None:
                    yield Trial(f"views/{changed.id}", partial(_judged, changed))


def _few(name: str, seed: int) -> Iterator[Example]:
    """A dense example for each rank of the first operand and size of its elements, and for each choice of dtypes."""
    seen: set[Hashable] = set()
    usual = OPS[name].declared.accepts
    for example in examples(OPS[name], seed):
        if not example.views:  # without operands nothing lies anywhere
            continue
        spec = next(iter(example.views.values())).spec
        shapes = spec.rank, spec.dtype.block_nbytes, len(example.views)
        dtypes = frozenset((n, v.spec.dtype) for n, v in example.views.items() if v.spec.dtype is not usual[n][0])
        if example.layout == "dense" and not {shapes, dtypes} <= seen and example.result.size > 1:
            seen |= {shapes, dtypes}
            yield example


def _judged(example: Example, subject: Subject) -> Verdict:
    return judged(example, subject.backend, subject.device, NAN_GUARD)
