"""ssm_conv on rows of tokens as they lie, beside turning them first, and beside a copy of as many bytes.

    uv run python bench/convolution.py [--channels 8192] [--taps 4]

One plan a row of the table, the inputs a state, so that nothing else is moved; the best of many calls. A copy is
numpy's, on one thread: it reads and writes as many bytes as the convolution must.
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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--channels", type=int, default=8192)
    parser.add_argument("--taps", type=int, default=4)
    chosen = parser.parse_args(arguments)
    print(f"{chosen.channels} channels, {chosen.taps} taps; microseconds")
    print("tokens   turned first   as they lie    a copy")
    for tokens in (1, 4, 32, 128, 512):
        turned, direct = (convolved(tokens, chosen.channels, chosen.taps, turned=turned) for turned in (True, False))
        source = np.ones((tokens, chosen.channels), np.float32)
        target = np.zeros_like(source)
        copied = best(lambda source=source, target=target: np.copyto(target, source))
        print(f"{tokens:6}   {turned:12.1f}   {direct:11.1f}   {copied:7.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
