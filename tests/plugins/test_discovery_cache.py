"""What is kept of installed backends: the next process reads no file of theirs, and never says what is no more."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest
from environments import Environment
from wheels import build, source

from jackfield import registry

STATUS = """
import json, sys
read = []
sys.addaudithook(lambda event, args: read.append(str(args[0])) if event == "open" else None)
import jackfield as jf
found = {s.name: [s.dist, s.version, s.build, s.state, s.stage, s.code, s.error, list(s.notes)] for s in jf.status()}
names = ("METADATA", "RECORD", "entry_points.txt", "backend.json")
print(json.dumps([found, sorted(p for p in read if p.endswith(names)), "importlib.metadata" in sys.modules]))
"""
TWICE = """
import json, sys
import jackfield as jf
def names():
    return sorted(s.name for s in jf.status())
before = names()
print(json.dumps(before), flush=True)
sys.stdin.readline()
jf.refresh()
print(json.dumps(names()))
"""


def asked(environment, **settings):
    code, out, err = environment.run(STATUS, **settings)
    assert code == 0, err
    return json.loads(out)


@pytest.fixture
def environment(tmp_path):
    made = Environment(tmp_path)
    wheels = [build(tmp_path, name, source(name)) for name in ("one", "two")]
    made.install(*wheels, build(tmp_path, "wrong", source("wrong"), priority=999))
    return made


def test_the_second_process_reads_no_file_of_a_plugin(environment):
    first, read, _ = asked(environment)
    assert {name: first[name][3] for name in ("one", "two", "wrong")} == {
        "one": "pending",
        "two": "pending",
        "wrong": "refused",
    }
    assert any(path.endswith("backend.json") for path in read)
    second, read, metadata = asked(environment)
    assert second == first
    assert read == []
    assert not metadata  # nor what would read them
    assert environment.run("import jackfield as jf; jf.Session(device='one').close()")[0] == 0


def test_what_is_installed_or_gone_is_seen(environment, tmp_path):
    assert "three" not in asked(environment)[0]
    environment.install(build(tmp_path, "three", source("three")))
    assert asked(environment)[0]["three"][3] == "pending"
    shutil.rmtree(environment.site / "jackfield_two-1.0.dist-info")
    shutil.rmtree(environment.site / "jackfield_two")
    found = asked(environment)[0]
    assert "two" not in found
    assert "three" in found


def test_one_process_sees_it_after_a_refresh(environment, tmp_path):
    host = subprocess.Popen([environment.python, "-c", TWICE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with host:
        assert "three" not in json.loads(host.stdout.readline())
        environment.install(build(tmp_path, "three", source("three")))
        print(file=host.stdin, flush=True)
        assert "three" in json.loads(host.stdout.readline())


@pytest.mark.parametrize("rubbish", ["", "{", "null", "3", '[{"a": 1}]', "[[]]"])
def test_rubbish_is_read_anew(rubbish, environment):
    first, _, _ = asked(environment)
    (kept,) = (environment.cache / "backends").glob("installed-*.json")
    kept.write_text(rubbish)
    again, read, _ = asked(environment)
    assert again == first
    assert read
    assert len(json.loads(kept.read_text())) >= 3


def test_off_keeps_nothing(environment):
    for _ in range(2):
        _, read, _ = asked(environment, JACKFIELD_CACHE="off")
        assert read
    assert not environment.cache.exists()


def test_variables_count_though_files_are_kept(environment):
    asked(environment)
    assert asked(environment, JACKFIELD_BACKENDS="!one")[0]["one"][5] == "denied"
    assert asked(environment)[0]["one"][3] == "pending"


def written_over(path, old, new, *, hidden):
    """Changed in place, which no folder shows. hidden: nor do its size and time."""
    before = path.stat()
    text = path.read_text()
    assert text.count(old) == 1
    with path.open("r+") as file:
        file.write(text.replace(old, new))
        file.truncate()
    if hidden:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


@pytest.mark.parametrize(
    ("file", "old", "new", "told"),
    [
        ("backend.json", '"npu"', '"gpus"', (5, "manifest-invalid")),
        ("entry_points.txt", "one =", "uno =", None),
        ("METADATA", "Version: 1.0", "Version: 1.0.1", (1, "1.0.1")),
    ],
)
def test_a_file_written_over_is_read_by_the_next_process(environment, file, old, new, told):
    asked(environment)
    written_over(environment.site / "jackfield_one-1.0.dist-info" / file, old, new, hidden=False)
    found, read, _ = asked(environment)
    assert read
    assert found.get("one", {})[told[0]] == told[1] if told else "one" not in found
    assert asked(environment)[:2] == [found, []]


AGAIN = """
import sys
import jackfield as jf
from jackfield import registry
def state():
    return [s.code for s in jf.status() if s.name == "one"]
before = state()
getattr(registry, sys.argv[1])()
print(before, state())
"""


@pytest.mark.parametrize("call", ["refresh", "fresh"])
def test_what_promises_to_forget_looks_past_what_is_kept(environment, call):
    """A change that shows on no size and no time; and what it finds is what the next process is told."""
    asked(environment)
    elsewhere = environment.cache / "backends" / "installed-of-another-path.json"
    elsewhere.write_text("[]")
    manifest = environment.site / "jackfield_one-1.0.dist-info" / "backend.json"
    written_over(manifest, '"npu"', '"npx"', hidden=True)
    assert asked(environment)[0]["one"][5] == ""
    plain = {k: v for k, v in os.environ.items() if not k.startswith("JACKFIELD_")}
    env = {**plain, "JACKFIELD_CACHE": str(environment.cache), "JACKFIELD_PROBE": "never"}
    words = [environment.python, "-c", AGAIN, call]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[''] ['manifest-invalid']"
    found, read, _ = asked(environment)
    assert (found["one"][5], read) == ("manifest-invalid", [])
    assert elsewhere.exists() == (call == "refresh")


def test_a_refresh_that_could_not_read_all_trusts_nothing_that_is_kept(monkeypatch):
    """The next question reads again, and not the list of before."""
    told = []

    def scan(wishes, *, anew):
        told.append(anew)
        return [], len(told) != 2

    monkeypatch.setattr(registry, "scan", scan)
    one = registry.Registry()
    one.status()
    one.refresh()
    for _ in range(3):
        one.status()
    assert told == [False, True, True]
    one._stamp = None
    one.status()
    assert told[-1] is False
