"""Wheels of several vendors in one environment: one plan over all, two of one name, answers without hardware."""

from __future__ import annotations

import json
import types

import pytest
from environments import Environment
from wheels import build, source

from jackfield.conformance.claims import claims

VENDOR = """
import time

import numpy as np

from jackfield.backend import Backend, Device, Kernel, Program, Rates, Span, Target, hookimpl

BODY = {body}
DONE = []


class Steps(Program):
    def __init__(self, steps):
        self.steps = steps

    def run(self):
        for name, operands, result in self.steps:
            began = time.perf_counter()
            result[...] = BODY(*operands)
            DONE.append(Span(name, began, time.perf_counter() - began))


class Card(Device):
    name = "{name}:0"
    target = Target("{name}", "toy", rates=Rates(1e15, 1e15, 1e-9, 1e15, 1e-9))

    def alloc(self, nbytes, usage):
        return np.zeros(nbytes, np.uint8)

    def free(self, buffer):
        pass

    def write(self, buffer, offset, data):
        buffer[offset : offset + data.nbytes] = data

    def read(self, buffer, offset, out):
        out[:] = buffer[offset : offset + out.nbytes].data

    def compile(self, run, scratch):
        def array(place):
            spec = place.spec
            return np.ndarray(spec.shape, np.float32, place.buffer, place.offset, spec.byte_strides)

        placed = [p for group in run for p in group.steps]
        return Steps([(p.step.op, [array(o) for o in p.operands], array(p.result)) for p in placed])


class Vendor(Backend):
    name, api = "{name}", (0, 1)

    def devices(self):
        return [Card()]

    def kernels(self):
        f32 = frozenset(["f32"])
        return {{"{op}": Kernel(dict.fromkeys({operands}, f32), f32)}}


@hookimpl
def jackfield_backend():
    return Vendor()


@hookimpl
def jackfield_spans(device):
    {spans}
"""
TOLD = "done = list(DONE); DONE.clear(); return done"


def vendor(name, op, operands, body, spans=TOLD):
    return VENDOR.format(name=name, op=op, operands=operands, body=body, spans=spans)


VENDORS = {
    "aa": vendor("aa", "add", ["a", "b"], "lambda a, b: a + b"),
    "bb": vendor("bb", "multiply", ["a", "b"], "lambda a, b: a * b", "raise RuntimeError('no clock')"),
    "cc": vendor("cc", "relu", ["x"], "lambda x: np.maximum(x, 0)"),
}

# Two targets, no hardware: one sums any axis, the other only the last.
ABSENT = """
from jackfield.backend import Backend, Kernel, Reason, Target, Unavailable, hookimpl

F32 = frozenset(["f32"])


class Absent(Backend):
    name, api = "{name}", (0, 1)

    def devices(self):
        raise Unavailable("no {name} driver: lib{name}.so not found")

    def targets(self):
        return [Target("{name}", arch) for arch in ("old", "new")]

    def kernels(self):
        return {{"sum": Kernel({{"x": F32}}, F32, frozenset(["axis", "keepdims"])), "relu": Kernel({{"x": F32}}, F32)}}

    def why_not(self, step, target):
        if step.op != "sum" or step.attrs["axis"] in (-1, step.operands[0].rank - 1):
            return None
        if target.arch == "old":
            return Reason("sum: only the last axis", "attribute")
        return Reason("sum: an axis, not all", "attribute") if step.attrs["axis"] is None else None


@hookimpl
def jackfield_backend():
    return Absent()
"""


def claims_of(text):
    """What a backend's text claims at its first target."""
    module = types.ModuleType("asked")
    exec(text, module.__dict__)
    backend = module.jackfield_backend()
    return claims(backend, backend.targets()[0])


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vendors")
    made = Environment(folder)
    wheels = [build(folder, name, text) for name, text in VENDORS.items()]
    for name, more in (("gone", {}), ("mars", {"platforms": ["mars/z80"]})):
        text = ABSENT.format(name=name)
        beside = {"claims.txt": claims_of(text).encode()}
        wheels.append(build(folder, name, text, claims="claims.txt", beside=beside, **more))
    issues = "https://example.com/issues"
    wheels.append(build(folder, "boom", source("boom", "segfault", "import"), issues=issues))
    made.install(*wheels)
    return made


def command(environment, *words):
    code = f"import sys; sys.argv = {['jackfield', *words]!r}; from jackfield.cli import main; main()"
    return environment.run(code)


PLAN = """
import json, sys
import numpy as np
import jackfield as jf

y = x = jf.input("x", (256, 256))
c = jf.constant(np.full((256, 256), 0.75, np.float32))
for i in range(66):
    y = jf.ops.relu(jf.ops.multiply(jf.ops.add(y, x), c))
y = jf.ops.tanh(jf.ops.tanh(y))
data = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
plan = jf.compile(y, device="aa+bb+cc+{host}", policy="strict")
out, want = plan(x=data), jf.compile(y, device="reference")(x=data)
summary = plan.explain().to_dict()["summary"]
spans = [(e["args"]["device"], e["name"]) for e in plan.trace()["traceEvents"] if e["ph"] == "X" and e["tid"]]
notes = [note for s in jf.status() if s.name == "bb" for note in s.notes]
print(json.dumps([float(np.abs(out - want).max()), summary, sorted(set(spans)), len(spans), notes]))
"""


def test_three_vendors_and_a_host_share_one_plan(environment):
    code, out, err = environment.run(PLAN.replace("{host}", "reference"))
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith("200 nodes: aa:0 66, bb:0 66 (multiply: no kernel for multiply), cc:0 66 (relu: ")
    off, summary, spans, count, notes = json.loads(out)
    assert off <= 1e-6
    assert summary["nodes"] == 200
    assert summary["by_device"] == {"aa:0": 66, "bb:0": 66, "cc:0": 66, "reference:0": 2}
    assert spans == [["aa:0", "add"], ["cc:0", "relu"]], "times of their own, and bb's clock is broken"
    assert count == 132
    assert any("jackfield_spans: RuntimeError: no clock" in note for note in notes)


def test_with_the_cpu(environment, absent):
    try:
        import jackfield_cpu  # noqa: F401
    except ImportError as e:
        absent("cpu", str(e))
    code, out, err = environment.run(PLAN.replace("{host}", "cpu"))
    assert (code, err.count("\n")) == (0, 1)
    off, summary, *_ = json.loads(out)
    assert off <= 1e-5
    assert summary["by_device"] == {"aa:0": 66, "bb:0": 66, "cc:0": 66, "cpu:0": 2}


# Two wheels of one name

LOOK = """
import json
import jackfield as jf
from jackfield import registry

states = {s.dist: s.code for s in jf.status() if s.name == "acme"}
print(json.dumps(states))
"""
OPEN = """
import json
from jackfield import registry

found = {}
for text in ("acme", "jackfield-acme/acme:0", "acme-fork/acme:0"):
    registry.refresh()
    (opened,) = registry.select(text).devices
    found[text] = type(opened.backend).__module__
print(json.dumps(found))
"""


@pytest.mark.parametrize("order", [1, -1])
def test_two_wheels_of_one_name(order, tmp_path):
    made = Environment(tmp_path)
    wheels = [build(tmp_path, "acme", source("acme")), build(tmp_path, "acme", source("acme"), dist="acme_fork")]
    for wheel in wheels[::order]:
        made.install(wheel)
    for seed in range(10):
        code, out, err = made.run(LOOK, PYTHONHASHSEED=str(seed))
        assert code == 0
        assert json.loads(out) == {"acme-fork": "", "jackfield-acme": "duplicate"}
        (line,) = err.splitlines()
        assert line == (
            f"acme is offered twice: acme-fork 1.0 ({made.site / 'acme_fork-1.0.dist-info'}) is used, "
            f"jackfield-acme 1.0 ({made.site / 'jackfield_acme-1.0.dist-info'}) is not; "
            "JACKFIELD_BACKENDS=acme=jackfield-acme chooses this one"
        )
    code, out, _ = made.run(OPEN)
    assert code == 0
    assert json.loads(out) == {
        "acme": "acme_fork",
        "jackfield-acme/acme:0": "jackfield_acme",
        "acme-fork/acme:0": "acme_fork",
    }
    code, out, err = made.run(LOOK, JACKFIELD_BACKENDS="acme=jackfield-acme")
    assert json.loads(out) == {"acme-fork": "duplicate", "jackfield-acme": ""}
    assert err == "", "who has chosen is not warned"


# Answers


def test_an_op_is_asked_of_every_target_without_hardware(environment):
    code, out, _ = command(environment, "why", "gone", "sum", "--dtype", "f32", "--axis", "0")
    assert code == 0
    text = " ".join(out.split())
    assert "gone: absent" in text
    assert "libgone.so not found" in text
    assert "refused [attribute]: sum: only the last axis" in text
    assert "on new: " in text
    code, out, _ = command(environment, "why", "gone", "sum", "--dtype", "f32", "--axis", "None", "--json")
    fields = json.loads(out)
    assert [(t["arch"], t["takes"], t["reason"]) for t in fields["targets"]] == [
        ("old", False, "sum: only the last axis"),
        ("new", False, "sum: an axis, not all"),
    ]
    assert (code, fields["answer"], fields["takes"], fields["code"]) == (1, "absent", False, "attribute")


def test_the_claims_file_is_true_without_hardware(environment):
    made = environment.run("import sys; from jackfield_conformance.__main__ import main; sys.exit(main(['gone']))")
    assert made[0] == 0
    assert made[1] == claims_of(ABSENT.format(name="gone"))
    assert "sum f32" in made[1]


def test_a_wheel_that_cannot_load_here_is_answered_for_by_its_claims(environment):
    code, out, _ = command(environment, "why", "mars", "sum", "--json")
    fields = json.loads(out)
    (row,) = (one for one in fields["targets"] if one["arch"] == "f32")
    assert (row["source"], fields["answer"], row["takes"]) == ("claims", "absent", False)
    assert 0 < row["taken"] < row["cases"]
    assert (
        row["reason"]
        == f"{row['taken']} of {row['cases']} cases of f32, says its claims file, not which cases those are"
    )
    assert code == 0
    assert command(environment, "why", "mars", "relu", "--dtype", "f32")[0] == 0
    code, out, _ = command(environment, "why", "mars", "tanh", "--json")
    assert (code, json.loads(out)["takes"]) == (1, False)


def test_a_backend_that_crashes_is_told_with_stage_signal_and_link(environment):
    code, out, _ = command(environment, "why", "boom", "--json")
    fields = json.loads(out)
    (stage,) = fields["stages"]
    assert (code, fields["answer"], stage["stage"], stage["code"], stage["where"]) == (
        1, "crashed", "probe", "crashed", "child"
    )  # fmt: skip
    assert "SIGSEGV" in stage["error"]
    assert "import" in stage["error"]
    assert "report it to https://example.com/issues" in fields["hint"]
    assert fields["instead"][-1] == "reference:0"
    code, out, _ = command(environment, "why", "boom")
    assert "hint: report it to https://example.com/issues" in out


def test_an_index_that_is_not_there_lists_the_card(environment):
    code, out, _ = command(environment, "why", "aa:1", "--json")
    fields = json.loads(out)
    assert (code, fields["answer"]) == (1, "absent")
    assert "1 device of kind aa: aa:0 (toy)" in fields["error"]
    assert "reference:0" in fields["instead"]
