"""A plan is made, and made again without what breaks: no backend that the user did not name ends a program.

A device that raises while it is asked, filled or compiled for is left out where nobody named it: its backend stops at
`open`, one line of the log says so, and all is decided anew from the devices that are left. Every build that is asked
has a guard meanwhile, and what plugins print is kept from the program's own output.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from . import registry
from .backend import Backend
from .blueprint import Blueprint
from .candidates import Panel
from .containment import Blame, blamed, contained
from .errors import Error, PlanError
from .opened import OpenDevice
from .placement import Policy
from .prints import Room, heard
from .probe import Guarded
from .store import ROOM

__all__ = ["Attempt", "Broken"]

log = logging.getLogger("jackfield")
T = TypeVar("T")

_WORDS = {"question": "why_not, reads or cost", "alloc": "first alloc"}  # of what `contained` says, for people
_GIVEN = "has given memory"  # of a device, among what is known of it


class Broken:
    """What a Session leaves out from now on. notes: why, for reports."""

    def __init__(self) -> None:
        self.backends: list[Backend] = []
        self.notes: list[str] = []

    def without(self, devices: Iterable[OpenDevice]) -> list[OpenDevice]:
        return [opened for opened in devices if not any(opened.backend is b for b in self.backends)]


class Attempt:
    """One compile, or one report of what a compile would do.

    selection: what may be used; named: the user named it. fallbacks: opens what may take over. pins: names of devices
    in pins, which are named, too. broken: of the Session.
    """

    def __init__(
        self,
        selection: registry.Selection,
        policy: Policy,
        fallbacks: Callable[[], Sequence[OpenDevice]],
        pins: Iterable[str],
        broken: Broken,
    ) -> None:
        self._selection, self._policy, self._pins, self._broken = selection, policy, tuple(pins), broken
        self._open = fallbacks
        self._full = Broken()  # for this plan alone
        self._met: dict[str, OpenDevice] = {}
        self._guarded = Guarded()

    # What may be asked

    @property
    def devices(self) -> tuple[OpenDevice, ...]:
        return self._known(self._selection.devices)

    def fallbacks(self) -> tuple[OpenDevice, ...]:
        return self._known(self._open())

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self._selection.notes, *self._broken.notes, *self._full.notes)

    def _known(self, devices: Iterable[OpenDevice]) -> tuple[OpenDevice, ...]:
        left = self._full.without(self._broken.without(devices))
        fresh = {opened.name: opened for opened in left if opened.name not in self._met}
        self._met.update(fresh)
        self._guarded.add({name: opened.proof for name, opened in fresh.items()})
        return tuple(left)

    # Trying

    def run(self, work: Callable[[], T]) -> T:
        """What `work` returns, which is called again after a device was left out. Raises what it raises otherwise."""
        well = False
        room = Room()
        try:
            with heard(room):
                found = self._over(work)
            well = True
            return found
        finally:
            self._guarded.end(well=well)
            if room.printers:
                self._tell_prints(room)

    def _over(self, work: Callable[[], T]) -> T:
        first: Error | None = None
        while True:
            try:
                return work()
            except Error as e:
                blame = blamed(e)
                if blame is None and first is not None and isinstance(e, PlanError):
                    raise e from first  # without the device that was left out there is no way
                if blame is None or not self._left(blame, e):
                    raise
                first = first or e

    def check(self, panel: Panel) -> None:
        """Raises: DeviceError for a device that raised when it was asked about a step, and that is to be left out."""
        for number, error in panel.raised.items():
            if self._may_leave(panel.devices[number]):
                with contained(panel.name(number), "question"):
                    raise error

    def used(self, drawn: Blueprint) -> None:
        """A plan was made on these devices."""
        for number in drawn.used():
            opened = drawn.panel.devices[number]
            if not opened.known.get(_GIVEN):
                opened.known[_GIVEN] = True
                registry.works(opened)

    def _left(self, blame: Blame, error: Error) -> bool:
        """Whether a device is left out for this from now on."""
        opened = self._met.get(blame.name)
        if opened is None or not self._broken.without([opened]) or not self._full.without([opened]):
            return False
        leaves = self._may_leave(opened)
        is_short = isinstance(blame.cause, MemoryError)
        if blame.doing == ROOM or (is_short and opened.known.get(_GIVEN)):
            # Full, not broken: another plan may fit. The host's memory is the program's: no other device adds to it.
            if leaves and not opened.is_host:
                self._leave(self._full, opened, f"{opened.name} is left out of this plan: {_first_line(error)}")
                log.warning("%s", self._full.notes[-1])
                return True
            return False
        leaves = leaves and not (is_short and opened.is_host)
        if leaves or blame.doing == "alloc":
            doing = _WORDS.get(blame.doing, blame.doing)
            registry.failed(opened, doing, blame.cause, told=leaves)
        if leaves:
            self._leave(self._broken, opened, f"{opened.name} is left out: {_first_line(error)}")
        return leaves

    def _leave(self, whom: Broken, opened: OpenDevice, note: str) -> None:
        whom.backends.append(opened.backend)
        whom.notes.append(note)

    def _may_leave(self, opened: OpenDevice) -> bool:
        """Nobody named it or a device of its backend, and another one may take over."""
        named = self._selection.devices if self._selection.named else ()
        return (
            self._policy != "strict"
            and opened.backend_name != "reference"
            and not any(other.backend is opened.backend for other in named)
            and not any(opened.name in (name, f"{name}:0") for name in self._pins)
        )

    def _tell_prints(self, room: Room) -> None:
        for package, (count, start) in room.printers.items():
            text = f"printed {count} characters on stdout while a plan was made: {start.strip()!r}"
            log.info("%s %s", package, text)
            for opened in self._met.values():
                if type(opened.backend).__module__.partition(".")[0] == package:
                    registry.note(opened, text)
                    break


def _first_line(error: Error) -> str:
    return str(error).partition("\n")[0]
