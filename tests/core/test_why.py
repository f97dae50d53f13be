"""`jackfield why`: one device, how far its backend came, what is used instead, and which steps of an op it takes."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from fakes import registered

from jackfield.backend import Backend, Kernel, Reason, Target, Unavailable
from jackfield.cli.app import app

pytestmark = pytest.mark.usefixtures("only_core")


def run(*words):
    return CliRunner().invoke(app, ["why", *words], prog_name="jackfield")


def parsed(*words):
    done = run(*words, "--json")
    return json.loads(done.stdout), done.exit_code


F32 = frozenset({"f32"})


class Half(Backend):
    """No hardware, but two targets: one sums any axis, the other only the last."""

    name, api = "half", (0, 1)

    def devices(self):
        raise Unavailable("no driver: libhalf.so")

    def targets(self):
        return [Target(kind=self.name, arch=arch) for arch in ("old", "new")]

    def kernels(self):
        return {"sum": Kernel({"x": F32}, F32, frozenset({"axis", "keepdims"}))}

    def why_not(self, step, target):
        last = step.attrs["axis"] in (-1, step.operands[0].rank - 1)
        return None if target.arch == "new" or last else Reason("sum: only the last axis", "attribute")


def test_a_device_that_is_there():
    fields, code = parsed("sim")
    assert code == 0
    assert list(fields) == ["schema", "asked", "answer", "devices", "error", "hint", "instead", "stages"]
    assert (fields["schema"], fields["answer"], fields["devices"], fields["instead"]) == (
        "jackfield.why/1",
        "ok",
        ["sim:0"],
        [],
    )
    (stage,) = fields["stages"]
    assert (stage["name"], stage["state"]) == ("sim", "ok")
    assert "sim: ok (sim:0)" in run("sim").output


def test_an_index_that_is_not_there():
    fields, code = parsed("sim:7")
    assert (code, fields["answer"], fields["instead"]) == (1, "absent", ["reference:0"])
    assert "1 device of kind sim: sim:0" in fields["error"]


def test_hardware_that_is_missing():
    with registered(Half()):
        fields, code = parsed("half")
    assert (code, fields["answer"], fields["instead"]) == (1, "absent", ["reference:0"])
    assert "no driver: libhalf.so" in fields["error"]
    assert fields["stages"][0]["code"] == "no-device"


def test_an_op_is_asked_of_every_target_without_hardware():
    with registered(Half()):
        all_, code = parsed("half", "sum", "--dtype", "f32")
        first, _ = parsed("half", "sum", "--dtype", "f32", "--axis", "0")
        none, failed = parsed("half", "relu")
    assert code == 0
    old, new = all_["targets"]
    assert (old["arch"], new["arch"]) == ("old", "new")
    assert 0 < old["taken"] < old["cases"] == new["taken"]
    (reason,) = old["reasons"]
    assert (reason["code"], reason["reason"]) == ("attribute", "sum: only the last axis")
    assert old["taken"] + reason["cases"] == old["cases"]
    assert all_["operands"] == [{"name": "x", "dtypes": ["f32"]}]
    assert (all_["takes"], all_["code"], all_["reason"]) == (True, None, None), "one of the targets takes all"
    assert (old["takes"], old["code"], old["reason"]) == (False, "attribute", "sum: only the last axis")
    assert first["targets"][0]["taken"] < old["taken"]
    assert first["targets"][1]["taken"] == first["targets"][1]["cases"] > 0
    assert failed == 1
    assert none["targets"][0]["reasons"][0]["code"] == "op"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("cuad",), "no kind of device"),
        (("CPU",), "did you mean cpu?"),
        (("sim", "summ"), "did you mean sum?"),
        (("sim", "sum", "--dtype", "f33"), "no dtype"),
        (("sim", "sum", "--axes", "0"), "it has: axis, keepdims"),
        (("sim", "sum", "--axis"), "has no value"),
        (("sim", "--dtype", "f32"), "name one after the device"),
        ((), "Missing argument"),
    ],
)
def test_a_question_that_is_none(words, says):
    done = run(*words)
    assert done.exit_code == 2
    assert says in done.output
