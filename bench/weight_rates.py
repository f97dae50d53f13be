"""At what rate the CPU's tiles for one row of x read cold packed weights: memory alone, without a model.

    uv run python bench/weight_rates.py [--threads 2] [--megabytes 160]

`weight_rates.cpp` is compiled with the wheel's own headers at its level `vnni`, so it needs a CPU with AVX-512 VNNI and
GCC; an older tree is measured by checking it out. GB/s, medians of five passes by each thread's own clock. Beside it,
`roofline.py` says what a plain read gives.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from peer import BENCH, tool
from peer_sources import PeerError, peer_dir, run

CPU = BENCH.parent / "plugins" / "cpu"
FLAGS = (
    *("-std=c++17", "-O3", "-g0", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-pthread"),
    *("-mavx2", "-mfma", "-mf16c", "-mbmi2", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512cd"),
    *("-mavx512vnni", "-mprefer-vector-width=512", "-DJF_LEVEL=vnni", "-DJF_LEVEL_vnni=1"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--megabytes", type=int, default=160, help="of each weight; far more than the last cache")
    chosen = parser.parse_args()
    try:
        folder = peer_dir(None)
        folder.mkdir(parents=True, exist_ok=True)
        program = folder / "weight-rates"
        include = [word for part in ("kernels", "include", "src", "fused") for word in ("-I", CPU / part)]
        run([tool("c++"), *FLAGS, *include, BENCH / "weight_rates.cpp", "-o", program], folder)
    except PeerError as error:
        print(error, file=sys.stderr)
        return 1
    done = subprocess.run(
        [program, str(chosen.threads), str(chosen.megabytes)], capture_output=True, text=True, check=True
    )
    print(f"{'dtype':8}{'columns':>8}{'threads':>8}{'GB/s':>8}")
    for line in done.stdout.splitlines():
        name, columns, threads, rate = line.split()
        print(f"{name:8}{columns:>8}{threads:>8}{rate:>8}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
