"""The companions of attention, against golden values, sets and loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jackfield import ops
from jackfield.dtypes import q8_0
from jackfield.dtypes.arrays import decoded
from jackfield.errors import AttributeValueError, ShapeError

INF, NAN = math.inf, math.nan
seeds = st.integers(0, 2**31)


def drawn(rng, *shape, low=-1.0, high=1.0):
    return rng.uniform(low, high, shape).astype(np.float32)


# top_k_mask


def open_columns(picks, columns, score, blocks, extra):
    """The set of columns that one row of picks opens, from the words of the declaration."""
    count = len(blocks) if blocks is not None else columns if score is None else len(score)
    found = set() if extra is None else {int(c) for c in extra}
    for p in map(int, picks):
        if 0 <= p < count and (score is None or score[p] > -INF):
            found |= {p} if blocks is None else {int(c) for c in blocks[p]}
    return {c for c in found if 0 <= c < columns}


@given(seeds)
def test_a_mask_is_open_where_it_was_picked(seed):
    rng = np.random.default_rng(seed)
    lead, columns = tuple(int(n) for n in rng.integers(1, 4, int(rng.integers(0, 4)))), int(rng.integers(1, 9))
    heights = [int(rng.choice([1, n])) for n in lead[int(rng.integers(0, len(lead) + 1)) :]]
    mask = drawn(rng, *heights, columns).astype([np.float16, np.float32][seed % 2])
    picks = rng.integers(-2, columns + 3, (*lead, int(rng.integers(0, 5)))).astype(np.int32)
    blocks = (
        rng.integers(-1, columns + 2, (int(rng.integers(0, 5)), 2)).astype(np.int32) if rng.random() < 0.5 else None
    )
    score = extra = None
    if rng.random() < 0.5:
        score = drawn(rng, *lead, int(rng.integers(1, 7)) + (0 if blocks is None else len(blocks)))
        score[rng.random(score.shape) < 0.4] = rng.choice([-INF, NAN])
    if rng.random() < 0.5:
        extra = rng.integers(-1, columns + 2, (*lead, 2)).astype(np.int32)
    got = ops.top_k_mask.run(mask, picks, score, blocks, extra)
    assert got.dtype == mask.dtype
    assert got.shape == (*lead, columns)
    for at in np.ndindex(lead):
        row = mask[tuple(i % n for i, n in zip(at[len(at) - mask.ndim + 1 :], mask.shape, strict=False))]
        opened = open_columns(
            picks[at], columns, None if score is None else score[at], blocks, None if extra is None else extra[at]
        )
        for c in range(columns):
            assert got[at][c] == (row[c] if c in opened else -INF)


@pytest.mark.parametrize("bits", [np.uint16, np.uint32])
def test_entries_of_a_mask_keep_every_bit(bits):
    kind, nan = (np.float16, 0xFE37) if bits == np.uint16 else (np.float32, 0xFFA01234)
    mask = np.array([nan, 1 << (8 * np.dtype(bits).itemsize - 1), 0, 5], bits).view(kind)
    got = ops.top_k_mask.run(mask, np.array([1, 0, 1], np.int32))
    np.testing.assert_array_equal(got[:2].view(bits), mask[:2].view(bits))
    assert got[2:].tolist() == [-INF, -INF]


def test_masks_repeat_cyclically():
    """Stream i of four reads mask i % 2."""
    mask = np.array([[[1, 2]], [[3, 4]]], np.float32)
    got = ops.top_k_mask.run(mask, np.zeros((4, 3, 1), np.int32))
    assert got[:, 0].tolist() == [[1, -INF], [3, -INF], [1, -INF], [3, -INF]]
    assert (got == got[:, :1]).all()


# lightning_indexer


def test_scores_by_loops():
    rng = np.random.default_rng(0)
    S, T, Hi, N, D = 4, 3, 2, 5, 7
    q, k, weights = drawn(rng, S, T, Hi, D), drawn(rng, S, N, 1, D), drawn(rng, S, 1, T, Hi)
    mask = drawn(rng, 2, 1, T, N).astype(np.float16)
    mask[rng.random(mask.shape) < 0.3] = -INF
    got = ops.lightning_indexer.run(q, k, weights, mask)
    assert got.shape == (S, 1, T, N)
    for s, t, n in np.ndindex(S, T, N):
        want = float(mask[s % 2, 0, t, n])
        for h in range(Hi):
            dot = sum(float(a) * float(b) for a, b in zip(q[s, t, h], k[s, n, 0], strict=True))
            want += float(weights[s, 0, t, h]) * max(dot, 0.0)
        assert got[s, 0, t, n] == pytest.approx(want, abs=2e-6)
    np.testing.assert_array_equal(
        ops.lightning_indexer.run(q[0], k[0], weights[0], mask[0]), got[0], "without the axis of streams"
    )


def test_masked_columns_may_hold_anything():
    q, weights = np.ones((1, 1, 2, 3), np.float32), np.ones((1, 1, 1, 2), np.float32)
    k = np.array([[NAN] * 3, [INF] * 3, [1] * 3, [NAN] * 3], np.float32).reshape(1, 4, 1, 3)
    mask = np.array([-INF, -INF, 0.5, 0.0], np.float16).reshape(1, 1, 1, 4)
    got = ops.lightning_indexer.run(q, k, weights, mask).ravel()
    assert got[:3].tolist() == [-INF, -INF, 6.5]
    assert math.isnan(got[3])


def test_keys_in_blocks_are_decoded():
    rng = np.random.default_rng(1)
    q, k, weights = drawn(rng, 1, 2, 3, 32), drawn(rng, 1, 5, 1, 32), drawn(rng, 1, 1, 2, 3)
    coded, mask = ops.cast.run(k, dtype=q8_0), np.zeros((1, 1, 2, 5), np.float16)
    want = ops.lightning_indexer.run(q, decoded(coded), weights, mask)
    np.testing.assert_array_equal(ops.lightning_indexer.run(q, coded, weights, mask), want)


def test_what_is_picked_by_score_is_what_attention_sees():
    """The chain of the models: scores, the best of them, a mask that opens these, attention."""
    rng = np.random.default_rng(2)
    T, N, D, best = 3, 9, 8, 4
    mask = np.where(np.arange(N) <= np.arange(T)[:, None] + N - T, 0, -INF).astype(np.float16).reshape(1, 1, T, N)
    scores = ops.lightning_indexer.run(
        drawn(rng, 1, T, 2, D), drawn(rng, 1, N, 1, D), drawn(rng, 1, 1, T, 2, low=0), mask
    )
    picks = ops.top_k.run(scores, k=best)
    narrow = ops.top_k_mask.run(mask, picks, scores)
    q, k, v = drawn(rng, 1, 2, T, D), drawn(rng, 1, 1, N, D), drawn(rng, 1, 1, N, D)
    got = ops.attention.run(q, k, v, narrow, scale=0.3, kv_limit=best)
    for t in range(T):
        seen = np.argsort(-scores[0, 0, t], kind="stable")[:best]
        assert set(np.flatnonzero(narrow[0, 0, t] == 0)) == set(seen)
        alone = ops.attention.run(q[:, :, t : t + 1], k[:, :, seen], v[:, :, seen], scale=0.3)
        np.testing.assert_allclose(got[:, t], alone[:, 0], atol=1e-6)


# hyper-connections


def mixed(logits):
    """The operands that give these logits (T, c, c), with other numbers where nothing is read."""
    T, c, _ = logits.shape
    mixes = np.concatenate([np.full((T, 2 * c), 1e9), logits.reshape(T, -1)], 1).astype(np.float32)
    return mixes, np.array([1e9, -1e9, 1], np.float32), np.zeros(mixes.shape[1], np.float32)


def test_golden_weights():
    got = ops.hyper_connection_weights.run(*mixed(np.array([[[0, 1], [2, 0]]])), eps=1e-6, iterations=2)
    np.testing.assert_allclose(got[0], [[0.201922, 0.835575], [0.798077, 0.164424]], atol=6e-7)


@given(seeds)
def test_weights_by_loops(seed):
    rng = np.random.default_rng(seed)
    T, c = int(rng.integers(1, 4)), int(rng.integers(1, 6))
    length, iterations, eps = (2 + c) * c, int(rng.integers(1, 6)), float(rng.choice([0.0, 1e-6, 0.1]))
    mixes, scale, base = drawn(rng, T, length, low=-3, high=3), drawn(rng, 3), drawn(rng, length)
    got = ops.hyper_connection_weights.run(mixes, scale, base, eps=eps, iterations=iterations)
    for t in range(T):
        z = [
            [float(mixes[t, 2 * c + j + c * i]) * float(scale[2]) + float(base[2 * c + j + c * i]) for j in range(c)]
            for i in range(c)
        ]
        w = [[math.exp(x) / sum(map(math.exp, row)) + eps for x in row] for row in z]
        for step in range(iterations):
            if step:
                w = [[x / (sum(row) + eps) for x in row] for row in w]
            sums = [sum(w[i][j] for i in range(c)) + eps for j in range(c)]
            w = [[w[i][j] / sums[j] for j in range(c)] for i in range(c)]
        np.testing.assert_allclose(got[t], w, rtol=2e-6, atol=1e-7)


def test_many_iterations_balance_rows_and_columns():
    rng = np.random.default_rng(0)
    w = ops.hyper_connection_weights.run(*mixed(rng.uniform(-4, 4, (5, 4, 4))), eps=1e-6, iterations=200)
    np.testing.assert_allclose(w.sum(1), 1, atol=1e-3)
    np.testing.assert_allclose(w.sum(2), 1, atol=1e-3)
    large = ops.hyper_connection_weights.run(*mixed(np.full((1, 2, 2), 1e4)), eps=1e-6, iterations=3)
    np.testing.assert_allclose(large, 0.5, atol=1e-5)


@given(seeds)
def test_streams_in_and_out_by_loops(seed):
    rng = np.random.default_rng(seed)
    T, c, E = (int(n) for n in rng.integers(1, 6, 3))
    streams, weights = drawn(rng, T, c, E), drawn(rng, T, c)
    np.testing.assert_allclose(
        ops.hyper_connection_in.run(streams, weights), np.einsum("tce,tc->te", streams, weights), atol=2e-6
    )
    x, post, mix = drawn(rng, T, E), drawn(rng, T, c), drawn(rng, T, c, c)
    got = ops.hyper_connection_out.run(x, streams, post, mix)
    for t, d in np.ndindex(T, c):
        want = x[t].astype(np.float64) * post[t, d]
        for s in range(c):
            want = want + streams[t, s].astype(np.float64) * mix[t, s, d]
        np.testing.assert_allclose(got[t, d], want, atol=2e-6)


def test_errors_say_what_must_be():
    mixes, scale = np.zeros((2, 9), np.float32), np.zeros(3, np.float32)
    with pytest.raises(ShapeError, match=r"mixes has 9 numbers a token, must be \(2 \+ c\) \* c of them"):
        ops.hyper_connection_weights.run(mixes, scale, mixes[0], eps=0.0, iterations=1)
    with pytest.raises(AttributeValueError, match="iterations is 0, must be at least 1"):
        ops.hyper_connection_weights.run(mixes[:, :8], scale, mixes[0, :8], eps=0.0, iterations=0)
    picks, blocks = np.zeros((2, 3), np.int32), np.zeros((5, 2), np.int32)
    with pytest.raises(ShapeError, match=r"score is \[2, 4\] and blocks \[5, 2\]: there must be a score for each"):
        ops.top_k_mask.run(mixes, picks, np.zeros((2, 4), np.float32), blocks)
    with pytest.raises(ShapeError, match=r"\[hyper_connection_out\] mix is \[2, 3, 4\], must be \[2, 3, 3\]"):
        ops.hyper_connection_out.run(
            mixes, np.zeros((2, 3, 9), np.float32), np.zeros((2, 3), np.float32), np.zeros((2, 3, 4), np.float32)
        )
