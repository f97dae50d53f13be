"""Freed memory goes back to the system where the C library can do it, and nothing happens elsewhere."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import numpy as np
import pytest

import jackfield as jf
from jackfield import heap, session


@pytest.fixture
def fresh():
    heap._trim.cache_clear()
    yield
    heap._trim.cache_clear()


def test_every_compile_gives_back_once(monkeypatch):
    asked = []
    monkeypatch.setattr(session, "give_back", lambda: asked.append(1))
    x = jf.input("x", (2,))
    opened = jf.Session("reference")
    for n in (1, 2):
        plan = opened.compile(jf.ops.add(x, x))
        plan(x=np.ones(2, np.float32))
        assert len(asked) == n


@pytest.mark.parametrize("error", [AttributeError, OSError, TypeError])
def test_other_c_libraries_are_left_alone(fresh, monkeypatch, error):
    def cdll(name):
        raise error("none here")

    monkeypatch.setattr(ctypes, "CDLL", cdll)
    heap.give_back()
    assert heap._trim() is None


@pytest.mark.skipif(heap._trim() is None, reason="another C library")
def test_glibc_gives_pages_back():
    """Blocks below one in use stay with the C library until it is asked."""
    code = (
        "import ctypes\n"
        "from jackfield import heap\n"
        "libc = ctypes.CDLL(None)\n"
        "libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]\n"
        "blocks = [libc.malloc(65536) for _ in range(400)]\n"
        "for b in blocks: ctypes.memset(b, 1, 65536)\n"
        "for b in blocks[:-1]: libc.free(b)\n"
        "def resident(): return int(open('/proc/self/statm').read().split()[1])\n"
        "before = resident(); heap.give_back(); print(before, resident())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert after < before
