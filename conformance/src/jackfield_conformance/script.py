"""A script in a process of its own that finds the device by its name, for what may not happen in the worker."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from jackfield import registry

from .trials import Refused, Subject

__all__ = ["ran"]

_START = """
import json, sys
from pathlib import Path
from jackfield_conformance.trials import import_named
device, imports = json.loads(sys.argv[1])
import_named(imports)
def answer(*words):
    Path(sys.argv[2]).write_text(" ".join(map(str, words)), "utf-8")
"""


def ran(script: str, subject: Subject) -> tuple[int, str, str]:
    """Exit code, what the script gave to `answer`, and what it printed, in one line. In it, `device` is the name.

    Raises: Refused for a device that no other process can find.
    """
    if not subject.imports and any(
        s.name == subject.backend.name and s.dist == registry.REGISTERED for s in registry.status()
    ):
        raise Refused("it was registered in this process, and no module is named that would do so in another", "other")
    order = json.dumps([subject.device.name, list(subject.imports)])
    with tempfile.TemporaryDirectory(prefix="jackfield-") as folder:
        place = Path(folder) / "answer"
        done = subprocess.run(  # noqa: S603 (this very interpreter)
            [sys.executable, "-P", "-c", _START + script, order, place], capture_output=True, check=False
        )
        answer = place.read_text("utf-8") if place.exists() else ""
    words = " ".join((done.stdout + done.stderr).decode("utf-8", "replace").split())[-300:]
    return done.returncode, answer, words
