"""A manifest and the code behind it that say different things: the status or the kit tells which."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from environments import Environment
from wheels import build, source

DIFFERENT = {
    "name": (lambda text: text.replace('= "name", (', '= "other", ('), {}, "the object's name is 'other'"),
    "kinds": (lambda text: text, {"kinds": [{"kind": "kindz", "class": "npu"}]}, "its kinds are kindz"),
    "class": (lambda text: text, {"kinds": [{"kind": "class", "variant": "emu", "simulated": True}]}, "its kinds are"),
    "contract": (lambda text: text.replace("(0, 1)", "(0, 0)"), {}, "manifest says api 0.1, object says 0.0"),
    "newer": (lambda text: text, {"contract": {"min": "0.1", "max": "0.2"}}, "manifest says api 0.2, object says 0.1"),
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    made = Environment(tmp_path_factory.mktemp("different"))
    made.install(*(build(made.folder, n, change(source(n)), **wheel) for n, (change, wheel, _) in DIFFERENT.items()))
    return made


def jackfield(environment, *words):
    settings = {**os.environ, "JACKFIELD_CACHE": str(environment.cache)}
    run = [environment.python, "-m", "jackfield", *words]
    return subprocess.run(run, env=settings, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", DIFFERENT)
def test_the_kit_does_not_pass_it_and_says_why(name, environment):
    kind = "kindz" if name == "kinds" else name
    done = jackfield(environment, "conform", kind, "--suite", "manifest")
    assert done.returncode != 0
    assert DIFFERENT[name][2] in done.stdout + done.stderr


def test_each_status_says_that_they_disagree(environment):
    backends = {b["name"]: b for b in json.loads(jackfield(environment, "doctor", "--json").stdout)["backends"]}
    for name, (_, _, says) in DIFFERENT.items():
        assert backends[name]["code"] == "disagrees"
        assert says in backends[name]["error"]
