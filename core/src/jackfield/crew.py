"""Threads that share a list of work, the caller among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Generic, TypeVar

__all__ = ["Crew"]

T = TypeVar("T")
R = TypeVar("R")


class Crew(Generic[T, R]):
    """Pieces of work, begun from the front by whoever is free.

    size: threads, with the caller's; where the system gives fewer, those there are do it, the caller alone if need be.
    """

    def __init__(self, pieces: Sequence[T], work: Callable[[T], R], size: int) -> None:
        self._work = work
        self._told: list[Future[R]] = [Future() for _ in pieces]
        self._queue: SimpleQueue[tuple[T, Future[R]]] = SimpleQueue()
        for pair in zip(pieces, self._told, strict=True):
            self._queue.put(pair)
        self._threads: list[Thread] = []
        # A thread that set to work at once would do so on the core of its caller, who then waits there, for
        # milliseconds, to be told that it has started. One that sleeps first is woken on a core that is free.
        self._gate = Lock()
        with self._gate:
            self._start(min(size, len(pieces)) - 1)

    def _start(self, count: int) -> None:
        for _ in range(count):
            thread = Thread(target=self._all, name="jackfield-crew")
            try:
                thread.start()
            except RuntimeError:
                break
            self._threads.append(thread)

    def results(self) -> Iterator[R]:
        """What each piece gave, or raises, in their order. The caller works while it waits."""
        for told in self._told:
            while not told.done() and self._one():
                pass
            yield told.result()

    def dismiss(self) -> None:
        """Nothing new is begun; returns when all threads are gone."""
        with suppress(Empty):
            while True:
                self._queue.get_nowait()
        for thread in self._threads:
            thread.join()

    def _all(self) -> None:
        with self._gate:
            pass
        while self._one():
            pass

    def _one(self) -> bool:
        """Do the next piece; False when none is left."""
        try:
            piece, told = self._queue.get_nowait()
        except Empty:
            return False
        try:
            told.set_result(self._work(piece))
        except BaseException as e:  # for who waits for the result
            told.set_exception(e)
            if not isinstance(e, Exception):
                raise
        return True
