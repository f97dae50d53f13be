"""Addresses: Places, Programs and moves of a blueprint, at the addresses its memory has now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .backend import Buffer, Device, Group, Place, PlacedStep, Program
from .blueprint import Blueprint
from .containment import contained
from .errors import DeviceError
from .graph import Tensor
from .hosting import HostType, bytes_of
from .partition import Copy, Item, Ref, Run, Value
from .store import Arenas, Store
from .upload import plain_bytes

__all__ = ["Binder", "Input", "Output", "arenas_for"]


class Input:
    """One input and where it is written."""

    __slots__ = ("name", "targets", "type")

    def __init__(self, name: str, kind: HostType, targets: list[tuple[Device, Place]]) -> None:
        self.name, self.type = name, kind
        self.targets = [(device.write, place.buffer, place.offset) for device, place in targets]


class Output:
    """One output and where it is read; fixed: a constant, whose bytes are at hand."""

    __slots__ = ("buffer", "fixed", "offset", "read", "type")

    def __init__(self, kind: HostType, device: Device | None, place: Place | None, fixed: memoryview | None) -> None:
        self.type, self.fixed = kind, fixed
        self.read = device.read if device is not None else None
        self.buffer: Buffer = place.buffer if place is not None else None
        self.offset = place.offset if place is not None else 0

    def fetch(self) -> np.ndarray[Any, Any]:
        kind = self.type
        array = np.empty(kind.shape, kind.dtype)
        if kind.nbytes:
            view = array.data.cast("B") if kind.cast else bytes_of(array)
            if self.read is not None:
                self.read(self.buffer, self.offset, view)
            else:
                assert self.fixed is not None
                view[:] = self.fixed
        return array


def arenas_for(drawn: Blueprint) -> Arenas:
    arenas = Arenas()
    try:
        for number, arena in drawn.memory.arenas.items():
            arenas.grow(drawn.panel.device(number), arena.chunks)
    except BaseException:
        arenas.close()
        raise
    arenas.settle()
    return arenas


class Binder:
    """Places and Programs of a blueprint at the addresses its memory has now."""

    def __init__(self, drawn: Blueprint, store: Store, arenas: Arenas) -> None:
        self.drawn, self.store, self.arenas = drawn, store, arenas
        self.panel, self.memory = drawn.panel, drawn.memory
        self.bases: dict[Value, tuple[Any, int]] = {}
        self._places: dict[Ref, Place] = {}
        for constant in drawn.constants:
            name = self.panel.name(constant.value.device)
            held = store.constants[name][constant.key][constant.layout]
            self.bases[constant.value] = held.buffer, held.offset
        self.staging = memoryview(bytearray(max((c.nbytes for r in drawn.runs for c in r.copies), default=0)))

    def devices(self) -> list[Device]:
        return [self.panel.device(number) for number in self.drawn.used()]

    def _base(self, value: Value) -> tuple[Any, int]:
        base = self.bases.get(value)
        if base is None:
            if value.kind == "state":
                assert value.tensor is not None
                state = self.store.states[value.tensor.name]
                base = state.buffer, state.offset
            else:
                base = self._in_arena(value)
            self.bases[value] = base
        return base

    def chunk(self, number: int, part: int) -> Any:
        """The buffer of one chunk of a device's arena."""
        return self.arenas.chunks[self.panel.name(number)][part][0]

    def _in_arena(self, value: Value) -> tuple[Any, int]:
        # What is empty is never made, so it has no place; any address will do.
        chunk, offset = self.memory.places[value] if value.spec.size else (0, 0)
        name = self.panel.name(value.device)
        chunks = self.arenas.chunks.get(name) or []
        if not chunks:  # only empty tensors here
            self.arenas.grow(self.panel.device(value.device), (0,))
            chunks = self.arenas.chunks[name]
        return chunks[chunk][0], offset

    def place(self, ref: Ref) -> Place:
        """Where it lies; once for each Ref, since a result is mostly read as it was made."""
        known = self._places.get(ref)
        if known is None:
            buffer, offset = self._base(ref.value)
            known = self._places[ref] = Place(buffer, offset + ref.offset, ref.spec)
        return known

    def _placed(self, item: Item) -> PlacedStep:
        operands = tuple([self.place(ref) if ref is not None else None for ref in item.operands])
        return PlacedStep(item.step, operands, self.place(item.result))

    def program(self, number: int, run: Run) -> Program:
        groups = [Group(tuple([self._placed(run.items[i]) for i in group])) for group in self.memory.groups[number]]
        block = self.memory.scratch[number]
        scratch = self.place(Ref(block, 0, block.spec)) if block is not None else None
        device = self.panel.device(run.device)
        with contained(device.name, "compile"), self.panel.devices[run.device].watched("compile"):
            program = device.compile(groups, scratch)
            if not isinstance(program, Program):
                raise DeviceError(f"{device.name}: compile gives a {type(program).__name__}, must be a Program")
        return program

    def inputs(self) -> list[Input]:
        targets: dict[Tensor, list[tuple[Device, Place]]] = {}
        for value in self.drawn.parts.leaves:
            if value.kind == "input":
                assert value.tensor is not None
                place = self.place(Ref(value, 0, value.spec))
                targets.setdefault(value.tensor, []).append((self.panel.device(value.device), place))
        leaves = self.drawn.inputs
        return [Input(name, HostType(t.spec), targets.get(t, [])) for name, t in leaves.items()]

    def output(self, ref: Ref) -> Output:
        kind = HostType(ref.spec.dense())
        if ref.value.kind == "constant":
            assert ref.value.tensor is not None
            return Output(kind, None, None, plain_bytes(ref.value.tensor, (ref.offset, ref.spec)))
        if not kind.nbytes:
            return Output(kind, None, None, None)
        return Output(kind, self.panel.device(ref.value.device), self.place(ref), None)

    def copies(self, run: Run) -> Callable[[], None]:
        """One batch: every value to the run's device, by direct copy where the device has one."""
        target = self.panel.device(run.device)
        moves = [self._move(copy, target) for copy in run.copies if copy.nbytes]

        def batch() -> None:
            for move in moves:
                move()

        return batch

    def _move(self, copy: Copy, target: Device) -> Callable[[], None]:
        source = self.panel.device(copy.source.value.device)
        here, there = self.place(copy.source), self.place(copy.target)
        staging = self.staging[: copy.nbytes]

        def by_host() -> None:
            source.read(here.buffer, here.offset, staging)
            target.write(there.buffer, there.offset, staging)

        if type(target).copy is Device.copy:
            return by_host

        def direct() -> None:
            _order(source, target)
            if target.copy(here, there):
                _order(target, source)
            else:
                by_host()

        return direct


def _order(first: Device, then: Device) -> None:
    """Later work of `then` starts after what `first` has queued so far."""
    event = first.record()
    if event is None:
        first.synchronize()
    else:
        then.wait(event)
