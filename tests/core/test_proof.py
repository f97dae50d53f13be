"""Markers around a first open, compile or call: what a dead process leaves, and that a living one leaves nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading

import pytest

from jackfield.markers import Death
from jackfield.probe import Proof, Verdict

pytestmark = pytest.mark.skipif(os.name != "posix", reason="markers exist where there is a child process")

KEY = "acme-0123"
DIES = """
import os, signal, sys
from pathlib import Path
from jackfield.probe import Proof, Verdict
proof = Proof(Path(sys.argv[1]), "acme-0123", Verdict("ok"))
with proof.first("compile"):
    print("inside", flush=True)
    if sys.argv[2] != "lives":
        os.kill(os.getpid(), getattr(signal, sys.argv[2]))
    sys.stdin.readline()
print("through", flush=True)
"""


@pytest.fixture
def proof(tmp_path):
    return Proof(tmp_path, KEY, Verdict("ok"))


def other(folder, what, *options):
    words = [sys.executable, *options, "-c", DIES, str(folder), what]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_process_that_died_is_found_once(proof, tmp_path):
    with other(tmp_path, "SIGKILL") as process:
        assert process.stdout.readline() == "inside\n"
        assert process.wait() == -signal.SIGKILL
    text = f"process {process.pid} died in the first compile on it"
    assert proof._left_behind() == Death("compile", text, is_crash=False)
    assert proof._left_behind() is None
    assert list(tmp_path.glob("*.busy")) == []


@pytest.mark.parametrize("options", [(), ("-X", "faulthandler")], ids=["plain", "with a fault handler of its own"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("SIGSEGV", "Segmentation fault"),
        ("SIGABRT", "Aborted"),
        ("SIGILL", "Illegal instruction"),
        ("SIGBUS", "Bus error"),
        ("SIGFPE", "Floating.point exception"),
        ("SIGKILL", None),
        ("SIGTERM", None),
    ],
)
def test_a_crash_is_told_from_an_end_that_came_from_outside(proof, tmp_path, name, words, options):
    """Where the program has the fault handler for itself, nobody can tell, and it counts as a crash."""
    with other(tmp_path, name, *options) as process:
        assert process.wait() == -getattr(signal, name)
    death = proof._left_behind()
    assert death.is_crash == (words is not None or options != ())
    assert re.search(f"on it: {words}$" if words and not options else "on it$", death.text)
    assert bool(death.dump) == (words is not None and not options)


@pytest.mark.parametrize("text", ["", "seen", "seen\n", "\0\0\0\0", "rubbish", "seen\nFatal"])
def test_a_marker_without_evidence_is_no_crash(proof, tmp_path, text):
    """As a power cut leaves it, which comes before its text is on the disk."""
    (tmp_path / f"{KEY}.open.123-4.busy").write_text(text)
    assert proof._left_behind().is_crash is False


def test_the_fault_handler_is_as_it_was(tmp_path):
    program = """
import faulthandler, sys
from pathlib import Path
from jackfield.probe import Proof, Verdict
proof = Proof(Path(sys.argv[1]), "acme-0123", Verdict("ok"))
before = faulthandler.is_enabled()
with proof.first("open"):
    assert faulthandler.is_enabled()
    with proof.first("compile"):
        pass
    assert faulthandler.is_enabled()
assert faulthandler.is_enabled() == before
"""
    for options in ((), ("-X", "faulthandler")):
        subprocess.run([sys.executable, *options, "-c", program, tmp_path], check=True)


def deaths(proof, *texts):
    """What is found when a process leaves each of these markers in turn: verdict, and whether the child went deep."""
    asked = []

    def ask(deep):
        asked.append(deep)
        return Verdict("ok")

    for text in texts:
        (proof.folder / f"{KEY}.compile.123-4.busy").write_text(text)
        found = Proof(proof.folder, KEY).found(ask)
    return found, asked


def test_a_crash_is_the_verdict_and_no_child_is_asked(proof):
    found, asked = deaths(proof, "seen\nFatal Python error: Aborted\n\nCurrent thread")
    assert (found.state, found.where, found.stage, asked) == ("crashed", "here", "compile", [])
    assert "Aborted" in found.error
    assert "Current thread" in found.traceback


def test_one_that_was_killed_goes_to_the_child_at_depth_alloc(proof):
    found, asked = deaths(proof, "seen\n")
    assert (found.state, found.died, asked) == ("ok", ("compile",), [True])
    assert Proof(proof.folder, KEY).found(lambda deep: pytest.fail("is known")) == found


def test_one_that_dies_there_twice_has_crashed(proof):
    found, asked = deaths(proof, "seen\n", "seen\n")
    assert (found.state, asked) == ("crashed", [True])
    assert found.error.endswith("died in the first compile on it, as one before it did")


def test_one_that_came_through_is_innocent(proof):
    deaths(proof, "seen\n")
    known = Proof(proof.folder, KEY)
    known.found(lambda deep: pytest.fail("is known"))
    with known.first("open"):
        pass
    assert known._read().died == ("compile",)
    with known.first("compile"):
        pass
    assert known._read().died == ()
    assert deaths(proof, "seen\n")[0].state == "ok"


def test_a_process_that_lives_is_none_and_comes_through(proof, tmp_path):
    with other(tmp_path, "lives") as process:
        assert process.stdout.readline() == "inside\n"
        assert len(proof._markers()) == 1
        assert proof._left_behind() is None
        assert len(proof._markers()) == 1
        print(file=process.stdin, flush=True)
        assert process.stdout.readline() == "through\n"
    assert proof._markers() == []
    assert proof._read().proven == ("compile",)


def test_one_that_came_through_while_we_looked_is_none(proof, tmp_path, monkeypatch):
    """It was listed, and is gone when it is asked: no file may be made in its place."""
    gone = tmp_path / f"{KEY}.open.123-4.busy"
    monkeypatch.setattr(proof, "_markers", lambda: [gone])
    assert proof._left_behind() is None
    assert not gone.exists()


def test_living_threads_are_never_taken_for_dead_ones(proof, tmp_path):
    """Some come and go, one looks all the time."""
    stop, found = threading.Event(), []

    def work():
        while not stop.is_set():
            with Proof(tmp_path, KEY, Verdict("ok")).first("call"):
                pass

    def look():
        found.extend(proof._left_behind() for _ in range(2000))
        stop.set()

    threads = [threading.Thread(target=work) for _ in range(3)] + [threading.Thread(target=look)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {None}
    assert list(tmp_path.glob("*.busy")) == list(tmp_path.glob("*.part")) == []


def test_an_error_inside_is_no_death(proof, tmp_path):
    with pytest.raises(KeyboardInterrupt), proof.first("open"):
        assert len(list(tmp_path.glob(f"{KEY}.open.{os.getpid()}-*.busy"))) == 1
        raise KeyboardInterrupt
    assert proof._left_behind() is None
    assert proof._markers() == []
    assert proof.unproven("open")


def test_a_folder_that_cannot_be_written_to_remembers_nothing(tmp_path):
    proof = Proof(tmp_path / "file" / "below", KEY, Verdict("ok"))
    (tmp_path / "file").write_text("x")
    with proof.first("open"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
