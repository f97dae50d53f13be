"""Suite `coverage`: the core op list, on f32 and on f16. A refusal, honest as it is, fails here."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from jackfield.backend import Reason
from jackfield.conformance.cases import Example, examples
from jackfield.dtypes import DType, f16, f32
from jackfield.graph import Attr
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

    All: those that accept it. Where an attribute says what the result is of, a case with such a result is taken. And
    each form that attributes give the op, as far as cases in the dtype have it, is in a case that is taken.
    """
    dense = [example for example in examples(op) if example.layout == "dense" and example.result.size]
    tried = [(example, found) for example in dense if (found := _tried(example, dtype))]
    asked = dict.fromkeys([*_parts(op, dtype), *(form for example, _ in tried for form in _forms(example))])
    missing: dict[str, Reason | str] = dict.fromkeys(asked, f"{op.name}: no declared case has it")
    for example, parts in tried:
        found = missing.keys() & {*parts, *_forms(example)}
        if not found:
            continue
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


def _forms(example: Example) -> list[str]:
    """What this example's attributes make of the op, in words, each apart: a kernel may refuse one and take the rest.

    Words, truths and None are forms by themselves, of other attributes all values but the default are one form. A value
    that is P2 in an op that is not is none; nor is `dtype`, which asks for results.
    """
    op = example.op
    return [
        f"{name} is {value!r}" if _is_choice(value) else f"{name} is not {op.defaults[name]!r}"
        for name, value in example.attrs.items()
        if name != "dtype"
        and value not in op.declared.rare.get(name, ())
        and (_is_choice(value) or (name in op.defaults and value != op.defaults[name]))
    ]


def _is_choice(value: Attr) -> bool:
    return value is None or isinstance(value, (str, bool))
