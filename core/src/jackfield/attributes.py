"""Values of attributes: what a user may write, as plain data of the declared type."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any

import numpy as np

from .dtypes import DType
from .errors import AttributeValueError
from .graph import Attr, Function

__all__ = ["plain", "stamp"]

Stamp = tuple[tuple[str, type, object], ...]

_ATOMS = frozenset({int, bool, str, NoneType, DType})


def plain(value: Any, kind: str) -> Attr:
    """The value as plain data of a declared type, such as "float" or "int | None".

    Raises: AttributeValueError that says what it is and what it must be, without the attribute's name.
    """
    found = _plain(value)
    if kind == "float" and isinstance(found, int) and not isinstance(found, bool):
        return float(found)
    if not any(_is_a(found, part.strip()) for part in kind.split("|")):
        raise AttributeValueError(f"is {value!r}, must be {_TYPE_WORDS.get(kind, kind)}")
    return found


def stamp(values: Mapping[str, Any]) -> Stamp | None:
    """A key for these values: equal only where they mean the same. None for values that are too rare to be worth it.

    Types are part of it, because 1, 1.0 and True are equal in Python; so is the sign of zero.
    """
    marks: list[tuple[str, type, object]] = []
    for name, value in values.items():
        kind: type = type(value)
        if kind in _ATOMS:
            marks.append((name, kind, value))
        elif kind is float:
            marks.append((name, kind, value or repr(value)))
        elif kind in (tuple, list) and all(type(v) is int for v in value):
            marks.append((name, kind, tuple(value)))
        else:
            return None
    return tuple(marks)


def _plain(value: Any) -> Attr:
    """Numbers of numpy become Python's, lists tuples, dtypes their names: attributes are plain data."""
    if isinstance(value, DType):
        return value.name
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple)):
        return tuple(_plain(v) for v in value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise AttributeValueError("is a whole number beyond 64 bits")
    if value is None or isinstance(value, (bool, int, float, str, Function)):
        return value
    if callable(value) and not isinstance(value, type):
        return Function(value)
    raise AttributeValueError(f"is of type {type(value).__name__}, must be a number, text, dtype or a tuple of these")


_TYPE_WORDS = {
    "float": "a number",
    "int": "a whole number",
    "bool": "True or False",
    "str": "text or a dtype",
    "Shape": "a tuple of whole numbers",
    "Extents": "a whole number or a tuple of them",
    "Pairs": "a tuple of pairs of whole numbers",
    "Function": "a Python function",
}


def _is_a(value: Attr, kind: str) -> bool:
    if kind == "None":
        return value is None
    if kind == "Shape":
        return isinstance(value, tuple) and all(_is_a(v, "int") for v in value)
    if kind == "Extents":
        return _is_a(value, "int") or _is_a(value, "Shape")
    if kind == "Pairs":
        return isinstance(value, tuple) and all(_is_a(v, "Shape") for v in value)
    wanted = {"float": float, "int": int, "bool": bool, "str": str, "Function": Function}[kind]
    return isinstance(value, wanted) and (kind == "bool" or not isinstance(value, bool))
