"""All decisions about one graph, before anything is allocated: order, devices, copies, layouts of constants, memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .backend import Step
from .candidates import Memo, Panel
from .errors import PlacementError, PlanError
from .graph import Source, Tensor
from .memory import Memory, plan_memory
from .opened import OpenDevice
from .packing import Constant, Key, choose
from .partition import Inserted, Run, Split, lay_out, split
from .placement import Pins, Placement, Policy, assign, steps_of
from .updates import Flow, order

__all__ = ["WORTHY", "Blueprint", "Request", "draw", "percent"]


WORTHY = 0.5  # share of the declared work from which on `auto` takes an accelerator
_TOLD = 10  # copies that one error lists


def _nothing_held(_device: str, _key: Key) -> Mapping[str, int]:
    return {}


def _by_object(source: Source) -> Key:
    return (id(source),)


@dataclass(frozen=True)
class Request:
    """What is asked of a compile, and what the Session has already.

    devices: of the selection, best first; named: the user named them. fallbacks: opens what may take over; called when
        it is needed, and never under policy "strict" for named devices.
    homes: state name to device name. held: layouts of a constant on a device, to bytes. identity: of a source.
    checks: words of JACKFIELD_CHECK; any of them makes runs of one step each. guard: bytes behind every reservation.
    max_copies: how many copies between devices a call may take; None: any number. notes: of the selection, for reports.
    """

    devices: Sequence[OpenDevice]
    fallbacks: Callable[[], Sequence[OpenDevice]]
    selection: str
    named: bool
    policy: Policy
    pins: Pins = ()
    homes: Mapping[str, str] = field(default_factory=dict)
    held: Callable[[str, Key], Mapping[str, int]] = _nothing_held
    identity: Callable[[Source], Key] = _by_object
    memo: Memo = field(default_factory=dict)
    guard: int = 0
    checks: frozenset[str] = frozenset()
    max_copies: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(eq=False)
class Blueprint:
    """One graph, decided. Numbers of devices count `panel.devices`.

    inputs: by name, in the order of the graph. states: leaves, and the devices they live on. changed: names of states
    that a call changes. auto: the share of the work that each accelerator takes which `auto` asked.
    """

    outputs: tuple[Tensor, ...]
    changes: tuple[Tensor, ...]
    request: Request
    panel: Panel
    placement: Placement
    inserted: list[Inserted]
    parts: Split
    constants: list[Constant]
    memory: Memory
    notes: list[str]
    inputs: dict[str, Tensor]
    states: dict[Tensor, int]
    changed: frozenset[str]
    nodes: int
    auto: Mapping[int, float]
    _flow: Flow | None

    @property
    def flow(self) -> Flow:
        """The graph in its order; the same one again after `settle`."""
        if self._flow is None:
            self._flow = order(self.outputs, self.changes)
        return self._flow

    @property
    def runs(self) -> list[Run]:
        return self.parts.runs

    def used(self) -> list[int]:
        """Devices that hold or do something."""
        held = {v.device for v in self.parts.leaves} | {r.device for r in self.runs} | set(self.states.values())
        return sorted(held)

    def settle(self) -> None:
        """Let go of what binding never asks for and a report can work out again: half of a Blueprint's memory."""
        self._flow = None
        self.placement.answers = {}
        self.memory.arenas = {n: replace(arena, places=()) for n, arena in self.memory.arenas.items()}
        if not self.request.checks:
            self.memory.reserved, self.memory.moments, self.memory.copy_moments = {}, [], []


def draw(outputs: Sequence[Tensor], request: Request, changes: Sequence[Tensor] = ()) -> Blueprint:
    """Decide everything about the graph of these outputs and changes of states.

    Raises: PlanError and PlacementError of the stages, PlacementError for more copies than are allowed; OutOfMemory for
    a tensor that no allocation of its device holds.
    """
    flow = order(outputs, changes)
    _check_names(flow)
    steps = steps_of(flow)
    notes = list(request.notes)
    panel, shares = _panel(flow, steps, request, notes)
    homes = _homes(flow, panel, request)

    def held(number: int, key: Key) -> Mapping[str, int]:
        return request.held(panel.name(number), key)

    placement = assign(
        flow, panel, steps, policy=request.policy, pins=request.pins, homes=homes, room=_room(panel, request)
    )
    layout = lay_out(flow, placement, panel, policy=request.policy)
    parts = split(layout, panel, one_by_one=bool(request.checks))
    if request.max_copies is not None:
        _check_copies(parts, panel, request.max_copies)
    constants = choose(parts.runs, panel, held=held, identity=request.identity)
    memory = plan_memory(parts, panel, guard=request.guard)
    return Blueprint(
        outputs=flow.outputs,
        changes=flow.changes,
        request=request,
        panel=panel,
        placement=placement,
        inserted=layout.inserted,
        parts=parts,
        constants=constants,
        memory=memory,
        notes=[*notes, *placement.notes],
        inputs={t.name: t for t in flow.tensors if t.kind == "input"},
        states={t: placement.device[t] for t in flow.tensors if t.kind == "state"},
        changed=frozenset(t.name for t in flow.updates if t.kind == "state"),
        nodes=len(flow.nodes),
        auto=shares,
        _flow=flow,
    )


def _check_names(flow: Flow) -> None:
    seen: dict[tuple[str, str], Tensor] = {}
    for tensor in flow.tensors:
        if tensor.kind in ("input", "state") and seen.setdefault((tensor.kind, tensor.name), tensor) is not tensor:
            raise PlanError(
                f"two {tensor.kind}s of one graph are called {tensor.name!r}; make it once and use it twice"
            )


def _check_copies(parts: Split, panel: Panel, most: int) -> None:
    copies = [(copy, run.device) for run in parts.runs for copy in run.copies]
    if len(copies) > most:
        lines = [
            f"  {copy.tensor or 'a value'}: {panel.name(copy.source.value.device)} to {panel.name(device)}, "
            f"{copy.nbytes} bytes"
            for copy, device in copies[:_TOLD]
        ]
        more = [f"  and {len(copies) - _TOLD} more"] if len(copies) > _TOLD else []
        word = "copy" if len(copies) == 1 else "copies"
        text = f"a call would take {len(copies)} {word} between devices, max_copies is {most}"
        raise PlacementError("\n".join([text, *lines, *more]))


def _homes(flow: Flow, panel: Panel, request: Request) -> dict[str, int]:
    """Devices of the graph's states that live somewhere already."""
    homes: dict[str, int] = {}
    for tensor in flow.tensors:
        if tensor.kind == "state" and tensor.name in request.homes:
            number = panel.number(request.homes[tensor.name])
            if number is None:
                raise PlanError(
                    f"state {tensor.name!r} lives on {request.homes[tensor.name]}, "
                    f"which is not part of {request.selection!r}"
                )
            homes[tensor.name] = number
    return homes


def _room(panel: Panel, request: Request) -> dict[int, int]:
    """Bytes for constants and states where known. A device the user named alone gets everything, or an error."""
    if request.named and len(panel.chosen) < 2:
        return {}
    return {i: free for i, o in enumerate(panel.devices) if not o.is_host and (free := o.memory.free) > 0}


def _panel(
    flow: Flow, steps: Mapping[Tensor, Step], request: Request, notes: list[str]
) -> tuple[Panel, Mapping[int, float]]:
    """Who may be asked, and what the accelerators take. Without a named device: the first accelerator that takes half
    of the work, and class cpu; when none does, class cpu, then the reference.
    """
    if request.named:
        more = request.fallbacks if request.policy != "strict" else None
        return Panel(list(request.devices), range(len(request.devices)), memo=request.memo, more=more), {}
    fallbacks = request.fallbacks()
    devices = list({o.name: o for o in (*request.devices, *fallbacks)}.values())
    panel = Panel(devices, range(len(request.devices)), range(len(request.devices), len(devices)), request.memo)
    last = {o.name for o in fallbacks}
    accelerators = [i for i, o in enumerate(devices) if o.name not in last]
    host = [i for i in range(len(devices)) if i not in accelerators]
    shares = _shares(flow, steps, panel, accelerators)
    first = [number for number, share in shares.items() if share >= WORTHY]
    panel.chosen = [*first, *host[:-1]] or host
    panel.fallback = [i for i in host if i not in panel.chosen]
    notes.append(_auto_rule(panel, shares))
    return panel, shares


def _auto_rule(panel: Panel, shares: Mapping[int, float]) -> str:
    seen = ", ".join(f"{panel.name(number)} takes {percent(share)}" for number, share in shares.items())
    chosen = "+".join(panel.name(number) for number in panel.chosen)
    return (
        f"auto: the first accelerator that takes at least {WORTHY:.0%} of the declared work, and class cpu; "
        f"{seen or 'no accelerator is here'}: {chosen}"
    )


def percent(share: float) -> str:
    """A share for people, such as "49%"; one that is too little does not read as enough."""
    text = f"{share:.0%}"
    return f"{int(share * 1000) / 10:.1f}%" if share < WORTHY and text == f"{WORTHY:.0%}" else text


def _shares(flow: Flow, steps: Mapping[Tensor, Step], panel: Panel, accelerators: Sequence[int]) -> dict[int, float]:
    """By accelerator: which part of the work it takes. The last one asked is the first that takes enough."""
    shares: dict[int, float] = {}
    if not accelerators:
        return shares
    work = {node: panel.work(steps[node]) for node in flow.nodes}
    total = sum(w.multiply_adds + w.nbytes for w in work.values())
    for number in accelerators:
        taken = sum(
            w.multiply_adds + w.nbytes for node, w in work.items() if panel.answer(number, steps[node]).reason is None
        )
        shares[number] = taken / total if total else 1.0
        if shares[number] >= WORTHY:
            break
    return shares
