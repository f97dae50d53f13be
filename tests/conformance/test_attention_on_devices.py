"""kv_len, causal and window are the masks they stand for, and what they hide is never read."""

from __future__ import annotations

import itertools
from unittest import mock

import ml_dtypes
import numpy as np
import pytest

import jackfield as jf
from jackfield import ops
from jackfield.conformance import made
from jackfield.errors import BadIndex
from jackfield_conformance import Refused, mistakes, run

TOKENS = (1, 2, 7, 32, 33)
COLUMNS = (1, 31, 32, 33, 256, 257)
HEADS, KV_HEADS, HEAD = 4, 2, 32
SCALE = 0.17
INF = np.inf


def seen_by(T, N, length, *, causal, window):
    """Which of N columns each of T queries sees, from the words of the declaration: (T, N)."""
    i, place = np.arange(N), length - T + np.arange(T)[:, None]
    return (i < length) & (~np.bool_(causal) | (i <= place)) & ((window == 0) | (i > place - window))


def plain_attention(q, k, v, bias, sinks=None):
    """Softmax of masked products by hand, in f64; bias (S, T, N) with -inf where nothing is seen."""
    H, groups = q.shape[1], q.shape[1] // k.shape[1]
    k, v = (np.repeat(a.astype(np.float64), groups, 1) for a in (k, v))
    z = SCALE * q.astype(np.float64) @ np.swapaxes(k, -1, -2) + bias[:, None]
    sink = np.full((H, 1, 1), -INF) if sinks is None else sinks.astype(np.float64).reshape(H, 1, 1)
    top = np.maximum(z.max(-1, keepdims=True, initial=-1e30), sink)
    e = np.exp(z - top)
    total = e.sum(-1, keepdims=True) + np.exp(sink - top)
    weight = np.divide(e, total, out=np.zeros_like(e), where=total > 0)
    return np.swapaxes(weight @ v, 1, 2)


def drawn(T, N, S, dtype, seed=0):
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((S, HEADS, T, HEAD)).astype(np.float32)
    k, v = (rng.standard_normal((S, KV_HEADS, N, HEAD)).astype(dtype) for _ in range(2))
    return q, k, v


def nmse(got, want):
    """The worst of all streams."""
    power, error = np.square(want).sum((1, 2, 3)), np.square(got - want).sum((1, 2, 3))
    none = np.abs(got).max((1, 2, 3), initial=0)
    return float(np.where(power > 0, error / np.where(power > 0, power, 1), none).max(initial=0))


def outcome(on, arrays, **attrs):
    backend, device = on
    try:
        return run(made(ops.attention, arrays, scale=SCALE, **attrs), backend, device)
    except Refused as reason:
        pytest.skip(f"{device.name}: {reason}")


LAW = {np.dtype(np.float32): 1e-8, np.dtype(np.float16): 1e-5, np.dtype(ml_dtypes.bfloat16): 1e-5}


def poisoned(array, seen):
    """A copy with NaN in every column of a stream that no query sees; seen: (S, T, N)."""
    array = array.copy()
    for stream, columns in zip(array, seen, strict=True):
        stream[:, ~columns.any(0)] = np.nan
    return array


def random_mask(S, T, N, rng):
    """f16 (S, 1, T + 1, N), a third of it -inf; the last row is not read."""
    mask = rng.standard_normal((S, 1, T + 1, N)).astype(np.float16)
    mask[rng.random(mask.shape) < 0.3] = -INF
    return mask


@pytest.mark.parametrize("T", TOKENS)
@pytest.mark.parametrize("N", COLUMNS)
def test_lengths_causal_and_window_are_masks(on, T, N):
    """Each alone and all together, beside a mask and sinks or not: equal to the step with the mask they stand for.

    Each length is a stream of its own. What no query of a stream sees is NaN.
    """
    lengths = [n for n in sorted({0, 1, T - 1, T, T + 1, N - 1, N}) if 0 <= n <= N]
    S, rng = len(lengths), np.random.default_rng(T * 1000 + N)
    windows, start = (0, 1, 2, 31, 32, 33, N, N + 1), TOKENS.index(T) + COLUMNS.index(N)
    for i, (ragged, causal) in enumerate(itertools.product((True, False), (False, True))):
        window = windows[(start + 3 * i) % 8]  # all of them with all lengths: in tests/core/test_ops_attention.py
        dtype = (np.float32, np.float16, ml_dtypes.bfloat16)[(i + start) % 3]
        kv_len = np.array(lengths if ragged else [N] * S, np.int32)
        seen = np.stack([seen_by(T, N, n, causal=causal, window=window) for n in kv_len])
        mask = random_mask(S, T, N, rng) if (i + start) % 2 else None
        sinks = rng.standard_normal(HEADS).astype(np.float32) if (i + start) // 2 % 2 else None
        bias = np.where(seen, 0.0 if mask is None else mask[:, 0, :T].astype(np.float64), -INF)
        q, k, v = drawn(T, N, S, dtype, seed=i)
        want = plain_attention(q, k, v, bias, sinks)
        want[kv_len == 0] = 0
        arrays = {"q": q, "k": poisoned(k, seen), "v": poisoned(v, seen)}
        arrays |= {} if sinks is None else {"sinks": sinks}
        short = arrays | ({} if mask is None else {"mask": mask}) | ({"kv_len": kv_len} if ragged else {})
        got = outcome(on, short, causal=causal, window=window)
        assert (got.fault, got.damage) == (None, "")
        assert nmse(got.result, want) <= LAW[k.dtype], (kv_len, causal, window, dtype)
        long = outcome(on, arrays | {"mask": bias[:, None].astype(np.float16)})
        assert nmse(long.result, want) <= LAW[k.dtype], ("as a mask", kv_len, causal, window, dtype)


def test_slopes_and_caps_go_with_lengths(on):
    """ALiBi and soft-cap change what is seen by no column."""
    T, N, S = 5, 70, 2
    rng = np.random.default_rng(3)
    q, k, v = drawn(T, N, S, np.float32)
    mask, kv_len = random_mask(S, T, N, rng), np.array([70, 33], np.int32)
    for causal, window in itertools.product((False, True), (0, 9)):
        seen = np.stack([seen_by(T, N, n, causal=causal, window=window) for n in kv_len])
        arrays = {"q": q, "k": poisoned(k, seen), "v": poisoned(v, seen)}
        more = {"max_bias": 8.0, "logit_softcap": 2.0}
        got = outcome(on, arrays | {"mask": mask, "kv_len": kv_len}, causal=causal, window=window, **more)
        all_in_one = np.where(seen[:, None], mask[:, :, :T], np.float16(-INF))
        want = outcome(on, arrays | {"mask": all_in_one}, **more)
        assert nmse(got.result, want.result.astype(np.float64)) <= 1e-8
        assert nmse(got.result, plain_attention(q, k, v, np.where(seen, 0.0, -INF))) > 1e-4, "neither was ignored"


@pytest.mark.parametrize("T", [1, 3, 33])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_lists_count_columns_and_not_rows(on, T, dtype):
    """With kv_rows the three, and a mask, are those of the list: equal to the step on the rows it gathers."""
    S, R, rng = 3, 90, np.random.default_rng(T)
    for N in (1, 31, 64, 257):
        q = drawn(T, 1, S, np.float32, seed=N)[0]
        k, v = (rng.standard_normal((1, KV_HEADS, R, HEAD)).astype(dtype) for _ in range(2))
        rows = rng.integers(0, R, (S, N)).astype(np.int32)
        gathered = {"k": k[0][:, rows].swapaxes(0, 1).copy(), "v": v[0][:, rows].swapaxes(0, 1).copy()}
        kv_len = np.array([N, N // 2, 1], np.int32)
        for causal, window, masked in itertools.product((False, True), (0, 2, 33), (False, True)):
            mask = {"mask": random_mask(S, T, N, rng)} if masked else {}
            for length in ({"kv_len": kv_len}, {}) if masked else ({"kv_len": kv_len},):
                more = {"q": q} | mask | length
                listed = outcome(on, {"k": k, "v": v, "kv_rows": rows} | more, causal=causal, window=window)
                want = outcome(on, gathered | more, causal=causal, window=window)
                assert nmse(listed.result, want.result.astype(np.float64)) <= LAW[k.dtype]


@pytest.mark.parametrize("limit", [1, 5, 40])
def test_a_promise_goes_with_lengths(on, limit):
    """kv_limit changes nothing where it is kept, also where kv_len, causal and window narrow further."""
    T, N, S = 3, 40, 2
    q, k, v = drawn(T, N, S, np.float16)
    mask = np.full((S, 1, T, N), -INF, np.float16)
    rng = np.random.default_rng(limit)
    for row in mask.reshape(-1, N):
        row[rng.permutation(N)[:limit]] = 0.5
    arrays = {"q": q, "k": k, "v": v, "mask": mask, "kv_len": np.array([40, 22], np.int32)}
    for causal, window in itertools.product((False, True), (0, 30)):
        got = outcome(on, arrays, causal=causal, window=window, kv_limit=limit)
        want = outcome(on, arrays, causal=causal, window=window)
        assert nmse(got.result, want.result.astype(np.float64)) <= 1e-5


@pytest.mark.parametrize("dtype", [jf.f32, jf.f16, jf.bf16, jf.q8_0])
def test_a_value_that_is_a_view_of_the_key(on, dtype):
    """As in latent attention: one cache, of whose rows the first channels are the value."""
    heads, T, N, Dk, Dv = 4, 2, 9, 96, 64
    rng = np.random.default_rng(0)
    session = jf.Session(on[1].name if on[1].target.kind == "reference" else f"{on[1].name}+reference")
    cache = jf.state("latent", (1, N, Dk), dtype)
    new = rng.standard_normal((1, N, Dk)).astype(np.float32)
    filled = ops.put_rows(cache, jf.input("new", new.shape), jf.input("rows", (N,), jf.i32))
    keys = ops.reshape(filled, shape=(1, 1, N, Dk))
    q, kv_len = jf.input("q", (1, heads, T, Dk)), jf.input("kv_len", (1,), jf.i32)
    y = ops.attention(q, keys, keys[..., :Dv], kv_len=kv_len, scale=SCALE, causal=True)
    feeds = {"new": new, "rows": np.arange(N, dtype=np.int32), "q": rng.standard_normal(q.shape).astype(np.float32)}
    plan = session.compile(y)
    stored = ops.cast.run(ops.cast.run(new, dtype=dtype), dtype=jf.f32)[None]
    for length in (1, N):
        got = plan(**feeds, kv_len=np.array([length], np.int32))
        bias = np.where(seen_by(T, N, length, causal=True, window=0), 0.0, -INF)[None]
        want = plain_attention(feeds["q"], stored, stored[..., :Dv], bias)
        assert nmse(got, want) <= (1e-8 if dtype is jf.f32 else 5e-4 if dtype is jf.q8_0 else 1e-5)


def test_a_plan_serves_every_length(on):
    """kv_len is data: nothing is compiled anew as it grows."""
    T, N = 1, 40
    q, k, v = drawn(T, N, 1, np.float32)
    leaves = {name: jf.input(name, a.shape) for name, a in (("q", q), ("k", k), ("v", v))}
    y = ops.attention(**leaves, kv_len=jf.input("kv_len", (1,), jf.i32), scale=SCALE, causal=True)
    plan = jf.compile(y, device=on[1].name)
    with mock.patch.object(type(on[1]), "compile", side_effect=AssertionError("a plan was built anew")):
        for length in range(N + 1):
            got = plan(q=q, k=k, v=v, kv_len=np.array([length], np.int32))
            bias = np.where(seen_by(T, N, length, causal=True, window=0), 0.0, -INF)[None]
            assert nmse(got, plain_attention(q, k, v, bias)) <= 1e-8


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
