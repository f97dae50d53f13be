"""Markers around a first open, compile or call: what a dead process leaves, and that a living one leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

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
    if sys.argv[2] == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.stdin.readline()
print("through", flush=True)
"""


@pytest.fixture
def proof(tmp_path):
    return Proof(tmp_path, KEY, Verdict("ok"))


def other(folder, what):
    words = [sys.executable, "-c", DIES, str(folder), what]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_process_that_died_is_found_once(proof, tmp_path):
    with other(tmp_path, "dies") as process:
        assert process.stdout.readline() == "inside\n"
        assert process.wait() == -signal.SIGKILL
    assert proof._left_behind() == ("compile", f"process {process.pid} died in the first compile on it")
    assert proof._left_behind() is None
    assert list(tmp_path.glob("*.busy")) == []


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
