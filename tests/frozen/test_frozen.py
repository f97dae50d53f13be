"""Wheels of past versions of the contract beside the core of the tree; wheels of later ones are refused in words."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from environments import Environment
from freeze import digest, frozen_wheels, record, tree, wheel
from wheels import build, source

from jackfield.backend import API
from jackfield.discovery import CORE_VERSION, CORE_WINDOW
from jackfield.manifest import window_text
from jackfield_conformance.levels import suites_of

WHEELS = frozen_wheels()
NUMBERS = {minor: tuple(map(int, minor.split("."))) for minor in WHEELS}
SPOKEN = [minor for minor, number in NUMBERS.items() if CORE_WINDOW[0] <= number <= CORE_WINDOW[1]]
LATER = (API[0], API[1] + 1), (API[0], API[1] + 3)
MAJOR = (API[0] + 1, 0), (API[0] + 1, 2)
OLDER = (0, 0), (0, 0)
REACHING = API, (API[0], API[1] + 2)

HOST = """
import json, sys, numpy as np, jackfield as jf
x = jf.input("x", (3,))
plan = jf.compile(jf.ops.add(x, x), device="auto")
assert (plan(x=np.ones(3, np.float32)) == 2).all()
rows = {s.name: [s.state, s.stage, s.code, s.error, s.hint] for s in jf.status()}
try:
    jf.Session(device=sys.argv[1] if sys.argv[1:] else "later:0")
except jf.Error as e:
    rows["named"] = [type(e).__name__, str(e)]
rows["imported"] = sorted(m for m in sys.modules if m in ("jackfield_later", "jackfield_major", "jackfield_older"))
print(json.dumps(rows))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("frozen")
    made = Environment(folder)
    made.install(
        *(wheel(minor, folder) for minor in WHEELS),
        build(folder, "older", "raise SystemExit(3)\n", contract=contract(OLDER)),
        build(folder, "later", "import os\nos.abort()\n", contract=contract(LATER)),
        build(folder, "major", "raise SystemExit(3)\n", contract=contract(MAJOR)),
        build(folder, "reaching", source("reaching").replace("(0, 1)", repr(REACHING[1])), contract=contract(REACHING)),
    )
    return made


def contract(window):
    low, high = (f"{major}.{minor}" for major, minor in window)
    return {"min": low, "max": high}


@pytest.mark.parametrize("minor", WHEELS)
def test_a_frozen_wheel_is_what_it_was(minor, tmp_path):
    assert digest(wheel(minor, tmp_path)) == WHEELS[minor]["sha256"], f"tests/frozen/{minor} was changed: never do that"
    (listed,) = [path for path in tree(minor) if path.name == "RECORD"]
    assert listed.read_text("utf-8") == record(minor)


def conform(environment, device, *words, **settings):
    plain = {k: v for k, v in os.environ.items() if not k.startswith("JACKFIELD_")}
    run = [environment.python, "-m", "jackfield", "conform", device, "--json", *words]
    given = {**plain, "JACKFIELD_CACHE": str(environment.cache), **settings}
    done = subprocess.run(run, env=given, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def bad(report):
    return [f"{c['id']}: {c['reason']}" for c in report["cases"] if c["result"] not in ("passed", "unsupported")]


def test_the_window_holds_a_frozen_wheel():
    assert SPOKEN, f"no wheel of {window_text(CORE_WINDOW)} is frozen: see tests/frozen/README.md"


@pytest.mark.parametrize("minor", SPOKEN)
def test_a_frozen_wheel_reaches_its_level(minor, environment):
    """A sample of every suite of it: which cases depends on the kit's seed alone."""
    suites = suites_of(WHEELS[minor]["level"])
    words = [word for suite in suites for word in ("--suite", suite)]
    report = conform(environment, f"{WHEELS[minor]['name']}:0", "--sample", "1", *words)
    assert bad(report) == []
    assert report["spoken"] == minor
    (claims,) = [path for path in tree(minor) if path.name == "claims.txt"]
    assert report["suites"]["ops"]["passed"] == len(claims.read_text("utf-8").splitlines())  # one of each op and dtype
    assert [suite for suite in suites if not report["suites"][suite]["passed"]] == []


def test_a_wheel_of_an_older_window_is_refused_with_both(environment):
    code, out, err = environment.run(HOST)
    assert code == 0, err
    rows = json.loads(out)
    past = {WHEELS[minor]["name"]: (n, n) for minor, n in NUMBERS.items() if minor not in SPOKEN}
    for name, window in {"older": OLDER, **past}.items():
        state, stage, said, error, hint = rows[name]
        assert (state, stage, said) == ("refused", "contract", "too-old")
        assert error == f"{name} speaks {window_text(window)}, jackfield {window_text(CORE_WINDOW)}"
        first = f"{CORE_WINDOW[0][0]}.{CORE_WINDOW[0][1]}"
        assert hint == f"pip install 'jackfield-{name}>1.0', one that speaks {first} or later"


def test_a_renamed_field_of_the_contract_turns_it_red(environment, renamed_core):
    """The trial: `Step.attrs` has another name in this core, which agrees with itself."""
    path = {"PYTHONPATH": str(renamed_core), "JACKFIELD_PROBE": "never"}
    code, _, err = environment.run(HOST, **path)
    assert code == 0, err
    report = conform(environment, "frozen:0", "--suite", "ops", "--sample", "1", **path)
    assert [text for text in bad(report) if "attrs" in text]


def test_a_later_contract_is_refused_with_both_versions_and_never_imported(environment):
    code, out, err = environment.run(HOST)
    assert code == 0, err
    rows = json.loads(out)
    for name, window in (("later", LATER), ("major", MAJOR)):
        state, stage, said, error, hint = rows[name]
        assert (state, stage, said) == ("refused", "contract", "too-new")
        assert error == f"{name} speaks {window_text(window)}, jackfield {window_text(CORE_WINDOW)}"
        first, ours = (f"{n[0]}.{n[1]}" for n in (window[0], CORE_WINDOW[1]))
        mine = f"pip install 'jackfield>{CORE_VERSION}', one that speaks {first}"
        assert hint == f"{mine}; or pip install 'jackfield-{name}<1.0', one that speaks {ours}"
    assert rows["imported"] == []
    assert rows["named"][0] == "ContractError"
    assert rows["later"][3] in rows["named"][1] and rows["later"][4] in rows["named"][1]


def test_a_window_that_reaches_further_speaks_the_older_version(environment):
    code, out, err = environment.run(
        "from jackfield import registry\nprint(*registry.select('reaching:0').devices[0].backend.spoken)"
    )
    assert code == 0, err
    assert tuple(map(int, out.split())) == API
