"""Suite `free-threading`: on a Python without the GIL the backend leaves it off."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator

from jackfield_conformance.script import ran
from jackfield_conformance.trials import Check, Refused, Subject, Trial, named

__all__ = ["trials"]

_SCRIPT = """
import jackfield as jf
before = sys._is_gil_enabled()
jf.Session(device).close()
answer(before, sys._is_gil_enabled())
"""


def trials(seed: int) -> Iterator[Trial]:
    checks: dict[str, Check] = {"gil-stays-off": gil_stays_off}
    yield from named("free-threading", seed, checks)


def gil_stays_off(seed: int, subject: Subject) -> list[str]:
    del seed
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise Refused("this Python always has its lock", "other")
    code, line, words = ran(_SCRIPT, subject)
    if code:
        return [f"a process that opens the device ends with code {code}: {words}"]
    if line.startswith("True"):
        raise Refused("the lock was on before the device was opened", "other")
    return [] if line == "False False" else ["opening the device turns the lock on: its module lacks the mark"]
