"""The JACKFIELD_* variables: what each is for, and what the environment says.

A plugin's own variables stand in its manifest; this table holds all others, also those of the tests and of `bench/`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator

from .names import near

__all__ = ["PREFIX", "VARIABLES", "ignored", "setting", "unknown"]

PREFIX = "JACKFIELD_"

VARIABLES = {
    "JACKFIELD_DEVICE": "the selection when no device is given",
    "JACKFIELD_POLICY": "strict, prefer or auto",
    "JACKFIELD_BACKENDS": "which backends may load",
    "JACKFIELD_PINS": "file of `jackfield trust pin`: wheels that are not in it, or not as they were, do not load",
    "JACKFIELD_HIDE": "cards that no backend may offer: a list of ids and addresses, or of their beginnings",
    "JACKFIELD_CHECK": "checks while debugging: memory, nan, promises",
    "JACKFIELD_SIM": "shape and faults of sim",
    "JACKFIELD_PROBE": "whether a child process meets a backend first: first (a new build), always or never",
    "JACKFIELD_PROBE_TIMEOUT": "seconds that this child may take",
    "JACKFIELD_CACHE": "folder of fetched models and of what is known of backends; off: nothing of these is kept",
    "JACKFIELD_REQUIRE": "tests: what must be there",
    "JACKFIELD_VOCABS": "tests: folder of vocabulary files",
    "JACKFIELD_THOROUGH": "tests: all cases of long lists",
    "JACKFIELD_PEER_DIR": "bench: folder of the peer's build",
}


def ignored() -> str:
    """Why no variable counts in this process; "" where they do."""
    if sys.flags.ignore_environment:
        return "Python runs with -I or -E"
    if hasattr(os, "getuid") and (os.getuid(), os.getgid()) != (os.geteuid(), os.getegid()):
        return "this process has other rights than who started it"
    return ""


def setting(name: str) -> str | None:
    """A JACKFIELD_* variable; None when unset or empty, and where all are `ignored`."""
    return None if ignored() else os.environ.get(name) or None


def unknown(known: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Every JACKFIELD_* variable that is set and not known, and the known name most like it, or ""."""
    names = {*VARIABLES, *known}
    words = [name.removeprefix(PREFIX) for name in names]
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and name not in names and setting(name) is not None:
            like = near(name.removeprefix(PREFIX), words)
            yield name, like and PREFIX + like
