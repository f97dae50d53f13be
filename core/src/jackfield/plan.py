"""A Plan: one graph, bound to memory. All was decided before; a call only moves bytes and runs programs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from time import perf_counter
from typing import Any

import numpy as np

from .backend import Device, Program
from .binding import Binder, Input, arenas_for
from .blueprint import Blueprint
from .checks import Watch
from .containment import contained, is_foreign
from .errors import BadIndex, Busy, DeviceLost, Error, PlanError
from .hookspecs import Span
from .hosting import array_of, bytes_of
from .report import MemoryReport, Report, memory_report, report_of
from .store import Arenas, Store
from .timeline import events

__all__ = ["Plan"]

Array = np.ndarray[Any, Any]
Outputs = Array | tuple[Array, ...] | dict[str, Array]


class Plan:
    """What `compile` gives back. Call it with one array for each input, by name; it returns fresh numpy arrays.

    Calls of one Session are serial: a second one at the same time raises Busy. `clone()` gives a Plan that may run
    beside this one.
    """

    def __init__(
        self, blueprint: Blueprint, store: Store, arenas: Arenas, session: object, keys: tuple[str, ...] | int | None
    ) -> None:
        self.session = session  # holds the memory this plan stands on
        self._drawn = blueprint
        self._store, self._arenas = store, arenas
        self._keys = keys  # None: one output; a number: a tuple; names: a dict
        self._names = frozenset(blueprint.inputs)
        self._times: list[float] = []
        self._spans: dict[int, Sequence[Span]] | None = None  # of the last call, once somebody has asked
        self._lost = ""
        self._token = object()  # stands for this plan where a reference to it would keep it alive
        self.bind()

    # What it is

    @property
    def inputs(self) -> dict[str, str]:
        """Names of the inputs, and what each must be."""
        return {i.name: str(i.type) for i in self._inputs}

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices that execute something, in the order of their first run."""
        return tuple(dict.fromkeys(self._drawn.panel.name(run.device) for run in self._drawn.runs))

    def explain(self) -> Report:
        """Which device does what, and why: text when printed, `to_dict()` and `to_json()` for programs."""
        return report_of(self._drawn)

    def memory(self) -> MemoryReport:
        """Bytes by device and class."""
        return memory_report(self._drawn)

    def trace(self) -> dict[str, Any]:
        """Times of the last call, in the JSON format of Chrome's trace viewer (microseconds).

        Beside the parts of the call are what devices tell of their own work, for which their plugins are asked now.
        """
        if self._spans is None:
            opened = {number: self._drawn.panel.devices[number] for number in self._drawn.used()}
            self._spans = {number: one.spans() for number, one in opened.items()}
        return {"traceEvents": events(self._drawn, self._times, self._spans), "displayTimeUnit": "ns"}

    def clone(self) -> Plan:
        """The same plan with an arena of its own: constants and states are shared, calls may run side by side.

        Of two calls that touch one state the second raises Busy.
        """
        lock = self._store.arenas.lock  # the Session's, also for the clone of a clone: nothing closes meanwhile
        if lock.locked():
            raise Busy("clone: a call of the Session is under way")
        with lock:
            self._store.check_usable("clone")
            arenas = arenas_for(self._drawn)
            self._store.clones.add(arenas)
            try:
                clone = Plan(self._drawn, self._store, arenas, self.session, self._keys)
            except BaseException:
                arenas.close()
                raise
            weakref.finalize(clone, arenas.close).atexit = False  # then the Session closes all
            return clone

    def __repr__(self) -> str:
        return f"<Plan of {self._drawn.nodes} nodes on {'+'.join(self.devices) or 'the host'}>"

    # Binding to addresses

    def bind(self) -> None:
        """Compile every run for the addresses its memory has now. Where that raises, the plan stays as it was."""
        binder = Binder(self._drawn, self._store, self._arenas)
        drawn, panel = self._drawn, self._drawn.panel
        watch = Watch(drawn, binder.chunk, binder.place) if drawn.request.checks else None
        programs: list[Program] = []
        schedule: list[Callable[[], None]] = []
        at: list[str] = []
        for number, run in enumerate(drawn.runs):
            name = panel.name(run.device)
            if run.copies:
                batch = binder.copies(run)
                if watch is not None:
                    batch = watch.around(batch, drawn.memory.copy_moments[number], run, copies=True)
                schedule.append(batch)
                at.append(name)
            program = binder.program(number, run)
            programs.append(program)
            step = program.run
            if watch is not None:
                step = watch.around(step, drawn.memory.moments[number][0], run, copies=False)
            schedule.append(step)
            at.append(name)
        inputs = binder.inputs()
        outputs = [binder.output(ref) for ref in drawn.parts.outputs]
        self._programs, self._schedule, self._at = programs, schedule, at
        self._inputs, self._outputs = inputs, outputs
        self._begin = watch.begin if watch is not None else None
        self._waited = [d for d in binder.devices() if type(d).synchronize is not Device.synchronize]
        self._states = [self._store.states[t.name] for t in drawn.states]
        proofs = {panel.devices[run.device].proof for run in drawn.runs}
        self._unproven = [p for p in proofs if p is not None and p.unproven("call")]
        self._state_names = frozenset(state.name for state in self._states)
        self._changed = [s for s in self._states if s.name in drawn.changed]

    def bound(self) -> Callable[[], None]:
        """What brings the binding of now back."""
        now = vars(self).copy()
        return lambda: vars(self).update(now)

    def unbind(self) -> None:
        """Let go of programs and addresses; the Session is closing."""
        self._programs, self._schedule, self._inputs, self._outputs = [], [], [], []

    # Calling

    def __call__(self, /, **inputs: Any) -> Any:
        """Run once.

        inputs: one array for each input, by name, of exactly its dtype and shape; made contiguous, never cast. Block
            dtypes as u8 (..., bytes of a row). Objects that share host memory by DLPack or as a buffer are taken too.
        Returns: fresh arrays: one, or a tuple or dict as the outputs were given.
        Raises: PlanError for a wrong, missing or unknown input, before any work; Busy; BadIndex and its kin.
        """
        return self.call((), **inputs)

    def call(self, keep: Iterable[str] = (), /, **inputs: Any) -> Any:
        """As calling the plan; keep, by position: names of inputs whose value of this plan's last call still holds.

        Raises: PlanError for an input that can't be kept, because another Plan of the Session was called since.
        """
        lock = self._arenas.lock
        if lock.locked():
            raise Busy("another call of this Session is under way; plan.clone() may run beside it")
        with lock:  # not acquire() before a try: an interrupt between the two would leave it locked for good
            self._check_ready()
            writes = self._check_inputs(inputs, tuple(keep))
            run = self._first_run if self._unproven else self._run
            if self._store.clones:
                return self._store.touching(self._state_names, lambda: run(writes))
            return run(writes)

    def _check_ready(self) -> None:
        store = self._store
        if store.closed or store.forked:
            store.check_usable("call")
        if self._lost:
            raise DeviceLost(self._lost)
        for state in self._states:
            if state.incomplete:
                raise PlanError(f"state {state.name!r} is incomplete: {state.incomplete}; clear it or write it anew")

    def _check_inputs(self, inputs: Mapping[str, Any], keep: tuple[str, ...]) -> list[tuple[Input, memoryview]]:
        """The bytes of every input; all are checked before any is written."""
        writes: list[tuple[Input, memoryview]] = []
        for one in self._inputs:
            value = inputs.get(one.name)
            kind = one.type
            if value is None:
                if one.name not in keep:
                    needs = ", ".join(f"{i.name}: {i.type}" for i in self._inputs)
                    raise PlanError(f"input {one.name!r} is missing; this plan needs {needs}")
                if self._arenas.last is not self._token:
                    raise PlanError(f"input {one.name!r} can't be kept: another plan was called since, or none yet")
                continue
            if (
                type(value) is not np.ndarray
                or value.dtype != kind.dtype
                or value.shape != kind.shape
                or not value.flags.c_contiguous
            ):
                value = array_of(value, kind, one.name)
            writes.append((one, value.data.cast("B") if kind.cast else bytes_of(value)))
        if len(inputs) + len(keep) != len(self._inputs):
            self._raise_unknown(inputs, keep)
        return writes

    def _raise_unknown(self, inputs: Mapping[str, Any], keep: Sequence[str]) -> None:
        has = ", ".join(i.name for i in self._inputs) or "none"
        for name in (*inputs, *keep):
            if name not in self._names:
                raise PlanError(f"there is no input {name!r}; this plan has: {has}")
        both = next(iter(set(inputs) & set(keep)), None) or next(n for n in keep if keep.count(n) > 1)
        raise PlanError(f"input {both!r} is given twice")

    def _first_run(self, writes: list[tuple[Input, memoryview]]) -> Any:
        """The first call on a build of a backend: should the process die in it, the next one knows."""
        with ExitStack() as stack:
            for proof in self._unproven:
                stack.enter_context(proof.first("call"))
            found = self._run(writes)
        self._unproven = []
        return found

    def _run(self, writes: list[tuple[Input, memoryview]]) -> Any:
        self._arenas.last = self._token
        self._spans = None
        times = self._times = [perf_counter()]
        finished = False
        try:
            if self._begin is not None:
                self._begin()
            for one, data in writes:
                if one.type.nbytes:
                    for write, buffer, offset in one.targets:
                        write(buffer, offset, data)
            times.append(perf_counter())
            for step in self._schedule:
                step()
                times.append(perf_counter())
            finished = True
            outputs = [output.fetch() for output in self._outputs]
            for device in self._waited:
                device.synchronize()
            for program in self._programs:
                program.check()
            times.append(perf_counter())
        except BaseException as e:
            self._failed(e, len(times) - 2, finished=finished)
            raise
        keys = self._keys
        if keys is None:
            return outputs[0]
        return tuple(outputs) if isinstance(keys, int) else dict(zip(keys, outputs, strict=True))

    def _failed(self, raised: BaseException, step: int, *, finished: bool) -> None:
        """Drain what is queued, so that the next call starts clean; states that may be half written are marked.

        Raises: DeviceError in the place of what no device may raise; step: the entry of the schedule that did.
        """
        error = raised
        if is_foreign(raised):
            at = self._at[step] if 0 <= step < len(self._at) else "+".join(self.devices)
            error = contained(at, "a call").told(raised)
        if isinstance(error, DeviceLost):
            self._lost = str(error)
        else:
            for device in self._waited:
                with suppress(Exception, SystemExit):
                    device.synchronize()
            for program in self._programs:
                with suppress(Exception, SystemExit):
                    program.check()
        if not isinstance(error, BadIndex) and (isinstance(error, Error) or not finished):
            for state in self._changed:
                state.incomplete = f"a call ended early ({type(raised).__name__})"
        if error is not raised:
            raise error from raised
