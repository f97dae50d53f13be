"""One plugin from its entry point to open devices: the only place where a plugin's code is run and isolated.

Each stage ends in a status. What a plugin raises, SystemExit too, becomes a record with its traceback; what it prints
on stdout is kept from the program's own output.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pluggy

from . import hookspecs
from .backend import Backend, Device, Kernel, Memory, Target
from .discovery import (
    CORE_VERSION,
    CORE_WINDOW,
    Found,
    agreed_contract,
    code_files,
    place_stop,
    request_of,
    trust_stop,
)
from .errors import DeviceNameError, Error, ForkedError
from .fields import Stopped, disagrees, fields_of, is_hidden, number, open_error, order_of, table_of, term_of
from .hardware import seen_by
from .hookspecs import Finding, Seen, Span
from .manifest import DeviceKind, Version, window_text
from .names import near
from .opened import OpenDevice
from .prints import heard
from .probe import (
    ALWAYS,
    NEVER,
    Moment,
    Proof,
    Verdict,
    cache_folder,
    deadline,
    gil_is_kept_off,
    gil_is_on,
    key_of,
    mode,
    rehearsed,
)
from .stages import BackendStatus, Stage, State, Stop, error_of, said, words_of
from .trust import Wishes

__all__ = ["Plugin", "term_of"]

log = logging.getLogger("jackfield")

_PREFIX = "jackfield_"  # of every hook
PROBE_S = 20.0  # for a backend without a manifest
PATIENCE_S = 5.0  # of a user who is told nothing
LENIENT = ("manifest-missing", "duplicate", "gil")  # codes with which a backend loads all the same when it is named
T = TypeVar("T")


class Plugin:
    """One backend and how far it came.

    make: for backends without a wheel, what gives the Backend; None: import the entry point. module: their hooks.
    told: called with each stage that runs the plugin's code, before it does.
    """

    def __init__(
        self,
        found: Found,
        *,
        make: Callable[[], Backend] | None = None,
        device_class: str = "accel",
        module: object = None,
        told: Callable[[Stage], object] | None = None,
    ) -> None:
        self.found = found
        self.make, self.module = make, module
        self.told = told or _nobody
        self.proof: Proof | None = None
        self.backend: Backend | None = None
        self.devices: tuple[OpenDevice, ...] = ()
        self.kinds = found.manifest.kinds if found.manifest else (DeviceKind(found.name, device_class),)
        self.priority = found.manifest.priority if found.manifest else 50
        self.pid = 0
        self.cause: BaseException | None = None
        self.spent = 0.0
        self.hooks: pluggy.PluginManager | None = None
        start = Stop("trust" if found.distribution is not None else "hook", "pending", "", "")
        self.status = (found.stop or start).on(_blank(found))
        self._lock = threading.RLock()  # held by the thread that opens it
        self._is_opening = False
        self._has_failed = False  # after it was open; see `failed`

    @property
    def is_pending(self) -> bool:
        return self.status.state == "pending"

    @property
    def classes(self) -> frozenset[str]:
        return frozenset(k.device_class for k in self.kinds if k.device_class)

    def offers(self, kind: str) -> bool:
        return any(k.kind == kind for k in self.kinds)

    def open(self, *, named: bool, wishes: Wishes) -> tuple[OpenDevice, ...]:
        """Its devices. Raises the typed error of the stage it stopped at; ForkedError in a child of the opener.

        named: the user asked for this very backend, which loads one that has no manifest, too.
        """
        if not self._lock.acquire(timeout=2 * self.timeout_s):  # another thread rehearses and opens it
            error = f"another thread has been opening it for longer than {2 * self.timeout_s:g} s"
            hint = "JACKFIELD_PROBE_TIMEOUT=60 waits longer"
            raise error_of(
                Stop("probe", "hung", "hung", error, hint).on(self.status)
            )  # its own status is that thread's
        try:
            return self._open(named=named, wishes=wishes)
        finally:
            self._lock.release()

    def _open(self, *, named: bool, wishes: Wishes) -> tuple[OpenDevice, ...]:
        if self._is_opening:  # its own code asks for devices
            error = "it asks for its own devices while they are being opened"
            raise error_of(Stop("open", "failed", "open-error", error).on(self.status))
        if named:
            self.works()  # who names it has it tried again
        if self.status.state == "ok":
            if self.pid != os.getpid():
                raise ForkedError(
                    f"{self.found.name} was opened by process {self.pid}, this is its child; "
                    "start workers by spawn, or call jf.refresh() here"
                )
            return self.devices
        lenient = named and self.status.code in LENIENT
        if self.is_pending or lenient:
            self._is_opening = True
            try:
                self._run(wishes, named=named)
            finally:
                self._is_opening = False
        return self._outcome()

    def only_import(self) -> None:
        """Import its module and no more. Raises: ImportFailed."""
        try:
            self._imported()
        except Stopped as e:
            raise error_of(e.stop.on(self.status, e.cause)) from e.cause

    def _outcome(self) -> tuple[OpenDevice, ...]:
        if self.status.state != "ok":
            raise error_of(self.status, self.cause) from self.cause
        return self.devices

    def _run(self, wishes: Wishes, *, named: bool) -> None:
        self.spent = 0.0
        try:
            self._cleared(wishes, named=named)
            with self.watched("open"):
                backend = self._made()
                self._call(_field_error, lambda: self._agree(backend))
                self.backend = backend  # answers for its targets, also where there is no device
                self.devices = self._opened(backend)
            self.pid = os.getpid()
            self.status = Stop("open", "ok", "", "").on(self.status)
            self.status = replace(self.status, error=None)
        except Stopped as e:
            self.cause = e.cause
            self.status = e.stop.on(self.status, e.cause)
            if e.stop.code == "no-device" and not e.stop.hint:
                self.status = replace(self.status, hint=self._seen_without_driver())
        self.status = replace(self.status, where="here" if self.spent else "static", seconds=self.spent)
        told_by_child = self.status.stage == "probe" or self.status.code == "gil"
        if told_by_child and self.proof is not None and (found := self.proof.verdict):
            self.status = replace(
                self.status, where=found.where, seconds=found.seconds, traceback=found.traceback or None
            )

    def _seen_without_driver(self) -> str | None:
        """Where the cards of the manifest are in the machine although the backend has no device."""
        patterns = self.found.manifest.hardware if self.found.manifest else ()
        found = seen_by(patterns) if patterns else []
        listed = ", ".join(f"{card.model} at {card.address or card.bus}" for card in found)
        return f"card {listed} seen, so its driver is missing or not for this user" if found else None

    def _cleared(self, wishes: Wishes, *, named: bool) -> None:
        """Nothing that is known speaks against running its code in this process."""
        if self.make is not None:
            return
        # Discovery has judged those that are pending; a file of theirs may have changed since.
        if (not self.is_pending or wishes.pins is not None) and (stop := trust_stop(self.found, wishes)):
            raise Stopped(stop)
        self.rehearse()
        # The program may have gone to another folder since, from which its imports then come.
        if self.found.distribution is not None and (stop := place_stop(self.found)):
            raise Stopped(stop)
        found = self.proof.verdict if self.proof is not None else None
        if found is not None and found.state in ("crashed", "hung"):
            raise Stopped(self._broken(found))
        if found is not None and found.gil and not (named or gil_is_on() or gil_is_kept_off()):
            error = f"importing {self.found.name} would turn the GIL on, which all threads then wait for"
            raise Stopped(Stop("import", "refused", "gil", error, "name it to accept that"))

    @contextmanager
    def watched(self, moment: Moment) -> Iterator[None]:
        """Around what may take long or end the process. Who takes longer than the deadline is named: nothing can end
        it, but the user can. A process that dies in the first open leaves a marker.
        """
        timeout_s = self.timeout_s
        words = "%s: %s has taken more than %g s so far"
        late = threading.Timer(timeout_s, lambda: log.warning(words, self.found.name, moment, timeout_s))
        late.daemon = True
        if self.found.distribution is not None:
            late.start()
        try:
            # Around a compile the plan that is made has its own marker; see `probe.Guarded`.
            with self.proof.first(moment) if self.proof is not None and moment == "open" else nullcontext():
                yield
        finally:
            late.cancel()

    @property
    def timeout_s(self) -> float:
        """Seconds that a rehearsal may take, and an open that nobody is warned of."""
        return deadline(self.found.manifest.probe_timeout_s if self.found.manifest else PROBE_S)

    def _made(self) -> Backend:
        if self.make is None:
            return self._hooked(self._imported())
        if self.module is not None:
            self.hooks = pluggy.PluginManager("jackfield")
            self.hooks.add_hookspecs(hookspecs)
            self.hooks.register(self.module)
        return self._call(open_error, self.make)

    def still_trusted(self, wishes: Wishes) -> bool:
        """Whether its files are still those that were pinned; else its status says so. Nothing of it runs."""
        stop = trust_stop(self.found, wishes) if wishes.pins is not None else None
        if stop is not None:
            self.status = stop.on(self.status)
        return stop is None

    def rehearse(self, *, again: bool = False) -> None:
        """Have a child process meet a build that nobody knows yet; once an object. again: whatever is known.

        Nothing where another thread is about to open it, which begins with this.
        """
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self.found.distribution is not None and mode() != NEVER and (self.proof is None or again):
                self._rehearse(again=again)
        finally:
            self._lock.release()

    def _rehearse(self, *, again: bool) -> None:
        try:
            proof, request = self._proof(), request_of(self.found)
        except Exception as e:  # noqa: BLE001 (its files can't be told apart from others: it is tried each time)
            self._note(f"nothing is remembered of it: {said(e)}")
            proof, request = Proof(None, ""), request_of(self.found)
        if again:
            proof.forget()

        def ask(deep: bool) -> Verdict | None:  # noqa: FBT001 (called by the proof alone)
            with self._waited_for():
                return rehearsed({**request, "depth": "alloc"} if deep else request, self.timeout_s)

        verdict = proof.found(ask, again=mode() == ALWAYS)
        self.proof = proof
        if verdict is None:
            self._note("no child process could be started to try it first")

    @contextmanager
    def _waited_for(self) -> Iterator[None]:
        """Who waits for a rehearsal is told so after a while: most take less than a second."""
        words = "%s: this build is new here, so a process of its own tries it first, for at most %g s"
        late = threading.Timer(PATIENCE_S, lambda: log.warning(words, self.found.name, self.timeout_s))
        late.daemon = True
        late.start()
        try:
            yield
        finally:
            late.cancel()

    def _proof(self) -> Proof:
        watch = self.found.manifest.watch if self.found.manifest else ()
        files = code_files(self.found)
        return Proof(cache_folder(), key_of(self.found.name, self.found.build, CORE_VERSION, files, watch))

    def forget(self) -> None:
        """What is kept of its build; nothing of it runs."""
        if self.found.distribution is not None:
            with contextlib.suppress(Exception):  # its files can't be read: then nothing is kept under them
                self._proof().forget()

    def _broken(self, verdict: Verdict) -> Stop:
        state: State = "hung" if verdict.state == "hung" else "crashed"
        hint = self._vendor()
        if state == "hung":
            hint += "; JACKFIELD_PROBE_TIMEOUT=60 waits longer"
        return Stop("probe", state, verdict.code, verdict.error, f"{hint}; `jackfield doctor --fresh` tries again")

    def failed(self, opened: OpenDevice, doing: str, cause: BaseException) -> Error:
        """An open device of it has raised while a plan was made: it is not used any more, unless it is named.

        doing: what was asked of it, in words. Returns: the error that a user is told.
        """
        text = f"{opened.name}: {type(cause).__name__} at {doing}: {words_of(cause)}".removesuffix(": ")
        why = free_of(opened.memory) if isinstance(cause, MemoryError) else self._vendor()
        hint = f"{why}; jf.refresh() or its name tries it again"
        self.cause, self._has_failed = cause, True
        self.status = replace(Stop("open", "failed", "open-error", text, hint).on(self.status, cause), where="here")
        return error_of(self.status)

    def works(self) -> None:
        """What `failed` said of it is no longer so."""
        if self._has_failed:
            self._has_failed, self.cause = False, None
            self.status = replace(Stop("open", "ok", "", "").on(self.status), error=None)

    def note(self, text: str) -> None:
        """A note for its status, once."""
        if text not in self.status.notes:
            self._note(text)

    def _vendor(self) -> str:
        issues = self.found.manifest.issues if self.found.manifest else ""
        return f"report it to {issues}" if issues else "report it to its vendor"

    def _call(self, stop: Callable[[BaseException], Stop], call: Callable[[], T]) -> T:
        """Run plugin code; whatever it raises becomes the stop of its stage."""
        began = time.perf_counter()
        printed = ""
        try:
            with heard() as room:
                try:
                    return call()
                finally:
                    printed = room.getvalue()
        except (KeyboardInterrupt, Stopped):
            raise
        except BaseException as e:  # a plugin may raise anything, SystemExit too; the others must go on
            raise Stopped(stop(e), e) from e
        finally:
            self.spent += time.perf_counter() - began
            if printed:
                self._note(f"printed {len(printed)} characters on stdout: {printed.strip()[:60]!r}")

    def _note(self, text: str) -> None:
        self.status = replace(self.status, notes=(*self.status.notes, text))

    def _imported(self) -> Any:
        module, _, attribute = self.found.value.partition(":")
        words = attribute.partition("[")[0].strip()

        def load() -> Any:
            loaded: Any = importlib.import_module(module.strip())
            for word in filter(None, words.split(".")):
                loaded = getattr(loaded, word)
            return loaded

        self.told("import")
        had_gil = gil_is_on()
        loaded = self._call(self._import_stop, load)
        if not had_gil and gil_is_on():
            self._note("its import has turned the GIL on")
        return loaded

    def _import_stop(self, e: BaseException) -> Stop:
        text = said(e)
        supplier = self.found.manifest.supplier(text) if self.found.manifest else ""
        return Stop("import", "failed", "import-error", text, supplier)

    def _hooked(self, module: Any) -> Backend:
        """Its hooks, checked in a manager of its own, so that half a registration can't stay anywhere."""
        self.told("hook")
        manager = pluggy.PluginManager("jackfield")
        manager.add_hookspecs(hookspecs)
        self._call(
            lambda e: Stop("hook", "refused", "hook-signature", words_of(e), _arguments(words_of(e))),
            lambda: manager.register(module),
        )
        for name in _unknown_hooks(manager):
            if self.found.manifest is None or self.found.manifest.contract[1] <= CORE_WINDOW[1]:
                like = near(name.removeprefix(_PREFIX), [known.removeprefix(_PREFIX) for known in _known_hooks()])
                hint = f"did you mean {_PREFIX}{like}?" if like else f"known hooks: {', '.join(_known_hooks())}"
                raise Stopped(Stop("hook", "refused", "hook-unknown", f"unknown hook {name}", hint))
            self._note(f"hook {name} is of a later contract and is not called")
        ask = manager.hook.jackfield_backend
        backend: object = self._call(_no_backend, ask)
        if not isinstance(backend, Backend):
            gave = "None" if backend is None else f"a {type(backend).__name__}"
            raise Stopped(Stop("hook", "failed", "no-backend", f"jackfield_backend() gave {gave}, must give a Backend"))
        self.hooks = manager
        return backend

    def _agree(self, backend: Backend) -> None:
        """Name and contract of the object against the manifest and against this core."""
        name, manifest = self.found.name, self.found.manifest
        given, api = getattr(backend, "name", None), getattr(backend, "api", None)
        if given != name:
            raise disagrees(f"installed as {name!r}, the object's name is {given!r}")
        if not (isinstance(api, tuple) and len(api) == 2 and all(type(n) is int for n in api)):
            raise disagrees(f"api is {api!r}, must be a pair of whole numbers such as (0, 1)")
        version: Version = (api[0], api[1])
        if manifest is not None and version != manifest.contract[1]:
            promised = window_text((manifest.contract[1],) * 2)
            raise disagrees(f"manifest says api {promised}, object says {window_text((version, version))}")
        agreed = agreed_contract(self.found, manifest.contract if manifest else (version, version))
        if isinstance(agreed, Stop):
            raise Stopped(agreed)
        backend.spoken = agreed

    def _opened(self, backend: Backend) -> tuple[OpenDevice, ...]:
        """All that is asked of its objects is asked here, where whatever it raises is its own stop."""
        self.told("open")
        kernels = self._call(open_error, lambda: table_of(backend.kernels()))
        devices = self._call(open_error, lambda: tuple(backend.devices()))
        if not devices:
            raise Stopped(Stop("open", "absent", "no-device", "devices() gave none"))
        opened = self._call(open_error, lambda: [self._one(backend, device, kernels) for device in devices])
        opened = [one for one in opened if not is_hidden(one)]
        if not opened:
            raise Stopped(Stop("open", "absent", "no-device", "JACKFIELD_HIDE hides all its cards"))
        names = [d.name for d in opened]
        if twice := {n for n in names if names.count(n) > 1}:
            raise disagrees(f"two devices are called {min(twice)}")
        self._call(open_error, lambda: number(opened))
        return tuple(sorted(opened, key=lambda d: order_of(d.name)))

    def _one(self, backend: Backend, device: object, kernels: Mapping[str, Kernel]) -> OpenDevice:
        if not isinstance(device, Device):
            raise disagrees(f"devices() holds a {type(device).__name__}, must hold Devices")
        fields = fields_of(device)
        name, alignment = fields["name"], fields["alignment"]
        if alignment < 1 or alignment & (alignment - 1):
            raise disagrees(f"{name}: alignment is {alignment}, must be a power of two")
        try:
            term = term_of(name)
        except DeviceNameError as e:
            raise disagrees(f"a device is called {name!r}: {str(e).splitlines()[0]}") from None
        known = self.found.manifest is not None
        for kind in self.kinds:
            if kind.kind == term.kind and (not known or kind.variant == term.variant):
                simulated = kind.simulated or bool(term.variant)
                device_class = "" if simulated else kind.device_class
                return OpenDevice(
                    device,
                    backend,
                    kernels,
                    device_class,
                    simulated,
                    self.proof,
                    partial(self.spans, device),
                    self.watched,
                    known={**fields, "backend": self.found.name},
                )
        kinds = ", ".join(map(str, self.kinds))
        raise disagrees(f"a device is called {name!r}; its kinds are {kinds}")

    def targets(self) -> list[Target]:
        """Those its backend names; none, with a note, where it raises or names something else."""
        backend = self.backend
        if backend is None:
            return []
        try:
            named: list[object] = self._call(
                lambda e: Stop("open", "failed", "open-error", said(e)), lambda: list(backend.targets())
            )
        except Stopped as e:
            self._note(f"targets() raised {e.stop.error}")
            return []
        if odd := next((one for one in named if not isinstance(one, Target)), None):
            self._note(f"targets() holds a {type(odd).__name__}, must hold Targets")
        return [one for one in named if isinstance(one, Target)]

    def findings(self, *, deep: bool) -> list[Finding]:
        """Its own lines for doctor; a hook that fails gives one line that says so."""
        if self.hooks is None:
            return []
        hook = self.hooks.hook.jackfield_diagnose
        return self._asked("jackfield_diagnose", lambda: hook(backend=self.backend, deep=deep), Finding)

    def claims(self) -> str:
        """Text of the file that its manifest names, in which it says what it takes; "" without one. Runs nothing."""
        name, dist = self.found.manifest.claims if self.found.manifest else "", self.found.distribution
        texts = (dist.read_text(place) for place in (name, f"extra_metadata/{name}")) if name and dist else ()
        return next((text for text in texts if text), "")

    def seen(self) -> list[Seen]:
        """Cards it sees without a driver."""
        if self.hooks is None:
            return []
        return self._asked("jackfield_hardware", self.hooks.hook.jackfield_hardware, Seen)

    def spans(self, device: Device) -> list[Span]:
        """What the device did of late, by its own clock."""
        if self.hooks is None:
            return []
        hook = self.hooks.hook.jackfield_spans
        return self._asked("jackfield_spans", lambda: hook(device=device), Span)

    def _asked(self, hook: str, call: Callable[[], Sequence[Any]], cls: type[T]) -> list[T]:
        try:
            answers = self._call(lambda e: Stop("hook", "failed", "hook-raised", f"{hook}: {said(e)}"), call)
        except Stopped as e:
            self._note(e.stop.error)
            return []
        found = [one for answer in answers for one in (answer if isinstance(answer, list) else [answer])]
        if (odd := next((one for one in found if not isinstance(one, cls)), found)) is not found:
            self._note(f"{hook} gives a {type(odd).__name__}, must give a list of {cls.__name__}s")
        return [one for one in found if isinstance(one, cls)]


def _blank(found: Found) -> BackendStatus:
    """The record before the first stage."""
    return BackendStatus(
        name=found.name,
        dist=found.dist,
        version=found.version,
        build=found.build,
        stage="manifest",
        state="pending",
        code="",
        error=None,
        hint=None,
        traceback=None,
        where="static",
        seconds=0.0,
        notes=found.notes,
    )


def _no_backend(e: BaseException) -> Stop:
    return Stop("hook", "failed", "no-backend", f"jackfield_backend() raised {said(e)}")


def _field_error(e: BaseException) -> Stop:
    """Of a backend's name, version and window."""
    return disagrees(f"its name, api or spoken raised {said(e)}").stop


def free_of(memory: Memory) -> str:
    """Such as "11.0 MiB of 16.0 GiB free"."""
    if not memory.total:
        return "it does not tell how much memory it has"
    free, total = (
        f"{n / 2**30:.1f} GiB" if n >= 2**30 else f"{n / 2**20:.1f} MiB" for n in (memory.free, memory.total)
    )
    return f"{free} of {total} free"


def _nobody(stage: Stage) -> None:
    """Nobody follows the stages."""


def _known_hooks() -> list[str]:
    return [name for name in hookspecs.__all__ if name.startswith(_PREFIX)]


def _unknown_hooks(manager: pluggy.PluginManager) -> Iterator[str]:
    """Hooks that were registered and have no spec: what pluggy's check_pending refuses, one by one."""
    known = set(_known_hooks())
    for name, hook in sorted(vars(manager.hook).items()):
        if name not in known and not name.startswith("_") and hook.get_hookimpls():
            yield name


def _arguments(error: str) -> str:
    """The right arguments of the hook that a text of pluggy names."""
    for name in _known_hooks():
        if name in error:
            arguments = getattr(hookspecs, name).__code__.co_varnames[: getattr(hookspecs, name).__code__.co_argcount]
            return f"arguments of {name}: {', '.join(arguments) or 'none'}"
    return ""
