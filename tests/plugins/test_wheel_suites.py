"""What the kit says of wheels: one without a fault, and one for each fault, all in one environment."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from environments import Environment
from wheels import build, source

SUITES = ("packaging", "manifest", "registry", "names", "window")
TWO = "        other = Toy()\n        other.name = 'gaps:2'\n        return [Toy(), other]\n"
COPIED = "from jackfield.backend import API\n"


def changed(name, old, new):
    text = source(name)
    assert text.count(old) == 1
    return text.replace(old, new)


# name: (source, what is wrong with the wheel, the cases that fail)
FAULTS = {
    "good": (source("good"), {}, ()),
    "fixed": (source("fixed"), {"needs_core": "jackfield==0.1.0"}, ("packaging/dependency",)),
    "alone": (source("alone"), {"needs_core": ""}, ("packaging/dependency",)),
    "unbound": (source("unbound"), {"needs_core": "jackfield"}, ("packaging/dependency",)),
    "minor": (source("minor"), {"needs_core": "jackfield>=0.1,<0.2"}, ("packaging/dependency",)),
    "twice": (source("twice"), {"outside": {"other_name/__init__.py": b""}}, ("packaging/one-import-name",)),
    "free": (source("free"), {"licence": False}, ("packaging/licence",)),
    "plain": (source("plain"), {"has_manifest": False}, ("packaging/manifest",)),
    "mistyped": (source("mistyped"), {"prioritty": 3}, ("manifest/known-keys",)),
    "lacking": (source("lacking"), {"claims": "claims.txt"}, ("manifest/claims",)),
    "copied": (
        COPIED + changed("copied", 'api = "copied", (0, 1)', 'api = "copied", API'),
        {},
        ("window/literal",),
    ),
    "gaps": (changed("gaps", "        return [Toy()]\n", TWO), {}, ("names/whole",)),
    "restless": (
        changed("restless", 'self.name = "restless:0"', 'self.name, self.id = "restless:0", f"id-{os.getpid():08}"'),
        {},
        ("names/another-process",),
    ),
    "noisy": (source("noisy", "noise", "open"), {}, ("registry/hooks",)),
    "short": (
        changed("short", 'self.name = "short:0"', 'self.name, self.id = "short:0", "abc"'),
        {},
        ("names/ids",),
    ),
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheels")
    made = Environment(folder)
    made.install(*(build(folder, name, text, **given) for name, (text, given, _) in FAULTS.items()))
    return made


def conform(environment, device, *words):
    settings = {**os.environ, "JACKFIELD_CACHE": str(environment.cache)}
    run = [environment.python, "-m", "jackfield", "conform", device, "--json", *words]
    done = subprocess.run(run, env=settings, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return json.loads(done.stdout), done.returncode


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_a_wheel_fails_in_its_case_alone(name, environment):
    report, code = conform(environment, f"{name}:0", *(word for suite in SUITES for word in ("--suite", suite)))
    bad = tuple(case["id"] for case in report["cases"] if case["result"] not in ("passed", "unsupported"))
    assert bad == FAULTS[name][2]
    assert code == bool(bad)
    if not bad:
        refused = {case["id"] for case in report["cases"] if case["result"] == "unsupported"}
        assert refused == {"manifest/claims", "names/ids"}


def test_a_level_is_reached_or_told_what_blocks_it(environment):
    report, code = conform(environment, "good:0", "--level", "bronze")
    blocked = report["level"].pop("blocked_by")
    assert report["level"] == {"asked": "bronze", "reached": "bronze", "clean": True}, blocked
    assert (code, blocked) == (0, [])
    report, code = conform(environment, "fixed:0", "--level", "bronze")
    assert code == 1
    assert report["level"] == {
        "asked": "bronze",
        "reached": None,
        "clean": False,
        "blocked_by": ["packaging/dependency failed"],
    }
