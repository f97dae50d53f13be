"""What a plugin raises where it must not, as an error of jackfield's that names the device and keeps the cause."""

from __future__ import annotations

from types import TracebackType
from typing import NamedTuple

from .errors import DeviceError, Error, OutOfMemory
from .findings import is_passing
from .markers import guards
from .stages import said

__all__ = ["Blame", "blamed", "contained", "is_foreign", "unblame"]


def is_foreign(error: BaseException | None) -> bool:
    """An exception that no caller of jackfield expects. SystemExit too: a plugin does not end the program.

    What a function of the user's own raised (`findings.passes`) is the user's.
    """
    return isinstance(error, (Exception, SystemExit)) and not isinstance(error, Error) and not is_passing(error)


class Blame(NamedTuple):
    """name: of the device in whose code an error arose. doing: what was asked of it. cause: what it raised itself."""

    name: str
    doing: str
    cause: BaseException


def blamed(error: BaseException) -> Blame | None:
    """Which device an error is laid to; None for one of the core's or the user's."""
    found: Blame | None = getattr(error, "jackfield_blamed", None)
    return found


def unblame(error: BaseException) -> None:
    """It passes on from code of the user's, who may have met a device of his own there."""
    if blamed(error) is not None:
        error.jackfield_blamed = None  # type: ignore[attr-defined]  # read by `blamed` alone


class contained:  # noqa: N801 (read as `with contained(...)`)
    """Around a call of a device or backend. Raises: DeviceError, or OutOfMemory for a MemoryError, with the cause.

    Whatever leaves it as an error of jackfield's is `blamed` on the device.
    """

    __slots__ = ("_guard", "doing", "name")

    def __init__(self, name: str, doing: str) -> None:
        self.name, self.doing = name, doing

    def __enter__(self) -> None:
        self._guard = guards.get(self.name) if guards else None  # mostly there is none
        if self._guard is not None:
            self._guard.enter(self.doing)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._guard is not None:
            self._guard.leave(self.doing, well=error is None)
        if error is None:
            return
        if is_foreign(error):
            told = self.told(error)
            told.jackfield_blamed = Blame(self.name, self.doing, error)  # type: ignore[attr-defined]  # read by `blamed` alone
            raise told from error
        if isinstance(error, Error):
            error.jackfield_blamed = Blame(self.name, self.doing, error)  # type: ignore[attr-defined]  # likewise

    def told(self, error: BaseException) -> DeviceError:
        """The error that takes the place of this one."""
        text = f"{self.name}: {self.doing} raised {said(error)}"
        return OutOfMemory(text) if isinstance(error, MemoryError) else DeviceError(text)
