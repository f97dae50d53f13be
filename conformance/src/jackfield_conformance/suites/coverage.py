"""Suite `coverage`: the core op list, on f32 and on f16. A refusal, honest as it is, fails here."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from jackfield.backend import Reason
from jackfield.conformance.cases import Example, examples
from jackfield.dtypes import DType, f16, f32
from jackfield.op import OPS, Op
from jackfield_conformance.direct import refused, step_of
from jackfield_conformance.trials import Subject, Trial

from .claims import RUNNING

__all__ = ["trials"]

KINDS = (f32, f16)
RESULT = "the result"


def trials(seed: int) -> Iterator[Trial]:
    del seed
    for name in RUNNING:
        op = OPS[name]
        if op.priority == "P2":
            continue
        asked = [dtype for dtype in KINDS if _can_be(op, dtype)]
        for dtype in asked:
            yield Trial(f"coverage/{name}/{dtype.name}", partial(is_claimed, op, dtype))
        if not asked:
            yield Trial(f"coverage/{name}/any", partial(is_claimed, op, None))


def _can_be(op: Op, dtype: DType) -> bool:
    """Some operand takes the dtype, or an attribute can ask for it."""
    return "dtype" in op.attrs or any(dtype in accepted for accepted in op.declared.accepts.values())


def is_claimed(op: Op, dtype: DType | None, subject: Subject) -> list[str]:
    """Each operand, also each optional one, is in a dense case that is taken and whose operands all are of the dtype.

    All: those that accept it. Where an attribute says what the result is of, a case with such a result is taken.
    """
    missing: dict[str, Reason | str] = dict.fromkeys(_parts(op, dtype), f"{op.name}: no declared case has it")
    for example in examples(op):
        if not missing:
            break
        found = missing.keys() & _tried(example, dtype)
        if found and example.layout == "dense" and example.result.size:
            reason = refused(step_of(example), subject.backend, subject.device)
            for part in found:
                if reason is None:
                    del missing[part]
                else:
                    missing[part] = reason
    return [f"{part}: refused: {reason}" for part, reason in missing.items()]


def _parts(op: Op, dtype: DType | None) -> list[str]:
    """What must be tried in this dtype."""
    made = dtype is not None and "dtype" in op.attrs
    return [*op.operands, *([RESULT] if made or not op.operands else [])]


def _tried(example: Example, dtype: DType | None) -> set[str]:
    """The parts that this example tries in this dtype."""
    accepts = example.op.declared.accepts
    together = all(view.spec.dtype is dtype or dtype not in accepts[name] for name, view in example.views.items())
    parts = set(example.views) if together else set()
    if dtype is None or example.result.dtype is dtype:
        parts.add(RESULT)
    return parts
