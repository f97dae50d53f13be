"""Threads that share work: whatever interrupts their caller, none of them works when it is told that they don't."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from jackfield import crew as crew_module
from jackfield.crew import Crew


class Slow:
    """Work that goes on until it is let go. done: pieces that came to their end."""

    def __init__(self):
        self.begun, self.go, self.done = threading.Semaphore(0), threading.Event(), []

    def __call__(self, piece):
        self.begun.release()
        assert self.go.wait(60)
        self.done.append(piece)
        return piece


def test_results_come_in_their_order():
    for size in (1, 2, 5, 40):
        crew = Crew(range(20), lambda n: n * n)
        crew.start(size)
        assert list(crew.results()) == [n * n for n in range(20)]
        crew.dismiss()


def test_an_error_is_that_of_its_piece():
    def work(n):
        if n == 3:
            raise ValueError(n)
        return n

    crew = Crew(range(6), work)
    crew.start(3)
    got = crew.results()
    assert [next(got) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="3"):
        next(got)
    crew.dismiss()


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_starting_that_ends_early_leaves_no_thread_at_work(at, error, monkeypatch):
    """Also where the thread itself came to life."""
    plain, calls = threading.Thread.start, []

    def start(thread):
        calls.append(thread)
        if len(calls) != at or at == 2:
            plain(thread)
        if len(calls) == at:
            raise error

    monkeypatch.setattr(crew_module.Thread, "start", start)
    done = []
    crew = Crew(range(100), done.append)
    if error is RuntimeError:  # no more threads: those there are do it
        crew.start(5)
        assert len(list(crew.results())) == 100
    else:
        with pytest.raises(KeyboardInterrupt):
            crew.start(5)
    if not (error is RuntimeError and at == 2):  # which no system does: a thread that lives and is told not to
        crew.dismiss()
        count = len(done)
        assert not [t for t in calls if t.is_alive() and len(done) != count]


@pytest.mark.parametrize("times", [1, 3])
def test_an_interrupted_dismissal_waits_all_the_same(times, monkeypatch):
    """Any number of times: what threads write to is given back behind it."""
    work = Slow()
    crew = Crew(range(50), work)
    crew.start(3)
    for _ in range(2):
        assert work.begun.acquire(timeout=60)
    plain, left = crew._wake.get, [None] * times

    class Wake:
        put = staticmethod(crew._wake.put)

        def get(self):
            if left:
                left.pop()
                if not left:
                    work.go.set()
                raise KeyboardInterrupt
            return plain()

    monkeypatch.setattr(crew, "_wake", Wake())
    with pytest.raises(KeyboardInterrupt):
        crew.dismiss()
    assert sorted(work.done) == [0, 1]
    assert len(crew._gone) == 2


def test_an_interrupt_as_a_result_is_told_stays_an_interrupt(monkeypatch):
    plain = Future.set_result

    def told(future, result):
        plain(future, result)
        raise KeyboardInterrupt

    crew = Crew(range(3), lambda n: n)
    crew.start(1)
    monkeypatch.setattr(Future, "set_result", told)
    with pytest.raises(KeyboardInterrupt):
        list(crew.results())
    crew.dismiss()
