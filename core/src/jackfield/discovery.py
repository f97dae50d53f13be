"""Which backends are installed, and what is known of each without running a line of it."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from .backend import API
from .errors import ContractError, ManifestError
from .manifest import FILES, Manifest, SchemaUnknownError, Version, read, spoken, this_platform
from .probe import cache_folder
from .stages import Stop
from .sweep import sweep, used
from .trust import Wishes, is_working_folder, origins, plain, project_folder, trusted_path, where_refused
from .versions import cure, precedence

__all__ = [
    "CORE_VERSION",
    "CORE_WINDOW",
    "GROUP",
    "Found",
    "agreed_contract",
    "code_files",
    "fingerprint",
    "forget_kept",
    "place_stop",
    "request_of",
    "scan",
    "trust_stop",
]

GROUP = "jackfield.backends"
SCHEMA = "jackfield.installed/2"  # of what is kept of installed backends
CORE_VERSION = "0.1.0"  # of the distribution; a test compares, because reading the metadata costs an import
CORE_WINDOW: tuple[Version, Version] = (API, API)  # below 1.0 a minor may break, so the window starts at the newest


@dataclass(frozen=True)
class Found:
    """One entry point of the group.

    value: `module` or `module:attribute`. build: digest of the wheel's record of files.
    manifest: None when there is none that can be read; text: of it. stop: why its code will not run, or None.
    record: lines of RECORD without what installers add. needs: what it requires of jackfield, as METADATA says it.
    rival: the words to warn with where it is a duplicate that nobody decided about.
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
    record: tuple[str, ...] = field(default=(), compare=False, repr=False)
    text: str | None = field(default=None, compare=False, repr=False)
    needs: tuple[str, ...] = field(default=(), compare=False, repr=False)
    rival: str = field(default="", compare=False, repr=False)

    @property
    def place(self) -> str:
        """Path of its dist-info; "" for what no wheel brought."""
        if self.distribution is None:
            return ""
        folder = getattr(self.distribution, "_folder", None) or getattr(self.distribution, "_path", None)
        return str(folder or self.distribution.locate_file(""))

    @property
    def module(self) -> str:
        """Dotted name of what its entry point imports."""
        return self.value.partition(":")[0].strip()

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of device it offers; without a manifest its own name."""
        return tuple(dict.fromkeys(k.kind for k in self.manifest.kinds)) if self.manifest else (self.name,)


def fingerprint() -> tuple[tuple[str, object], ...]:
    """Each folder of the search path and when it last changed: other when something is installed or removed.

    Of the current and the script's folder, in which files come and go, the distributions that lie there.
    """
    return tuple((folder, _state_of(folder)) for folder in sys.path)


def _state_of(folder: str) -> object:
    place = folder or "."
    try:
        if is_working_folder(place):
            return sorted(name for name in os.listdir(place) if name.endswith((".dist-info", ".egg-info", ".egg")))  # noqa: PTH208 (as below)
        return os.stat(place).st_mtime_ns  # noqa: PTH116 (ten times as fast as Path)
    except OSError:  # a folder that is not there holds no plugin
        return 0


@dataclass(frozen=True)
class _Entry:
    """What files say of one entry point. folder: its dist-info; "" where that is none, as in an archive.

    record: lines of RECORD without what installers add. manifest: text of backend.json. wrong: why that is no text.
    needs: what METADATA requires of jackfield. seen: size and time of each file that says all this, as they were.
    """

    folder: str
    name: str
    value: str
    dist: str
    version: str
    record: tuple[str, ...]
    manifest: str | None
    wrong: str = ""
    needs: tuple[str, ...] = ()
    seen: tuple[tuple[int, int], ...] = ()

    def is_as_it_was(self) -> bool:
        """Whether no file of it has been written since: a change inside a folder does not show on that folder."""
        return self.seen == _seen(self.folder)

    def is_whole(self) -> bool:
        """Whether every field is what it must be, which a file need not keep to."""
        texts = (self.folder, self.name, self.value, self.dist, self.version, self.wrong, *self.record, *self.needs)
        return all(isinstance(t, str) and "\0" not in t for t in texts) and isinstance(self.manifest, (str, type(None)))


def _seen(folder: str) -> tuple[tuple[int, int], ...]:
    """Size and time of what is read of a dist-info; (-1, -1) for a file that is not there."""
    found = []
    for name in _READ:
        try:
            state = os.stat(f"{folder}/{name}")  # noqa: PTH116 (as in _state_of)
            found.append((state.st_size, state.st_mtime_ns))
        except (OSError, ValueError):
            found.append((-1, -1))
    return tuple(found)


_READ = (*FILES, "METADATA", "RECORD", "entry_points.txt")


class _Folder:
    """A dist-info folder, as far as anybody asks: `importlib.metadata` takes longer to import than all else here."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def read_text(self, filename: str) -> str | None:
        try:
            return self._folder.joinpath(filename).read_text("utf-8")
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError):
            return None

    def locate_file(self, path: str) -> Path:
        return self._folder.parent / path


def scan(wishes: Wishes, *, anew: bool = False) -> tuple[list[Found], bool]:
    """All backends by name, then distribution; and whether every file could be read.

    What the files say is kept for the user under the folders of the search path and their times. anew: read them all,
    whatever is kept.
    """
    place = _kept_in(fingerprint())
    kept = None if anew else _kept(place)
    if kept is not None:
        with suppress(Exception):  # of the right form, but not what anybody kept here: all is read anew
            return _chosen([_found(entry, _Folder(entry.folder)) for entry in kept], wishes), True
    found, entries, whole = _read_all()
    whole = whole and not any(f.stop and f.stop.code == "unreadable" for f in found)
    if whole and place is not None and place == _kept_in(fingerprint()) and all(e.folder for e in entries):
        _keep(place, entries)
    return _chosen(found, wishes), whole


def _chosen(found: Sequence[Found], wishes: Wishes) -> list[Found]:
    judged = [f if f.stop else _judged(f, wishes) for f in found]
    return sorted(_without_duplicates(judged, wishes), key=lambda f: (f.name, f.dist))


def _read_all() -> tuple[list[Found], list[_Entry], bool]:
    found, entries, whole = [], [], True
    seen: set[str] = set()
    for dist, points in _distributions():
        if isinstance(points, Exception):
            whole = False
            continue
        try:
            label = plain(dist.metadata["Name"])
            if label in seen:  # an older copy further down the search path: Python would not import it either
                continue
            seen.add(label)
            made = [_entry(dist, point.name, point.value) for point in points]
            entries += made
            found += [_found(entry, _Folder(entry.folder) if entry.folder else dist) for entry in made]
        except Exception:  # noqa: BLE001 (one unreadable dist-info must not hide the others; the next scan tries again)
            whole = False
    return found, entries, whole


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


def _entry(dist: Any, name: str, value: str) -> _Entry:
    folder = getattr(dist, "_path", None)
    at = str(Path(folder).absolute()) if isinstance(folder, Path) and folder.is_dir() else ""
    seen = _seen(at)  # before they are read: what is written meanwhile makes them others
    record = tuple(sorted(line for line in (dist.read_text("RECORD") or "").splitlines() if not _ADDED.search(line)))
    text, wrong = None, ""
    try:
        text = next((t for t in map(dist.read_text, FILES) if t is not None), None)
    except OSError as e:
        wrong = f"cannot be read: {e}"
    except ValueError as e:
        wrong = f"not UTF-8: {e}"
    needs = tuple(need for need in dist.requires or () if re.match(r"jackfield\b(?![-_.])", need, re.IGNORECASE))
    return _Entry(at, name, value, dist.metadata["Name"], dist.version or "", record, text, wrong, needs, seen)


def _found(entry: _Entry, dist: Any) -> Found:
    """One entry point with its manifest, or with what is wrong with that."""
    bare = Found(
        entry.name,
        entry.dist,
        entry.version,
        _build(entry.record),
        entry.value,
        distribution=dist,
        record=entry.record,
        needs=entry.needs,
    )
    if project_folder(dist) is not None:
        bare = replace(bare, notes=("editable install",))
    if entry.wrong.startswith("cannot be read"):
        return replace(bare, stop=Stop("manifest", "failed", "unreadable", f"backend.json {entry.wrong}"))
    try:
        manifest = _manifest(entry)
    except SchemaUnknownError as e:
        return replace(bare, stop=Stop("manifest", "refused", "schema-unknown", str(e), "upgrade jackfield"))
    except ManifestError as e:
        hint = "report it to the vendor of the plugin"
        return replace(bare, stop=Stop("manifest", "refused", "manifest-invalid", str(e), hint))
    if manifest is None:
        error = f"{bare.dist} {bare.version} has no backend.json"
        hint = "loads only when named; ask the vendor for a manifest"
        return replace(bare, stop=Stop("manifest", "refused", "manifest-missing", error, hint))
    return replace(bare, manifest=manifest, text=entry.manifest, notes=bare.notes + manifest.notes)


def _kept_in(seen: object) -> Path | None:
    """The file of what was found where the search path looked like this."""
    import hashlib  # noqa: PLC0415 (loads a library that a plan on known devices does not need)

    folder = cache_folder()
    if folder is None:
        return None
    text = repr((SCHEMA, seen, os.getcwd(), sys.version))  # noqa: PTH109 (a string, as sys.path has them)
    return folder / f"installed-{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


def _kept(place: Path | None) -> list[_Entry] | None:
    if place is None:
        return None
    try:
        rows = json.loads(place.read_text("utf-8"))
        found = [
            _Entry(
                **{
                    **row,
                    "record": tuple(row["record"]),
                    "needs": tuple(row["needs"]),
                    "seen": tuple(map(tuple, row["seen"])),
                }
            )
            for row in rows
        ]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):  # not there, or not ours
        return None
    used(place)
    return found if all(entry.is_whole() and entry.is_as_it_was() for entry in found) else None


def forget_kept() -> None:
    """What is kept of all that is installed, for every search path, is read anew."""
    folder = cache_folder()
    for path in folder.glob("installed-*.json") if folder is not None else ():
        with suppress(OSError):  # gone already, or not ours to remove: `scan` can be told to look past it
            path.unlink()


def _keep(place: Path, entries: Sequence[_Entry]) -> None:
    part = place.with_suffix(f".{os.getpid()}.part")
    with suppress(OSError):  # a full disk, or a folder that can't be written to: the next process reads all again
        place.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps([asdict(entry) for entry in entries]), "utf-8")
        part.replace(place)
        sweep(place.parent, place.stem)


def _manifest(entry: _Entry) -> Manifest | None:
    """The entry of this name in the distribution's backend.json; None without such a file."""
    if entry.wrong:
        raise ManifestError(f"backend.json: {entry.wrong}")
    if entry.manifest is None:
        return None
    found = read(entry.manifest).get(entry.name)
    if found is None:
        raise ManifestError(f"backend.json: backends has no entry {entry.name!r}, the entry point's name")
    if isinstance(found, ManifestError):
        raise found
    return found


_ADDED = re.compile(r"(INSTALLER|REQUESTED|direct_url\.json|uv_(cache|build)\.json|RECORD|__pycache__/[^/]*\.pyc)\"?,")


def _build(record: Sequence[str]) -> str:
    """Digest of RECORD: it holds a hash of each file of the wheel."""
    import hashlib  # noqa: PLC0415 (as in _kept_in)

    return "sha256:" + hashlib.sha256("\n".join(record).encode()).hexdigest()


def code_files(found: Found) -> list[Path]:
    """Files whose change makes another build of it: those of RECORD, and the sources of an editable install, or of one
    without a record.
    """
    lines = found.record
    place = Path(str(found.distribution.locate_file("")))
    files = [place / line.rsplit(",", 2)[0].strip('"') for line in lines]
    if not lines or project_folder(found.distribution) is not None:
        for origin in origins(found.module.partition(".")[0]):
            package = origin.parent if origin.name == "__init__.py" else origin
            files += [origin] if package.is_file() else [p for p in package.rglob("*") if p.suffix in _CODE]
    return files


_CODE = {".py", ".so", ".pyd", ".dylib", ".dll"}


def request_of(found: Found) -> dict[str, Any]:
    """What a child process needs to rehearse it; see `rehearsal`. Its search path is this one's, without the current
    and the script's folder.
    """
    return {
        "path": trusted_path(),
        "name": found.name,
        "dist": found.dist,
        "version": found.version,
        "value": found.value,
        "manifest": found.text,
    }


def _judged(found: Found, wishes: Wishes) -> Found:
    """Platform, trust and contract window, in this order, for a manifest that is right."""
    manifest = found.manifest
    assert manifest is not None
    if manifest.platforms and this_platform() not in manifest.platforms:
        error = f"built for {', '.join(manifest.platforms)}, this is {this_platform()}"
        return replace(found, stop=Stop("manifest", "absent", "platform", error))
    if stop := trust_stop(found, wishes):
        return replace(found, stop=stop)
    agreed = agreed_contract(found, manifest.contract)
    return replace(found, stop=agreed) if isinstance(agreed, Stop) else found


def agreed_contract(found: Found, window: tuple[Version, Version]) -> Version | Stop:
    """The version of the contract that the core and a plugin of this window both speak, or that there is none."""
    try:
        return spoken(CORE_WINDOW, window, found.name)
    except ContractError as e:
        code = "too-new" if window[0] > CORE_WINDOW[1] else "too-old"
        error, _, hint = str(e).partition(": ")
        if found.distribution is not None:
            hint = cure(CORE_WINDOW, window, CORE_VERSION, found.dist, found.version, found.needs)
        return Stop("contract", "refused", code, error, hint)


def trust_stop(found: Found, wishes: Wishes) -> Stop | None:
    """The user's lists, the place it lies in, and what the user pinned."""
    if refusal := wishes.refusal(found.name):
        return Stop("trust", "off", refusal.code, refusal.error, refusal.hint)
    if stop := place_stop(found):
        return stop
    if wishes.pins is None:
        return None
    refusal = wishes.pins.refusal(found.distribution, found.dist, found.version, found.module)
    return Stop("trust", "refused", refusal.code, refusal.error, refusal.hint) if refusal else None


def place_stop(found: Found) -> Stop | None:
    """Where it lies now, and what Python would import now: both are other when the program goes to another folder."""
    refusal = where_refused(found.distribution, f"{found.dist} {found.version}", found.module, found.record)
    return Stop("trust", "refused", refusal.code, refusal.error, refusal.hint) if refusal else None


def _without_duplicates(found: Sequence[Found], wishes: Wishes) -> list[Found]:
    """One owner a name and a kind: the user's choice, else the higher version, else the first distribution."""
    owners: dict[str, Found] = {}
    result = [f for f in found if f.stop]
    able = sorted((f for f in found if not f.stop), key=lambda f: f.dist)
    able.sort(key=lambda f: precedence(f.version), reverse=True)  # of equal ones the order stays
    able.sort(key=lambda f: wishes.chosen.get(f.name) != plain(f.dist))
    for one in able:
        word = next((word for word in (one.name, *one.kinds) if word in owners), None)
        if word is None:
            owners |= dict.fromkeys((one.name, *one.kinds), one)
            result.append(one)
        else:
            owner = owners[word]
            error = f"{one.name}: also in {owner.dist} {owner.version}, which was chosen"
            hint = f"JACKFIELD_BACKENDS={one.name}={one.dist} chooses this one"
            told = f"{word} is offered twice: {_placed(owner)} is used, {_placed(one)} is not; {hint}"
            rival = "" if one.name in wishes.chosen else told
            result.append(replace(one, stop=Stop("manifest", "off", "duplicate", error, hint), rival=rival))
    return result


def _placed(found: Found) -> str:
    return f"{found.dist} {found.version} ({found.place})"
