"""Host times of earlier runs on this machine, kept in the user's cache folder: what the suite `overhead` compares with.

One file for each machine and device; in it the best figures of each build that was tried.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import platform
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jackfield import registry
from jackfield.discovery import CORE_VERSION
from jackfield.probe import cache_folder

from .trials import Subject

__all__ = ["Figure", "Runs", "Stored"]

SCHEMA = "jackfield.overhead/1"
MOST_BUILDS = 20  # the newest; a build that nobody has tried for long is no yardstick


@dataclass(frozen=True)
class Figure:
    """seconds: what was measured. yardstick: seconds of the same work of Python at the same time."""

    seconds: float
    yardstick: float

    def ratio(self, earlier: Figure) -> float:
        """How much longer than an earlier figure: by the clock, or by what the machine did meanwhile if that is less.

        A machine that is slower today is so for both; one that was busy at one of two moments is so for one.
        """
        return min(self.seconds / earlier.seconds, self.seconds / earlier.seconds * earlier.yardstick / self.yardstick)


@dataclass(frozen=True)
class Stored:
    """A figure of an earlier run. build: of core and backend, in words. date: when, as 2026-03-01."""

    figure: Figure
    build: str
    date: str


class Runs:
    """The stored runs of one device on this machine. path: where; None where JACKFIELD_CACHE is off."""

    def __init__(self, subject: Subject) -> None:
        folder = cache_folder()
        device = subject.device
        key = json.dumps([_machine(), device.name, device.target.arch])
        name = f"{device.name.replace(':', '-')}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
        self.path: Path | None = None if folder is None else folder.parent / "overhead" / name
        self.build = _build(subject)

    def best(self, what: str) -> Stored | None:
        """The fastest stored run of any build: a little slower with each is seen, too."""
        found = [Stored(_figure(run[what]), run["build"], run["date"]) for run in self._read() if what in run]
        return min(found, key=lambda stored: stored.figure.seconds, default=None)

    def keep(self, what: str, figure: Figure) -> None:
        """Remember a figure of this build where it has none as good. A file that can't be written is none."""
        if self.path is None:
            return
        runs = self._read()
        mine = next((run for run in runs if run["build"] == self.build), None)
        if mine is not None and what in mine and mine[what]["seconds"] <= figure.seconds:
            return
        today = dt.datetime.now(dt.UTC).date().isoformat()
        new = {**(mine or {}), "build": self.build, "date": today, what: vars(figure)}
        runs = [*(run for run in runs if run is not mine), new][-MOST_BUILDS:]
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part = self.path.with_suffix(f".{os.getpid()}.part")
            part.write_text(json.dumps({"schema": SCHEMA, "runs": runs}, indent=1) + "\n", "utf-8")
            part.replace(self.path)

    def _read(self) -> list[dict[str, Any]]:
        """Runs, oldest first; none where the file is not there, or is not what was written."""
        try:
            fields = json.loads(self.path.read_text("utf-8")) if self.path is not None else {}
            runs = fields["runs"] if fields.get("schema") == SCHEMA else []
            return [run for run in runs if _is_named(run) and all(map(_is_sound, _figures(run)))]
        except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
            return []


def _figures(run: dict[str, Any]) -> list[Any]:
    return [value for key, value in run.items() if key not in ("build", "date")]


def _is_named(run: dict[str, Any]) -> bool:
    return isinstance(run["build"], str) and isinstance(run["date"], str)


def _is_sound(value: dict[str, Any]) -> bool:
    return value["seconds"] > 0 and value["yardstick"] > 0


def _figure(value: dict[str, Any]) -> Figure:
    return Figure(value["seconds"], value["yardstick"])


def _build(subject: Subject) -> str:
    status = next((s for s in registry.status() if s.name == subject.backend.name), None)
    if status is None:
        return f"jackfield {CORE_VERSION}"
    digest = status.build.rpartition(":")[2][:12]
    return " ".join(filter(None, ["jackfield", CORE_VERSION + ",", status.dist, status.version, digest]))


def _machine() -> list[str]:
    """What makes figures of two runs comparable; no name of a host or user."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return [platform.system(), platform.machine(), _cpu(), str(os.cpu_count()), python]


def _cpu() -> str:
    """The CPU's name, where the system tells it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
