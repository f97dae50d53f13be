"""Which backends are installed, and what is known of each without running a line of it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .backend import API
from .errors import ContractError, ManifestError
from .manifest import FILES, Manifest, SchemaUnknownError, Version, read, spoken, this_platform
from .stages import Stop
from .trust import Wishes, plain, project_folder, where_refused

__all__ = ["CORE_VERSION", "CORE_WINDOW", "GROUP", "Found", "fingerprint", "scan"]

GROUP = "jackfield.backends"
CORE_VERSION = "0.1.0"  # of the distribution; a test compares, because reading the metadata costs an import
CORE_WINDOW: tuple[Version, Version] = (API, API)  # below 1.0 a minor may break, so the window starts at the newest


@dataclass(frozen=True)
class Found:
    """One entry point of the group.

    value: `module` or `module:attribute`. build: digest of the wheel's record of files.
    manifest: None when there is none that can be read. stop: why its code will not run, or None.
    """

    name: str
    dist: str
    version: str
    build: str
    value: str
    manifest: Manifest | None = None
    stop: Stop | None = None
    notes: tuple[str, ...] = ()
    distribution: Any = field(default=None, compare=False, repr=False)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of device it offers; without a manifest its own name."""
        return tuple(dict.fromkeys(k.kind for k in self.manifest.kinds)) if self.manifest else (self.name,)


def fingerprint() -> tuple[tuple[str, int], ...]:
    """Each folder of the search path and when it last changed: other when something is installed or removed."""
    times = []
    for folder in sys.path:
        try:
            times.append((folder, os.stat(folder or ".").st_mtime_ns))  # noqa: PTH116 (ten times as fast as Path)
        except OSError:  # a folder that is not there holds no plugin
            times.append((folder, 0))
    return tuple(times)


def scan(wishes: Wishes) -> tuple[list[Found], bool]:
    """All backends by name, then distribution; and whether every file could be read."""
    found, whole = [], True
    seen: set[str] = set()
    for dist, entries in _distributions():
        if isinstance(entries, Exception):
            whole = False
            continue
        try:
            label = plain(dist.metadata["Name"])
            if label in seen:  # an older copy further down the search path: Python would not import it either
                continue
            seen.add(label)
            found += [_found(dist, entry.name, entry.value) for entry in entries]
        except Exception:  # noqa: BLE001 (one unreadable dist-info must not hide the others; the next scan tries again)
            whole = False
    whole = whole and not any(f.stop and f.stop.code == "unreadable" for f in found)
    judged = [f if f.stop else _judged(f, wishes) for f in found]
    return sorted(_without_duplicates(judged, wishes), key=lambda f: (f.name, f.dist)), whole


def _distributions() -> Iterator[tuple[Any, Any]]:
    """Each distribution with entry points of the group, or with the error of reading them."""
    from importlib.metadata import distributions  # noqa: PLC0415 (not before somebody asks for a backend)

    for dist in distributions():
        try:
            text = dist.read_text("entry_points.txt")
            if text and GROUP in text and (entries := [e for e in dist.entry_points if e.group == GROUP]):
                yield dist, entries
        except Exception as e:  # noqa: BLE001 (as in scan)
            yield dist, e


def _found(dist: Any, name: str, value: str) -> Found:
    """One entry point with its manifest, or with what is wrong with that."""
    bare = Found(name, dist.metadata["Name"], dist.version or "", _build(dist), value, distribution=dist)
    if project_folder(dist) is not None:
        bare = replace(bare, notes=("editable install",))
    try:
        manifest = _manifest(dist, name)
    except OSError as e:
        return replace(bare, stop=Stop("manifest", "failed", "unreadable", f"backend.json cannot be read: {e}"))
    except SchemaUnknownError as e:
        return replace(bare, stop=Stop("manifest", "refused", "schema-unknown", str(e), "upgrade jackfield"))
    except ManifestError as e:
        hint = "report it to the vendor of the plugin"
        return replace(bare, stop=Stop("manifest", "refused", "manifest-invalid", str(e), hint))
    if manifest is None:
        error = f"{bare.dist} {bare.version} has no backend.json"
        hint = "loads only when named; ask the vendor for a manifest"
        return replace(bare, stop=Stop("manifest", "refused", "manifest-missing", error, hint))
    return replace(bare, manifest=manifest, notes=bare.notes + manifest.notes)


def _manifest(dist: Any, name: str) -> Manifest | None:
    """The entry of this name in the distribution's backend.json; None without such a file."""
    try:
        text = next((t for t in map(dist.read_text, FILES) if t is not None), None)
    except ValueError as e:
        raise ManifestError(f"backend.json: not UTF-8: {e}") from None
    if text is None:
        return None
    entry = read(text).get(name)
    if entry is None:
        raise ManifestError(f"backend.json: backends has no entry {name!r}, the entry point's name")
    if isinstance(entry, ManifestError):
        raise entry
    return entry


def _build(dist: Any) -> str:
    """Digest of RECORD without what installers add: it holds a hash of each file of the wheel."""
    import hashlib  # noqa: PLC0415 (loads a library that a plan on known devices does not need)

    record = dist.read_text("RECORD") or ""
    added = re.compile(r"(INSTALLER|REQUESTED|direct_url\.json|RECORD|\.pyc),")
    lines = sorted(line for line in record.splitlines() if not added.search(line))
    return "sha256:" + hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _judged(found: Found, wishes: Wishes) -> Found:
    """Platform, trust and contract window, in this order, for a manifest that is right."""
    manifest = found.manifest
    assert manifest is not None
    if manifest.platforms and this_platform() not in manifest.platforms:
        error = f"built for {', '.join(manifest.platforms)}, this is {this_platform()}"
        return replace(found, stop=Stop("manifest", "absent", "platform", error))
    if stop := trust_stop(found, wishes):
        return replace(found, stop=stop)
    try:
        spoken(CORE_WINDOW, manifest.contract, found.name)
    except ContractError as e:
        code = "too-new" if manifest.contract[0] > CORE_WINDOW[1] else "too-old"
        error, _, hint = str(e).partition(": ")
        return replace(found, stop=Stop("contract", "refused", code, error, hint))
    return found


def trust_stop(found: Found, wishes: Wishes) -> Stop | None:
    """The user's lists and the place it lies in."""
    if refusal := wishes.refusal(found.name):
        return Stop("trust", "off", refusal.code, refusal.error, refusal.hint)
    module = found.value.partition(":")[0].strip()
    if refusal := where_refused(found.distribution, f"{found.dist} {found.version}", module):
        return Stop("trust", "refused", refusal.code, refusal.error, refusal.hint)
    return None


def _without_duplicates(found: Sequence[Found], wishes: Wishes) -> list[Found]:
    """One owner a name and a kind: the user's choice, else the higher version, else the first distribution."""

    def rank(one: Found) -> tuple[bool, list[int], str]:
        return wishes.chosen.get(one.name) != plain(one.dist), [-n for n in _release(one.version)], one.dist

    owners: dict[str, Found] = {}
    result = [f for f in found if f.stop]
    for one in sorted((f for f in found if not f.stop), key=rank):
        owner = next((owners[word] for word in (one.name, *one.kinds) if word in owners), None)
        if owner is None:
            owners |= dict.fromkeys((one.name, *one.kinds), one)
            result.append(one)
        else:
            error = f"{one.name}: also in {owner.dist} {owner.version}, which was chosen"
            hint = f"JACKFIELD_BACKENDS={one.name}={one.dist} chooses this one"
            result.append(replace(one, stop=Stop("manifest", "off", "duplicate", error, hint)))
    return result


def _release(version: str) -> list[int]:
    """The numbers of a version in front of any letters; enough to order the releases of one backend."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return [int(n) for n in match[1].split(".")] if match else []
