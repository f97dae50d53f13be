"""What this machine can do at most: reading memory, copying, f32, int8 and bf16 multiply-adds, at 1 to N threads.

    uv run python bench/roofline.py [--threads 2] [--json FILE]

`roofline.cpp` is compiled natively into the peers' folder (peer.py) and run. Other scripts call `measure` between their
own measurements, because the memory rate of a shared machine moves: a share of the roofline is a share of the median
seen in the same run. x86 only: the loops are written with its instructions.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from machine import cpu_mark, cpu_name, is_reference, last_cache_nbytes, origin
from peer import BENCH, tool
from peer_sources import PeerError, peer_dir, run

Roofline = dict[str, dict[int, float]]
"""By name, by threads: bytes a second (read, read_huge, copy_16MiB) or operations a second (f32, int8, bf16)."""

NAMES = {
    "read": "reading, 4 KiB pages",
    "read_huge": "reading, huge pages",
    "copy_16MiB": "copying 16 MiB",
    "f32": "f32",
    "int8": "int8",
    "bf16": "bf16",
}
RATES = ("read", "read_huge", "copy_16MiB")
REFERENCE: Roofline = {
    "read": {1: 21e9, 2: 30e9},
    "read_huge": {1: 32e9, 2: 36e9},
    "f32": {1: 117e9, 2: 234e9},
    "int8": {1: 470e9, 2: 936e9},
    "bf16": {1: 235e9, 2: 466e9},
}
"""What was seen on the reference machine."""


def build(folder: Path) -> Path:
    """The program, compiled for this CPU; again where its source is newer or the CPU is another."""
    source, program, mark = BENCH / "roofline.cpp", folder / "roofline", folder / "roofline-built-on.txt"
    newest = max(path.stat().st_mtime for path in (source, BENCH / "together.h"))
    fresh = program.exists() and program.stat().st_mtime >= newest
    if not fresh or not mark.exists() or mark.read_text().strip() != cpu_mark():
        folder.mkdir(parents=True, exist_ok=True)
        run([tool("c++"), "-std=c++17", "-O2", "-march=native", "-pthread", source, "-o", program], folder)
        mark.write_text(cpu_mark() + "\n")
    return program


def measure(program: Path | str, threads: int, *, quick: bool = False) -> Roofline:
    """One measurement, seconds long; `quick` makes it short and its figures worthless."""
    nbytes = (8 << 20) if quick else max(512 << 20, 3 * last_cache_nbytes())
    rounds = 10_000 if quick else 20_000_000
    done = subprocess.run(
        [str(program), str(threads), str(nbytes), str(rounds)], check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise PeerError(f"roofline: the program ended with {done.returncode}: {done.stderr.strip()[:200]}")
    found: Roofline = defaultdict(dict)
    for line in done.stdout.splitlines():
        name, count, value = line.split()
        found[name][int(count)] = float(value)
    return dict(found)


def medians(seen: Sequence[Roofline]) -> Roofline:
    """The median of each figure over several measurements."""
    return {
        name: {threads: median(one[name][threads] for one in seen) for threads in rates}
        for name, rates in seen[0].items()
    }


def read_rate(roofline: Roofline, threads: int) -> float:
    """Bytes a second at most, whatever the pages."""
    return max(roofline[name][threads] for name in ("read", "read_huge"))


def table(roofline: Mapping[str, Mapping[int, float]]) -> str:
    counts = sorted({threads for rates in roofline.values() for threads in rates})
    rows = [f"{'at threads':<22}" + "".join(f"{n:>9}" for n in counts) + "   reference machine"]
    for name, rates in roofline.items():
        unit = "GB/s" if name in RATES else "GOPS"
        known = " / ".join(f"{value / 1e9:.0f}" for value in REFERENCE.get(name, {}).values())
        cells = "".join(f"{rates[n] / 1e9:9.1f}" for n in counts)
        rows.append(f"{NAMES.get(name, name):<17} {unit}" + cells + f"   {known}")
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--dir", help="where the program is built, as in peer.py")
    chosen = parser.parse_args(arguments)
    try:
        found = measure(build(peer_dir(chosen.dir)), chosen.threads)
    except PeerError as error:
        print(error, file=sys.stderr)
        return 1
    print(cpu_name() + (", the reference machine" if is_reference() else ""))
    print(table(found))
    if chosen.json:
        chosen.json.write_text(json.dumps({"machine": origin(), "roofline": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
