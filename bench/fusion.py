"""Parts of a layer of the default model, made together and step by step, in turn in one run.

    uv run python bench/fusion.py [--rows 1,128,512] [--threads 1] [--level avx2] [--rounds 40]

Weights are q4_1, 576 wide, 1536 inside, 9 heads of queries and 3 of keys of 64 channels. A time is that of a call of a
plan, so both ways copy x and the results. With one thread the clock is that of the thread; the medians count.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median

import numpy as np
from timing import clock_for

import jackfield as jf
from jackfield import ops
from jackfield.graph import ArraySource
from jackfield_cpu.backend import CpuBackend
from jackfield_cpu.device import CpuDevice

WIDTH, INNER, HEADS, KV_HEADS, SIZE, CONTEXT = 576, 1536, 9, 3, 64, 2048
Outputs = Mapping[str, jf.Tensor]
DICE = np.random.default_rng(0)


def weight(outputs: int, inputs: int) -> jf.Tensor:
    """Random numbers, small enough that activations stay near one."""
    plain = (DICE.standard_normal((outputs, inputs)) / inputs**0.5).astype(np.float32)
    return jf.constant(ArraySource(jf.q4_1.encode(plain).view(np.uint8), jf.q4_1, plain.shape))


def normed(x: jf.Tensor) -> jf.Tensor:
    return ops.multiply(ops.rms_norm(x), jf.constant(DICE.standard_normal(x.shape[-1]).astype(np.float32)))


def projections(x: jf.Tensor) -> Outputs:
    sizes = {"q": HEADS * SIZE, "k": KV_HEADS * SIZE, "v": KV_HEADS * SIZE}
    return {name: ops.linear(x, weight(size, WIDTH)) for name, size in sizes.items()}


def unit(x: jf.Tensor) -> Outputs:
    return {"unit": ops.swiglu(ops.linear(x, weight(INNER, WIDTH)), ops.linear(x, weight(INNER, WIDTH)))}


def turned(x: jf.Tensor) -> Outputs:
    """Queries turned; keys turned and stored. x stands for both."""
    rows = x.shape[0]
    heads = ops.reshape(x, shape=(1, rows, HEADS, SIZE))
    at = jf.constant(np.arange(rows, dtype=np.int32))
    slots = jf.constant(np.arange(rows, dtype=np.int32).reshape(1, rows))
    q, k = (ops.rope(part, at, mode="neox", n_dims=SIZE) for part in (heads, heads[:, :, :KV_HEADS]))
    by_head = ops.transpose(ops.reshape(k, shape=(rows, KV_HEADS, SIZE)), axes=(1, 0, 2))
    stored = ops.put_rows(jf.state("k", (KV_HEADS, CONTEXT, SIZE), jf.f16), by_head, slots)
    return {"q": q, "k": stored[:1, :1, :1]}


PARTS: Mapping[str, Callable[[jf.Tensor], Outputs]] = {
    "q, k, v": projections,
    "norm, weights, q, k, v": lambda x: projections(normed(x)),
    "gate, up, unit": unit,
    "norm, weights": lambda x: {"y": normed(x)},
    "product, residual": lambda x: {"y": ops.add(x, ops.linear(x, weight(WIDTH, WIDTH)))},
    "rope, put_rows": turned,
}


class One(CpuBackend):
    """The CPU under another name, with one way to make steps."""

    def __init__(self, name: str, level: str, threads: int, *, fuses: bool) -> None:
        super().__init__()
        target = next(t for t in self.targets() if t.arch == level)
        self.name = name
        self._device = CpuDevice(f"{name}:0", replace(target, kind=name), threads, fuses=fuses)

    def devices(self) -> list[CpuDevice]:
        return [self._device]


def measured(
    sessions: Sequence[jf.Session], make: Callable[[jf.Tensor], Outputs], chosen: argparse.Namespace, rows: int
) -> list[float]:
    """Median seconds of a call, by session."""
    x = np.random.default_rng(1).standard_normal((rows, WIDTH)).astype(np.float32)
    graph = dict(make(jf.input("x", x.shape)))
    plans = [session.compile(graph) for session in sessions]
    clock, repeats = clock_for(chosen.threads), max(1, 512 // rows)
    times: list[list[float]] = [[] for _ in plans]
    for turn in range(chosen.rounds + 1):
        for plan, seen in zip(plans, times, strict=True):
            start = clock()
            for _ in range(repeats):
                plan(x=x)
            if turn:  # the first warms up
                seen.append((clock() - start) / repeats)
    return [median(seen) for seen in times]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=lambda text: [int(part) for part in text.split(",")], default=[1, 128, 512])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--level", default=CpuBackend().devices()[0].target.arch, help="the best where none is named")
    parser.add_argument("--rounds", type=int, default=40)
    chosen = parser.parse_args(arguments)
    sessions = []
    for name, fuses in (("apart", False), ("together", True)):
        jf.register_backend(One(name, chosen.level, chosen.threads, fuses=fuses), device_class="accel")
        sessions.append(jf.Session(f"{name}:0", policy="strict"))
    print(f"level {chosen.level}, {chosen.threads} threads")
    print(f"{'part':<26} {'rows':>5} {'one by one, us':>15} together  ratio")
    for name, make in PARTS.items():
        for rows in chosen.rows:
            apart, together = measured(sessions, make, chosen, rows)
            print(f"{name:<26} {rows:>5} {1e6 * apart:15.1f} {1e6 * together:8.1f} {apart / together:6.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
