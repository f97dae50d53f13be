"""The contract against its record: what a plugin could notice needs a new version of it."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from contract_record import changes, described
from freeze import HERE, PRESENT, recorded

from jackfield import backend, hookspecs
from jackfield.discovery import CORE_WINDOW

RECORD = recorded()
ROOT = Path(__file__).parents[2]


def spoken_versions():
    """Versions of the record that this core still speaks; the present one is always among them."""
    numbers = {version: tuple(map(int, version.split("."))) for version in RECORD}
    return [version for version, number in numbers.items() if CORE_WINDOW[0] <= number <= CORE_WINDOW[1]]


def test_the_present_version_is_recorded():
    assert PRESENT in RECORD, f"contract {PRESENT} is in no record: `python tests/frozen/freeze.py abc`"
    assert PRESENT in spoken_versions()


@pytest.mark.parametrize("version", spoken_versions())
def test_the_contract_only_grows(version):
    wrong = changes(RECORD[version], described()).forbidden
    advice = "below 1.0 a new minor version may; see tests/frozen/README.md"
    assert not wrong, f"a plugin for contract {version} would break: {'; '.join(wrong)}: {advice}"


def test_the_record_of_the_present_version_is_whole():
    new = changes(RECORD[PRESENT], described()).allowed
    assert not new, f"not recorded yet: {'; '.join(new)}: `python tests/frozen/freeze.py abc`"
    assert json.loads(json.dumps(described())) == RECORD[PRESENT]


def changed(edit):
    new = copy.deepcopy(described())
    edit(new)
    return changes(described(), new)


FORBIDDEN = {
    "Step.attrs is gone": lambda new: new["Step"]["fields"].__setitem__(
        3, {"name": "attributes", "type": "Attrs", "given": True}
    ),
    "Reason is gone": lambda new: new.pop("Reason"),
    "Device.compile is gone": lambda new: new["Device"]["methods"].pop("compile"),
    "Device.alignment is gone": lambda new: new["Device"]["attributes"].pop("alignment"),
    "Device.flush is a new abstract method": lambda new: new["Device"]["abstract"].append("flush"),
    "Device.groups is now abstract": lambda new: new["Device"]["abstract"].append("groups"),
    "Device.alloc has lost its argument usage": lambda new: new["Device"]["methods"]["alloc"]["parameters"].pop(),
    "Device.alloc has got an argument hint": lambda new: new["Device"]["methods"]["alloc"]["parameters"].append(
        {"name": "hint", "type": "int", "given": True, "keyword": True}
    ),
    "Device.fuse: its argument links has moved": lambda new: new["Device"]["methods"]["fuse"]["parameters"].reverse(),
    "Backend.why_not gave Reason | str | None and gives": lambda new: new["Backend"]["methods"]["why_not"].__setitem__(
        "returns", "Reason | None"
    ),
    "Backend.version is a new attribute without": lambda new: new["Backend"]["attributes"].__setitem__(
        "version", {"type": "str", "given": False}
    ),
    "Target.vendor is a new field without": lambda new: new["Target"]["fields"].append(
        {"name": "vendor", "type": "str", "given": False}
    ),
    "Place.offset was field 1 and is field 0": lambda new: new["Place"]["fields"].insert(
        0, new["Place"]["fields"].pop(1)
    ),
    "Packing.looks has lost its default": lambda new: new["Packing"]["fields"][-1].__setitem__("given", False),
    "Rates.launch was float and is int": lambda new: new["Rates"]["fields"][2].__setitem__("type", "int"),
    "Usage has lost STAGING=staging": lambda new: new["Usage"]["words"].remove("STAGING=staging"),
    "ReasonCode has lost memory": lambda new: new["ReasonCode"]["words"].remove("memory"),
    "DTYPES has lost q8_0": lambda new: new["DTYPES"]["words"].remove("q8_0"),
    "BadIndex has lost": lambda new: new["BadIndex"]["words"].pop(),
    "Spec has lost rank": lambda new: new["Spec"]["properties"].remove("rank"),
    "hook jackfield_hardware is gone": lambda new: new.pop("hook jackfield_hardware"),
    "work_of was a function and is a class": lambda new: new["work_of"].__setitem__("is", "class"),
    "work_of has got an argument deep": lambda new: new["work_of"]["parameters"].append(
        {"name": "deep", "type": "bool", "given": False, "keyword": True}
    ),
}  # fmt: skip

ALLOWED = {
    "Device.flush is a new method with a default": lambda new: new["Device"]["methods"].__setitem__(
        "flush", {"parameters": [], "returns": "None"}
    ),
    "Target.vendor is a new field with a default": lambda new: new["Target"]["fields"].append(
        {"name": "vendor", "type": "str", "given": True}
    ),
    "Backend.vendor is a new attribute with a default": lambda new: new["Backend"]["attributes"].__setitem__(
        "vendor", {"type": "str", "given": True}
    ),
    "hook jackfield_keys is new": lambda new: new.__setitem__("hook jackfield_keys", new["hook jackfield_spans"]),
    "hook jackfield_spans has got an argument call": lambda new: new["hook jackfield_spans"]["parameters"].append(
        {"name": "call", "type": "int", "given": False, "keyword": False}
    ),
    "ReasonCode has got power": lambda new: new["ReasonCode"]["words"].append("power"),
    "DTYPES has got q9_0": lambda new: new["DTYPES"]["words"].append("q9_0"),
    "refusal has got an argument deep": lambda new: new["refusal"]["parameters"].append(
        {"name": "deep", "type": "bool", "given": True, "keyword": True}
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", FORBIDDEN)
def test_what_a_plugin_could_notice_is_named(text):
    found = changed(FORBIDDEN[text])
    assert any(text in line for line in found.forbidden), found


@pytest.mark.parametrize("text", ALLOWED)
def test_what_no_plugin_notices_is_allowed_and_told(text):
    found = changed(ALLOWED[text])
    assert found.forbidden == ()
    assert [line for line in found.allowed if text in line]


def test_freezing_again_is_refused_where_something_broke(tmp_path, renamed_core):
    """The script that writes the record does not write a break over it; here on a copy of both."""
    for name in ("freeze.py", "contract_record.py", "abc.json"):
        shutil.copy(HERE / name, tmp_path)
    run = [sys.executable, tmp_path / "freeze.py", "abc"]
    env = {"PYTHONPATH": str(renamed_core), "JACKFIELD_CACHE": "off"}
    done = subprocess.run(run, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Step.attrs is gone" in done.stderr
    assert "raise API" in done.stderr
    assert (tmp_path / "abc.json").read_bytes() == (HERE / "abc.json").read_bytes()


def test_the_contract_is_the_documented_list():
    """Every name stands in the table of docs/adding-a-backend.md, and nothing else does."""
    page = (ROOT / "docs" / "adding-a-backend.md").read_text("utf-8")
    table = page.partition("## Every name of the contract")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    of_hooks = {name for name in hookspecs.__all__ if not name.startswith("jackfield_")}
    assert sorted(listed) == sorted({*backend.__all__, *of_hooks})
