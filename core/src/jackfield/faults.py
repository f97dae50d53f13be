"""Shape and faults of the simulated device, read from `JACKFIELD_SIM` or keywords: `mem=64MiB,refuse=softmax+add`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .dtypes import DTYPES
from .errors import AttributeValueError
from .op import OPS

__all__ = ["Shape"]

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([A-Za-z]*)")


@dataclass(frozen=True)
class Shape:
    """What `sim` is like. Plain: one device without bounds that takes all ops and never fails.

    mem: bytes of each device. max_buffer, max_operand: bytes of one allocation, and of one operand.
    refuse: ops it has no kernel for. dtypes: floats and block dtypes it knows; integers and bool always; empty: all.
    lost_after: steps it executes before it is lost. delay: seconds each run of a program takes longer.
    reads: "dense", or "any" for kernels that take every stride. direct: copies between its parts need no host.
    parts: devices it consists of, `sim:0:0`, `sim:0:1`, ...
    """

    mem: int | None = None
    max_buffer: int | None = None
    max_operand: int | None = None
    refuse: frozenset[str] = frozenset()
    dtypes: frozenset[str] = frozenset()
    lost_after: int | None = None
    delay: float = 0.0
    reads: str = "dense"
    direct: bool = True
    parts: int = 1

    @classmethod
    def parse(cls, text: str) -> Shape:
        """From `key=value,key=value`; a list inside a value is joined by +. Raises AttributeValueError with the key."""
        values: dict[str, str] = {}
        for word in filter(None, (w.strip() for w in text.split(","))):
            key, equals, value = (part.strip() for part in word.partition("="))
            if not equals or not value:
                raise AttributeValueError(f"[sim] {key!r} has no value; write {key}=value")
            if key in values:
                raise AttributeValueError(f"[sim] {key} is given twice")
            values[key] = value
        return cls.of(**values)

    @classmethod
    def of(cls, **values: Any) -> Shape:
        """From keywords; numbers, lists, or the same text. Raises AttributeValueError naming the key."""
        for key in values:
            if key not in _READERS:
                keys = f"{_like(key, _READERS)}; keys: {', '.join(_READERS)}"
                raise AttributeValueError(f"[sim] has no key {key!r}{keys}")
        return cls(**{key: _READERS[key](key, value) for key, value in values.items()})


def _like(word: str, known: Iterable[str]) -> str:
    import difflib  # noqa: PLC0415 (only a mistake needs it)

    found = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {found[0]}?" if found else ""


def _wrong(key: str, value: object, must: str) -> AttributeValueError:
    return AttributeValueError(f"[sim] {key} is {value!r}, must be {must}")


def _number(key: str, value: Any, units: Mapping[str, float], must: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise _wrong(key, value, must)
    if not isinstance(value, str):
        number = float(value)
    else:
        match = _SIZE.fullmatch(value.strip())
        if match is None or match[2] not in units:
            raise _wrong(key, value, must)
        number = float(match[1]) * units[match[2]]
    if not 0 <= number < 2**62:
        raise _wrong(key, value, must)
    return number


def _size(key: str, value: Any) -> int:
    return int(_number(key, value, _UNITS, f"a size with its unit ({' '.join(_UNITS)}), such as 64MiB"))


def _time(key: str, value: Any) -> float:
    return _number(key, value, _SECONDS, f"a time with its unit ({' '.join(_SECONDS)}), such as 1ms")


def _count(low: int, high: int) -> Callable[[str, Any], int]:
    must = f"a whole number from {low} to {high}"

    def read(key: str, value: Any) -> int:
        text = str(value).strip()
        if isinstance(value, (bool, float)) or not re.fullmatch(r"[0-9]{1,12}", text) or not low <= int(text) <= high:
            raise _wrong(key, value, must)
        return int(text)

    return read


def _words(known: Callable[[], Mapping[str, object]], what: str) -> Callable[[str, Any], frozenset[str]]:
    def read(key: str, value: Any) -> frozenset[str]:
        words = (
            value.split("+")
            if isinstance(value, str)
            else list(value)
            if isinstance(value, (list, tuple, set, frozenset))
            else None
        )
        if words is None:
            raise _wrong(key, value, f"names of {what} joined by +")
        for word in (str(w).strip() for w in words):
            if word not in known():
                raise AttributeValueError(f"[sim] {key}: there is no {what} called {word!r}{_like(word, known())}")
        return frozenset(str(w).strip() for w in words)

    return read


def _reads(key: str, value: Any) -> str:
    if value not in ("dense", "any"):
        raise _wrong(key, value, "dense or any")
    return str(value)


def _switch(key: str, value: Any) -> bool:
    words = {"yes": True, "no": False, True: True, False: False}
    if not isinstance(value, (str, bool)) or value not in words:
        raise _wrong(key, value, "yes or no")
    return words[value]


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "mem": _size,
    "max_buffer": _size,
    "max_operand": _size,
    "refuse": _words(lambda: OPS, "op"),
    "dtypes": _words(lambda: DTYPES, "dtype"),
    "lost_after": _count(0, 10**9),
    "delay": _time,
    "reads": _reads,
    "direct": _switch,
    "parts": _count(1, 64),
}
