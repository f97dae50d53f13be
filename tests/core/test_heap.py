"""Freed memory goes back to the system where the C library can do it, and nothing happens elsewhere."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys

import numpy as np
import pytest

import jackfield as jf
from jackfield import heap, session
from jackfield.blueprint import draw


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


def test_no_garbage_is_looked_for_while_a_plan_is_made(monkeypatch):
    on = []
    monkeypatch.setattr(session, "draw", lambda *given: (on.append(gc.isenabled()), draw(*given))[1])
    x = jf.input("x", (2,))
    with jf.Session("reference") as opened:
        opened.compile(jf.ops.add(x, x))
    assert on == [False]
    assert gc.isenabled()


def test_one_block_inside_another():
    with heap.no_collection():
        with heap.no_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_failed_compile_switches_the_search_for_garbage_on_again():
    with jf.Session("reference") as opened, pytest.raises(jf.errors.GraphError):
        opened.compile([])
    assert gc.isenabled()


def test_the_search_stays_off_where_it_was_off():
    gc.disable()
    try:
        x = jf.input("x", (2,))
        jf.compile(jf.ops.add(x, x), "reference").session.close()
        assert not gc.isenabled()
    finally:
        gc.enable()
