"""Which device makes which node (rules P1 to P13). Pure functions on data; nothing is allocated.

Pins and homes of states restrict what a node may choose from; among what is left the least predicted time decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from .backend import Reason, Step
from .candidates import Answer, Panel
from .errors import PlacementError, PlanError
from .graph import Tensor
from .op import OPS
from .search import Crossing, Decision, Problem, solve
from .updates import Flow, targets_of, together

__all__ = ["Pins", "Placement", "Policy", "assign", "predicted", "steps_of"]

Policy = Literal["strict", "prefer", "auto"]
Pins = Sequence[tuple["Tensor | str", str]]
Asked = tuple[tuple[int, Reason | None], ...]
_TOLD = 10  # refused nodes that one error lists


@dataclass
class Placement:
    """The answer: a device for every node and state, and why.

    answers: by node, what its device said. asked: by node, every device asked with its refusal or None, first asked
        first. seconds: predicted for a call. notes: for the report; idle: those of them about pins that match nothing.
    pins: by node and state, the pin that it answers to, in words, and the device that pin names.
    """

    device: dict[Tensor, int]
    answers: dict[Tensor, Answer]
    asked: dict[Tensor, Asked]
    seconds: float
    notes: list[str] = field(default_factory=list)
    idle: tuple[str, ...] = ()
    pins: Mapping[Tensor, tuple[str, int]] = field(default_factory=dict)


def steps_of(flow: Flow) -> dict[Tensor, Step]:
    """The step of every node, operands with the strides they have in the graph; equal steps are one object."""
    known: dict[Step, Step] = {}
    by_parts: dict[tuple[object, ...], Step] = {}  # by the parts themselves, which are faster to compare than Steps
    steps: dict[Tensor, Step] = {}
    for node in flow.nodes:
        specs = [o.spec if o is not None else None for o in node.operands]
        parts = (node.op, id(node.spec), id(node.attrs), *map(id, specs))
        step = by_parts.get(parts)
        if step is None:
            step = Step(node.op, tuple(specs), node.spec, node.attrs)
            step = by_parts[parts] = known.setdefault(step, step)
        steps[node] = step
    return steps


def assign(
    flow: Flow,
    panel: Panel,
    steps: Mapping[Tensor, Step],
    *,
    policy: Policy,
    pins: Pins = (),
    homes: Mapping[str, int] | None = None,
    room: Mapping[int, int] | None = None,
    weight: Callable[[Tensor, int], int] = lambda tensor, _: tensor.spec.nbytes,
) -> Placement:
    """Place every node.

    pins: (tensor or pattern, device name), first match wins; a pattern must match a tensor's name or a node's id in
        full. homes: devices of states that exist already. room: bytes for constants and states by device, where known.
        weight: bytes a constant or state would newly take on a device.
    Raises: PlacementError with all reasons where no allowed device takes a node; PlanError for an unknown device in a
        pin.
    """
    work = _Assignment(flow, panel, steps, policy, dict(homes or {}))
    work.pin(pins)
    placed = work.solve()
    for number, free in sorted((room or {}).items()):
        while work.crowded(placed, number, free, weight):
            placed = work.solve()
    return placed


def predicted(flow: Flow, panel: Panel, steps: Mapping[Tensor, Step], policy: Policy) -> tuple[Problem, list[Tensor]]:
    """The search problem of a graph without pins, and the tensors its decisions stand for; for tests and reports."""
    work = _Assignment(flow, panel, steps, policy, {})
    work.solve()
    return work.problem, work.decided


class _Assignment:
    def __init__(
        self, flow: Flow, panel: Panel, steps: Mapping[Tensor, Step], policy: Policy, homes: dict[str, int]
    ) -> None:
        self.flow, self.panel, self.steps, self.policy, self.homes = flow, panel, steps, policy, homes
        self.pinned: dict[Tensor, int] = {}
        self.pins: dict[Tensor, tuple[str, int]] = {}
        self.lived = frozenset(homes)  # states that have a home whatever a pin says
        self.banned: dict[tuple[Tensor, int], Reason] = {}
        self.asked: dict[Tensor, dict[int, Reason | None]] = {}
        self.plain: dict[int, tuple[dict[int, Reason | None], dict[int, float]]] = {}
        self.notes: list[str] = []
        self.idle: list[str] = []
        self.problem: Problem
        self.decided: list[Tensor] = []

    # Pins

    def pin(self, pins: Pins) -> None:
        for key, name in pins:
            number = self.panel.number(name)
            if number is None:
                there = ", ".join(o.name for o in self.panel.devices)
                raise PlanError(f"pin {_key(key)!r}: no device {name!r} in this selection; it has {there}")
            matched = self._matching(key)
            held = [tensor for one in matched for tensor in self._pin(one, number)]
            text = key if isinstance(key, str) or not matched else self.flow.name(matched[0])
            for tensor in held:
                self.pins.setdefault(tensor, (str(text), number))
            if not held and (why := self._idle(matched)):
                self.idle.append(f"pin {_key(key)!r} {why}")

    def _idle(self, matched: Sequence[Tensor]) -> str:
        """Why a pin holds nothing; "" where that is told already."""
        kinds = {tensor.kind for tensor in matched}
        if not matched:
            return "matches nothing"
        if "state" in kinds:
            return ""
        if "constant" in kinds:
            return "draws no node: each that reads it has a larger constant"
        return "is on an input, which lies where it is read"

    def _matching(self, pattern: Tensor | str) -> list[Tensor]:
        """Of a view it is what makes its memory."""
        if isinstance(pattern, Tensor):
            made = self.flow.making(pattern)
            return [made] if made in self.flow.spots else []
        try:
            compiled = re.compile(pattern)
        except re.error as e:
            raise PlanError(f"pin {pattern!r} is no regular expression: {e}") from None
        return [t for t in self.flow.tensors if t.kind != "view" and compiled.fullmatch(self.flow.name(t))]

    def _pin(self, tensor: Tensor, number: int) -> list[Tensor]:
        """What the pin holds. A pin on a constant or state pins the nodes that it draws to itself."""
        if tensor.kind == "constant":
            nodes = [node for node in self.flow.nodes if self._largest_constant(node) is tensor]
        else:
            nodes = [tensor] if tensor.kind == "node" else []
        for node in nodes:
            self.pinned.setdefault(node, number)
        if tensor.kind != "state":
            return nodes
        home = self.homes.setdefault(tensor.name, number)
        if home != number and tensor.name in self.lived:
            where = self.panel.name(home)
            self.notes.append(f"state {tensor.name!r} stays on {where}, although a pin names {self.panel.name(number)}")
        return [tensor] if home == number else []

    def _largest_constant(self, node: Tensor) -> Tensor | None:
        spots = self.flow.spots
        found = [spots[o].origin for o in node.operands if o is not None and spots[o].origin.kind == "constant"]
        return max(found, key=lambda t: t.spec.nbytes, default=None)

    # Candidates

    def _ask(self, node: Tensor, number: int) -> Reason | None:
        if (reason := self.banned.get((node, number))) is None and node.spec.size:
            reason = self.panel.answer(number, self.steps[node]).reason
        self.asked[node] = {**self.asked.get(node, {}), number: reason}  # a new one: nodes may share the old
        return reason

    def _takers(self, nodes: Sequence[Tensor]) -> list[int]:
        """Devices that take all of these nodes: a pinned one, else the chosen ones, else the first fallback."""
        for number in dict.fromkeys(self.pinned[n] for n in nodes if n in self.pinned):
            if self._all_take(nodes, number):
                return [number]
            reason = next(r for n in nodes if (r := self.asked[n].get(number)) is not None)
            text = f"{self.flow.ids[nodes[0]]} is pinned to {self.panel.name(number)}, which refuses it: {reason}"
            if self.policy == "strict":
                raise PlacementError(text)
            self.notes.append(text)
        takers = [number for number in self.panel.chosen if self._all_take(nodes, number)]
        if not takers and self.policy != "strict":
            takers = [n for n in self.panel.spare() if self._all_take(nodes, n)][:1]
        return takers

    def _all_take(self, nodes: Sequence[Tensor], number: int) -> bool:
        taken = True
        for node in nodes:  # all are asked, so that every reason is known
            taken = self._ask(node, number) is None and taken
        return taken

    def _state_takers(self, state: Tensor) -> list[int]:
        """Devices a state may live on: where it lives already, else those that take all steps which change it."""
        changes = self.flow.updates.get(state, [])
        home = self.homes.get(state.name)
        if home is not None:
            if not self._all_take(changes, home):
                raise self._refused(changes, f"state {state.name!r} lives on {self.panel.name(home)}")
            return [home]
        if not changes:
            return list(self.panel.chosen)
        return self._takers(changes)

    def _refused(self, nodes: Sequence[Tensor], text: str) -> PlacementError:
        lines = [text]
        for node in nodes[:_TOLD]:
            lines.append(f"{self.flow.ids[node]}: {self.steps[node]}")
            lines += [f"  {self.panel.name(d)}: {reason or 'takes it'}" for d, reason in self.asked[node].items()]
        if len(nodes) > _TOLD:
            lines.append(f"and {len(nodes) - _TOLD} more")
        return PlacementError("\n".join(lines))

    # The search

    def solve(self) -> Placement:
        self.asked, self.plain = {}, {}
        decisions = self._decisions()
        self.problem = Problem(decisions, self._legs(), self._moved(), self._wanted())
        choice, seconds = solve(self.problem)
        device = dict(zip(self.decided, choice, strict=True))
        answers = {
            node: self.panel.answer(device[node], self.steps[node])
            if node.spec.size
            else Answer(None, self.steps[node])
            for node in self.flow.nodes
        }
        same: dict[int, Asked] = {}
        asked: dict[Tensor, Asked] = {}
        for node, by in self.asked.items():
            known = same.get(id(by))
            asked[node] = known if known is not None else same.setdefault(id(by), tuple(by.items()))
        notes = list(dict.fromkeys([*self.idle, *self.notes]))
        return Placement(device, answers, asked, seconds, notes, tuple(self.idle), self.pins)

    def _decisions(self) -> list[Decision]:
        self.number = {tensor: i for i, tensor in enumerate(self.flow.tensors)}
        self.decided = []
        decisions: list[Decision] = []
        homes: dict[Tensor, list[int]] = {}
        refused: list[Tensor] = []
        groups = together(self.flow)
        for tensor in self.flow.tensors:
            if tensor.kind == "state":
                first, *others = groups.get(tensor, [tensor])
                homes[tensor] = homes[first] if first in homes else self._homes_of(first, others)
                tied = None if tensor is first else self.number[first]
                seconds = dict.fromkeys(homes[tensor], 0.0)
                decisions.append(Decision(seconds, (), self.number[tensor], tied, runs=False))
                self.decided.append(tensor)
            elif tensor.kind == "node":
                decision = self._decision(tensor, homes)
                if decision is None:
                    refused.append(tensor)
                else:
                    decisions.append(decision)
                    self.decided.append(tensor)
        if refused:
            allowed = "a chosen device" if self.policy == "strict" else "any device"
            raise self._refused(refused, f"{len(refused)} of {len(self.flow.nodes)} steps are not taken by {allowed}")
        return decisions

    def _homes_of(self, state: Tensor, others: Sequence[Tensor]) -> list[int]:
        """Devices for a state, and for others that change together with it."""
        homes = self._state_takers(state)
        if not homes:
            raise self._refused(self.flow.updates[state], f"no device takes all steps that change state {state.name!r}")
        for other in others:
            theirs = self._state_takers(other)
            homes = [device for device in homes if device in theirs]
            if not homes:
                text = f"states {state.name!r} and {other.name!r} change together, and no device can hold both"
                raise self._refused(self.flow.updates[other], text)
        return homes

    def _changed_state(self, node: Tensor) -> Tensor | None:
        """A state that the node changes; where it changes several, they share a home."""
        if not OPS[node.op].updates:
            return None
        origins = (self.flow.spots[target].origin for target in targets_of(node))
        return next((origin for origin in origins if origin.kind == "state"), None)

    def _decision(self, node: Tensor, homes: Mapping[Tensor, list[int]]) -> Decision | None:
        state = self._changed_state(node)
        seconds = self._choices(node) if state is None else self._seconds(node, homes[state])
        if not seconds:
            return None
        uses: dict[int, None] = {}
        for operand in node.operands:
            if operand is not None:
                made = operand if operand.kind != "view" else self.flow.making(operand)
                if made.kind != "constant":
                    uses[self.number[made]] = None
        tied = None if state is None else self.number[state]
        return Decision(seconds, tuple(uses), self.number[node], tied)

    def _choices(self, node: Tensor) -> dict[int, float]:
        """Seconds by device that takes the node. Nodes of one step that nobody pinned or banned share one answer."""
        step = self.steps[node]
        plain = not self.pinned and not self.banned and node.spec.size
        known = self.plain.get(id(step)) if plain else None
        if known is None:
            seconds = self._seconds(node, self._takers([node]))
            if plain:
                self.plain[id(step)] = self.asked[node], seconds
            return seconds
        self.asked[node], seconds = known
        return seconds

    def _seconds(self, node: Tensor, takers: Sequence[int]) -> dict[int, float]:
        if not node.spec.size:
            return dict.fromkeys(takers, 0.0)
        return {d: self.panel.answer(d, self.steps[node]).seconds for d in takers}

    def _legs(self) -> list[Crossing]:
        rates = [o.target.rates for o in self.panel.devices]
        return [Crossing(r.copy_launch, r.copy_nbytes) for r in rates]

    def _moved(self) -> dict[int, int]:
        return {i: tensor.spec.extent_nbytes for tensor, i in self.number.items()}

    def _wanted(self) -> frozenset[int]:
        return frozenset(self.number[self.flow.making(t)] for t in self.flow.outputs)

    # Room for constants and states

    def crowded(self, placed: Placement, number: int, free: int, weight: Callable[[Tensor, int], int]) -> bool:
        """Take nodes from a device whose constants and states exceed its room, from the end; whether any was taken."""
        used, seen, moved = 0, set[Tensor](), False
        for node in self.flow.nodes:
            if placed.device[node] != number:
                continue
            leaves = {self.flow.spots[o].origin for o in node.operands if o is not None}
            fresh = [t for t in leaves - seen if t.kind in ("constant", "state")]
            nbytes = sum(weight(t, number) for t in fresh)
            if used + nbytes > free and fresh and self._may_move(node, number):
                left = max(0, free - used)
                text = f"{self.flow.ids[node]}: {nbytes} bytes of constants and states, {left} free of {free}"
                self.banned[node, number] = Reason(text, "memory")
                moved = True
            else:
                used += nbytes
                seen.update(fresh)
        return moved

    def _may_move(self, node: Tensor, number: int) -> bool:
        """Another device of the selection, or a fallback, takes the node; pinned nodes and updates of states stay."""
        if node in self.pinned or self._changed_state(node) is not None:
            return False
        if any(d != number and self._ask(node, d) is None for d in self.panel.chosen):
            return True
        return self.policy != "strict" and any(self._ask(node, d) is None for d in self.panel.spare() if d != number)


def _key(key: Tensor | str) -> str:
    return key if isinstance(key, str) else repr(key)
