"""The pin file: what the files of each wheel were when the user looked at them, and whether they still are.

`jackfield trust pin` writes it, JACKFIELD_PINS names it. A wheel that has no pin, or of which one byte is another, is
refused before a line of it runs, in a child process too. Bytecode below `__pycache__` has no pin: Python writes it.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from .trust import Distribution, Refusal, origins, plain, project_folder
from .variables import setting

__all__ = ["SCHEMA", "Pin", "Pins", "pin_of", "pins_of_user", "wrong_pins"]

SCHEMA = "jackfield.pins/1"
PROJECT = "@project/"  # in front of the sources of an editable install, which lie outside the folder of packages
_CODE = {".py", ".so", ".pyd", ".dylib", ".dll", ".pyc"}
_BY_INSTALLERS = re.compile(r"\.dist-info/(INSTALLER|REQUESTED|RECORD|direct_url\.json|uv_(cache|build)\.json)$")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Pin:
    """What one distribution was. files: paths from the folder of packages, or PROJECT's, to the digests of content."""

    name: str
    version: str
    files: Mapping[str, str]

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "version": self.version, "files": dict(self.files)}


@dataclass(frozen=True)
class Pins:
    """A pin file. wrong: why it can't be used, and then nothing is pinned; "" where it can."""

    path: str
    pins: Mapping[str, Pin]
    wrong: str = ""

    def refusal(self, dist: Distribution, name: str, version: str, module: str) -> Refusal | None:
        """Why this distribution is not what was pinned; None: every byte is.

        name, version: of the distribution. module: of its entry point, whose package may hold no further code.
        """
        label = f"{name} {version}".strip()
        if self.wrong:
            return Refusal(
                "unpinned", f"JACKFIELD_PINS={self.path} {self.wrong}, so {label} has no pin", _anew(self.path)
            )
        pin = self.pins.get(plain(name))
        if pin is None:
            return Refusal("unpinned", f"{label} has no pin in {self.path}", _anew(self.path))
        if pin.version != version:
            return Refusal("unpinned", f"{label} has no pin in {self.path}, only {pin.version} has", _anew(self.path))
        if odd := _difference(pin, dist, module):
            return Refusal("tampered", f"{label}: {odd}", f"reinstall it, or {_anew(self.path)}")
        return None


def _anew(path: str) -> str:
    return f"pin what is installed now: `jackfield trust pin > {path}`"


def _difference(pin: Pin, dist: Distribution, module: str) -> str:
    """The first file that is not as it was pinned, in words; "" where all are."""
    for name, digest in sorted(pin.files.items()):
        found = _digest(_place(dist, name))
        if found != digest:
            return f"{PurePosixPath(name).name} {'differs from its pin' if found else 'is pinned and can not be read'}"
    more = [name for name, _ in _package(dist, module) if name not in pin.files]
    return f"{min(more)} is code that has no pin" if more else ""


def pin_of(dist: Distribution, name: str, version: str, module: str) -> Pin:
    """What a distribution is now. Raises: OSError for a file that can't be read."""
    files = dict([*_recorded(dist), *_package(dist, module)])
    digests = {}
    for path_name, path in sorted(files.items()):
        digest = _digest(path)
        if not digest:
            raise OSError(f"{path} can not be read")
        digests[path_name] = digest
    return Pin(name, version, digests)


def _recorded(dist: Distribution) -> Iterator[tuple[str, Path]]:
    """Files of the wheel, without bytecode and what installers add."""
    for row in csv.reader((dist.read_text("RECORD") or "").splitlines()):
        if row and not row[0].endswith(".pyc") and not _BY_INSTALLERS.search(row[0]):
            yield row[0], _place(dist, row[0])


def _package(dist: Distribution, module: str) -> Iterator[tuple[str, Path]]:
    """The code that Python would find below the top-level name of a module, whether an installer listed it or not."""
    for origin in origins(module.strip().partition(".")[0]):
        package = origin.parent if origin.name == "__init__.py" else origin
        found = [package] if package.is_file() else sorted(package.rglob("*"))
        for path in found:
            if path.suffix in _CODE and "__pycache__" not in path.parts:
                yield _name(dist, path), path


def _place(dist: Distribution, name: str) -> Path:
    if name.startswith(PROJECT):
        return (project_folder(dist) or _folder(dist)) / name.removeprefix(PROJECT)
    return _folder(dist) / name


def _name(dist: Distribution, path: Path) -> str:
    """The inverse of `_place`; a path in full for what lies in neither folder."""
    project = project_folder(dist)
    for folder, prefix in ((_folder(dist), ""), *([(project, PROJECT)] if project is not None else [])):
        if path.is_relative_to(folder):
            return prefix + path.relative_to(folder).as_posix()
    return path.as_posix()


def _folder(dist: Distribution) -> Path:
    return Path(str(dist.locate_file(""))).resolve()


def _digest(path: Path) -> str:
    """Of a file's content; "" where it can't be read."""
    try:
        with path.open("rb") as file:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    except OSError:
        return ""


def pins_of_user() -> Pins | None:
    """The file that JACKFIELD_PINS names; None where it is not set."""
    path = setting("JACKFIELD_PINS")
    if path is None:
        return None
    try:
        state = Path(path).expanduser().stat()
    except OSError as e:
        return Pins(path, {}, f"can not be read ({e.strerror})")
    return _read(path, state.st_mtime_ns, state.st_size)


def wrong_pins() -> list[str]:
    """JACKFIELD_PINS in words, where its file can't be used."""
    pins = pins_of_user()
    return [f"JACKFIELD_PINS={pins.path} {pins.wrong}: no installed backend is used"] if pins and pins.wrong else []


@lru_cache(maxsize=1)
def _read(path: str, *_: int) -> Pins:
    """The file as it was at a time and of a size."""
    try:
        document = json.loads(Path(path).expanduser().read_text("utf-8"))
    except OSError as e:
        return Pins(path, {}, f"can not be read ({e.strerror})")
    except (ValueError, RecursionError) as e:
        return Pins(path, {}, f"is no pin file ({type(e).__name__}: {e})")
    try:
        if document["schema"] != SCHEMA:
            return Pins(path, {}, f"has schema {document['schema']!r}, must be {SCHEMA!r}")
        pins = [Pin(one["name"], one["version"], dict(one["files"])) for one in document["pins"]]
        words = [word for pin in pins for word in (pin.name, pin.version, *pin.files, *pin.files.values())]
    except (KeyError, TypeError, ValueError) as e:
        return Pins(path, {}, f"is no pin file ({type(e).__name__}: {e})")
    digests = [digest for pin in pins for digest in pin.files.values()]
    if not all(isinstance(word, str) for word in words) or not all(map(_DIGEST.fullmatch, digests)):
        return Pins(path, {}, "is no pin file (names and versions are texts, digests sha256:...)")
    return Pins(path, {plain(pin.name): pin for pin in pins})
