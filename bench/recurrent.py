"""Ops of recurrent layers by themselves: ssm_conv beside turning its inputs first, and ssm_scan.

    uv run python bench/recurrent.py [--channels 8192] [--taps 4]

One plan a row of the tables, what is read a state, so that nothing else is moved; the best of many calls. A copy is
numpy's, on one thread: it reads and writes as many bytes as the convolution must. The scan is that of a mamba and a
mamba2 of 130 million weights. JACKFIELD_CPU_ISA and JACKFIELD_CPU_THREADS choose level and threads.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np

import jackfield as jf
from jackfield import ops

CALLS = 60


def best(call: Callable[[], object]) -> float:
    """Microseconds."""
    times = []
    for _ in range(CALLS):
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    return min(times) * 1e6


def convolved(tokens: int, channels: int, taps: int, *, turned: bool) -> float:
    """turned: the inputs are copied first, so that the tokens of a channel lie together."""
    rng = np.random.default_rng(0)
    x = jf.state("x", (taps - 1 + tokens, channels), jf.f32)
    by_channel = ops.transpose(x, axes=(1, 0))
    by_channel = ops.contiguous(by_channel) if turned else by_channel
    weight = jf.constant(rng.normal(size=(channels, taps)).astype(np.float32))
    y = ops.ssm_conv(ops.reshape(by_channel, shape=(1, *x.shape[::-1])), weight)
    with jf.Session(device="cpu:0") as session:
        plan = session.compile(ops.contiguous(y[:, :1, :8]))
        session.states["x"].write(rng.normal(size=x.shape).astype(np.float32))
        return best(plan)


SCANS = {"mamba": (1536, 1, 16, 16), "mamba2": (24, 64, 128, 1)}
"""Heads, elements of a head, numbers of the state an element, decays a head."""


def scanned(tokens: int, heads: int, size: int, numbers: int, decays: int) -> float:
    """Microseconds of one step; of the results 8 numbers are read."""
    rng = np.random.default_rng(0)
    shapes = {"x": (1, tokens, heads, size), "dt": (1, tokens, heads), "b": (1, tokens, 1, numbers)}
    shapes |= {"c": shapes["b"], "state": (2, heads, size, numbers)}
    read = {name: jf.state(name, shape, jf.f32) for name, shape in shapes.items()}
    decay = jf.constant(-rng.uniform(0.1, 1, (heads, decays)).astype(np.float32))
    slot = jf.constant(np.zeros(1, np.int32))
    packed = ops.ssm_scan(read["state"], read["x"], read["dt"], decay, read["b"], read["c"], slot)
    with jf.Session(device="cpu:0") as session:
        plan = session.compile(ops.contiguous(packed[:8]))
        for name, shape in shapes.items():
            session.states[name].write(rng.normal(size=shape).astype(np.float32))
        return best(plan)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--channels", type=int, default=8192)
    parser.add_argument("--taps", type=int, default=4)
    chosen = parser.parse_args(arguments)
    print(f"ssm_conv of {chosen.channels} channels, {chosen.taps} taps; microseconds")
    print("tokens   turned first   as they lie    a copy")
    for tokens in (1, 4, 32, 128, 512):
        turned, direct = (convolved(tokens, chosen.channels, chosen.taps, turned=turned) for turned in (True, False))
        source = np.ones((tokens, chosen.channels), np.float32)
        target = np.zeros_like(source)
        copied = best(lambda source=source, target=target: np.copyto(target, source))
        print(f"{tokens:6}   {turned:12.1f}   {direct:11.1f}   {copied:7.1f}")
    print("ssm_scan; microseconds\ntokens   " + "   ".join(f"{name:>8}" for name in SCANS))
    for tokens in (1, 4, 32, 128):
        print(f"{tokens:6}   " + "   ".join(f"{scanned(tokens, *sizes):8.1f}" for sizes in SCANS.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
