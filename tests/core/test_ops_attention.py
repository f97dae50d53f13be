"""kv_len, causal, window, lists and promises of attention: every form is the mask that it stands for."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from jackfield import ops
from jackfield.dtypes import bf16, f16, f32, q4_0, q8_0
from jackfield.dtypes.arrays import as_bytes, dtype_of, element
from jackfield.errors import AttributeValueError, ShapeError
from jackfield.op import collect

INF, NAN = np.inf, np.nan
HEADS, KV_HEADS, HEAD, SCALE = 2, 1, 32, 0.2
DTYPES = (f32, f16, bf16, q8_0, q4_0)


def seen_by(T, N, length, *, causal, window):
    """(T, N): which columns each query sees, from the words of the declaration, cell by cell."""
    seen = np.zeros((T, N), bool)
    for t in range(T):
        place = length - T + t
        first = max(0, place - window + 1) if window else 0
        last = min(length, place + 1) if causal else length
        seen[t, first : max(first, last)] = True
    return seen


def poison(cache, hidden):
    """Every hidden row of a cache (S, heads, N, D), or of blocks, as bytes that are NaN; hidden: (S, N)."""
    dtype, cache = dtype_of(cache), cache.copy()
    raw = as_bytes(cache).copy()
    raw[np.broadcast_to(hidden[:, None], cache.shape[:3])] = 0xFF
    return raw.view(element(dtype)).reshape(cache.shape)


def drawn(rng, dtype, *shape):
    return ops.cast.run(rng.standard_normal(shape).astype(np.float32), dtype=dtype)


def equal(got, want):
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6)


@pytest.mark.parametrize("T", [1, 2, 7, 32, 33])
@pytest.mark.parametrize("N", [1, 31, 32, 33, 256, 257])
def test_every_form_is_the_mask_it_stands_for(T, N):
    """Each alone, all together, with a mask and sinks besides; every length a stream; NaN wherever nobody looks."""
    lengths = np.array([n for n in sorted({0, 1, T - 1, T, T + 1, N - 1, N}) if 0 <= n <= N], np.int32)
    S, rng = len(lengths), np.random.default_rng(100 * N + T)
    q = rng.standard_normal((S, HEADS, T, HEAD)).astype(np.float32)
    caches = [[drawn(rng, dtype, S, KV_HEADS, N, HEAD) for _ in "kv"] for dtype in DTYPES]
    mask = rng.standard_normal((S, 1, T, N)).astype(np.float16)
    mask[rng.random(mask.shape) < 0.3] = -INF
    sinks = rng.standard_normal(HEADS).astype(np.float32)
    windows = (0, 1, 2, 31, 32, 33, N, N + 1)
    forms = [*enumerate(itertools.product((True, False), (False, True), windows))]
    for i, (ragged, causal, window) in forms if T * N < 1000 else forms[(T + N) % 3 :: 3]:  # a third of the long ones
        kv_len = lengths if ragged else np.full(S, N, np.int32)
        seen = np.stack([seen_by(T, N, n, causal=causal, window=window) for n in kv_len])
        k, v = (poison(cache, ~seen.any(1)) for cache in caches[i % len(DTYPES)])
        masked, sink = (mask if i % 2 else None), (sinks if i % 3 else None)
        got = ops.attention.run(
            q, k, v, masked, sink, kv_len=kv_len if ragged else None, scale=SCALE, causal=causal, window=window
        )
        entries = np.where(seen[:, None], np.float16(0) if masked is None else masked, np.float16(-INF))
        want = ops.attention.run(q, k, v, entries, sink, scale=SCALE)
        assert np.isfinite(want).all()
        equal(got, want)
        if not (ragged or causal or window or i % 2):
            equal(got, ops.attention.run(q, k, v, None, sink, scale=SCALE))


@pytest.mark.parametrize("dtype", DTYPES)
def test_lists_of_rows_gather_them(dtype):
    """With kv_rows, the lengths, causal, window and mask are those of the list; padding is dropped by its sign."""
    S, T, N, R = 2, 3, 40, 17
    rng = np.random.default_rng(0)
    q = rng.standard_normal((S, HEADS, T, HEAD)).astype(np.float32)
    k, v = (drawn(rng, dtype, 1, KV_HEADS, R, HEAD) for _ in "kv")
    unread = np.zeros((1, R), bool)
    unread[0, 0] = True
    k, v = poison(k, unread), poison(v, unread)
    rows = rng.integers(1, R, (S, N)).astype(np.int32)
    padding = rng.random((S, N)) < 0.2
    gathered = [np.concatenate([cache[:, :, rows[s]] for s in range(S)]) for cache in (k, v)]
    rows[padding] = rng.choice([-1, -7, -(2**31)], int(padding.sum()))
    kv_len = np.array([N, 11], np.int32)
    some = rng.standard_normal((S, 1, T, N)).astype(np.float16)
    for causal, window, masked in itertools.product((False, True), (0, 5), (False, True)):
        got = ops.attention.run(
            q, k, v, some if masked else None, None, rows, kv_len, scale=SCALE, causal=causal, window=window
        )
        seen = np.stack([seen_by(T, N, n, causal=causal, window=window) for n in kv_len]) & ~padding[:, None]
        entries = np.where(seen[:, None], some if masked else np.float16(0), np.float16(-INF))
        equal(got, ops.attention.run(q, *gathered, entries, scale=SCALE))


def test_a_promise_of_few_entries_changes_nothing():
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((2, h, n, 8)).astype(np.float32) for h, n in ((HEADS, 3), (1, 20), (1, 20)))
    mask = np.full((2, 1, 3, 20), -INF, np.float16)
    mask[..., 4:9] = 0.5
    more = {"kv_len": np.array([20, 7], np.int32), "scale": SCALE, "causal": True, "window": 15}
    np.testing.assert_array_equal(
        ops.attention.run(q, k, v, mask, kv_limit=5, **more), ops.attention.run(q, k, v, mask, **more)
    )


def test_a_value_may_be_a_view_of_the_key():
    """Latent attention: 576 channels of a key, of which the first 512 are the value; one head for all queries."""
    rng = np.random.default_rng(2)
    q = rng.standard_normal((1, 4, 2, 576)).astype(np.float32)
    for dtype in DTYPES:
        k = drawn(rng, dtype, 1, 1, 9, 576)
        v = k[..., : 512 // dtype.block]
        got = ops.attention.run(q, k, v, scale=0.04, causal=True)
        assert got.shape == (1, 2, 4, 512)
        np.testing.assert_array_equal(got, ops.attention.run(q, k, v.copy(), scale=0.04, causal=True))


def test_nobody_there():
    """Without streams, heads, queries, columns or channels nothing is wrong; only the cache needs a head."""
    usual = {"S": 2, "H": 4, "K": 2, "T": 3, "N": 5, "D": 8, "V": 8}
    for changed in (*({axis: 0} for axis in "SHTNDV"), dict.fromkeys("SHTNDV", 0)):
        e = usual | changed
        q, k, v = (
            np.ones((e["S"], *rest), np.float32)
            for rest in ((e["H"], e["T"], e["D"]), (e["K"], e["N"], e["D"]), (e["K"], e["N"], e["V"]))
        )
        mask, kv_len = np.zeros((e["T"], e["N"]), np.float32), np.full(e["S"], e["N"], np.int32)
        found = []
        with collect(found):
            y = ops.attention.run(q, k, v, mask, np.zeros(e["H"], np.float32), None, kv_len, scale=1.0, causal=True)
        assert y.shape == (e["S"], e["T"], e["H"], e["V"])
        assert not found
        if "N" in changed:
            assert not y.any()


def test_sinks_take_weight_and_give_none():
    """A sink of -inf is no sink, one of +inf or NaN leaves no number, one alone gives zeros."""
    q, k, v = (np.ones((1, 1, 1, 2), np.float32) for _ in "qkv")
    run = lambda sink, **more: ops.attention.run(q, k, v, sinks=np.array([sink], np.float32), scale=0.5, **more)
    np.testing.assert_allclose(run(-INF), 1)
    np.testing.assert_allclose(run(1.0), 0.5)
    assert np.isnan(run(NAN)).all()
    assert np.isnan(run(INF)).all()
    assert not run(3.0, mask=np.array([[-INF]], np.float16)).any()
    assert not run(3.0, kv_len=np.zeros(1, np.int32)).any()


def test_what_excludes_each_other_is_told():
    q, k, rows = (np.ones((1, 2, 3, 8), np.float32) for _ in range(2)), None, np.zeros((1, 5), np.int32)
    q, k = q
    with pytest.raises(AttributeValueError, match="kv_limit is 4 and mask is absent: it needs a mask"):
        ops.attention.run(q, k, k, scale=1.0, kv_limit=4)
    with pytest.raises(AttributeValueError, match="kv_rows is given without mask and kv_len"):
        ops.attention.run(q, k, k, kv_rows=rows, scale=1.0)
    with pytest.raises(AttributeValueError, match="kv_limit is 2 and kv_rows is given: they exclude each other"):
        ops.attention.run(q, k, k, np.zeros((3, 5), np.float16), kv_rows=rows, scale=1.0, kv_limit=2)
    with pytest.raises(AttributeValueError, match="window is -1, must be at least 0"):
        ops.attention.run(q, k, k, scale=1.0, window=-1)
    with pytest.raises(ShapeError, match=r"mask is \[3, 3\], its last axes must be at least 3 and exactly 5"):
        ops.attention.run(q, k, k, np.zeros((3, 3), np.float16), kv_rows=rows, scale=1.0)
