"""A device that raises or answers what it must not: an error that names it, and nothing else is harmed."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import jackfield as jf
from jackfield import errors, ops, registry
from jackfield.reference import ReferenceBackend, ReferenceDevice

RAISED = (RuntimeError("boom"), SystemExit(3), KeyError("boom"), MemoryError(), StopIteration(), AssertionError("boom"))
METHODS = ("alloc", "write", "compile", "groups", "scratch", "result_nbytes", "borrow")
NOTHING = type("Nothing", (), {"__repr__": lambda self: "nothing"})()  # an object with the same name in every process
GIVEN = (5, "text", None, NOTHING, 2.5)
X = np.ones((4, 8), np.float32)


def graph():
    """A constant, a state, and steps; the constant is long enough to be borrowed."""
    weight = jf.constant(np.eye(4096, 8, dtype=np.float32))
    y = ops.linear(jf.input("x", (4, 8)), weight)
    return ops.relu(ops.write(jf.state("s", (4, 4096)), y, start=(0, 0)))


def fails(error):
    def call(*_, **__):
        raise error

    return call


def gives(value):
    return lambda *_, **__: value


@pytest.fixture
def toy():
    """toy(device, backend, program): registers a reference that is changed so; its name is toy."""

    def register(device=None, backend=None, program=None, device_class="accel"):
        changed = type("Changed", (ReferenceDevice,), dict(device or {}))
        if program is not None:
            compiled = ReferenceDevice.compile

            def compile_(self, run, scratch):
                made = compiled(self, run, scratch)
                made.__class__ = type("Program", (type(made),), dict(program))
                return made

            changed.compile = compile_

        def devices(_):
            one = changed()
            if not {"name"} & set(device or {}):
                one.name = "toy:0"
            for name in {"target", "memory", "alignment", "name"} & set(device or {}):
                setattr(one, name, device[name])
            return [one]

        methods = {"name": "toy", "devices": devices, **(backend or {})}
        jf.register_backend(type("Toy", (ReferenceBackend,), methods), device_class=device_class)

    yield register
    registry.unregister_backend("toy")


def called():
    with jf.Session("toy+reference") as session:
        session.compile(graph())(x=X)


@pytest.mark.parametrize("error", RAISED, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("method", METHODS)
def test_what_a_device_raises_names_it_and_keeps_the_cause(toy, method, error):
    toy({method: fails(error)})
    wanted = errors.OutOfMemory if isinstance(error, MemoryError) else errors.DeviceError
    with pytest.raises(wanted, match=f"toy:0: {method} raised {type(error).__name__}") as caught:
        called()
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", RAISED, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize(("part", "method"), [("program", "run"), ("program", "check"), ("device", "read")])
def test_what_a_call_raises_marks_the_state(toy, part, method, error):
    toy(**{part: {method: fails(error)}})
    session = jf.Session("toy")
    plan = session.compile(graph())
    with pytest.raises(errors.DeviceError, match=f"toy:0: a call raised {type(error).__name__}") as caught:
        plan(x=X)
    assert caught.value.__cause__ is error
    with pytest.raises(errors.PlanError, match="state 's' is incomplete"):
        plan(x=X)
    session.close()


@pytest.mark.parametrize("error", RAISED, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("method", ["why_not", "reads", "cost"])
def test_a_backend_that_raises_when_asked_is_passed_over(toy, method, error):
    toy(backend={method: fails(error)})
    with jf.Session("toy+reference") as session:
        np.testing.assert_array_equal(session.compile(graph())(x=X)[:, :8], X)


@pytest.mark.parametrize("error", RAISED, ids=lambda e: type(e).__name__)
def test_a_buffer_that_cannot_be_freed_is_told(toy, error, caplog):
    toy({"free": fails(error)})
    with caplog.at_level(logging.WARNING, "jackfield"):
        called()
    assert {r.message.split(":")[0] for r in caplog.records} == {"toy"}
    assert all(f"could not be freed: {type(error).__name__}" in r.message for r in caplog.records)


@pytest.mark.parametrize(
    ("method", "value"),
    [(m, v) for m in ("compile", "groups", "pack") for v in GIVEN if (m, v) != ("pack", None)],  # there None is one
    ids=repr,
)
def test_answers_of_a_wrong_type_name_the_device(toy, method, value):
    toy(**{"backend" if method == "pack" else "device": {method: gives(value)}})
    with pytest.raises(errors.DeviceError, match=rf"toy:0: {method} gives a {type(value).__name__}, must be"):
        called()


@pytest.mark.parametrize("value", ["text", None, NOTHING, 2.5], ids=repr)
@pytest.mark.parametrize("method", ["scratch", "result_nbytes"])
def test_sizes_are_whole_numbers(toy, method, value):
    toy({method: gives(value)})
    with pytest.raises(errors.DeviceError, match=f"toy:0: {method} raised TypeError"):
        called()


@pytest.mark.parametrize("value", ["text", None, NOTHING, 2.5, {}], ids=repr)
@pytest.mark.parametrize("field", ["name", "target", "memory", "alignment"])
def test_a_device_without_its_fields_is_refused(toy, field, value):
    toy({field: value})
    with pytest.raises(errors.ContractError, match=rf"a device.* {field}|is called"):
        called()
