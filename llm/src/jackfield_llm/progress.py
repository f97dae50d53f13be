"""A bar on standard error for what takes long: bytes, whose number may be unknown, or steps."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["Bar", "Report"]

Report = Callable[[str, int, "int | None"], None]
"""Called with a label, the bytes or steps done and those in all (None where unknown)."""


class Bar:
    """A `Report` that draws; it draws nothing where standard error is no terminal, unless `always`.

    steps: what is reported are whole steps, and not bytes.
    """

    def __init__(self, *, always: bool = False, steps: bool = False) -> None:
        self._always, self._steps = always, steps
        self._shown = always or sys.stderr.isatty()
        self._bar: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, label: str, done: int, total: int | None) -> None:
        if not self._shown:
            return
        if self._bar is None:
            self._bar = _new_bar(draw_anyway=self._always, steps=self._steps)
            self._bar.start()
        if label not in self._tasks:
            self._tasks[label] = self._bar.add_task(label, total=total)
        self._bar.update(self._tasks[label], completed=done, total=total)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def _new_bar(*, draw_anyway: bool, steps: bool) -> Progress:
    from rich.console import Console  # noqa: PLC0415 - rich is slow to import and seldom needed here
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True, force_terminal=True if draw_anyway else None)
    rate: tuple[ProgressColumn, ...] = (DownloadColumn(), TransferSpeedColumn())
    if steps:
        rate = (MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(TextColumn("{task.description}"), BarColumn(), *rate, console=console, transient=True)
