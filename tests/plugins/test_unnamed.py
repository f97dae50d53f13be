"""A backend that nobody named, and that raises while a plan is made: the app goes on without it, and hears so once."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from environments import Environment
from wheels import build, source

import jackfield as jf
from jackfield import errors, ops, registry
from jackfield.backend import Memory, OutOfMemory, Rates
from jackfield.explain import explain
from jackfield.reference import ReferenceBackend, ReferenceDevice

PART = 3  # see thorough.py

RAISE = "raise RuntimeError('boom')"
SHORT = "from jackfield.backend import OutOfMemory; raise OutOfMemory('no room')"

# moment: (what is changed in the wheel's source, what its status says)
FAULTS = {
    "why_not": "Acme.why_not = fails",
    "cost": "Acme.cost = fails",
    "reads": "Acme.reads = fails",
    "pack": "Acme.pack = fails",
    "groups": "Toy.groups = fails",
    "scratch": "Toy.scratch = fails",
    "result_nbytes": "Toy.result_nbytes = fails",
    "alloc": "Toy.alloc = fails",
    "write": "Toy.write = fails",
    "compile": "Toy.compile = fails",
    "packing": "Acme.pack = lambda self, spec, users, target: Packing('odd', spec.nbytes, fails, None)",
    "no program": "Toy.compile = lambda self, run, scratch: None",
}
TOLD = {
    "why_not": "RuntimeError at why_not, reads or cost: boom",
    "cost": "RuntimeError at why_not, reads or cost: boom",
    "reads": "RuntimeError at why_not, reads or cost: boom",
    "alloc": "RuntimeError at first alloc: boom",
    "packing": "RuntimeError at packing odd: boom",
    "no program": "DeviceError at compile: {name}:0: compile gives a NoneType, must be a Program",
}

MORE = """

from jackfield.backend import Memory, Packing, Rates
live = []
made, freed = Toy.alloc, Toy.free
def alloc(self, nbytes, usage):
    live.append(made(self, nbytes, usage))
    return live[-1]
def free(self, buffer):
    live[:] = [one for one in live if one is not buffer]
def cost(self, step, target):
    return 0.0
def fails(*_):
    if sys.flags.isolated:
        raise SystemExit("this belongs to no rehearsal")
    {raises}
def kernels(self):
    f32 = frozenset(("f32",))
    return {{"add": Kernel({{"a": f32, "b": f32}}, f32, layouts={{"b": frozenset(("odd",))}})}}
Toy.alloc, Toy.free, Acme.cost, Acme.kernels = alloc, free, cost, kernels
Toy.target = Target(kind="{name}", arch="toy", rates=Rates(launch=0.0, copy_nbytes=1e18, copy_launch=0.0))
{memory}
{fault}
"""

APP = """
import json, logging, sys
import numpy as np, jackfield as jf
told = []
class Hears(logging.Handler):
    def emit(self, record):
        told.append([record.levelname, record.getMessage()])
logging.getLogger("jackfield").addHandler(Hears())
logging.getLogger("jackfield").setLevel("INFO")
x = jf.input("x", (3, 3))
sum_ = jf.ops.add(x.T, jf.constant(np.ones((3, 3), np.float32)))
found = {{"named": ""}}
device = {device!r}
session = jf.Session(device, policy={policy!r})
try:
    for _ in range(2):
        plan = session.compile(sum_)
        found["result"] = plan(x=np.full((3, 3), 2, np.float32)).tolist()
        found["devices"], found["notes"] = plan.devices, plan.explain().data["notes"]
except jf.errors.Error as e:
    found["named"] = [type(e).__name__, str(e), repr(e.__cause__)]
found["may"] = session.devices
module = sys.modules.get("jackfield_{name}")
found["live"] = len(module.live) if module else 0
s = next(s for s in jf.status() if s.name == "{name}")
found["status"] = [s.stage, s.state, s.code, s.error, s.hint, s.traceback]
if not found["named"]:
    again = jf.compile(sum_, "auto")
    found["again"] = again.devices
    found["warned"] = [text for level, text in told if level == "WARNING"]
print(json.dumps(found))
"""


def text_of(name, fault, raises=RAISE):
    memory = "Toy.memory = Memory(total=16 << 30, free=11 << 20)"
    return source(name) + MORE.format(name=name, fault=fault, raises=raises, memory=memory)


def names():
    return {moment: f"toy_{moment.replace(' ', '_')}" for moment in FAULTS}


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A wheel for each moment, of class gpu, which costs nothing and so wins."""
    folder = tmp_path_factory.mktemp("unnamed")
    made = Environment(folder)
    wheels = [
        build(folder, name, text_of(name, FAULTS[moment]), kinds=[{"kind": name, "class": "gpu"}])
        for moment, name in names().items()
    ]
    wheels.append(
        build(folder, "short", text_of("short", "Toy.alloc = fails", SHORT), kinds=[{"kind": "short", "class": "gpu"}])
    )
    wheels.append(build(folder, "fine", text_of("fine", ""), kinds=[{"kind": "fine", "class": "gpu"}]))
    made.install(*wheels)
    return made


def met(environment, name, device="auto", policy=None):
    app = APP.format(name=name, device=device, policy=policy)
    code, out, err = environment.run(app, JACKFIELD_BACKENDS=f"{name},cpu", JACKFIELD_PROBE="never")
    assert code == 0, err
    return json.loads(out)


def test_the_toy_wins_where_it_works(environment):
    found = met(environment, "fine")
    assert "fine:0" in found["devices"]  # the transposed input is made dense on the host
    assert "fine:0" in found["again"]
    assert found["warned"] == []
    assert found["live"] > 0


@pytest.mark.parametrize("moment", FAULTS)
def test_it_is_left_out(moment, environment):
    name = names()[moment]
    found = met(environment, name)
    assert found["result"] == [[3, 3, 3]] * 3
    assert f"{name}:0" not in [*found["devices"], *found["may"], *found["again"]]
    stage, state, code, error, hint, trace = found["status"]
    assert (stage, state, code) == ("open", "failed", "open-error")
    told = TOLD.get(moment, f"RuntimeError at {moment}: boom").format(name=name)
    assert error == f"{name}:0: {told}"
    assert hint == "report it to its vendor; jf.refresh() or its name tries it again"
    assert "Traceback" in trace or moment == "no program"
    assert found["warned"] == [f"backend not used: {error}; {hint}"]
    assert any(note.startswith(f"{name}:0 is left out: ") for note in found["notes"])
    assert found["live"] == 0


def test_one_that_is_full_says_how_much_it_has(environment):
    found = met(environment, "short")
    assert found["result"] == [[3, 3, 3]] * 3
    _, _, code, error, hint, _ = found["status"]
    assert (code, error) == ("open-error", "short:0: OutOfMemory at first alloc: no room")
    assert hint.startswith("11.0 MiB of 16.0 GiB free")
    assert len(found["warned"]) == 1


@pytest.mark.parametrize("policy", ["strict", None])
@pytest.mark.parametrize("moment", ["alloc", "write", "pack", "compile"])
def test_who_names_it_or_is_strict_hears_the_cause(moment, policy, environment):
    name = names()[moment]
    found = met(environment, name, "auto" if policy else f"{name}+reference", policy)
    assert found["named"] == ["DeviceError", f"{name}:0: {moment} raised RuntimeError: boom", "RuntimeError('boom')"]
    assert found["live"] == 0
    assert found["status"][2] == ("open-error" if moment == "alloc" else "")


# Plans that the Session has made before


class Counted(ReferenceDevice):
    """Of the class gpu. fails: what it does from now on, by the name of a method."""

    fails: ClassVar[dict] = {}
    live: ClassVar[list] = []

    def __init__(self):
        super().__init__()
        self.name = "toy:0"
        self.target = replace(self.target, rates=Rates(launch=0.0, copy_nbytes=1e18, copy_launch=0.0))

    def _may_fail(self, what):
        if what in self.fails:
            raise self.fails[what]

    def alloc(self, nbytes, usage):
        self._may_fail("alloc")
        self.live.append(super().alloc(nbytes, usage))
        return self.live[-1]

    def free(self, buffer):
        self.live[:] = [one for one in self.live if one is not buffer]

    def compile(self, run, scratch):
        self._may_fail("compile")
        return super().compile(run, scratch)


class CountedBackend(ReferenceBackend):
    name = "toy"

    def devices(self):
        return [Counted()]

    def cost(self, step, target):
        return 0.0


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setenv("JACKFIELD_BACKENDS", "nobody")  # nothing that is installed
    monkeypatch.setattr(Counted, "fails", {})
    monkeypatch.setattr(Counted, "live", [])
    registry.refresh()
    jf.register_backend(CountedBackend, device_class="gpu")
    yield Counted
    registry.unregister_backend("toy")
    registry.refresh()


def graph(rows):
    x = jf.input("x", (rows, 2))
    return ops.relu(ops.add(x, jf.constant(np.ones((rows, 2), np.float32))))


def state():
    return next(s for s in jf.status() if s.name == "toy")


@pytest.mark.parametrize(
    ("method", "error", "code"),
    [
        ("compile", RuntimeError("boom"), "open-error"),
        ("alloc", RuntimeError("boom"), "open-error"),
        ("alloc", OutOfMemory("full"), ""),  # it has given memory: it is full, and not broken
        ("alloc", MemoryError(), ""),
    ],
)
def test_earlier_plans_stay_as_they_are(method, error, code, toy, caplog):
    """The arena grows for the new plan, and the earlier one would be compiled anew."""
    with jf.Session() as session:
        first = session.compile(graph(4))
        assert first.devices == ("toy:0",)
        held, arenas = len(toy.live), session._store.arenas.chunks["toy:0"][:]
        toy.fails[method] = error
        with caplog.at_level(logging.WARNING, "jackfield"):
            second = session.compile(graph(4000))
        assert second.devices == ("reference:0",)
        assert len(caplog.records) == 1
        assert state().code == code
        assert len(toy.live) == held
        assert session._store.arenas.chunks["toy:0"] == arenas
        for plan, rows in ((first, 4), (second, 4000), (first, 4)):
            np.testing.assert_array_equal(plan(x=np.ones((rows, 2), np.float32)), np.full((rows, 2), 2, np.float32))
        toy.fails.clear()
        third = session.compile(graph(5000))
        assert third.devices == (("reference:0",) if code else ("toy:0",))
        np.testing.assert_array_equal(first(x=np.ones((4, 2), np.float32)), np.full((4, 2), 2, np.float32))
    assert toy.live == []


def test_a_state_that_lives_there_keeps_its_plans(toy):
    """There is no way without its device, and the error says why."""
    with jf.Session() as session:
        first = session.compile(ops.write(jf.state("s", (2, 2)), jf.input("x", (2, 2)), start=(0, 0)))
        toy.fails["compile"] = RuntimeError("boom")
        with pytest.raises(errors.PlanError, match="state 's' lives on toy:0") as caught:
            session.compile(ops.relu(jf.state("s", (2, 2))))
        assert "toy:0: compile raised RuntimeError: boom" in str(caught.value.__cause__)
        assert first(x=np.ones((2, 2), np.float32)).tolist() == [[1, 1], [1, 1]]


def test_a_name_tries_it_again(toy):
    toy.fails["compile"] = RuntimeError("boom")
    assert jf.compile(graph(4)).devices == ("reference:0",)
    assert (state().state, state().code) == ("failed", "open-error")
    assert "toy:0" not in [one.name for one in jf.devices()]
    with pytest.raises(errors.DeviceError, match="boom"):
        jf.compile(graph(4), "toy")
    toy.fails.clear()
    assert jf.compile(graph(4), "toy").devices == ("toy:0",)
    assert (state().state, state().error) == ("ok", None)
    assert jf.compile(graph(4)).devices == ("toy:0",)


def test_a_pin_names_it(toy):
    toy.fails["compile"] = RuntimeError("boom")
    with pytest.raises(errors.DeviceError, match="boom"), jf.Session() as session:
        session.compile(graph(4), pins=[("add.0", "toy")])


def test_work_of_the_user_is_done_once_and_stays_his(toy):
    toy.fails["compile"] = RuntimeError("boom")
    done = []
    with jf.Session() as session:
        session.compile(graph(4), meanwhile=lambda: done.append(1))
        assert done == [1]

        def compiles():
            jf.compile(graph(4), "toy", policy="strict")

        with pytest.raises(errors.DeviceError, match="boom"):
            session.compile(graph(5), meanwhile=compiles)


def test_a_report_leaves_it_out_too(toy, monkeypatch):
    def groups(self, steps):
        raise RuntimeError("boom")

    monkeypatch.setattr(Counted, "groups", groups)
    assert explain(graph(4)).data["summary"]["by_device"] == {"reference:0": 2}
    with pytest.raises(errors.DeviceError, match="groups raised RuntimeError: boom"):
        explain(graph(4), "toy")


def test_a_plan_too_large_for_it_goes_elsewhere(toy, monkeypatch, caplog):
    monkeypatch.setattr(Counted, "memory", Memory(total=1 << 20, free=1 << 12))
    with jf.Session() as session, caplog.at_level(logging.WARNING, "jackfield"):
        plan = session.compile(ops.relu(ops.relu(jf.input("x", (4096,)))))
        assert plan.devices == ("reference:0",)
        assert len(caplog.records) == 1
        assert "toy:0 is left out of this plan: toy:0: the plan needs" in caplog.text
        assert session.compile(graph(4)).devices == ("toy:0",)
    assert state().state == "ok"
