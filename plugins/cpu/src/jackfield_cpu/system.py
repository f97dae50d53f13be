"""What the operating system says of this machine: cores, quotas, memory. Where it says nothing, so do we."""

from __future__ import annotations

import os
from pathlib import Path

from jackfield.backend import Memory

__all__ = ["default_threads", "host_memory"]


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
    """Whole CPUs the control groups allow (at least 1), or None for no limit: a thread too many would be throttled."""
    limits = [q for folder in _group_folders("cpu") if (q := _group_quota(folder)) is not None]
    return max(1, int(min(limits))) if limits else None


def _group_folders(controller: str) -> list[Path]:
    """Control groups of the process, version 2 or one controller of version 1, and all their parents."""
    folders = [Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup") / controller]
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return folders
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        top = Path("/sys/fs/cgroup") / (controller if controllers else "")
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


def host_memory() -> Memory:
    """Bytes in all and free now; the container's limit where it is less than the machine's."""
    machine = dict(_numbers(Path("/proc/meminfo"), unit=1024))
    total, free = machine.get("MemTotal", 0), machine.get("MemAvailable", 0)
    for folder in _group_folders("memory"):
        limit, used = _line(folder / "memory.max"), _line(folder / "memory.current")
        if limit.isdigit() and used.isdigit() and int(limit) < total:
            total, free = int(limit), max(0, min(free, int(limit) - int(used)))
    return Memory(total, free)


def _numbers(path: Path, *, unit: int) -> list[tuple[str, int]]:
    """Lines `name: number` of a file of /proc, numbers times unit."""
    rows = (line.split() for line in _line(path).splitlines())
    return [(row[0].rstrip(":"), int(row[1]) * unit) for row in rows if len(row) > 1 and row[1].isdigit()]
