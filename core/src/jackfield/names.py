"""Device strings to terms. Pure text: what is installed is the registry's business.

    selection = set *( "," set )      the first set that can be had
    set       = term *( "+" term )    together; priority from left to right
    term      = "auto" | kind | kind ":" index [ ":" part ] | kind ":*" | kind ":" variant

Classes, card ids, filters and owners belong to the full grammar; here they are refused by name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .errors import DeviceNameError

__all__ = ["CLASSES", "Names", "Term", "near", "no_such_kind", "parse", "wrong"]

HOST_CLASS = "cpu"
CLASSES = (HOST_CLASS, "gpu", "npu", "dsp", "accel")

_WORD = re.compile(r"[a-z][a-z0-9_]*")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
_SHORTHAND = re.compile(r"([a-z][a-z_]*?)[-_:]?([0-9]+)")
_PLAIN = re.compile(r"[a-z][a-z0-9_]*(:(0|[1-9][0-9]{0,8}))?")
_LONGEST = 1000  # characters; longer text is a mistake, and is not worth quoting

_LATER = {
    "@": "card ids (kind@id) are not known to this version; use kind:index",
    "[": "filters in brackets are not known to this version; use kind:index",
    "]": "filters in brackets are not known to this version; use kind:index",
    "/": "owners (owner/kind) are not known to this version; name=dist in JACKFIELD_BACKENDS decides a duplicate",
}


@dataclass(frozen=True)
class Term:
    """One name of a selection.

    kind: device kind, or "auto". index, part: numbers, None where not written. variant: a word such as "emu".
    every: `kind:*`. column: where it starts in the text, counted from 1; no part of its identity.
    """

    kind: str
    index: int | None = None
    part: int | None = None
    variant: str = ""
    every: bool = False
    column: int = field(default=1, compare=False)

    @property
    def is_auto(self) -> bool:
        return self.kind == "auto"

    def __str__(self) -> str:
        if self.every:
            return f"{self.kind}:*"
        tail = [self.variant] if self.variant else [str(n) for n in (self.index, self.part) if n is not None]
        return ":".join([self.kind, *tail])


@dataclass(frozen=True)
class Names:
    """A parsed selection: sets of terms in order of preference."""

    sets: tuple[tuple[Term, ...], ...]

    @property
    def is_auto(self) -> bool:
        return self.sets[0][0].is_auto

    def __str__(self) -> str:
        return ", ".join("+".join(map(str, terms)) for terms in self.sets)


def wrong(text: str, column: int, message: str) -> DeviceNameError:
    """The error for a device string: quotes it and marks the column (from 1)."""
    if len(text) > _LONGEST:
        return DeviceNameError(f"device string of {len(text)} characters, at most {_LONGEST}: {message}")
    lines = [f"{text!r}, column {column}: {message}"]
    if text.isprintable():
        lines += [f"  {text}", "  " + " " * (column - 1) + "^"]
    return DeviceNameError("\n".join(lines))


def parse(text: str) -> Names:
    """The terms of a device string. Raises DeviceNameError."""
    if not isinstance(text, str):
        raise DeviceNameError(f"a device selection is a string such as 'sim+reference', not {type(text).__name__}")
    if len(text) > _LONGEST:
        raise wrong(text, 1, "too long")
    sets, at = [], 0
    for piece in text.split(","):
        sets.append(_set(text, at, piece))
        at += len(piece) + 1
    return Names(tuple(sets))


def _set(text: str, at: int, piece: str) -> tuple[Term, ...]:
    terms: list[Term] = []
    for word in piece.split("+"):
        terms.append(_term(text, at, word))
        at += len(word) + 1
    for term in terms:
        if term.is_auto and len(terms) > 1:
            raise wrong(text, term.column, "auto stands alone: it chooses the whole set by itself")
        if terms.index(term) != len(terms) - 1 - terms[::-1].index(term):
            raise wrong(text, term.column, f"{term} stands twice in one set")
    return tuple(terms)


def _term(text: str, at: int, word: str) -> Term:
    name = word.strip(" ")
    column = at + 1 + len(word) - len(word.lstrip(" "))
    if not name:
        raise wrong(text, at + 1, "empty term: a name such as cpu or cuda:0 must stand here")
    for offset, char in enumerate(name):
        if char in _LATER:
            raise wrong(text, column + offset, _LATER[char])
    if name == "auto":
        return Term("auto", column=column)
    kind, *tail = name.split(":")
    if not _WORD.fullmatch(kind):
        raise _wrong_word(text, column, name)
    if not tail:
        return Term(kind, column=column)
    if kind == "auto":
        raise wrong(text, column, "auto has no index")
    return _numbered(text, column, kind, tail)


def _numbered(text: str, column: int, kind: str, tail: Sequence[str]) -> Term:
    first, *rest = tail
    after = column + len(kind) + 1
    if not rest and first == "*":
        return Term(kind, every=True, column=column)
    if not rest and _WORD.fullmatch(first):
        return Term(kind, variant=first, column=column)
    if not _NUMBER.fullmatch(first):
        if first.lower() != first and _WORD.fullmatch(first.lower()):
            raise wrong(text, after, f"names are lower case; did you mean {kind}:{first.lower()}?")
        raise wrong(text, after, _index_rule(kind, first, "index"))
    if not rest:
        return Term(kind, int(first), column=column)
    after += len(first) + 1
    if not _NUMBER.fullmatch(rest[0]):
        raise wrong(text, after, _index_rule(f"{kind}:{first}", rest[0], "part"))
    if len(rest) > 1:
        raise wrong(text, after + len(rest[0]), f"a name ends at its part: {kind}:{first}:{rest[0]}")
    return Term(kind, int(first), int(rest[0]), column=column)


def _index_rule(before: str, written: str, what: str) -> str:
    rule = f"{what} is a whole number without leading zero, of at most 9 digits, not {written!r}"
    if written.isascii() and written.isdigit() and len(written.lstrip("0")) < 10:
        rule += f"; did you mean {before}:{int(written)}?"
    return rule


def _wrong_word(text: str, column: int, name: str) -> DeviceNameError:
    """Upper case and other habits (CUDA:0, cuda-0, HTP0) get the right spelling as an answer."""
    low = name.lower()
    match = _SHORTHAND.fullmatch(low)
    meant = f"{match[1]}:{int(match[2])}" if match and len(match[2]) < 10 else low
    if not _PLAIN.fullmatch(meant):
        bad = next((i for i, c in enumerate(name) if not (c.isascii() and (c.isalnum() or c in "_:"))), 0)
        return wrong(text, column + bad, "a kind is a lower-case word such as cpu, cuda or metal")
    return wrong(text, column, f"did you mean {meant}?")


def near(word: str, known: Iterable[str]) -> str:
    """The known word most like this one, or ""."""
    found = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.6)
    return found[0] if found else ""


def no_such_kind(text: str, term: Term, installed: Sequence[str]) -> DeviceNameError:
    """The error for a kind that no installed backend has."""
    have = ", ".join(installed)
    match = _SHORTHAND.fullmatch(term.kind)
    if match and match[1] in installed and len(match[2]) < 10:
        return wrong(text, term.column, f"did you mean {match[1]}:{int(match[2])}?")
    if term.kind in CLASSES and term.kind != HOST_CLASS:  # which is also the kind its users mean
        return wrong(text, term.column, f"{term.kind} is a class of devices; name a kind instead; installed: {have}")
    like = near(term.kind, [*installed, "auto"])
    hint = f"near: {like}; " if like else ""
    wheel = "" if like else f"; a backend is a wheel of its own, mostly called jackfield-{term.kind}"
    return wrong(text, term.column, f"no kind of device is called {term.kind!r}; {hint}installed: {have}{wheel}")
