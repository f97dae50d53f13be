"""What a kernel does not list is refused, operand by operand: generated for every op. And the limits of numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

import jackfield as jf
from jackfield import ops
from jackfield.backend import Kernel, Limits, Step, Target, refusal
from jackfield.conformance import examples
from jackfield.dtypes import DTYPES, f32, i32
from jackfield.errors import ShapeError
from jackfield.op import OPS
from jackfield.reference import kernels_of_all_ops
from jackfield.spec import Spec, slice_view
from jackfield_conformance.direct import step_of

RUNNING = [name for name in ops.__all__ if not OPS[name].is_view]
TARGET = Target("test", "test")
EVERY = frozenset(DTYPES)


def dense(name):
    return [e for e in examples(OPS[name]) if e.layout == "dense"]


def kernel(op, **changes):
    whole = Kernel(dict.fromkeys(op.operands, EVERY), EVERY, frozenset(op.attrs))
    return {op.name: replace(whole, **changes)}


OPERANDS = [(name, operand) for name in RUNNING for operand in OPS[name].operands]


@pytest.mark.parametrize(("name", "operand"), OPERANDS)
def test_an_operand_a_kernel_does_not_know_is_refused(name, operand):
    """Item 72: by name, where it is present; and nothing else is, where it is absent."""
    op = OPS[name]
    known = kernel(op, operands={n: EVERY for n in op.operands if n != operand})
    present = 0
    for example in dense(name):
        step = step_of(example)
        reason = refusal(step, known, TARGET)
        if step.operands[op.operands.index(operand)] is None:
            assert reason is None
        else:
            present += 1
            assert reason == f"{name}: operand '{operand}' is not supported" and reason.code == "operand"
    assert present


@pytest.mark.parametrize(("name", "operand"), OPERANDS)
def test_each_operand_is_checked_by_its_own_dtype(name, operand):
    """Item 92: the wrong dtype of one operand is not seen through another one."""
    op = OPS[name]
    at = op.operands.index(operand)
    for example in dense(name):
        step = step_of(example)
        if step.operands[at] is None:
            continue
        mine = step.operands[at].dtype.name
        others = kernel(op, operands=dict.fromkeys(op.operands, EVERY) | {operand: EVERY - {mine}})
        reason = refusal(step, others, TARGET)
        assert reason.code == "dtype" and reason.startswith(f"{name}: {operand} is {mine}, ")
        only = kernel(op, operands=dict.fromkeys(op.operands, EVERY) | {operand: frozenset({mine})})
        assert refusal(step, only, TARGET) is None


ATTRIBUTES = [(name, attr) for name in RUNNING for attr in OPS[name].attrs]


@pytest.mark.parametrize(("name", "attr"), ATTRIBUTES)
def test_an_attribute_a_kernel_does_not_know_is_refused_where_it_says_something(name, attr):
    op = OPS[name]
    known = kernel(op, attributes=frozenset(op.attrs) - {attr})
    for example in dense(name):
        at_default = attr in op.defaults and example.attrs[attr] == op.defaults[attr]
        reason = refusal(step_of(example), known, TARGET)
        assert reason is None if at_default else reason.code == "attribute" and f"'{attr}'" in reason


@pytest.mark.parametrize("name", RUNNING)
def test_a_result_a_kernel_does_not_make_is_refused(name):
    for example in dense(name):
        made = example.result.dtype.name
        reason = refusal(step_of(example), kernel(OPS[name], results=EVERY - {made}), TARGET)
        assert reason.code == "dtype" and f"result {made}" in reason


@pytest.mark.parametrize("rows", [31, 32, 33])
def test_an_operand_too_large_is_refused_and_a_window_on_it_is_not(rows):
    """Item 20: what counts is what the operand spans, not the memory it is cut from."""
    limited = Target("test", "test", limits=Limits(max_operand=32 * 1024))
    whole = Spec(f32, (rows, 256))
    kernels = kernels_of_all_ops()

    def asked(spec):
        return refusal(Step("tanh", (spec,), Spec(f32, spec.shape)), kernels, limited)

    assert (asked(whole) is None) == (rows <= 32)
    window = slice_view(whole, [(3, rows, 4), (0, 255, 1)])
    assert asked(window.spec) is None
    apart = slice_view(Spec(f32, (2 * rows, 256)), [(0, 2 * rows, 2), (0, 256, 1)]).spec
    assert asked(apart).code == "size", "a window spans what lies between its rows"


LIMIT = 2**31 - 1


@pytest.mark.parametrize(("count", "fits"), [(LIMIT, True), (LIMIT + 1, False), (2**40, False)])
def test_what_i32_cannot_number_is_refused(count, fits):
    """Items 7, 12, 16: an index that does not fit its dtype would name another element."""
    row = jf.input("x", (0, count))
    uses = [
        lambda: ops.argmax(row),
        lambda: ops.argsort(row),
        lambda: ops.top_k(row, k=1),
        lambda: ops.linear_experts(
            jf.input("t", (count, 1, 0)), jf.input("w", (2, 3, 0)), jf.input("i", (count, 1), i32)
        ),
        lambda: ops.linear_experts(jf.input("t", (1, 1, 0)), jf.input("w", (count, 3, 0)), jf.input("i", (1, 1), i32)),
    ]
    for use in uses:
        if fits:
            use()
        else:
            with pytest.raises(ShapeError, match=rf"{count} .*, at most {LIMIT}: they are numbered in i32"):
                use()
