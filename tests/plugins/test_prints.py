"""What a backend prints while a plan is made, and what the app prints meanwhile."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import jackfield as jf
from jackfield import ops, registry
from jackfield.backend import Packing
from jackfield.prints import heard
from jackfield.reference import ReferenceBackend, ReferenceDevice

QUESTIONS = ("why_not", "cost", "reads", "pack")
WORK = ("alloc", "write", "compile", "groups", "scratch", "borrow")


def loud(cls, method):
    def call(self, *given):
        print(f"NOISE of {method}")
        return getattr(cls, method)(self, *given)

    return call


@pytest.fixture
def toy():
    """toy(method): a reference that prints in it; its name is toy."""

    def register(*methods, **more):
        device = {m: loud(ReferenceDevice, m) for m in methods if m in WORK}
        made = type("Toy", (ReferenceDevice,), device)()
        made.name = "toy:0"
        asked = {m: loud(ReferenceBackend, m) for m in methods if m in QUESTIONS}
        backend = type(
            "Loud",
            (ReferenceBackend,),
            {"name": "toy", "devices": lambda _: [made], "__module__": __name__, **asked, **more},
        )
        jf.register_backend(backend)
        return made

    yield register
    registry.unregister_backend("toy")


def graph(rows=4096):
    """Two constants: one that may be borrowed, and one that is written."""
    x = jf.input("x", (8, rows))
    return ops.add(ops.add(x.T, jf.constant(np.ones((rows, 8), np.float32))), jf.constant(np.ones(8, np.float32)))


@pytest.mark.parametrize("method", [*QUESTIONS, *WORK])
def test_no_print_of_a_plan_reaches_stdout(method, toy, capsys):
    toy(method)
    plan = jf.compile(graph(), "toy")
    assert capsys.readouterr().out == ""
    (note,) = [n for s in jf.status() if s.name == "toy" for n in s.notes if "printed" in n]
    assert f"characters on stdout while a plan was made: 'NOISE of {method}" in note
    assert plan(x=np.ones((8, 4096), np.float32)).shape == (4096, 8)


def test_the_threads_that_pack_are_heard_too(toy, capsys):
    def pack(plain, packed):
        print(f"NOISE of {threading.current_thread().name}")
        packed[:] = plain

    made = ReferenceBackend.kernels(ReferenceBackend())["add"]
    kernel = type(made)(made.operands, made.results, made.attributes, {"b": frozenset({"odd"})})

    def packing(self, spec, users, target):
        return Packing("odd", spec.nbytes, pack, None, part=(4, 4))

    toy(pack=packing, kernels=lambda self: {"add": kernel})
    x, one = jf.input("x", (1 << 22,)), jf.constant(np.ones(1 << 22, np.float32))
    with jf.Session("toy") as session:
        session.compile(ops.add(x, one), meanwhile=lambda: print("the app speaks"))
    assert capsys.readouterr().out == "the app speaks\n"


def test_other_threads_print_as_they_did(toy, capsys):
    """From inside a plan that is made, and while it is."""
    device = toy()
    begun, go_on = threading.Event(), threading.Event()

    def compiles(run, scratch):
        print("NOISE")
        begun.set()
        assert go_on.wait(60)
        return ReferenceDevice.compile(device, run, scratch)

    device.compile = compiles

    def app():
        assert begun.wait(60)
        print("the app speaks")
        go_on.set()

    thread = threading.Thread(target=app)
    thread.start()
    jf.compile(graph(8), "toy")
    thread.join()
    assert capsys.readouterr().out == "the app speaks\n"


def test_a_room_knows_who_printed(capsys):
    with heard() as room:
        print("one")
        with heard(room):
            print("two")
        print("three")
    assert room.getvalue() == "one\ntwo\nthree\n"
    assert list(room.printers.values()) == [(14, "one\ntwo\nthree\n")]
    print("four")
    assert capsys.readouterr().out == "four\n"
