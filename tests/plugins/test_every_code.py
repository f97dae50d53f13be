"""Each code of a status, from a wheel that deserves it: the app goes on, who names it hears why, doctor tells it."""

from __future__ import annotations

import ast
import json
import platform
import zipfile
from pathlib import Path

import jsonschema
import pytest
from broken_wheels import BROKEN, laid_out, name_of, wheels_of
from environments import Environment
from wheels import build, source

from jackfield import errors, stages
from jackfield.manifest import this_platform

HERE = Path(__file__).parent
CORE = HERE.parents[1] / "core/src/jackfield"
SCHEMA = json.loads((CORE / "schemas/doctor-1.json").read_text())
GOLDEN = json.loads((HERE / "doctor_golden.json").read_text())
USER = "somebody7"  # whom no text may name

# On a Python with a GIL: what a free-threaded one would answer. The wheel that has no mark turns it on.
PRETENDS = (
    "import os, sys; 'WITHOUT_GIL' in os.environ and sys.__dict__.update(_gil_on=False, "
    "_is_gil_enabled=lambda: sys._gil_on)\n"
)
HOST = """
import json, os, sys
os.chdir({here!r})
import numpy as np
import jackfield as jf
x = jf.input("x", (3,))
assert jf.compile(jf.ops.add(x, x))(x=np.ones(3, np.float32)).tolist() == [2, 2, 2]
module = {module!r} in sys.modules
from click.testing import CliRunner
from jackfield.cli.app import app
doctor = CliRunner().invoke(app, ["doctor", "--json"])
(status,) = (s for s in jf.status() if s.dist == {dist!r})
try:
    with jf.Session({named!r}, policy="strict") as session:
        assert session.compile(jf.ops.add(x, x))(x=np.ones(3, np.float32)).tolist() == [2, 2, 2]
    named = None
except jf.errors.Error as e:
    cause = type(e.__cause__).__name__ if e.__cause__ is not None else None
    named = [type(e).__name__, e.status.code, cause, str(e)]
said = [status.stage, status.state, status.code, status.where, status.traceback]
print()
print(json.dumps([said, module, doctor.exit_code, json.loads(doctor.stdout), named, {module!r} in sys.modules]))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    made = Environment(tmp_path_factory.mktemp("codes"))
    (made.site / "_pretends.pth").write_text(PRETENDS)
    return made


@pytest.fixture(scope="module")
def met(environment):
    """met(code) -> what a host met that found this one broken wheel; asked once."""
    known = {}

    def ask(code):
        if code not in known:
            folder = environment.folder / name_of(code)
            settings = laid_out(code, environment, folder)
            words = {
                "here": str(folder / "here"),
                "module": f"jackfield_{name_of(code)}",
                "dist": f"jackfield-{name_of(code)}",
                "named": BROKEN[code].named or name_of(code),
            }
            who = {"HOME": str(environment.folder), "LOGNAME": USER, "USER": USER}
            exit_code, out, err = environment.run(HOST.format(**words), **who, **settings)
            assert exit_code == 0, err
            known[code] = json.loads(out.splitlines()[-1])
        return known[code]

    return ask


@pytest.mark.parametrize("code", BROKEN)
def test_the_app_goes_on_and_the_status_says_why(code, met):
    (stage, state, found, where, trace), module, *_ = met(code)
    assert (found, (stage, state)) == (code, stages.CODES[code])
    static = stage in ("manifest", "trust") or code in ("too-old", "too-new")
    assert where == ("static" if static else "child" if stage == "probe" or code == "gil" else "here")
    if where != "here":
        assert not module, "no line of it may have run in this process"
    cause = BROKEN[code].cause
    if cause:
        assert f"jackfield_{name_of(code)}" in trace
        raised = [line.partition(":")[0] for line in trace.splitlines() if line[:1].strip()]  # its text may have lines
        assert any(line.endswith(cause) for line in raised)
    elif where != "child":
        assert trace is None


@pytest.mark.parametrize("code", BROKEN)
def test_who_names_it_hears_its_error_with_the_cause(code, met):
    *_, named, module = met(code)
    broken = BROKEN[code]
    if broken.error is None:
        assert (named, module) == (None, True)
        return
    error, found, cause, text = named
    assert (error, found, cause) == (broken.error, code, broken.cause)
    assert issubclass(getattr(errors, error), errors.Error)
    assert name_of(code) in text


@pytest.mark.parametrize("code", BROKEN)
def test_doctor_tells_it(code, met, environment):
    _, _, exit_code, document, *_ = met(code)
    jsonschema.validate(document, SCHEMA)
    assert exit_code == (1 if stages.CODES[code][1] in ("failed", "crashed", "hung", "refused") else 0)
    text = json.dumps(document)
    assert str(environment.folder) not in text
    assert USER not in text
    assert platform.node() not in text
    assert told(document, code) == GOLDEN[code]


def told(document, code):
    """What doctor says of the broken wheel, without what differs from one machine and day to the next."""
    (backend,) = (b for b in document["backends"] if b["dist"] == f"jackfield-{name_of(code)}")
    backend = {**backend, "seconds": 0, "build": backend["build"].partition(":")[0]}
    trace = (backend["traceback"] or "").strip().splitlines()
    # What a dying child writes lists its threads and modules.
    backend["traceback"] = trace[-1] if trace and backend["where"] == "here" else bool(trace)
    name = backend["name"]
    hints = [hint for hint in document["hints"] if hint["code"] == code or name in hint["text"]]
    notes = [note for note in document["notes"] if name in note]
    plain = json.dumps({"backend": backend, "hints": hints, "notes": notes}).replace(this_platform(), "HERE")
    return json.loads(plain)


def test_every_code_has_its_wheel():
    assert BROKEN.keys() == stages.CODES.keys()
    assert GOLDEN.keys() == stages.CODES.keys()
    assert set(SCHEMA["$defs"]["backend"]["properties"]["code"]["enum"]) == {"", *stages.CODES}


def test_no_other_code_is_in_the_sources():
    """`Stop` and `Refusal` with a text for a code: only those of the table, at their stage and in their state."""
    seen = set()
    for path in CORE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            name, texts = node.func.id, [a.value if isinstance(a, ast.Constant) else None for a in node.args]
            if name == "Stop" and texts[2]:
                assert texts[2] == "hook-raised" or stages.CODES[texts[2]] == tuple(texts[:2]), path
                seen.add(texts[2])
            elif name == "Refusal" and texts[0]:
                assert stages.CODES[texts[0]][0] == "trust", path
                seen.add(texts[0])
    assert len(seen) > 15


# All at once

LISTED = ["first", "zlast", *{name_of(code) for code in BROKEN} - {"not_listed"}, "duplicate", "!denied"]
TOGETHER = """
import json, os, sys
os.chdir({here!r})
import numpy as np
import jackfield as jf
x = jf.input("x", (3,))
for name in ("first", "zlast"):
    plan = jf.compile(jf.ops.add(x, x), device=name, policy="strict")
    assert plan(x=np.ones(3, np.float32)).tolist() == [2, 2, 2]
    assert plan.devices == (f"{{name}}:0",)
names = [d.name for d in jf.devices()]
assert {{"first:0", "zlast:0"}} <= set(names)
statuses = [[s.name, s.dist, s.stage, s.state, s.code] for s in jf.status()]
print()
print(json.dumps([statuses, [module for module in sys.modules if module.startswith("jackfield_")]]))
"""


def all_broken(environment):
    """Every broken wheel beside two good ones, and what breaks those that are whole by themselves; the variables of a
    host and the folder it starts in.
    """
    folder, here, pinned = environment.folder, environment.folder / "here", environment.folder / "pins.json"
    here.mkdir()
    wheels = {code: wheels_of(code, folder) for code in BROKEN}
    (planted,) = wheels.pop("outside-site")
    with zipfile.ZipFile(planted) as archive:
        archive.extractall(here)
    good = [build(folder, name, source(name)) for name in ("first", "zlast")]
    environment.install(*good, *(wheel for some in wheels.values() for wheel in some))
    (environment.site / "_pretends.pth").write_text(PRETENDS)
    command = "import sys; from jackfield.cli import main; sys.argv[1:] = ['trust', 'pin']; main()"
    code, out, err = environment.run(command)
    assert code == 0, err
    document = json.loads(out)
    document["pins"] = [pin for pin in document["pins"] if pin["name"] != "jackfield-unpinned"]
    pinned.write_text(json.dumps(document))
    with (environment.site / "jackfield_tampered" / "__init__.py").open("a") as file:
        file.write("# one more line\n")
    BROKEN["shadowed"].place(here)
    BROKEN["unreadable"].place(environment.site)
    settings = {**BROKEN["gil"].settings, "JACKFIELD_PINS": str(pinned), "JACKFIELD_BACKENDS": ",".join(LISTED)}
    return settings, here


def test_all_beside_two_good_ones_in_every_hash_order(tmp_path):
    environment = Environment(tmp_path / "all")
    settings, here = all_broken(environment)
    host = TOGETHER.format(here=str(here))
    listed = set()
    for seeds in ((0,), range(1, 4), range(4, 7), range(7, 10)):  # the first meets all builds in children
        hosts = [environment.start(host, PYTHONHASHSEED=str(seed), **settings) for seed in seeds]
        for started in hosts:
            out, err = started.communicate()
            assert started.returncode == 0, err
            statuses, modules = json.loads(out.splitlines()[-1])
            listed.add(json.dumps(statuses))
            untouched = {f"jackfield_{name_of(code)}" for code in BROKEN if stages.CODES[code][0] in ("trust", "probe")}
            assert untouched.isdisjoint(modules)
    (only,) = listed
    states = {(name, dist): (stage, state, code) for name, dist, stage, state, code in json.loads(only)}
    for code in BROKEN:
        (found,) = (value for (_, dist), value in states.items() if dist == f"jackfield-{name_of(code)}")
        assert found == (*stages.CODES[code], code)
    names = [name for name, dist in states if dist.startswith("jackfield-")]
    assert names == sorted(names)
