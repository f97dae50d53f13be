"""Which number each card of a kind has: by where it is plugged, whatever order a driver lists them in. Pure text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .names import Term

__all__ = ["numbered"]

_BUS = re.compile(r"pci-([0-9a-f]{1,8}):([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-9a-f])", re.IGNORECASE)

_Where = tuple[int, tuple[int, ...], str]


def numbered(terms: Sequence[Term], cards: Sequence[str]) -> list[Term]:
    """The same names with the numbers that the cards' places give them, one for each name.

    terms: names of devices, each with its index or variant; no two equal. cards: where each is plugged, as
    "pci-0000:65:00.0", or else what stays with this very card; "" for unknown.
    Bus addresses come first, then other words in their order. A card that tells neither comes last, and a kind none of
    whose cards tells keeps the numbers it has. Parts keep their numbers within a device, simulated ones their names.
    """
    first: dict[tuple[str, int], _Where] = {}
    for term, card in zip(terms, cards, strict=True):
        if term.index is not None:
            key = term.kind, term.index
            first[key] = min(first.get(key, _where(card)), _where(card))
    number: dict[tuple[str, int], int] = {}
    for kind in {kind for kind, _ in first}:
        mine = [(where, index) for (of, index), where in first.items() if of == kind]
        known = any(where[0] < _UNKNOWN for where, _ in mine)
        for i, (_, index) in enumerate(sorted(mine)):
            number[kind, index] = i if known else index
    return [t if t.index is None else _at(t, number[t.kind, t.index]) for t in terms]


_UNKNOWN = 2


def _where(card: str) -> _Where:
    match = _BUS.fullmatch(card)
    if match:
        return 0, tuple(int(part, 16) for part in match.groups()), ""
    return (1, (), card) if card else (_UNKNOWN, (), "")


def _at(term: Term, index: int) -> Term:
    return Term(term.kind, index, term.part)
