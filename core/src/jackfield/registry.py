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
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from .backend import Backend, Memory
from .discovery import CORE_VERSION, Found, fingerprint, scan
from .errors import BackendError, DeviceError, DeviceNameError, Error, HookError, Unavailable
from .hookspecs import Finding, Seen
from .loading import OpenDevice, Plugin, term_of
from .manifest import Manifest
from .names import CLASSES, HOST_CLASS, Term, no_such_kind, parse, wrong
from .reference import ReferenceBackend
from .simulated import Shape, SimBackend
from .stages import BackendStatus
from .trust import Wishes
from .variables import setting, unknown

__all__ = [
    "DeviceInfo",
    "OpenDevice",
    "Registry",
    "Selection",
    "SimUse",
    "devices",
    "fallbacks",
    "findings",
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

    # Choosing

    def fallbacks(self) -> tuple[OpenDevice, ...]:
        """What may take over: all devices of class cpu by priority, then the reference. Never a simulated one."""
        host = [d for d in self._usable(self._of_class(HOST_CLASS)) if d.device_class == HOST_CLASS]
        return (*host, *self._open(self._own("reference"), named=True))

    def _auto(self) -> tuple[OpenDevice, ...]:
        chosen: list[OpenDevice] = []
        for device_class in ACCELERATORS:
            chosen += [d for d in self._usable(self._of_class(device_class)) if d.device_class == device_class]
        return (*chosen, *self.fallbacks())

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
                chosen[device.name] = device
        return tuple(chosen.values())

    def _named(self, text: str, term: Term) -> tuple[OpenDevice, ...]:
        plugins = self.plugins()
        offering = [p for p in plugins if p.offers(term.kind)]
        if not offering:
            raise no_such_kind(text, term, sorted({k.kind for p in plugins for k in p.kinds}))
        found = self._open(_owner(offering), named=True)
        devices = [d for d in found if term_of(d.name).kind == term.kind]
        matching = tuple(d for d in devices if _matches(term, d))
        if not matching:
            raise wrong(text, term.column, _missing(term, devices))
        return matching

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
            id="",
            kind=term_of(device.name).kind,
            device_class=opened.device_class,
            backend=opened.backend.name,
            card="",
            vendor=vendor,
            model="",
            arch=device.target.arch,
            driver="",
            memory=device.memory,
            flags=tuple(sorted(device.target.features)),
            simulated=opened.simulated or opened.backend.name == "sim",
            state="ok",
        )


def _owner(plugins: Sequence[Plugin]) -> Plugin:
    """Of several that offer one name, the one that was chosen at discovery; else one that says what is wrong."""
    return min(plugins, key=lambda p: (p.found.stop is not None, p.status.code == "duplicate"))


def _matches(term: Term, opened: OpenDevice) -> bool:
    """A name without a part means all parts; without an index, index 0. A star reaches no simulated device."""
    name = term_of(opened.name)
    if term.every:
        return not opened.simulated and opened.backend.name != "sim"
    if term.variant or name.variant:
        return term.variant == name.variant
    return name.index == (term.index or 0) and (term.part is None or term.part == (name.part or 0))


def _missing(term: Term, devices: Sequence[OpenDevice]) -> str:
    variants = ", ".join(sorted({v for d in devices if (v := term_of(d.name).variant)})) or "none"
    if term.variant:
        return f"index is a whole number without leading zero; variants of {term.kind}: {variants}"
    if term.every:
        return f"{term.kind} has simulated devices only, which answer to their exact name"
    plain = [d for d in devices if not term_of(d.name).variant]
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
refresh = _registry.refresh
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
