"""What a suite is made of: trials, each an id and a function that tells what is wrong."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from jackfield.backend import Backend, Device, Reason
from jackfield.errors import AttributeValueError

__all__ = ["Check", "Refused", "Subject", "Trial", "Trials", "Verdict", "import_named", "named"]


def import_named(modules: Sequence[str]) -> None:
    """Import the modules that register a backend; the user named them, so the current folder is looked in as well.

    Raises: AttributeValueError for one that is not there; whatever the module raises.
    """
    if modules and os.getcwd() not in sys.path:  # noqa: PTH109 (a string, as sys.path has them)
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as e:
            if e.name is None or not f"{module}.".startswith(f"{e.name}."):
                raise
            text = f"there is no module {module!r} to import: put it into the current folder or on PYTHONPATH"
            raise AttributeValueError(text) from None


class Refused(Exception):
    """The device does not take what a trial asks for. reason: its words. code: a ReasonCode.

    A trial that ends so is "unsupported", unless the reason is empty.
    """

    def __init__(self, reason: object, code: str = "") -> None:
        super().__init__(reason)
        self.reason = reason if isinstance(reason, str) else ""
        self.code = code or (reason.code if isinstance(reason, Reason) else "other")


@dataclass(frozen=True)
class Subject:
    """What is tried. imports: modules that a child process must import to find the device by its name."""

    backend: Backend
    device: Device
    seed: int = 0
    imports: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """mistakes: in words, none if all is right. max_ulp: the worst element's distance from the oracle, if measured.

    note: what is worth telling of a trial that passed.
    """

    mistakes: tuple[str, ...]
    max_ulp: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Trial:
    """One case of a report.

    id: "suite/...", unique and the same in every process and on every device.
    run: gives a Verdict, or just the mistakes. Raises Refused; whatever else it raises is a mistake, too.
    """

    id: str
    run: Callable[[Subject], Verdict | Sequence[str]]


Trials = Callable[[int], Iterator[Trial]]  # from the seed of the inputs to the trials of a suite


Check = Callable[[int, Subject], Sequence[str]]
"""A trial's run that still wants its seed."""


def named(suite: str, seed: int, checks: Mapping[str, Check]) -> Iterator[Trial]:
    """A trial for each check; its id is the suite and its name."""
    for name, check in checks.items():
        yield Trial(f"{suite}/{name}", partial(check, seed))
