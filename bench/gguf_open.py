"""How long opening a GGUF file takes: jackfield.gguf against gguf.GGUFReader, in one run.

uv run python bench/gguf_open.py MODEL.gguf [--rounds N]

Prints the median of each and their ratio. Both see the file warm: each reader opens it once before the clock runs.
Ours is timed twice: opening alone, and with the vocabulary decoded to Python strings.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import gguf

from jackfield import gguf as jf_gguf


def open_ours(path: Path) -> None:
    jf_gguf.open(path).close()


def open_ours_with_words(path: Path) -> None:
    with jf_gguf.open(path) as file:
        for value in file.metadata.values():
            if isinstance(value, jf_gguf.Array):
                value.to_list()


def open_theirs(path: Path) -> None:
    gguf.GGUFReader(path)


def median_s(action: Callable[[Path], None], path: Path, rounds: int) -> float:
    action(path)
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        action(path)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description="Opening a GGUF file, against gguf.GGUFReader")
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    ours = median_s(open_ours, args.model, 4 * args.rounds)
    words = median_s(open_ours_with_words, args.model, 4 * args.rounds)
    theirs = median_s(open_theirs, args.model, args.rounds)
    print(f"{args.model.name}, {args.model.stat().st_size / 1e6:.1f} MB")
    print(f"jackfield.gguf.open            {ours * 1e3:8.1f} ms")
    print(f"  and all arrays as lists      {words * 1e3:8.1f} ms")
    print(f"gguf.GGUFReader                {theirs * 1e3:8.1f} ms")
    print(f"ratio theirs / ours            {theirs / ours:8.1f}")


if __name__ == "__main__":
    main()
