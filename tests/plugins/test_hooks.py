"""What the hooks of a wheel tell doctor: findings, cards it sees, and the hint where a card has no driver."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from environments import Environment
from wheels import build, source

SCHEMA = json.loads((Path(__file__).parents[2] / "core/src/jackfield/schemas/doctor-1.json").read_text())
IMPORTS = "from jackfield.backend import Finding, Seen\n"
HOOKS = """

@hookimpl
def jackfield_diagnose(backend, deep):
    assert backend.name == "{name}"
    old = Finding("driver-old", "driver 3.0 is old", "update it to 3.1")
    return [old, Finding("looked", "all queues answer")] if deep else [old]


@hookimpl
def jackfield_hardware():
    return [Seen("pci-0000:66:00.0", "Acme A2"), Seen("pci-0000:65:00.0", "Acme A1")]
"""
ODD = """

@hookimpl
def jackfield_diagnose(backend):
    {diagnose}


@hookimpl
def jackfield_hardware():
    {hardware}
"""
HOST = """
import json, sys
from pathlib import Path
from jackfield import hardware
hardware.SYS = Path({sys!r})
import jackfield as jf
from click.testing import CliRunner
from jackfield.cli.app import app
done = [CliRunner().invoke(app, ["doctor", *words]) for words in {calls!r}]
try:
    jf.Session("absent")
    named = None
except jf.errors.Unavailable as e:
    named = str(e)
print(json.dumps([[[one.exit_code, one.stdout] for one in done], named]))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What doctor says, plainly, deep and as a table, of six wheels on a machine with one Acme card; and the error of
    who names the one without a driver.
    """
    environment = Environment(tmp_path_factory.mktemp("hooks"))
    folder = environment.folder
    card = folder / "sys/bus/pci/devices/0000:65:00.0"
    card.mkdir(parents=True)
    for name, text in (("vendor", "0x1d9b\n"), ("device", "0x0001\n"), ("class", "0x120000\n")):
        (card / name).write_text(text)
    hardware = [{"pci": "1d9b:*"}]
    odd = {
        "raises": ("raise RuntimeError('diagnose')", "raise SystemExit(3)"),
        "wrong": ("return [3, None, 'text']", "return 7"),
        "none": ("return None", "return []"),
    }
    wheels = [
        build(folder, "acme", IMPORTS + source("acme") + HOOKS.format(name="acme"), hardware=hardware),
        build(folder, "absent", source("absent", "absent", "open"), hardware=hardware),
        build(folder, "elsewhere", source("elsewhere", "absent", "open"), hardware=[{"pci": "ffff:*"}]),
        *(build(folder, n, source(n) + ODD.format(diagnose=d, hardware=h)) for n, (d, h) in odd.items()),
    ]
    environment.install(*wheels)
    calls = [["--json"], ["--deep", "--json"], []]
    code, out, err = environment.run(HOST.format(sys=str(folder / "sys"), calls=calls))
    assert code == 0, err
    ((plain, deep, table), named) = json.loads(out.splitlines()[-1])
    assert [plain[0], deep[0]] == [0, 0]
    return json.loads(plain[1]), json.loads(deep[1]), " ".join(table[1].split()), named


def test_findings_are_lines_of_doctor(told):
    plain, deep, table, _ = told
    for document in (plain, deep):
        jsonschema.validate(document, SCHEMA)
    old = "acme: driver 3.0 is old; update it to 3.1"
    assert [note for note in plain["notes"] if note.startswith("acme:")] == [old]
    assert [note for note in deep["notes"] if note.startswith("acme:")] == [old, "acme: all queues answer"]
    assert old in table


def test_cards_are_listed_with_who_sees_them(told):
    """By manifests, in the machine's own files, and by hooks."""
    plain, deep, *_ = told
    assert (
        plain["cards"]
        == deep["cards"]
        == [
            {"id": "pci-0000:65:00.0", "seen_by": ["absent", "acme"]},
            {"id": "pci-0000:66:00.0", "seen_by": ["acme"]},
        ]
    )


def test_a_card_without_its_driver_is_a_hint(told):
    plain, _, table, named = told
    hint = "card 1d9b:0001 at 0000:65:00.0 seen, so its driver is missing or not for this user"
    status = {b["name"]: b for b in plain["backends"]}
    assert (status["absent"]["code"], status["absent"]["hint"]) == ("no-device", hint)
    assert (status["elsewhere"]["code"], status["elsewhere"]["hint"]) == ("no-device", None)
    assert {"code": "no-device", "text": f"absent: {hint}", "install": ""} in plain["hints"]
    assert hint in table
    assert named == f"absent: no driver: libacme.so.3; {hint}"


def test_hooks_that_raise_or_answer_nonsense_harm_nobody(told):
    _, deep, *_ = told  # asked a second time: what the first time noted is there
    status = {b["name"]: b for b in deep["backends"]}
    assert {name: status[name]["state"] for name in ("raises", "wrong", "none")} == dict.fromkeys(
        ("raises", "wrong", "none"), "ok"
    )
    notes = " ".join(status["raises"]["notes"])
    assert "jackfield_diagnose: RuntimeError: diagnose" in notes
    assert "jackfield_hardware: SystemExit: 3" in notes
    assert [note for note in deep["notes"] if note.startswith(("wrong:", "none:"))] == [
        "wrong: jackfield_hardware gives a int, must give a list of Seens",
        "wrong: jackfield_diagnose gives a int, must give a list of Findings",
    ]
