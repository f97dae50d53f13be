"""The installed backends: who is there, how far each came, and which devices a string names.

Nothing is read before somebody asks. `status` runs no plugin; `select` opens what was named, `devices` and `auto` what
may be used. One broken plugin is a status and a line in the log, never an error of the others.

Finding and choosing share one list under one lock; opening has a lock of each backend's own. Which device a name fits
is asked in `fitting`.
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

from . import hardware, simulated
from .backend import Backend, Target
from .discovery import CORE_VERSION, Found, fingerprint, forget_kept, scan
from .errors import BackendError, DeviceError, DeviceNameError, Error, HookError, Unavailable
from .fields import term_of
from .fitting import DeviceInfo, card_of, fits, info_of, matches, missing, owner_of, same_card, unfit, wheel_hint
from .hookspecs import Finding, Seen
from .loading import Plugin
from .manifest import Manifest
from .names import CLASSES, HOST_CLASS, Term, no_such_kind, parse, wrong
from .opened import OpenDevice
from .pins import pins_of_user, wrong_pins
from .probe import wrong_settings
from .reference import ReferenceBackend
from .simulated import Shape, SimBackend
from .stages import BackendStatus, said
from .trust import Wishes, plain
from .variables import setting, unknown

__all__ = [
    "DeviceInfo",
    "OpenDevice",
    "Registry",
    "Selection",
    "SimUse",
    "ask",
    "claimed",
    "devices",
    "failed",
    "fallbacks",
    "findings",
    "fresh",
    "listed",
    "note",
    "open_backend",
    "refresh",
    "register_backend",
    "seen",
    "select",
    "sim",
    "status",
    "unregister_backend",
    "works",
]

log = logging.getLogger("jackfield")

CORE = "jackfield"
REGISTERED = "<registered>"
ACCELERATORS = ("gpu", "npu", "dsp", "accel")
INTEGRATED = "integrated"  # feature of a card that shares the host's memory: of its class the later choice
QUIET = ("absent", "off")  # normal states of an accelerator, worth no warning


@dataclass(frozen=True)
class Selection:
    """Devices in the order of priority. text: the selection in full. named: the user named them; False for `auto`.

    notes: what was left out, and why; for reports.
    """

    devices: tuple[OpenDevice, ...]
    text: str
    named: bool
    notes: tuple[str, ...] = ()


class Registry:
    """All backends of one process. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._plugins: list[Plugin] = []
        self._stamp: object = None
        self._is_kept_good = True  # not after a refresh, until all that is installed has been read
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
            stamp = (fingerprint(), wishes)
            if stamp != self._stamp:
                found, whole = scan(wishes, anew=not self._is_kept_good)
                self._is_kept_good = self._is_kept_good or whole
                # A file may have been pinned since it was refused for a pin, which `found` does not show.
                old = {p.found: p for p in self._plugins if p.status.stage != "trust" or p.is_pending}
                self._plugins = [old.get(f) or Plugin(f) for f in found]
                self._stamp = stamp if whole else None  # what could not be read is tried again
                self._warn_of_variables()
                self._warn_of_duplicates()
            listed = sorted([*self._plugins, *self._registered.values()], key=lambda p: (p.found.name, p.found.dist))
            return [*listed, self._own("reference"), self._own("sim")]

    def _warn_of_variables(self) -> None:
        """A name that nobody reads is most often a mistyped one."""
        manifests = [p.found.manifest for p in self._plugins if p.found.manifest is not None]
        for name, like in unknown(name for m in manifests for name, _ in m.env):
            if (name,) not in self._told:
                self._told.add((name,))
                log.warning("%s is set, but nothing here reads it%s", name, f"; did you mean {like}?" if like else "")
        for text in (*wrong_settings(), *wrong_pins()):
            if (text,) not in self._told:
                self._told.add((text,))
                log.warning("%s", text)

    def _warn_of_duplicates(self) -> None:
        """Two wheels of one name, of which nobody chose one: the user must know which is used."""
        for text in (p.found.rival for p in self._plugins if p.found.rival):
            if (text,) not in self._told:
                self._told.add((text,))
                log.warning("%s", text)

    def _wishes(self) -> Wishes:
        return Wishes.parse(setting("JACKFIELD_BACKENDS"), pins_of_user())

    def _own(self, name: str) -> Plugin:
        if self._pid != os.getpid():  # plain host memory: a forked child opens its own
            self._core.clear()
            self._pid = os.getpid()
        if name not in self._core:
            make: dict[str, Callable[[], Backend]] = {"reference": ReferenceBackend, "sim": self._new_sim}
            hooks = simulated if name == "sim" else None
            found = Found(name, CORE, CORE_VERSION, "", "")
            self._core[name] = Plugin(found, make=make[name], device_class="", module=hooks)
        return self._core[name]

    def _new_sim(self) -> SimBackend:
        return SimBackend(self._sim_shape or Shape.parse(setting("JACKFIELD_SIM") or ""))

    def status(self) -> list[BackendStatus]:
        """Every backend, the broken ones too; runs no line of any plugin."""
        return [p.status for p in self.plugins()]

    def refresh(self) -> None:
        """Forget what was found and opened; the next question looks again. Devices in use live on with their owners."""
        with self._lock:
            self._plugins, self._stamp, self._is_kept_good = [], None, False
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
        """Not under the registry's lock: one that hangs holds up who needs it, and nobody else."""
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
        """Child processes meet all builds that nobody knows yet, side by side. again: whatever is known.

        Never one that may not load: a child has all rights of the process, too.
        """
        wishes = self._wishes()
        waiting = [p for p in self.plugins() if p.found.distribution is not None and p.is_pending]
        if len(waiting) > 1 or again:
            waiting = [p for p in waiting if p.still_trusted(wishes)]
        if len(waiting) > 1 or (waiting and again):
            from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 (only where there are several)

            with ThreadPoolExecutor(min(8, len(waiting))) as pool:
                list(pool.map(lambda plugin: plugin.rehearse(again=again), waiting))

    def fresh(self) -> None:
        """Forget what was found and opened, and what is known of every installed build; try those that may load."""
        self.refresh()
        forget_kept()
        for plugin in self.plugins():
            plugin.forget()
        self._rehearse(again=True)

    def failed(self, opened: OpenDevice, doing: str, cause: BaseException, *, told: bool) -> None:
        """A device raised while a plan was made; doing: what was asked of it. Its backend is not used any more.

        told: one line in the log, the first time; else whoever named it hears it anyway.
        """
        plugin = self._of(opened)
        if plugin is None:  # found anew since: what that one does is not known yet
            if told:
                log.warning("%s is left out: %s raised %s", opened.name, doing, said(cause))
            return
        error = plugin.failed(opened, doing, cause)
        if told:
            self._tell(plugin, error)

    def works(self, opened: OpenDevice) -> None:
        """A plan was made on it."""
        if (plugin := self._of(opened)) is not None:
            plugin.works()

    def note(self, opened: OpenDevice, text: str) -> None:
        """For its status."""
        if (plugin := self._of(opened)) is not None:
            plugin.note(text)

    def _of(self, opened: OpenDevice) -> Plugin | None:
        return next((p for p in self.plugins() if p.backend is opened.backend), None)

    def _tell(self, plugin: Plugin, error: Error) -> None:
        code = getattr(getattr(error, "status", plugin.status), "code", "")
        key = (plugin.found.name, plugin.found.dist, code)
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
        if all(d.backend_name == "reference" for d in chosen) and ("", "", "slow") not in self._told:
            self._told.add(("", "", "slow"))
            log.warning(
                "no backend can be used, so everything runs on the numpy reference, which is slow; "
                "`jackfield doctor` says what is installed and why it is not used"
            )

    def _of_class(self, device_class: str) -> list[Plugin]:
        listed = [p for p in self.plugins() if device_class in p.classes and p.found.dist != CORE]
        return sorted(listed, key=lambda p: (-p.priority, p.found.name))

    def open_backend(self, name: str, *, hardware_needed: bool = True) -> Backend:
        """The backend of that name, opened. Raises its typed error, or DeviceNameError when there is none.

        hardware_needed: False for one that is only asked what it takes, for which it needs no device.
        """
        plugins = [p for p in self.plugins() if p.found.name == name]
        if not plugins:
            raise no_such_kind(name, Term(name), sorted({p.found.name for p in self.plugins()}))
        plugin = owner_of(plugins)
        try:
            self._open(plugin, named=True)
        except Unavailable:
            if hardware_needed or plugin.backend is None:
                raise
        assert plugin.backend is not None
        return plugin.backend

    def ask(self, kind: str) -> tuple[Backend | None, list[Target]]:
        """Who answers for a kind, and for which targets: those it names, which need no hardware, else its devices'.

        Raises nothing of the backend's own.
        """
        offering = [p for p in self.plugins() if p.offers(kind)]
        if not offering:
            return None, []
        plugin = owner_of(offering)
        with suppress(BackendError, DeviceError):
            self._open(plugin, named=True)
        if plugin.backend is None:
            return None, []
        named = plugin.targets() or [opened.target for opened in plugin.devices]
        return plugin.backend, list({(t.kind, t.arch): t for t in named if t.kind == kind}.values())

    # Choosing

    def fallbacks(self) -> tuple[OpenDevice, ...]:
        """What may take over: all devices of class cpu by priority, then the reference. Never a simulated one."""
        host = [d for d in self._usable(self._of_class(HOST_CLASS)) if d.device_class == HOST_CLASS]
        return (*host, *self._open(self._own("reference"), named=True))

    def _auto(self, notes: list[str]) -> tuple[OpenDevice, ...]:
        chosen: list[OpenDevice] = []
        self._rehearse()
        for device_class in ACCELERATORS:
            found = [d for d in self._usable(self._of_class(device_class)) if d.device_class == device_class]
            chosen += sorted(found, key=lambda d: INTEGRATED in d.target.features)
        return (*self._each_card_once(chosen, notes), *self.fallbacks())

    def _each_card_once(self, found: Sequence[OpenDevice], notes: list[str]) -> list[OpenDevice]:
        """Of several backends that offer one card the first; the others are told once, and each time in the notes."""
        kept: list[OpenDevice] = []
        for device in found:
            twin = next((other for other in kept if same_card(other, device)), None)
            if twin is None:
                kept.append(device)
                continue
            notes.append(f"{device.name} is not used: it is the card {device.card}, as {twin.name} is")
            if (key := ("card", twin.name, device.name)) not in self._told:
                self._told.add(key)
                log.info("%s", notes[-1])
        return kept

    def select(self, selection: str | None, *, partly: bool = False) -> Selection:
        """The devices a string names. Raises DeviceNameError, or the typed error of a backend that can't be used.

        partly: of a set, devices that can't be had are left out, as long as one is left.
        """
        text = selection if selection is not None else setting("JACKFIELD_DEVICE") or "auto"
        names = parse(text)
        reasons: list[Error] = []
        notes: list[str] = []
        for terms in names.sets:
            if terms[0].is_auto:
                chosen, named = self._auto(notes), False
                self._tell_slow(chosen)
            else:
                missing: list[Error] | None = [] if partly else None
                try:
                    chosen, named = self._together(text, terms, notes, missing), True
                except (DeviceNameError, BackendError, DeviceError) as e:
                    reasons.append(e)
                    continue
                reasons += missing or ()
            for reason in reasons:
                notes.append(f"passed over in {text!r}: {str(reason).splitlines()[0]}")
                log.warning("%s", notes[-1])
            return Selection(chosen, str(names), named, tuple(notes))
        if len(reasons) == 1:
            raise reasons[0]
        cls = DeviceNameError if all(isinstance(r, DeviceNameError) for r in reasons) else Unavailable
        error = cls(f"{text!r}: no set can be had\n" + "\n".join(f"- {r}" for r in reasons))
        if isinstance(error, DeviceNameError):
            error.text = text
        raise error from reasons[0]

    def _together(
        self, text: str, terms: Sequence[Term], notes: list[str], missing: list[Error] | None
    ) -> tuple[OpenDevice, ...]:
        """The devices of one set. missing: takes the errors of those that can't be had; None: they are raised."""
        chosen: dict[str, OpenDevice] = {}
        for term in terms:
            try:
                found = self._named(text, term, notes)
            except (DeviceNameError, BackendError, DeviceError) as e:
                if missing is None:
                    raise
                missing.append(e)
                if term is terms[-1] and not chosen:  # nothing is left of it
                    raise missing[0] from None
                continue
            for device in found:
                if device.name in chosen:
                    raise wrong(text, term.column, f"{device.name} stands twice in one set")
                if twin := next((o for o in chosen.values() if same_card(o, device)), None):
                    both = f"{twin.name} and {device.name} are both the card {device.card}"
                    raise wrong(text, term.column, f"{both}; choose one of them")
                chosen[device.name] = device
        return tuple(chosen.values())

    def _named(self, text: str, term: Term, notes: list[str]) -> tuple[OpenDevice, ...]:
        """The devices that a term means. A kind wins over a class of the same word."""
        plugins = self._owned(text, term)
        offering = [p for p in plugins if p.offers(term.kind)]
        if offering:
            found = self._open(owner_of(offering, term.owner), named=True)
            devices = [d for d in found if term_of(d.name).kind == term.kind]
        elif term.kind in CLASSES and any(term.kind in p.classes for p in plugins):
            return self._of_class_named(text, term, plugins, notes)
        else:
            kinds = sorted({k.kind for p in plugins for k in p.kinds})
            raise no_such_kind(text, term, kinds, wheel_hint(term.kind), hardware.others(kinds))
        matching = [d for d in devices if matches(term, d)]
        if term.id and len(cards := {card_of(d) for d in matching}) > 1:
            raise wrong(text, term.column, f"{term.id} fits {len(cards)} cards: {', '.join(sorted(cards))}")
        fitting = [d for d in matching if self._fits(term, d)]
        if not matching:
            raise wrong(text, term.column, missing(term, devices))
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

    def _of_class_named(
        self, text: str, term: Term, plugins: Sequence[Plugin], notes: list[str]
    ) -> tuple[OpenDevice, ...]:
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
        return tuple(self._each_card_once(fitting, notes) if term.every else fitting[:1])

    def _fits(self, term: Term, opened: OpenDevice) -> bool:
        """Whether all conditions in brackets hold. No simulated device is reached by one."""
        return fits(term, self._info(opened))

    def _unfit(self, term: Term, devices: Sequence[OpenDevice]) -> str:
        return unfit(term, [self._info(d) for d in devices])

    # Telling

    def devices(self) -> list[DeviceInfo]:
        """All devices that can be used, in the order `auto` takes them; then the simulated ones."""
        listed = list(self._auto([]))
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
        return info_of(opened, vendor)


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
failed = _registry.failed
works = _registry.works
note = _registry.note


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


def claimed(kind: str) -> str:
    """The claims file of the wheel that offers a kind, as it lies beside its manifest; "" without one. Runs nothing."""
    offering = [p for p in _registry.plugins() if p.offers(kind)]
    return owner_of(offering).claims() if offering else ""


def findings(*, deep: bool = False) -> list[tuple[str, Finding]]:
    """What opened plugins add to doctor: (backend, finding)."""
    return [(p.found.name, f) for p in _registry.plugins() for f in p.findings(deep=deep)]


def seen() -> list[tuple[str, Seen]]:
    """Cards that opened plugins see without a driver: (backend, card)."""
    return [(p.found.name, s) for p in _registry.plugins() for s in p.seen()]
