"""The installed backends: who is there, how far each came, and which devices a string names.

Nothing is read before somebody asks. `status` runs no plugin; `select` opens what was named, `devices` and `auto` what
may be used. One broken plugin is a status and a line in the log, never an error of the others.

A little long, and better whole: finding, opening and choosing share one list under one lock.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from . import hardware
from .backend import Backend, Memory, Target
from .discovery import CORE_VERSION, Found, fingerprint, scan
from .errors import BackendError, DeviceError, DeviceNameError, Error, HookError, Unavailable
from .hookspecs import Finding, Seen
from .loading import OpenDevice, Plugin, term_of
from .manifest import Manifest
from .names import CLASSES, HOST_CLASS, Term, no_such_kind, parse, wrong
from .probe import wrong_settings
from .reference import ReferenceBackend
from .simulated import Shape, SimBackend
from .stages import BackendStatus
from .trust import Wishes, plain
from .variables import setting, unknown

__all__ = [
    "DeviceInfo",
    "OpenDevice",
    "Registry",
    "Selection",
    "SimUse",
    "ask",
    "devices",
    "fallbacks",
    "findings",
    "fresh",
    "listed",
    "open_backend",
    "refresh",
    "register_backend",
    "seen",
    "select",
    "sim",
    "status",
    "unregister_backend",
]

log = logging.getLogger("jackfield")

CORE = "jackfield"
REGISTERED = "<registered>"
ACCELERATORS = ("gpu", "npu", "dsp", "accel")
QUIET = ("absent", "off")  # normal states of an accelerator, worth no warning


@dataclass(frozen=True)
class Selection:
    """Devices in the order of priority. text: the selection in full. named: the user named them; False for `auto`."""

    devices: tuple[OpenDevice, ...]
    text: str
    named: bool


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


class Registry:
    """All backends of one process. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._plugins: list[Plugin] = []
        self._stamp: object = None
        self._registered: dict[str, Plugin] = {}
        self._core: dict[str, Plugin] = {}
        self._sim_shape: Shape | None = None
        self._told: set[tuple[str, ...]] = set()
        self._pid = os.getpid()

    # What is there

    def plugins(self) -> list[Plugin]:
        """Every backend: installed and registered by name, then the core's own two."""
        with self._lock:
            wishes = self._wishes()
            stamp = (fingerprint(), wishes.text)
            if stamp != self._stamp:
                found, whole = scan(wishes)
                old = {p.found: p for p in self._plugins}
                self._plugins = [old.get(f) or Plugin(f) for f in found]
                self._stamp = stamp if whole else None  # what could not be read is tried again
                self._warn_of_variables()
            listed = sorted([*self._plugins, *self._registered.values()], key=lambda p: (p.found.name, p.found.dist))
            return [*listed, self._own("reference"), self._own("sim")]

    def _warn_of_variables(self) -> None:
        """A name that nobody reads is most often a mistyped one."""
        manifests = [p.found.manifest for p in self._plugins if p.found.manifest is not None]
        for name, like in unknown(name for m in manifests for name, _ in m.env):
            if (name,) not in self._told:
                self._told.add((name,))
                log.warning("%s is set, but nothing here reads it%s", name, f"; did you mean {like}?" if like else "")
        for text in wrong_settings():
            if (text,) not in self._told:
                self._told.add((text,))
                log.warning("%s", text)

    def _wishes(self) -> Wishes:
        return Wishes.parse(setting("JACKFIELD_BACKENDS"))

    def _own(self, name: str) -> Plugin:
        if self._pid != os.getpid():  # plain host memory: a forked child opens its own
            self._core.clear()
            self._pid = os.getpid()
        if name not in self._core:
            make: dict[str, Callable[[], Backend]] = {"reference": ReferenceBackend, "sim": self._new_sim}
            self._core[name] = Plugin(Found(name, CORE, CORE_VERSION, "", ""), make=make[name], device_class="")
        return self._core[name]

    def _new_sim(self) -> SimBackend:
        return SimBackend(self._sim_shape or Shape.parse(setting("JACKFIELD_SIM") or ""))

    def status(self) -> list[BackendStatus]:
        """Every backend, the broken ones too; runs no line of any plugin."""
        return [p.status for p in self.plugins()]

    def refresh(self) -> None:
        """Forget what was found and opened; the next question looks again. Devices in use live on with their owners."""
        with self._lock:
            self._plugins, self._stamp = [], None
            self._core.clear()
            self._told.clear()
            for plugin in list(self._registered.values()):
                again = Plugin(plugin.found, make=plugin.make, device_class=plugin.kinds[0].device_class)
                self._registered[plugin.found.name] = again

    def register(self, backend: Backend | type[Backend], device_class: str, caller: str) -> Backend:
        made: object = backend() if isinstance(backend, type) else backend
        if not isinstance(made, Backend):
            raise HookError(f"register_backend takes a Backend, not a {type(made).__name__}")
        if device_class not in CLASSES:
            raise DeviceError(f"device_class is {device_class!r}, must be one of {', '.join(CLASSES)}")
        found = Found(str(getattr(made, "name", "")), REGISTERED, "", "", "", notes=(f"registered by {caller}",))
        with self._lock:
            if any(p.offers(found.name) or p.found.name == found.name for p in self.plugins()):
                raise HookError(f"a backend or kind called {found.name!r} is there already")
            self._registered[found.name] = Plugin(found, make=lambda: made, device_class=device_class)
        return made

    def unregister(self, name: str) -> None:
        with self._lock:
            self._registered.pop(name, None)

    def reshape_sim(self, shape: Shape | None) -> Shape | None:
        """`sim` has this shape from now on (None: that of JACKFIELD_SIM); answers the former."""
        with self._lock:
            former, self._sim_shape = self._sim_shape, shape
            self._core.pop("sim", None)
            return former

    # Opening

    def _open(self, plugin: Plugin, *, named: bool) -> tuple[OpenDevice, ...]:
        with self._lock:
            return plugin.open(named=named, wishes=self._wishes())

    def _usable(self, plugins: Iterable[Plugin]) -> list[OpenDevice]:
        """Devices of those that open; each of the others is told once."""
        found: list[OpenDevice] = []
        for plugin in plugins:
            try:
                found += self._open(plugin, named=False)
            except (BackendError, DeviceError) as e:
                self._tell(plugin, e)
        return found

    def _rehearse(self, *, again: bool = False) -> None:
        """Child processes meet all builds that nobody knows yet, side by side. again: whatever is known."""
        waiting = [p for p in self.plugins() if p.found.distribution is not None and (again or p.is_pending)]
        if len(waiting) > 1 or (waiting and again):
            from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 (only where there are several)

            with ThreadPoolExecutor(min(8, len(waiting))) as pool:
                list(pool.map(lambda plugin: plugin.rehearse(again=again), waiting))

    def fresh(self) -> None:
        """Forget what was found and opened, and what is known of every installed build."""
        self.refresh()
        self._rehearse(again=True)

    def _tell(self, plugin: Plugin, error: Error) -> None:
        key = (plugin.found.name, plugin.found.dist, plugin.status.code)
        if key not in self._told:
            self._told.add(key)
            # A host always has its CPU: where its backend says there is none, a setting is wrong, and all gets slow.
            normal = plugin.status.state in QUIET and not (
                plugin.status.state == "absent" and HOST_CLASS in plugin.classes
            )
            level = logging.INFO if normal else logging.WARNING
            log.log(level, "backend not used: %s", error)

    def _tell_slow(self, chosen: Sequence[OpenDevice]) -> None:
        """Once: nothing but numpy is left, and no setting of the user said that it should be so."""
        if all(d.backend.name == "reference" for d in chosen) and ("", "", "slow") not in self._told:
            self._told.add(("", "", "slow"))
            log.warning(
                "no backend can be used, so everything runs on the numpy reference, which is slow; "
                "`jackfield doctor` says what is installed and why it is not used"
            )

    def _of_class(self, device_class: str) -> list[Plugin]:
        listed = [p for p in self.plugins() if device_class in p.classes and p.found.dist != CORE]
        return sorted(listed, key=lambda p: (-p.priority, p.found.name))

    def open_backend(self, name: str) -> Backend:
        """The backend of that name, opened. Raises its typed error, or DeviceNameError when there is none."""
        plugins = [p for p in self.plugins() if p.found.name == name]
        if not plugins:
            raise no_such_kind(name, Term(name), sorted({p.found.name for p in self.plugins()}))
        plugin = _owner(plugins)
        self._open(plugin, named=True)
        assert plugin.backend is not None
        return plugin.backend

    def ask(self, kind: str) -> tuple[Backend | None, list[Target]]:
        """Who answers for a kind, and for which targets: those it names, which need no hardware, else its devices'."""
        offering = [p for p in self.plugins() if p.offers(kind)]
        if not offering:
            return None, []
        plugin = _owner(offering)
        with suppress(BackendError, DeviceError):
            self._open(plugin, named=True)
        if plugin.backend is None:
            return None, []
        named = list(plugin.backend.targets()) or [opened.device.target for opened in plugin.devices]
        return plugin.backend, list({(t.kind, t.arch): t for t in named if t.kind == kind}.values())

    # Choosing

    def fallbacks(self) -> tuple[OpenDevice, ...]:
        """What may take over: all devices of class cpu by priority, then the reference. Never a simulated one."""
        host = [d for d in self._usable(self._of_class(HOST_CLASS)) if d.device_class == HOST_CLASS]
        return (*host, *self._open(self._own("reference"), named=True))

    def _auto(self) -> tuple[OpenDevice, ...]:
        chosen: list[OpenDevice] = []
        self._rehearse()
        for device_class in ACCELERATORS:
            chosen += [d for d in self._usable(self._of_class(device_class)) if d.device_class == device_class]
        return (*self._each_card_once(chosen), *self.fallbacks())

    def _each_card_once(self, found: Sequence[OpenDevice]) -> list[OpenDevice]:
        """Of several backends that offer one card the first; the others are told once."""
        kept: list[OpenDevice] = []
        for device in found:
            twin = next((other for other in kept if _same_card(other, device)), None)
            if twin is None:
                kept.append(device)
            elif (key := ("card", twin.name, device.name)) not in self._told:
                self._told.add(key)
                log.info("%s is not used: it is the card %s, as %s is", device.name, device.device.card, twin.name)
        return kept

    def select(self, selection: str | None) -> Selection:
        """The devices a string names. Raises DeviceNameError, or the typed error of a backend that can't be used."""
        text = selection if selection is not None else setting("JACKFIELD_DEVICE") or "auto"
        names = parse(text)
        reasons: list[Error] = []
        for terms in names.sets:
            if terms[0].is_auto:
                chosen, named = self._auto(), False
                self._tell_slow(chosen)
            else:
                try:
                    chosen, named = self._together(text, terms), True
                except (DeviceNameError, BackendError, DeviceError) as e:
                    reasons.append(e)
                    continue
            for reason in reasons:
                log.warning("passed over in %r: %s", text, str(reason).splitlines()[0])
            return Selection(chosen, str(names), named)
        if len(reasons) == 1:
            raise reasons[0]
        cls = DeviceNameError if all(isinstance(r, DeviceNameError) for r in reasons) else Unavailable
        raise cls(f"{text!r}: no set can be had\n" + "\n".join(f"- {r}" for r in reasons)) from reasons[0]

    def _together(self, text: str, terms: Sequence[Term]) -> tuple[OpenDevice, ...]:
        chosen: dict[str, OpenDevice] = {}
        for term in terms:
            for device in self._named(text, term):
                if device.name in chosen:
                    raise wrong(text, term.column, f"{device.name} stands twice in one set")
                if twin := next((o for o in chosen.values() if _same_card(o, device)), None):
                    both = f"{twin.name} and {device.name} are both the card {device.device.card}"
                    raise wrong(text, term.column, f"{both}; choose one of them")
                chosen[device.name] = device
        return tuple(chosen.values())

    def _named(self, text: str, term: Term) -> tuple[OpenDevice, ...]:
        """The devices that a term means. A kind wins over a class of the same word."""
        plugins = self._owned(text, term)
        offering = [p for p in plugins if p.offers(term.kind)]
        if offering:
            found = self._open(_owner(offering, term.owner), named=True)
            devices = [d for d in found if term_of(d.name).kind == term.kind]
        elif term.kind in CLASSES and any(term.kind in p.classes for p in plugins):
            return self._of_class_named(text, term, plugins)
        else:
            raise no_such_kind(text, term, sorted({k.kind for p in plugins for k in p.kinds}), _wheel_hint(term.kind))
        matching = [d for d in devices if _matches(term, d)]
        if term.id and len(cards := {self._card(d) for d in matching}) > 1:
            raise wrong(text, term.column, f"{term.id} fits {len(cards)} cards: {', '.join(sorted(cards))}")
        fitting = [d for d in matching if self._fits(term, d)]
        if not matching:
            raise wrong(text, term.column, _missing(term, devices))
        if not fitting:
            raise wrong(text, term.column, self._unfit(term, matching))
        first = term.tests and not term.every and term.index is None and not term.id
        return tuple(fitting[:1] if first else fitting)

    def _owned(self, text: str, term: Term) -> list[Plugin]:
        """Every backend, or those of the owner that the term names."""
        plugins = self.plugins()
        if not term.owner:
            return plugins
        owned = [p for p in plugins if term.owner == p.found.name or plain(term.owner) == plain(p.found.dist)]
        if not owned:
            owners = sorted({p.found.dist for p in plugins if p.found.dist not in (CORE, REGISTERED)})
            raise wrong(text, term.column, f"no backend of {term.owner!r}; installed: {', '.join(owners) or 'none'}")
        return owned

    def _of_class_named(self, text: str, term: Term, plugins: Sequence[Plugin]) -> tuple[OpenDevice, ...]:
        """The first device of a class by priority, or all with a star; never a simulated one."""
        there = [p for p in self._of_class(term.kind) if p in plugins]
        found = [d for d in self._usable(there) if d.device_class == term.kind]
        names = ", ".join(d.name for d in found) or "none"
        if term.index is not None or term.id or term.variant:
            why = "an index would move when a backend is installed"
            raise wrong(text, term.column, f"{term.kind} is a class, which has no {term}: {why}; devices: {names}")
        if not found:
            reasons = "; ".join(p.status.error or p.status.code for p in there)
            raise Unavailable(f"{term}: no device of class {term.kind} can be used: {reasons}")
        fitting = [d for d in found if self._fits(term, d)]
        if not fitting:
            raise wrong(text, term.column, self._unfit(term, found))
        return tuple(self._each_card_once(fitting) if term.every else fitting[:1])

    def _fits(self, term: Term, opened: OpenDevice) -> bool:
        """Whether all conditions in brackets hold. No simulated device is reached by one."""
        if not term.tests:
            return True
        if opened.simulated or opened.backend.name == "sim":
            return False
        info = self._info(opened)
        texts = {"arch": info.arch, "vendor": info.vendor, "driver": info.driver, "class": info.device_class}
        sizes = {"mem": info.memory.total, "free": info.memory.free}
        return all(
            test.holds(text=texts.get(test.key, ""), nbytes=sizes.get(test.key, 0), flags=info.flags)
            for test in term.tests
        )

    def _unfit(self, term: Term, devices: Sequence[OpenDevice]) -> str:
        infos = [self._info(d) for d in devices]
        listed = ", ".join(
            f"{i.name} (arch {i.arch}, mem {i.memory.total / 2**30:.1f}GiB, {' '.join(i.flags) or 'no flags'})"
            for i in infos
        )
        return f"no device fits {term}; there are: {listed}"

    def _card(self, opened: OpenDevice) -> str:
        return opened.device.card or opened.device.id or opened.name

    # Telling

    def devices(self) -> list[DeviceInfo]:
        """All devices that can be used, in the order `auto` takes them; then the simulated ones."""
        listed = list(self._auto())
        for plugin in self.plugins():
            if any(k.simulated for k in plugin.kinds) or plugin.found.name == "sim":
                try:
                    listed += [d for d in self._open(plugin, named=False) if d.simulated or plugin.found.name == "sim"]
                except (BackendError, DeviceError) as e:
                    self._tell(plugin, e)
        return [self._info(d) for d in listed]

    def _info(self, opened: OpenDevice) -> DeviceInfo:
        plugin = next((p for p in self.plugins() if p.backend is opened.backend), None)
        vendor = plugin.found.manifest.vendor if plugin is not None and plugin.found.manifest else ""
        device = opened.device
        return DeviceInfo(
            name=device.name,
            id=device.id,
            kind=term_of(device.name).kind,
            device_class=opened.device_class,
            backend=opened.backend.name,
            card=device.card,
            vendor=vendor,
            model=device.model,
            arch=device.target.arch,
            driver=device.driver,
            memory=device.memory,
            flags=tuple(sorted(device.target.features)),
            simulated=opened.simulated or opened.backend.name == "sim",
            state="ok",
        )


def _wheel_hint(kind: str) -> str:
    """Which wheel would bring this kind of device, and whether its hardware is here; "" where none is known."""
    wheel = hardware.wheel_of(kind)
    if wheel is None:
        return ""
    here = [card.id for found, cards in hardware.missing(()) if found.kind == kind for card in cards]
    seen = f"this machine has {wheel.text} ({', '.join(here)}): " if here else ""
    return f"{seen}`pip install '{wheel.install}'` brings it"


def _same_card(one: OpenDevice, other: OpenDevice) -> bool:
    """Whether two backends offer the same card; the parts and queues of one kind may share it."""
    card = one.device.card
    return bool(card) and card == other.device.card and term_of(one.name).kind != term_of(other.name).kind


def _owner(plugins: Sequence[Plugin], asked: str = "") -> Plugin:
    """Of several that offer one name, the one that was chosen at discovery, or that is `asked` for; else one that says
    what is wrong.
    """
    named = [p for p in plugins if plain(p.found.dist) == plain(asked)] if asked else []
    return min(named or plugins, key=lambda p: (p.found.stop is not None, p.status.code == "duplicate"))


def _matches(term: Term, opened: OpenDevice) -> bool:
    """A name without a part means all parts; without an index, index 0. A star reaches no simulated device."""
    name = term_of(opened.name)
    if term.id:
        known = (opened.device.id, opened.device.card)
        return not opened.simulated and any(text.lower().startswith(term.id.lower()) for text in known if text)
    if term.tests and term.index is None and not term.variant:
        return True  # the first that fits
    if term.every:
        return not opened.simulated and opened.backend.name != "sim"
    if term.variant or name.variant:
        return term.variant == name.variant
    return name.index == (term.index or 0) and (term.part is None or term.part == (name.part or 0))


def _missing(term: Term, devices: Sequence[OpenDevice]) -> str:
    variants = ", ".join(sorted({v for d in devices if (v := term_of(d.name).variant)})) or "none"
    if term.id:
        cards = ", ".join(f"{d.name} ({d.device.id or d.device.card or 'without an id'})" for d in devices)
        return f"no card of kind {term.kind} is called {term.id}...; there are: {cards or 'none'}"
    if term.variant:
        return f"index is a whole number without leading zero; variants of {term.kind}: {variants}"
    if term.every:
        return f"{term.kind} has simulated devices only, which answer to their exact name"
    plain = [d for d in devices if not term_of(d.name).variant]
    if not plain and devices:
        names = ", ".join(sorted(d.name for d in devices))
        return f"{term.kind} has simulated devices only, which answer to their exact name: {names}"
    listed = ", ".join(f"{d.name} ({d.device.target.arch})" for d in plain)
    return f"{len(plain)} device{'' if len(plain) == 1 else 's'} of kind {term.kind}: {listed or 'none'}"


class SimUse:
    """The shape `sim` has been given. As a `with` block it gives the former shape back at the end.

    backend: the simulated backend; device, devices: what `sim` names now.
    """

    def __init__(self, registry: Registry, former: Shape | None) -> None:
        self._registry, self._former = registry, former
        opened = registry.select("sim").devices
        self.backend = opened[0].backend
        self.devices = tuple(o.device for o in opened)
        self.device = self.devices[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._registry.reshape_sim(self._former)


_registry = Registry()

select = _registry.select
fallbacks = _registry.fallbacks
status = _registry.status
devices = _registry.devices
ask = _registry.ask
refresh = _registry.refresh
fresh = _registry.fresh
open_backend = _registry.open_backend
unregister_backend = _registry.unregister


def register_backend(backend: Backend | type[Backend], *, device_class: str = "accel") -> Backend:
    """Use a Backend that comes from no wheel: an object, or a class to be called. For tests and notebooks.

    Its one kind of device is called as the backend is. device_class: cpu, gpu, npu, dsp or accel; decides when `auto`
    and fallbacks come to it. Raises: HookError for another object, or a name that is taken.
    """
    return _registry.register(backend, device_class, sys._getframe(1).f_code.co_filename)  # noqa: SLF001 (the file of the caller)


def sim(**shape: Any) -> SimUse:
    """Give the simulated device `sim` another shape and other faults; without keywords, its plain shape.

    Keywords are the keys of JACKFIELD_SIM (see `Shape`), values numbers or the same text:
    `jf.sim(mem="64MiB", refuse="softmax", lost_after=12)`. Plans made before keep the devices they have.
    Raises: AttributeValueError that names the key.
    """
    former = _registry.reshape_sim(Shape.of(**shape))
    return SimUse(_registry, former)


def listed() -> list[tuple[BackendStatus, Manifest | None]]:
    """Every backend's status with its manifest, where it has one that can be read."""
    return [(p.status, p.found.manifest) for p in _registry.plugins()]


def findings(*, deep: bool = False) -> list[tuple[str, Finding]]:
    """What opened plugins add to doctor: (backend, finding)."""
    return [(p.found.name, f) for p in _registry.plugins() for f in p.findings(deep=deep)]


def seen() -> list[tuple[str, Seen]]:
    """Cards that opened plugins see without a driver: (backend, card)."""
    return [(p.found.name, s) for p in _registry.plugins() for s in p.seen()]
