"""Documents that commands print with --json: which keys they have, in which order. Programs rely on these."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cards import Card, Cards
from click.testing import CliRunner
from fakes import Minimal, Packer, Picky, registered

import jackfield as jf
from jackfield import ops
from jackfield.backend import Rates
from jackfield.cli.app import app

DEVICE = "name id kind class backend card vendor model arch driver memory flags simulated state"
STATUS = "name dist version build stage state code error hint traceback where seconds notes"

KEYS = {
    "devices": {
        "": "schema devices chosen error",
        "devices[]": DEVICE,
        "devices[].memory": "total free",
    },
    "why": {"": "schema asked answer devices error hint instead stages", "stages[]": STATUS},
    "why op": {
        "": "schema asked answer devices error hint instead stages op takes code reason operands targets",
        "stages[]": STATUS,
        "operands[]": "name dtypes",
        "targets[]": "arch source takes code reason cases taken reasons",
        "targets[].reasons[]": "code reason cases",
    },
    "explain": {
        "": "schema policy selection profile warning auto pins summary runs nodes homes inserted packed memory notes"
        " max_copies",
        "auto": "at_least shares chosen",
        "auto.shares": "DEVICE",
        "summary": "nodes by_device work share copies bytes_moved seconds in_place",
        "summary.by_device": "DEVICE",
        "summary.work": "multiply_adds bytes",
        "summary.share": "DEVICE",
        "runs[]": "device nodes",
        "nodes[]": "id op out device wanted pinned candidates copies_in",
        "nodes[].candidates[]": "device takes seconds code reason",
        "nodes[].copies_in[]": "tensor from bytes",
        "homes[]": "tensor kind device bytes step lived_there pinned others",
        "homes[].others[]": "device seconds reason",
        "inserted[]": "before operand device why bytes",
        "packed[]": "constant device layout bytes again",
        "memory": "DEVICE",
        "memory.DEVICE": "constants states temporaries peak lower_bound limit",
    },
    "diff": {
        "": "schema a b mode first nodes repro chained_repro",
        "first": "node op result verdict tolerance max_ulp max_abs index wrong text",
        "nodes[]": "node op result verdict tolerance max_ulp max_abs index wrong text",
    },
}


def keys_of(value, path="", found=None):
    """Keys by the place of their object. Where things of one place differ, both are listed, and the test fails."""
    found = {} if found is None else found
    if isinstance(value, dict):
        words = " ".join(dict.fromkeys("DEVICE" if ":" in key else key for key in value))
        if found.setdefault(path, words) != words:
            found[path] += f" | {words}"
        for key, inner in value.items():
            keys_of(inner, f"{path}.{'DEVICE' if ':' in key else key}".lstrip("."), found)
    elif isinstance(value, list):
        for inner in value:
            keys_of(inner, f"{path}[]", found)
    return found


pytestmark = pytest.mark.usefixtures("only_core")


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def document(*arguments):
    done = CliRunner().invoke(app, [*arguments, "--json"], prog_name="jackfield")
    assert done.exit_code in (0, 1), done.output
    assert not done.stdout.startswith(" ")
    return json.loads(done.stdout)


def judge(name, found):
    command = name.partition(" ")[0]
    assert next(iter(found)) == "schema"
    assert found["schema"] == f"jackfield.{command}/1"
    assert keys_of(found) == KEYS[name]


def test_devices():
    card = Card("aa:0", 8, {"f16"}, "pci-0000:01:00.0", id="GPU-11111111", driver="3.1", model="A1")
    with registered(Cards("aa", card), device_class="gpu"):
        found = document("devices", "aa")
    judge("devices", found)
    assert found["chosen"] == ["aa:0"]
    (one,) = (d for d in found["devices"] if d["name"] == "aa:0")
    assert one == {
        "name": "aa:0", "id": "GPU-11111111", "kind": "aa", "class": "gpu", "backend": "aa", "card": "pci-0000:01:00.0",
        "vendor": "", "model": "A1", "arch": "a1", "driver": "3.1", "memory": {"total": 8 << 30, "free": 4 << 30},
        "flags": ["f16"], "simulated": False, "state": "ok",
    }  # fmt: skip


@pytest.mark.parametrize("device", ["sim", "sim:7"])
def test_why(device):
    judge("why", document("why", device))


def test_why_of_an_op():
    with jf.sim(dtypes="f32"):
        judge("why op", document("why", "sim", "sum"))


def test_explain():
    """With all there is: a copy between devices, one for strides, a packed constant, states, a refusal, costs."""
    x, k = jf.input("x", (16, 16)), jf.state("k", (16, 16))
    w = jf.constant(np.ones((16, 16), np.float32), "w")
    y = ops.tanh(ops.softmax(ops.linear(x.T, w)))
    jf.save([y, ops.write(k, y, start=(0, 0))], "g.npz")
    with registered(Packer([Minimal("one:0")], without=["softmax"]), device_class="gpu"):
        with registered(Picky([Minimal("host:0", rates=Rates())]), device_class="cpu"):
            found = document("explain", "g.npz")
        judge("explain", found)
        named = document("explain", "g.npz", "--device", "one", "--policy", "prefer")
    assert found["packed"] == [{"constant": "w", "device": "one:0", "layout": "turned", "bytes": 1024, "again": False}]
    assert [(i["before"], i["operand"], i["device"]) for i in found["inserted"]] == [("linear.0", "transpose", "one:0")]
    assert found["auto"]["chosen"] == ["one:0", "host:0"]
    assert found["warning"].startswith("4 nodes: one:0 3, host:0 1 (softmax: no kernel for softmax)")
    assert named["auto"] is None


@pytest.mark.parametrize("chained", [[], ["--chained"]])
def test_diff(chained):
    x = jf.input("x", (4, 6))
    jf.save(ops.tanh(ops.softmax(x)), "g.npz")

    class Wrong(Minimal):
        def compile(self, run, scratch):
            program = super().compile(run, scratch)
            plain = program.run

            def spoilt():
                plain()
                for placed in program.placed:
                    placed.result.buffer.bytes[placed.result.offset + 3] ^= 0x40

            program.run = spoilt
            return program

    with registered(Picky([Wrong("one:0")], reads="any")):
        found = document("diff", "reference", "one", "g.npz", *chained)
    judge("diff", found)
    assert found["first"] == found["nodes"][0]
    assert found["repro"] == "g.softmax.0.npz"
    equal = document("diff", "reference", "sim", "g.npz", *chained)
    assert (equal["first"], equal["repro"]) == (None, None)
    assert keys_of(equal) == {k: v for k, v in KEYS["diff"].items() if k != "first"}


# Errors


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("devices", "CUDA:0"), "Invalid value for '[SELECTION]': 'CUDA:0', column 1: did you mean cuda:0?"),
        (("why", "CUDA:0"), "Invalid value for 'DEVICE': 'CUDA:0', column 1: did you mean cuda:0?"),
        (("why", "nix, nax"), "Invalid value for 'DEVICE': 'nix, nax': no set can be had"),
        (("explain", "g.npz", "--device", "nix"), "Invalid value for '--device' / '-d': 'nix', column 1"),
        (("diff", "sim", "nix", "g.npz"), "Invalid value for 'B': 'nix', column 1"),
        (("diff", "nix", "sim", "g.npz"), "Invalid value for 'A': 'nix', column 1"),
        (("diff", "sim", "sim", "no.npz"), "Invalid value for GRAPH: no.npz"),
        (("diff", "sim", "reference", "g.npz", "--input", "z=z.npy"), "Invalid value for --input: there is no input"),
    ],
)
def test_an_error_names_the_option(arguments, says):
    jf.save(ops.tanh(jf.input("x", (2, 3))), "g.npz")
    np.save("z.npy", np.zeros(2))
    Path("no.npz").write_bytes(b"nothing")
    done = CliRunner().invoke(app, arguments, prog_name="jackfield")
    assert done.exit_code == 2
    assert says in done.stderr
    assert done.stdout == ""


def test_an_error_names_the_variable(monkeypatch):
    jf.save(ops.tanh(jf.input("x", (2, 3))), "g.npz")
    monkeypatch.setenv("JACKFIELD_DEVICE", "nix")
    done = CliRunner().invoke(app, ["explain", "g.npz"], prog_name="jackfield")
    assert done.exit_code == 2
    assert "Invalid value for JACKFIELD_DEVICE: 'nix', column 1" in done.stderr
