"""Whether an installed backend may run: the user's lists, and where its distribution and module lie.

Trusted are the interpreter's site folders, folders the user put on the search path, and editable installs. Never the
current folder, the one Python was started in, or the script's folder, although Python's own search looks there, also
when the program has gone to another folder since. This is no sandbox: a trusted plugin
has all rights of the process.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlparse

__all__ = [
    "Distribution",
    "Refusal",
    "Wishes",
    "is_working_folder",
    "origins",
    "plain",
    "project_folder",
    "trusted_path",
    "where_refused",
]


class Distribution(Protocol):
    """What is asked of `importlib.metadata.Distribution`."""

    def read_text(self, filename: str, /) -> str | None: ...
    def locate_file(self, path: str, /) -> object: ...


@dataclass(frozen=True)
class Refusal:
    """Why a backend does not run: stable code, one line, and what to do."""

    code: str
    error: str
    hint: str = ""


class Pinned(Protocol):
    """A pin file; see `pins`."""

    def refusal(self, dist: Distribution, name: str, version: str, module: str, /) -> Refusal | None: ...


@dataclass(frozen=True)
class Wishes:
    """JACKFIELD_BACKENDS taken apart: names allowed and denied (globs), and which distribution has a name.

    pins: what JACKFIELD_PINS allows; None: whatever is installed.
    """

    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    chosen: dict[str, str] = field(default_factory=dict)
    text: str = ""
    pins: Pinned | None = None

    @classmethod
    def parse(cls, text: str | None, pins: Pinned | None = None) -> Wishes:
        allowed, denied, chosen = [], [], {}
        for word in (w.strip() for w in (text or "").split(",")):
            name, equals, dist = word.partition("=")
            if equals:
                chosen[name.strip()] = plain(dist)
            elif word.startswith("!"):
                denied.append(word[1:].strip())
            elif word:
                allowed.append(word)
        return cls(tuple(allowed), tuple(denied), chosen, text or "", pins)

    def refusal(self, name: str) -> Refusal | None:
        """Why the user's list leaves this backend out, or None."""
        if any(fnmatchcase(name, pattern) for pattern in self.denied):
            return Refusal("denied", f"JACKFIELD_BACKENDS={self.text} forbids {name}", f"take !{name} out of it")
        if self.allowed and not any(fnmatchcase(name, pattern) for pattern in self.allowed):
            return Refusal("not-listed", f"JACKFIELD_BACKENDS={self.text} leaves out {name}", f"add {name}")
        return None


def plain(dist: str) -> str:
    """A distribution's name in the one spelling that compares equal."""
    return dist.strip().lower().replace("_", "-").replace(".", "-")


def where_refused(dist: Distribution, label: str, module: str, record: Sequence[str] = ()) -> Refusal | None:
    """Why the place of this distribution, or of the module it names, is not trusted; None: it is.

    label: "name version" for the texts. module: dotted; looking it up runs no code. record: lines of its RECORD;
    without them, as system packages are, whatever lies in the distribution's folder counts as its own.
    """
    place, untrusted = _folder(dist), _untrusted()
    if place in untrusted and place not in _sites():  # whatever it says of itself: it may be planted with all its files
        return Refusal(
            "outside-site", f"{label} lies in {place}, the current folder, the script's or that of the start",
            "install it (an editable install counts)",
        )  # fmt: skip
    sources, project = _sources(module), project_folder(dist)
    homes = (place,) if project is None else (place, project)
    known = (_stems(record) or None) if project is None else None
    is_own = False
    for source in sources:
        if source.place is None:
            return Refusal("shadowed", f"{source.name} would come from Python itself, not from {label}", FOREIGN)
        inside = any(path.is_relative_to(home) for path in (source.path, source.place.resolve()) for home in homes)
        if not (source.folder == place or (project is not None and inside) or source.folder in _trusted()):
            return _shadowed(source, label)
        own = inside if known is None else source.stem(place) in known
        if not own and not source.is_portion:
            is_foreign = known is not None and (source.folder == place or source.name.partition(".")[0] not in known)
            return _shadowed(source, label, FOREIGN if is_foreign else "")
        is_own = is_own or own
    return _shadowed(sources[0], label, FOREIGN) if sources and not is_own else None


FOREIGN = "report it to the vendor: an entry point must name a module of its own distribution"


def _shadowed(source: _Source, label: str, hint: str = "") -> Refusal:
    error = f"{source.name} would come from {source.path}, not from {label}"
    return Refusal("shadowed", error, hint or f"rename {source.entry.name}")


def _stems(record: Sequence[str]) -> set[str]:
    """Files and folders of a RECORD, from its folder on. Files without their endings: what is compiled, or has lost its
    source, is the same module.
    """
    found: set[str] = set()
    for line in record:
        *folders, name = line.rsplit(",", 2)[0].strip('"').split("/")
        found.add("/".join([*folders, name.partition(".")[0]]))
        found.update("/".join(folders[:n]) for n in range(1, len(folders) + 1))
    return found


@dataclass(frozen=True)
class _Source:
    """Where Python finds a dotted name. place: a file, or the folder of one portion of a namespace package, in which no
    code lies; None for what is part of Python.
    """

    name: str
    place: Path | None
    is_portion: bool = False

    @property
    def path(self) -> Path:
        """The place from its folder of the search path on as it is written: installers may fill a folder with links."""
        assert self.place is not None
        return self.folder / self.place.relative_to(self._written)

    @property
    def folder(self) -> Path:
        """The folder of the search path in which it lies."""
        return self._written.resolve()

    @property
    def _written(self) -> Path:
        return self.entry.parents[min(self.name.count("."), len(self.entry.parents) - 1)]

    @property
    def entry(self) -> Path:
        """What its own folder has of it: a file, or a package."""
        assert self.place is not None
        return self.place.parent if self.place.name.startswith("__init__.") and not self.is_portion else self.place

    def stem(self, home: Path) -> str:
        """As `_stems` has it; "" for what lies elsewhere."""
        if not self.path.is_relative_to(home):
            return ""
        found = self.path.relative_to(home)
        return found.as_posix() if self.is_portion else (found.parent / found.name.partition(".")[0]).as_posix()


def _sources(module: str) -> list[_Source]:
    """What an import of it would go through first: all portions of a namespace package, and of those below it, then the
    one file that runs; nothing where Python does not find it. Below a package with code all is that code's affair.
    """
    found: list[_Source] = []
    name, path = "", None
    for word in module.split("."):
        name = f"{name}.{word}" if name else word
        spec = _spec(name, path)
        if spec is None:
            return found
        if spec.origin in ("built-in", "frozen"):
            return [*found, _Source(name, None)]
        if spec.origin and spec.has_location:
            return [*found, _Source(name, Path(spec.origin).absolute())]
        path = list(spec.submodule_search_locations or ())
        found += [_Source(name, Path(portion).absolute(), is_portion=True) for portion in path]
    return found


def _spec(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """How Python would find a name, below the portions of its parent; None where it does not."""
    import importlib.util  # noqa: PLC0415 (as in _sites)

    try:
        if path is None or name in sys.modules:
            return importlib.util.find_spec(name)
        finders = [finder.find_spec for finder in sys.meta_path if hasattr(finder, "find_spec")]
        return next((spec for find in finders if (spec := find(name, path, None)) is not None), None)
    except (ValueError, ImportError):  # a module without a spec, or a finder of an editable install that fails
        return None


def project_folder(dist: Distribution) -> Path | None:
    """Where the sources of an editable install lie; None for any other install."""
    try:
        record = json.loads(dist.read_text("direct_url.json") or "{}")
        url = urlparse(record["url"]) if record.get("dir_info", {}).get("editable") is True else None
    except (ValueError, KeyError, AttributeError, TypeError):
        return None  # not written by an installer: no editable install
    if url is None or url.scheme != "file":
        return None
    path = unquote(url.path)
    return Path(path.lstrip("/") if os.name == "nt" else path).resolve()


def _folder(dist: Distribution) -> Path:
    return Path(str(dist.locate_file(""))).resolve()


def _sites() -> set[Path]:
    """Folders packages are installed in, and those that PYTHONPATH names."""
    import site  # noqa: PLC0415 (looked at only when there is a plugin)
    import sysconfig  # noqa: PLC0415

    folders: list[str] = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    return _resolved([*folders, *_search_path()])


def _untrusted() -> set[Path]:
    """The current folder, the script's, and what Python itself has put in front of the search path for the start."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    found = [str(Path(script).parent), str(Path(script).resolve().parent)] if script else []
    with suppress(OSError):  # the current folder was removed: nothing can be found in it
        found.append(str(Path.cwd()))
    if "multiprocessing.process" in sys.modules:  # a spawned process is given the folder its parent was started in
        found.append(getattr(sys.modules["multiprocessing.process"], "ORIGINAL_DIR", None) or "")
    return _resolved([*found, *_started_in()])


def _started_in() -> list[str]:
    """The folder that `python -m` was started in, which stays on the search path wherever the program goes.

    Python tells nobody which it was, and a program may have put folders of its own before or behind it. But the first
    thing Python does with it is to look for the module to run there, before any of that module's code: so of all
    folders it has looked into, it is the first that is neither of the library or a site, nor of the search path
    behind those, as the lines of .pth files are. The folder that the module was found under counts as well.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is None or sys.flags.safe_path:
        return []  # a script, -c or a prompt; or Python puts no folder there
    library = os.path.dirname(os.__file__)  # noqa: PTH120 (as sys.path has it)
    behind = sys.path[sys.path.index(library) :] if library in sys.path else []
    root = str(Path(spec.origin).parents[spec.name.count(".")]) if spec.origin and spec.has_location else ""
    found = [] if root in behind else [root]
    inside = [library, *map(str, _sites()), *_search_path()]
    for folder in sys.path_importer_cache:
        if os.path.isabs(folder) and folder not in behind and not _is_below(folder, inside) and os.path.isdir(folder):  # noqa: PTH117, PTH112 (text)
            return [*found, folder]
    return found


def _is_below(folder: str, places: Iterable[str]) -> bool:
    return any(Path(folder).is_relative_to(place) for place in places)


def _search_path() -> list[str]:
    """Folders of PYTHONPATH."""
    return (
        [] if sys.flags.ignore_environment else list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    )


def is_working_folder(folder: str) -> bool:
    """Whether it is the current or the script's folder."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if folder == "." or folder == (os.path.dirname(script) if script else None):  # noqa: PTH120 (asked for every look)
        return True
    try:
        return folder == os.getcwd()  # noqa: PTH109 (as above)
    except OSError:
        return False


def trusted_path() -> list[str]:
    """The search path without the current and the script's folder, unless packages are installed there."""
    left_out = _untrusted() - _sites()
    return [folder for folder in sys.path if folder and Path(folder).resolve() not in left_out]


def _trusted() -> set[Path]:
    return _sites() | _resolved(trusted_path())


def _resolved(folders: Iterable[str]) -> set[Path]:
    return {Path(folder).resolve() for folder in folders if folder}


def origins(top: str) -> list[Path]:
    """Files or folders a top-level name would come from; empty when Python does not find it, or it has none."""
    spec = _spec(top, None)
    if spec is None:
        return []
    places = [spec.origin] if spec.origin and spec.has_location else list(spec.submodule_search_locations or ())
    return [Path(place).resolve() for place in places]
