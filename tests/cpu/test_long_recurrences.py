"""Recurrences over more tokens than a declared case has: the error of a state must not grow with the text.

The op itself computes in float64. Bound: NMSE 1e-6, for any length.
"""

from __future__ import annotations

import numpy as np
import pytest
from one_step import LEVELS, device, plain, run

from jackfield.op import OPS

BOUND = 1e-6
TOKENS = (65, 257, 1000)
H, D, N, P = 2, 17, 9, 5


def drawn(rng, *shape, low=-1.0, high=1.0):
    return rng.uniform(low, high, shape).astype(np.float32)


def unit(rng, *shape):
    """Keys of length one: a delta rule is stable with no others."""
    x = rng.normal(size=shape)
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


def scan(rng, tokens, *, wide, heads=H, elements=P, groups=1, snapshots=1):
    a = drawn(rng, heads, N if wide else 1, low=-1.5, high=-0.01)
    b, c = drawn(rng, 1, tokens, groups, N), drawn(rng, 1, tokens, groups, N)
    x, dt = drawn(rng, 1, tokens, heads, elements), drawn(rng, 1, tokens, heads, low=-4.0, high=1.0)
    state = drawn(rng, 3, heads, elements, N)
    return [state, x, dt, a, b, c, np.array([2], np.int32)], {"snapshots": snapshots}


def wkv6(rng, tokens):
    k, v, r = (drawn(rng, tokens, H, D) for _ in range(3))
    return [k, v, r, drawn(rng, H, D), drawn(rng, tokens, H, D, low=0.5, high=1.0), drawn(rng, 1, H * D * D)], {}


def wkv7(rng, tokens):
    r, v = drawn(rng, tokens, H, D), drawn(rng, tokens, H, D)
    k, w = 0.3 * unit(rng, tokens, H, D), drawn(rng, tokens, H, D, low=0.6, high=1.0)
    key = unit(rng, tokens, H, D)
    return [r, w, k, v, -key, key * drawn(rng, tokens, H, D, low=0.0), drawn(rng, 1, H * D * D)], {}


def gla(rng, tokens):
    k, v, q = (drawn(rng, tokens, H, D) for _ in range(3))
    return [k, v, q, drawn(rng, tokens, H, D, low=0.5, high=1.0), drawn(rng, 1, H * D * D)], {"scale": 0.25}


def delta(rng, tokens, *, keyed):
    q, k, v = unit(rng, 1, tokens, H, D), unit(rng, 1, tokens, H, D), drawn(rng, 1, tokens, H, D)
    g = drawn(rng, 1, tokens, H, D if keyed else 1, low=-0.2, high=0.0)
    return [q, k, v, g, drawn(rng, 1, tokens, H, 1, low=0.0), drawn(rng, 1, H, D, D)], {"snapshots": 3}


CASES = {
    "ssm_scan": lambda rng, n: scan(rng, n, wide=False),
    "ssm_scan, a decay each": lambda rng, n: scan(rng, n, wide=True),
    "ssm_scan, heads of several vectors": lambda rng, n: scan(rng, n, wide=False, elements=101, snapshots=3),
    "ssm_scan, wide heads, a decay each": lambda rng, n: scan(rng, n, wide=True, elements=70),
    "ssm_scan, heads of one": lambda rng, n: scan(rng, n, wide=True, heads=42, elements=1, groups=2),
    "ssm_scan, heads of one, one decay": lambda rng, n: scan(
        rng, n, wide=False, heads=42, elements=1, groups=2, snapshots=3
    ),
    "rwkv_wkv6": wkv6,
    "rwkv_wkv7": wkv7,
    "gated_linear_attention": gla,
    "gated_delta_net": lambda rng, n: delta(rng, n, keyed=False),
    "gated_delta_net, a decay each": lambda rng, n: delta(rng, n, keyed=True),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("case", CASES)
def test_the_error_does_not_grow(case, level):
    op = case.split(",")[0]
    for tokens in TOKENS:
        operands, attrs = CASES[case](np.random.default_rng(tokens), tokens)
        want = OPS[op].run(*operands, **attrs).astype(np.float64)
        assert np.isfinite(want).all()
        assert (want**2).mean() > 1e-3
        for threads in (1, 3):
            got = run(op, [plain(x) for x in operands], want.shape, on=device(level, threads), **attrs)
            assert ((got - want) ** 2).mean() / (want**2).mean() <= BOUND
