"""Device strings to terms. Pure text: what is installed is the registry's business.

    selection = set *( "," set )            the first set that can be had
    set       = term *( "+" term )          together; priority from left to right
    term      = [ owner "/" ] name [ "[" test *( "," test ) "]" ] | "auto"
    name      = word | word ":" index [ ":" part ] | word ":*" | word ":" variant | word "@" id
    test      = key ( "=" | "!=" | ">=" | "<=" ) value | flag | "!" flag

A word is a kind of device or a class of devices. Owner: a distribution or entry point. Id: of a card, or 8 characters
of its start and more.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from .errors import DeviceNameError

__all__ = [
    "CLASSES",
    "KEYS",
    "OPERATORS",
    "SIZES",
    "Condition",
    "Names",
    "Term",
    "near",
    "no_such_kind",
    "parse",
    "wrong",
]

HOST_CLASS = "cpu"
CLASSES = (HOST_CLASS, "gpu", "npu", "dsp", "accel")

_WORD = re.compile(r"[a-z][a-z0-9_]*")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
_SHORTHAND = re.compile(r"([a-z][a-z_]*?)[-_:]?([0-9]+)")
_PLAIN = re.compile(r"[a-z][a-z0-9_]*(:(0|[1-9][0-9]{0,8}))?")
_LONGEST = 1000  # characters; longer text is a mistake, and is not worth quoting

_OWNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
_TEST = re.compile(r"([a-z]+)\s*(!=|>=|<=|=|[<>~]+)\s*(.*)")
_FLAG = re.compile(r"!?[a-z][a-z0-9_]*")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]i?B)")
_UNITS = {f"{unit}{i}B": (1024 if i else 1000) ** n for n, unit in enumerate("KMGT", 1) for i in ("", "i")}
_LEAST_ID = 8  # characters

OPERATORS = ("=", "!=", ">=", "<=")
SIZES = ("mem", "free")
KEYS = (*SIZES, "arch", "vendor", "driver", "class")


@dataclass(frozen=True)
class Condition:
    """One condition in brackets. key: one of KEYS; "" for a flag, whose name is `value`. size: bytes, for SIZES.

    operator: one of OPERATORS; for a flag "=" (it must be there) or "!=".
    """

    key: str
    operator: str
    value: str
    size: float = 0.0

    def __str__(self) -> str:
        if not self.key:
            return self.value if self.operator == "=" else f"!{self.value}"
        return f"{self.key}{self.operator}{self.value}"

    def holds(self, *, text: str = "", nbytes: float = 0.0, flags: Collection[str] = ()) -> bool:
        """Whether it is true of a device. text: what the device has for a key; nbytes: for one of SIZES."""
        if not self.key:
            return (self.value in flags) is (self.operator == "=")
        if self.key in SIZES:
            at_least, at_most = nbytes >= self.size, nbytes <= self.size
            equal = at_least and at_most
            return {"=": equal, "!=": not equal, ">=": at_least, "<=": at_most}[self.operator]
        return (text.lower() == self.value.lower()) is (self.operator == "=")


@dataclass(frozen=True)
class Term:
    """One name of a selection.

    kind: a kind or class of devices, or "auto". index, part: numbers, None where not written. variant: a word such as
    "emu". every: `kind:*`. id: of a card, or its start. owner: who must offer it. tests: what must be true of it.
    column: where it starts in the text, counted from 1; no part of its identity.
    """

    kind: str
    index: int | None = None
    part: int | None = None
    variant: str = ""
    every: bool = False
    column: int = field(default=1, compare=False)
    id: str = ""
    owner: str = ""
    tests: tuple[Condition, ...] = ()

    @property
    def is_auto(self) -> bool:
        return self.kind == "auto"

    def __str__(self) -> str:
        before = f"{self.owner}/" if self.owner else ""
        after = f"[{','.join(map(str, self.tests))}]" if self.tests else ""
        return f"{before}{self._name}{after}"

    @property
    def _name(self) -> str:
        if self.id:
            return f"{self.kind}@{self.id}"
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
    lines = [f"{text!r}, column {column}: {message}"]
    if len(text) > _LONGEST:
        lines = [f"device string of {len(text)} characters, at most {_LONGEST}: {message}"]
    elif text.isprintable():
        lines += [f"  {text}", "  " + " " * (column - 1) + "^"]
    error = DeviceNameError("\n".join(lines))
    error.text = text
    return error


def parse(text: str) -> Names:
    """The terms of a device string. Raises DeviceNameError."""
    if not isinstance(text, str):
        raise DeviceNameError(f"a device selection is a string such as 'sim+reference', not {type(text).__name__}")
    if len(text) > _LONGEST:
        raise wrong(text, 1, "too long")
    return Names(tuple(_set(text, at, piece) for at, piece in _split(text, 0, text, ",")))


def _split(text: str, at: int, piece: str, mark: str) -> list[tuple[int, str]]:
    """Where each part starts, and the part; a mark in brackets parts nothing."""
    parts, start, inside = [], 0, False
    for i, char in enumerate(piece):
        if char in "[]":
            if inside is (char == "["):
                raise wrong(text, at + i + 1, f"{char!r} without its other bracket before it")
            inside = not inside
        elif char == mark and not inside:
            parts.append((at + start, piece[start:i]))
            start = i + 1
    if inside:
        raise wrong(text, at + len(piece), "']' is missing")
    return [*parts, (at + start, piece[start:])]


def _set(text: str, at: int, piece: str) -> tuple[Term, ...]:
    terms = [_term(text, start, word) for start, word in _split(text, at, piece, "+")]
    for term in terms:
        if term.is_auto and len(terms) > 1:
            raise wrong(text, term.column, "auto stands alone: it chooses the whole set by itself")
        if terms.index(term) != len(terms) - 1 - terms[::-1].index(term):
            raise wrong(text, term.column, f"{term} stands twice in one set")
    return tuple(terms)


def _term(text: str, at: int, word: str) -> Term:
    whole = word.strip(" ")
    column = at + 1 + len(word) - len(word.lstrip(" "))
    if not whole:
        raise wrong(text, at + 1, "empty term: a name such as cpu or cuda:0 must stand here")
    name, bracket, rest = whole.partition("[")
    if bracket and not rest.endswith("]"):
        raise wrong(text, column + whole.index("]") + 1, "nothing may follow the bracket of a term")
    tests = _tests(text, column + len(name) + 1, rest[:-1]) if bracket else ()
    owner, slash, plain = name.rpartition("/")
    if slash and not _OWNER.fullmatch(owner):
        raise wrong(text, column, "an owner is the name of a distribution or an entry point, such as jackfield-cpu/cpu")
    found = _named(text, column + len(owner) + len(slash), plain)
    if found.is_auto and (owner or tests):
        raise wrong(text, column, "auto stands alone: it chooses the whole set by itself")
    return replace(found, column=column, owner=owner, tests=tests)


def _named(text: str, column: int, name: str) -> Term:
    """The name of a term: a word, and which of its devices."""
    if name == "auto":
        return Term("auto")
    kind, sign, card = name.partition("@")
    if sign:
        return _card(text, column, kind, card)
    kind, *tail = name.split(":")
    if not _WORD.fullmatch(kind):
        raise _wrong_word(text, column, name)
    if not tail:
        return Term(kind)
    if kind == "auto":
        raise wrong(text, column, "auto has no index")
    return _numbered(text, column, kind, tail)


def _card(text: str, column: int, kind: str, card: str) -> Term:
    if not _WORD.fullmatch(kind):
        raise _wrong_word(text, column, kind)
    after = column + len(kind) + 1
    if not _ID.fullmatch(card):
        raise wrong(text, after, "an id is a UUID or an address such as pci-0000:65:00.0")
    if len(card) < _LEAST_ID:
        raise wrong(text, after, f"{card!r} is shorter than {_LEAST_ID} characters, which might mean several cards")
    return Term(kind, id=card)


def _tests(text: str, column: int, inside: str) -> tuple[Condition, ...]:
    tests, at = [], column
    for word in inside.split(","):
        tests.append(_test(text, at + len(word) - len(word.lstrip(" ")), word.strip(" ")))
        at += len(word) + 1
    return tuple(tests)


def _test(text: str, column: int, word: str) -> Condition:
    if _FLAG.fullmatch(word):
        return Condition("", "!=" if word.startswith("!") else "=", word.removeprefix("!"))
    match = _TEST.fullmatch(word)
    if match is None:
        raise wrong(
            text, column, f"a condition is key{'|'.join(OPERATORS)}value, a flag, or !flag; keys are {_KEY_LIST}"
        )
    key, operator, value = match[1], match[2], match[3].strip(" ")
    if key not in KEYS:
        raise wrong(text, column, f"no key {key!r}; keys are {_KEY_LIST}")
    if operator not in OPERATORS:
        raise wrong(text, column + len(key), f"no operator {operator!r}; operators are {' '.join(OPERATORS)}")
    at = column + match.start(3)
    if key in SIZES:
        size = _SIZE.fullmatch(value)
        if size is None:
            raise wrong(text, at, f"{value!r} has no unit; a size is written as 8GiB or 512MiB")
        return Condition(key, operator, value.replace(" ", ""), float(size[1]) * _UNITS[size[2]])
    if operator not in OPERATORS[:2]:
        raise wrong(text, column + len(key), f"{key} is text: its operators are {' '.join(OPERATORS[:2])}")
    if not re.fullmatch(r"[^\[\]+,/@]+", value):
        raise wrong(text, at, f"{key} must be compared with something")
    return Condition(key, operator, value)


_KEY_LIST = " ".join(KEYS)


def _numbered(text: str, column: int, kind: str, tail: Sequence[str]) -> Term:
    first, *rest = tail
    after = column + len(kind) + 1
    if not rest and first == "*":
        return Term(kind, every=True)
    if not rest and _WORD.fullmatch(first):
        return Term(kind, variant=first)
    if not _NUMBER.fullmatch(first):
        if first.lower() != first and _WORD.fullmatch(first.lower()):
            raise wrong(text, after, f"names are lower case; did you mean {kind}:{first.lower()}?")
        raise wrong(text, after, _index_rule(kind, first, "index"))
    if not rest:
        return Term(kind, int(first))
    after += len(first) + 1
    if not _NUMBER.fullmatch(rest[0]):
        raise wrong(text, after, _index_rule(f"{kind}:{first}", rest[0], "part"))
    if len(rest) > 1:
        raise wrong(text, after + len(rest[0]), f"a name ends at its part: {kind}:{first}:{rest[0]}")
    return Term(kind, int(first), int(rest[0]))


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


def no_such_kind(
    text: str, term: Term, installed: Sequence[str], hint: str = "", known: Sequence[str] = ()
) -> DeviceNameError:
    """The error for a kind that no installed backend has. hint: which wheel would bring it, where that is known; known:
    other kinds that a wheel would bring, each with how to get it.
    """
    have = ", ".join(installed)
    match = _SHORTHAND.fullmatch(term.kind)
    if match and match[1] in installed and len(match[2]) < 10:
        return wrong(text, term.column, f"did you mean {match[1]}:{int(match[2])}?")
    if term.kind in CLASSES and term.kind != HOST_CLASS:  # which is also the kind its users mean
        return wrong(text, term.column, f"no installed backend has a device of class {term.kind}; installed: {have}")
    if hint:
        return wrong(text, term.column, f"no backend for {term.kind} is installed; {hint}; installed: {have}")
    like = near(term.kind, [*installed, "auto"])
    meant = f"near: {like}; " if like else ""
    more = f"; not installed but known: {', '.join(known)}" if known else ""
    more += "" if like else f"; a backend is a wheel of its own, mostly called jackfield-{term.kind}"
    return wrong(text, term.column, f"no kind of device is called {term.kind!r}; {meant}installed: {have}{more}")
