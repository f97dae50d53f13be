"""Instruction-set levels: chosen once, forced by a variable, and the baseline on a CPU that has nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jackfield.errors import Unavailable
from jackfield_cpu import _native, settings
from jackfield_cpu.backend import CpuBackend
from jackfield_cpu.settings import choose_level, read_settings

PROBE = Path(__file__).with_name("baseline_probe.py")
HAS = [name for name, lacks in _native.levels() if not lacks]
LACKS = [name for name, lacks in _native.levels() if lacks]


def run_probe(*prefix, **env):
    done = subprocess.run(
        [*prefix, sys.executable, str(PROBE)], env=os.environ | env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout.split()[-1]


def test_the_best_level_is_the_default_and_the_baseline_always_runs():
    assert choose_level(None) == HAS[0]
    assert HAS[-1] == "base"


@pytest.mark.parametrize("level", HAS)
def test_every_level_this_cpu_has_can_be_forced_and_is_right(level):
    assert run_probe(JACKFIELD_CPU_ISA=level) == level


def test_an_unknown_level_lists_what_there_is():
    with pytest.raises(Unavailable, match=r"'avx9000': no such level; levels: .*base; this CPU has: .*base"):
        choose_level("avx9000")


def test_a_level_this_cpu_lacks_names_the_missing_feature(monkeypatch):
    monkeypatch.setattr(_native, "levels", lambda: [("vnni", ["avx512vnni"]), ("avx2", []), ("base", [])])
    with pytest.raises(Unavailable, match=r"JACKFIELD_CPU_ISA=vnni: this CPU lacks avx512vnni; it has: avx2, base"):
        choose_level("vnni")
    assert choose_level(None) == "avx2"


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "", "99999", "٣"])
@pytest.mark.parametrize("name", ["JACKFIELD_CPU_THREADS", "JACKFIELD_CPU_PARTS"])
def test_a_malformed_count_is_an_error_that_quotes_it(name, text):
    with pytest.raises(Unavailable, match=rf"{name}={text!r}: must be a whole number from 1 to 1024"):
        read_settings({name: text})


@pytest.mark.parametrize(("cores", "most"), [(1, 2), (2, 2), (6, 6)])
def test_more_parts_than_cores_are_refused(monkeypatch, cores, most):
    monkeypatch.setattr(settings, "default_threads", lambda: cores)
    assert read_settings({"JACKFIELD_CPU_PARTS": str(most)}).parts == most
    text = rf"PARTS={most + 1}: more parts than the {cores} cores this process may use; must be at most {most}$"
    with pytest.raises(Unavailable, match=text):
        read_settings({"JACKFIELD_CPU_PARTS": str(most + 1), "JACKFIELD_CPU_THREADS": "64"})


def test_support_is_known_for_every_level_without_running_it():
    assert [t.arch for t in CpuBackend().targets()] == [name for name, _ in reversed(_native.levels())]


def test_the_baseline_runs_on_an_old_cpu(absent):
    """Whole Python and the plugin under an emulated Nehalem: one AVX instruction anywhere would be a SIGILL."""
    qemu = shutil.which("qemu-x86_64")
    if qemu is None:
        absent("qemu", "qemu-x86_64 is not on PATH (Debian: qemu-user)")
    assert run_probe(qemu, "-cpu", "Nehalem", JACKFIELD_CPU_THREADS="2", OPENBLAS_CORETYPE="Nehalem") == "base"
