"""What a plugin raises where it must not, as an error of jackfield's that names the device and keeps the cause."""

from __future__ import annotations

from types import TracebackType

from .errors import DeviceError, Error, OutOfMemory
from .findings import is_passing
from .stages import said

__all__ = ["contained", "is_foreign"]


def is_foreign(error: BaseException | None) -> bool:
    """An exception that no caller of jackfield expects. SystemExit too: a plugin does not end the program.

    What a function of the user's own raised (`findings.passes`) is the user's.
    """
    return isinstance(error, (Exception, SystemExit)) and not isinstance(error, Error) and not is_passing(error)


class contained:  # noqa: N801 (read as `with contained(...)`)
    """Around a call of a device or backend. Raises: DeviceError, or OutOfMemory for a MemoryError, with the cause."""

    __slots__ = ("doing", "name")

    def __init__(self, name: object, doing: str) -> None:
        self.name, self.doing = name, doing

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and is_foreign(error):
            raise self.told(error) from error

    def told(self, error: BaseException) -> DeviceError:
        """The error that takes the place of this one."""
        text = f"{self.name}: {self.doing} raised {said(error)}"
        return OutOfMemory(text) if isinstance(error, MemoryError) else DeviceError(text)
