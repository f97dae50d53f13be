"""Backends that end or hold up the process that meets them: a child meets them first, once, and the app goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess

import pytest
from environments import Environment
from wheels import build, source

PART = 2  # see thorough.py

MOMENTS = ("import", "hook", "open")
DEADLY = {"segfault": "SIGSEGV", "abort": "SIGABRT", "illegal": "SIGILL", "quit": "code 0", "hang": "longer than"}
FAULTY = {f"{fault}_{at}": (fault, at) for fault in DEADLY for at in MOMENTS}
HARMLESS = {f"{fault}_{at}": (fault, at) for fault in ("noise", "raises") for at in MOMENTS}

LIST = """
import json, sys
import jackfield as jf
jf.devices()
print()
json.dump({s.name: [s.stage, s.state, s.code, s.error, s.hint, s.where] for s in jf.status()}, sys.stdout)
"""
ADD = """
import numpy as np, jackfield as jf
n = 1 << 15
x = jf.input("x", (n,))
plan = jf.compile(jf.ops.add(x, jf.constant(np.ones(n, np.float32))), device={name!r}, policy="strict")
assert plan(x=np.ones(n, np.float32)).tolist() == [2] * n
print(*plan.devices)
"""
NAMED = """
import jackfield as jf
try:
    jf.Session(device={name!r})
except jf.errors.ProbeFailed as e:
    print(e.status.state, e.status.where, e)
"""


IS_FIRST = """
def is_first():
    path = Path(__file__).with_name("met")
    was_there = path.exists()
    path.touch()
    return not was_there
"""


def listed(environment):
    """What a host says of every backend: stage, state, code, error, hint, where."""
    code, out, err = environment.run(LIST)
    assert code == 0, err
    return json.loads(out.splitlines()[-1])  # what native code prints comes before


@pytest.fixture(scope="module")
def everyone(tmp_path_factory):
    """An environment with every fault and two good backends. Who hangs has two seconds, the others the usual time."""
    folder = tmp_path_factory.mktemp("everyone")
    environment, wheels = Environment(folder), []
    for name, (fault, at) in {**FAULTY, **HARMLESS}.items():
        limit = {"probe": {"timeout_s": 2}} if fault == "hang" else {}
        wheels.append(build(folder, name, source(name, fault, at), **limit))
    wheels += [build(folder, name, source(name)) for name in ("first", "zlast")]
    environment.install(*wheels)
    return environment


@pytest.fixture
def alone(tmp_path):
    """install(name, text, files, **manifest) -> an environment with this backend alone."""
    environment = Environment(tmp_path)

    def install(name, text, files=None, **fields):
        environment.install(build(tmp_path, name, text, files, **fields))
        return environment

    return install


def test_whatever_a_plugin_does_the_app_goes_on(everyone):
    code, out, err = everyone.run(LIST)
    assert code == 0, err
    found = json.loads(out.splitlines()[-1])
    for name, (fault, at) in FAULTY.items():
        stage, state, short, error, hint, where = found[name]
        assert (stage, where) == ("probe", "child"), name
        assert state == ("hung" if fault == "hang" else "crashed")
        assert short == {"hang": "hung", "quit": "quit"}.get(fault, "crashed")
        assert DEADLY[fault] in error
        assert f"at {at} of {name}" in error
        assert "doctor --fresh" in hint
        assert not any(line.startswith("here") for line in everyone.log(name))
        assert name in err  # told, once
        assert err.count(f"{name}: ") == 1
    for name, (fault, at) in HARMLESS.items():
        if fault == "raises":
            assert (found[name][0], found[name][1]) == (at, "failed")
            assert "boom" in found[name][3]
        else:
            assert found[name][1] == "ok"
    assert found["first"][1] == found["zlast"][1] == "ok"


def test_the_second_process_starts_no_child(everyone):
    test_whatever_a_plugin_does_the_app_goes_on(everyone)
    known = [*FAULTY, *(n for n in HARMLESS if n.startswith("noise")), "first", "zlast"]
    before = {name: everyone.log(name) for name in known}
    assert listed(everyone)["first"][1] == "ok"
    for name in known:
        more = everyone.log(name)[len(before[name]) :]
        assert not any(line.startswith("child") for line in more), name
        assert bool(more) == (name not in FAULTY)


@pytest.mark.parametrize("name", ["first", "zlast"])
def test_good_ones_compute_beside_them(name, everyone):
    code, out, err = everyone.run(ADD.format(name=name))
    assert (code, out.strip()) == (0, f"{name}:0"), err


@pytest.mark.parametrize("name", ["segfault_import", "hang_open", "quit_hook"])
def test_who_names_it_hears_the_cause(name, everyone):
    code, out, _ = everyone.run(NAMED.format(name=name))
    assert code == 0
    state = "hung" if name.startswith("hang") else "crashed"
    assert out.startswith(f"{state} child {name}: ")
    assert DEADLY[name.split("_")[0]] in out


def children(environment, name):
    return environment.log(name).count("child import")


def test_a_change_of_the_build_is_another_build(alone, tmp_path):
    watched = tmp_path / "version"
    probe = {"watch": [str(watched)]}
    environment = alone("acme", source("acme"), {"_native.so": b"code"}, probe=probe)
    package = environment.site / "jackfield_acme"

    def touched(path):
        path.write_bytes(path.read_bytes() if path.exists() else b"")
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**9))

    environment.run(ADD.format(name="acme"))
    assert children(environment, "acme") == 1
    for path, again in (
        (package / "__pycache__" / "__init__.cpython-311.pyc", False),
        (package / "_native.so", True),
        (watched, True),
        (package / "__init__.py", True),
        (package / "acme.log", False),
    ):
        path.parent.mkdir(exist_ok=True)
        touched(path)
        before = children(environment, "acme")
        for _ in range(2):
            code, _, err = environment.run(ADD.format(name="acme"))
            assert code == 0, err
        assert children(environment, "acme") == before + again, path


def test_another_version_of_the_core_asks_again(alone):
    environment = alone("acme", source("acme"))
    other = "from jackfield import loading\nloading.CORE_VERSION += '.1'\n"
    for code, asked in ((ADD, 1), (ADD, 1), (other + ADD, 2), (other + ADD, 2), (ADD, 2)):
        assert environment.run(code.format(name="acme"))[0] == 0
        assert children(environment, "acme") == asked


@pytest.mark.parametrize(("depth", "steps"), [("import", ["import"]), ("devices", ["import", "hook", "devices"])])
def test_the_manifest_says_how_deep(depth, steps, alone):
    environment = alone("acme", source("acme"), probe={"depth": depth})
    assert environment.run(ADD.format(name="acme"))[0] == 0
    assert environment.log("acme")[: len(steps) + 1] == [*(f"child {step}" for step in steps), "here import"]


def test_a_child_may_try_the_memory_too(alone):
    environment = alone("acme", source("acme", "abort", "alloc"), probe={"depth": "alloc"})
    assert listed(environment)["acme"][1:3] == ["crashed", "crashed"]
    assert "SIGABRT at alloc of acme" in listed(environment)["acme"][3]


@pytest.mark.parametrize(("probe", "wanted"), [("never", 0), ("always", 2), ("first", 1), ("nonsense", 1)])
def test_the_user_says_when(probe, wanted, alone):
    environment = alone("acme", source("acme"))
    for _ in range(2):
        code, _, err = environment.run(ADD.format(name="acme"), JACKFIELD_PROBE=probe)
        assert code == 0, err
    assert children(environment, "acme") == wanted


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PROBE", "nonsense"),
        ("PROBE_TIMEOUT", "x"),
        ("PROBE_TIMEOUT", "0"),
        ("PROBE_TIMEOUT", "nan"),
        ("PROBE_TIMEOUT", "1e9"),
    ],
)
def test_a_setting_that_is_none_is_told(name, value, alone):
    environment = alone("acme", source("acme"))
    code, _, err = environment.run(ADD.format(name="acme"), **{f"JACKFIELD_{name}": value})
    assert (code, err.count(f"JACKFIELD_{name}={value}: must be")) == (0, 1)
    doctor = "import sys; from jackfield.cli import main; sys.argv[1:] = ['doctor']; main()"
    code, out, _ = environment.run(doctor, **{f"JACKFIELD_{name}": value})
    assert code == 1
    assert f"JACKFIELD_{name}={value}: must be" in " ".join(out.split())


def test_without_a_cache_each_process_asks(alone):
    environment = alone("acme", source("acme"))
    for _ in range(2):
        assert environment.run(ADD.format(name="acme"), JACKFIELD_CACHE="off")[0] == 0
    assert children(environment, "acme") == 2
    assert not environment.cache.exists()


def test_what_has_no_key_is_tried_each_time(alone):
    """Its files can't be told apart from others': it does not run untried for that."""
    environment = alone("acme", source("acme"))
    keyless = "from jackfield import loading\ndef none(*_): raise ValueError('no key')\nloading.key_of = none\n"
    for tried in (1, 2):
        code, _, err = environment.run(keyless + ADD.format(name="acme"))
        assert code == 0, err
        assert children(environment, "acme") == tried
    environment.install(build(environment.folder, "acme", source("acme", "segfault", "open")))
    code, out, _ = environment.run(keyless + NAMED.format(name="acme"))
    assert (code, out.split()[:2]) == (0, ["crashed", "child"])


def test_a_cache_that_cannot_be_written_is_no_cache(alone, tmp_path):
    environment = alone("acme", source("acme"))
    environment.cache.write_text("a file where a folder must be")
    assert environment.run(ADD.format(name="acme"))[0] == 0
    environment.cache.unlink()
    (environment.cache / "backends").mkdir(parents=True)
    assert environment.run(ADD.format(name="acme"))[0] == 0
    (verdict,) = (environment.cache / "backends").glob("acme-*.json")
    for rubbish in ("", "{", "[]", '{"schema": "jackfield.probe/9"}', "null"):
        verdict.write_text(rubbish)
        assert environment.run(ADD.format(name="acme"))[0] == 0
        assert json.loads(verdict.read_text())["state"] == "ok"


@pytest.mark.parametrize(("fault", "at"), [("", ""), ("segfault", "import")])
def test_many_processes_at_once_ask_once(fault, at, alone):
    environment = alone("acme", source("acme", fault, at))
    hosts = [environment.start(LIST) for _ in range(16)]
    found = [(host.communicate()[0], host.returncode)[0] for host in hosts]
    states = {tuple(json.loads(out.splitlines()[-1])["acme"][:3]) for out in found}
    assert states == {("probe", "crashed", "crashed") if fault else ("open", "ok", "")}
    assert children(environment, "acme") == 1
    names = {path.suffix for path in (environment.cache / "backends").iterdir()}
    assert names <= {".json", ".lock"}


# Questions that the toy leaves to their defaults, so that it dies in them.
ASKED = """
def dies(self, *_):
    fault({at!r})
    return getattr(super(type(self), self), {at!r})(*_)
{owner}.{at} = dies
"""
OWNERS = {
    **dict.fromkeys(("why_not", "cost", "pack"), "Acme"),
    **dict.fromkeys(("groups", "scratch", "result_nbytes", "borrow"), "Toy"),
}
SAID = {
    **dict.fromkeys(("why_not", "cost"), "question"),
    **dict.fromkeys(("pack", "groups", "scratch", "result_nbytes"), "question ({})"),
    "borrow": "write (borrow)",
}


@pytest.mark.parametrize("at", ["open", "alloc", "write", "compile", "call", *OWNERS])
def test_a_crash_that_no_rehearsal_shows_happens_once(at, alone):
    text = source("acme", "segfault", at, only_here=True).replace(
        "def write(self, buffer, offset, data):", "def write(self, buffer, offset, data):\n        fault('write')"
    )
    text += ASKED.format(at=at, owner=OWNERS[at]) if at in OWNERS else ""
    environment = alone("acme", text)
    code, _, _ = environment.run(ADD.format(name="acme"))
    assert code == -signal.SIGSEGV
    code, out, err = environment.run(NAMED.format(name="acme"))
    assert code == 0, err
    assert out.startswith("crashed here acme: process ")
    assert f"died in the first {SAID.get(at, '{}').format(at)}" in out
    assert listed(environment)["acme"][1] == "crashed"
    code, out, err = environment.run(
        "import sys; from jackfield.cli import main; sys.argv[1:] = ['doctor', '--fresh']; main()"
    )
    assert code == (-signal.SIGSEGV if at == "open" else 0), err
    if at != "open":
        assert "acme:0" in out
    environment.install(build(environment.folder, "acme", source("acme")))
    assert environment.run(ADD.format(name="acme"))[0] == 0


@pytest.mark.parametrize("fault", ["killed", "quit"])
def test_an_end_from_outside_is_no_crash(fault, alone):
    """Once: a child meets the build again, and it is used. Each time at the same moment: that is a crash loop."""
    ends = source("acme", fault, "compile", only_here=True)
    once = ends.replace("at == 'compile'", "at == 'compile' and is_first()").replace(
        "def fault", f"{IS_FIRST}\n\ndef fault"
    )
    environment = alone("acme", once)
    first = environment.run(ADD.format(name="acme"))[0]
    assert first == {"killed": -signal.SIGKILL, "quit": 0}[fault]
    for _ in range(2):
        code, out, err = environment.run(ADD.format(name="acme"))
        assert (code, out.strip()) == (0, "acme:0"), err
        assert children(environment, "acme") == 2
    environment.install(build(environment.folder, "acme", ends))
    for _ in range(2):
        assert environment.run(ADD.format(name="acme"))[:2] == (first, "")
    code, out, err = environment.run(NAMED.format(name="acme"))
    assert code == 0, err
    assert out.startswith("crashed here acme: process ")
    assert "died in the first compile on it, as one before it did" in out


BOTH = """
import numpy as np, jackfield as jf
n = 1 << 15
x, one = jf.input("x", (n,)), jf.constant(np.ones(n, np.float32))
y = jf.ops.add(jf.ops.add(x, one), one)
plan = jf.compile(y, device="first+acme+last", policy="strict", pins=[("add.0", "first"), ("add.1", {on!r})])
assert plan(x=np.ones(n, np.float32)).tolist() == [3] * n
"""


@pytest.mark.parametrize("at", ["alloc", "compile"])
def test_a_crash_is_laid_to_the_build_that_was_at_work(at, alone):
    """Three builds are asked for the first time by one plan, each between questions to the others."""
    environment = alone("acme", source("acme", "segfault", at, only_here=True))
    environment.install(*(build(environment.folder, name, source(name)) for name in ("first", "last")))
    assert environment.run(BOTH.format(on="acme"))[0] == -signal.SIGSEGV
    states = {name: found[1] for name, found in listed(environment).items()}
    assert {name: states[name] for name in ("acme", "first", "last")} == {
        "acme": "crashed",
        "first": "ok",
        "last": "ok",
    }


def test_who_is_only_asked_has_proven_no_more(alone):
    """A build that took no step yet: the plan that first has it compile finds a marker still."""
    environment = alone("acme", source("acme", "segfault", "compile", only_here=True))
    environment.install(build(environment.folder, "first", source("first")))
    asks, pins = BOTH.replace("first+acme+last", "first+acme"), ', pins=[("add.0", "first"), ("add.1", {on!r})]'
    for _ in range(2):
        code, _, err = environment.run(asks.replace(pins, ""))
        assert code == 0, err
    (verdict,) = (environment.cache / "backends").glob("acme-*.json")
    assert json.loads(verdict.read_text())["proven"] == ["open", "question"]
    assert environment.run(asks.format(on="acme"))[0] == -signal.SIGSEGV
    assert listed(environment)["acme"][1] == "crashed"


def test_a_build_that_came_through_leaves_no_marker(alone):
    environment = alone("acme", source("acme"))
    for _ in range(2):
        assert environment.run(ADD.format(name="acme"))[0] == 0
        (verdict,) = (environment.cache / "backends").glob("acme-*.json")
        proven = json.loads(verdict.read_text())["proven"]
        assert proven == ["alloc", "call", "compile", "open", "question", "write"]
        assert list((environment.cache / "backends").glob("*.busy")) == []


def test_who_is_interrupted_in_a_first_call_is_no_crash(alone):
    interrupts = "raise KeyboardInterrupt"
    text = source("acme", "raises", "call", only_here=True).replace("raise RuntimeError('boom')", interrupts)
    environment = alone("acme", text)
    code, _, err = environment.run(ADD.format(name="acme"))
    assert "KeyboardInterrupt" in err
    assert code != 0
    assert listed(environment)["acme"][1] == "ok"


def test_nothing_of_the_current_folder_runs_in_the_child(alone, tmp_path, monkeypatch):
    environment = alone("acme", source("acme"))
    planted = tmp_path / "planted"
    planted.mkdir()
    for name in ("json", "numpy", "jackfield", "pluggy"):
        (planted / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})")
    host = f"import sys; sys.path.remove(''); import os; os.chdir({str(planted)!r})\n"
    code, _, err = environment.run(host + ADD.format(name="acme"))
    assert code == 0, err
    assert children(environment, "acme") == 1
    assert not (tmp_path / "ran").exists()


def test_a_child_leaves_nothing_running(alone):
    """What the plugin starts ends with it, also where it holds the answer's pipe open."""
    text = "import subprocess, sys\nsubprocess.Popen(['sleep', '1000.125'], close_fds=False)\n" + source(
        "acme", "hang", "open"
    )
    environment = alone("acme", text, probe={"timeout_s": 2})
    assert listed(environment)["acme"][1] == "hung"
    if shutil.which("pgrep"):
        left = subprocess.run(["pgrep", "-f", "sleep 1000[.]125"], capture_output=True, text=True, check=False)
        assert left.stdout == ""
