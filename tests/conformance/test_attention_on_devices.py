"""kv_len, causal and window are the masks they stand for, and what they hide is never read."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from jackfield import ops
from jackfield.conformance import Refused, made, mistakes, run
from jackfield.errors import BadIndex

TOKENS = (1, 2, 7, 32, 33)
COLUMNS = (1, 31, 32, 33, 256, 257)
HEADS, KV_HEADS, HEAD = 4, 2, 32
SCALE = 0.17


def seen_by(T, N, length, *, causal, window):
    """Which of N columns each of T queries sees, from the words of the declaration."""
    seen = np.zeros((T, N), bool)
    for t in range(T):
        place = length - T + t
        for i in range(length):
            seen[t, i] = (not causal or i <= place) and (window == 0 or i > place - window)
    return seen


def plain_attention(q, k, v, bias):
    """Softmax of masked products by hand, in f64; bias (S, T, N) with -inf where nothing is seen."""
    S, H, T, _ = q.shape
    y = np.zeros((S, T, H, v.shape[-1]))
    for s, h, t in itertools.product(range(S), range(H), range(T)):
        columns = np.flatnonzero(bias[s, t] > -np.inf)
        if len(columns):
            g = h * k.shape[1] // H
            z = SCALE * k[s, g, columns].astype(np.float64) @ q[s, h, t] + bias[s, t, columns]
            e = np.exp(z - z.max())
            y[s, t, h] = e @ v[s, g, columns].astype(np.float64) / e.sum()
    return y


def drawn(T, N, S, dtype, seed=0):
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((S, HEADS, T, HEAD)).astype(np.float32)
    k, v = (rng.standard_normal((S, KV_HEADS, N, HEAD)).astype(dtype) for _ in range(2))
    return q, k, v


def nmse(got, want):
    power = np.square(want).sum()
    return float(np.square(got - want).sum() / power) if power else float(np.abs(got).max(initial=0))


def outcome(on, arrays, **attrs):
    backend, device = on
    try:
        return run(made(ops.attention, arrays, scale=SCALE, **attrs), backend, device)
    except Refused as reason:
        pytest.skip(f"{device.name}: {reason}")


@pytest.mark.parametrize("T", TOKENS)
@pytest.mark.parametrize("N", COLUMNS)
def test_lengths_causal_and_window_are_masks(on, T, N):
    lengths = sorted({n for n in (0, 1, T - 1, T, T + 1, N - 1, N) if 0 <= n <= N})
    windows = (0, 1, 2, 31, 33, N, N + 1)
    for i, length in enumerate(lengths):
        causal, window = bool(i % 2), windows[(i + T + N) % len(windows)]
        dtype = np.float16 if i % 3 else np.float32
        q, k, v = drawn(T, N, 2, dtype, seed=i)
        kv_len = np.array([length, lengths[-1 - i]], np.int32)
        seen = np.stack([seen_by(T, N, n, causal=causal, window=window) for n in kv_len])
        want = plain_attention(q, k, v, np.where(seen, 0.0, -np.inf))
        for s in range(2):  # poison every column that no query sees
            hidden = ~seen[s].any(0)
            k[s, :, hidden] = v[s, :, hidden] = np.nan
        arrays = {"q": q, "k": k, "v": v, "kv_len": kv_len}
        got = outcome(on, arrays, causal=causal, window=window)
        assert got.fault is None
        assert not got.damage
        assert nmse(got.result, want) <= (1e-8 if dtype is np.float32 else 1e-5), (kv_len, causal, window, dtype)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [0, 3])
def test_all_together_with_a_mask(on, causal, window):
    q, k, v = drawn(5, 40, 2, np.float32)
    rng = np.random.default_rng(9)
    mask = rng.standard_normal((2, 1, 5, 40)).astype(np.float16)
    mask[rng.random(mask.shape) < 0.3] = -np.inf
    kv_len = np.array([40, 17], np.int32)
    seen = np.stack([seen_by(5, 40, n, causal=causal, window=window) for n in kv_len])
    want = plain_attention(q, k, v, np.where(seen, mask[:, 0].astype(np.float64), -np.inf))
    got = outcome(on, {"q": q, "k": k, "v": v, "mask": mask, "kv_len": kv_len}, causal=causal, window=window)
    assert nmse(got.result, want) <= 1e-8


def test_without_anything_every_column_is_seen(on):
    q, k, v = drawn(3, 33, 1, np.float32)
    want = plain_attention(q, k, v, np.zeros((1, 3, 33)))
    assert nmse(outcome(on, {"q": q, "k": k, "v": v}).result, want) <= 1e-8


@pytest.mark.parametrize("wrong", [-1, 34])
def test_a_length_outside_is_a_bad_index_and_zeros(on, wrong):
    q, k, v = drawn(3, 33, 2, np.float32)
    got = outcome(on, {"q": q, "k": k, "v": v, "kv_len": np.array([33, wrong], np.int32)})
    assert isinstance(got.fault, BadIndex)
    assert "attention" in str(got.fault)
    assert str(wrong) in str(got.fault)
    assert not got.result[1].any()
    want = plain_attention(q, k, v, np.zeros((2, 3, 33)))
    assert nmse(got.result[:1], want[:1]) <= 1e-8


def test_rows_of_a_shared_cache_with_length_and_causal(on):
    backend, device = on
    q, k, v = drawn(2, 9, 1, np.float32)
    q = np.concatenate([q, q[::-1]])
    rows = np.array([[8, 1, 3, 0, -1], [2, 2, 5, 99, 99]], np.int32)
    arrays = {"q": q, "k": k, "v": v, "kv_rows": rows, "kv_len": np.array([5, 3], np.int32)}
    try:
        assert not mistakes(made(ops.attention, arrays, scale=SCALE, causal=True), backend, device)
    except Refused as reason:
        assert "kv_rows" in str(reason)
