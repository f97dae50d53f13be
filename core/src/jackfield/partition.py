"""Runs and copies of a placed graph (P8, P9), with a copy step wherever a kernel can't take strides. Pure functions.

`lay_out` says in which memory every value lies and puts in `contiguous` steps; `split` cuts the steps into runs and
brings operands to the device that reads them, at most once a making.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from .backend import Limits, Step
from .candidates import Panel, contiguous_step
from .dtypes import u8
from .errors import PlacementError
from .graph import Tensor
from .op import OPS
from .placement import Placement, Policy
from .spec import Spec
from .updates import Flow, is_update

__all__ = ["ANYWHERE", "Copy", "Inserted", "Item", "Layout", "Ref", "Run", "Split", "Value", "lay_out", "split"]

ANYWHERE = -1  # the device of inputs and constants: every device that reads them gets its own

ValueKind = Literal["constant", "state", "input", "temporary", "copy", "scratch"]


@dataclass(eq=False, slots=True)
class Value:
    """One piece of memory on one device.

    spec: what lies there from its first byte. tensor: the leaf it holds, or the node that makes it.
    window: for a constant copied from a strided view at build time: the view's offset and Spec in the leaf's bytes.
    nbytes: bytes to reserve, once known.
    """

    kind: ValueKind
    device: int
    spec: Spec
    tensor: Tensor | None = None
    window: tuple[int, Spec] | None = None
    nbytes: int = 0


@dataclass(eq=False, slots=True)  # never changed, but thousands are made, and frozen ones take three times as long
class Ref:
    """A window on a value: its offset in bytes, and the Spec from there on."""

    value: Value
    offset: int
    spec: Spec


@dataclass(slots=True)
class Item:
    """One step with its memory. updates: the result is the first operand's memory."""

    name: str
    step: Step
    device: int
    operands: list[Ref | None]
    result: Ref
    updates: bool = False

    def changes(self, value: Value) -> bool:
        """Afterwards this memory holds something else that others may read."""
        if not self.updates:
            return False
        further = (self.operands[i] for i in OPS[self.step.op].targets[1:])
        return value is self.result.value or any(ref is not None and ref.value is value for ref in further)


@dataclass(frozen=True, slots=True)
class Move:
    """A whole value brought into memory of its own on another device, because the next item changes it there."""

    source: Ref
    target: Value
    tensor: str


@dataclass(frozen=True, slots=True)
class Inserted:
    """A copy on a device that the graph does not have. before: the node it is for; operand: what is copied."""

    before: str
    operand: str
    device: int
    why: str
    nbytes: int


@dataclass
class Layout:
    """Items in execution order, and where each output lies."""

    items: list[Item | Move] = field(default_factory=list)
    outputs: list[Ref] = field(default_factory=list)
    inserted: list[Inserted] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Copy:
    """Bytes from one device to another. tensor: what it is called."""

    source: Ref
    target: Ref
    tensor: str

    @property
    def nbytes(self) -> int:
        return self.source.spec.nbytes


@dataclass(slots=True)
class Run:
    """Steps of one device without a break. copies: what is brought there before, as one batch."""

    device: int
    items: list[Item] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)


@dataclass
class Split:
    """Runs in order; the device's own value for every input and constant it reads; where each output lies."""

    runs: list[Run]
    leaves: list[Value]
    outputs: list[Ref]


def lay_out(flow: Flow, placement: Placement, panel: Panel, *, policy: Policy) -> Layout:
    """Memory for every value, on the device that makes it; copies where strides are not taken or an update needs one.

    Raises: PlacementError where such a copy is needed and no allowed device makes it.
    """
    work = _Layout(flow, placement, panel, policy)
    for tensor in flow.tensors:
        work.add(tensor)
    work.result.outputs = [work.output(t) for t in flow.outputs]
    return work.result


class _Layout:
    def __init__(self, flow: Flow, placement: Placement, panel: Panel, policy: Policy) -> None:
        self.flow, self.placement, self.panel, self.policy = flow, placement, panel, policy
        self.refs: dict[Tensor, Ref] = {}
        self.dense_copies: dict[tuple[Tensor, int, Spec, int], Ref] = {}
        self.position = {node: i for i, node in enumerate(flow.nodes)} if flow.updates else {}
        self.result = Layout()

    def add(self, tensor: Tensor) -> None:
        if tensor.kind == "view":
            base = tensor.operands[0]
            assert base is not None
            below = self.refs[base]
            self.refs[tensor] = Ref(below.value, below.offset + tensor.offset, tensor.spec)
        elif tensor.kind == "node":
            self.refs[tensor] = self._node(tensor)
        else:
            device = self.placement.device[tensor] if tensor.kind == "state" else ANYWHERE
            self.refs[tensor] = Ref(Value(tensor.kind, device, tensor.spec, tensor), 0, tensor.spec)

    def _node(self, node: Tensor) -> Ref:
        device, name = self.placement.device[node], self.flow.ids[node]
        operands = [self.refs[o] if o is not None else None for o in node.operands]
        updates = bool(self.position) and is_update(node)
        target = operands[0] if updates else None
        if not node.spec.size:  # nothing to make
            return target or Ref(Value("temporary", device, node.spec, node), 0, node.spec)
        if target is not None:
            target = operands[0] = self._target(node, 0, target, device)
            self._part(node, operands, device)
            for i in OPS[node.op].targets[1:]:
                further = operands[i]
                if further is not None:
                    operands[i] = self._target(node, i, further, device)
        answer = self.placement.answers[node]
        for i in answer.dense:
            operand = node.operands[i]
            assert operand is not None
            operands[i] = self._dense(operand, device, before=name, why=f"{node.op} reads its operand {i} dense")
        if target is not None:
            result = Ref(target.value, target.offset, node.spec)
        else:
            result = Ref(Value("temporary", device, node.spec, node), 0, node.spec)
        self.result.items.append(Item(name, answer.step, device, operands, result, updates))
        return result

    # Updates of what is no state

    def _target(self, node: Tensor, i: int, target: Ref, device: int) -> Ref:
        """The target itself where it may be changed, else the same window of a copy of its whole memory.

        Of a target besides the first, which no result stands for, only a state is changed itself.
        """
        value = target.value
        if value.kind == "state" or (
            i == 0 and value.kind == "temporary" and value.device == device and self._is_free(node, value)
        ):
            return target
        whole = Ref(value, 0, value.spec)
        if value.device in (device, ANYWHERE):
            text = f"{node.op} changes it, and its old value is still needed"
            whole = self._copied(whole, device, before=self.flow.ids[node], operand=node.operands[i], why=text)
        if whole.value.device != device:
            mine = Value("temporary", device, value.spec.with_role("temporary"), value.tensor)
            label = self.flow.name(value.tensor) if value.tensor is not None else ""
            self.result.items.append(Move(whole, mine, label))
            whole = Ref(mine, 0, mine.spec)
        return Ref(whole.value, target.offset, target.spec)

    def _is_free(self, update: Tensor, value: Value) -> bool:
        """Nobody reads these bytes of the value from before the update any more."""
        origin = self.flow.spots[update].origin
        now = self.position[update]
        late = [operand for node, operand in self.flow.readers[origin] if self.position[node] > now]
        for tensor in (*late, *(t for t in self.flow.outputs if self.flow.spots[t].origin is origin)):
            known = self.refs.get(self.flow.making(tensor))
            old = update not in self.flow.spots[tensor].past and known is not None and known.value is value
            if old and self.flow.overlap(tensor, update):
                return False
        return True

    def _part(self, node: Tensor, operands: list[Ref | None], device: int) -> None:
        """Other operands in the target's own bytes are copied: they mean the value from before."""
        (target, *others) = operands
        assert target is not None
        for i, ref in enumerate(others, 1):
            operand = node.operands[i]
            if (
                ref is not None
                and operand is not None
                and ref.value is target.value
                and self.flow.overlap(operand, node)
            ):
                text = f"{node.op} writes where it reads"
                operands[i] = self._copied(ref, device, before=self.flow.ids[node], operand=operand, why=text)

    # Copies

    def _dense(self, tensor: Tensor, device: int, *, before: str, why: str) -> Ref:
        """A dense copy of a strided view, once a device. Of a constant: made when the plan is built."""
        ref = self.refs[tensor]
        window = (self.flow.making(tensor), ref.offset, ref.spec, device)
        known = self.dense_copies.get(window)
        if known is not None:
            return known
        if ref.value.kind == "constant":
            spec = ref.spec.dense().with_role("constant")
            value = Value("constant", ANYWHERE, spec, ref.value.tensor, (ref.offset, ref.spec))
            made = Ref(value, 0, spec)
        else:
            made = self._copied(ref, device, before=before, operand=tensor, why=why)
        self.dense_copies[window] = made
        return made

    def _copied(self, ref: Ref, device: int, *, before: str, operand: Tensor | None, why: str) -> Ref:
        step = contiguous_step(ref.spec)
        maker = self._copier(step, device)
        made = Ref(Value("temporary", maker, step.result, operand), 0, step.result)
        number = len(self.result.inserted)
        self.result.items.append(Item(f"copy.{number}", step, maker, [ref], made))
        label = self.flow.name(operand) if operand is not None else ""
        self.result.inserted.append(Inserted(before, label, maker, why, step.result.nbytes))
        return made

    def _copier(self, step: Step, device: int) -> int:
        """The device itself, else the first other one that takes the copy."""
        reasons: dict[int, str] = {}
        for number in self._copiers(device):
            answer = self.panel.answer(number, step)
            if answer.reason is None and not answer.dense:
                return number
            reasons[number] = f"  {self.panel.name(number)}: {answer.reason or 'reads it dense only'}"
        raise PlacementError("\n".join([f"no device takes the copy that is needed: {step}", *reasons.values()]))

    def _copiers(self, device: int) -> Iterator[int]:
        yield device
        yield from self.panel.chosen
        if self.policy != "strict":
            yield from self.panel.spare()

    def output(self, tensor: Tensor) -> Ref:
        """Outputs are read as they lie, so they must be dense."""
        ref = self.refs[tensor]
        if ref.spec.is_dense or ref.value.kind == "constant":
            return ref
        device = ref.value.device if ref.value.device != ANYWHERE else self.panel.chosen[0]
        return self._dense(tensor, device, before="output", why="outputs are read dense")


def split(layout: Layout, panel: Panel, *, one_by_one: bool = False) -> Split:
    """Runs, and the copies between devices: each value at most once a making and device, right before its first use.

    one_by_one: every step is a run, so that something can be looked at between steps.
    """
    work = _Split(panel, layout, one_by_one=one_by_one)
    for item in layout.items:
        if isinstance(item, Move):
            work.moves.append(item)
        else:
            work.add(item)
    outputs = [work.output(ref, panel.chosen[0]) for ref in layout.outputs]
    return Split(work.runs, list(work.leaves.values()), outputs)


_Making = tuple[Value, int, int]  # a value, how often it was updated before, the device it is brought to


class _Split:
    def __init__(self, panel: Panel, layout: Layout, *, one_by_one: bool) -> None:
        self.panel, self.one_by_one = panel, one_by_one
        self.runs: list[Run] = []
        self.leaves: dict[tuple[Value, int], Value] = {}
        self.copies: dict[_Making, Value] = {}
        self.updated: dict[Value, int] = {}
        self.spans = _spans(layout.items, panel)
        self.outside: set[Value] = set()
        self.moves: list[Move] = []

    def add(self, item: Item) -> None:
        run = self._run(item)
        for i, ref in enumerate(item.operands):
            if ref is not None and ref.value.device != item.device:
                item.operands[i] = self._brought(ref, item.device, run)
        if item.updates:
            self.updated[item.result.value] = self.updated.get(item.result.value, 0) + 1
        run.items.append(item)

    def _run(self, item: Item) -> Run:
        limits = self.panel.devices[item.device].target.limits
        if not self.runs or self.runs[-1].device != item.device or self._is_full(item, limits):
            self.runs.append(Run(item.device))
            self.outside = set()
        for move in self.moves:  # the source is of an earlier run, and nothing on its device comes in between
            self.runs[-1].copies.append(Copy(move.source, Ref(move.target, 0, move.target.spec), move.tensor))
        self.moves.clear()
        if limits.max_operands is not None:
            self.outside |= self._from_outside(item)
        return self.runs[-1]

    def _is_full(self, item: Item, limits: Limits) -> bool:
        if self.one_by_one or (limits.max_steps is not None and len(self.runs[-1].items) >= limits.max_steps):
            return True
        return limits.max_operands is not None and len(self.outside | self._from_outside(item)) > limits.max_operands

    def _from_outside(self, item: Item) -> set[Value]:
        made = {i.result.value for i in self.runs[-1].items}
        return {ref.value for ref in item.operands if ref is not None} - made

    def _leaf(self, value: Value, device: int) -> Value:
        known = self.leaves.get((value, device))
        if known is None:
            known = self.leaves[value, device] = Value(value.kind, device, value.spec, value.tensor, value.window)
        return known

    def _brought(self, ref: Ref, device: int, run: Run) -> Ref:
        value = ref.value
        if value.device == ANYWHERE:
            return Ref(self._leaf(value, device), ref.offset, ref.spec)
        making = (value, self.updated.get(value, 0), device)
        low, high = self.spans[making]
        copy = self.copies.get(making)
        if copy is None:
            whole = low == 0 and high == value.spec.nbytes
            spec = value.spec.with_role("temporary") if whole else Spec(u8, (high - low,))
            copy = self.copies[making] = Value("copy", device, spec, value.tensor)
            name = value.tensor.name or value.tensor.op if value.tensor is not None else ""
            run.copies.append(Copy(Ref(value, low, spec), Ref(copy, 0, spec), name))
        return Ref(copy, ref.offset - low, ref.spec)

    def output(self, ref: Ref, device: int) -> Ref:
        if ref.value.kind == "input":
            users = [d for v, d in self.leaves if v is ref.value]
            return Ref(self._leaf(ref.value, users[0] if users else device), ref.offset, ref.spec)
        return ref


def _spans(items: Iterable[Item | Move], panel: Panel) -> dict[_Making, tuple[int, int]]:
    """For everything that crosses: the bytes that its readers on that device touch, start at the device's alignment."""
    spans: dict[_Making, tuple[int, int]] = {}
    updated: dict[Value, int] = {}
    for item in items:
        if isinstance(item, Move):
            continue
        for ref in item.operands:
            if ref is not None and ref.value.device not in (item.device, ANYWHERE):
                making = (ref.value, updated.get(ref.value, 0), item.device)
                low, high = spans.get(making, (ref.offset, ref.offset))
                low = min(low, ref.offset - ref.offset % panel.devices[item.device].alignment)
                spans[making] = low, max(high, ref.offset + ref.spec.extent_nbytes)
        if item.updates:
            updated[item.result.value] = updated.get(item.result.value, 0) + 1
    return spans


def users(runs: Sequence[Run]) -> dict[Value, list[tuple[Item, int]]]:
    """By constant: the items that read it, and as which operand."""
    found: dict[Value, list[tuple[Item, int]]] = {}
    for run in runs:
        for item in run.items:
            for i, ref in enumerate(item.operands):
                if ref is not None and ref.value.kind == "constant":
                    found.setdefault(ref.value, []).append((item, i))
    return found
