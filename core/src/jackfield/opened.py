"""A device that can be used, and what the core knows of it without asking again.

A plugin's fields may be properties, which run its code and may raise. All are read once, where a plugin is isolated;
later only `target` and `memory` are read anew, because they may change, and then a failure is told and harms nobody.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from .backend import Backend, Device, Kernel, Memory, Target
from .hookspecs import Span
from .names import HOST_CLASS
from .probe import Moment, Proof
from .stages import said

__all__ = ["FIELDS", "OpenDevice", "unwatched"]

log = logging.getLogger("jackfield")

# What the core reads of a Device, and what it must be.
FIELDS: tuple[tuple[str, type], ...] = (
    *((given, str) for given in ("name", "id", "card", "model", "driver")),
    ("target", Target),
    ("memory", Memory),
    ("alignment", int),
)
T = TypeVar("T")


def unwatched(_moment: Moment) -> AbstractContextManager[None]:
    """For devices that no wheel brought: nobody is named when they take long, nothing is remembered."""
    return nullcontext()


@dataclass(frozen=True)
class OpenDevice:
    """A device that can be used, with the backend that answers for it and its table of kernels.

    spans: asks the plugin for times of what the device did of late; see `hookspecs.Span`. watched: around its first and
    slow moments; see `Plugin.watched`. known: what each of FIELDS was when it was last read, and `backend`, the
    backend's name; read from the objects where it is not given.
    """

    device: Device
    backend: Backend
    kernels: Mapping[str, Kernel] = field(hash=False, repr=False)
    device_class: str = ""
    simulated: bool = False
    proof: Proof | None = field(default=None, compare=False, repr=False)
    spans: Callable[[], Sequence[Span]] = field(default=tuple, compare=False, repr=False)
    watched: Callable[[Moment], AbstractContextManager[None]] = field(default=unwatched, compare=False, repr=False)
    known: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        for given, _ in FIELDS:
            if given not in self.known:
                self.known[given] = getattr(self.device, given)
        self.known.setdefault("backend", self.backend.name)

    @property
    def name(self) -> str:
        return cast("str", self.known["name"])

    @property
    def id(self) -> str:
        return cast("str", self.known["id"])

    @property
    def card(self) -> str:
        return cast("str", self.known["card"])

    @property
    def model(self) -> str:
        return cast("str", self.known["model"])

    @property
    def driver(self) -> str:
        return cast("str", self.known["driver"])

    @property
    def alignment(self) -> int:
        return cast("int", self.known["alignment"])

    @property
    def backend_name(self) -> str:
        return cast("str", self.known["backend"])

    @property
    def target(self) -> Target:
        """As it is now; the one before where that can't be read. Its stamp says whether answers hold."""
        return self._now("target", Target, cast("Target", self.known["target"]))

    @property
    def memory(self) -> Memory:
        """As it is now; unknown where that can't be read."""
        return self._now("memory", Memory, Memory())

    def _now(self, given: str, cls: type[T], otherwise: T) -> T:
        try:
            found = getattr(self.device, given)
            if isinstance(found, cls):
                self.known[given] = found
                return found
            reason = f"it is a {type(found).__name__}, must be a {cls.__name__}"
        except (Exception, SystemExit) as e:  # noqa: BLE001 (a plugin may raise anything; the other devices go on)
            reason = said(e)
        if not self.known.get(f"{given} is told"):
            self.known[f"{given} is told"] = True
            log.warning("%s: its %s can't be read any more: %s", self.name, given, reason)
        return otherwise

    @property
    def is_host(self) -> bool:
        """A last resort: class cpu, or the reference. Its memory is that of the program, which plans nothing for it."""
        return self.device_class == HOST_CLASS or self.backend_name == "reference"
