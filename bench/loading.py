"""Where the time of loading a model and its first token goes: processor and wall time of each stage.

    uv run python bench/loading.py [MODEL.gguf] [--tokens 32] [--runs 5]

Each run is a process of its own, imports done, the file in the page cache; the figure is the median of the runs. The
stages are those of `jackfield_llm.load`, called one by one. MODEL: the default model where none is named.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np

import jackfield as jf
from jackfield_llm.config import read_config
from jackfield_llm.sources import default_model
from jackfield_llm.tokenizer import Tokenizer
from jackfield_llm.transformer import Transformer
from jackfield_llm.weights import Weights

T = TypeVar("T")
CONTEXT = 512


class Stages:
    """Seconds by stage: processor time of all threads, of the caller's, and the clock on the wall."""

    def __init__(self) -> None:
        self.seconds: dict[str, tuple[float, float, float]] = {}

    def time(self, name: str, call: Callable[[], T]) -> T:
        clocks = (time.process_time, time.thread_time, time.perf_counter)
        before = [clock() for clock in clocks]
        found = call()
        cpu, own, wall = (clock() - start for clock, start in zip(clocks, before, strict=True))
        self.seconds[name] = cpu, own, wall
        return found


def once(path: Path, tokens: int) -> dict[str, tuple[float, float, float]]:
    """One load and first token in this process."""
    jf.Session(device="cpu").close()
    _ = jf.gguf
    stages = Stages()
    file = stages.time("open the file", lambda: jf.gguf.open(path))
    stages.time("tokenizer", lambda: Tokenizer.from_metadata(file.metadata))
    graphs = Transformer(read_config(file.metadata), Weights(file), context=CONTEXT, cache_dtype=jf.f16)
    graph = stages.time("graph", lambda: graphs.graph(tokens, "last").logits)
    with jf.Session(device="cpu") as session:
        plan = stages.time("plan, weights brought", lambda: session.compile(graph))
        columns = np.arange(tokens, dtype=np.int32)
        inputs = {"tokens": columns, "positions": columns, "slots": columns, "kv_len": np.array([tokens], np.int32)}
        stages.time("first token", lambda: plan(**inputs))
        second = stages.time("graph of one token", lambda: graphs.graph(1, "last").logits)
        stages.time("plan of one token", lambda: session.compile(second))
    return stages.seconds


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--once", action="store_true", help="one run in this process, as JSON")
    chosen = parser.parse_args(arguments)
    path = chosen.model or default_model()
    if chosen.once:
        print(json.dumps(once(path, chosen.tokens)))
        return 0
    command = [sys.executable, __file__, str(path), "--tokens", str(chosen.tokens), "--once"]
    runs = [
        json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        for _ in range(chosen.runs)
    ]
    print(f"{'ms':<24} {'processor':>10} {'one thread':>11} {'wall':>8}")
    for stage in runs[0]:
        cpu, own, wall = (1e3 * median(run[stage][i] for run in runs) for i in range(3))
        print(f"{stage:<24} {cpu:10.1f} {own:11.1f} {wall:8.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
