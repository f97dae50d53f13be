"""Backends that print, in Python and natively, at every moment: with --json stdout is the document alone."""

from __future__ import annotations

import json

import pytest
from environments import Environment
from wheels import FAULTS, build, source

SAVED = """
import jackfield as jf
x = jf.input("x", (3,))
jf.save(jf.ops.add(x, x), {graph!r})
"""
# What C keeps in a buffer of its own until the process ends.
LATE = "import ctypes; ctypes.CDLL(None).printf(b'late'); import atexit; atexit.register(print, 'later')"
ASKED = """
    def why_not(self, step, target):
        fault("why_not")
        {late}

    def targets(self):
        fault("targets")
        return [Target(kind="noisy", arch="toy")]

"""
HOOKS = """
@hookimpl
def jackfield_diagnose(backend, deep):
    fault("diagnose")


@hookimpl
def jackfield_hardware():
    fault("hardware")
"""
MOMENTS = ("import", "hook", "open", "alloc", "compile", "call", "why_not", "targets", "diagnose", "hardware")
HOST = """
import os, runpy, sys
os.chdir({0!r})
sys.argv[1:] = {1!r}
runpy.run_module("jackfield", run_name="__main__")
"""
COMMANDS = {
    "devices": (["devices"], "devices"),
    "doctor": (["doctor"], "doctor"),
    "doctor --fresh": (["doctor", "--fresh"], "doctor"),
    "why": (["why", "noisy"], "why"),
    "why an op": (["why", "noisy", "add"], "why"),
    "explain": (["explain", "{graph}", "--device", "noisy"], "explain"),
    "diff": (["diff", "noisy", "reference", "{graph}"], "diff"),
    "conform": (["conform", "noisy", "--suite", "buffers"], "conformance"),
}


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    """An environment with a backend that prints a megabyte at each moment, and a saved graph."""
    environment = Environment(tmp_path_factory.mktemp("noisy"))
    text = source("noisy", "noise", "import").replace("at == 'import'", f"at in {MOMENTS!r}")
    text = text.replace("    def kernels", ASKED.format(late=LATE) + "    def kernels") + HOOKS
    assert FAULTS["noise"] in text
    environment.install(build(environment.folder, "noisy", text))
    graph = environment.folder / "graph.npz"
    code, _, err = environment.run(SAVED.format(graph=str(graph)))
    assert code == 0, err
    return environment, graph


@pytest.mark.parametrize("command", COMMANDS)
def test_stdout_is_the_document(noisy, command, tmp_path):
    environment, graph = noisy
    words, schema = COMMANDS[command]
    words = [word.format(graph=graph) for word in words]
    code, out, err = environment.run(HOST.format(str(tmp_path), [*words, "--json"]))
    document = json.loads(out)
    assert document["schema"] == f"jackfield.{schema}/1"
    assert code == 0, err[-2000:]
    if command != "conform":  # whose cases run in children, where noise has a place of its own
        assert "y" * 1000 in err, "its noise went to stderr"
