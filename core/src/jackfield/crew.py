"""Threads that share a list of work, the caller among them."""

from __future__ import annotations

import os
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

    An interrupt may come at any line. Whoever made a crew calls `dismiss` whatever happens: what threads write to may
    be gone afterwards.
    """

    def __init__(self, pieces: Sequence[T], work: Callable[[T], R]) -> None:
        self._work = work
        self._told: list[Future[R]] = [Future() for _ in pieces]
        self._queue: SimpleQueue[tuple[T, Future[R]]] = SimpleQueue()
        for pair in zip(pieces, self._told, strict=True):
            self._queue.put(pair)
        self._threads: list[Thread] = []
        self._process = os.getpid()
        self._gate = Lock()
        # Not `join`: interrupted once, it takes a thread that still runs for one that is gone (Python 3.8 to 3.12).
        self._begun: list[None] = []
        self._gone: list[None] = []
        self._wake: SimpleQueue[None] = SimpleQueue()

    def start(self, size: int) -> None:
        """Set so many threads to work, with the caller's; where the system gives fewer, those there are do it.

        A thread that set to work at once would do so on the core of its caller, who then waits there, for
        milliseconds, to be told that it has started. One that sleeps first is woken on a core that is free.
        """
        with self._gate:
            for _ in range(min(size, len(self._told)) - 1):
                self._threads.append(Thread(target=self._all, name="jackfield-crew"))
                try:
                    self._threads[-1].start()
                except RuntimeError:
                    del self._threads[-1]
                    break

    def results(self) -> Iterator[R]:
        """What each piece gave, or raises, in their order. The caller works while it waits."""
        for told in self._told:
            while not told.done() and self._one():
                pass
            yield told.result()

    def dismiss(self) -> None:
        """Nothing new is begun; returns, or raises what interrupted it, when no thread works any more.

        In a child that was forked meanwhile there are no threads to wait for.
        """
        interrupted: BaseException | None = None
        while os.getpid() == self._process:
            try:
                self._drain()
                while len(self._gone) < len(self._begun):
                    self._wake.get()
                break
            except BaseException as e:  # noqa: BLE001 (raised below)
                interrupted = e
        if interrupted is not None:
            raise interrupted
        for thread in self._threads if os.getpid() == self._process else ():
            if thread.ident is not None:  # None: interrupted before it came to life; it will find nothing to do
                thread.join()

    def _drain(self) -> None:
        with suppress(Empty):
            while True:
                self._queue.get_nowait()

    def _all(self) -> None:
        self._begun.append(None)
        try:
            with self._gate:
                pass
            while self._one():
                pass
        finally:
            self._gone.append(None)
            self._wake.put(None)

    def _one(self) -> bool:
        """Do the next piece; False when none is left."""
        try:
            piece, told = self._queue.get_nowait()
        except Empty:
            return False
        try:
            result = self._work(piece)
        except BaseException as e:  # for who waits for the result
            told.set_exception(e)
            if not isinstance(e, Exception):
                raise
        else:
            told.set_result(result)
        return True
