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
from collections.abc import Iterable
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


def where_refused(dist: Distribution, label: str, module: str) -> Refusal | None:
    """Why the place of this distribution, or of the module it names, is not trusted; None: it is.

    label: "name version" for the texts. module: dotted; only its top-level name is looked up, which imports nothing.
    """
    place = _folder(dist)
    project = project_folder(dist)
    if project is None and place in _untrusted() and place not in _sites():
        return Refusal(
            "outside-site", f"{label} lies in {place}, the current folder, the script's or that of the start",
            "install it (an editable install counts)",
        )  # fmt: skip
    top = module.partition(".")[0]
    places = origins(top)
    homes = [place, *([project] if project is not None else [])]
    if places and not any(origin.is_relative_to(home) for origin in places for home in homes):
        return Refusal("shadowed", f"{top} would come from {places[0]}, not from {label}", f"rename {places[0].name}")
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


def _resolved(folders: Iterable[str]) -> set[Path]:
    return {Path(folder).resolve() for folder in folders if folder}


def origins(top: str) -> list[Path]:
    """Files or folders a top-level name would come from; empty when Python does not find it, or it has none."""
    import importlib.util  # noqa: PLC0415 (as in _sites)

    try:
        spec: ModuleSpec | None = importlib.util.find_spec(top)
    except (ValueError, ImportError):  # a module without a spec, or a finder of an editable install that fails
        return []
    if spec is None:
        return []
    places = [spec.origin] if spec.origin and spec.has_location else list(spec.submodule_search_locations or ())
    return [Path(place).resolve() for place in places]
