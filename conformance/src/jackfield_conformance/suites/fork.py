"""Suite `fork`: in a forked child the parent's device is dead or works, and the parent goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator

from jackfield_conformance.build import simple_op
from jackfield_conformance.script import ran
from jackfield_conformance.trials import Check, Refused, Subject, Trial, named

__all__ = ["trials"]

_SCRIPT = """
import os, signal, sys
import numpy as np
import jackfield as jf
from jackfield_conformance.plans import chain
from jackfield_conformance.worker import subject_of
subject = subject_of(device, 0)
session = jf.Session(device, policy="strict")
plan = session.compile(chain(subject, jf.input("x", (99,), jf.f32), 3))
x = np.linspace(0, 1, 99, dtype=np.float32)
want = plan(x=x)
child = os.fork()
if not child:
    signal.alarm(60)  # a child that waits for a thread of its parent waits for ever
    try:
        code = USE
    except jf.errors.ForkedError:
        code = 0
    except BaseException as e:
        print(type(e).__name__, e, file=sys.stderr)
        code = 3
    sys.stderr.flush()
    os._exit(code)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert (plan(x=x) == want).all(), "the parent's result changed"
session.close()
answer(status)
"""
# What the child does with what it inherited, or anew: 0 where that is right, 4 where a result is wrong.
_SAME = "0 if (plan(x=x) == want).all() else 4"
_FRESH = (
    "0 if (jf.refresh() or jf.Session(device, policy='strict').compile("
    "chain(subject_of(device, 0), jf.input('x', (99,), jf.f32), 3))(x=x) == want).all() else 4"
)
_FREES = "session.close() or 0"


def trials(seed: int) -> Iterator[Trial]:
    checks: dict[str, Check] = {
        "inherited": lambda _, subject: forked(_SAME, subject),
        "anew": lambda _, subject: forked(_FRESH, subject),
        "close": lambda _, subject: forked(_FREES, subject),
    }
    yield from named("fork", seed, checks)


def forked(use: str, subject: Subject) -> list[str]:
    """A child that uses the device so gets ForkedError or right results; the parent's stay right."""
    if not hasattr(os, "fork"):
        raise Refused("this system does not fork", "other")
    simple_op(subject, (99,))
    code, line, words = ran(_SCRIPT.replace("USE", use), subject)
    if code:
        return [f"the parent ends with code {code}: {words}"]
    if line == "0":
        return []
    meaning = {"4": "has a wrong result", "-14": "does not come back"}.get(line, f"ends with {line}")
    return [f"a forked child {meaning}: {words}"]
