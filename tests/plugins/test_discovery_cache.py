"""What is kept of installed backends: the next process reads no file of theirs, and never says what is no more."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from environments import Environment
from wheels import build, source

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
