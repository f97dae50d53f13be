"""A backend that takes long or hangs: it is named, and it holds up who needs it and nobody else."""

from __future__ import annotations

import json
import logging
import sys
import threading

import numpy as np
import pytest
from environments import Environment
from fake_dists import good, install, log_of, manifest
from wheels import build, source

import jackfield as jf
from jackfield import errors, probe
from jackfield import registry as module
from jackfield.manifest import LONGEST_WAIT_S, read
from jackfield.prints import heard

WAITS = "\n        import time\n        while not LOG.with_name('go').exists():\n            time.sleep(0.01)\n"
HANG = 120  # seconds after which a test would hang


def slow(name, at):
    """Source of a plugin that goes on at `at` once a file `go` is there."""
    text = good(name)
    if at == "open":
        return text.replace('        count("devices")\n', f'        count("devices"){WAITS}')
    return text.replace("        return ToyProgram()", f"        count('compile'){WAITS}        return ToyProgram()")


@pytest.fixture
def here(folder, monkeypatch):
    """The process's own registry sees the folder while a test runs; who waits does so for a tenth of a second."""
    monkeypatch.setenv("JACKFIELD_PROBE_TIMEOUT", "0.05")
    module.refresh()
    yield folder
    (folder / "go").touch()
    module.refresh()


@pytest.mark.parametrize("moment", ["open", "compile"])
def test_who_takes_longer_than_the_deadline_is_named(here, moment, caplog):
    install(here, "slow", slow("slow", moment))
    texts = []

    class Lets(logging.Handler):
        """The plugin goes on once its name has been told."""

        def emit(self, record):
            texts.append(record.getMessage())
            (here / "go").touch()

    logger, handler = logging.getLogger("jackfield"), Lets(logging.WARNING)
    logger.addHandler(handler)
    try:
        x = jf.input("x", (2,))
        jf.compile(jf.ops.add(x, x), device="slow")
    finally:
        logger.removeHandler(handler)
    assert texts == [f"slow: {moment} has taken more than 0.05 s so far"]


def test_who_is_in_time_is_not_named(here, caplog, monkeypatch):
    monkeypatch.setenv("JACKFIELD_PROBE_TIMEOUT", str(HANG))
    install(here, "quick", good("quick"))
    x = jf.input("x", (2,))
    jf.compile(jf.ops.add(x, x), device="quick")
    assert [r for r in caplog.records if "so far" in r.message] == []
    assert not any(
        isinstance(t, threading.Timer) and t.is_alive() and not t.finished.is_set() for t in threading.enumerate()
    )


def test_one_that_hangs_holds_up_nobody_else(here, capsys):
    """Other threads print, list and compile; who needs it hears of it; all is well once it comes through."""
    install(here, "slow", slow("slow", "open"), manifest("slow", "gpu"))
    install(here, "other", good("other"), manifest("other", "npu"))
    opened = []
    thread = threading.Thread(target=lambda: opened.append(module.select("slow").devices[0].name))
    thread.start()
    while log_of(here, "slow")[-1:] != ["devices"]:
        assert thread.is_alive()
    print("not swallowed")
    assert {s.name: s.state for s in jf.status()}["slow"] == "pending"
    names = [info.name for info in jf.devices()]
    assert "other:0" in names
    assert "slow:0" not in names
    x = jf.input("x", (2,))
    assert jf.compile(jf.ops.relu(x))(x=np.ones(2, np.float32)).tolist() == [1, 1]
    with pytest.raises(errors.ProbeFailed, match=r"another thread has been opening it for longer than 0\.1 s"):
        module.select("slow")
    assert capsys.readouterr().out == "not swallowed\n"
    (here / "go").touch()
    thread.join(HANG)
    assert opened == ["slow:0"]
    assert {s.name: s.state for s in jf.status()}["slow"] == "ok"
    assert "slow:0" in [info.name for info in jf.devices()]
    assert log_of(here, "slow") == ["import", "hook", "devices"]


def test_one_that_asks_for_itself_hears_so(here):
    text = good("selfish").replace(
        "return [", "import jackfield\n        jackfield.Session('selfish')\n        return ["
    )
    install(here, "selfish", text)
    with pytest.raises(errors.DeviceError, match="it asks for its own devices while they are being opened"):
        jf.Session("selfish")


def test_each_thread_is_heard_apart(capsys):
    """Several at once, ended in another order than begun; what nobody hears goes where it went."""
    real, inside, out = sys.stdout, threading.Barrier(4), [threading.Event() for _ in range(3)]
    said = {}

    def work(number):
        with heard() as room:
            print("thread", number)
            inside.wait(HANG)
            with heard() as deeper:
                print("deeper", number)
            out[number].wait(HANG)
            said[number] = room.getvalue(), deeper.getvalue()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    inside.wait(HANG)
    print("outside")
    for number in (0, 2, 1):
        out[number].set()
        threads[number].join(HANG)
    assert said == {n: (f"thread {n}\n", f"deeper {n}\n") for n in range(3)}
    assert sys.stdout is real
    assert capsys.readouterr().out == "outside\n"


# How long a rehearsal may take


def test_a_manifest_may_not_ask_for_an_hour(here, monkeypatch):
    document = manifest("patient", probe={"timeout_s": 3600})
    install(here, "patient", good("patient"), document)
    (note,) = read(json.dumps(document))["patient"].notes
    assert note == (
        "backend.json: backends[0].probe.timeout_s is 3600, of which the core waits 60; "
        "JACKFIELD_PROBE_TIMEOUT=3600 waits longer"
    )
    (status,) = (s for s in jf.status() if s.name == "patient")
    assert note in status.notes
    monkeypatch.delenv("JACKFIELD_PROBE_TIMEOUT")
    assert probe.deadline(3600) == LONGEST_WAIT_S == 60
    assert probe.deadline(59) == 59
    monkeypatch.setenv("JACKFIELD_PROBE_TIMEOUT", "3600")
    assert probe.deadline(20) == 3600


def test_who_waits_for_a_rehearsal_is_told_so(tmp_path):
    environment = Environment(tmp_path)
    environment.install(build(tmp_path, "acme", source("acme")))
    host = "from jackfield import loading\nloading.PATIENCE_S = 0.001\nimport jackfield as jf\njf.devices()\n"
    words = "acme: this build is new here, so a process of its own tries it first, for at most 20 s"
    for told in (1, 0):
        code, _, err = environment.run(host)
        assert (code, err.count(words)) == (0, told), err
