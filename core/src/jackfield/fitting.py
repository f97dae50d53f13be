"""Which open devices a term of a selection means, and what is said where it means none. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import hardware
from .backend import Memory
from .fields import term_of
from .loading import Plugin
from .names import Term
from .opened import OpenDevice
from .trust import plain

__all__ = [
    "DeviceInfo",
    "card_of",
    "fits",
    "info_of",
    "matches",
    "missing",
    "owner_of",
    "same_card",
    "unfit",
    "wheel_hint",
]


@dataclass(frozen=True)
class DeviceInfo:
    """One device for listings. Text fields are "" where the backend does not tell. memory: bytes, 0 for unknown."""

    name: str
    id: str
    kind: str
    device_class: str
    backend: str
    card: str
    vendor: str
    model: str
    arch: str
    driver: str
    memory: Memory
    flags: tuple[str, ...]
    simulated: bool
    state: str

    def __str__(self) -> str:
        return self.name


def info_of(opened: OpenDevice, vendor: str) -> DeviceInfo:
    target = opened.target
    return DeviceInfo(
        name=opened.name,
        id=opened.id,
        kind=term_of(opened.name).kind,
        device_class=opened.device_class,
        backend=opened.backend_name,
        card=opened.card,
        vendor=vendor,
        model=opened.model,
        arch=target.arch,
        driver=opened.driver,
        memory=opened.memory,
        flags=tuple(sorted(target.features)),
        simulated=opened.simulated or opened.backend_name == "sim",
        state="ok",
    )


def owner_of(plugins: Sequence[Plugin], asked: str = "") -> Plugin:
    """Of several that offer one name, the one that was chosen at discovery, or that is `asked` for; else one that says
    what is wrong.
    """
    named = [p for p in plugins if plain(p.found.dist) == plain(asked)] if asked else []
    return min(named or plugins, key=lambda p: (p.found.stop is not None, p.status.code == "duplicate"))


def card_of(opened: OpenDevice) -> str:
    return opened.card or opened.id or opened.name


def same_card(one: OpenDevice, other: OpenDevice) -> bool:
    """Whether two backends offer the same card; the parts and queues of one kind may share it."""
    card = one.card
    return bool(card) and card == other.card and term_of(one.name).kind != term_of(other.name).kind


def matches(term: Term, opened: OpenDevice) -> bool:
    """A name without a part means all parts; without an index, index 0. A star reaches no simulated device."""
    name = term_of(opened.name)
    if term.id:
        known = (opened.id, opened.card)
        return not opened.simulated and any(text.lower().startswith(term.id.lower()) for text in known if text)
    if term.tests and term.index is None and not term.variant:
        return True  # the first that fits
    if term.every:
        return not opened.simulated and opened.backend_name != "sim"
    if term.variant or name.variant:
        return term.variant == name.variant
    return name.index == (term.index or 0) and (term.part is None or term.part == (name.part or 0))


def fits(term: Term, info: DeviceInfo) -> bool:
    """Whether all conditions in brackets hold. No simulated device is reached by one."""
    if not term.tests:
        return True
    if info.simulated:
        return False
    texts = {"arch": info.arch, "vendor": info.vendor, "driver": info.driver, "class": info.device_class}
    sizes = {"mem": info.memory.total, "free": info.memory.free}
    return all(
        test.holds(text=texts.get(test.key, ""), nbytes=sizes.get(test.key, 0), flags=info.flags) for test in term.tests
    )


def unfit(term: Term, infos: Sequence[DeviceInfo]) -> str:
    listed = ", ".join(
        f"{i.name} (arch {i.arch}, mem {i.memory.total / 2**30:.1f}GiB, {' '.join(i.flags) or 'no flags'})"
        for i in infos
    )
    return f"no device fits {term}; there are: {listed}"


def missing(term: Term, devices: Sequence[OpenDevice]) -> str:
    """What there is instead of the device that a term names."""
    variants = ", ".join(sorted({v for d in devices if (v := term_of(d.name).variant)})) or "none"
    if term.id:
        cards = ", ".join(f"{d.name} ({d.id or d.card or 'without an id'})" for d in devices)
        return f"no card of kind {term.kind} is called {term.id}...; there are: {cards or 'none'}"
    if term.variant:
        return f"index is a whole number without leading zero; variants of {term.kind}: {variants}"
    if term.every:
        return f"{term.kind} has simulated devices only, which answer to their exact name"
    real = [d for d in devices if not term_of(d.name).variant]
    if not real and devices:
        names = ", ".join(sorted(d.name for d in devices))
        return f"{term.kind} has simulated devices only, which answer to their exact name: {names}"
    listed = ", ".join(f"{d.name} ({_about(d)})" for d in real)
    return f"{len(real)} device{'' if len(real) == 1 else 's'} of kind {term.kind}: {listed or 'none'}"


def _about(opened: OpenDevice) -> str:
    """Model, or what code it takes, and memory where it is known."""
    total = opened.memory.total
    return (opened.model or opened.target.arch) + (f", {total / 2**30:.1f}GiB" if total else "")


def wheel_hint(kind: str) -> str:
    """Which wheel would bring this kind of device, and whether its hardware is here; "" where none is known."""
    wheel = hardware.wheel_of(kind)
    if wheel is None:
        return ""
    here = [card.id for found, cards in hardware.missing(()) if found.kind == kind for card in cards]
    seen = f"this machine has {wheel.text} ({', '.join(here)}): " if here else ""
    return f"{seen}`pip install '{wheel.install}'` brings it"
