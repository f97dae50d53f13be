"""What the machine under the measurements is: its CPU, its last cache, and whether it is the reference machine.

Read from Linux's own files; elsewhere the answers are plainer, and no machine is the reference. Standard library only.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
SMALL_CACHE = 32 << 20
"""Bytes of the last cache where the system tells none."""


def facts(text: str) -> dict[str, str]:
    """The first processor of /proc/cpuinfo."""
    lines = [line.partition(":") for line in text.split("\n\n", maxsplit=1)[0].splitlines()]
    return {key.strip(): value.strip() for key, _, value in lines}


def this_cpu() -> dict[str, str]:
    return facts(CPUINFO.read_text()) if CPUINFO.exists() else {}


def cpu_name() -> str:
    """Name, family, model and stepping: two CPUs for which the compiler makes different code have different ones."""
    cpu = this_cpu()
    numbers = [f"{key} {cpu[key]}" for key in ("cpu family", "model", "stepping") if key in cpu]
    return ", ".join([cpu.get("model name") or platform.processor() or platform.machine(), *numbers])


def cpu_mark() -> str:
    """The name and a hash of the flags: what natively built code must have been built for.

    A virtual machine may hide instructions of a CPU whose name it tells, so the name alone is not enough.
    """
    cpu = this_cpu()
    flags = " ".join(sorted(cpu.get("flags", cpu.get("Features", "")).split()))
    return f"{cpu_name()}; flags {hashlib.sha256(flags.encode()).hexdigest()[:16]}"


def commit() -> str:
    """The commit of this tree, `+changes` where tracked files differ from it; `unknown` outside a repository."""
    words = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run([*words, "--dirty=+changes"], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def origin() -> dict[str, object]:
    """What results tell of the machine and the tree they were made with."""
    return {
        "cpu": cpu_name(),
        "mark": cpu_mark(),
        "cores": os.cpu_count(),
        "reference": is_reference(),
        "commit": commit(),
    }


def is_reference(cpu: Mapping[str, str] | None = None, cores: int | None = None) -> bool:
    """Whether this is the reference machine of all figures: 2 cores of AMD Zen 4 (family 25 with AVX-512 VNNI)."""
    known = this_cpu() if cpu is None else cpu
    return (
        known.get("vendor_id") == "AuthenticAMD"
        and known.get("cpu family") == "25"
        and "avx512_vnni" in known.get("flags", "").split()
        and (os.cpu_count() if cores is None else cores) == 2
    )


def last_cache_nbytes() -> int:
    """The largest cache that the first core sees, in bytes."""
    sizes = [path.read_text().strip() for path in CACHES.glob("index*/size")]
    return max((int(size[:-1]) * UNITS[size[-1]] for size in sizes if size[-1:] in UNITS), default=SMALL_CACHE)
