"""The pin file: what is not in it, or not as it was, does not load, in no process."""

from __future__ import annotations

import csv
import json
import os
import subprocess

import pytest
from environments import Environment
from fake_dists import good, install, log_of, manifest
from hypothesis import given
from hypothesis import strategies as st
from wheels import build, source

from jackfield.cli.app import app
from jackfield.errors import TrustError
from jackfield.pins import Pins, pin_of, pins_of_user

NATIVE = bytes(range(256)) * 40
STATUS = """
import json, sys
import jackfield as jf
jf.compile(jf.ops.abs(jf.input("x", (2,))))  # auto: the app runs whatever is refused
found = {s.name: s for s in jf.status()}
named = ""
try:
    jf.Session("acme").close()
except jf.errors.TrustError as e:
    named = e.status.code
s = found["acme"]
print(json.dumps([s.stage, s.state, s.code, s.error, s.hint, named, "jackfield_acme" in sys.modules]))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pins")
    made = Environment(folder)
    claims = {"_native.so": NATIVE, "data/table, with a comma.bin": b"1,2"}
    made.install(build(folder, "acme", source("acme"), claims), build(folder, "other", source("other")))
    return made


@pytest.fixture(scope="module")
def text(environment):
    """The pin file of what was installed; each test leaves the environment as it was."""
    return pinned(environment)


def pinned(environment, **settings):
    """What the command prints."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith("JACKFIELD_")}
    words = [environment.python, "-m", "jackfield", "trust", "pin"]
    env = {**plain, "JACKFIELD_CACHE": str(environment.cache), **settings}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    return done.stdout


def asked(environment, pins):
    environment.folder.joinpath("pins.json").write_text(pins)
    before = environment.log("acme")
    code, out, err = environment.run(STATUS, JACKFIELD_PINS=str(environment.folder / "pins.json"))
    assert code == 0, err
    stage, state, code, error, hint, named, imported = json.loads(out.splitlines()[-1])
    if code:
        assert environment.log("acme") == before, "neither this process nor a child has run a line of it"
        assert (stage, state, imported) == ("trust", "refused", False)
        assert named == code
        assert "jackfield trust pin > " in hint
    else:
        assert (state, named, imported) == ("ok", "", True)
    return code, error


def test_pinned_and_as_it_was_is_ok(environment, text):
    document = json.loads(text)
    assert document["schema"] == "jackfield.pins/1"
    acme = next(pin for pin in document["pins"] if pin["name"] == "jackfield-acme")
    assert acme["version"] == "1.0"
    with (environment.site / "jackfield_acme-1.0.dist-info" / "RECORD").open() as file:
        recorded = {row[0] for row in csv.reader(file)}
    assert acme["files"].keys() <= recorded
    assert {name for name in acme["files"] if "dist-info" not in name} == {
        "jackfield_acme/__init__.py",
        "jackfield_acme/_native.so",
        "jackfield_acme/data/table, with a comma.bin",
    }
    assert {"METADATA", "entry_points.txt", "backend.json"} <= {name.split("/")[-1] for name in acme["files"]}
    assert asked(environment, text) == ("", None)


def test_pinning_runs_no_plugin(environment):
    before = environment.log("acme"), environment.log("other")
    pinned(environment)
    assert (environment.log("acme"), environment.log("other")) == before


def test_one_other_byte_is_tampered_and_a_new_pin_heals(environment, text):
    native = environment.site / "jackfield_acme" / "_native.so"
    for at in (0, len(NATIVE) - 1):
        other = bytearray(NATIVE)
        other[at] ^= 1
        state = native.stat()
        native.write_bytes(other)
        os.utime(native, ns=(state.st_atime_ns, state.st_mtime_ns))  # as an installer, or an attacker, would
        assert asked(environment, text) == ("tampered", "jackfield-acme 1.0: _native.so differs from its pin")
        if not at:
            assert asked(environment, pinned(environment, JACKFIELD_PINS="gone.json")) == ("", None)
        native.write_bytes(NATIVE)
    assert asked(environment, text) == ("", None)


CHANGES = {
    "source": ("jackfield_acme/__init__.py", b"\n# changed", "__init__.py differs from its pin"),
    "manifest": ("jackfield_acme-1.0.dist-info/backend.json", b" ", "backend.json differs from its pin"),
    "more code": ("jackfield_acme/_native.abi3.so", b"code", "jackfield_acme/_native.abi3.so is code that has no pin"),
    "bytecode": ("jackfield_acme/numpy.pyc", b"code", "jackfield_acme/numpy.pyc is code that has no pin"),
    "deep": ("jackfield_acme/deep/er/x.py", b"", "jackfield_acme/deep/er/x.py is code that has no pin"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_kind_of_change_is_seen(environment, text, change):
    name, added, says = CHANGES[change]
    path = environment.site / name
    before = path.read_bytes() if path.exists() else None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((before or b"") + added)
    try:
        assert asked(environment, text) == ("tampered", f"jackfield-acme 1.0: {says}")
    finally:
        path.unlink() if before is None else path.write_bytes(before)


def test_a_lost_file_is_seen(environment, text):
    path = environment.site / "jackfield_acme" / "_native.so"
    path.unlink()
    try:
        assert asked(environment, text) == ("tampered", "jackfield-acme 1.0: _native.so is pinned and can not be read")
    finally:
        path.write_bytes(NATIVE)


def test_data_and_bytecode_that_python_writes_are_no_change(environment, text):
    (environment.site / "jackfield_acme" / "__pycache__").mkdir(exist_ok=True)
    (environment.site / "jackfield_acme" / "__pycache__" / "x.cpython-311.pyc").write_bytes(b"x")
    (environment.site / "jackfield_acme" / "notes.txt").write_text("x")
    (environment.site / "jackfield_acme-1.0.dist-info" / "REQUESTED").write_text("x")
    assert asked(environment, text) == ("", None)


def spoilt(text, change):
    document = json.loads(text)
    (acme,) = (pin for pin in document["pins"] if pin["name"] == "jackfield-acme")
    change(document, acme)
    return json.dumps(document)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda all_, acme: all_["pins"].remove(acme), "jackfield-acme 1.0 has no pin in "),
        (lambda _, acme: acme.update(version="0.9"), "only 0.9 has"),
        (lambda all_, _: all_.update(schema="jackfield.pins/2"), "has schema 'jackfield.pins/2'"),
        (lambda all_, _: all_.pop("pins"), "is no pin file (KeyError"),
        (lambda _, acme: acme.update(version=1), "is no pin file (names"),
        (lambda _, acme: acme["files"].update({"x": "md5:1"}), "is no pin file (names"),
    ],
)
def test_what_is_not_in_the_file_is_unpinned(environment, text, change, says):
    code, error = asked(environment, spoilt(text, change))
    assert (code, says in error) == ("unpinned", True), error


def test_another_spelling_of_the_name_is_the_same_wheel(environment, text):
    renamed = spoilt(text, lambda _, acme: acme.update(name="Jackfield_Acme"))
    assert asked(environment, renamed) == ("", None)


@pytest.mark.parametrize("content", [None, "", "[]", "null", "{}", '{"schema": "jackfield.pins/1", "pins": 3}'])
def test_a_file_that_is_none_pins_nothing_and_is_told(tmp_path, monkeypatch, content):
    path = tmp_path / "pins.json"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("JACKFIELD_PINS", str(path))
    pins = pins_of_user()
    refusal = pins.refusal(None, "jackfield-acme", "1.0", "jackfield_acme")
    assert refusal.code == "unpinned"
    assert str(path) in refusal.error
    assert pins.wrong


KEYS = st.sampled_from(["schema", "pins", "name", "version", "files"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner),
    max_leaves=8,
)


@given(JSON)
def test_no_file_is_more_than_refused(tmp_path_factory, document):
    path = tmp_path_factory.getbasetemp() / "rubbish.json"
    if isinstance(document, dict):
        document["schema"] = "jackfield.pins/1"
    path.write_text(json.dumps(document))
    path.touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JACKFIELD_PINS", str(path))
        pins = pins_of_user()
    assert isinstance(pins, Pins)
    assert pins.wrong or document["pins"] == [pin.as_json() for pin in pins.pins.values()]


def test_a_change_after_the_listing_is_seen_before_the_import(folder, registry, tmp_path, monkeypatch):
    """One process: listed as pending, changed, then named; and after a new pin it loads."""
    install(folder, "acme", good("acme"))
    path = tmp_path / "pins.json"

    def pin():
        (found,) = (p.found for p in registry.plugins() if p.found.name == "acme")
        made = pin_of(found.distribution, found.dist, found.version, "jackfield_acme").as_json()
        path.write_text(json.dumps({"schema": "jackfield.pins/1", "pins": [made]}))
        os.utime(path, ns=(0, len(made["files"]) + path.stat().st_mtime_ns))

    pin()
    monkeypatch.setenv("JACKFIELD_PINS", str(path))
    assert [s.state for s in registry.status() if s.name == "acme"] == ["pending"]
    module = folder / "jackfield_acme.py"
    module.write_text(module.read_text() + "\n# changed")
    with pytest.raises(TrustError, match="differs from its pin"):
        registry.select("acme")
    assert log_of(folder, "acme") == []
    pin()
    assert registry.select("acme").devices[0].name == "acme:0"


def test_no_child_meets_what_may_not_load(folder, registry, monkeypatch, tmp_path):
    """`fresh` and `auto` start children only for those that this process may load."""
    monkeypatch.setenv("JACKFIELD_PROBE", "always")
    monkeypatch.setenv("JACKFIELD_BACKENDS", "!aa")
    install(folder, "aa", good("aa"))
    install(folder, "bb", good("bb"), manifest("bb", platforms=["mars/z80"]))
    registry.fresh()
    registry.devices()
    assert log_of(folder, "aa") == log_of(folder, "bb") == []
    monkeypatch.delenv("JACKFIELD_BACKENDS")
    registry.fresh()
    assert log_of(folder, "aa") == ["import", "hook", "devices"]


def test_the_planted_gets_no_pin(tmp_path, monkeypatch):
    from click.testing import CliRunner

    install(tmp_path, "planted", good("planted"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    monkeypatch.setenv("JACKFIELD_CACHE", "off")
    done = CliRunner().invoke(app, ["trust", "pin"])
    assert done.exit_code == 0
    assert "planted" not in done.stdout
    assert "not pinned: planted: jackfield-planted 1.0 lies in " in done.stderr
