"""What the environment asks of this backend, read once when it opens; a malformed value is an error that says so."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jackfield.backend import Unavailable

from . import _native

__all__ = ["Settings", "read_settings"]


@dataclass(frozen=True)
class Settings:
    """level: instruction-set level; threads: of the whole CPU; parts: devices it is cut into."""

    level: str
    threads: int
    parts: int


def read_settings(env: Mapping[str, str] | None = None) -> Settings:
    """Settings of this process. Raises Unavailable for a value that can't be honoured, listing what can."""
    env = os.environ if env is None else env
    parts = _positive(env, "JACKFIELD_CPU_PARTS") or 1
    threads = _positive(env, "JACKFIELD_CPU_THREADS") or default_threads()
    return Settings(choose_level(env.get("JACKFIELD_CPU_ISA")), threads, parts)


def _positive(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 1024:
        raise Unavailable(f"cpu: {name}={text!r}: must be a whole number from 1 to 1024")
    return int(text)


def choose_level(forced: str | None) -> str:
    """The best level this CPU runs, or the forced one. Raises Unavailable when that can't be."""
    levels = dict(_native.levels())
    has = [name for name, lacks in levels.items() if not lacks]
    if not forced:
        return has[0]
    if forced not in levels:
        known = ", ".join(levels)
        raise Unavailable(f"cpu: JACKFIELD_CPU_ISA={forced!r}: no such level; levels: {known}; this CPU has: {', '.join(has)}")
    if levels[forced]:
        missing = ", ".join(levels[forced])
        raise Unavailable(f"cpu: JACKFIELD_CPU_ISA={forced}: this CPU lacks {missing}; it has: {', '.join(has)}")
    return forced


def default_threads() -> int:
    """Physical cores in the affinity mask, capped by the container's CPU quota; at least 1."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = {_siblings(cpu) for cpu in allowed}
    quota = _quota()
    return max(1, min(len(cores), quota) if quota else len(cores))


def _siblings(cpu: int) -> str:
    """The hardware threads that share a core with this one, or a name of its own where the system does not say."""
    text = _line(Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))
    return text or f"cpu{cpu}"


def _quota() -> int | None:
    """Whole CPUs the control group allows (at least 1), or None for no limit."""
    limits = [q for folder in _group_folders() if (q := _group_quota(folder)) is not None]
    return max(1, int(min(limits) + 0.5)) if limits else None


def _group_folders() -> list[Path]:
    """This process's control groups, version 2 or the cpu controller of version 1, and all their parents."""
    folders = [Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/cpu")]
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return folders
    for line in lines:
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = Path("/sys/fs/cgroup/cpu") if controllers else Path("/sys/fs/cgroup")
        group = top / path.strip("/")
        folders += [group, *(p for p in group.parents if top in p.parents)]
    return folders


def _group_quota(folder: Path) -> float | None:
    if text := _line(folder / "cpu.max"):
        quota, _, period = text.partition(" ")
        return None if quota == "max" else int(quota) / int(period or 100000)
    quota, period = _line(folder / "cpu.cfs_quota_us"), _line(folder / "cpu.cfs_period_us")
    if quota and period and int(quota) > 0:
        return int(quota) / int(period)
    return None


def _line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
