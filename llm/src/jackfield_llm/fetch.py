"""Fetches one wheel without its dependencies, with whichever installer this Python has: pip, else uv.

Both are asked as programs, so that the user's own settings (index, proxy, certificates) hold.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from jackfield_llm.errors import SourceError

__all__ = ["WAYS", "WayFailed", "fetch_wheel", "has_pip", "last_words", "uv_program"]

_POLL_S = 0.1
_WORDS = 240  # characters of an installer's message that are worth showing


class WayFailed(Exception):
    """One way did not work; the text says why."""


def fetch_wheel(name: str, version: str, into: Path, progress: Callable[[int], None]) -> None:
    """Brings the wheel `name` of that version into the folder `into`: packed by pip, unpacked by uv.

    progress: called now and then with the bytes that have arrived.
    Raises: SourceError, one line that says what was tried and what each way answered.
    """
    tried = []
    for label, way in WAYS.items():
        folder = into / label
        try:
            way(name, version, folder, progress)
        except WayFailed as failure:
            shutil.rmtree(folder, ignore_errors=True)
            tried.append(f"{label}: {failure}")
        else:
            return
    raise SourceError("; ".join(tried))


def has_pip() -> bool:
    """Whether this Python has pip; environments that uv makes have none."""
    return importlib.util.find_spec("pip") is not None


def uv_program() -> str | None:
    """Path of uv: the one that started us, else the one on PATH."""
    return os.environ.get("UV") or shutil.which("uv")


def _pip(name: str, version: str, folder: Path, progress: Callable[[int], None]) -> None:
    if not has_pip():
        raise WayFailed("not installed in this Python")
    options = ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--disable-pip-version-check", "--no-input"]
    patience = ["--retries", "2", "--timeout", "15", "--progress-bar", "off"]
    command = [sys.executable, "-m", "pip", "download", *options, *patience, "--dest", str(folder / "got")]
    _run([*command, f"{name}=={version}"], folder, progress)


def _uv(name: str, version: str, folder: Path, progress: Callable[[int], None]) -> None:
    program = uv_program()
    if program is None:
        raise WayFailed("not found on PATH")
    options = ["--no-deps", "--only-binary", ":all:", "--no-cache", "--no-progress", "--python", sys.executable]
    command = [program, "pip", "install", *options, "--target", str(folder / "got")]
    _run([*command, f"{name}=={version}"], folder, progress)


WAYS: dict[str, Callable[[str, str, Path, Callable[[int], None]], None]] = {"pip": _pip, "uv": _uv}
"""What is tried, in this order."""


def _run(command: list[str], folder: Path, progress: Callable[[int], None]) -> None:
    """Runs an installer whose temporary files lie in `folder` too, so that their size tells how far it is."""
    scratch = folder / "tmp"
    scratch.mkdir(parents=True, exist_ok=True)
    log = folder / "log"
    environment = {**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)}
    try:
        with log.open("wb") as out:
            child = subprocess.Popen(  # noqa: S603 - the program is pip or uv, the arguments are checked names
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment, cwd=folder
            )
            _wait(child, folder, progress)
    except OSError as e:
        raise WayFailed(str(e)) from e
    if child.returncode != 0:
        raise WayFailed(last_words(log.read_text("utf-8", "replace")) or f"ended with status {child.returncode}")


def _wait(child: subprocess.Popen[bytes], folder: Path, progress: Callable[[int], None]) -> None:
    try:
        while child.poll() is None:
            progress(_size(folder))
            time.sleep(_POLL_S)
    finally:
        if child.returncode is None:  # Ctrl-C, or the report of progress raised
            child.kill()
            child.wait()


def _size(folder: Path) -> int:
    """Bytes of all files below; the installer moves them about meanwhile, so a lost one counts nothing."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size  # noqa: PTH118 - called ten times a second
            except OSError:
                continue
    return total


def last_words(text: str) -> str:
    """The line of an installer's output that says what went wrong: its last "error" line, else its last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    wrong = [line for line in lines if "error" in line.lower() or "no solution" in line.lower()]
    found = " ".join((wrong or lines or [""])[-1].split())
    return found if len(found) <= _WORDS else f"{found[:_WORDS]}..."
