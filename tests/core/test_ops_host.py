"""host_call: the user's own Python in a plan, on the host's device only."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import jackfield as jf
from jackfield import ops
from jackfield.backend import Step
from jackfield.dtypes import bf16, i32
from jackfield.errors import (
    AttributeValueError,
    DeviceError,
    DTypeError,
    GraphError,
    PlacementError,
    PlanError,
    ShapeError,
)
from jackfield.graph import Function
from jackfield.reference import kernels_of_all_ops
from jackfield.registry import Registry


def sorted_rows(x):
    return np.sort(x, -1)


def test_a_function_in_the_middle_of_a_graph():
    x = jf.input("x", (2, 4))
    found = ops.host_call(ops.add(x, x), function=sorted_rows, shape=(2, 4), dtype="f32")
    plan = jf.compile(ops.scale(found, scale=0.5), device="reference")
    data = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(plan(x=data), np.sort(data, -1))
        data = data[:, ::-1].copy() + 1


def test_many_operands_of_any_dtype_and_none():
    seen = []

    def note(*arrays):
        seen.append([(str(a.dtype), a.shape, a.flags.writeable) for a in arrays])
        return np.int32(len(arrays))

    leaves = [jf.constant(np.zeros((2, 3), np.float16)), jf.constant(np.zeros(0, bool)), jf.input("n", (), i32)]
    call = ops.host_call(*leaves, jf.state("s", (1,), bf16), function=note, shape=(), dtype="i32")
    assert jf.compile(call, device="reference")(n=np.int32(3))[()] == 4
    assert seen == [
        [("float16", (2, 3), False), ("bool", (0,), False), ("int32", (), False), ("bfloat16", (1,), False)]
    ]
    alone = ops.host_call(function=lambda: np.float32([1, 2]), shape=(2,), dtype="f32")
    assert jf.compile(alone, device="reference")().tolist() == [1, 2]


def test_operands_are_read_only_windows():
    def spoil(x):
        x[0] = 1
        return x

    plan = jf.compile(ops.host_call(jf.input("x", (2,)), function=spoil, shape=(2,), dtype="f32"), device="reference")
    with pytest.raises(ValueError, match="read-only"):
        plan(x=np.zeros(2, np.float32))


class Mine(Exception):
    """Nobody else knows it."""


@pytest.mark.parametrize("kind", [Mine, ValueError, KeyError, SystemExit])
def test_what_a_function_raises_reaches_the_caller(kind):
    hurt = [True]

    def fail(x):
        if hurt:
            raise kind("seven")
        return x

    plan = jf.compile(ops.host_call(jf.input("x", (2,)), function=fail, shape=(2,), dtype="f32"), device="reference")
    with pytest.raises(kind, match="seven") as e:
        plan(x=np.zeros(2, np.float32))
    assert type(e.value) is kind
    hurt.clear()
    assert plan(x=np.ones(2, np.float32)).tolist() == [1, 1]


def test_a_state_that_a_failed_call_may_have_changed_is_incomplete():
    def fail(_):
        raise Mine

    s = jf.state("s", (2,))
    called = ops.host_call(jf.input("x", (2,)), function=fail, shape=(2,), dtype="f32")
    plan = jf.compile(ops.write(s, called, start=(0,)), device="reference")
    with pytest.raises(Mine):
        plan(x=np.zeros(2, np.float32))
    with pytest.raises(PlanError, match=r"state 's' is incomplete: a call ended early \(Mine\)"):
        plan(x=np.zeros(2, np.float32))


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (lambda x: x[0], ShapeError, r"gave \[\], must give \[2\]"),
        (lambda x: x.astype(np.float64), DTypeError, "gave float64, must give f32"),
        (lambda x: None, DTypeError, "gave object, must give f32"),
    ],
)
def test_what_a_function_gives_is_checked(function, error, text):
    plan = jf.compile(
        ops.host_call(jf.input("x", (2,)), function=function, shape=(2,), dtype="f32"), device="reference"
    )
    with pytest.raises(error, match=text):
        plan(x=np.zeros(2, np.float32))


def test_no_other_device_takes_it():
    call = ops.host_call(jf.input("x", (2,)), function=sorted_rows, shape=(2,), dtype="f32")
    assert "host_call" in kernels_of_all_ops()
    for status in Registry().status():
        if status.name != "reference" and status.state == "ready":
            assert "host_call" not in Registry().open_backend(status.name).kernels()
    assert "host_call" not in Registry().open_backend("sim").kernels()
    with pytest.raises(PlacementError, match="sim:0: no kernel for host_call"):
        jf.compile(call, device="sim", policy="strict")
    plan = jf.compile(ops.add(call, call), device="sim+reference")
    assert plan(x=np.float32([2, 1])).tolist() == [2, 4]


def test_a_function_is_told_by_its_name_and_kept_by_no_file(tmp_path):
    call = ops.host_call(jf.input("x", (2,)), function=sorted_rows, shape=(2,), dtype="f32")
    assert str(call.attrs["function"]) == "sorted_rows"
    step = Step("host_call", (call.operands[0].spec, *[None] * 7), call.spec, call.attrs)
    assert hash(step) == hash(pickle.loads(pickle.dumps(step)))
    assert "function=sorted_rows" in str(step)
    with pytest.raises(GraphError, match=r"^\[host_call\] holds the Python function sorted_rows, which no graph file"):
        jf.save(call, tmp_path / "graph.npz")
    assert not list(tmp_path.iterdir())


def test_functions_are_plain_attributes():
    same, other = Function(sorted_rows), Function(np.sort)
    assert same == Function(sorted_rows) != other
    assert len({same, Function(sorted_rows), other}) == 2
    with pytest.raises(AttributeValueError, match=r"^\[host_call\] function is 7, must be a Python function$"):
        ops.host_call(function=7, shape=(), dtype="f32")
    with pytest.raises(AttributeValueError, match=r"^\[scale\] scale is .*, must be a number$"):
        ops.scale(jf.input("x", (2,)), scale=sorted_rows)
    assert issubclass(DeviceError, jf.Error)
