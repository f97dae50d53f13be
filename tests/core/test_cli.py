"""The command line: documents, exit codes, what goes to stdout, and commands of other distributions."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from fakes import Minimal, Picky, registered

import jackfield as jf
from jackfield.cli import output
from jackfield.cli.app import app
from jackfield.cli.output import nbytes, shortened

pytestmark = pytest.mark.usefixtures("only_core")


def run(*arguments):
    return CliRunner().invoke(app, arguments, prog_name="jackfield")


def parsed(*arguments):
    result = run(*arguments, "--json")
    return json.loads(result.stdout), result.exit_code


@pytest.fixture
def graph(tmp_path):
    x = jf.input("x", (2, 4))
    y = jf.ops.softmax(jf.ops.linear(x, jf.constant(np.eye(4, dtype=np.float32))))
    path = tmp_path / "graph.npz"
    jf.save(y, path)
    return str(path)


def test_devices():
    document, code = parsed("devices", "sim+reference")
    assert code == 0
    assert next(iter(document)) == "schema"
    assert document["schema"] == "jackfield.devices/1"
    assert document["chosen"] == ["sim:0", "reference:0"]
    fields = {
        "name",
        "id",
        "kind",
        "class",
        "backend",
        "card",
        "vendor",
        "model",
        "arch",
        "driver",
        "memory",
        "flags",
        "simulated",
        "state",
    }
    assert all(set(d) == fields for d in document["devices"])
    assert document["devices"][-1]["simulated"] is True
    text = run("devices", "sim").stdout
    assert [line.split()[:2] for line in text.splitlines()[1:]] == [["reference:0", "reference"], ["*", "sim:0"]]


def test_a_wrong_name_is_wrong_use():
    result = run("devices", "CUDA:0", "--json")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "did you mean cuda:0?" in result.stderr
    assert result.stderr.startswith("Usage: jackfield devices ")
    assert run("devices", "--what").exit_code == 2
    assert run("nix").exit_code == 2


@pytest.mark.parametrize(
    ("variable", "code", "says"),
    [
        ({"JACKFIELD_DEVICE": "cdua:0"}, 2, "'cdua:0'"),
        ({"JACKFIELD_DEVICE": "sim", "JACKFIELD_SIM": "mem=1"}, 1, "mem is '1', must be a size with its unit"),
    ],
)
def test_devices_are_listed_although_the_environment_names_none(monkeypatch, variable, code, says):
    for name, value in variable.items():
        monkeypatch.setenv(name, value)
    result = run("devices")
    assert result.exit_code == code
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]][:1] == ["reference:0"]
    assert says in result.stderr
    document, code_too = parsed("devices")
    assert code_too == code
    assert (document["devices"][0]["name"], document["chosen"]) == ("reference:0", [])
    assert says in document["error"]


def test_a_selection_that_is_right_has_no_error():
    assert parsed("devices", "sim")[0]["error"] is None


def test_what_is_wrong_ends_with_1(monkeypatch):
    monkeypatch.setenv("JACKFIELD_SIM", "mem=1")
    result = run("devices", "sim")
    assert result.exit_code == 1
    assert "mem is '1', must be a size with its unit" in result.stderr
    assert result.stdout == ""


def test_doctor(monkeypatch):
    monkeypatch.setenv("JACKFIELD_DEVCE", "cpu")
    document, code = parsed("doctor")
    assert code == 0
    assert list(document) == ["schema", "core", "environment", "backends", "devices", "cards", "hints", "notes"]
    assert set(document["core"]) == {"version", "contract", "python", "platform", "free_threaded", "gil"}
    assert document["core"]["version"] == jf.__version__
    assert {"name": "JACKFIELD_DEVCE", "value": "cpu", "effect": "unknown; did you mean JACKFIELD_DEVICE?"} in document[
        "environment"
    ]
    states = {b["name"]: b["state"] for b in document["backends"]}
    assert (states["reference"], states["sim"]) == ("ok", "ok")
    assert [d["name"] for d in document["devices"]] == ["reference:0", "sim:0"]


def test_doctor_static_opens_nothing():
    document, code = parsed("doctor", "--static")
    assert code == 0
    assert document["devices"] == []
    assert {b["state"] for b in document["backends"]} <= {"pending", "off"}


def test_doctor_tells_what_is_wrong(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("JACKFIELD_SIM", f"refuse={tmp_path}")
    document, code = parsed("doctor")
    assert code == 1
    (sim,) = (b for b in document["backends"] if b["name"] == "sim")
    assert (sim["state"], sim["stage"], sim["code"]) == ("failed", "open", "open-error")
    assert "'~'" in sim["error"]
    assert sim["traceback"].startswith("Traceback")
    assert str(tmp_path) not in json.dumps(document)
    text = run("doctor")
    assert text.exit_code == 1
    assert "open-error" in text.stdout
    assert "JACKFIELD_SIM=refuse=~: shape and faults of sim" in text.stdout


def test_explain_allocates_nothing(graph):
    device = Minimal("one:0")
    with registered(Picky([device])):
        assert run("explain", graph, "--device", "one").exit_code == 0
    assert set(device.counts) == set()


def test_explain(graph):
    document, code = parsed("explain", graph, "--device", "sim")
    assert code == 0
    assert (document["schema"], document["selection"]) == ("jackfield.explain/1", "sim")
    assert {n["op"]: n["device"] for n in document["nodes"]} == {"linear": "sim:0", "softmax": "sim:0"}
    text = run("explain", graph, "--device", "sim").stdout
    assert "linear" in text
    assert "sim:0" in text


def test_explain_with_pins_and_a_limit_of_copies(graph):
    where = ("explain", graph, "--device", "sim+reference")
    pinned = (*where, "--pin", "softmax.0=reference:0", "--pin", "linear.*=sim")
    document, code = parsed(*pinned, "--max-copies", "1")
    assert code == 0
    assert {n["op"]: (n["device"], n["pinned"]) for n in document["nodes"]} == {
        "linear": ("sim:0", "linear.*"),
        "softmax": ("reference:0", "softmax.0"),
    }
    assert [(p["pin"], p["device"]) for p in document["pins"]] == [("softmax.0", "reference:0"), ("linear.*", "sim:0")]
    assert (document["summary"]["copies"], document["max_copies"]) == (1, 1)
    assert parsed(*where)[0]["max_copies"] is None
    assert "pinned by 'softmax.0'" in run(*pinned).stdout
    refused = run(*pinned, "--max-copies", "0")
    assert refused.exit_code == 1
    assert "max_copies is 0" in refused.stderr


def test_explain_says_what_is_wrong_with_a_pin(graph):
    for text in ("softmax.0", "=sim", "softmax.0="):
        result = run("explain", graph, "-d", "sim", "--pin", text)
        assert result.exit_code == 2
        assert "--pin" in result.stderr
        assert "must be PATTERN=DEVICE" in result.stderr
    assert run("explain", graph, "-d", "sim", "--max-copies", "-1").exit_code == 2
    for text in ("softmax.0=reference", "(=sim"):  # a device that the selection has not, and no regular expression
        result = run("explain", graph, "-d", "sim", "--policy", "strict", "--pin", text)
        assert result.exit_code in (1, 2)
        assert "Traceback" not in result.stderr


def test_explain_of_no_graph(tmp_path):
    assert run("explain", str(tmp_path / "gone.npz")).exit_code == 2
    broken = tmp_path / "broken.npz"
    broken.write_bytes(b"PK nothing")
    result = run("explain", str(broken))
    assert result.exit_code == 1
    assert "broken.npz: no graph file" in result.stderr


def test_strict_policy_says_why(graph, monkeypatch):
    monkeypatch.setenv("JACKFIELD_SIM", "refuse=softmax")
    result = run("explain", graph, "-d", "sim", "--policy", "strict")
    assert result.exit_code == 1
    assert "no kernel for softmax" in result.stderr


COMMANDS = {
    "hello": "import click\n\n@click.command()\ndef command():\n    '''Say hello.'''\n    click.echo('hello there')\n",
    "boom": "raise RuntimeError('no such thing')\n",
    "leave": "import sys\n\nsys.exit(0)\n",
    "text": "command = 'not a command'\n",
    "devices": "command = None\n",
}


@pytest.fixture
def others(tmp_path, monkeypatch):
    for name, source in COMMANDS.items():
        tmp_path.joinpath(f"their_{name}.py").write_text(source)
        info = tmp_path / f"their_{name}-1.0.dist-info"
        info.mkdir()
        info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: their-{name}\nVersion: 1.0\n")
        info.joinpath("entry_points.txt").write_text(f"[jackfield.commands]\n{name} = their_{name}:command\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield
    for name in COMMANDS:
        sys.modules.pop(f"their_{name}", None)


def test_commands_of_other_distributions(others):
    assert run("hello").stdout == "hello there\n"
    text = run("--help")
    assert text.exit_code == 0
    assert "Say hello." in text.stdout
    assert "broken: RuntimeError: no such thing" in text.stdout
    broken = run("boom", "--any", "thing")
    assert broken.exit_code == 1
    assert "the command 'boom' of their-boom 1.0 can't be loaded: RuntimeError: no such thing" in broken.stderr
    assert "SystemExit" in run("leave").stderr
    assert "is a str, must be a click.Command" in run("text").stderr
    assert run("devices").exit_code == 0  # the core's own cannot be replaced


def test_a_command_is_loaded_only_when_it_is_asked_for(others):
    assert run("devices").exit_code == 0
    assert "their_boom" not in sys.modules
    assert "their_hello" not in sys.modules


def test_the_errors_of_other_commands_become_one_line():
    @click.command("raises")
    def raises():
        raise jf.Error("something specific")

    app.add_command(raises)
    try:
        result = run("raises")
    finally:
        del app.commands["raises"]
    assert (result.exit_code, result.stderr) == (1, "Error: something specific\n")


def test_ctrl_c_in_a_command_ends_with_130():
    @click.command("waits")
    def waits():
        raise KeyboardInterrupt

    app.add_command(waits)
    try:
        result = run("waits")
    finally:
        del app.commands["waits"]
    assert (result.exit_code, result.output) == (130, "")


@pytest.mark.parametrize("module", ["numpy", "jackfield.dtypes", "click", "jackfield.cli.app", "importlib.metadata"])
def test_ctrl_c_while_the_program_starts_ends_with_130(module):
    """The signal comes at the import of this module."""
    code = (
        "import builtins, signal, sys\n"
        "usual = builtins.__import__\n"
        "def watched(name, globals=None, locals=None, fromlist=(), level=0):\n"
        "    package = (globals or {}).get('__package__') or ''\n"
        "    whole = f'{package}.{name}'.strip('.') if level else name\n"
        f"    if whole == {module!r}:\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "    return usual(name, globals, locals, fromlist, level)\n"
        "builtins.__import__ = watched\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.argv = ['jackfield', 'devices', 'sim']\n"
        "from _jackfield import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["devices", "--help"], ["devices", "sim"]])
def test_a_full_disk_is_one_line(arguments, unbuffered):
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full, which is Linux's")
    env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "jackfield", *arguments]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=env, check=False)
    assert done.returncode == 1
    assert done.stderr == "Error: [Errno 28] No space left on device\n"


@pytest.mark.skipif(os.name != "posix", reason="descriptors are closed by a POSIX shell")
@pytest.mark.parametrize(
    ("arguments", "code", "closed"),
    [
        ("--version", 0, "2>&-"),
        ("devices sim", 0, ">&-"),
        ("devices none", 2, "<&- >&-"),
        ("devices none", 2, "<&- >&- 2>&-"),
    ],
)
def test_closed_streams_are_no_error(arguments, code, closed):
    """The same exit code as with all streams, and on those that are left the same text."""
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "jackfield", *arguments.split()]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=300)
    whole = subprocess.run(command[4:], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == whole.returncode == code
    assert done.stdout == ("" if ">&-" in closed.split() else whole.stdout)
    assert done.stderr == ("" if "2>&-" in closed.split() else whole.stderr)


@pytest.mark.skipif(os.name != "posix", reason="descriptors are closed by a POSIX shell")
def test_no_file_takes_the_place_of_a_closed_stream():
    code = (
        "import os, sys\n"
        "from jackfield.cli import app\n"
        "app._open_streams()\n"
        "print('lost'); sys.stdout.flush(); os.write(1, b'lost'); os.write(2, b'lost')\n"
        "assert sys.stdin.read() == ''\n"
        "assert os.open(os.devnull, os.O_RDONLY) > 2\n"
        "sys.exit(7)\n"
    )
    command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", code]
    assert subprocess.run(command, check=False, timeout=300).returncode == 7


def test_as_a_module_and_its_version():
    result = subprocess.run(
        [sys.executable, "-m", "jackfield", "--version"], capture_output=True, text=True, check=True, timeout=300
    )
    assert jf.__version__ in result.stdout
    result = subprocess.run(
        [sys.executable, "-m", "jackfield", "devices", "sim", "--json"],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert json.loads(result.stdout)["chosen"] == ["sim:0"]


def test_texts():
    home = str(Path.home())
    assert shortened({"a": [f"{home}/x", 3], "b": None}) == {"a": ["~/x", 3], "b": None}
    assert [nbytes(n) for n in (0, 1, 1023, 1024, 3 << 19, 5 << 40)] == [
        "",
        "1 B",
        "1023 B",
        "1.0 KiB",
        "1.5 MiB",
        "5.0 TiB",
    ]


def test_private_names_are_left_out(monkeypatch):
    """The user's and the machine's, in paths and addresses; a word of a sentence may be another one."""
    monkeypatch.setenv("HOME", "/home/somebody7")
    monkeypatch.setattr(output.getpass, "getuser", lambda: "somebody7")
    monkeypatch.setattr(output.platform, "node", lambda: "box-12.example.org")
    output._names.cache_clear()
    try:
        for text, plain in (
            ("/home/somebody7/x and /home/somebody77/y", "~/x and /home/somebody77/y"),
            ("in '/data/somebody7/lib.so'", "in '/data/<user>/lib.so'"),
            ("/tmp/pytest-of-somebody7/a", "/tmp/pytest-of-<user>/a"),
            (r"C:\Users\somebody7\x", r"C:\Users\<user>\x"),
            ("somebody7@box-12: refused", "<user>@<host>: refused"),
            ("//box-12/share", "//<host>/share"),
            ("somebody7: no driver", "somebody7: no driver"),
            ("https://example.com/somebody7/issues", "https://example.com/somebody7/issues"),
            ("file:///home/somebody7/x", "file://~/x"),
            ("/srv/home/somebody7/x", "/srv/home/<user>/x"),
        ):
            assert shortened(text) == plain
    finally:
        monkeypatch.undo()
        output._names.cache_clear()
