"""What a user is told when things are slow, missing or set wrongly; and what help() says of an op."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys

import pytest

import jackfield as jf
from jackfield import errors, ops
from jackfield.op import OPS


def program(*arguments, **env):
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, env=os.environ | env, capture_output=True, text=True, check=False)


def test_everything_on_numpy_is_told_once_and_not_when_it_was_asked_for():
    code = "import jackfield as jf\nx = jf.input('x', (2,))\nfor _ in range(2): jf.compile(jf.ops.relu(x){})\n"
    env = os.environ | {"JACKFIELD_BACKENDS": "zzz"}
    silent = [sys.executable, "-c", code.format(", device='reference'")]
    told = [sys.executable, "-c", code.format("")]
    assert subprocess.run(silent, env=env, capture_output=True, text=True, check=True).stderr == ""
    text = subprocess.run(told, env=env, capture_output=True, text=True, check=True).stderr
    assert text.count("everything runs on the numpy reference, which is slow") == 1


@pytest.mark.parametrize("name", OPS)
def test_help_shows_an_op_as_it_is_declared(name):
    declared = OPS[name]
    assert inspect.getdoc(declared) == inspect.getdoc(declared.body)
    assert list(inspect.signature(declared).parameters) == [*declared.operands, *declared.attrs]
    assert declared.__name__ == name
    assert inspect.signature(type(declared))  # the class itself still has its own


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("JACKFIELD_DEVICE", "zzz", "JACKFIELD_DEVICE: 'zzz', column 1: no kind of device is called 'zzz'"),
        ("JACKFIELD_POLICY", "lax", "JACKFIELD_POLICY=lax: must be one of strict, prefer, auto"),
    ],
)
def test_doctor_fails_on_a_setting_that_cannot_be_honoured(name, value, text):
    done = program("jackfield", "doctor", **{name: value})
    assert done.returncode == 1
    assert text in " ".join(done.stdout.split())  # lines are folded
    assert program("jackfield", "doctor", "--static", **{name: value}).returncode == 0


def test_a_kind_without_its_wheel_is_told_how_wheels_are_called():
    with pytest.raises(errors.DeviceNameError, match="a backend is a wheel of its own, mostly called jackfield-acme"):
        jf.compile(ops.relu(jf.input("x", (2,))), device="acme")


@pytest.mark.parametrize("content", [b"", b"P", b"GGUF\x03", b"\x80\x04N.", b"\x93NUMPY\x01\x00"])
def test_a_file_that_is_no_graph_says_what_one_is(tmp_path, content):
    path = tmp_path / "x.npz"
    path.write_bytes(content)
    with pytest.raises(errors.GraphError, match=r"must be what jackfield\.save wrote") as caught:
        jf.load_graph(path)
    assert "pickle" not in str(caught.value)


@pytest.mark.parametrize(("command", "extra"), [("generate", "llm"), ("eval", "llm"), ("conform", "conformance")])
def test_a_command_of_another_dist_names_what_brings_it(command, extra, monkeypatch):
    from click.testing import CliRunner

    from jackfield.cli.app import Commands, app

    monkeypatch.setattr(Commands, "_entries", lambda self: {})
    done = CliRunner().invoke(app, [command, "sim", "--json"])
    assert done.exit_code == 2
    said = f"{command} is not installed; `pip install 'jackfield[{extra}]'` brings it"
    assert done.stderr.splitlines()[-1] == f"Error: {said}"
    assert "not installed" not in CliRunner().invoke(app, ["nix"]).output


def test_the_help_lists_what_is_not_installed_and_how_to_get_it(monkeypatch):
    from click.testing import CliRunner

    from jackfield.cli.app import Commands, app

    def lacking(*there):
        monkeypatch.setattr(Commands, "_entries", lambda self: dict.fromkeys(there))
        monkeypatch.setattr(Commands, "get_command", lambda self, ctx, name: self.commands.get(name))
        text = CliRunner().invoke(app, ["--help"]).stdout
        return " ".join(text.partition("Not installed:")[2].split())

    every = ("conform", "generate", "chat", "embed", "eval", "quantize")
    assert lacking() == (
        "conform pip install 'jackfield[conformance]' "
        "generate, chat, embed, eval, quantize pip install 'jackfield[llm]'"
    )
    assert lacking(*every[1:]) == "conform pip install 'jackfield[conformance]'"
    assert lacking(*every) == ""


@pytest.mark.parametrize(("argument", "code", "text"), [("--help", 2, "usage:"), ("nix", 1, "Error: ")])
def test_the_printer_of_claims_tells_wrong_use(argument, code, text):
    done = program("jackfield_conformance", argument)
    assert (done.returncode, done.stderr.startswith(text)) == (code, True)
    assert "Traceback" not in done.stderr
