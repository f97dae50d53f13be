"""What the first look at installed backends costs in an environment of many distributions, and the next one's.

    uv run python bench/discovery.py [--distributions 400] [--backends 3] [--runs 5]

Each run is a process of its own that imports jackfield and asks for `jf.status()`; told is the median time of that
call. "first": nothing is kept; "next": what the first one found is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from aims import Aim, counted

FIRST_S, NEXT_S = 0.1, 0.01
CODE = """
import sys, time
sys.path.append(sys.argv[1])
import jackfield as jf
start = time.perf_counter()
found = jf.status()
print(time.perf_counter() - start, len(found))
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


def seconds(folder: Path, cache: str) -> float:
    environment = os.environ | {"JACKFIELD_CACHE": cache}
    words = [sys.executable, "-c", CODE, str(folder)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--distributions", type=int, default=400)
    parser.add_argument("--backends", type=int, default=3)
    parser.add_argument("--runs", type=int, default=5)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        site, cache = Path(name) / "site", Path(name) / "cache"
        site.mkdir()
        fill(site, chosen.distributions, chosen.backends)
        first = [seconds(site, str(cache / str(run))) for run in range(chosen.runs)]
        after = [seconds(site, str(cache / "0")) for _ in range(chosen.runs)]
    verdicts = []
    for what, times, goal in (("first", first, FIRST_S), ("next", after, NEXT_S)):
        aim = Aim(goal, goal, ("ms", 1e-3), most=True).judged(median(times))
        verdicts.append(aim["verdict"])
        print(f"{what:<6} {1e3 * median(times):6.1f} ms   {aim['verdict']}")
    print(counted(verdicts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
