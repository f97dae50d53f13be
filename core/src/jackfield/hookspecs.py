"""The hooks a plugin may implement: discovery and diagnosis only, never per op, step or call."""

from __future__ import annotations

from dataclasses import dataclass

import pluggy

from .backend import Backend, Device

__all__ = [
    "Finding",
    "Seen",
    "Span",
    "jackfield_backend",
    "jackfield_diagnose",
    "jackfield_hardware",
    "jackfield_spans",
]

hookspec = pluggy.HookspecMarker("jackfield")


@dataclass(frozen=True)
class Finding:
    """One extra line for doctor."""

    code: str
    text: str
    hint: str = ""


@dataclass(frozen=True)
class Seen:
    """A card visible without its driver. card: bus address or UUID."""

    card: str
    text: str


@dataclass(frozen=True)
class Span:
    """Device-side time of one piece of work, such as a kernel: name, when it started, seconds long.

    start: on the clock of `time.perf_counter()`, to which the device brings its own.
    """

    name: str
    start: float
    seconds: float


@hookspec(firstresult=True)
def jackfield_backend() -> Backend:  # type: ignore[empty-body]
    """The plugin's Backend; required."""


@hookspec
def jackfield_diagnose(backend: Backend, deep: bool) -> list[Finding]:  # type: ignore[empty-body]  # noqa: FBT001
    """Extra lines for `jackfield doctor`."""


@hookspec
def jackfield_hardware() -> list[Seen]:  # type: ignore[empty-body]
    """Cards that can be seen without a driver."""


@hookspec
def jackfield_spans(device: Device) -> list[Span]:  # type: ignore[empty-body]
    """Device-side times of what this device did since it was last asked, oldest first; it may keep only the newest.

    Asked when somebody wants the trace of a call that is over, never in a call.
    """
