"""What was decided for a plan, as text and as data: devices, copies, layouts, memory, and every reason."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .backend import Reason, Step
from .blueprint import WORTHY, Blueprint
from .graph import Tensor
from .memory import reserved
from .placement import steps_of
from .telling import counted, duration, final_step, shares, size, warning

__all__ = ["MemoryReport", "Report", "memory_report", "report_of"]

SCHEMA = "jackfield.explain/1"


@dataclass(frozen=True)
class Report:
    """The report of one plan. Printed, it is a page of text."""

    data: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain data; its first field is the schema."""
        return dict(self.data)

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps(self.data, indent=indent)

    def __str__(self) -> str:
        return _text(self.data)


@dataclass(frozen=True)
class MemoryReport:
    """Bytes by device and class. Printed, it is a table.

    devices: device name to constants (packed and plain, borrowed host memory included), states, temporaries (the
        arena this plan needs), peak (their sum), lower_bound (of temporaries: the largest sum alive at one moment),
        limit (the device's free bytes when the plan was made, 0 for unknown).
    """

    devices: Mapping[str, Mapping[str, int]]

    def to_dict(self) -> dict[str, dict[str, int]]:
        return {name: dict(classes) for name, classes in self.devices.items()}

    def __getitem__(self, device: str) -> Mapping[str, int]:
        return self.devices[device]

    def __str__(self) -> str:
        return "\n".join(_memory_lines(self.devices))


def memory_report(drawn: Blueprint) -> MemoryReport:
    """The bytes a blueprint needs."""
    found: dict[str, dict[str, int]] = {}
    constants: dict[int, dict[object, int]] = {}
    for c in drawn.constants:
        nbytes = reserved(c.nbytes, drawn.panel.devices[c.value.device].alignment)
        constants.setdefault(c.value.device, {})[c.key, c.layout] = nbytes
    states: dict[int, int] = {}
    for tensor, number in drawn.states.items():
        nbytes = reserved(tensor.spec.nbytes, drawn.panel.devices[number].alignment)
        states[number] = states.get(number, 0) + nbytes
    for number in drawn.used():
        arena = drawn.memory.arenas.get(number)
        device = drawn.panel.devices[number]
        classes = {
            "constants": sum(constants.get(number, {}).values()),
            "states": states.get(number, 0),
            "temporaries": arena.nbytes if arena is not None else 0,
        }
        classes["peak"] = sum(classes.values())
        classes["lower_bound"] = arena.lower_bound if arena is not None else 0
        classes["limit"] = device.memory.free
        found[device.name] = classes
    return MemoryReport(found)


def report_of(drawn: Blueprint) -> Report:
    """The full report of a blueprint; made on demand."""
    panel = drawn.panel
    request = drawn.request
    steps = steps_of(drawn.flow)
    runs = [{"device": panel.name(run.device), "nodes": [item.name for item in run.items]} for run in drawn.runs]
    return Report(
        {
            "schema": SCHEMA,
            "policy": request.policy,
            "selection": request.selection,
            "profile": None,
            "warning": warning(drawn),
            "auto": _auto(drawn),
            "pins": _pins(drawn),
            "summary": _summary(drawn, steps),
            "runs": runs,
            "nodes": _nodes(drawn, steps),
            "homes": _homes(drawn, steps),
            "inserted": [
                {
                    "before": i.before,
                    "operand": i.operand,
                    "device": panel.name(i.device),
                    "why": i.why,
                    "bytes": i.nbytes,
                }
                for i in drawn.inserted
            ],
            "packed": [
                {
                    "constant": drawn.flow.name(c.value.tensor) if c.value.tensor is not None else "",
                    "device": panel.name(c.value.device),
                    "layout": c.layout or "plain",
                    "bytes": c.nbytes,
                    "again": c.again,
                }
                for c in drawn.constants
                if c.layout or c.again
            ],
            "memory": memory_report(drawn).to_dict(),
            "notes": [*drawn.notes, *_crowded(drawn)],
        }
    )


def _summary(drawn: Blueprint, steps: Mapping[Tensor, Step]) -> dict[str, Any]:
    copies = [copy for run in drawn.runs for copy in run.copies]
    counts: dict[str, int] = {}
    for node in drawn.flow.nodes:
        name = drawn.panel.name(drawn.placement.device[node])
        counts[name] = counts.get(name, 0) + 1
    work = [drawn.panel.work(final_step(drawn, node, steps[node])) for node in drawn.flow.nodes]
    return {
        "nodes": len(drawn.flow.nodes),
        "by_device": counts,
        "work": {"multiply_adds": sum(w.multiply_adds for w in work), "bytes": sum(w.nbytes for w in work)},
        "share": {name: round(share, 4) for name, share in shares(drawn, steps).items()},
        "copies": len(copies),
        "bytes_moved": sum(copy.nbytes for copy in copies),
        "seconds": drawn.placement.seconds,
        "in_place": drawn.memory.reused,
    }


def _crowded(drawn: Blueprint) -> list[str]:
    """A line for each device whose memory does not hold what all steps it takes would need there."""
    lacks: dict[int, dict[Tensor, Reason]] = {}
    for node in drawn.flow.nodes:
        for number, reason in drawn.placement.asked[node]:
            if reason is not None and reason.code == "memory":
                lacks.setdefault(number, {})[node] = reason
    lines = []
    for number, nodes in sorted(lacks.items()):
        takers = "+".join(dict.fromkeys(drawn.panel.name(drawn.placement.device[node]) for node in nodes))
        count = f"{len(nodes)} of {len(drawn.flow.nodes)} steps"
        why = next(iter(nodes.values()))
        lines.append(f"{drawn.panel.name(number)} lacks memory for {count}, which go to {takers}: {why}")
    return lines


def _auto(drawn: Blueprint) -> dict[str, Any] | None:
    """How `auto` chose: the share of the work that each accelerator takes which was asked, and who may be used."""
    if drawn.request.named:
        return None
    shares = {drawn.panel.name(number): round(share, 4) for number, share in drawn.auto.items()}
    return {"at_least": WORTHY, "shares": shares, "chosen": [drawn.panel.name(n) for n in drawn.panel.chosen]}


def _pins(drawn: Blueprint) -> list[dict[str, Any]]:
    """By pin: its device, and the nodes and states that it holds there or tried to."""
    found: dict[tuple[str, int], list[str]] = {}
    for tensor, pin in drawn.placement.pins.items():
        found.setdefault(pin, []).append(drawn.flow.name(tensor))
    return [{"pin": key, "device": drawn.panel.name(n), "tensors": names} for (key, n), names in found.items()]


def _nodes(drawn: Blueprint, steps: Mapping[Tensor, Step]) -> list[dict[str, Any]]:
    panel, placement = drawn.panel, drawn.placement
    copied: dict[str, list[dict[str, Any]]] = {}
    for run in drawn.runs:
        for copy in run.copies:
            reader = next(
                i.name for i in run.items if any(r is not None and r.value is copy.target.value for r in i.operands)
            )
            source = panel.name(copy.source.value.device)
            copied.setdefault(reader, []).append({"tensor": copy.tensor, "from": source, "bytes": copy.nbytes})
    return [
        {
            "id": drawn.flow.ids[node],
            "op": node.op,
            "out": str(node.spec),
            "device": panel.name(placement.device[node]),
            "wanted": panel.name(placement.asked[node][0][0]),
            "pinned": placement.pins[node][0] if node in placement.pins else None,
            "candidates": _candidates(drawn, node, steps[node]),
            "copies_in": copied.get(drawn.flow.ids[node], []),
        }
        for node in drawn.flow.nodes
    ]


def _candidates(drawn: Blueprint, node: Tensor, step: Step) -> list[dict[str, Any]]:
    """Every device asked: its refusal, or the seconds it would take and, where it was not chosen, why."""
    found: list[dict[str, Any]] = []
    given = drawn.placement.device[node]
    for number, reason in drawn.placement.asked[node]:
        code: str | None = None if reason is None else reason.code
        text, seconds = (None if reason is None else str(reason)), None
        if reason is None:
            seconds = _seconds(drawn, node, step, number)
            if number != given:
                code, text = "cost", _dearer(drawn, seconds, _seconds(drawn, node, step, given), given)
        found.append(
            {
                "device": drawn.panel.name(number),
                "takes": reason is None,
                "seconds": seconds,
                "code": code,
                "reason": text,
            }
        )
    return found


def _seconds(drawn: Blueprint, node: Tensor, step: Step, number: int) -> float:
    return round(drawn.panel.answer(number, step).seconds, 12) if node.spec.size else 0.0


def _dearer(drawn: Blueprint, seconds: float, given_seconds: float, given: int) -> str:
    """Cost decides for the whole graph: a step may go where it is slower, because copies are saved."""
    name = drawn.panel.name(given)
    times = f"{duration(given_seconds)} there, {duration(seconds)} here"
    return f"cheaper on {name}: {times}" if seconds > given_seconds else f"cheaper on {name} with its copies: {times}"


def _homes(drawn: Blueprint, steps: Mapping[Tensor, Step]) -> list[dict[str, Any]]:
    """Where each state and constant lies, and the step that brings it there: an update of a state, else a reader."""
    panel, placement, spots = drawn.panel, drawn.placement, drawn.flow.spots
    bringers: dict[tuple[Tensor, int], list[Tensor]] = {(state, n): [] for state, n in drawn.states.items()}
    for node in drawn.flow.nodes:
        for operand in dict.fromkeys(spots[o].origin for o in node.operands if o is not None):
            key = operand, placement.device[node]
            if operand.kind == "constant" or key in bringers:
                bringers.setdefault(key, []).append(node)
    found = []
    for (leaf, number), nodes in bringers.items():
        updates = [n for n in drawn.flow.updates.get(leaf, ()) if leaf.kind == "state"]
        first = next(iter(updates or nodes), None)
        others = [] if first is None else [c for c in _candidates(drawn, first, steps[first]) if c["code"] == "cost"]
        found.append(
            {
                "tensor": drawn.flow.name(leaf),
                "kind": leaf.kind,
                "device": panel.name(number),
                "bytes": leaf.spec.nbytes,
                "step": drawn.flow.ids[first] if first is not None else None,
                "lived_there": leaf.kind == "state" and leaf.name in drawn.request.homes,
                "pinned": placement.pins[leaf][0] if leaf in placement.pins else None,
                "others": [{k: c[k] for k in ("device", "seconds", "reason")} for c in others],
            }
        )
    return found


# Text


def _text(data: Mapping[str, Any]) -> str:
    s = data["summary"]
    shares = ", ".join(f"{name} {n} ({s['share'][name]:.0%} of the work)" for name, n in s["by_device"].items())
    head = f"{data['selection']}, policy {data['policy']}: {counted(s['nodes'], 'node')}: {shares or 'nothing runs'}"
    lines = [f"{head}; {counted(s['copies'], 'copy')}, {size(s['bytes_moved'])}"]
    lines += [f"warned: {data['warning']}"] if data["warning"] else []
    lines += [f"note: {note}" for note in data["notes"]]
    nodes = {node["id"]: node for node in data["nodes"]}
    for number, run in enumerate(data["runs"]):
        lines.append(f"run {number} on {run['device']}, {counted(len(run['nodes']), 'step')}")
        for name in run["nodes"]:
            lines += _node_lines(name, nodes.get(name))
    for i in data["inserted"]:
        lines.append(
            f"copy inserted before {i['before']} on {i['device']}: {i['operand']}, {size(i['bytes'])}; {i['why']}"
        )
    for h in data["homes"]:
        lines += [f"{h['kind']} {h['tensor']} on {h['device']}, pinned by {h['pinned']!r}"] if h["pinned"] else []
        lines += [
            f"{h['kind']} {h['tensor']} on {h['device']} with {h['step']}, not on {o['device']}: {o['reason']}"
            for o in h["others"]
        ]
    for p in data["packed"]:
        second = ", a second copy" if p["again"] else ""
        lines.append(f"constant {p['constant']} on {p['device']} as {p['layout']}, {size(p['bytes'])}{second}")
    return "\n".join([*lines, *_memory_lines(data["memory"])])


def _node_lines(name: str, node: Mapping[str, Any] | None) -> list[str]:
    if node is None:
        return [f"  {name}: inserted"]
    lines = [f"  {name} -> {node['out']}"]
    lines += [f"    pinned by {node['pinned']!r}"] if node["pinned"] is not None else []
    lines += [f"    not on {c['device']}: {c['reason']}" for c in node["candidates"] if c["reason"] is not None]
    lines += [f"    copied in: {c['tensor']} from {c['from']}, {size(c['bytes'])}" for c in node["copies_in"]]
    return lines


def _memory_lines(devices: Mapping[str, Mapping[str, int]]) -> list[str]:
    lines = []
    for name, m in devices.items():
        limit = f", free {size(m['limit'])}" if m["limit"] else ""
        lines.append(
            f"memory {name}: constants {size(m['constants'])}, states {size(m['states'])}, "
            f"temporaries {size(m['temporaries'])} (at least {size(m['lower_bound'])}), peak {size(m['peak'])}{limit}"
        )
    return lines
