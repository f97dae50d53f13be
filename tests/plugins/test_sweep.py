"""What the core keeps for the user stays small: old documents go, and the oldest of many; nothing in use does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import platformdirs
import pytest
from fake_dists import good, install

from jackfield import sweep as swept
from jackfield.probe import Proof, Verdict
from jackfield.registry import Registry
from jackfield.sweep import LISTS, STALE_S, VERDICTS, sweep, used

HOUR, DAY = 3600, 86400


def key(name, number):
    return f"{name}-{number:032x}"


def put(folder, name, age):
    """A file that was last used so many seconds ago."""
    path = folder / name
    path.write_text("{}")
    then = time.time() - age
    os.utime(path, (then, then))
    return path


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_of_many_documents_the_newest_stay(tmp_path):
    for number in range(LISTS + 20):
        put(tmp_path, f"{key('installed', number)}.json", number)
    for number in range(VERDICTS + 20):
        put(tmp_path, f"{key('acme' if number % 2 else 'two_words', number)}.json", number)
    sweep(tmp_path, "")
    left = {tuple(name.removesuffix(".json").rsplit("-", 1)) for name in names(tmp_path)}
    assert {int(n, 16) for word, n in left if word == "installed"} == set(range(LISTS))
    assert {int(n, 16) for word, n in left if word != "installed"} == set(range(VERDICTS))


def test_what_nobody_used_for_long_goes_with_all_that_belongs_to_it(tmp_path):
    old, new = key("acme", 1), key("acme", 2)
    for kind in ("json", "lock", "open.12-13.busy"):
        put(tmp_path, f"{old}.{kind}", STALE_S + DAY)
        put(tmp_path, f"{new}.{kind}", STALE_S - DAY)
    put(tmp_path, f"{key('acme', 3)}.lock", DAY)  # of a build of which nothing is known
    put(tmp_path, f"{key('acme', 4)}.7.part", DAY)
    sweep(tmp_path, "")
    assert names(tmp_path) == {f"{new}.{kind}" for kind in ("json", "lock", "open.12-13.busy")}


def test_what_is_in_use_or_not_ours_stays(tmp_path):
    mine = key("acme", 1)
    stays = [f"{mine}.json", f"{mine}.lock", "notes.json", "acme-1.json", "README"]
    for name in stays:
        put(tmp_path, name, 10 * STALE_S)
    stays += [f"{key('acme', 2)}.lock", f"{key('acme', 3)}.9.part"]
    for name in stays[-2:]:
        put(tmp_path, name, HOUR)
    (tmp_path / f"{key('acme', 4)}.json").mkdir()  # can't be taken away
    os.utime(tmp_path / f"{key('acme', 4)}.json", (0, 0))
    sweep(tmp_path, mine)
    assert names(tmp_path) == {*stays, f"{key('acme', 4)}.json"}
    sweep(tmp_path / "nowhere", mine)


@pytest.mark.parametrize("kind", ["lock", "open.1-2.busy"])
def test_a_file_that_another_process_holds_stays(tmp_path, kind):
    path = put(tmp_path, f"{key('acme', 1)}.{kind}", 2 * STALE_S)
    holds = (
        "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); input()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", holds, path], stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout.readline() == "1\n"
        sweep(tmp_path, "")
        there = path.exists()
        holder.communicate("\n")
    assert there
    sweep(tmp_path, "")
    assert not path.exists()


def test_a_document_that_is_read_does_not_grow_old(tmp_path):
    proof = Proof(tmp_path, key("acme", 1))
    assert proof.found(lambda deep: Verdict("ok")) == Verdict("ok")
    place = tmp_path / f"{proof.key}.json"
    for age, is_touched in ((HOUR, False), (10 * DAY, True)):
        then = time.time() - age
        os.utime(place, (then, then))
        assert Proof(tmp_path, proof.key).found(lambda deep: pytest.fail("it is kept")) == Verdict("ok")
        assert (place.stat().st_mtime > time.time() - HOUR / 2) == is_touched
    used(tmp_path / "nowhere")


def test_many_environments_leave_a_bounded_folder(folder, tmp_path, monkeypatch):
    """Each look at another search path leaves a list; those of the first are gone in the end, and the last is there."""
    monkeypatch.setattr(swept, "LISTS", 3)
    monkeypatch.setenv("JACKFIELD_CACHE", str(tmp_path / "cache"))
    for number in range(6):
        install(folder, f"number{number}", good(f"number{number}"))
        os.utime(folder, (number, number))
        assert f"number{number}" in [s.name for s in Registry().status()]
        kept = sorted((tmp_path / "cache/backends").iterdir(), key=lambda p: p.stat().st_mtime)
        assert len(kept) == min(number + 1, 3)
        assert f"number{number}" in kept[-1].read_text()


SWEEPS = """
import sys, pathlib
from jackfield.probe import Proof, Verdict
from jackfield import sweep
sweep.VERDICTS = 2
for number in range(60):
    proof = Proof(pathlib.Path(sys.argv[1]), f"acme-{(number * 7 + int(sys.argv[2])) % 20:032x}")
    assert proof.found(lambda deep: Verdict("ok")) == Verdict("ok")
"""


def test_processes_that_sweep_at_once_do_not_disturb_each_other(tmp_path):
    words = [sys.executable, "-c", SWEEPS, tmp_path]
    hosts = [subprocess.Popen([*words, str(number)], stderr=subprocess.PIPE, text=True) for number in range(4)]
    assert [host.communicate()[1] for host in hosts] == [""] * 4
    assert [host.returncode for host in hosts] == [0] * 4
    assert len(list(tmp_path.glob("*.json"))) <= 2 + 4


def test_tests_keep_nothing_in_the_users_folder():
    """tests/conftest.py has given this run, and all it starts, another one."""
    chosen = Path(os.environ["JACKFIELD_CACHE"])
    assert chosen != platformdirs.user_cache_path("jackfield")
