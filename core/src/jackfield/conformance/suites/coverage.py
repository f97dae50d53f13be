"""Suite `coverage`: the core op list, on f32 and on a 16-bit float. A refusal, honest as it is, fails here."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from jackfield.conformance.cases import examples
from jackfield.conformance.direct import refused, step_of
from jackfield.conformance.trials import Subject, Trial
from jackfield.dtypes import DType, bf16, f16, f32
from jackfield.op import OPS

from .claims import RUNNING

__all__ = ["trials"]

KINDS: dict[str, tuple[DType, ...]] = {"f32": (f32,), "16-bit": (f16, bf16)}


def trials(seed: int) -> Iterator[Trial]:
    del seed
    for name in RUNNING:
        if OPS[name].priority == "P2":
            continue
        for kind, dtypes in KINDS.items():
            if _floats(name) & set(dtypes):
                yield Trial(f"coverage/{name}/{kind}", partial(is_claimed, name, dtypes))
        if not _floats(name):
            yield Trial(f"coverage/{name}/any", partial(is_claimed, name, ()))


def _floats(name: str) -> set[DType]:
    """The floats that some operand of the op takes."""
    return {d for dtypes in OPS[name].declared.accepts.values() for d in dtypes if d in (f32, f16, bf16)}


def is_claimed(name: str, dtypes: tuple[DType, ...], subject: Subject) -> list[str]:
    """One dense case with an operand of these dtypes is taken."""
    reason: object = f"no kernel for {name}"
    for example in examples(OPS[name]):
        fits = not dtypes or any(s is not None and s.dtype in dtypes for s in example.specs)
        if fits and example.layout == "dense" and example.result.size:
            reason = refused(step_of(example), subject.backend, subject.device)
            if reason is None:
                return []
    return [f"refused: {reason}"]
