"""Steps that a device makes together: who keeps its word about them passes, and each way to break it is found."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from test_suites import NAME, Few

from jackfield import registry
from jackfield.backend import Group, Grouping, Place
from jackfield.op import OPS
from jackfield.reference import HostBuffer, ReferenceDevice, kernels_of_all_ops
from jackfield_conformance.patterns import patterns
from jackfield_conformance.suites import SUITES
from jackfield_conformance.trials import Subject
from jackfield_conformance.worker import outcome

NORMS, PRODUCTS = ("rms_norm", "add", "multiply", "relu", "silu", "tanh"), ("linear", "swiglu", "gelu")
ONLY = frozenset((*NORMS, *PRODUCTS, "rope", "put_rows", "contiguous"))


class Whole(Few):
    """The reference with the ops of most patterns."""

    def kernels(self):
        return {name: kernel for name, kernel in kernels_of_all_ops().items() if name in ONLY}


class Pairs(ReferenceDevice):
    """Makes a step and the one that alone reads its result together, and keeps what is between them to itself."""

    unwritten = True

    def fuse(self, steps, links):
        groups, taken = [], set()
        for i, link in enumerate(links):
            if i in taken:
                continue
            readers = [j for j, other in enumerate(links) if link.result in other.operands]
            changed = [j for j, other in enumerate(links) if other.result == link.result]
            alone = not link.outside and readers == [i + 1] and changed == [i] and i + 1 not in taken
            groups.append((i, i + 1) if alone else (i,))
            taken.update(groups[-1])
        return Grouping(tuple(groups), unwritten=self.unwritten)

    def compile(self, run, scratch):
        return super().compile([self.made(group) for group in run], scratch)

    def made(self, group):
        """The group with memory of this device's own for what is between."""
        if len(group.steps) == 1:
            return group
        first, second = group.steps
        own = HostBuffer(np.zeros(first.result.spec.nbytes, np.uint8))

        def moved(place):
            if place is None or place.buffer is not first.result.buffer or place.offset != first.result.offset:
                return place
            return Place(own, 0, place.spec)

        operands = tuple(moved(place) if self.is_between(first, place) else place for place in second.operands)
        return Group((replace(first, result=Place(own, 0, first.result.spec)), replace(second, operands=operands)))

    def is_between(self, first, place):
        return place is not None and place.spec.nbytes == first.result.spec.nbytes


class Writes(Pairs):
    """Puts what is between where it would lie."""

    def made(self, group):
        return group


class WritesOneByte(Pairs):
    def compile(self, run, scratch):
        program = super().compile(run, scratch)
        inner = [g.steps[0].result for g in run if len(g.steps) > 1]

        def mark():
            for place in inner:
                place.buffer.bytes[place.offset] = 7

        return followed(program, mark)


class Reads(Pairs):
    """Lets what lies at the address into the result."""

    def compile(self, run, scratch):
        program = super().compile(run, scratch)
        pairs = [(g.steps[0].result, g.steps[-1].result) for g in run if len(g.steps) > 1]

        def mix():
            for inner, result in pairs:
                if result.spec.nbytes:
                    result.buffer.bytes[result.offset] ^= inner.buffer.bytes[inner.offset] & 2

        return followed(program, mix)


class WritesBehind(Pairs):
    """Has memory for what is between, and needs more of it than it says."""

    unwritten = False

    def compile(self, run, scratch):
        program = super().compile(run, scratch)
        inner = [g.steps[0].result for g in run if len(g.steps) > 1]

        def spill():
            for place in inner:
                at = place.offset + place.spec.nbytes
                place.buffer.bytes[at : at + 4] = 7

        return followed(program, spill)


class LeavesResult(Pairs):
    """Says too much: the result of the group is not written either."""

    def compile(self, run, scratch):
        return super().compile([group for group in run if len(group.steps) == 1], scratch)


class FusesWhatIsRead(Pairs):
    """Takes every two steps together, whoever reads the first one's result."""

    def fuse(self, steps, links):
        count = len(steps)
        return Grouping(tuple(tuple(range(i, min(i + 2, count))) for i in range(0, count, 2)), unwritten=True)


class RoomOfItsOwn(Pairs):
    """Right, and takes memory for what is between."""

    unwritten = False

    def made(self, group):
        return group


def followed(program, after):
    inner = program.run
    program.run = lambda: (inner(), after())
    return program


def tried(device, *names):
    """Outcomes by the name of the pattern."""
    backend = Whole(device)
    registry.register_backend(backend)
    try:
        (opened,) = registry.select(NAME).devices
        subject = Subject(backend, opened.device)
        prefix = "guards/together/"
        trials = [t for t in SUITES["guards"](0) if t.id.startswith(prefix)]
        chosen = {t.id.removeprefix(prefix): t for t in trials}
        return {name: outcome(chosen[name], subject) for name in names or chosen}
    finally:
        registry.unregister_backend(NAME)


@pytest.mark.parametrize("device", [Pairs, RoomOfItsOwn])
def test_who_keeps_its_word_fails_nothing(device):
    found = tried(device())
    assert {name: one["reason"] for name, one in found.items() if one["result"] == "failed"} == {}
    counts = Counter(one["result"] for one in found.values())
    assert counts["passed"] >= 12, {name: one["reason"] for name, one in found.items()}


def test_who_makes_each_step_by_itself_is_not_asked():
    found = tried(ReferenceDevice(), "norm", "chain")
    assert {one["result"] for one in found.values()} == {"unsupported"}


FOUND = ("chain", "norm", "biased-f32")


@pytest.mark.parametrize(
    ("device", "words"),
    [
        (Writes, "which is fused away and said to stay unwritten"),
        (WritesOneByte, "which is fused away and said to stay unwritten"),
        (Reads, "has other bytes than between small numbers"),
        (WritesBehind, "bytes that no step makes changed"),
        (LeavesResult, "holds what is no number"),
        (FusesWhatIsRead, "used outside the group"),
    ],
)
def test_who_breaks_it_is_found(device, words):
    found = tried(device(), *FOUND, "two-readers", "chain-kept")
    told = {name: one["reason"] for name, one in found.items() if words in one["reason"]}
    assert {found[name]["result"] for name in told} == {"failed"}, found
    if device is FusesWhatIsRead:
        assert "its result is an output" in found["chain-kept"]["reason"]
    else:
        assert set(FOUND) <= set(told), found


def test_every_op_has_a_pattern_or_changes_what_it_is_given():
    names = [name for name, _ in patterns()]
    assert len(names) == len(set(names))
    asked = {name.removeprefix("op-") for name in names if name.startswith("op-")}
    rest = {name for name, op in OPS.items() if not (op.is_view or op.updates or op.is_of_the_host)} - asked
    assert rest == set()
