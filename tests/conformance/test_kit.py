"""The kit itself: every way to be wrong is found, and what a device refuses is not held against it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from jackfield import ops
from jackfield.backend import Kernel, Packing, Place, Program, Step
from jackfield.conformance import claims, compare, examples, expected, made
from jackfield.dtypes import f16, f32, q8_0
from jackfield.errors import BadIndex
from jackfield.op import OPS
from jackfield.reference import HostBuffer, ReferenceBackend, ReferenceDevice, kernels_of_all_ops
from jackfield_conformance import Refused, mistakes, run

NAN, INF = math.nan, math.inf


class Wrapped(Program):
    """A program with something done after it runs, and its check replaced or not."""

    def __init__(self, inner, after, check=None):
        self.inner, self.after = inner, after
        self.check = check or inner.check

    def run(self):
        self.inner.run()
        self.after()


class Lying(ReferenceDevice):
    """Does `harm(placed)` after each step."""

    def __init__(self, harm, check=None):
        super().__init__()
        self.harm, self.told = harm, check

    def compile(self, run, scratch):
        (placed,) = [p for group in run for p in group.steps]
        return Wrapped(super().compile(run, scratch), lambda: self.harm(placed), self.told)


def first_example(name, layout="dense", dtype=f32):
    return next(e for e in examples(OPS[name]) if e.layout == layout and e.dtype is dtype and e.result.size > 1)


def found(name, harm, check=None, layout="dense"):
    return mistakes(first_example(name, layout), ReferenceBackend(), Lying(harm, check))


def test_an_honest_device_is_found_right():
    assert found("softmax", lambda _: None) == []


def set_byte(at, value=7):
    def harm(placed):
        placed.result.buffer.bytes[placed.result.offset + at(placed)] = value

    return harm


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (set_byte(lambda p: -1), "1 bytes outside the result changed, the first -1 bytes from its start"),
        (set_byte(lambda p: p.result.spec.nbytes), "1 bytes outside the result changed, the first 120 bytes"),
        (set_byte(lambda p: p.operands[0].offset - p.result.offset), "1 bytes outside the result changed"),
    ],
)
def test_bytes_that_are_nobodys(harm, words):
    (wrong,) = found("softmax", harm)
    assert words in wrong


def test_a_wrong_number():
    (wrong,) = found("tanh", set_byte(lambda p: 3, 0x7F))
    assert "1 of 15 elements: [0, 0] is" in wrong


def test_gaps_of_a_strided_target_are_nobodys():
    example = first_example("write", "sliced")
    gap = example.result.byte_strides[-1] - 1
    wrong = mistakes(example, ReferenceBackend(), Lying(set_byte(lambda p: gap)))
    assert len(wrong) == 1
    assert "1 bytes outside the result changed" in wrong[0]


def test_a_result_left_unwritten():
    def forget(placed):
        placed.result.buffer.bytes[placed.result.offset + 8 : placed.result.offset + 12] = 0xFF

    (wrong,) = found("tanh", forget)
    assert "[0, 2] is nan" in wrong


def test_a_missing_wrong_or_invented_fault():
    def quiet():
        return None

    def loud():
        raise BadIndex("[take_rows] rows holds the index 77, which lies outside its axis")

    bad = next(e for e in examples(OPS["take_rows"]) if expected(e)[1])
    (wrong,) = mistakes(bad, ReferenceBackend(), Lying(lambda _: None, quiet))
    assert "raised None, must be BadIndex for [take_rows] rows holds the index 5" in wrong
    (wrong,) = mistakes(bad, ReferenceBackend(), Lying(lambda _: None, loud))
    assert "must name take_rows and the index 5" in wrong
    (wrong,) = found("take_rows", lambda _: None, loud)
    assert "the oracle finds no fault" in wrong


def off_by(name, amount, dtype=f32, layout="dense"):
    """What the comparison says of the oracle's result, changed by `amount(want)`."""
    example = first_example(name, layout, dtype)
    want, _ = expected(example)
    return compare(example, amount(want.copy()), want)


def nudged(ulps):
    def change(want):
        bits = want.view({2: np.int16, 4: np.int32}[want.itemsize])
        bits.reshape(-1)[0] += ulps
        return want

    return change


@pytest.mark.parametrize(("ulps", "right"), [(1, True), (2, False), (-1, True), (-2, False)])
def test_class_a_is_one_unit_in_the_last_place(ulps, right):
    assert (off_by("square", nudged(ulps)) == "") == right
    assert (off_by("square", nudged(ulps), f16) == "") == right


def test_class_e_is_equal_bits():
    assert off_by("relu", lambda w: w) == ""
    assert "must be equal" in off_by("relu", nudged(1))
    assert "must be equal" in off_by("contiguous", nudged(1))
    nan = made(ops.contiguous, {"x": np.array([np.nan, -0.0], np.float32)})
    want, _ = expected(nan)
    other = want.copy()
    other.view(np.uint32)[0] += 1
    assert "must be equal" in compare(nan, other, want), "a copy keeps the bits of a NaN"
    assert "must be equal" in compare(nan, np.abs(want), want)
    zero = made(ops.relu, {"x": np.array([0.0, 1.0], np.float32)})
    want, _ = expected(zero)
    assert compare(zero, -want * np.array([1, -1], np.float32), want) == "", "relu may give a zero of either sign"


def test_the_other_classes_have_bounds():
    def add(amount):
        def change(want):
            want.reshape(-1)[0] += amount
            return want

        return change

    assert off_by("tanh", add(2e-6)) == ""
    assert "too far off" in off_by("tanh", add(1e-5))
    assert off_by("sum", add(1e-6)) == ""
    assert off_by("sum", add(1e-3)) != ""
    assert off_by("linear", add(1e-4)) == ""
    assert "too far off" in off_by("linear", add(1e-2))
    assert off_by("linear", add(1e-3), q8_0) == ""
    assert "NMSE" in off_by("linear", add(1.0), q8_0)
    assert "NMSE" in off_by("attention", add(1e-2))
    assert "must be finite" in off_by("tanh", add(np.inf))
    assert "shape" in off_by("tanh", lambda w: w[:1])


def test_top_k_takes_any_order_but_no_index_twice():
    example = made(ops.top_k, {"x": np.array([[5, 3, 5, 1]], np.float32)}, k=2)
    want, _ = expected(example)
    assert compare(example, want[:, ::-1].copy(), want) == ""
    assert "twice" in compare(example, np.array([[0, 0]], np.int32), want)
    assert "not the largest" in compare(example, np.array([[0, 1]], np.int32), want)
    assert "outside" in compare(example, np.array([[0, 4]], np.int32), want)


class Narrow(ReferenceBackend):
    """Knows softmax without sinks, and no more than 100 columns; reads dense rows only."""

    def kernels(self):
        whole = kernels_of_all_ops()["softmax"]
        return {
            "softmax": Kernel({"x": whole.operands["x"], "mask": frozenset({"f32"})}, whole.results, whole.attributes)
        }

    def why_not(self, step, target):
        columns = step.operands[0].shape[-1] if step.operands[0].shape else 1
        return f"softmax: {columns} columns, at most 100" if columns > 100 else None

    def reads(self, step, target):
        return tuple("rows" for _ in step.operands)


def test_refusals_are_reasons_and_count_in_the_claims():
    backend = Narrow()
    (device,) = backend.devices()
    reasons = set()
    for example in examples(OPS["softmax"]):
        try:
            assert mistakes(example, backend, device) == []
        except Refused as reason:
            reasons.add(str(reason))
    assert reasons == {
        "softmax: operand 'sinks' is not supported",
        "softmax: 257 columns, at most 100",
        "softmax: 256 columns, at most 100",
        "softmax: mask is f16, the kernel reads f32",
    }
    text = claims(backend, device.target)
    assert "softmax f32 7/11\n" in text
    assert "tanh f32 0/5\n" in text


def test_a_backend_is_asked_nothing_of_an_op_it_does_not_list():
    class Listed(Narrow):
        def reads(self, step, target):
            return {"softmax": ("any",) * 3}[step.op]

    backend = Listed()
    with pytest.raises(Refused, match="no kernel for tril"):
        mistakes(first_example("tril"), backend, backend.devices()[0])


def test_the_reference_claims_everything():
    lines = claims(ReferenceBackend(), ReferenceDevice.target).splitlines()
    assert "attention f32 30/30" in lines
    assert {line.split()[0] for line in lines} == {name for name, op in OPS.items() if not op.is_view}
    for line in lines:
        taken, declared = line.split()[-1].split("/")
        assert taken == declared


class Packer(ReferenceBackend):
    """Wants weights reversed, byte for byte, and reads them so."""

    packed = 0

    def pack(self, constant, users, target):
        assert isinstance(users[0], Step)
        Packer.packed += 1

        def turn(plain, packed):
            packed[:] = bytes(plain)[::-1]

        return Packing("reversed", constant.nbytes, turn, None)


class Unpacking(ReferenceDevice):
    def compile(self, run, scratch):
        (placed,) = [p for group in run for p in group.steps]
        weight = placed.operands[1]
        assert weight.spec.layout == "reversed"
        spec = replace(weight.spec, layout="")
        turned = HostBuffer(weight.buffer.bytes[weight.offset :][: spec.nbytes][::-1].copy())
        placed = replace(placed, operands=(placed.operands[0], Place(turned, 0, spec)))
        return super().compile([replace(run[0], steps=(placed,))], scratch)


def test_constants_arrive_packed_as_the_device_asks():
    Packer.packed = 0
    tried = [e for e in examples(OPS["linear"]) if e.layout == "constant"]
    for example in tried:
        assert mistakes(example, Packer(), Unpacking()) == []
    assert Packer.packed == len(tried) > 50


def test_the_device_gets_dense_operands_where_it_reads_no_strides():
    seen = []

    class Dense(ReferenceBackend):
        def reads(self, step, target):
            return ("dense",) * len(step.operands)

    class Spy(ReferenceDevice):
        def compile(self, run, scratch):
            seen.extend(p.spec for group in run for placed in group.steps for p in placed.operands if p)
            return super().compile(run, scratch)

    for example in examples(OPS["add"]):
        run(example, Dense(), Spy())
    assert all(spec.is_dense for spec in seen)
    strided = first_example("put_rows", "sliced")
    with pytest.raises(Refused, match="put_rows: a strided target is not read, and a target can't be copied"):
        run(strided, Dense(), Spy())


GATES = [-104.0, -104.0, -40.0, -1.0, -INF, 0.0, 3.0]
LINEAR = [INF, 3e38, -INF, INF, 2.0, INF, -INF]


@pytest.mark.parametrize("name", ["swiglu", "geglu", "geglu_erf", "geglu_quick"])
@pytest.mark.parametrize("swapped", [None, False, True])
def test_a_half_that_underflows_may_be_lost(name, swapped):
    """In f32 it is 0, and 0 times inf is NaN; nowhere else may NaN stand for a number, nor a number for NaN."""
    gate, up = np.array([GATES], np.float32), np.array([LINEAR], np.float32)
    given = {"gate": gate, "up": up}
    if swapped is not None:
        given = {"gate": np.concatenate([up, gate] if swapped else [gate, up], -1)}
    example = made(OPS[name], given, **({} if swapped is None else {"swapped": swapped}))
    want, _ = expected(example)
    assert compare(example, want, want) == ""
    act = getattr(ops, name.replace("swiglu", "silu").replace("geglu", "gelu")).run(gate)
    with np.errstate(all="ignore"):
        flushed = np.where(np.abs(act) < 2e-38, 0, act) * up
    assert np.isnan(flushed[0, 0])
    assert compare(example, flushed.astype(np.float32), want) == ""
    for at, (g, u) in enumerate(zip(GATES, LINEAR, strict=True)):
        lost = math.isinf(u) and g != 0 and bool(abs(act[0, at]) <= 1e-6)
        assert lost == (at in (0, 2))
        assert told(example, want, at, NAN) == (lost or np.isnan(want[0, at]))
        assert told(example, want, at, math.copysign(INF, -u)) == (want[0, at] == math.copysign(INF, -u) or lost)
        assert not told(example, want, at, 7.0)


def told(example, want, at, value):
    """Whether the result may hold this there."""
    got = want.copy()
    got[0, at] = value
    return compare(example, got, want) == ""


def test_only_a_lost_half_excuses():
    """Not a half that is exactly 0, nor one that is large enough to be there, nor a number of the wrong size."""
    example = made(OPS["swiglu"], {"gate": np.array([-104.0], np.float32), "up": np.array([INF], np.float32)})
    want, _ = expected(example)
    assert want == -INF
    for wrong in (0.0, -1e30, INF):
        assert compare(example, np.array([wrong], np.float32), want) != ""
