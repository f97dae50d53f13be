"""The hooks a plugin may implement: discovery and diagnosis only, never per op, step or call."""

from __future__ import annotations

import pluggy

from .backend import Backend, Device, Finding, Seen, Span

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
