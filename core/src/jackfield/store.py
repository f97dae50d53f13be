"""What a Session owns on devices: constants, states, the compute arena. Allocates, fills and frees; decides nothing.

A long file, because one lock and one order of giving back hold all of it together.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from operator import methodcaller
from typing import Any, TypeVar

from .backend import Buffer, Device, Usage
from .candidates import Memo, Panel
from .containment import contained
from .errors import Busy, DeviceLost, ForkedError, OutOfMemory, PlanError
from .graph import ArraySource, Source, Tensor
from .memory import reserved
from .opened import OpenDevice
from .packing import Constant, Key
from .spec import Spec
from .upload import Held, check_scales, fill, plain_bytes, release, source_of, tensor_of

__all__ = ["ROOM", "Arenas", "StateMemory", "Store", "check_room", "identity"]

log = logging.getLogger("jackfield")
K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

ROOM = "room"  # what a device lacks for a plan, as `contained` says it
_PIECE = 1 << 20  # bytes of one write of zeros
_LAST_CALL_S = 5.0  # what a call of a daemon thread gets at the end of the process
_LARGE = 1 << 23  # bytes of a constant
_WORTH_BORROWING = 1 << 16  # bytes; below that the pages around a tensor of a file cost more than a copy of it


class _Forks:
    """Counts the forks between the first process and this one."""

    count = 0


def _forked() -> None:
    _Forks.count += 1


os.register_at_fork(after_in_child=_forked)


@dataclass(eq=False)
class StateMemory:
    """A state's only memory. incomplete: why its content can't be trusted, "" where it can."""

    name: str
    spec: Spec
    device: Device
    buffer: Buffer
    offset: int
    incomplete: str = ""
    on: str = ""


class Arenas:
    """Compute memory of calls that never run at once: a list of chunks a device, as large as the largest plan."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.chunks: dict[str, list[tuple[Buffer, int]]] = {}
        self.devices: dict[str, Device] = {}
        self.last: object = None  # token of the plan whose inputs lie there
        self.forks = _Forks.count
        self._former: list[tuple[Device, int, tuple[Buffer, int] | None]] = []  # what was there before `grow`

    def grow(self, device: Device, wanted: Sequence[int]) -> bool:
        """Make every chunk at least as large as wanted; whether any address changed. What was there before stays until
        somebody says `settle`, which frees it, or `restore`, which brings it back.
        """
        chunks = self.chunks.setdefault(device.name, [])
        self.devices[device.name] = device
        short = [i for i, n in enumerate(wanted) if i >= len(chunks) or chunks[i][1] < n]
        made: list[tuple[int, Buffer]] = []
        try:
            for i in short:
                with contained(device.name, "alloc"):
                    buffer = device.alloc(wanted[i], Usage.COMPUTE)
                made.append((i, buffer))
        except BaseException:
            _free(device, [buffer for _, buffer in made])
            raise
        moved = False
        for i, buffer in made:
            if i < len(chunks):
                self._former.append((device, i, chunks[i]))
                chunks[i] = buffer, wanted[i]
                moved = True
            else:
                self._former.append((device, i, None))
                chunks.append((buffer, wanted[i]))
        return moved

    def settle(self) -> None:
        """Every plan lies in the new chunks."""
        former, self._former = self._former, []
        for device, _, old in former:
            if old is not None:
                _free(device, [old[0]])

    def restore(self) -> None:
        """The chunks before the last ones grew."""
        former, self._former = self._former, []
        for device, i, old in reversed(former):
            chunks = self.chunks[device.name]
            buffer, _ = chunks[i]
            chunks[i : i + 1] = [] if old is None else [old]
            _free(device, [buffer])

    def nbytes(self, device: str) -> int:
        return sum(n for _, n in self.chunks.get(device, ()))

    def close(self) -> None:
        """Free everything; twice is nothing, and again after an interrupt is the rest. In a forked child the parent's
        memory is left alone.
        """
        if self.forks == _Forks.count:
            self.settle()
        self.last = None
        if self.forks != _Forks.count:
            self.chunks.clear()
        while self.chunks:
            name, buffers = next(iter(self.chunks.items()))
            _free(self.devices[name], (buffer for buffer, _ in _taken_out(buffers)))
            del self.chunks[name]


class Store:
    """All device memory of one Session that outlives a call."""

    def __init__(self) -> None:
        self.forks = _Forks.count
        self.arenas = Arenas()
        self.states: dict[str, StateMemory] = {}
        self.constants: dict[str, dict[Key, dict[str, Held]]] = {}
        self.memo: Memo = {}
        self.lost: set[str] = set()
        self.clones: weakref.WeakSet[Arenas] = weakref.WeakSet()
        self._touched: set[str] = set()  # states of calls that are under way; changed under the lock
        self._touching = threading.Lock()
        self.closed = False  # nobody may use it any more
        self.freed = False
        self._buffers: list[tuple[Device, Buffer]] = []
        self._new: list[tuple[dict[Any, Any], object]] = []  # entries of what is tried now: a table and a key
        self._sources: dict[int, object] = {}  # what identities point at must not be collected

    # Questions

    def check_usable(self, what: str) -> None:
        """Raises: PlanError when closed, ForkedError in a forked child."""
        if self.closed:
            raise PlanError(f"{what}: its Session is closed")
        if self.forks != _Forks.count:
            raise ForkedError(
                f"{what}: its devices belong to the parent process; "
                "start workers by spawn, or call jf.refresh() here and compile anew"
            )

    @property
    def forked(self) -> bool:
        return self.forks != _Forks.count

    def held(self, device: str, key: Key) -> Mapping[str, int]:
        """Layouts of a constant on a device, to bytes."""
        return {layout: h.nbytes for layout, h in self.constants.get(device, {}).get(key, {}).items()}

    def homes(self) -> dict[str, str]:
        return {name: state.on for name, state in self.states.items()}

    def constant_nbytes(self, device: str) -> int:
        """Bytes of constants on a device, borrowed ones not counted."""
        held = self.constants.get(device, {}).values()
        return sum(h.nbytes for layouts in held for h in layouts.values() if not h.borrowed)

    def state_nbytes(self, device: str) -> int:
        return sum(s.spec.nbytes for s in self.states.values() if s.on == device)

    # Filling

    @contextmanager
    def tried(self) -> Iterator[None]:
        """What is brought and allocated in here stays only where nothing is raised.

        In a child that was forked in here, the parent's memory is left alone.
        """
        before, last = len(self._buffers), self.arenas.last
        self._new = []
        try:
            yield
        except BaseException:
            if self.forked:
                raise
            for table, key in reversed(self._new):
                table.pop(key, None)
            self.arenas.restore()
            self.arenas.last = last
            fresh = self._buffers[before:]
            del self._buffers[before:]
            for device, buffer in fresh:
                _free(device, [buffer])
            raise
        finally:
            self._new = []
        self.arenas.settle()

    def _enter(self, table: dict[K, V], key: K, value: V) -> None:
        if key not in table:
            self._new.append((table, key))
        table[key] = value

    def upload(
        self, constants: Iterable[Constant], panel: Panel, beside: list[Callable[[], object]] | None = None
    ) -> None:
        """Bring constants that are not there yet to their devices; each device gets one arena for them.

        beside: what is called while the first of them are on their way; it is taken out of the list before.
        """
        by_device: dict[int, dict[tuple[Key, str], Constant]] = {}
        for constant in constants:
            name = panel.name(constant.value.device)
            if constant.layout not in self.held(name, constant.key):
                by_device.setdefault(constant.value.device, {})[constant.key, constant.layout] = constant

        def meanwhile() -> None:
            if beside:
                beside.pop()()

        for number, fresh in by_device.items():
            self._upload(panel.device(number), list(fresh.values()), meanwhile if beside else None)
        meanwhile()

    def _upload(self, device: Device, constants: list[Constant], meanwhile: Callable[[], object] | None) -> None:
        known = self.constants.setdefault(device.name, {})
        rest = [c for c in constants if not self._borrow(device, c, known)]
        # All pages of a large one's source are in memory while it comes: better while little of the device's is.
        rest.sort(key=lambda c: -c.nbytes if c.nbytes >= _LARGE else 0)
        chunks, at = _side_by_side([c.nbytes for c in rest], device)
        buffers = self._allocate(device, chunks or [0], Usage.CONSTANT) if rest else []
        places = [(c, Held(buffers[n], offset, c.nbytes)) for c, (n, offset) in zip(rest, at, strict=True)]
        with closing(fill(device, places, meanwhile)) as filled:  # after an error no thread writes any more
            for constant, held in filled:
                self._enter(known.setdefault(constant.key, {}), constant.layout, held)
                self._keep(constant)
        release(rest)

    def _borrow(self, device: Device, constant: Constant, known: dict[Key, dict[str, Held]]) -> bool:
        value = constant.value
        if constant.layout or value.window is not None or constant.nbytes < _WORTH_BORROWING:
            return False
        if type(device).borrow is Device.borrow:
            return False
        check_scales(tensor_of(constant))
        data = plain_bytes(tensor_of(constant))
        with contained(device.name, "borrow"):
            buffer = device.borrow(data)
        if buffer is None:
            return False
        self._buffers.append((device, buffer))
        self._enter(self._sources, id(data), data)
        self._enter(known.setdefault(constant.key, {}), "", Held(buffer, 0, constant.nbytes, borrowed=True))
        self._keep(constant)
        return True

    def _keep(self, constant: Constant) -> None:
        source = source_of(constant)
        kept = source.array if isinstance(source, ArraySource) else source
        self._enter(self._sources, id(kept), kept)

    def _allocate(self, device: Device, chunks: Sequence[int], usage: Usage) -> list[Buffer]:
        """All chunks or none."""
        buffers: list[Buffer] = []
        try:
            for nbytes in chunks:
                with contained(device.name, "alloc"):
                    buffer = device.alloc(nbytes, usage)
                buffers.append(buffer)
        except BaseException:
            _free(device, buffers)
            raise
        self._buffers += [(device, buffer) for buffer in buffers]
        return buffers

    def check_states(self, tensors: Iterable[Tensor]) -> None:
        """Raises PlanError when a state's name is taken by another Spec."""
        for tensor in tensors:
            known = self.states.get(tensor.name)
            if known is not None and (known.spec.dtype, known.spec.shape) != (tensor.spec.dtype, tensor.spec.shape):
                raise PlanError(
                    f"state {tensor.name!r} is {known.spec} in this Session, not {tensor.spec}; "
                    f"use another name or Session"
                )

    def add_states(self, tensors: Sequence[Tensor], device: Device) -> None:
        """Memory for the states that are new, in one block; zeros at birth."""
        fresh = [t for t in tensors if t.name not in self.states]
        chunks, at = _side_by_side([t.spec.nbytes for t in fresh], device)
        buffers = self._allocate(device, chunks or [0], Usage.STATE) if fresh else []
        for tensor, (chunk, offset) in zip(fresh, at, strict=True):
            state = StateMemory(tensor.name, tensor.spec, device, buffers[chunk], offset, on=device.name)
            if (
                "zeroed" not in device.target.features
            ):  # zeros written over zeros would take pages that nobody needs yet
                self.zero(state)
            self._enter(self.states, tensor.name, state)

    def zero(self, state: StateMemory) -> None:
        """All bytes 0."""
        nbytes = state.spec.nbytes
        zeros = memoryview(bytes(min(nbytes, _PIECE)))
        for at in range(0, nbytes, _PIECE):
            with contained(state.on, "write"):
                state.device.write(state.buffer, state.offset + at, zeros[: min(_PIECE, nbytes - at)])
        state.incomplete = ""

    def touching(self, names: frozenset[str], work: Callable[[], T]) -> T:
        """What `work` returns; no other call touches one of these states meanwhile. Raises: Busy.

        An interrupt comes after a call or at a loop's end, never between two lines that have neither: so `mine` is what
        this call has entered, and leaving takes one step.
        """
        mine: frozenset[str] = frozenset()
        try:
            with self._touching:
                if not self._touched.isdisjoint(names):
                    raise Busy(f"state {min(self._touched & names)!r} is in use by another call")
                self._touched |= names
                mine = names
            return work()
        finally:
            self._touched -= mine

    # Ends

    @contextmanager
    def quiet(self, what: str, patience: float = 0.0) -> Iterator[None]:
        """No call of the Session or of a clone is under way in here. patience: seconds to wait. Raises: Busy.

        An interrupt comes between instructions of Python, never within one call of compiled code: so one call both
        takes locks and lists them, and one call, made ready before, gives all back.
        """
        taken: list[threading.Lock] = []
        acquire = methodcaller("acquire", timeout=patience)
        give_back: Callable[[], object] = partial(deque, map(methodcaller("release"), taken), 0)
        try:
            taken.extend(takewhile(acquire, (self.arenas.lock,)))
            clones = [arenas.lock for arenas in self.clones] if taken else []  # none can be added now
            taken.extend(takewhile(acquire, clones))
            if len(taken) < 1 + len(clones):
                raise Busy(f"{what}: a call of this Session is under way")
            yield
        finally:
            give_back()

    def end(self) -> None:
        """Close when nobody has the Session any more, or the process ends.

        Then daemon threads may be in a call: the interpreter must not go away under it, nor may its memory.
        """
        with suppress(Busy), self.quiet("close", _LAST_CALL_S):
            self.close()

    def close(self) -> None:
        """Free everything, while all is quiet; twice is nothing. In a forked child the parent's is left alone.

        An interrupt in between leaves the rest to the next close; no buffer is given back twice.
        """
        if self.freed:
            return
        self.closed = True
        for arenas in (self.arenas, *self.clones):
            arenas.close()
        if not self.forked:
            for device, buffer in _taken_out(self._buffers):
                _free(device, [buffer])
        self._buffers.clear()
        self.constants.clear()
        self.states.clear()
        self._sources.clear()
        self.freed = True


def _taken_out(things: list[T]) -> Iterator[T]:
    """Each of them, which the list no longer has when somebody meets it."""
    while things:
        yield things.pop(0)


def _side_by_side(sizes: Sequence[int], device: Device) -> tuple[list[int], list[tuple[int, int]]]:
    """Bytes of the chunks that hold all of these at once, in their order, and chunk and offset of each.

    Each goes to the first chunk with room behind what it has. Raises: OutOfMemory for one larger than a chunk may be.
    """
    limit = device.target.limits.max_buffer
    chunks: list[int] = []
    places: list[tuple[int, int]] = []
    for nbytes in (reserved(size, device.alignment) for size in sizes):
        if limit is not None and nbytes > limit:
            raise OutOfMemory(f"{device.name}: one tensor takes {nbytes} bytes, an allocation at most {limit}")
        chunk = next((n for n, end in enumerate(chunks) if limit is None or end + nbytes <= limit), len(chunks))
        if chunk == len(chunks) and nbytes:
            chunks.append(0)
        if nbytes:
            places.append((chunk, chunks[chunk]))
            chunks[chunk] += nbytes
        else:
            places.append((0, 0))
    return chunks, places


def _free(device: Device, buffers: Iterable[Buffer]) -> None:
    """Give buffers back; a device that is gone has none."""
    for buffer in buffers:
        try:
            device.free(buffer)
        except DeviceLost:
            return
        except (Exception, SystemExit) as e:  # noqa: BLE001 (what a plugin raises; the others must be freed)
            log.warning("%s: a buffer could not be freed: %s: %s", device.name, type(e).__name__, e)


def identity(source: Source) -> Key:
    """Two constants of one array, or of one file tensor, are one."""
    if isinstance(source, ArraySource):
        address, _ = source.array.__array_interface__["data"]
        return ("array", address)
    return ("source", id(source))


def check_room(wanted: Mapping[OpenDevice, Mapping[str, int]]) -> None:
    """Raises OutOfMemory with a table where more is wanted than a device says is free; nothing is allocated yet."""
    for device, classes in wanted.items():
        free, total = device.memory.free, sum(classes.values())
        if 0 < free < total:
            table = "".join(f"\n  {name:<10} {nbytes:>14,} bytes" for name, nbytes in classes.items())
            text = f"{device.name}: the plan needs {total:,} bytes, {free:,} are free, {total - free:,} too few:{table}"
            with contained(device.name, ROOM):
                raise OutOfMemory(text)
