"""Fields of a plugin's objects that raise: a property runs its code, and the others go on whatever it does."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
from environments import Environment
from wheels import build, source

import jackfield as jf
from jackfield import errors, ops, registry
from jackfield.backend import Memory
from jackfield.opened import FIELDS
from jackfield.reference import ReferenceBackend, ReferenceDevice


class Odd(BaseException):
    """No Exception, and no interrupt either."""


class Mute(Exception):
    """Its text can't be had."""

    def __str__(self):
        raise ValueError("no text")


RAISED = (RuntimeError("boom"), SystemExit(3), Odd("boom"), Mute(), KeyError("boom"), AttributeError("boom"))
GIVEN = [given for given, _ in FIELDS]
X = jf.input("x", (3,))
ONES = np.ones(3, np.float32)


def raises(error, *, after=0):
    """A property that raises from its read number `after` + 1 on; before it has the reference's value."""
    reads = []

    def read(self):
        reads.append(1)
        if len(reads) > after:
            raise error
        return "toy:0" if self.given == "name" else getattr(ReferenceDevice(), self.given)

    return property(read, lambda self, value: None)


@pytest.fixture
def toy():
    """toy(device={}, backend={}): registers a reference with these changes; its name is toy."""

    def register(device=None, backend=None):
        given = next(iter(device or {}), "")
        changed = type("Changed", (ReferenceDevice,), {"name": "toy:0", "given": given, **(device or {})})
        changed.__init__ = lambda self: None
        methods = {"name": "toy", "devices": lambda _: [changed()], **(backend or {})}
        jf.register_backend(type("Toy", (ReferenceBackend,), methods)(), device_class="gpu")

    yield register
    registry.unregister_backend("toy")
    registry.refresh()


def others_go_on():
    names = [info.name for info in jf.devices()]
    assert "reference:0" in names
    assert jf.compile(ops.add(X, X))(x=ONES).tolist() == [2, 2, 2]
    return names


@pytest.mark.parametrize("error", RAISED, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("given", GIVEN)
def test_a_field_that_raises_stops_this_backend_alone(toy, given, error):
    toy({given: raises(error)})
    assert "toy:0" not in others_go_on()
    missing = isinstance(error, AttributeError)
    wanted = errors.ContractError if missing else errors.DeviceError
    says = f"has no {given}" if missing else f"{given} raised {type(error).__name__}"
    with pytest.raises(wanted, match=says) as told:
        jf.Session("toy")
    assert told.value.__cause__ is error
    status = told.value.status
    assert (status.stage, status.code) == (("contract", "disagrees") if missing else ("open", "open-error"))
    assert "raise error" in status.traceback


@pytest.mark.parametrize("given", GIVEN)
def test_an_interrupt_passes(toy, given):
    toy({given: raises(KeyboardInterrupt())})
    with pytest.raises(KeyboardInterrupt):
        jf.Session("toy")


class Trap(dict):
    """A table that raises once it is looked into."""

    def keys(self):
        raise RuntimeError("boom")

    __iter__ = values = items = keys


BACKEND = {
    "api": lambda error: raises(error, after=0),
    "spoken": lambda error: property(lambda self: (0, 1), lambda self, value: _raise(error)),
    "kernels": lambda error: lambda self: _raise(error),
    "devices": lambda error: lambda self: (_raise(error) for _ in range(1)),
}


def _raise(error):
    raise error


@pytest.mark.parametrize("error", RAISED, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("part", BACKEND)
def test_a_backend_that_raises_when_read_stops_alone(toy, part, error):
    toy(backend={"given": part, part: BACKEND[part](error)})
    others_go_on()
    wanted = errors.ContractError if part in ("api", "spoken") else errors.DeviceError
    if part == "api" and isinstance(error, AttributeError):
        wanted = errors.ContractError
    with pytest.raises(wanted) as told:
        jf.Session("toy")
    assert told.value.__cause__ in (error, None if isinstance(error, AttributeError) else error)


def test_a_table_that_raises_is_no_table(toy):
    toy(backend={"kernels": lambda self: Trap(add=1)})
    others_go_on()
    with pytest.raises(errors.DeviceError, match="RuntimeError: boom"):
        jf.Session("toy")


@pytest.mark.parametrize("error", [e for e in RAISED if not isinstance(e, Odd)], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("given", GIVEN)
def test_what_raises_once_it_is_open_harms_nobody(toy, given, error, caplog):
    """Alone it is used as it was known, or its own error; beside it the others go on. Each is told once."""
    toy({given: raises(error, after=1)})
    assert "toy:0" in [opened.name for opened in registry.select("toy").devices]
    with caplog.at_level(logging.WARNING, "jackfield"):
        infos = {info.name: info for info in jf.devices()}
        jf.devices()
    assert "toy:0" in infos
    if given == "memory":
        assert infos["toy:0"].memory == Memory()
    told = [r.message for r in caplog.records if "can't be read any more" in r.message]
    assert len(told) == (1 if given in ("memory", "target") else 0)
    try:
        assert jf.compile(ops.add(X, X), device="toy+reference")(x=ONES).tolist() == [2, 2, 2]
        assert given not in ("name", "target", "alignment")
    except errors.DeviceError as e:
        assert e.__cause__ is error
        assert given in ("name", "target", "alignment")


@pytest.mark.parametrize("error", RAISED, ids=lambda e: type(e).__name__)
def test_targets_that_raise_are_a_note(toy, error):
    toy(backend={"targets": lambda self: _raise(error)})
    backend, targets = registry.ask("toy")
    assert backend is not None
    assert [t.kind for t in targets] == []  # those of its devices are of the reference's kind
    (status,) = (s for s in jf.status() if s.name == "toy")
    assert any(f"targets() raised {type(error).__name__}" in note for note in status.notes)


def test_targets_of_a_wrong_type_are_a_note(toy):
    toy(backend={"targets": lambda self: [3]})
    registry.ask("toy")
    (status,) = (s for s in jf.status() if s.name == "toy")
    assert "targets() holds a int, must hold Targets" in status.notes


# Wheels

HOST = """
import json
import numpy as np
import jackfield as jf
from click.testing import CliRunner
from jackfield.cli.app import app
x = jf.input("x", (3,))
names = [d.name for d in jf.devices()]
assert jf.compile(jf.ops.add(x, x))(x=np.ones(3, np.float32)).tolist() == [2, 2, 2]
found = {}
for name in %r:
    try:
        jf.Session(name)
        found[name] = None
    except jf.errors.Error as e:
        found[name] = [type(e).__name__, e.status.stage, e.status.code, type(e.__cause__).__name__, str(e)]
why = CliRunner().invoke(app, ["why", "targets_boom", "add", "--json"])
print(json.dumps([names, found, why.exit_code, json.loads(why.stdout)]))
"""
WHEELS = {
    "memory_boom": ("    target = Target", "    @property\n    def memory(self):\n        {0}\n\n    target = Target"),
    "target_exit": ("    target = Target", "    @property\n    def target(self):\n        {0}\n\n    other = Target"),
    "api_boom": (", (0, 1)\n", ", None\n\n    @property\n    def api(self):\n        {0}\n"),
    "targets_boom": ("    def kernels", "    def targets(self):\n        {0}\n\n    def kernels"),
    "why_boom": ("    def kernels", "    def why_not(self, step, target):\n        {0}\n\n    def kernels"),
}


def test_wheels_that_raise_when_read(tmp_path):
    environment = Environment(tmp_path)
    wheels = [build(tmp_path, "good", source("good"))]
    for name, (old, new) in WHEELS.items():
        text = source(name)
        assert text.count(old) == 1
        what = "raise SystemExit(3)" if name.endswith("exit") else "raise RuntimeError('boom')"
        wheels.append(build(tmp_path, name, text.replace(old, new.format(what))))
    environment.install(*wheels)
    code, out, err = environment.run(HOST % list(WHEELS))
    assert code == 0, err
    names, found, exit_code, why = json.loads(out.splitlines()[-1])
    assert {"good:0", "targets_boom:0", "why_boom:0"} <= set(names)
    assert found["targets_boom"] is found["why_boom"] is None
    for name, error, stage, cause in (
        ("memory_boom", "DeviceError", "open", "RuntimeError"),
        ("target_exit", "DeviceError", "open", "SystemExit"),
        ("api_boom", "ContractError", "contract", "RuntimeError"),
    ):
        assert found[name][:2] == [error, stage]
        assert found[name][3] == cause
        assert name.partition("_")[0] in found[name][4]
    assert exit_code == 0, "its devices answer"
    assert why["targets"][0]["arch"] == "toy"
    assert any("targets() raised RuntimeError: boom" in note for stage in why["stages"] for note in stage["notes"])
