"""Suite `fallback`: what the device refuses runs elsewhere, is told, and is an error where nothing else may.

A device that refuses nothing of what is tried is made to refuse one op: what is asked is how it gets on with others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from jackfield.backend import Reason, Step, Target
from jackfield.dtypes import f32
from jackfield.errors import GraphError, PlacementError
from jackfield.graph import Tensor
from jackfield.graph import input as graph_input
from jackfield.op import OPS
from jackfield.session import Session
from jackfield_conformance.build import simple_op
from jackfield_conformance.direct import refused
from jackfield_conformance.plans import chain
from jackfield_conformance.trials import Check, Refused, Subject, Trial, named

__all__ = ["trials"]

SHAPE = (7, 33)


def trials(seed: int) -> Iterator[Trial]:
    checks: dict[str, Check] = {"mixed": mixed_is_right, "strict": strict_is_an_error, "told": told_in_the_report}
    yield from named("fallback", seed, checks)


@contextmanager
def _graph(subject: Subject) -> Iterator[tuple[Tensor, str, list[tuple[Tensor, str]]]]:
    """Steps that the device takes, one that it refuses, and one more that it takes; which is refused; and the pins that
    keep the others on the device, where a planner would leave so little work with the other.

    Raises: Refused where it takes none of the simple ops, or nothing else.
    """
    simple = simple_op(subject, SHAPE)
    y = chain(subject, graph_input("x", SHAPE, f32), 1)
    others = [(name, made) for name in OPS if name != simple and (made := _made(name, y)) is not None]
    refusing = [(name, made) for name, made in others if _refuses(made, subject)]
    if not others:
        raise Refused("no op but the first can be built on its result", "other")
    name, made = (refusing or others)[0]
    with _refusal_of("" if refusing else name, subject):
        last = chain(subject, made, 1)
        yield last, name, [(y, subject.device.name), (last, subject.device.name)]


def _made(name: str, y: Tensor) -> Tensor | None:
    """The op of this tensor, if that is f32 of its shape."""
    try:
        made = OPS[name](y)
    except (GraphError, TypeError):  # it wants more than one operand, attributes, or another shape
        return None
    return made if made.kind == "node" and made.op == name and made.spec == y.spec else None


def _refuses(made: Tensor, subject: Subject) -> bool:
    step = Step(made.op, tuple(None if o is None else o.spec for o in made.operands), made.spec, made.attrs)
    return refused(step, subject.backend, subject.device) is not None


def _other(subject: Subject) -> str:
    """Who takes over: the reference, and for that the simulated device."""
    return "sim" if subject.backend.name == "reference" else "reference"


@contextmanager
def _refusal_of(op: str, subject: Subject) -> Iterator[None]:
    """Meanwhile the backend refuses this op; "" for none."""
    backend = subject.backend
    inner = backend.why_not

    def why_not(step: Step, target: Target) -> Reason | str | None:
        return Reason(f"{op}: refused by the kit", "other") if step.op == op else inner(step, target)

    if not op:
        yield
        return
    try:
        backend.why_not = why_not  # type: ignore[method-assign]
    except AttributeError:
        raise Refused("it takes every step that is tried, and its object takes no attribute", "other") from None
    try:
        yield
    finally:
        del backend.why_not


def mixed_is_right(seed: int, subject: Subject) -> list[str]:
    """With another device beside it the plan is made, there and back, and its results are the other's, twice."""
    data = [np.random.default_rng((seed, n)).uniform(0.5, 1.5, SHAPE).astype(np.float32) for n in range(2)]
    with _graph(subject) as (y, name, pins):
        with Session(_other(subject)) as session:
            plan = session.compile(y)
            want = [plan(x=x) for x in data]
        with Session(f"{subject.device.name}+{_other(subject)}", policy="prefer") as session:
            plan = session.compile(y, pins=pins)
            got = [plan(x=x) for x in data]
            used = len(plan.devices)
    if used != 2:
        return [f"a plan of steps that it takes and of {name}, which it refuses, runs on {', '.join(plan.devices)}"]
    for number, (a, b) in enumerate(zip(got, want, strict=True), 1):
        if not np.allclose(a, b, rtol=1e-3, atol=1e-4, equal_nan=True):
            off = np.nanmax(np.abs(a - b), initial=0)
            return [f"with {name} on another device the result of call {number} differs by {off:g}"]
    return []


def strict_is_an_error(seed: int, subject: Subject) -> list[str]:
    """Alone under `strict` the refused step is named, with a reason."""
    del seed
    with _graph(subject) as (y, name, _), Session(subject.device.name, policy="strict") as session:
        try:
            session.compile(y)
        except PlacementError as e:
            return [] if name in str(e) else [f"the error does not name {name}: {e}"]
    return [f"{name} is refused, and `strict` compiles it"]


def told_in_the_report(seed: int, subject: Subject) -> list[str]:
    """The report says where the refused step went, and what the device said."""
    del seed
    both = f"{subject.device.name}+{_other(subject)}"
    with _graph(subject) as (y, name, pins), Session(both, policy="prefer") as session:
        nodes = session.compile(y, pins=pins).explain().to_dict()["nodes"]
    at = [node for node in nodes if node["op"] == name]
    if not at or at[0]["device"] == subject.device.name:
        return [f"{name} is refused, and the report puts it on {subject.device.name}"]
    said = [c for c in at[0]["candidates"] if c["device"] == subject.device.name and not c["takes"]]
    return [] if said and said[0]["reason"] else [f"the report gives no reason for {name}"]
