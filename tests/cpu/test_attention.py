"""Attention on the CPU at every level, by rows (decode) and by tiles (prompts), against softmax by hand in f64.

What is drawn at random, of every form and kind of cache, is in test_attention_forms.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from attention_oracle import drawn, nmse, oracle
from bound_step import BoundStep, run
from one_step import LEVELS

from jackfield import ops
from jackfield.errors import BadIndex

pytestmark = pytest.mark.parametrize("level", LEVELS)
BOUND = {np.dtype(np.float32): 1e-8, np.dtype(np.float16): 1e-5}
INF, NAN = np.inf, np.nan


def check(arrays, level, threads=1, **attrs):
    attrs.setdefault("scale", arrays["q"].shape[3] ** -0.5)
    got = run(ops.attention, arrays, level, threads, **attrs)
    assert nmse(got, oracle(**arrays, **attrs)) <= BOUND[arrays["k"].dtype]
    return got


PLAIN = {"q": [[[[1, 0]]]], "k": [[[[1, 0], [0, 1], [1, 1]]]], "v": [[[[1, 2], [3, 4], [5, 6]]]]}
SHUT = np.array([[[[0, -INF, -0.5]]]], np.float32)
TWO = [[[[1, 0], [0, 1]]]]
GOLDEN = [
    ({"mask": SHUT}, {}, [2.510163, 3.510163]),
    ({"mask": SHUT, "sinks": np.array([0.25], np.float32)}, {}, [1.690605, 2.364109]),
    ({"kv_len": np.array([2], np.int32)}, {}, [1.755081, 2.755081]),
    ({"q": TWO, "kv_len": np.array([3], np.int32)}, {"causal": True}, [1.755081, 2.755081, 3.301910, 4.301910]),
    ({"q": TWO, "kv_len": np.array([3], np.int32)}, {"causal": True, "window": 2}, [1.755081, 2.755081, 4, 5]),
    ({"q": TWO, "kv_len": np.array([1], np.int32)}, {"causal": True}, [0, 0, 1, 2]),
]


@pytest.mark.parametrize(("more", "attrs", "want"), GOLDEN)
@pytest.mark.parametrize("tiles", [False, True])
def test_golden_values(level, more, attrs, want, tiles):
    """By tiles: 12 equal heads, and queries in front that the last ones do not depend on."""
    arrays = {name: np.array(a, np.float32) for name, a in (PLAIN | more).items() if name != "kv_len"}
    arrays |= {name: a for name, a in more.items() if name == "kv_len"}
    n = arrays["q"].shape[2]
    if tiles:
        arrays["q"] = np.concatenate([np.ones((1, 1, 4, 2), np.float32), arrays["q"]], 2).repeat(12, 1)
    if tiles and "mask" in arrays:
        arrays["mask"] = arrays["mask"].repeat(n + 4, 2)
    if tiles and "sinks" in arrays:
        arrays["sinks"] = arrays["sinks"].repeat(12)
    got = run(ops.attention, arrays, level, scale=0.5, **attrs)
    for h in range(got.shape[2]):
        np.testing.assert_allclose(got[0, -n:, h].ravel(), want, atol=2e-6)


@pytest.mark.parametrize(("H", "heads"), [(1, 1), (2, 1), (3, 3), (8, 2), (9, 3), (12, 1), (7, 1)])
@pytest.mark.parametrize("T", [1, 3, 6, 70])
def test_heads_of_every_grouping(level, H, heads, T):
    arrays = drawn(np.random.default_rng(H * T), 1, H, heads, T, 150, 24, 40)
    check(arrays, level, causal=True)


@pytest.mark.parametrize("size", [1, 3, 4, 15, 16, 17, 31, 48, 64, 80, 128, 200, 256])
@pytest.mark.parametrize("T", [1, 13])
def test_head_sizes(level, size, T):
    for dtype in (np.float16, np.float32):
        arrays = drawn(np.random.default_rng(size), 1, 3, 1, T, 75, size, size, dtype)
        check(arrays, level, causal=True)


@pytest.mark.parametrize("T", [1, 2, 5, 40, 130])
def test_bits_do_not_depend_on_the_number_of_workers(level, T):
    arrays = drawn(np.random.default_rng(T), 2, 6, 2, T, 1030, 64, 64)
    arrays["kv_len"] = np.array([1030, 517], np.int32)
    alone = run(ops.attention, arrays, level, scale=0.125, causal=True)
    for threads in (2, 3, 5):
        np.testing.assert_array_equal(run(ops.attention, arrays, level, threads, scale=0.125, causal=True), alone)


@pytest.mark.parametrize("T", [1, 8])
def test_more_workers_than_heads(level, T):
    arrays = drawn(np.random.default_rng(T), 1, 2, 1, T, 4096, 64, 64)
    arrays["kv_len"] = np.array([4000], np.int32)
    check(arrays, level, 7, causal=True)


@pytest.mark.parametrize("T", [1, 2, 7, 33])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_what_is_not_seen_is_never_read(level, T, dtype):
    """Also where one query of a tile sees a row that is NaN, and others do not."""
    rng = np.random.default_rng(T)
    arrays = drawn(rng, 1, 6, 2, T, 140, 20, 20, dtype)
    length, window = 137, 50
    arrays["kv_len"] = np.array([length], np.int32)
    clean = oracle(**arrays, scale=0.3, causal=True, window=window)
    for name in ("k", "v"):
        poisoned = arrays[name].copy()
        poisoned[:, :, length:] = NAN
        poisoned[:, :, : max(0, length - T - window + 1)] = INF
        got = run(ops.attention, arrays | {name: poisoned}, level, scale=0.3, causal=True, window=window)
        assert nmse(got, clean) <= BOUND[np.dtype(dtype)]
        if T > 1:
            poisoned[:, :, length - 1] = NAN  # only the last query sees it
            got = run(ops.attention, arrays | {name: poisoned}, level, scale=0.3, causal=True, window=window)
            assert nmse(got[:, :-1], clean[:, :-1]) <= BOUND[np.dtype(dtype)]
            assert np.isnan(got[:, -1]).all()


@pytest.mark.parametrize("T", [1, 12])
def test_a_mask_hides_rows_for_one_head_alone(level, T):
    rng = np.random.default_rng(T)
    arrays = drawn(rng, 1, 4, 1, T, 70, 16, 16, np.float32)
    mask = np.zeros((1, 4, T, 70), np.float16)
    mask[:, 1:, :, 5] = -INF
    mask[0, 2] = -INF
    mask[0, 3, :, 9] = NAN
    arrays["mask"] = mask
    arrays["k"][:, :, 5] = arrays["v"][:, :, 5] = NAN
    got = run(ops.attention, arrays, level, scale=0.25)
    assert np.isnan(got[:, :, 0]).all()
    assert not got[:, :, 2].any()
    assert np.isnan(got[:, :, 3]).all()
    want = oracle(**arrays, scale=0.25)
    assert nmse(got[:, :, 1], want[:, :, 1]) <= 1e-8


@pytest.mark.parametrize("T", [1, 20])
def test_one_program_serves_every_length(level, T):
    rng = np.random.default_rng(T)
    arrays = drawn(rng, 2, 4, 2, T, 300, 32, 32) | {"kv_len": np.zeros(2, np.int32)}
    step = BoundStep(ops.attention, arrays, level, 2, attrs={"scale": 0.2, "causal": True})
    for length in (0, 1, T - 1, T, T + 1, 128, 129, 299, 300, 2):
        kv_len = np.array([length, 300 - length], np.int32)
        step.write("kv_len", kv_len)
        assert step.run() is None
        assert nmse(step.result(), oracle(**(arrays | {"kv_len": kv_len}), scale=0.2, causal=True)) <= 1e-5


@pytest.mark.parametrize("T", [1, 20])
@pytest.mark.parametrize("wrong", [-1, 301, -(2**31), 2**31 - 1])
def test_a_length_outside_is_a_fault_and_zeros(level, T, wrong):
    arrays = drawn(np.random.default_rng(T), 2, 4, 2, T, 300, 32, 32) | {"kv_len": np.array([300, wrong], np.int32)}
    step = BoundStep(ops.attention, arrays, level, 2, attrs={"scale": 0.2})
    fault = step.run()
    assert isinstance(fault, BadIndex)
    assert "kv_len" in str(fault)
    assert str(wrong) in str(fault)
    got = step.result()
    assert not got[1].any()
    assert nmse(got[:1], oracle(**arrays, scale=0.2)[:1]) <= 1e-5


def test_rows_of_a_shared_cache(level):
    rng = np.random.default_rng(1)
    arrays = drawn(rng, 1, 4, 2, 3, 50, 16, 16)
    arrays["q"] = rng.standard_normal((2, 4, 3, 16)).astype(np.float32)
    rows = rng.integers(-1, 50, (2, 90)).astype(np.int32)
    arrays |= {"kv_rows": rows, "kv_len": np.array([90, 33], np.int32)}
    check(arrays, level, 2, causal=True)
    hidden = np.setdiff1d(np.arange(50), np.concatenate([rows[0], rows[1, :33]]))
    arrays["k"][:, :, hidden] = arrays["v"][:, :, hidden] = NAN
    check(arrays, level, causal=True)
    rows[0, 4] = 50
    step = BoundStep(ops.attention, arrays, level, attrs={"scale": 0.25})
    fault = step.run()
    assert isinstance(fault, BadIndex)
    assert "kv_rows" in str(fault)
    assert nmse(step.result(), oracle(**(arrays | {"kv_rows": np.where(rows == 50, -1, rows)}), scale=0.25)) <= 1e-5


@pytest.mark.parametrize("T", [1, 9])
def test_large_logits_do_not_overflow(level, T):
    arrays = drawn(np.random.default_rng(T), 1, 2, 1, T, 80, 64, 64, np.float32)
    arrays["q"] = arrays["q"] * 300
    got = check(arrays, level, scale=1.0, causal=True)
    assert np.isfinite(got).all()


@pytest.mark.parametrize("T", [1, 9])
def test_results_with_gaps(level, T):
    arrays = drawn(np.random.default_rng(T), 1, 4, 2, T, 40, 16, 16)
    dense = run(ops.attention, arrays, level, scale=0.25)
    strides = (4096 * T, 4096, 1024, 12)
    np.testing.assert_array_equal(run(ops.attention, arrays, level, scale=0.25, strides=strides), dense)


def test_no_columns_give_zeros(level):
    for T in (1, 9):
        arrays = drawn(np.random.default_rng(T), 1, 2, 1, T, 0, 8, 8)
        assert not run(ops.attention, arrays, level, scale=0.25).any()
