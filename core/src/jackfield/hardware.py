"""Which cards this machine has, read from the system's own files, and which wheel would drive them.

Nothing of a vendor's is run or loaded. `hardware.json` beside this file maps cards to wheels; it is the one place of
the core where packages of backends are named, and only for hints: nothing is ever installed. It lists wheels that
exist. A graphics card is one of a vendor whose drivers compute: most servers have a display controller of class 03,
too, which shows text and does nothing else.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

__all__ = ["Card", "Wheel", "cards", "missing", "others", "seen_by", "wheel_of", "wheels"]

SYS = Path("/sys")
TABLE = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class Card:
    """bus: "pci", "usb" or "soc". model: "vendor:device" in hexadecimal, of a SoC its name. address: where it is
    plugged. device_class: of PCI, six hexadecimal digits.
    """

    bus: str
    model: str
    address: str = ""
    device_class: str = ""

    @property
    def id(self) -> str:
        """As a Device's `card` tells it."""
        return f"{self.bus}-{self.address or self.model}"


@dataclass(frozen=True)
class Wheel:
    """A backend that is known to exist. install: what to give pip. hardware: (bus, pattern of model, of class)."""

    kind: str
    text: str
    install: str
    hardware: tuple[tuple[str, str, str], ...]


def cards() -> tuple[Card, ...]:
    """Every card that the system's files tell of; none where there are no such files."""
    found = [*_pci(), *_usb(), *_soc()]
    return tuple(sorted(found, key=lambda card: (card.bus, card.address, card.model)))


def _pci() -> Iterator[Card]:
    for folder in _folders("bus/pci/devices"):
        vendor, device = (_hexadecimal(folder / name) for name in ("vendor", "device"))
        if vendor and device:
            yield Card("pci", f"{vendor}:{device}", folder.name, _hexadecimal(folder / "class"))


def _usb() -> Iterator[Card]:
    for folder in _folders("bus/usb/devices"):
        vendor, device = (_hexadecimal(folder / name) for name in ("idVendor", "idProduct"))
        if vendor and device:
            yield Card("usb", f"{vendor}:{device}", folder.name)


def _soc() -> Iterator[Card]:
    if sys.platform == "darwin":
        import platform  # noqa: PLC0415 (only there)

        yield Card("soc", f"apple/{platform.machine()}")
    for folder in _folders("devices"):
        if folder.name.startswith("soc") and (family := _text(folder / "family")):
            yield Card("soc", f"{family}/{_text(folder / 'machine')}".lower())


def _folders(below: str) -> list[Path]:
    with suppress(OSError):
        return sorted((SYS / below).iterdir())
    return []


def _text(path: Path) -> str:
    with suppress(OSError, ValueError):
        return path.read_text("utf-8").strip()
    return ""


def _hexadecimal(path: Path) -> str:
    return _text(path).lower().removeprefix("0x")


def wheels() -> tuple[Wheel, ...]:
    """The backends of the table; none where it can't be read, which costs hints only."""
    try:
        rows = json.loads(TABLE.read_text("utf-8"))["wheels"]
        return tuple(
            Wheel(
                row["kind"],
                row["text"],
                row["install"],
                tuple((one["bus"], one["model"], one.get("class", "*")) for one in row["hardware"]),
            )
            for row in rows
        )
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def wheel_of(kind: str) -> Wheel | None:
    """The wheel that is known to bring this kind of device."""
    return next((wheel for wheel in wheels() if wheel.kind == kind), None)


def others(kinds: Iterable[str]) -> list[str]:
    """Kinds of device that are known and not among these, and how to get the wheel of each."""
    there = set(kinds)
    return [f"{wheel.kind} (`pip install '{wheel.install}'`)" for wheel in wheels() if wheel.kind not in there]


def missing(installed: Iterable[str]) -> list[tuple[Wheel, list[Card]]]:
    """Wheels whose hardware is here and whose kind of device no installed backend has."""
    kinds, there = set(installed), cards()
    found = [(wheel, _fitting(wheel.hardware, there)) for wheel in wheels() if wheel.kind not in kinds]
    return [(wheel, fitting) for wheel, fitting in found if fitting]


def seen_by(patterns: Sequence[tuple[str, str]]) -> list[Card]:
    """Cards that the `hardware` of a manifest speaks of: (bus, pattern of model)."""
    return _fitting([(bus, model, "*") for bus, model in patterns], cards())


def _fitting(hardware: Sequence[tuple[str, str, str]], there: Sequence[Card]) -> list[Card]:
    return [
        card
        for card in there
        if any(
            card.bus == bus and fnmatchcase(card.model, model.lower()) and fnmatchcase(card.device_class, of_class)
            for bus, model, of_class in hardware
        )
    ]
