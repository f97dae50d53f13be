"""Suite `names`: one device, one name, today and tomorrow."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator

from jackfield.loading import term_of
from jackfield_conformance.script import ran
from jackfield_conformance.trials import Check, Refused, Subject, Trial, named

__all__ = ["trials"]

ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{7,}")
_LIST = """
from jackfield import registry
from jackfield.loading import term_of
backend = registry.open_backend(next(o.backend.name for o in registry.select(device).devices))
answer(json.dumps([[d.name, d.id, d.card] for d in backend.devices()]))
"""


def trials(seed: int) -> Iterator[Trial]:
    checks: dict[str, Check] = {
        "whole": numbered_from_zero,
        "twice": same_twice,
        "another-process": same_elsewhere,
        "ids": ids_are_ids,
    }
    yield from named("names", seed, checks)


def _listed(subject: Subject) -> list[list[str]]:
    return [[device.name, device.id, device.card] for device in subject.backend.devices()]


def numbered_from_zero(seed: int, subject: Subject) -> list[str]:
    """Devices of a kind are numbered without gaps, and so are the parts of one."""
    del seed
    numbers: dict[str, set[int]] = defaultdict(set)
    for device in subject.backend.devices():
        term = term_of(device.name)
        if not term.variant:
            numbers[term.kind].add(term.index or 0)
            if term.part is not None:
                numbers[f"{term.kind}:{term.index}"].add(term.part)
    return [
        f"{kind} has the numbers {sorted(found)}: must be 0 to {len(found) - 1}"
        for kind, found in numbers.items()
        if found != set(range(len(found)))
    ]


def same_twice(seed: int, subject: Subject) -> list[str]:
    del seed
    first, second = _listed(subject), _listed(subject)
    return [] if first == second else [f"devices() gives {first}, then {second}"]


def same_elsewhere(seed: int, subject: Subject) -> list[str]:
    """Another process finds the same names and ids."""
    del seed
    code, line, words = ran(_LIST, subject)
    if code:
        return [f"a process that lists its devices ends with code {code}: {words}"]
    here, there = _listed(subject), json.loads(line)
    return [] if here == there else [f"devices() gives {here} here, {there} in another process"]


def ids_are_ids(seed: int, subject: Subject) -> list[str]:
    """An id has 8 characters or more, and no two devices share one but the parts of one card."""
    del seed
    listed = [entry for entry in _listed(subject) if entry[1] or entry[2]]
    if not listed:
        raise Refused("it tells no id and no card", "other")
    found = [
        f"{name}: {text!r} is no id" for name, *texts in listed for text in texts if text and not ID.fullmatch(text)
    ]
    cards: dict[str, set[tuple[str, int | None]]] = defaultdict(set)
    for name, text, _ in listed:
        cards[text].add((term_of(name).kind, term_of(name).index))
    return found + [
        f"{len(names)} devices have the id {text!r}" for text, names in cards.items() if text and len(names) > 1
    ]
