"""What the environment asks of this backend, read once when it opens; a malformed value is an error that says so."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from jackfield.backend import Unavailable

from . import _native
from .system import default_threads

__all__ = ["Settings", "read_settings"]

LOG = logging.getLogger("jackfield")


BF16 = ("auto", "widened", "paired")


@dataclass(frozen=True)
class Settings:
    """level: instruction-set level; threads: of the whole CPU; parts: devices it is cut into; fuses: see fusion.py.

    cpus: numbers of the CPUs that workers beside the calling thread are bound to, in turn; none: the system decides.
    bf16: how bf16 weights are multiplied where the precision is not "f32": "widened" to f32, "paired" with x rounded to
    bf16, or "auto": paired where the CPU adds two such products by one instruction.
    iq_panels: whether weights of codebooks are decoded once for many rows.
    """

    level: str
    threads: int
    parts: int
    fuses: bool = True
    cpus: tuple[int, ...] = ()
    bf16: str = "auto"
    iq_panels: bool = True


def read_settings(env: Mapping[str, str] | None = None) -> Settings:
    """Settings of this process; under `python -I` or `-E` the environment says nothing.

    Raises: Unavailable for a value that can't be honoured, listing what can.
    """
    if env is None:
        env = {} if sys.flags.ignore_environment else os.environ
    parts = _parts(env)
    threads = _positive(env, "JACKFIELD_CPU_THREADS") or default_threads()
    fuses = not _switch(env, "JACKFIELD_CPU_DISABLE_FUSION")
    iq_panels = _switch(env, "JACKFIELD_CPU_IQ_PANEL", unset=True)
    return Settings(
        choose_level(env.get("JACKFIELD_CPU_ISA")), threads, parts, fuses, _cpus(env), _bf16(env), iq_panels
    )


def _bf16(env: Mapping[str, str]) -> str:
    how = env.get("JACKFIELD_CPU_BF16", "auto")
    if how not in BF16:
        raise Unavailable(f"cpu: JACKFIELD_CPU_BF16={how!r}: must be one of {', '.join(BF16)}")
    return how


def _parts(env: Mapping[str, str]) -> int:
    """Devices the CPU is cut into: no more than it has cores, each of which is a part's thread. Two are always given,
    so that splitting can be tried on any machine.
    """
    parts = _positive(env, "JACKFIELD_CPU_PARTS") or 1
    cores = default_threads()
    if parts > max(2, cores):
        raise Unavailable(
            f"cpu: JACKFIELD_CPU_PARTS={parts}: more parts than the {cores} cores this process may use; "
            f"must be at most {max(2, cores)}"
        )
    return parts


def _positive(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 1024:
        raise Unavailable(f"cpu: {name}={text!r}: must be a whole number from 1 to 1024")
    return int(text)


def _cpus(env: Mapping[str, str]) -> tuple[int, ...]:
    """CPUs as "2,3,8-11", each one that this process may use. The caller's thread keeps its own."""
    name = "JACKFIELD_CPU_AFFINITY"
    text = env.get(name)
    if not text:
        return ()
    if not hasattr(os, "sched_getaffinity"):
        raise Unavailable(f"cpu: {name}={text!r}: this system binds no threads; unset it")
    allowed = os.sched_getaffinity(0)
    cpus: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        bounds = (first, last) if dash else (first, first)
        if not all(n.isascii() and n.isdigit() for n in bounds):
            raise Unavailable(f"cpu: {name}={text!r}: must be numbers of CPUs like 2,3,8-11")
        some = range(int(bounds[0]), int(bounds[1]) + 1)
        if not some or some[-1] > max(allowed) or not allowed.issuperset(some):
            raise Unavailable(f"cpu: {name}={text!r}: this process may use the CPUs {sorted(allowed)}")
        cpus += some
    return tuple(cpus)


def _switch(env: Mapping[str, str], name: str, *, unset: bool = False) -> bool:
    """A positive whole number is on, 0 off; anything else is as if unset, with a warning: switches only diagnose."""
    text = env.get(name)
    if not text:
        return unset
    if text.isascii() and text.isdigit():
        return int(text) > 0
    LOG.warning("cpu: %s=%r is ignored: must be 0 or a positive whole number", name, text)
    return unset


def choose_level(forced: str | None) -> str:
    """The best level this CPU runs, or the forced one. Raises Unavailable when that can't be."""
    levels = dict(_native.levels())
    has = [name for name, lacks in levels.items() if not lacks]
    if not forced:
        return has[0]
    if forced not in levels:
        known = ", ".join(levels)
        raise Unavailable(
            f"cpu: JACKFIELD_CPU_ISA={forced!r}: no such level; levels: {known}; this CPU has: {', '.join(has)}"
        )
    if levels[forced]:
        missing = ", ".join(levels[forced])
        raise Unavailable(f"cpu: JACKFIELD_CPU_ISA={forced}: this CPU lacks {missing}; it has: {', '.join(has)}")
    return forced
