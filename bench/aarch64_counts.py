"""Counts the instructions of the packed block products on aarch64, of which no machine is needed: qemu runs them.

Usage: uv run --with ziglang python bench/aarch64_counts.py [LEVEL ...]
Prints a table for each level (all without names), as in bench/NOTES.md: instructions that run for one unit, sixteen
rows of the weight times 32 columns, of what the wheel's compiler makes of the kernels' own tiles. The loops around a
unit count, loading and storing the sums does not. Needs qemu-aarch64.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLUGIN = ROOT / "plugins" / "cpu"
COMPILER: tuple[str | Path, ...] = (PLUGIN / "cross" / "zig-c++", "-nostdlib++")  # C++ without its library
FLAGS = ("-std=c++17", "-static", "-Wno-unused-function", f"-I{PLUGIN / 'kernels'}", f"-I{PLUGIN / 'include'}")
LEVELS = ("i8mm", "dotprod", "base")
WAYS = (("direct", 1), ("direct", 4), ("stage", 0), ("staged", 4))
WORDS = {
    ("direct", 1): "one row of x",
    ("direct", 4): "four rows",
    ("stage", 0): "decoding to memory, once for many rows",
    ("staged", 4): "four rows, decoded before",
}
UNITS = 16, 48  # all sizes of block divide both


def compiled(level: str, folder: Path) -> Path:
    """A static program with the flags that CMakeLists.txt has for the kernels of this level."""
    text = (PLUGIN / "CMakeLists.txt").read_text()
    common = re.findall(r"target_compile_options\(kernels_\S+ PRIVATE ([^$]*)\$", text)[0].split()
    march = re.findall(rf"set\(FLAGS_{level} (-march=\S+)\)", text)
    program = folder / level
    source = Path(__file__).with_suffix(".cpp")
    env = os.environ | {"ZIG_TARGET": "aarch64-linux-musl", "ZIG_PYTHON": sys.executable}
    subprocess.run((*COMPILER, *common, *march, *FLAGS, source, "-o", program), env=env, check=True)
    return program


def executed(program: Path, *words: object) -> int | None:
    """Instructions of one run, its start included; None for what the program does not have. Raises: SystemExit."""
    log = program.with_suffix(".log")
    trace = ("-singlestep", "-d", "exec,nochain", "-D", str(log))
    done = subprocess.run(("qemu-aarch64", "-cpu", "max", *trace, program, *map(str, words)), check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{program.name} {words}: exit {done.returncode}")
    with log.open() as lines:
        return None if done.returncode else sum(line.startswith("Trace") for line in lines)


def a_unit(program: Path, dtype: str, way: str, rows: int) -> float | None:
    """Instructions that one unit more takes."""
    few, many = (executed(program, dtype, way, rows, units) for units in UNITS)
    return None if few is None or many is None else (many - few) / (UNITS[1] - UNITS[0])


def dtypes() -> list[str]:
    text = (PLUGIN / "include" / "jackfield" / "kernel.h").read_text().replace("\\\n", "")
    (weights,) = re.findall(r"define JF_WEIGHT_DTYPES\(X\)(.*)", text)
    return re.findall(r'"(\w+)"', weights)


def table(level: str, program: Path) -> Iterator[str]:
    names = dtypes()
    yield f"| {level} | " + " | ".join(names) + " |"
    yield "|---" * (len(names) + 1) + "|"
    for way in WAYS:
        counts = (a_unit(program, name, *way) for name in names)
        yield f"| {WORDS[way]} | " + " | ".join("" if n is None else f"{n:.0f}" for n in counts) + " |"


def main() -> None:
    if unknown := set(sys.argv[1:]) - set(LEVELS):
        sys.exit(f"no level {', '.join(sorted(unknown))}; levels: {', '.join(LEVELS)}")
    with tempfile.TemporaryDirectory() as folder:
        for level in sys.argv[1:] or LEVELS:
            for line in table(level, compiled(level, Path(folder))):
                sys.stdout.write(f"{line}\n")
            sys.stdout.write("\n")


if __name__ == "__main__":
    main()
