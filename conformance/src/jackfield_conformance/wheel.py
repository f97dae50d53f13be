"""The wheel that a device under test came from."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from jackfield import registry
from jackfield.manifest import Manifest
from jackfield.stages import BackendStatus
from jackfield.trust import project_folder

from .trials import Refused, Subject

__all__ = ["Installed", "installed"]


@dataclass(frozen=True)
class Installed:
    """status: of its backend. manifest: None without one. editable: installed from its sources."""

    status: BackendStatus
    dist: Distribution
    manifest: Manifest | None
    editable: bool


def installed(subject: Subject) -> Installed:
    """Raises: Refused for a backend that came from no wheel: the core's own, and those that were registered."""
    name = subject.backend.name
    for status, manifest in registry.listed():
        if status.name == name and status.state == "ok":
            try:
                dist = distribution(status.dist)
            except (PackageNotFoundError, ValueError):
                break
            if status.dist != "jackfield":
                return Installed(status, dist, manifest, project_folder(dist) is not None)
    raise Refused(f"{name} comes from no wheel", "other")
