"""Lifetimes to offsets (rules M1 to M9 and M11). Pure functions on data; nothing is allocated.

Moments count the whole plan: each batch of copies takes one, and each group of steps. A value lives from the moment it
is made to the last one that reads it; two values that live at one moment never share a byte. A long file, because each
rule leans on the moments of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index

from .backend import Device, Grouping, Link, Step
from .candidates import Panel, contiguous_step
from .containment import contained
from .dtypes import u8
from .errors import DeviceError, OutOfMemory
from .op import OPS
from .partition import Item, Ref, Run, Split, Value
from .spec import Spec

__all__ = ["Arena", "Life", "Memory", "pack", "plan_memory", "reserved"]

_Taken = tuple[int, int, int]  # chunk, offset, bytes


@dataclass(slots=True)  # never changed, but hundreds are made, and frozen ones take three times as long
class Life:
    """Bytes that are needed from moment `start` to moment `end`, both included."""

    nbytes: int
    start: int
    end: int


@dataclass(frozen=True)
class Arena:
    """Where lives lie: chunk and offset of each; bytes of each chunk; the largest sum alive at one moment."""

    places: tuple[tuple[int, int], ...]
    chunks: tuple[int, ...]
    lower_bound: int

    @property
    def nbytes(self) -> int:
        return sum(self.chunks)


@dataclass
class Memory:
    """The memory plan of one Plan.

    groups: for every run, indices of its items in execution order. places: chunk and offset of every value in its
    device's arena. arenas: by device. scratch: for every run, its block, or None. moments: of the groups, run by run;
    copy_moments: of the copies before each run. reserved: by device, every life in the arena, its place, and whether it
    is an input's. reused: how many results took over an operand's memory.
    """

    groups: list[tuple[tuple[int, ...], ...]] = field(default_factory=list)
    places: dict[Value, tuple[int, int]] = field(default_factory=dict)
    arenas: dict[int, Arena] = field(default_factory=dict)
    scratch: list[Value | None] = field(default_factory=list)
    reserved: dict[int, list[tuple[Life, tuple[int, int], bool]]] = field(default_factory=dict)
    moments: list[list[int]] = field(default_factory=list)
    copy_moments: list[int] = field(default_factory=list)
    reused: int = 0


def reserved(nbytes: int, alignment: int) -> int:
    """Bytes rounded up to what an arena gives."""
    return -(-nbytes // alignment) * alignment


def pack(lives: Sequence[Life], *, alignment: int = 1, max_buffer: int | None = None) -> Arena:
    """Offsets for lives: largest first, lowest fit, ties by order; the same answer for the same lives.

    alignment: of every offset; sizes are rounded up to it. max_buffer: bytes of one chunk; no life straddles two.
    Raises: OutOfMemory for a life larger than max_buffer.
    """
    sizes = [reserved(life.nbytes, alignment) for life in lives]
    places: list[tuple[int, int]] = [(0, 0)] * len(lives)
    chunks: list[int] = []
    placed = _Neighbours()
    limit = None if max_buffer is None else max_buffer // alignment * alignment
    for i in sorted(range(len(lives)), key=lambda i: (-sizes[i], i)):
        life, size = lives[i], sizes[i]
        if not life.nbytes:
            continue
        if limit is not None and size > limit:
            raise OutOfMemory(f"one tensor takes {size} bytes, an allocation at most {limit}")
        chunk, offset = places[i] = _lowest(sorted(placed.at(life)), size, limit)
        chunks += [0] * (chunk + 1 - len(chunks))
        chunks[chunk] = max(chunks[chunk], offset + size)
        placed.add((chunk, offset, size), life)
    return Arena(tuple(places), tuple(chunks), _lower_bound(lives, sizes))


def _lowest(taken: Iterable[_Taken], nbytes: int, limit: int | None) -> tuple[int, int]:
    """Chunk and offset of the first gap. taken: (chunk, offset, bytes), sorted. limit: bytes of a chunk."""
    chunk = offset = 0
    for other, start, size in taken:
        while other > chunk:
            if limit is None or offset + nbytes <= limit:
                return chunk, offset
            chunk, offset = chunk + 1, 0
        if start - offset >= nbytes:
            return chunk, offset
        offset = max(offset, start + size)
    if limit is not None and offset + nbytes > limit:
        return chunk + 1, 0
    return chunk, offset


class _Neighbours:
    """What lives that meet a given one take: short ones are filed under each of their moments, long ones apart."""

    _LONG = 48

    def __init__(self) -> None:
        self.by_moment: dict[int, list[_Taken]] = {}
        self.long: list[tuple[int, int, _Taken]] = []
        self.all: list[tuple[int, int, _Taken]] = []

    def add(self, taken: _Taken, life: Life) -> None:
        self.all.append((life.start, life.end, taken))
        if life.end - life.start > self._LONG:
            self.long.append((life.start, life.end, taken))
        else:
            for moment in range(life.start, life.end + 1):
                if moment in self.by_moment:
                    self.by_moment[moment].append(taken)
                else:
                    self.by_moment[moment] = [taken]

    def at(self, life: Life) -> set[_Taken]:
        first, last = life.start, life.end
        long = last - first > self._LONG
        found = {taken for start, end, taken in (self.all if long else self.long) if start <= last and end >= first}
        if not long:
            for moment in range(first, last + 1):
                found.update(self.by_moment.get(moment, ()))
        return found


def _lower_bound(lives: Sequence[Life], sizes: Sequence[int]) -> int:
    changes: dict[int, int] = {}
    for life, nbytes in zip(lives, sizes, strict=True):
        changes[life.start] = changes.get(life.start, 0) + nbytes
        changes[life.end + 1] = changes.get(life.end + 1, 0) - nbytes
    alive = most = 0
    for moment in sorted(changes):
        alive += changes[moment]
        most = max(most, alive)
    return most


def plan_memory(parts: Split, panel: Panel, *, guard: int = 0) -> Memory:
    """Groups, lives and offsets of a whole plan. guard: bytes to leave behind every reservation.

    Raises: DeviceError where a device breaks a law about groups, keeps or sizes.
    """
    work = _Planner(parts, panel, guard)
    work.ask_groups()
    work.live()
    work.reuse()
    work.place()
    return work.memory


class _Planner:
    def __init__(self, parts: Split, panel: Panel, guard: int) -> None:
        self.parts, self.panel, self.guard = parts, panel, guard
        self.memory = Memory()
        self.outputs = {ref.value for ref in parts.outputs}
        self.last_use: dict[Value, int] = {}
        self.born: dict[Value, int] = {}
        self.keeps: dict[Value, int] = {}
        self.owner: dict[Value, Value] = {}  # in place: whose memory a value takes over
        self.copied = {copy.source.value for run in parts.runs for copy in run.copies}
        self.readers: dict[Value, Run | None] = {}  # the one run that reads a value; None: several
        for run in parts.runs:
            for item in run.items:
                for ref in item.operands:
                    if ref is not None and self.readers.setdefault(ref.value, run) is not run:
                        self.readers[ref.value] = None
        self.end = 0

    # Groups

    def ask_groups(self) -> None:
        """Every run is shown to its device before anything is packed."""
        self.wishes: list[Grouping | None] = []
        for run in self.parts.runs:
            device = self.panel.device(run.device)
            linked = type(device).fuse is not Device.fuse
            if not linked and type(device).groups is Device.groups:
                self.wishes.append(None)
                self.memory.groups.append(tuple([(i,) for i in range(len(run.items))]))
                continue
            asked = "fuse" if linked else "groups"
            with contained(device.name, asked):
                wish = device.fuse([item.step for item in run.items], self._links(run))
                if not isinstance(wish, Grouping):
                    raise DeviceError(f"{device.name}: {asked} gives a {type(wish).__name__}, must be a Grouping")
                self._check(device, wish, run)
            self.wishes.append(wish)
            self.memory.groups.append(tuple(tuple(g) for g in wish.groups))

    def _links(self, run: Run) -> list[Link]:
        """The values of a run, numbered in the order they are met."""
        numbers: dict[Value, int] = {}
        count = numbers.setdefault
        links = []
        for item in run.items:
            operands = tuple([count(ref.value, len(numbers)) if ref is not None else None for ref in item.operands])
            offsets = tuple([ref.offset if ref is not None else 0 for ref in item.operands])
            value = item.result.value
            outside = value.kind == "state" or self._read_after(value, run)
            links.append(Link(operands, offsets, count(value, len(numbers)), outside))
        return links

    def _read_after(self, value: Value, run: Run) -> bool:
        """Whether copies, outputs or other runs read it."""
        return value in self.outputs or value in self.copied or self.readers.get(value, run) is not run

    def _check(self, device: Device, wish: Grouping, run: Run) -> None:
        items = run.items
        order = [i for group in wish.groups for i in group]
        if sorted(order) != list(range(len(items))):
            raise DeviceError(
                f"{device.name}: groups must name each of the {len(items)} steps of a run once, they are {wish.groups}"
            )
        touched = _touches(items, wish)
        self._check_order(device, order, items, touched)
        for group in wish.groups:
            self._check_fused(device, group, run, touched)
        for step, until in wish.keeps:
            if not (0 <= step < len(items) and 0 <= until < len(items)) or order.index(until) < order.index(step):
                raise DeviceError(f"{device.name}: keep ({step}, {until}) must name a step of the run and a later one")

    def _check_order(
        self, device: Device, order: Sequence[int], items: Sequence[Item], touched: Mapping[Value, Sequence[int]]
    ) -> None:
        """Makers come before users, and what changes memory keeps its place among all that touch it."""
        at = [0] * len(items)
        for place, i in enumerate(order):
            at[i] = place
        makers = {item.result.value: i for i, item in enumerate(items) if not item.updates}
        updated = _updated(items)
        for i in order:
            item, now = items[i], at[i]
            needs = [makers[ref.value] for ref in item.operands if ref is not None and ref.value in makers]
            if updated:
                needs += _ordered_before(i, items, touched, updated)
            late = [j for j in needs if at[j] > now]
            if late:
                raise DeviceError(f"{device.name}: groups put step {i} before step {min(late)}, which it needs")

    def _check_fused(
        self, device: Device, group: Sequence[int], run: Run, touched: Mapping[Value, Sequence[int]]
    ) -> None:
        """What a step of the group reads of another is fused away, so nobody else may need it."""
        if not group:
            raise DeviceError(f"{device.name}: a group is empty")
        if len(group) == 1:
            return
        for i in group[:-1]:
            value = run.items[i].result.value
            read = any(ref is not None and ref.value is value for j in group if j != i for ref in run.items[j].operands)
            if read and (set(touched[value]) - set(group) or self._read_after(value, run)):
                raise DeviceError(
                    f"{device.name}: groups fuse {run.items[i].name} away, but its result is "
                    f"{'an output' if value in self.outputs else 'used outside the group'}"
                )

    # Lives

    def live(self) -> None:
        moment, last_use = 0, self.last_use  # moments only grow, so that the last one written is the last use
        for run, groups, wish in zip(self.parts.runs, self.memory.groups, self.wishes, strict=True):
            self.memory.copy_moments.append(moment)
            if run.copies:
                for copy in run.copies:
                    last_use[copy.source.value] = moment
                    self.born[copy.target.value] = last_use[copy.target.value] = moment
                    copy.target.value.nbytes = self._reserved(copy.target.value)
                moment += 1
            moments = []
            for group in groups:
                self._made(group, run.items, moment, unwritten=wish is not None and wish.unwritten)
                for i in group:
                    for ref in run.items[i].operands:
                        if ref is not None:
                            last_use[ref.value] = moment
                moments.append(moment)
                moment += 1
            self.memory.moments.append(moments)
            if wish is not None and wish.keeps:
                self._keep(run.items, groups, wish, moments)
        self.end = moment

    def _made(self, group: Sequence[int], items: Sequence[Item], moment: int, *, unwritten: bool) -> None:
        """unwritten: what is fused away has an address, and a byte for it to be its own."""
        for i in group:
            item = items[i]
            value = item.result.value
            self.last_use[value] = moment
            if value.kind == "temporary" and value not in self.born:
                self.born[value] = moment
                value.nbytes = _result_nbytes(self.panel.device(item.device), item.step)
        if unwritten and len(group) > 1:
            read = {ref.value for i in group for ref in items[i].operands if ref is not None}
            changed = {items[i].result.value for i in group if items[i].updates}
            for value in {items[i].result.value for i in group[:-1]} - changed:
                if value in read and value.kind == "temporary":
                    value.nbytes = min(value.nbytes, 1)

    def _reserved(self, value: Value) -> int:
        if not value.spec.dtype.is_block:
            return value.spec.nbytes
        return _result_nbytes(self.panel.device(value.device), contiguous_step(value.spec))

    def _keep(
        self, items: Sequence[Item], groups: Sequence[Sequence[int]], wish: Grouping, moments: Sequence[int]
    ) -> None:
        when = {i: moment for group, moment in zip(groups, moments, strict=True) for i in group}
        for step, until in wish.keeps:
            value = items[step].result.value
            self.keeps[value] = max(self.keeps.get(value, 0), when[until])
            self.last_use[value] = max(self.last_use[value], when[until])

    # In place

    def reuse(self) -> None:
        for run, groups, moments in zip(self.parts.runs, self.memory.groups, self.memory.moments, strict=True):
            for group, moment in zip(groups, moments, strict=True):
                if len(group) == 1:
                    self._reuse(run.items[group[0]], moment)

    def _reuse(self, item: Item, moment: int) -> None:
        declared = OPS[item.step.op]
        if not declared.inplace or declared.updates:
            return
        for name, ref in zip(declared.operands, item.operands, strict=True):
            if ref is not None and name in declared.inplace and self._may_take(item, ref, moment):
                result = item.result.value
                self.owner[result] = self._owner(ref.value)
                self.memory.reused += 1
                return

    def _may_take(self, item: Item, ref: Ref, moment: int) -> bool:
        value, spec, result = ref.value, ref.spec, item.result.spec
        return (
            value.kind in ("temporary", "copy")
            and value not in self.outputs
            and self.last_use[value] == moment
            and value.device == item.device
            and ref.offset == 0
            and spec.is_dense
            and spec.shape == result.shape
            and (spec.dtype.block, spec.dtype.block_nbytes) == (result.dtype.block, result.dtype.block_nbytes)
            and spec.nbytes == value.spec.nbytes
            and self._owner(value).nbytes >= item.result.value.nbytes
            and sum(other is not None and other.value is value for other in item.operands) == 1
        )

    def _owner(self, value: Value) -> Value:
        return self.owner.get(value, value)

    # Offsets

    def place(self) -> None:
        lives: dict[int, dict[Value, Life]] = {}
        for value in self.parts.leaves:
            if value.kind == "input":
                value.nbytes = self._reserved(value)
                lives.setdefault(value.device, {})[value] = Life(value.nbytes + self.guard, 0, self.end)
        for value, start in self.born.items():
            end = self.end if value in self.outputs else self.last_use[value]
            owner = self._owner(value)
            mine = lives.setdefault(owner.device, {})
            known = mine.get(owner)
            if known is None:
                mine[owner] = Life(owner.nbytes + (self.guard if owner.nbytes else 0), start, end)
            else:
                mine[owner] = Life(known.nbytes, min(known.start, start), max(known.end, end))
        self._scratch(lives)
        for number in sorted(lives):
            self._pack(number, lives[number])
        for value, owner in self.owner.items():
            self.memory.places[value] = self.memory.places[owner]

    def _scratch(self, lives: dict[int, dict[Value, Life]]) -> None:
        for run, groups, moments in zip(self.parts.runs, self.memory.groups, self.memory.moments, strict=True):
            device = self.panel.device(run.device)
            nbytes = 0
            if type(device).scratch is not Device.scratch:
                shown = {tuple([run.items[i].step for i in group]) for group in groups}
                nbytes = max(_scratch(device, steps) for steps in shown)
            block = None
            if nbytes:
                spec = bytes_spec(nbytes)
                block = Value("scratch", run.device, spec, nbytes=nbytes)
                lives.setdefault(run.device, {})[block] = Life(nbytes + self.guard, moments[0], moments[-1])
            self.memory.scratch.append(block)

    def _pack(self, number: int, lives: Mapping[Value, Life]) -> None:
        device = self.panel.devices[number]
        arena = pack(list(lives.values()), alignment=device.alignment, max_buffer=device.target.limits.max_buffer)
        self.memory.arenas[number] = arena
        inputs = [value.kind == "input" for value in lives]
        self.memory.reserved[number] = list(zip(lives.values(), arena.places, inputs, strict=True))
        self.memory.places.update(zip(lives, arena.places, strict=True))


def bytes_spec(nbytes: int) -> Spec:
    return Spec(u8, (nbytes,))


def _updated(items: Sequence[Item]) -> set[Value]:
    """Values that some item changes."""
    refs = [(item, ref) for item in items if item.updates for ref in (*item.operands, item.result)]
    return {ref.value for item, ref in refs if ref is not None and item.changes(ref.value)}


def _touches(items: Sequence[Item], wish: Grouping) -> dict[Value, list[int]]:
    """Items that read, make or change a value, for every value that is changed, or made inside a group."""
    touched: dict[Value, list[int]] = {value: [] for value in _updated(items)}
    for group in wish.groups:
        for i in group[:-1]:
            touched[items[i].result.value] = []
    for i, item in enumerate(items):
        for ref in (*item.operands, item.result):
            if ref is not None and ref.value in touched:
                touched[ref.value].append(i)
    return touched


def _ordered_before(
    i: int, items: Sequence[Item], touched: Mapping[Value, Sequence[int]], updated: set[Value]
) -> set[int]:
    """Earlier items that must stay before item i because one of the two changes memory that both touch."""
    found: set[int] = set()
    for ref in (*items[i].operands, items[i].result):
        if ref is not None and ref.value in updated:
            changes = items[i].changes(ref.value)
            for j in touched[ref.value]:
                if j < i and (changes or items[j].changes(ref.value)):
                    found.add(j)
    return found


def _result_nbytes(device: Device, step: Step) -> int:
    if type(device).result_nbytes is Device.result_nbytes:
        return step.result.nbytes
    with contained(device.name, "result_nbytes"):
        reserved = index(device.result_nbytes(step))
        if reserved < step.result.nbytes or (reserved > step.result.nbytes and not step.result.dtype.is_block):
            raise DeviceError(
                f"{device.name}: result_nbytes of {step.op} is {reserved} bytes for {step.result} of "
                f"{step.result.nbytes}; it must be at least that, and more only as row padding of a block dtype"
            )
    return reserved


def _scratch(device: Device, group: Sequence[Step]) -> int:
    with contained(device.name, "scratch"):
        nbytes = index(device.scratch(group))
        if nbytes < 0:
            raise DeviceError(f"{device.name}: scratch of {group[0].op} is {nbytes} bytes, must be at least 0")
    return nbytes
