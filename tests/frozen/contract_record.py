"""The contract as plain data, and what of a change to it a plugin that is out there could notice.

`described` reads `jackfield.backend` and the hooks; `changes` compares two such records.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from jackfield import backend, hookspecs

WRITTEN_BY_PLUGINS = ("Backend", "Communicator", "Device", "Program")  # the core calls their methods


@dataclasses.dataclass(frozen=True)
class Changes:
    """In words, one a line. forbidden: old plugins could break. allowed: they would not notice."""

    forbidden: tuple[str, ...]
    allowed: tuple[str, ...]


def described(contract: Any = backend, hooks: Any = hookspecs) -> dict[str, Any]:
    """Names of the contract to what a plugin can rely on; plain JSON."""
    found = {name: _entry(getattr(contract, name)) for name in contract.__all__}
    for name in hooks.__all__:
        found[f"hook {name}" if name.startswith("jackfield_") else name] = _entry(getattr(hooks, name))
    return dict(sorted(found.items()))


def _entry(value: Any) -> dict[str, Any]:
    if get_origin(value) is Literal:
        return {"is": "words", "words": sorted(get_args(value))}
    if get_origin(value) in (Union, UnionType):
        return {"is": "value", "type": "union"}
    if isinstance(value, Mapping):
        return {"is": "words", "words": sorted(value)}
    if inspect.isfunction(value):
        return {"is": "function", **_signature(value)}
    if not isinstance(value, type):
        return {"is": "value", "type": type(value).__name__}
    if issubclass(value, enum.Enum):
        return {"is": "words", "words": sorted(f"{one.name}={one.value}" for one in value)}
    if issubclass(value, BaseException):
        return {"is": "error", "words": sorted(one.__name__ for one in value.__mro__ if one is not object)}
    return {"is": "class", **_class(value)}


def _class(value: type) -> dict[str, Any]:
    own = {name: one for name, one in vars(value).items() if not name.startswith("_")}
    methods = {name: _signature(_plain(one)) for name, one in own.items() if inspect.isfunction(_plain(one))}
    entry = {
        "abstract": sorted(getattr(value, "__abstractmethods__", ())),
        "methods": methods,
        "properties": sorted(name for name, one in own.items() if hasattr(one, "fget") or hasattr(one, "func")),
    }
    if dataclasses.is_dataclass(value):
        return {**entry, "fields": [_field(one) for one in dataclasses.fields(value)]}
    notes = inspect.get_annotations(value)
    return {**entry, "attributes": {n: _attribute(t, value, n) for n, t in notes.items() if not n.startswith("_")}}


def _plain(member: Any) -> Any:
    return member.__func__ if isinstance(member, (classmethod, staticmethod)) else member


def _attribute(note: Any, owner: type, name: str) -> dict[str, Any]:
    return {"type": str(note), "given": name in vars(owner)}


def _field(one: dataclasses.Field[Any]) -> dict[str, Any]:
    given = one.default is not dataclasses.MISSING or one.default_factory is not dataclasses.MISSING
    return {"name": one.name, "type": str(one.type), "given": given}


def _signature(call: Any) -> dict[str, Any]:
    signature = inspect.signature(call)
    parameters = [
        {
            "name": name if one.kind is not one.VAR_POSITIONAL else f"*{name}",
            "type": _note(one.annotation),
            "given": one.default is not one.empty,
            "keyword": one.kind is one.KEYWORD_ONLY,
        }
        for name, one in signature.parameters.items()
    ]
    return {"parameters": parameters, "returns": _note(signature.return_annotation)}


def _note(annotation: Any) -> str:
    return "" if annotation is inspect.Signature.empty else str(annotation)


# ---- comparing ------------------------------------------------------------------------------------------------------

Found = Iterator[tuple[bool, str]]  # whether an old plugin would not notice, and what it is


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Changes:
    found = list(_all(old, new))
    return Changes(tuple(t for harmless, t in found if not harmless), tuple(t for harmless, t in found if harmless))


def _all(old: Mapping[str, Any], new: Mapping[str, Any]) -> Found:
    for name in sorted(old.keys() - new.keys()):
        yield False, f"{name} is gone: a removed or renamed name"
    for name in sorted(new.keys() - old.keys()):
        yield True, f"{name} is new"
    for name in sorted(old.keys() & new.keys()):
        was, now = old[name], new[name]
        if was["is"] != now["is"]:
            yield False, f"{name} was a {was['is']} and is a {now['is']}"
        elif was["is"] == "words" or was["is"] == "error":
            yield from _words(name, was["words"], now["words"])
        elif was["is"] == "function":
            yield from _call(name, was, now, may_grow=True)
        elif was["is"] == "class":
            yield from _classes(name, was, now)
        elif was != now:
            yield False, f"{name} was a {was['type']} and is a {now['type']}"


def _words(name: str, was: list[str], now: list[str]) -> Found:
    for word in was:
        if word not in now:
            yield False, f"{name} has lost {word}"
    for word in now:
        if word not in was:
            yield True, f"{name} has got {word}"


def _classes(name: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> Found:
    for method in now["abstract"]:
        if method not in was["abstract"]:
            known = method in was["methods"]
            yield False, f"{name}.{method} is {'now abstract' if known else 'a new abstract method'}"
    for method, call in was["methods"].items():
        if method not in now["methods"]:
            yield False, f"{name}.{method} is gone: a removed or renamed method"
        else:
            yield from _call(f"{name}.{method}", call, now["methods"][method], may_grow=name not in WRITTEN_BY_PLUGINS)
    for method in now["methods"].keys() - was["methods"].keys() - set(now["abstract"]):
        yield True, f"{name}.{method} is a new method with a default"
    yield from _words(name, was["properties"], now["properties"])
    if "fields" in was:
        yield from _fields(name, was["fields"], now.get("fields", []))
    yield from _attributes(name, was.get("attributes", {}), now.get("attributes", {}))


def _fields(name: str, was: list[Any], now: list[Any]) -> Found:
    """Plugins make some of these objects, by position or by name, and read the others."""
    there = [one["name"] for one in now]
    for at, one in enumerate(was):
        if one["name"] not in there:
            yield False, f"{name}.{one['name']} is gone: a removed or renamed field"
            continue
        same = now[there.index(one["name"])]
        if there.index(one["name"]) != at:
            yield False, f"{name}.{one['name']} was field {at} and is field {there.index(one['name'])}"
        if one["type"] != same["type"]:
            yield False, f"{name}.{one['name']} was {one['type']} and is {same['type']}"
        if one["given"] and not same["given"]:
            yield False, f"{name}.{one['name']} has lost its default"
    known = {one["name"] for one in was}
    for one in now:
        if one["name"] not in known:
            words = "a new field with a default" if one["given"] else "a new field without a default"
            yield one["given"], f"{name}.{one['name']} is {words}"


def _attributes(name: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> Found:
    for key, one in was.items():
        if key not in now:
            yield False, f"{name}.{key} is gone: a removed or renamed attribute"
        elif one["type"] != now[key]["type"]:
            yield False, f"{name}.{key} was {one['type']} and is {now[key]['type']}"
        elif one["given"] and not now[key]["given"]:
            yield False, f"{name}.{key} has lost its default"
    for key in now.keys() - was.keys():
        given = now[key]["given"]
        yield given, f"{name}.{key} is a new attribute {'with' if given else 'without'} a default"


def _call(name: str, was: Mapping[str, Any], now: Mapping[str, Any], *, may_grow: bool) -> Found:
    """may_grow: an argument with a default may come. In a method that plugins write none may: theirs lacks it."""
    there = {one["name"]: one for one in now["parameters"]}
    order = [one["name"] for one in now["parameters"]]
    is_hook = name.startswith("hook ")
    for at, one in enumerate(was["parameters"]):
        same = there.get(one["name"])
        if same is None:
            yield False, f"{name} has lost its argument {one['name']}"
            continue
        if order.index(one["name"]) != at and not is_hook:
            yield False, f"{name}: its argument {one['name']} has moved"
        if one["type"] != same["type"]:
            yield False, f"{name}: {one['name']} was {one['type']} and is {same['type']}"
        if one["given"] and not same["given"]:
            yield False, f"{name}: {one['name']} has lost its default"
        if one["keyword"] != same["keyword"]:
            yield False, f"{name}: {one['name']} is given in another way"
    known = {one["name"] for one in was["parameters"]}
    for key, one in there.items():
        if key not in known:
            yield is_hook or (may_grow and one["given"]), f"{name} has got an argument {key}"
    if was["returns"] != now["returns"]:
        yield False, f"{name} gave {was['returns']} and gives {now['returns']}"
