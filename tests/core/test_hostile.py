"""What users hand in by mistake or malice: every one is an error of jackfield's that says what must be, or is right."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import numpy as np
import pytest

import jackfield as jf
from jackfield import errors, ops

DEVICES = ("reference", "sim", "sim+reference")


class Bytes:
    """A Source of these bytes, whatever its shape says."""

    dtype = jf.f32

    def __init__(self, data: object, shape: tuple[int, ...]) -> None:
        self.data, self.shape = data, shape

    def release(self) -> None:
        pass


# ---- leaves


@pytest.mark.parametrize("name", [None, 5, b"x", ["a"], jf.f32])
def test_names_are_text(name):
    with pytest.raises(errors.GraphError, match="must be a Python identifier"):
        jf.input(name, (2,))
    with pytest.raises(errors.GraphError, match="a text"):
        jf.state(name, (2,))


@pytest.mark.parametrize("dtype", [None, "f32", np.float32, float, 5, np.dtype("f4")])
@pytest.mark.parametrize("leaf", [jf.input, jf.state])
def test_dtypes_are_ours(leaf, dtype):
    with pytest.raises(errors.DTypeError, match=r"one of jackfield's, .*jf\.f(32|64)"):
        leaf("x", (2,), dtype)


@pytest.mark.parametrize("shape", [5, None, "12", ("3",), (2.0, 3), (np.float64(2),), [[1, 2]], (None,), object()])
@pytest.mark.parametrize("leaf", [jf.input, jf.state])
def test_shapes_are_whole_numbers(leaf, shape):
    with pytest.raises(errors.ShapeError, match="tuple of whole numbers"):
        leaf("x", shape)


@pytest.mark.parametrize("shape", [(0, 2**61), (2**40, 0, 2**40), (0, 2**200), (2**31,) * 3, (1,) * 33, (0,) * 64])
def test_no_shape_overflows_the_arithmetic_of_devices(shape):
    with pytest.raises(errors.ShapeError, match=r"the limit is|at most"):
        jf.input("x", shape)


@pytest.mark.parametrize("value", [[[1], [1, 2]], {}, object(), "text", [None], 2**70, np.zeros(2, ">f4")])
def test_constants_are_numbers(value):
    with pytest.raises(errors.DTypeError):
        jf.constant(value)


@pytest.mark.parametrize("data", [bytes(24), bytearray(24), memoryview(np.zeros((2, 3), "f4")), np.zeros(24, "u1")])
def test_a_source_may_be_any_buffer(data):
    c = jf.constant(Bytes(data, (2, 3)))
    np.testing.assert_array_equal(jf.compile((c, ops.relu(c)), device="reference")()[1], np.zeros((2, 3)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("output", [False, True])
@pytest.mark.parametrize("count", [2, 70_000])  # copied, and long enough to be borrowed
@pytest.mark.parametrize("data", ["none", "empty", "short", "long", "gaps"])
def test_a_source_has_exactly_its_bytes(device, output, count, data):
    whole = bytes(8 * count)
    wrong = {"none": None, "empty": b"", "short": whole[1 : 4 * count], "long": whole, "gaps": memoryview(whole)[::2]}
    c = jf.constant(Bytes(wrong[data], (count,)))
    with pytest.raises(errors.GraphError, match="constant's source"):
        jf.compile(c if output else ops.relu(c), device=device)


# ---- calls


class Shared:
    """An object with the methods of DLPack, which do what they are told."""

    def __init__(self, device: object, capsule: object) -> None:
        self.device, self.capsule = device, capsule

    def __dlpack_device__(self):
        return _made(self.device)

    def __dlpack__(self, **_):
        return _made(self.capsule)


def _made(value):
    if isinstance(value, Exception):
        raise value
    return value


@pytest.mark.parametrize(
    ("device", "capsule"),
    [
        (ZeroDivisionError("no"), None),
        ((1, 0), ZeroDivisionError("no")),
        ((1, 0), 5),
        ("x", None),
        (None, None),
        ((2, 0), None),
        ((1, 0), TypeError("no")),
    ],
)
def test_objects_that_break_the_dlpack_protocol(device, capsule):
    plan = jf.compile(ops.relu(jf.input("x", (2,))), device="reference")
    with pytest.raises(errors.PlanError, match="input 'x'"):
        plan(x=Shared(device, capsule))


@pytest.mark.parametrize("value", [np.ndarray, [1.0, 2.0], 1.0, "ab", {}, b"abcdefgh", iter(()), np.float32(1)])
def test_what_is_no_array_is_named(value):
    plan = jf.compile(ops.relu(jf.input("x", (2,))), device="reference")
    with pytest.raises(errors.PlanError, match="input 'x' is"):
        plan(x=value)


@pytest.mark.parametrize("name", ["keep", "self", "inputs", "é", "class"])
def test_an_input_may_have_any_identifier_as_its_name(name):
    plan = jf.compile(ops.scale(jf.input(name, (2,)), scale=2.0), device="reference")
    np.testing.assert_array_equal(plan(**{name: np.ones(2, np.float32)}), [2, 2])


# ---- empty tensors


def _empty_operands():
    """Graphs that make something of nothing, and what: the operand was itself made by a step."""
    nothing = ops.relu(jf.input("x", (3, 0)))
    other = ops.relu(jf.input("y", (5, 0)))
    some = jf.input("z", (2, 3))
    return {
        "sum": (ops.sum(nothing, axis=1), np.zeros(3)),
        "sum of all": (ops.sum(nothing, axis=None), np.zeros(())),
        "linear": (ops.linear(nothing, other), np.zeros((3, 5))),
        "matmul": (ops.matmul(nothing, other.T), np.zeros((3, 5))),
        "concatenate": (ops.concatenate(some.T, nothing, axis=1), np.arange(6).reshape(2, 3).T),
        "write": (ops.write(ops.contiguous(some), ops.reshape(nothing, shape=(0, 3)), start=(1, 0)), np.arange(6)),
        "view": (ops.sum(ops.broadcast_to(ops.reshape(nothing, shape=(1, 0)), shape=(4, 0)), axis=1), np.zeros(4)),
    }


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", _empty_operands())
def test_something_made_of_nothing(device, name):
    graph, want = _empty_operands()[name]
    plan = jf.compile(graph, device=device)
    arrays = {"x": np.zeros((3, 0)), "y": np.zeros((5, 0)), "z": np.arange(6.0).reshape(2, 3)}
    got = plan(**{n: arrays[n].astype(np.float32) for n in plan.inputs})
    np.testing.assert_array_equal(got.reshape(-1), np.reshape(want, -1))


# ---- calls and ends at once


class Gate:
    """An input that stops a call half way: its bytes are asked for when the call has begun."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def __dlpack_device__(self):
        self.reached.set()
        assert self.open.wait(60)
        return (1, 0)

    def __dlpack__(self, **keywords):
        return np.ones(2, np.float32).__dlpack__(**keywords)


@contextmanager
def under_way(plan):
    """A call of the plan is under way in another thread; its result comes with the end."""
    gate, results = Gate(), []
    thread = threading.Thread(target=lambda: results.append(plan(x=gate)))
    thread.start()
    try:
        assert gate.reached.wait(60)
        yield results
    finally:
        gate.open.set()
        thread.join()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_memory_of_a_call_is_never_freed_under_it(device, depth):
    session = jf.Session(device)
    plan = session.compile(ops.scale(jf.input("x", (2,)), scale=2.0))
    for _ in range(depth):
        plan = plan.clone()
    with under_way(plan) as results, pytest.raises(errors.Busy, match="close"):
        session.close()
    np.testing.assert_array_equal(results[0], [2, 2])
    session.close()
    with pytest.raises(errors.PlanError, match="closed"):
        plan(x=np.ones(2, np.float32))
    with pytest.raises(errors.PlanError, match="closed"):
        plan.clone()


_LEFT_RUNNING = """
import sys, threading, numpy as np, jackfield as jf
x = jf.input("x", (128, 512))
y = jf.ops.linear(x, jf.constant(np.ones((512, 512), np.float32)))
plan, begun = jf.compile(y, device=sys.argv[1]), threading.Event()
plan = plan.clone() if sys.argv[2] == "clone" else plan

def forever():
    try:
        while True:
            plan(x=np.ones((128, 512), np.float32))
            begun.set()
    except jf.errors.PlanError as e:
        assert "closed" in str(e)

threading.Thread(target=forever, daemon=True).start()
assert begun.wait(60)
"""


@pytest.mark.parametrize("device", ["reference", "sim"])
@pytest.mark.parametrize("what", ["plan", "clone"])
def test_a_process_may_end_during_a_call(device, what):
    command = [sys.executable, "-c", _LEFT_RUNNING, device, what]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ---- memory


@pytest.mark.parametrize("device", DEVICES)
def test_what_no_machine_holds_is_out_of_memory(device):
    with pytest.raises(errors.OutOfMemory):
        jf.compile(ops.tile(jf.input("x", (1,)), repeats=(2**55,)), device=device)


@pytest.mark.parametrize("value", [np.zeros((2, 3)), np.zeros((3, 2), np.float32), None, [1.0]])
def test_a_state_is_called_a_state(value):
    session = jf.Session("reference")
    session.compile(ops.relu(jf.state("s", (2, 3))))
    with pytest.raises(errors.PlanError, match="state 's' is"):
        session.states["s"].write(value)


@pytest.mark.parametrize("device", DEVICES)
def test_a_forked_child_is_told_what_helps_and_it_does(device):
    graph = ops.scale(jf.input("x", (2,)), scale=2.0)
    plan = jf.compile(graph, device=device)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a child that hangs dies, and the test fails
        text = "nothing was raised"
        try:
            plan(x=np.ones(2, np.float32))
        except errors.ForkedError as e:
            jf.refresh()
            text = f"{e} {jf.compile(graph, device=device)(x=np.ones(2, np.float32))}"
        finally:
            os.write(writing, text.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    assert "jf.refresh()" in text
    assert text.endswith("[2. 2.]")
    np.testing.assert_array_equal(plan(x=np.ones(2, np.float32)), [2, 2])
