"""In which order a graph runs: makers before users, and readers of a state's old value before what changes it (M12).

Pure functions on the graph. Nothing is placed here; the order is the one every later stage keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .errors import GraphError, PlanError
from .graph import Tensor, toposort
from .op import OPS
from .spec import Spec

__all__ = ["Flow", "Spot", "is_update", "order", "targets_of", "together"]


@dataclass(eq=False, slots=True)  # never changed, but thousands are made, and frozen ones take three times as long
class Spot:
    """Where a tensor's bytes come from before anything is placed.

    origin: the leaf or node that brings the memory, found through views and through targets of updates.
    offset: bytes from the origin's first byte.
    past: the updates of that memory which this value includes.
    """

    origin: Tensor
    offset: int
    past: frozenset[Tensor]


@dataclass(frozen=True, eq=False)
class Flow:
    """A graph in execution order.

    changes: new values of states that are made though no output reads them. nodes: what runs, in order; ids: a short
    stable name of every node.
    """

    outputs: tuple[Tensor, ...]
    changes: tuple[Tensor, ...]
    tensors: tuple[Tensor, ...]
    nodes: tuple[Tensor, ...]
    spots: dict[Tensor, Spot]
    ids: dict[Tensor, str]
    updates: dict[Tensor, list[Tensor]]
    readers: dict[Tensor, list[tuple[Tensor, Tensor]]]

    def name(self, tensor: Tensor) -> str:
        """The user's name, else the node's id, else what it is."""
        return tensor.name or self.ids.get(tensor) or tensor.op or tensor.kind

    def making(self, tensor: Tensor) -> Tensor:
        """The leaf or node that last wrote this value."""
        while tensor.kind == "view":
            (base, *_) = tensor.operands
            assert base is not None
            tensor = base
        return tensor

    def overlap(self, a: Tensor, b: Tensor) -> bool:
        """Two tensors of one origin may share a byte."""
        return _overlap(self.spots[a].offset, a.spec, self.spots[b].offset, b.spec)


def is_update(tensor: Tensor) -> bool:
    """A node whose result is the new value of its first operand."""
    return tensor.kind == "node" and OPS[tensor.op].updates


def targets_of(update: Tensor) -> list[Tensor]:
    """The operands that a node changes, the one whose new value it is first."""
    return [operand for i in OPS[update.op].targets if (operand := update.operands[i]) is not None]


def order(outputs: Sequence[Tensor], changes: Sequence[Tensor] = ()) -> Flow:
    """The Flow of all that the outputs and the changes of states need.

    Raises: PlanError where the old value of a state is read after the step that changes it, or where a target can't be
    written; GraphError when there is nothing to make, when an output is no Tensor or a change no new value of a state.
    """
    for what, tensors_given in (("an output", outputs), ("a change", changes)):
        for tensor in tensors_given:
            if not isinstance(tensor, Tensor):
                raise GraphError(f"{what} is a {type(tensor).__name__}; outputs and changes are Tensors")
    if not outputs and not changes:
        raise GraphError("no output is given; a plan needs at least one, or a change of a state")
    tensors = toposort([*outputs, *changes])
    spots = _spots(tensors)
    _check_changes(changes, spots)
    updates: dict[Tensor, list[Tensor]] = {}
    for tensor in tensors:
        if is_update(tensor):
            _check_targets(tensor, spots)
            for origin in _changed(tensor, spots):
                updates.setdefault(origin, []).append(tensor)
    readers = _readers(tensors, spots, updates)
    before = _edges(updates, readers, spots)
    if before:
        tensors = _sorted(tensors, before, spots)
    _check_outputs(outputs, updates, spots)
    nodes = tuple(t for t in tensors if t.kind == "node")
    return Flow(tuple(outputs), tuple(changes), tuple(tensors), nodes, spots, _ids(nodes), updates, readers)


def _spots(tensors: Iterable[Tensor]) -> dict[Tensor, Spot]:
    spots: dict[Tensor, Spot] = {}
    none: frozenset[Tensor] = frozenset()
    for tensor in tensors:
        kind = tensor.kind
        if kind == "view" or (kind == "node" and OPS[tensor.op].updates):
            base = tensor.operands[0]
            assert base is not None
            spot = spots[base]
            past = spot.past if kind == "view" else spot.past | {tensor}
            spots[tensor] = Spot(spot.origin, spot.offset + tensor.offset, past)
        else:
            spots[tensor] = Spot(tensor, 0, none)
    return spots


def _changed(update: Tensor, spots: Mapping[Tensor, Spot]) -> dict[Tensor, list[Tensor]]:
    """By origin: the targets in its memory. Of what is no state only the first target, which the result stands for."""
    found: dict[Tensor, list[Tensor]] = {}
    for i, target in enumerate(targets_of(update)):
        origin = spots[target].origin
        if i == 0 or origin.kind == "state":
            found.setdefault(origin, []).append(target)
    return found


def _check_targets(update: Tensor, spots: Mapping[Tensor, Spot]) -> None:
    for target in targets_of(update):
        _check_target(update, target, spots)
    for origin, (first, *others) in _changed(update, spots).items():
        for other in others:
            if _overlap(spots[first].offset, first.spec, spots[other].offset, other.spec):
                raise PlanError(
                    f"[{update.op}] two of its targets lie over each other in {origin!r}; each needs memory of its own"
                )


def _check_target(update: Tensor, target: Tensor, spots: Mapping[Tensor, Spot]) -> None:
    if target.spec.overlaps_itself:
        raise PlanError(
            f"[{update.op}] the target {target.spec} is a broadcast view; a target's elements must be distinct"
        )
    origin = spots[target].origin
    if origin.op != "contiguous":
        return
    (copied, *_) = origin.operands
    assert copied is not None
    state = spots[copied].origin
    if state.kind == "state":
        raise PlanError(
            f"[{update.op}] the target is a copy of the state {state.name!r} (a reshape that no strides express, or a "
            f"contiguous), so the state would not change; update a reshaped, transposed or sliced view of it"
        )


def _readers(
    tensors: Iterable[Tensor], spots: dict[Tensor, Spot], updates: dict[Tensor, list[Tensor]]
) -> dict[Tensor, list[tuple[Tensor, Tensor]]]:
    """By origin of what is updated: (node, operand) for every use by a node, the updates' own targets included."""
    readers: dict[Tensor, list[tuple[Tensor, Tensor]]] = {origin: [] for origin in updates}
    if updates:
        for node in tensors:
            if node.kind == "node":
                for operand in node.operands:
                    if operand is not None and spots[operand].origin in readers:
                        readers[spots[operand].origin].append((node, operand))
    return readers


def _edges(
    updates: dict[Tensor, list[Tensor]], readers: dict[Tensor, list[tuple[Tensor, Tensor]]], spots: dict[Tensor, Spot]
) -> dict[Tensor, list[Tensor]]:
    """For each update of a state: the nodes that must run before it because they read what it overwrites."""
    before: dict[Tensor, list[Tensor]] = {}
    for origin, changes in updates.items():
        if origin.kind != "state":
            continue
        for update in changes:
            targets = _changed(update, spots)[origin]
            for node, operand in readers[origin]:
                spot = spots[operand]
                if (
                    node is not update
                    and update not in spot.past
                    and any(_overlap(spots[t].offset, t.spec, spot.offset, operand.spec) for t in targets)
                ):
                    before.setdefault(update, []).append(node)
    return before


def _overlap(a: int, spec_a: Spec, b: int, spec_b: Spec) -> bool:
    """Two windows of one memory may share a byte. Windows with the same strides are compared axis by axis."""
    if a > b:
        a, spec_a, b, spec_b = b, spec_b, a, spec_a
    return b < a + spec_a.extent_nbytes and spec_b.size > 0 and not _apart(b - a, spec_a, spec_b)


def _apart(gap: int, low: Spec, high: Spec) -> bool:
    """Two windows with equal strides, `high` starting `gap` bytes behind `low`, never meet on some axis.

    The strides, from large to small, are read as the places of a number system; that holds while the reach of all
    smaller places stays below the next larger one. Then the windows are boxes, and boxes meet only if they meet on
    every axis.
    """
    if low.byte_strides != high.byte_strides or low.overlaps_itself or high.overlaps_itself:
        return False
    item = low.dtype.block_nbytes
    axes = sorted((s, n, m) for s, n, m in zip(low.byte_strides, low.units, high.units, strict=True) if max(n, m) > 1)
    if not axes or axes[0][0] > item:
        axes.insert(0, (item, 1, 1))
    starts = []
    for stride, _, _ in reversed(axes):
        start, gap = divmod(gap, stride)
        starts.append(start)
    reach, disjoint = 0, False
    for (stride, n, m), start in zip(axes, reversed(starts), strict=True):
        if stride < reach:
            return False
        reach += max(n - 1, start + m - 1) * stride + (item if not reach else 0)
        disjoint |= start >= n
    return disjoint and not gap


def _sorted(tensors: list[Tensor], before: dict[Tensor, list[Tensor]], spots: dict[Tensor, Spot]) -> list[Tensor]:
    """The same order, moved no more than the additional edges ask. Raises PlanError for a cycle."""
    at = {tensor: i for i, tensor in enumerate(tensors)}
    if all(at[node] < at[update] for update, nodes in before.items() for node in nodes):
        return tensors
    done: dict[Tensor, bool] = {}  # False: being worked on
    stack = list(reversed(tensors))
    while stack:
        tensor = stack[-1]
        if tensor in done:
            stack.pop()
            if not done[tensor]:
                del done[tensor]  # so that insertion order is the order of completion
                done[tensor] = True
            continue
        done[tensor] = False
        for need in reversed([*(o for o in tensor.operands if o is not None), *before.get(tensor, ())]):
            if need not in done:
                stack.append(need)
            elif not done[need]:
                _raise_cycle(before, spots)
    return list(done)


def _raise_cycle(before: dict[Tensor, list[Tensor]], spots: Mapping[Tensor, Spot]) -> None:
    for update, nodes in before.items():
        for node in nodes:
            if _needs(node, update, before):
                read = {spots[o].origin for o in node.operands if o is not None and update not in spots[o].past}
                name = next(o.name for o in _changed(update, spots) if o in read)
                raise PlanError(
                    f"state {name!r}: {node!r} reads the value from before {update!r}, but must run after it; "
                    f"read the result of the update, or keep the old value with contiguous first"
                )
    raise AssertionError("a cycle has an edge that closes it")


def _needs(tensor: Tensor, other: Tensor, before: dict[Tensor, list[Tensor]]) -> bool:
    """`tensor` runs after `other`, by data or by the additional edges."""
    seen: set[Tensor] = set()
    stack = [tensor]
    while stack:
        one = stack.pop()
        if one is other:
            return True
        if one not in seen:
            seen.add(one)
            stack += [o for o in one.operands if o is not None]
            stack += before.get(one, ())
    return False


def together(flow: Flow) -> dict[Tensor, list[Tensor]]:
    """By state: all states, itself among them, that steps change together, in the order of the graph."""
    groups: dict[Tensor, list[Tensor]] = {}
    for node in flow.nodes:
        if len(OPS[node.op].targets) > 1:
            states = [origin for origin in _changed(node, flow.spots) if origin.kind == "state"]
            joined = dict.fromkeys(other for state in states for other in groups.get(state, [state]))
            groups.update((state, list(joined)) for state in joined)
    at = {tensor: i for i, tensor in enumerate(flow.tensors)}
    return {state: sorted(group, key=at.__getitem__) for state, group in groups.items()}


def _check_changes(changes: Iterable[Tensor], spots: dict[Tensor, Spot]) -> None:
    for tensor in changes:
        spot = spots[tensor]
        if spot.origin.kind != "state" or not spot.past:
            raise GraphError(
                f"the change {tensor!r} is no new value of a state; "
                f"give the result of an update of one, such as put_rows"
            )


def _check_outputs(outputs: Iterable[Tensor], updates: dict[Tensor, list[Tensor]], spots: dict[Tensor, Spot]) -> None:
    """Outputs are read when everything has run, so an output must not be the old value of a state."""
    for output in outputs:
        spot = spots[output]
        if spot.origin.kind != "state":
            continue
        for update in updates.get(spot.origin, ()):
            targets = _changed(update, spots)[spot.origin]
            apart = not any(_overlap(spots[t].offset, t.spec, spot.offset, output.spec) for t in targets)
            if update not in spot.past and not apart:
                raise PlanError(
                    f"state {spot.origin.name!r}: the output {output!r} is the value from before {update!r}; make the "
                    f"result of the update an output, or keep the old value with contiguous first"
                )


def _ids(nodes: Iterable[Tensor]) -> dict[Tensor, str]:
    counts: dict[str, int] = {}
    ids: dict[Tensor, str] = {}
    for node in nodes:
        count = counts.get(node.op, 0)
        counts[node.op] = count + 1
        ids[node] = f"{node.op}.{count}"
    return ids
