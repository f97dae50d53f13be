"""Drives the worker processes: one case at a time, so that a crash or a hang is charged to the case that caused it."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from jackfield import errors
from jackfield.errors import AttributeValueError, DeviceError, Error

from .results import Expected, Kind, Result, judge
from .suites import sampled, trials_of

__all__ = ["DEADLINE", "Request", "Runner"]

DEADLINE = 300.0  # seconds of one case, and of opening the device; only a hang takes so long
LONGEST = 1e6  # seconds of a deadline
MOST_DEATHS = 10  # workers that die one after the other; then the rest of a suite is not tried
FATAL = "Fatal Python error"  # the first words of what faulthandler writes
LOG_TAIL = 300  # characters of a dead worker's last words
LINGER = 1.0  # seconds that the answers of a dead worker may still take; they are in the pipe already
SHOWN = 60  # characters of what was no answer


@dataclass(frozen=True)
class Request:
    """What to run. device: a name. suites: names. seed: of the inputs, from 0. imports: what a worker imports first.

    deadline: seconds after which a case counts as hung, above 0. expected: known failures. sample: cases of each group
    (see `sampled`), from 1; None: all. Raises: AttributeValueError for a wrong seed, deadline or sample.
    """

    device: str
    suites: tuple[str, ...]
    seed: int = 0
    imports: tuple[str, ...] = ()
    deadline: float = DEADLINE
    expected: tuple[Expected, ...] = ()
    sample: int | None = None

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise AttributeValueError(f"seed is {self.seed}, must be at least 0")
        if not 0 < self.deadline <= LONGEST:  # nan is neither
            raise AttributeValueError(f"deadline is {self.deadline:g} s, must be above 0 and at most {LONGEST:g} s")
        if self.sample is not None and self.sample < 1:
            raise AttributeValueError(f"sample is {self.sample}, must be at least 1")


class _Died(Exception):
    """A worker ended, or was ended, in the middle of a case."""

    def __init__(self, kind: Kind, reason: str) -> None:
        super().__init__(reason)
        self.kind, self.reason = kind, reason


class _Worker:
    """One process; asked for one case after the other. It leads a process group: what it started ends with it."""

    def __init__(self, request: Request) -> None:
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the worker)
        self.process = subprocess.Popen(  # noqa: S603 (this very interpreter)
            [sys.executable, *_flags(), "-m", "jackfield_conformance.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            encoding="utf-8",
            errors="backslashreplace",
            process_group=0,
        )
        self.answers: queue.Queue[str] = queue.Queue()
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()
        self.watcher = threading.Thread(target=self._watch, daemon=True)
        self.watcher.start()
        self._send({"device": request.device, "seed": request.seed, "imports": request.imports})

    def _listen(self) -> None:
        """Every answer, until nobody can write one any more."""
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.answers.put(line)

    def _watch(self) -> None:
        """After the last answer an empty one, as soon as the process has ended: a child of it may hold its pipe."""
        self.process.wait()
        _kill_group(self.process.pid)
        self.listener.join(LINGER)
        self.answers.put("")

    def _send(self, order: object) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):  # it is dead already: its last words are read later
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()

    def answer(self, deadline: float) -> dict[str, Any]:
        """Its next words. Raises: _Died."""
        try:
            line = self.answers.get(timeout=deadline)
        except queue.Empty:
            self._end()
            raise _Died("hung", f"no answer for {deadline:g} s; the process was killed{self._last_words()}") from None
        if not line:
            raise _Died("crashed", f"{_ending(self.process.wait())}{self._last_words()}")
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            self._end()
            text = f"{line[:SHOWN]!r} was written where the worker's answers go; write to no file that you didn't open"
            raise _Died("crashed", text)
        return found

    def ask(self, name: str, deadline: float) -> dict[str, Any]:
        """What became of this case. Raises: _Died."""
        self._send(name)
        while "id" not in (answer := self.answer(deadline)):
            pass
        return answer

    def _last_words(self) -> str:
        self.log.seek(0, os.SEEK_END)
        self.log.seek(max(0, self.log.tell() - 4 * LOG_TAIL))
        text = " ".join(self.log.read().decode("utf-8", "replace").split())
        _, found, crash = text.partition(FATAL)
        return f"; it said: {(found + crash)[:LOG_TAIL] if found else text[-LOG_TAIL:]}" if text else ""

    def _end(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End it, whatever it does, and what it started."""
        assert self.process.stdin is not None
        with suppress(OSError):  # what it was still to be told
            self.process.stdin.close()
        self._end()
        self.watcher.join()
        self.log.close()


def _kill_group(leader: int) -> None:
    """End the processes that a worker started and left."""
    if sys.platform != "win32":  # there are no such groups
        with suppress(OSError):  # there are none left
            os.killpg(leader, signal.SIGKILL)


def _flags() -> list[str]:
    """As this interpreter: without the environment where that was asked for, and never with the current folder."""
    return ["-P"] + (["-I"] if sys.flags.isolated else ["-E"] if sys.flags.ignore_environment else [])


def _ending(code: int) -> str:
    if code >= 0:
        return f"the process ended with exit code {code} before it answered"
    try:
        return f"the process was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"the process was killed by signal {-code}"


@dataclass
class Runner:
    """Runs the cases of a request. As a `with` block it ends its worker.

    about: core, backend and device as the first worker told them. Raises, when entered: the typed error that says why
    there is no such device.
    """

    request: Request
    about: dict[str, Any] = field(default_factory=dict)
    _worker: _Worker | None = None
    _deaths: int = 0
    _given_up: dict[str, Result] = field(default_factory=dict)

    def __enter__(self) -> Self:
        try:
            self._ready()
        except _Died as e:
            self.close()
            raise DeviceError(f"{self.request.device}: opening it in a process of its own: {e.reason}") from None
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def ids(self) -> list[str]:
        """All cases of the request, in order."""
        asked = self.request
        ids = [trial.id for trial in trials_of(asked.suites, asked.seed)]
        return ids if asked.sample is None else sampled(ids, asked.sample, asked.seed)

    def results(self, ids: Iterable[str]) -> Iterator[Result]:
        """Each case's result as soon as it is there."""
        for name in ids:
            yield self.one(name)

    def one(self, name: str) -> Result:
        """The result of one case."""
        return judge(self._given_up_on(name) or self._tried(name), self.request.expected)

    def _given_up_on(self, name: str) -> Result | None:
        last = self._given_up.get(name.partition("/")[0])
        if last is None:
            return None
        text = f"not tried: {MOST_DEATHS} workers in a row died, the last at {last.id}: {last.reason}"
        return Result(name, last.result, text)

    def _tried(self, name: str) -> Result:
        began = time.monotonic()
        try:
            answer = self._ready().ask(name, self.request.deadline)
        except _Died as e:
            self.close()
            dead = Result(name, e.kind, e.reason, seconds=time.monotonic() - began)
            self._deaths += 1
            if self._deaths >= MOST_DEATHS:
                self._given_up[dead.suite] = dead
                self._deaths = 0
            return dead
        self._deaths = 0
        fields = {k: answer[k] for k in ("result", "reason", "code", "max_ulp", "seconds")}
        return Result(answer["id"], **fields)

    def _ready(self) -> _Worker:
        """A worker that waits for a case. Raises: _Died, the error of a device that can't be had from the start."""
        if self._worker is None:
            self._worker = _Worker(self.request)
            answer = self._worker.answer(max(DEADLINE, self.request.deadline))
            if "absent" not in answer:
                self.about = answer["ready"]
            elif self.about:  # it was there, and a case before this one has cost it
                raise _Died("crashed", f"the device can't be opened again: {answer['absent']}")
            else:
                self.close()
                raise _error(answer["error"], answer["absent"])
        return self._worker


def _error(name: str, text: str) -> Error:
    """The worker's error in this process."""
    kind = getattr(errors, name, DeviceError)
    return kind(text) if isinstance(kind, type) and issubclass(kind, Error) else DeviceError(text)


def run(request: Request) -> tuple[dict[str, Any], Sequence[Result]]:
    """All cases of a request: (about, results)."""
    with Runner(request) as runner:
        return runner.about, list(runner.results(runner.ids()))
