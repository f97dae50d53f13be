"""What the first look at installed backends costs in an environment of many distributions, and the next one's.

    uv run python bench/discovery.py [--distributions 400] [--backends 3] [--runs 9] [--json FILE]

Each run is a process of its own that imports jackfield and asks for `jf.status()`; told are medians. "first": nothing
is kept; "next": what the first one found is. "look": what discovery costs, with the modules of the core loaded that it
needs; "call": with loading them, from bytecode, which any first use of the core pays, and that therefore has no goal.
"import": files of those distributions that `import jackfield` opens. Exits 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from aims import MS, Aim, counted
from machine import origin

FIRST_S, NEXT_S = 0.1, 0.01
FILES = ("files", 1.0)
CODE = """
import sys, time
place, opened = sys.argv[1], []
sys.path.append(place)
sys.addaudithook(lambda event, words: opened.append(words[0]) if event == "open" else None)
import jackfield as jf
touched = sum(str(path).startswith(place) for path in opened)
start = time.perf_counter()
jf.status
loaded = time.perf_counter()
found = jf.status()
done = time.perf_counter()
print(done - loaded, done - start, len(found), touched)
"""


def fill(folder: Path, distributions: int, backends: int) -> None:
    """Distributions as an installer leaves them; the first ones have a backend."""
    for number in range(distributions):
        info = folder / f"package_{number}-1.0.dist-info"
        info.mkdir()
        info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: package-{number}\nVersion: 1.0\n")
        files = "".join(f"package_{number}/module_{i}.py,sha256=x,1000\n" for i in range(40))
        info.joinpath("RECORD").write_text(files)
        group = "jackfield.backends" if number < backends else "console_scripts"
        info.joinpath("entry_points.txt").write_text(f"[{group}]\nkind{number} = package_{number}\n")
        entry = {
            "name": f"kind{number}",
            "contract": {"min": "0.1", "max": "0.1"},
            "kinds": [{"kind": f"kind{number}", "class": "npu"}],
        }
        document = {"schema": "jackfield.backend/1", "backends": [entry]}
        info.joinpath("backend.json").write_text(json.dumps(document))


@dataclass(frozen=True)
class Look:
    """look, call: seconds. found: backends. touched: files of the folder that the import opened."""

    look: float
    call: float
    found: int
    touched: int


def looked(folder: Path, cache: Path, bytecode: Path) -> Look:
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment = plain | {"JACKFIELD_CACHE": str(cache), "PYTHONPYCACHEPREFIX": str(bytecode)}
    words = [sys.executable, "-c", CODE, str(folder)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    look, call, found, touched = done.stdout.split()
    return Look(float(look), float(call), int(found), int(touched))


def measured(distributions: int, backends: int, runs: int) -> dict[str, dict[str, Any]]:
    """Each figure, with its goal where it has one. Raises: RuntimeError when a look misses a backend."""
    with tempfile.TemporaryDirectory() as name:
        site, cache, bytecode = (Path(name) / part for part in ("site", "cache", "bytecode"))
        site.mkdir()
        fill(site, distributions, backends)
        looked(site, cache / "bytecode", bytecode)  # writes the bytecode, which an installer does for a wheel
        first = [looked(site, cache / str(run), bytecode) for run in range(runs)]
        after = [looked(site, cache / "0", bytecode) for _ in range(runs)]
    counts = {one.found for one in (*first, *after)}
    if len(counts) != 1 or min(counts) < backends:
        raise RuntimeError(f"the looks found {sorted(counts)} backends, of {backends} that are new")
    return {
        "first look": judged(FIRST_S, MS, [one.look for one in first]),
        "next look": judged(NEXT_S, MS, [one.look for one in after]),
        "first call": told(MS, [one.call for one in first]),
        "next call": told(MS, [one.call for one in after]),
        "import": judged(0, FILES, [max(one.touched for one in (*first, *after))]),
    }


def judged(goal: float, unit: tuple[str, float], samples: Sequence[float]) -> dict[str, Any]:
    return {**Aim(goal, goal, unit, most=True).judged(median(samples)), "samples": list(samples)}


def told(unit: tuple[str, float], samples: Sequence[float]) -> dict[str, Any]:
    """A figure that has no goal."""
    return {"figure": median(samples), "unit": unit[0], "verdict": "", "samples": list(samples)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--distributions", type=int, default=400)
    parser.add_argument("--backends", type=int, default=3)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    chosen = parser.parse_args()
    found = measured(chosen.distributions, chosen.backends, chosen.runs)
    for name, figure in found.items():
        unit, factor = MS if figure["unit"] == MS[0] else FILES
        print(f"{name:<10} {figure['figure'] / factor:6.1f} {unit:<5}   {figure['verdict']}".rstrip())
    goals = counted([figure["verdict"] for figure in found.values()])
    print(goals)
    if chosen.json:
        sizes = {"distributions": chosen.distributions, "backends": chosen.backends}
        document = {"machine": origin(), **sizes, "goals": goals, "figures": found}
        chosen.json.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if goals["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
