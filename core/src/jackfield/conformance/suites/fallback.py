"""Suite `fallback`: what the device refuses runs elsewhere, is told, and is an error where nothing else may."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from jackfield.backend import Step, refusal
from jackfield.conformance.build import simple_op
from jackfield.conformance.plans import chain
from jackfield.conformance.trials import Check, Refused, Subject, Trial, named
from jackfield.dtypes import f32
from jackfield.errors import GraphError, PlacementError
from jackfield.graph import Tensor
from jackfield.graph import input as graph_input
from jackfield.op import OPS
from jackfield.session import Session

__all__ = ["trials"]

SHAPE = (7, 33)


def trials(seed: int) -> Iterator[Trial]:
    checks: dict[str, Check] = {"mixed": mixed_is_right, "strict": strict_is_an_error, "told": told_in_the_report}
    yield from named("fallback", seed, checks)


def _graph(subject: Subject) -> tuple[Tensor, str]:
    """A step that the device takes, then one that it refuses; and which that is.

    Raises: Refused where it takes all that is tried.
    """
    simple_op(subject, SHAPE)
    y = chain(subject, graph_input("x", SHAPE, f32), 1)
    for name, op in OPS.items():
        try:
            made = op(y)
        except (GraphError, TypeError):  # it wants more than one operand, attributes, or another shape
            continue
        step = Step(made.op, tuple(None if o is None else o.spec for o in made.operands), made.spec, made.attrs)
        if op.is_view or made.spec.dtype is not f32 or step.op != name:
            continue
        kernels, target = subject.backend.kernels(), subject.device.target
        if refusal(step, kernels, target) is not None or subject.backend.why_not(step, target) is not None:
            return made, name
    raise Refused("it takes every step that is tried here", "other")


def mixed_is_right(seed: int, subject: Subject) -> list[str]:
    """With the reference beside it the plan is made, and its result is the reference's."""
    y, _ = _graph(subject)
    x = np.random.default_rng(seed).uniform(0.5, 1.5, SHAPE).astype(np.float32)
    with Session("reference") as session:
        want = session.compile(y)(x=x)
    with Session(f"{subject.device.name}+reference", policy="prefer") as session:
        got = session.compile(y)(x=x)
    if np.allclose(got, want, rtol=1e-3, atol=1e-4):
        return []
    return [f"beside the reference its result differs by {np.abs(got - want).max():g}"]


def strict_is_an_error(seed: int, subject: Subject) -> list[str]:
    """Alone under `strict` the refused step is named, with a reason."""
    del seed
    y, name = _graph(subject)
    with Session(subject.device.name, policy="strict") as session:
        try:
            session.compile(y)
        except PlacementError as e:
            return [] if name in str(e) else [f"the error does not name {name}: {e}"]
    return [f"{name} is refused, and `strict` compiles it"]


def told_in_the_report(seed: int, subject: Subject) -> list[str]:
    """The report says where the refused step went, and what the device said."""
    del seed
    y, name = _graph(subject)
    with Session(f"{subject.device.name}+reference", policy="prefer") as session:
        nodes = session.compile(y).explain().to_dict()["nodes"]
    at = [node for node in nodes if node["op"] == name]
    if not at or at[0]["device"] == subject.device.name:
        return [f"{name} is refused, and the report puts it on {subject.device.name}"]
    said = [c for c in at[0]["candidates"] if c["device"] == subject.device.name and not c["takes"]]
    return [] if said and said[0]["reason"] else [f"the report gives no reason for {name}"]
