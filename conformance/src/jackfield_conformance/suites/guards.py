"""Suite `guards`: nothing outside the result is written, and nothing outside the operands is read.

Also of steps that a device makes together: what it says to leave unwritten is neither written nor read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np

from jackfield.backend import Device, Reason, Spec
from jackfield.blueprint import Blueprint
from jackfield.conformance.cases import Example, examples
from jackfield.conformance.check import compare, expected
from jackfield.dtypes.arrays import widened
from jackfield.errors import GraphError
from jackfield.op import OPS, Array, Fault, collect
from jackfield.partition import Value
from jackfield_conformance.derived import derived
from jackfield_conformance.direct import GUARD, NAN_GUARD, run, window_on
from jackfield_conformance.patterns import Build, pattern_of, patterns
from jackfield_conformance.plans import strict_session
from jackfield_conformance.together import Bytes, leave, wanted
from jackfield_conformance.trials import Refused, Subject, Trial

from .claims import RUNNING

__all__ = ["trials"]

LAYOUTS = ("dense", "rows", "sliced", "inplace", "constant")
FAR = 1e-2  # NMSE of a whole graph: what was not made, or made of something else, is further off


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
    for what, build in patterns():
        yield Trial(f"guards/together/{what}", partial(made_together, build, seed))


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


# Steps that are made together


def made_together(build: Build, seed: int, subject: Subject) -> list[str]:
    """A graph in the groups that the device asks for, between small numbers, between NaN, and with room for all.

    Bytes that no step makes stay, results are the same each time and near what the ops' own bodies make.
    """
    device = subject.device
    if type(device).fuse is Device.fuse and type(device).groups is Device.groups:
        raise Refused(Reason("it makes every step by itself", "other"))
    try:
        pattern = pattern_of(build, seed)
    except GraphError as e:
        raise Refused(Reason(str(e), "other")) from None
    with strict_session(subject) as session:
        drawn = session.draw(pattern.outputs)
    if all(len(group) == 1 for groups in drawn.memory.groups for group in groups):
        raise Refused(Reason("it makes these steps one by one", "other"))
    faults: list[Fault] = []
    with collect(faults):
        want = wanted(drawn, pattern.data)
    if faults:
        raise Refused(Reason(f"the data hold a fault: {faults[0]}", "other"))
    left = {
        "between small numbers": leave(drawn, pattern.data, subject, GUARD),
        "between NaN": leave(drawn, pattern.data, subject, NAN_GUARD),
        "with room for all": leave(drawn, pattern.data, subject, GUARD, room=True),
    }
    found = [f"{what}: {one.damage}" for what, one in left.items() if one.damage]
    found += [f"{what}: raised {one.fault!r}" for what, one in left.items() if one.fault is not None]
    first, *others = left.values()
    names = _names(drawn)
    for what, one in zip(list(left)[1:], others, strict=True):
        other = [names[value] for value, made in one.made.items() if made.tobytes() != first.made[value].tobytes()]
        found += [f"{what} {other[0]} has other bytes than between small numbers"] if other else []
    return found + _far_off(first.made, want, names)


def _names(drawn: Blueprint) -> dict[Value, str]:
    return {item.result.value: item.name for run in drawn.runs for item in run.items}


def _far_off(made: Mapping[Value, Bytes], want: Mapping[Value, Bytes], names: Mapping[Value, str]) -> list[str]:
    """What is none of the numbers that the ops' own bodies make; the first one is enough."""
    for value, got in made.items():
        if value in names and value.spec.size and (text := _difference(value.spec, got, want[value])):
            return [f"{names[value]}: {text}"]
    return []


def _difference(spec: Spec, got: Bytes, want: Bytes) -> str:
    a, b = (window_on(raw, 0, spec) for raw in (got, want))
    if not spec.dtype.is_float:
        return "" if np.array_equal(a, b) else "is not what the ops' own bodies make"
    x, y = (np.asarray(widened(array), np.float64) for array in (a, b))
    return _apart(x, y)


def _apart(x: Array, y: Array) -> str:
    finite = np.isfinite(y)
    if not np.array_equal(np.isfinite(x), finite):
        return "holds what is no number, or lacks it: some of it was not made, or of what must not be read"
    error, power = (float(np.square(each[finite]).sum()) for each in (x - np.where(finite, y, x), y))
    return f"NMSE {error / power:.2g}, at most {FAR:g}" if error > FAR * power + 1e-12 else ""
