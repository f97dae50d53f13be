"""What happened when in one call, as events of Chrome's trace viewer (microseconds since the call began)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .blueprint import Blueprint
from .hookspecs import Span

__all__ = ["events"]

HOST = 0  # the row of this thread; devices have the rows after it

Event = dict[str, Any]


def events(drawn: Blueprint, times: Sequence[float], spans: Mapping[int, Sequence[Span]]) -> list[Event]:
    """The call, its parts on the host, and what devices did by their own account.

    times: seconds of `perf_counter`: when the call began, then the end of each part as far as the call came; none where
    there was no call. spans: by number of the device; those outside of the call are of other work, and left out.
    """
    if not times:
        return []
    first, last = times[0], times[-1]
    found = [_event("call", HOST, first, first, last)]
    for (name, args), start, end in zip(_parts(drawn), times, times[1:], strict=False):
        found.append(_event(name, HOST, first, start, end, args))
    for number, done in sorted(spans.items()):
        inside = [s for s in done if first <= s.start and s.seconds >= 0 and s.start + s.seconds <= last]
        args = {"device": drawn.panel.name(number)}
        found += [_event(s.name, number + 1, first, s.start, s.start + s.seconds, args) for s in inside]
    rows = {HOST: "host"} | {number + 1: drawn.panel.name(number) for number in spans}
    return [*(_row(tid, name) for tid, name in sorted(rows.items())), *found]


def _parts(drawn: Blueprint) -> Iterator[tuple[str, Event]]:
    """Names of the parts of a call in their order, and what each is about."""
    yield "write inputs", {}
    for run in drawn.runs:
        name = drawn.panel.name(run.device)
        if run.copies:
            moved = [
                {"tensor": c.tensor, "from": drawn.panel.name(c.source.value.device), "bytes": c.nbytes}
                for c in run.copies
            ]
            yield f"copy {len(moved)} to {name}", {"device": name, "copies": moved}
        yield f"{name}: {len(run.items)} steps", {"device": name, "nodes": [item.name for item in run.items]}
    yield "read outputs", {}


def _event(name: str, row: int, first: float, start: float, end: float, args: Event | None = None) -> Event:
    times = {"ts": (start - first) * 1e6, "dur": (end - start) * 1e6}
    return {"name": name, "ph": "X", "pid": 0, "tid": row, **times, "args": args or {}}


def _row(row: int, name: str) -> Event:
    return {"name": "thread_name", "ph": "M", "pid": 0, "tid": row, "args": {"name": name}}
