"""Each JACKFIELD_* variable: set, it has its effect; under -I, -E or raised privileges it has none, with a note."""

from __future__ import annotations

import json
import os

import presence
import pytest
from environments import Environment
from wheels import build, source

from jackfield import variables
from jackfield.variables import VARIABLES, ignored, setting

START = """
import json, sys, time
import numpy as np
import jackfield as jf
from jackfield import registry

def told(value):
    print()
    print(json.dumps(value))

def status(name):
    return next(s.code or s.state for s in jf.status() if s.name == name)

def opened(name):
    try:
        jf.Session(name).close()
    except jf.errors.Error:
        pass
    return status(name)
"""

# variable: (its value, a program that tells something, what it tells without and with the variable)
EFFECTS = {
    "JACKFIELD_DEVICE": ("sim", "told([d.name for d in registry.select(None).devices][:1] == ['sim:0'])", False, True),
    "JACKFIELD_POLICY": ("strict", "told(jf.Session('reference').policy)", "prefer", "strict"),
    "JACKFIELD_BACKENDS": ("!acme", "told(status('acme'))", "pending", "denied"),
    "JACKFIELD_HIDE": ("pci-0000:65:00.0", "told(opened('acme'))", "ok", "no-device"),
    "JACKFIELD_CHECK": (
        "nan",
        """
plan = jf.compile(jf.ops.sqrt(jf.input("x", (2,))), "reference")
try:
    told(bool(np.isnan(plan(x=-np.ones(2, np.float32))).all()))
except jf.errors.KernelError:
    told("refused")
""",
        True,
        "refused",
    ),
    "JACKFIELD_SIM": ("mem=64MiB", "told(jf.devices()[-1].memory.total == 64 << 20)", False, True),
    "JACKFIELD_PROBE": ("never", "opened('acme'); told(registry._registry.plugins()[0].proof is None)", False, True),
    "JACKFIELD_PROBE_TIMEOUT": ("0.05", "told(opened('slow'))", "ok", "hung"),
    "JACKFIELD_CACHE": ("{folder}/own", "jf.status(); import os; told(os.path.exists('{folder}/own'))", False, True),
    "JACKFIELD_PINS": ("{folder}/pins.json", "told(status('acme'))", "pending", "unpinned"),
    "JACKFIELD_CPU_PARTS": ("2", "told([d.name for d in registry.select('cpu').devices][-1])", "cpu:0", "cpu:0:1"),
}  # fmt: skip
# What only tests and `bench/` read: the first is tried in core/test_presence.py.
ELSEWHERE = {"JACKFIELD_REQUIRE", "JACKFIELD_VOCABS", "JACKFIELD_THOROUGH", "JACKFIELD_PEER_DIR"}


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    made = Environment(tmp_path_factory.mktemp("variables"))
    card = source("acme").replace('self.name = "acme:0"', 'self.name, self.card = "acme:0", "pci-0000:65:00.0"')
    slow = source("slow").replace("import os, sys", "import os, sys, time\ntime.sleep(0.2)")
    made.install(build(made.folder, "acme", card), build(made.folder, "slow", slow))
    (made.folder / "pins.json").write_text('{"schema": "jackfield.pins/1", "pins": []}')
    return made


@pytest.mark.parametrize("name", EFFECTS)
def test_a_variable_has_its_effect_and_none_when_it_is_ignored(name, environment, tmp_path):
    if "CPU" in name:
        presence.opens("cpu:0")
    value, program, without, effect = EFFECTS[name]
    code = START + program.replace("{folder}", str(tmp_path))
    value = value.replace("{folder}", str(environment.folder if name == "JACKFIELD_PINS" else tmp_path))

    asked = []

    def told(*options, **settings):
        # -I and -E leave JACKFIELD_CACHE out, too: what is kept then lies in the user's cache folder.
        asked.append(options)
        plain = {"XDG_CACHE_HOME": str(tmp_path / f"user{len(asked)}"), "JACKFIELD_CACHE": ""}
        exit_code, out, err = environment.run(code, *options, **plain | settings)
        assert exit_code == 0, err
        return json.loads(out.splitlines()[-1])

    assert told("-I", **{name: value}) == without
    assert told(**{name: value}) == effect
    if name == "JACKFIELD_DEVICE":
        assert told() == without
        assert told("-E", **{name: value}) == without


def test_every_variable_is_tried():
    """Here, or where only tests and `bench/` read it; a plugin's own stand for each other."""
    assert {name for name in EFFECTS if "CPU" not in name} | ELSEWHERE == VARIABLES.keys()


@pytest.mark.parametrize("option", ["-I", "-E"])
def test_doctor_notes_what_is_ignored(option, environment):
    program = "import sys; from jackfield.cli import main; sys.argv[1:] = ['doctor', '--static', '--json']; main()"
    settings = {
        "JACKFIELD_DEVICE": "nonsense",
        "JACKFIELD_CACHE": "",
        "XDG_CACHE_HOME": str(environment.folder / "user"),
    }
    code, out, err = environment.run(program, option, **settings)
    assert code == 0, err
    document = json.loads(out)
    assert "ignored, because Python runs with -I or -E: JACKFIELD_CACHE, JACKFIELD_DEVICE" in document["notes"]
    effects = {one["name"]: one["effect"] for one in document["environment"]}
    assert effects["JACKFIELD_DEVICE"] == "ignored"


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system knows no such rights")
@pytest.mark.parametrize("call", ["geteuid", "getegid"])
def test_raised_privileges_ignore_variables(monkeypatch, call):
    """As in a program with the set-user-ID bit: who starts it must not choose what it loads."""
    monkeypatch.setenv("JACKFIELD_PROBE", "never")
    assert (ignored(), setting("JACKFIELD_PROBE")) == ("", "never")
    monkeypatch.setattr(variables.os, call, lambda: 4242)
    assert setting("JACKFIELD_PROBE") is None
    assert "other rights" in ignored()
