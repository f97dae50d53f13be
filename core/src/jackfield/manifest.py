"""backend.json: what is known of a backend before a line of it runs, and whether its contract can be spoken.

The file lies in the wheel's dist-info and may describe several backends. Unknown keys of a known schema are notes, a
later major of the schema is refused. `schemas/backend-1.json` says the same for editors and other tools; a test holds
the two together.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import ContractError, ManifestError
from .names import CLASSES

__all__ = [
    "FILES",
    "LONGEST_WAIT_S",
    "DeviceKind",
    "Manifest",
    "SchemaUnknownError",
    "Version",
    "read",
    "spoken",
    "this_platform",
    "window_text",
]

FILES = ("backend.json", "extra_metadata/backend.json")  # the second is where hatchling's `extra-metadata` puts it
SCHEMA = "jackfield.backend"
MAJOR = 1
LONGEST_WAIT_S = 60.0  # for a rehearsal, whatever a manifest asks for: the user waits for it, and may ask for more
WORD = re.compile(r"[a-z][a-z0-9_]{1,31}")
_VERSION = re.compile(r"(0|[1-9][0-9]{0,3})\.(0|[1-9][0-9]{0,3})")
_SCHEMA = re.compile(rf"{re.escape(SCHEMA)}/([1-9][0-9]*)")
_PLATFORM = re.compile(r"[a-z0-9]+/[a-z0-9_]+")

Version = tuple[int, int]


class SchemaUnknownError(ManifestError):
    """backend.json follows a schema of a later major."""


@dataclass(frozen=True)
class DeviceKind:
    """A kind of device a backend offers. device_class: one of CLASSES, "" for a simulated one."""

    kind: str
    device_class: str
    variant: str = ""
    simulated: bool = False

    def __str__(self) -> str:
        return f"{self.kind}:{self.variant}" if self.variant else self.kind


@dataclass(frozen=True)
class Manifest:
    """One backend as backend.json tells it; the fields are those of the file.

    contract: oldest and newest version of the contract that it speaks. notes: what was odd but harmless.
    probe_depth: how far a child process goes with a new build, before this process runs any of it: "import", to its
        "devices", or to an "alloc" on each. probe_timeout_s: how long that may take. watch: files outside the wheel, as
        of a driver, whose change makes it new. hardware: (bus, pattern) of its cards, for who has one and no driver.
    """

    name: str
    contract: tuple[Version, Version]
    kinds: tuple[DeviceKind, ...]
    platforms: tuple[str, ...] = ()
    needs: tuple[tuple[str, str], ...] = ()
    hardware: tuple[tuple[str, str], ...] = ()
    priority: int = 50
    probe_depth: str = "devices"
    probe_timeout_s: float = 20.0
    watch: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    claims: str = ""
    summary: str = ""
    vendor: str = ""
    issues: str = ""
    notes: tuple[str, ...] = ()

    def supplier(self, error: str) -> str:
        """Who supplies a shared library that an error text names, as a hint; or ""."""
        for lib, source in self.needs:
            if lib in error:
                return f"needs {lib}, part of {source}"
        return ""


def read(text: str) -> dict[str, Manifest | ManifestError]:
    """All backends of one backend.json by name; a wrong entry is its error.

    Raises: ManifestError for a file that is wrong as a whole, SchemaUnknownError for a later schema.
    """
    try:
        document = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as e:
        raise ManifestError(f"backend.json: not JSON: {e}") from None
    top = _mapping(document, "")
    _whole_texts({key: value for key, value in top.items() if key != "backends"}, "")
    _schema(_text(_required(top, "schema", ""), "schema"))
    entries = _list(_required(top, "backends", ""), "backends")
    if not entries:
        raise _bad("backends", "is empty")
    found: dict[str, Manifest | ManifestError] = {}
    for i, entry in enumerate(entries):
        at = f"backends[{i}]"
        fields = _mapping(entry, at)
        name = _name(_required(fields, "name", at), f"{at}.name")
        if name in found:
            raise _bad(f"{at}.name", f"{name!r} is there twice")
        try:
            _whole_texts(fields, at)
            found[name] = _entry(name, fields, at, _unknown(top, {"schema", "backends"}, ""))
        except ManifestError as e:
            found[name] = e
    return found


def _no_number(word: str) -> float:
    """Python's reader takes NaN and Infinity, which JSON does not have."""
    raise ValueError(f"{word} is no number of JSON")


_NO_CHARACTER = re.compile("[\0\ud800-\udfff]")


def _whole_texts(value: Any, at: str) -> None:
    """No text, key or value, holds what no file name, terminal or log takes: a zero, or half a character."""
    left = [(value, at)]
    while left:
        value, at = left.pop()
        if isinstance(value, str) and (bad := _NO_CHARACTER.search(value)):
            raise _bad(at or "the document", f"holds U+{ord(bad[0]):04X}, which is no character of a text")
        if isinstance(value, list):
            left += [(inner, f"{at}[{i}]") for i, inner in enumerate(value)]
        elif isinstance(value, dict):
            left += [(key, at) for key in value]
            left += [(inner, f"{at}.{_NO_CHARACTER.sub('?', key)}".lstrip(".")) for key, inner in value.items()]


def _schema(schema: str) -> None:
    match = _SCHEMA.fullmatch(schema)
    if match is None:
        raise _bad("schema", f'is {schema!r}, must be "{SCHEMA}/{MAJOR}"')
    if match[1] != str(MAJOR):
        raise SchemaUnknownError(f"backend.json: schema {schema}, known: /{MAJOR}")


_KNOWN = {
    "name", "contract", "kinds", "platforms", "needs", "hardware", "priority", "probe", "env", "claims", "summary",
    "vendor", "issues",
}  # fmt: skip


def _entry(name: str, fields: Mapping[str, Any], at: str, notes: Sequence[str]) -> Manifest:
    probe = _mapping(fields.get("probe", {}), f"{at}.probe")
    return Manifest(
        name=name,
        contract=_contract(_required(fields, "contract", at), f"{at}.contract"),
        kinds=_kinds(_required(fields, "kinds", at), f"{at}.kinds"),
        platforms=_each(fields, "platforms", at, _platform),
        needs=_each(fields, "needs", at, _need),
        hardware=_each(fields, "hardware", at, _hardware),
        priority=_whole(fields.get("priority", 50), f"{at}.priority", 0, 100),
        probe_depth=_one_of(probe.get("depth", "devices"), f"{at}.probe.depth", ("import", "devices", "alloc")),
        probe_timeout_s=_seconds(probe.get("timeout_s", 20), f"{at}.probe.timeout_s"),
        watch=_each(probe, "watch", f"{at}.probe", _text),
        env=_env(_mapping(fields.get("env", {}), f"{at}.env"), f"{at}.env", name),
        claims=_file(fields.get("claims", ""), f"{at}.claims"),
        summary=_text(fields.get("summary", ""), f"{at}.summary"),
        vendor=_text(fields.get("vendor", ""), f"{at}.vendor"),
        issues=_text(fields.get("issues", ""), f"{at}.issues"),
        notes=(
            *notes,
            *_unknown(fields, _KNOWN, at),
            *_unknown(probe, {"depth", "timeout_s", "watch"}, f"{at}.probe"),
            *_patience(probe.get("timeout_s", 20), f"{at}.probe.timeout_s"),
        ),
    )


def _contract(value: Any, at: str) -> tuple[Version, Version]:
    fields = _mapping(value, at)
    low = _version(_required(fields, "min", at), f"{at}.min")
    high = _version(_required(fields, "max", at), f"{at}.max")
    if low[0] != high[0]:
        raise _bad(at, f"spans two majors, {low[0]} and {high[0]}; both ends must have the same")
    if low > high:
        raise _bad(at, f"min {_dotted(low)} is above max {_dotted(high)}")
    return low, high


def _kinds(value: Any, at: str) -> tuple[DeviceKind, ...]:
    kinds = tuple(_kind(_mapping(v, f"{at}[{i}]"), f"{at}[{i}]") for i, v in enumerate(_list(value, at)))
    if not kinds:
        raise _bad(at, "is empty; name at least one kind of device")
    for i, kind in enumerate(kinds):
        if str(kind) in map(str, kinds[:i]):
            raise _bad(f"{at}[{i}]", f"{kind} is there twice")
    return kinds


def _kind(fields: Mapping[str, Any], at: str) -> DeviceKind:
    kind = _name(_required(fields, "kind", at), f"{at}.kind")
    if kind in {"auto", "sim", "reference"}:
        raise _bad(f"{at}.kind", f"{kind!r} belongs to the core")
    simulated = fields.get("simulated", False)
    if not isinstance(simulated, bool):
        raise _bad(f"{at}.simulated", f"is {_shown(simulated)}, must be true or false")
    if simulated:
        if "class" in fields:
            raise _bad(f"{at}.class", "a simulated kind has no class")
        return DeviceKind(kind, "", _name(_required(fields, "variant", at), f"{at}.variant"), simulated=True)
    if "variant" in fields:
        raise _bad(f"{at}.variant", "only a simulated kind has a variant")
    device_class = _one_of(_required(fields, "class", at), f"{at}.class", CLASSES)
    if kind in CLASSES and kind != device_class:
        raise _bad(f"{at}.kind", f"{kind!r} is a class word, and this kind is of class {device_class}")
    return DeviceKind(kind, device_class)


def _platform(value: Any, at: str) -> str:
    text = _text(value, at)
    if not _PLATFORM.fullmatch(text):
        raise _bad(at, f"is {text!r}, must be os/arch such as linux/x86_64")
    return text


def _need(value: Any, at: str) -> tuple[str, str]:
    fields = _mapping(value, at)
    return _text(_required(fields, "lib", at), f"{at}.lib"), _text(_required(fields, "from", at), f"{at}.from")


def _hardware(value: Any, at: str) -> tuple[str, str]:
    fields = _mapping(value, at)
    if len(fields) != 1 or next(iter(fields)) not in {"pci", "usb", "soc"}:
        raise _bad(at, "must have one key: pci, usb or soc")
    ((bus, pattern),) = fields.items()
    return bus, _text(pattern, f"{at}.{bus}")


def _env(fields: Mapping[str, Any], at: str, name: str) -> tuple[tuple[str, str], ...]:
    prefix = f"JACKFIELD_{name.upper()}_"
    for key in fields:
        if not key.startswith(prefix):
            raise _bad(f"{at}.{key}", f"must start with {prefix}")
    return tuple((key, _text(text, f"{at}.{key}")) for key, text in fields.items())


def _file(value: Any, at: str) -> str:
    text = _text(value, at)
    if text and (not re.fullmatch(r"[A-Za-z0-9_.-]+", text) or text.startswith(".")):
        raise _bad(at, f"is {text!r}, must be the name of a file beside the manifest")
    return text


def _name(value: Any, at: str) -> str:
    text = _text(value, at)
    if not WORD.fullmatch(text):
        raise _bad(at, f"is {text!r}, must be a lower-case word of 2 to 32 letters, digits and _")
    return text


def _version(value: Any, at: str) -> Version:
    match = _VERSION.fullmatch(_text(value, at))
    if match is None:
        raise _bad(at, f"is {value!r}, must be MAJOR.MINOR such as 0.1")
    return int(match[1]), int(match[2])


def _each(fields: Mapping[str, Any], key: str, at: str, one: Callable[[Any, str], Any]) -> tuple[Any, ...]:
    values = _list(fields.get(key, []), f"{at}.{key}")
    return tuple(one(v, f"{at}.{key}[{i}]") for i, v in enumerate(values))


def _required(fields: Mapping[str, Any], key: str, at: str) -> Any:
    if key not in fields:
        raise _bad(f"{at}.{key}" if at else key, "is missing")
    return fields[key]


def _mapping(value: Any, at: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _bad(at or "the document", f"is {_shown(value)}, must be an object")
    return value


def _list(value: Any, at: str) -> list[Any]:
    if not isinstance(value, list):
        raise _bad(at, f"is {_shown(value)}, must be a list")
    return value


def _text(value: Any, at: str) -> str:
    if not isinstance(value, str):
        raise _bad(at, f"is {_shown(value)}, must be text")
    return value


def _one_of(value: Any, at: str, words: Sequence[str]) -> str:
    if value not in words:
        raise _bad(at, f"is {_shown(value)}, one of {' '.join(words)}")
    return str(value)


def _whole(value: Any, at: str, low: int, high: int) -> int:
    # In JSON 50.0 is the same whole number as 50.
    if type(value) not in (int, float) or not low <= value <= high or value != int(value):
        raise _bad(at, f"is {_shown(value)}, must be a whole number from {low} to {high}")
    return int(value)


def _seconds(value: Any, at: str) -> float:
    if type(value) not in (int, float) or not 0 < value <= 3600:
        raise _bad(at, f"is {_shown(value)}, must be seconds, above 0 and at most 3600")
    return float(value)


def _patience(asked: float, at: str) -> tuple[str, ...]:
    if asked <= LONGEST_WAIT_S:
        return ()
    more = f"JACKFIELD_PROBE_TIMEOUT={asked:g} waits longer"
    return (f"backend.json: {at} is {asked:g}, of which the core waits {LONGEST_WAIT_S:g}; {more}",)


def _unknown(fields: Mapping[str, Any], known: set[str], at: str) -> tuple[str, ...]:
    odd = [k for k in fields if k not in known and not k.startswith("x-")]
    return tuple(f"backend.json: unknown key {at}.{k}" if at else f"backend.json: unknown key {k}" for k in odd)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _bad(at: str, text: str) -> ManifestError:
    return ManifestError(f"backend.json: {at} {text}")


def this_platform() -> str:
    """The platform of this process as the manifest writes it, `os/arch`."""
    import platform  # noqa: PLC0415 (not needed before the first manifest)

    system = {"darwin": "macos", "win32": "windows"}.get(sys.platform, sys.platform)
    machine = platform.machine().lower()
    arm = "aarch64" if system == "linux" else "arm64"
    return f"{system}/{ {'amd64': 'x86_64', 'arm64': arm, 'aarch64': arm}.get(machine, machine) }"


def _dotted(version: Version) -> str:
    return f"{version[0]}.{version[1]}"


def window_text(window: tuple[Version, Version]) -> str:
    low, high = window
    return _dotted(low) if low == high else f"{_dotted(low)} to {_dotted(high)}"


def spoken(core: tuple[Version, Version], plugin: tuple[Version, Version], name: str) -> Version:
    """The contract version both sides speak: the lower of both upper ends.

    Raises: ContractError when the windows do not meet; the text holds both and what to install.
    """
    version = min(core[1], plugin[1])
    if version >= max(core[0], plugin[0]):
        return version
    both = f"{name} speaks {window_text(plugin)}, jackfield {window_text(core)}"
    if plugin[0] > core[1]:
        cure = (
            f"install a jackfield that speaks {_dotted(plugin[0])}, or an older {name} that speaks {_dotted(core[1])}"
        )
    else:
        cure = f"install a newer {name}, one that speaks {_dotted(core[0])} or later"
    raise ContractError(f"{both}: {cure}")
