"""Latent attention in the extents of DeepSeek 2 and 3, at every level: one head of keys of 576 channels for all query
heads, whose first 512 channels are the value, in a cache of floats or of blocks, against softmax by hand.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from attention_caches import channels, coded, plain, run, spoil
from attention_oracle import cache, nmse, oracle
from one_step import LEVELS

KINDS = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "q8_0": None, "q4_0": None}
DK, DV = 576, 512
HIDDEN = 3  # columns at the end that are not valid
EXACT = 1e-8  # of the oracle over what the cache holds: all sums are f32


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize(("T", "H", "N"), [(1, 16, 150), (5, 4, 100), (40, 2, 70)])
def test_the_value_is_a_view_of_the_key(level, kind, listed, T, H, N):
    """Decode steps and prompts, with a list of cache rows or without; rows that no query sees are NaN."""
    rng = np.random.default_rng(N)
    floats = cache(rng, 1, 1, N, DK, KINDS[kind] or np.float32)
    keys = floats if KINDS[kind] else coded(floats, kind)
    q = rng.standard_normal((1, T, H, DK)).astype(np.float32).transpose(0, 2, 1, 3)
    arrays = {"q": q, "k": keys, "v": channels(keys, 0, DV), "kv_len": np.array([N - HIDDEN], np.int32)}
    unseen = np.arange(N - HIDDEN, N)
    if listed:
        rows = rng.integers(-1, N, (1, N)).astype(np.int32)
        unseen = np.setdiff1d(np.arange(N), rows[:, : N - HIDDEN])
        arrays["kv_rows"] = rows
    spoil(keys, 0, 0, unseen)
    assert np.shares_memory(arrays["k"], arrays["v"])
    got = run(arrays, level, 2, scale=0.04, causal=True)
    assert got.shape == (1, T, H, DV)
    assert nmse(got, oracle(**plain(arrays), scale=0.04, causal=True)) <= EXACT
