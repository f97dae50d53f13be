"""Suite `overhead`: the host's time for a call and for a step, beside the stored run of the same machine.

There is no limit in seconds. The first run on a machine is stored; a later one is told as a ratio to the best stored
one, and fails where it is more than a fifth slower each time it is tried.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from jackfield.backend import Reason
from jackfield.dtypes import f32
from jackfield.graph import input as graph_input
from jackfield.loading import term_of
from jackfield_conformance.plans import chain, strict_session
from jackfield_conformance.stored import Figure, Runs
from jackfield_conformance.trials import Refused, Subject, Trial, Verdict

__all__ = ["trials"]

SLOWER = 1.2  # of the stored run; then it is marked
TRIES = 4
ROUNDS = 15
ROUND_S = 5e-3  # of calls in one round
STEPS = 200
COUNT = 16  # elements: next to nothing to compute
LEAST_S = 2e-8  # below, a difference of two times is noise

Measure = Callable[[Subject], Figure]


def trials(seed: int) -> Iterator[Trial]:
    del seed
    yield Trial("overhead/call", partial(compared, "call", call_time))
    yield Trial("overhead/step", partial(compared, "step", step_time))


def compared(what: str, measure: Measure, subject: Subject) -> Verdict:
    """A device's time beside the best that was stored. Raises: Refused where nothing is, and stores it."""
    if subject.backend.name in ("reference", "sim") or term_of(subject.device.name).variant:
        raise Refused(Reason("not asked of the reference, nor of a simulated device", "other"))
    runs = Runs(subject)
    best = runs.best(what)
    found = measure(subject)
    for _ in range(TRIES - 1):
        if best is not None and found.ratio(best.figure) <= SLOWER:
            break
        found = min(found, measure(subject), key=lambda figure: figure.seconds)
    runs.keep(what, found)
    text = f"{found.seconds * 1e6:.3g} us a {what}"
    if best is None:
        where = "JACKFIELD_CACHE is off" if runs.path is None else "this run is stored now"
        raise Refused(Reason(f"{text}; no run of this machine was stored to compare with: {where}", "other"))
    ratio = found.ratio(best.figure)
    text += f", {ratio:.2f} of the stored run of {best.date} ({best.build})"
    if ratio <= SLOWER:
        return Verdict((), note=text)
    return Verdict((f"{text}: over {SLOWER - 1:.0%} slower; {runs.path} holds the stored runs",))


def call_time(subject: Subject) -> Figure:
    """Of a plan of one step."""
    with strict_session(subject) as session:
        plan = session.compile(chain(subject, graph_input("x", (COUNT,), f32), 1))
        x = np.ones(COUNT, np.float32)
        return _best(lambda: plan(x=x))


def step_time(subject: Subject) -> Figure:
    """The difference of two lengths, so that the call itself does not count."""
    with strict_session(subject) as session:
        leaf, x = graph_input("x", (COUNT,), f32), np.ones(COUNT, np.float32)
        short, long = (session.compile(chain(subject, leaf, n)) for n in (1, 1 + STEPS))
        few, many = _best(lambda: short(x=x)), _best(lambda: long(x=x))
    return Figure(max(LEAST_S, (many.seconds - few.seconds) / STEPS), many.yardstick)


def _best(action: Callable[[], object]) -> Figure:
    """Seconds of one call and of the yardstick: the best of some rounds, each of both by turns."""
    action()
    calls = max(1, round(ROUND_S / max(_seconds(action, 1), 1e-7)))
    rounds = [(_seconds(action, calls), _seconds(_yardstick, 5)) for _ in range(ROUNDS)]
    return Figure(min(seconds for seconds, _ in rounds), min(yardstick for _, yardstick in rounds))


def _seconds(action: Callable[[], object], calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        action()
    return (time.perf_counter() - began) / calls


def _yardstick() -> list[int]:
    """What Python does between native calls: objects, lists and attributes."""
    return sorted(len(str(number)) for number in range(200))
