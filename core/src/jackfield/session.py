"""Sessions: plans that share constants, states and one compute arena a device; and `compile`, a Session of one plan."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from numbers import Integral
from types import TracebackType
from typing import Any, Self, cast

import numpy as np

from . import registry
from .attempt import Attempt, Broken
from .blueprint import Blueprint, Request, draw
from .checks import GUARD
from .containment import contained, unblame
from .errors import Busy, Error, PlanError
from .graph import Tensor
from .heap import give_back, no_collection
from .hosting import HostType, array_of, bytes_of, fresh
from .memory import reserved
from .opened import OpenDevice
from .placement import Policy
from .plan import Plan
from .prints import aloud
from .store import StateMemory, Store, check_room, identity
from .telling import tell
from .variables import setting

__all__ = ["Session", "States", "compile"]

log = logging.getLogger("jackfield")

POLICIES = ("strict", "prefer", "auto")
CHECKS = ("memory", "nan", "promises")

Output = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
PinList = Mapping[Any, str] | Sequence[tuple[Tensor | str, str]]


class State:
    """A state of a Session, by its name. Reading and writing it waits for nothing and raises Busy during a call."""

    def __init__(self, session: Session, memory: StateMemory) -> None:
        self._session, self._memory = session, memory
        self._type = HostType(memory.spec)

    @property
    def device(self) -> str:
        return self._memory.on

    def read(self) -> np.ndarray[Any, Any]:
        """The value as a fresh array; a block dtype as its bytes, u8 (..., bytes of a row)."""
        array, data = fresh(self._type)

        def read() -> None:
            if self._type.nbytes:
                with contained(self.device, "read"):
                    self._memory.device.read(self._memory.buffer, self._memory.offset, data)

        self._quiet(read)
        return array

    def write(self, value: Any) -> None:
        """A new value, of exactly the state's dtype and shape."""
        array = array_of(value, self._type, self._memory.name, "state")

        def write() -> None:
            if self._type.nbytes:
                with contained(self.device, "write"):
                    self._memory.device.write(self._memory.buffer, self._memory.offset, bytes_of(array))
            self._memory.incomplete = ""

        self._quiet(write)

    def clear(self) -> None:
        """Zeros, as at birth."""
        self._quiet(lambda: self._session._store.zero(self._memory))  # noqa: SLF001 (one class in two parts)

    def _quiet(self, work: Callable[[], None]) -> None:
        """No call of the Session, and none of a clone on this state, is under way meanwhile."""
        store, name = self._session._store, self._memory.name  # noqa: SLF001 (one class in two parts)
        store.check_usable(f"state {name!r}")
        if store.arenas.lock.locked():
            raise Busy(f"state {name!r}: a call of the Session is under way")
        with store.arenas.lock:
            store.touching(frozenset((name,)), work)

    def __repr__(self) -> str:
        return f"<state {self._memory.name!r}: {self._memory.spec} on {self.device}>"


class States(Mapping[str, State]):
    """The states of a Session by name; a state is there once a plan that uses it is compiled."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __getitem__(self, name: str) -> State:
        known = self._session._store.states  # noqa: SLF001 (one class in two parts)
        if name not in known:
            raise PlanError(f"no plan of this Session has a state {name!r}; it has: {', '.join(known) or 'none'}")
        return State(self._session, known[name])

    def __contains__(self, name: object) -> bool:
        return name in self._session._store.states  # noqa: SLF001 (one class in two parts)

    def __iter__(self) -> Iterator[str]:
        return iter(self._session._store.states)  # noqa: SLF001 (one class in two parts)

    def __len__(self) -> int:
        return len(self._session._store.states)  # noqa: SLF001 (one class in two parts)


class Session:
    """Plans that share constants, states and the compute arena. Calls of its plans are serial: Busy otherwise.

    device: a selection such as "cpu" or "cpu:0:0+cpu:0:1"; None: JACKFIELD_DEVICE, else "auto".
    policy: "strict" (a refused step is an error), "prefer" (it goes to the next device; the default for named devices)
        or "auto" (likewise, and of named devices those that can't be had are left out; the default otherwise); None:
        JACKFIELD_POLICY, else the default.
    keep_states: states survive the loss of their device; only False is known.
    Raises: DeviceNameError, Unavailable and its kin for a device that can't be had.
    """

    def __init__(
        self, device: str | None = None, *, policy: str | None = None, keep_states: bool | None = None
    ) -> None:
        if keep_states not in (None, False):
            raise PlanError(f"keep_states is {keep_states!r}; this version takes False")
        wanted = _policy(policy if policy is not None else setting("JACKFIELD_POLICY"))
        self._selection = registry.select(device, partly=wanted == "auto")
        self.policy: Policy = wanted or ("prefer" if self._selection.named else "auto")
        self._checks = _checks(setting("JACKFIELD_CHECK"))
        self._store = Store()
        self._broken = Broken()
        self._warned: set[str] = set()
        self._plans: weakref.WeakSet[Plan] = weakref.WeakSet()
        self._finalizer = weakref.finalize(self, Store.end, self._store)
        self.states = States(self)

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices that plans may use, best first; under "auto" the last one is the reference."""
        return tuple(opened.name for opened in self._broken.without(self._selection.devices))

    def compile(
        self,
        outputs: Output,
        *,
        changes: Sequence[Tensor] = (),
        pins: PinList | None = None,
        split: str | None = None,
        copies: int | None = None,
        on_lost: str | None = None,
        max_copies: int | None = None,
        meanwhile: Callable[[], object] | None = None,
    ) -> Plan:
        """A Plan of what these outputs need.

        outputs: one Tensor, or a tuple, list or dict of them; the plan returns arrays in the same form.
        changes: new values of states (results of put_rows and its kin) that no output reads: a call makes them, and
            returns nothing of them.
        pins: (tensor or regular expression, device name) pairs, or a dict; the first match wins. An expression must
            match in full the name of a constant, state or input, or the id of a node ("softmax.0", as in explain).
        split, copies, on_lost: only None, 1 and "raise" are known, which are the defaults.
        max_copies: how many copies between devices a call may take at most; None: any number.
        meanwhile: work of the caller's that other threads bring the constants beside; called once, in this thread, when
            all is planned and fits. The Session is Busy for it; what it raises ends the compile.
        Raises: PlanError, PlacementError (a step that no device takes, too many copies), OutOfMemory. Nothing of an
        earlier plan changes then, and nothing is allocated.
        """
        _only(split=(split, (None,)), copies=(copies, (None, 1)), on_lost=(on_lost, (None, "raise")))
        most = _most(max_copies)
        self._store.check_usable("compile")
        tensors, keys = _listed(outputs)
        lock = self._store.arenas.lock
        if lock.locked():
            raise Busy("compile: a call of this Session is under way")
        beside = [] if meanwhile is None else [self._checked(meanwhile)]
        asked = _pins(pins)
        attempt = self._attempt(asked)

        def make() -> tuple[Blueprint, Plan]:
            with no_collection():
                drawn = self._draw(attempt, tensors, asked, changes, most)
            return drawn, self._built(drawn, keys, beside)

        with lock:
            drawn, plan = attempt.run(make)
            attempt.used(drawn)
        self._plans.add(plan)
        tell(log, drawn, self._warned)
        drawn.settle()
        give_back()
        return plan

    def _checked(self, meanwhile: Callable[[], object]) -> Callable[[], object]:
        """In a child that it forked, the threads that bring constants are not there: nobody may wait for them."""

        def run() -> None:
            try:
                with aloud():
                    meanwhile()
            except Error as e:
                unblame(e)  # it is the caller's, whatever he did
                raise
            self._store.check_usable("compile")

        return run

    def _attempt(self, pins: Sequence[tuple[Tensor | str, str]]) -> Attempt:
        names = [name for _, name in pins]
        return Attempt(self._selection, self.policy, lambda: self._fallbacks, names, self._broken)

    def _built(self, drawn: Blueprint, keys: tuple[str, ...] | int | None, beside: list[Callable[[], object]]) -> Plan:
        """A plan in memory. Where that fails, all is as it was before. beside: what is called meanwhile, taken out."""
        earlier: list[Callable[[], None]] = []
        with self._store.tried():
            try:
                self._fill(drawn, beside, earlier)
                with no_collection():
                    return Plan(drawn, self._store, self._store.arenas, self, keys)
            except BaseException:
                for bring_back in earlier:
                    bring_back()
                raise

    def draw(
        self,
        outputs: Output,
        *,
        changes: Sequence[Tensor] = (),
        pins: PinList | None = None,
        max_copies: int | None = None,
    ) -> Blueprint:
        """All that compile would decide about these outputs; nothing is allocated."""
        self._store.check_usable("draw")
        tensors, asked, most = _listed(outputs)[0], _pins(pins), _most(max_copies)
        attempt = self._attempt(asked)
        return attempt.run(lambda: self._draw(attempt, tensors, asked, changes, most))

    @cached_property
    def _fallbacks(self) -> tuple[OpenDevice, ...]:
        return registry.fallbacks()

    def _draw(
        self,
        attempt: Attempt,
        tensors: Sequence[Tensor],
        pins: tuple[tuple[Tensor | str, str], ...],
        changes: Sequence[Tensor],
        max_copies: int | None,
    ) -> Blueprint:
        request = Request(
            devices=attempt.devices,
            fallbacks=attempt.fallbacks,
            selection=self._selection.text,
            named=self._selection.named,
            policy=self.policy,
            pins=pins,
            homes=self._store.homes(),
            held=self._store.held,
            identity=identity,
            memo=self._store.memo,
            guard=GUARD if "memory" in self._checks else 0,
            checks=self._checks,
            max_copies=max_copies,
            notes=attempt.notes,
        )
        drawn = draw(tensors, request, changes)
        attempt.check(drawn.panel)
        return drawn

    def _fill(self, drawn: Blueprint, beside: list[Callable[[], object]], earlier: list[Callable[[], None]]) -> None:
        """Constants, states, and an arena that is large enough; earlier plans follow the arena when it moves.

        earlier: takes what brings their bindings back.
        """
        store, panel = self._store, drawn.panel
        store.check_states(drawn.states)
        check_room({panel.devices[n]: wanted for n, wanted in _wanted(drawn, store).items()})
        store.upload(drawn.constants, panel, beside)
        for number in sorted(set(drawn.states.values())):
            store.add_states([t for t, home in drawn.states.items() if home == number], panel.device(number))
        moved = False
        for number, arena in sorted(drawn.memory.arenas.items()):
            moved |= store.arenas.grow(panel.device(number), arena.chunks)
        if moved:
            store.arenas.last = None
            for plan in list(self._plans):
                earlier.append(plan.bound())
                plan.bind()

    def close(self) -> None:
        """Free all memory; its plans can't be called any more. Twice is nothing; after an interrupt it frees the rest.

        Raises: Busy during a call, also of a clone.
        """
        if self._store.freed:
            return
        with self._store.quiet("close"):
            for plan in list(self._plans):
                plan.unbind()
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Session on {self._selection.text}: {len(self._plans)} plans, {len(self.states)} states>"


def compile(  # noqa: A001 (pinned name)
    outputs: Output,
    device: str | None = None,
    *,
    policy: str | None = None,
    changes: Sequence[Tensor] = (),
    pins: PinList | None = None,
    split: str | None = None,
    copies: int | None = None,
    on_lost: str | None = None,
    max_copies: int | None = None,
) -> Plan:
    """A Plan in a Session of its own, `plan.session`; the arguments are those of Session and Session.compile."""
    session = Session(device, policy=policy)
    return session.compile(
        outputs, changes=changes, pins=pins, split=split, copies=copies, on_lost=on_lost, max_copies=max_copies
    )


def _wanted(drawn: Blueprint, store: Store) -> dict[int, dict[str, int]]:
    """New bytes by device and class."""
    wanted: dict[int, dict[str, int]] = {}

    def add(number: int, name: str, nbytes: int) -> None:
        classes = wanted.setdefault(number, {"constants": 0, "states": 0, "compute": 0})
        classes[name] += nbytes

    seen = set()
    for c in drawn.constants:
        key = (c.value.device, c.key, c.layout)
        if key not in seen and c.layout not in store.held(drawn.panel.name(c.value.device), c.key):
            seen.add(key)
            add(c.value.device, "constants", reserved(c.nbytes, drawn.panel.devices[c.value.device].alignment))
    for tensor, number in drawn.states.items():
        if tensor.name not in store.states:
            add(number, "states", reserved(tensor.spec.nbytes, drawn.panel.devices[number].alignment))
    for number, arena in drawn.memory.arenas.items():
        add(number, "compute", max(0, arena.nbytes - store.arenas.nbytes(drawn.panel.name(number))))
    return wanted


def _listed(outputs: Output) -> tuple[list[Tensor], tuple[str, ...] | int | None]:
    if isinstance(outputs, Tensor):
        return [outputs], None
    if isinstance(outputs, Mapping):
        return list(outputs.values()), tuple(outputs)
    if isinstance(outputs, (tuple, list)):
        return list(outputs), len(outputs)
    raise PlanError(f"outputs are a {type(outputs).__name__}; give a Tensor, or a tuple or dict of Tensors")


def _pins(pins: PinList | None) -> tuple[tuple[Tensor | str, str], ...]:
    pairs = tuple((pins.items() if isinstance(pins, Mapping) else pins) or ())
    for pair in pairs:
        if not (
            isinstance(pair, tuple)
            and len(pair) == 2
            and isinstance(pair[0], (str, Tensor))
            and isinstance(pair[1], str)
        ):
            raise PlanError(f"a pin is (tensor or pattern, device name), not {pair!r}")
    return pairs


def _policy(text: str | None) -> Policy | None:
    if text is not None and text not in POLICIES:
        raise PlanError(f"policy is {text!r}, must be one of {', '.join(POLICIES)}")
    return cast("Policy | None", text)


def _most(copies: int | None) -> int | None:
    if copies is None or (isinstance(copies, Integral) and not isinstance(copies, bool) and copies >= 0):
        return copies if copies is None else int(copies)
    raise PlanError(f"max_copies is {copies!r}, must be a whole number from 0 on, or None")


def _checks(text: str | None) -> frozenset[str]:
    """The words of JACKFIELD_CHECK."""
    words = frozenset(w.strip() for w in (text or "").split(",") if w.strip())
    if unknown := sorted(words - set(CHECKS)):
        raise PlanError(f"JACKFIELD_CHECK names {unknown[0]!r}; it is a list of {', '.join(CHECKS)}")
    return words


def _only(**arguments: tuple[object, tuple[object, ...]]) -> None:
    for name, (value, known) in arguments.items():
        if value not in known:
            raise PlanError(f"{name} is {value!r}; this version takes {' or '.join(map(repr, known))}")
