"""The process that runs the trials: `python -m jackfield_conformance.worker`, driven by `runner`.

It says "started" before each trial, so that whoever started it knows which one killed it. It answers on a pipe of its
own: what a plugin prints goes to the log.
"""

from __future__ import annotations

import faulthandler
import json
import os
import queue
import signal
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from jackfield import registry
from jackfield.discovery import CORE_VERSION, CORE_WINDOW
from jackfield.errors import DeviceNameError, Error

from .suites import trials_of
from .trials import Refused, Subject, Trial, Verdict, import_named

__all__ = ["about", "main", "outcome", "subject_of"]

SHOWN = 3  # mistakes of one case that are told
LONGEST = 600  # characters of one mistake


def subject_of(device: str, seed: int, imports: tuple[str, ...] = ()) -> Subject:
    """The one device of this name. Raises: its backend's typed error, DeviceNameError."""
    chosen = registry.select(device).devices
    if len(chosen) != 1:
        raise DeviceNameError(f"{device!r} names {len(chosen)} devices: {', '.join(d.name for d in chosen)}; name one")
    return Subject(chosen[0].backend, chosen[0].device, seed, imports)


def about(subject: Subject) -> dict[str, Any]:
    """Core, backend and device, as the report has them."""
    backend, device = subject.backend, subject.device
    status = next((s for s in registry.status() if s.name == backend.name), None)
    return {
        "core": CORE_VERSION,
        "contract": _version(CORE_WINDOW[1]),
        "spoken": _version(backend.spoken),
        "backend": {
            "name": backend.name,
            "dist": status.dist if status else "",
            "version": status.version if status else "",
            "build": status.build if status else "",
        },
        "device": {"name": device.name, "id": device.id, "driver": device.driver, "arch": device.target.arch},
    }


def _version(pair: tuple[int, int]) -> str:
    return f"{pair[0]}.{pair[1]}"


def outcome(trial: Trial, subject: Subject) -> dict[str, Any]:
    """What one trial gives: result, reason, code, max_ulp, seconds."""
    began = time.perf_counter()
    found = _tried(trial, subject)
    return {"max_ulp": None, "code": "", "reason": "", **found, "seconds": time.perf_counter() - began}


def _tried(trial: Trial, subject: Subject) -> dict[str, Any]:
    try:
        verdict = trial.run(subject)
    except Refused as refused:
        if refused.reason.strip():
            return {"result": "unsupported", "reason": refused.reason, "code": refused.code}
        return {"result": "failed", "reason": f"refused without a reason: {refused.args[0]!r}, must be words"}
    except (Exception, SystemExit) as e:  # noqa: BLE001 (whatever a device raises where it must not is a mistake of it)
        return {"result": "failed", "reason": f"raised {type(e).__name__}: {e} ({_where(e)})"}
    if not isinstance(verdict, Verdict):
        verdict = Verdict(tuple(verdict))
    mistakes = [text[:LONGEST] for text in verdict.mistakes]
    if not mistakes:
        return {"result": "passed", "max_ulp": verdict.max_ulp, "reason": verdict.note}
    more = f"; and {len(mistakes) - SHOWN} more" if len(mistakes) > SHOWN else ""
    return {"result": "failed", "reason": "; ".join(mistakes[:SHOWN]) + more, "max_ulp": verdict.max_ulp}


def _where(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{os.path.basename(last.filename)}:{last.lineno}"  # noqa: PTH119 (a name, not a path of this machine)


def _listen(orders: TextIO, heard: queue.SimpleQueue[str]) -> None:
    """Orders as they come; without anybody to give them the process ends, however its trial hangs."""
    for line in orders:
        heard.put(line)
    os._exit(1)


class _Listed:
    """The trials of one suite by id. Listing all takes seconds, so it goes only as far as what was asked for."""

    def __init__(self, trials: Iterator[Trial]) -> None:
        self.rest, self.known = trials, dict[str, Trial]()

    def trial(self, name: str) -> Trial:
        """Raises: KeyError where the suite has no such trial."""
        while name not in self.known:
            trial = next(self.rest, None)
            if trial is None:
                raise KeyError(name)
            self.known[trial.id] = trial
        return self.known[name]


def _own_pipes() -> tuple[Iterator[str], TextIO]:
    """Orders and answers on copies of the standard streams; the streams themselves become empty input and the log."""
    orders = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    heard: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(orders, heard), daemon=True).start()
    return iter(heard.get, ""), answers


def main() -> None:
    """The first order names the device and the seed; each further one is the id of a trial."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C is the starter's business
    faulthandler.enable()
    orders, answers = _own_pipes()

    def tell(answer: Mapping[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")

    first = json.loads(next(orders))
    try:
        import_named(first["imports"])
        subject = subject_of(first["device"], first["seed"], tuple(first["imports"]))
    except Error as e:
        tell({"absent": str(e), "error": type(e).__name__})
        return
    suites: dict[str, _Listed] = {}
    tell({"ready": about(subject)})
    for line in orders:
        name = json.loads(line)
        suite = name.partition("/")[0]
        if suite not in suites:
            suites[suite] = _Listed(trials_of([suite], subject.seed))
        trial = suites[suite].trial(name)
        tell({"started": name})
        tell({"id": name, **outcome(trial, subject)})


if __name__ == "__main__":
    main()
