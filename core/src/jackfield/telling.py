"""What a compile says in the log: one WARNING where something is not as it was asked for, each refusal once at INFO.

`explain` says the same, by the same functions.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from .backend import Reason, Step
from .blueprint import WORTHY, Blueprint, percent
from .graph import Tensor
from .placement import steps_of
from .registry import ACCELERATORS

__all__ = ["counted", "duration", "final_step", "shares", "size", "summary", "tell", "warning"]

_REASONS = 3  # reasons that one line of the summary lists


def shares(drawn: Blueprint, steps: Mapping[Tensor, Step]) -> dict[str, float]:
    """By device that makes a node: its part of the declared work, multiply-adds and bytes; 0 where there is none."""
    parts: dict[str, int] = {}
    for node in drawn.flow.nodes:
        work = drawn.panel.work(final_step(drawn, node, steps[node]))
        name = drawn.panel.name(drawn.placement.device[node])
        parts[name] = parts.get(name, 0) + work.multiply_adds + work.nbytes
    total = sum(parts.values())
    return {name: part / total if total else 0.0 for name, part in parts.items()}


def final_step(drawn: Blueprint, node: Tensor, step: Step) -> Step:
    """The step as its device gets it, copied operands dense."""
    return drawn.panel.answer(drawn.placement.device[node], step).step if node.spec.size else step


def summary(drawn: Blueprint) -> str:
    """One line: nodes by device, with why they are not where they were wanted; copies."""
    counts: dict[int, int] = {}
    why: dict[int, dict[str, None]] = {}
    for node in drawn.flow.nodes:
        device = drawn.placement.device[node]
        counts[device] = counts.get(device, 0) + 1
        if (reason := _why_moved(drawn, node)) is not None:
            why.setdefault(device, {})[f"{node.op}: {str(reason).removeprefix(f'{node.op}: ')}"] = None
    parts = []
    for device, count in sorted(counts.items()):
        reasons = list(why.get(device, ()))
        more = [f"{len(reasons) - _REASONS} more reasons"] if len(reasons) > _REASONS else []
        text = "; ".join([*reasons[:_REASONS], *more])
        parts.append(f"{drawn.panel.name(device)} {count}" + (f" ({text})" if text else ""))
    copies = [copy for run in drawn.runs for copy in run.copies]
    moved = size(sum(copy.nbytes for copy in copies))
    return f"{counted(len(drawn.flow.nodes), 'node')}: {', '.join(parts)}; {counted(len(copies), 'copy')}, {moved}"


def _why_moved(drawn: Blueprint, node: Tensor) -> Reason | None:
    """The refusal of the first device asked, where the node went to another one because of it."""
    asked = drawn.placement.asked[node]
    number, reason = asked[0]
    return reason if number != drawn.placement.device[node] else None


def warning(drawn: Blueprint) -> str | None:
    """The one line to warn with: a step was refused where it was wanted, or an accelerator that was named gets little.

    None: all is as it was asked for.
    """
    fell = any(_why_moved(drawn, node) is not None for node in drawn.flow.nodes)
    little = _little(drawn)
    return f"{summary(drawn)}{little}" if fell or little else None


def _little(drawn: Blueprint) -> str:
    """What is said of accelerators that the user named and that get less than half of the declared work.

    Of several, it is half of what each would have if all had the same.
    """
    panel = drawn.panel
    named = [i for i in panel.chosen if panel.devices[i].device_class in ACCELERATORS] if drawn.request.named else []
    if not named or not drawn.flow.nodes:
        return ""
    found = shares(drawn, steps_of(drawn.flow))
    least = WORTHY / len(named)
    few = [(name, share) for name in map(panel.name, named) if (share := found.get(name, 0.0)) < least]
    return "".join(f"; {name} was asked for and gets {percent(share)} of the declared work" for name, share in few)


def tell(log: logging.Logger, drawn: Blueprint, known: set[str]) -> None:
    """The one WARNING, one more a pin without effect; each refusal and note once at INFO.

    known: what was warned of already, to be said no second time.
    """
    told: dict[tuple[str, int, str], None] = {}
    for node in drawn.flow.nodes:
        for number, reason in drawn.placement.asked[node]:
            if reason is not None:
                told[node.op, number, str(reason)] = None
    for op, number, text in told:
        log.info("%s is not taken by %s: %s", op, drawn.panel.name(number), text)
    idle = drawn.placement.idle
    for note in drawn.notes:
        if note not in idle:
            log.info("%s", note)
    for note in idle:
        if note not in known:
            known.add(note)
            log.warning("%s; it must be a constant's or state's whole name, or a node as explain() shows it", note)
    if (line := warning(drawn)) is not None:
        log.warning("%s", line)


# Numbers for people


def counted(count: int, word: str) -> str:
    """Such as "1 copy", "2 copies"."""
    plural = f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"
    return f"{count} {word if count == 1 else plural}"


def duration(seconds: float) -> str:
    """Seconds for people: "1.2 us"."""
    for factor, unit in ((1e6, "us"), (1e3, "ms")):
        if seconds * factor < 1000:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"


def size(nbytes: int) -> str:
    """Bytes for people: "4.0 KiB"."""
    if nbytes < 1024:
        return f"{nbytes} bytes"
    power = min((nbytes.bit_length() - 1) // 10, 4)
    return f"{nbytes / 1024**power:.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"
