"""Attention over caches of blocks at every level, by rows and by tiles, against softmax by hand over decoded values."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from attention_caches import CODED, WITH_MINIMUM, bound, coded, decoded, plain, quantised, run
from attention_oracle import drawn, nmse, oracle
from one_step import LEVELS

from jackfield.errors import BadIndex

pytestmark = [pytest.mark.parametrize("dtype", CODED), pytest.mark.parametrize("level", LEVELS)]
INF, NAN = np.inf, np.nan
PART = 3  # see thorough.py
EXACT = 1e-8  # the kernels decode: what is left is the rounding of f32
# What coding may cost: the square of a step's rounding over the spread of normal numbers, and some for the softmax.
COST = {"q8_0": 5e-4, "q5_0": 8e-3, "q5_1": 8e-3, "iq4_nl": 3e-2, "q4_0": 3e-2, "q4_1": 3e-2}


@pytest.mark.parametrize("T", [1, 13])
@pytest.mark.parametrize("other", [np.float16, np.float32])
@pytest.mark.parametrize("names", ["k", "v"])
def test_one_of_both_is_quantised(dtype, level, names, other, T):
    arrays = drawn(np.random.default_rng(T), 1, 6, 2, T, 150, 64, 32, other)
    blocks, plain = quantised(arrays, dtype, names)
    assert nmse(run(blocks, level, scale=0.2, causal=True), oracle(**plain, scale=0.2, causal=True)) <= 1e-5


@pytest.mark.parametrize("T", [1, 3, 20])
@pytest.mark.parametrize("other", CODED)
def test_keys_and_values_of_two_dtypes(dtype, level, other, T):
    arrays = drawn(np.random.default_rng(T), 1, 6, 2, T, 150, 64, 96, np.float32)
    blocks = arrays | {"k": coded(arrays["k"], dtype), "v": coded(arrays["v"], other)}
    got = run(blocks, level, 2, scale=0.2, causal=True)
    assert nmse(got, oracle(**plain(blocks), scale=0.2, causal=True)) <= EXACT


@pytest.mark.parametrize("T", [1, 20])
def test_every_quant_of_a_block(dtype, level, T):
    """Blocks of any bits: what encoders leave out is read too, and quants of the largest scales."""
    rng = np.random.default_rng(T)
    arrays = drawn(rng, 1, 6, 2, T, 200, 64, 128, np.float32)
    blocks = arrays | {name: coded(arrays[name], dtype) for name in "kv"}
    for name in "kv":
        cache = blocks[name]
        cache[dtype][:] = rng.integers(0, 256, cache[dtype].shape)
        for part in cache.dtype.names[:-1]:
            cache[part][:] = rng.standard_normal(cache.shape) * (0.02 if name == "k" else 300)
    got = run(blocks, level, 2, scale=0.01, causal=True)
    assert nmse(got, oracle(**plain(blocks), scale=0.01, causal=True)) <= EXACT


@pytest.mark.parametrize("size", [32, 64, 96, 128, 192, 256])
@pytest.mark.parametrize(("H", "heads"), [(1, 1), (2, 1), (3, 1), (4, 1), (9, 3), (7, 1)])
def test_sizes_and_groupings_of_heads(dtype, level, H, heads, size):
    for T in (1, 3, 20):
        blocks, plain = quantised(drawn(np.random.default_rng(size), 1, H, heads, T, 75, size, size, np.float32), dtype)
        got = run(blocks, level, scale=size**-0.5, causal=True)
        assert nmse(got, oracle(**plain, scale=size**-0.5, causal=True)) <= EXACT


def test_it_is_within_what_quantised_operands_may_cost(dtype, level):
    """Against the values before they were coded: the class of the op for blocks."""
    for T in (1, 20):
        arrays = drawn(np.random.default_rng(T), 1, 6, 2, T, 500, 64, 64, np.float32)
        got = run(quantised(arrays, dtype)[0], level, scale=0.125, causal=True)
        assert COST[dtype] / 100 < nmse(got, oracle(**arrays, scale=0.125, causal=True)) <= COST[dtype]


@pytest.mark.parametrize("T", [1, 2, 5, 40])
def test_bits_do_not_depend_on_the_number_of_workers(dtype, level, T):
    arrays = drawn(np.random.default_rng(T), 2, 6, 2, T, 1030, 64, 64, np.float32)
    blocks, _ = quantised(arrays | {"kv_len": np.array([1030, 517], np.int32)}, dtype)
    alone = run(blocks, level, scale=0.125, causal=True)
    for threads in (2, 3, 5):
        np.testing.assert_array_equal(run(blocks, level, threads, scale=0.125, causal=True), alone)


@pytest.mark.parametrize("T", [1, 2, 7, 33])
@pytest.mark.parametrize("value", [NAN, INF])
def test_what_is_not_seen_is_never_read(dtype, level, T, value):
    """Blocks whose scale or minimum is NaN or inf, as a cache may hold that was written from outside."""
    arrays = drawn(np.random.default_rng(T), 1, 6, 2, T, 140, 32, 64, np.float32)
    length, window = 137, 50
    attrs = {"scale": 0.3, "causal": True, "window": window}
    blocks, plain = quantised(arrays | {"kv_len": np.array([length], np.int32)}, dtype)
    clean = oracle(**plain, **attrs)
    for name, part in itertools.product("kv", ("scale", "minimum") if dtype in WITH_MINIMUM else ("scale",)):
        poisoned = blocks[name].copy()
        poisoned[part][:, :, length:] = value
        poisoned[part][:, :, : max(0, length - T - window + 1)] = value
        assert nmse(run(blocks | {name: poisoned}, level, **attrs), clean) <= EXACT
        if T > 1:
            poisoned[part][:, :, length - 1] = value  # only the last query sees it
            got = run(blocks | {name: poisoned}, level, **attrs)
            assert nmse(got[:, :-1], clean[:, :-1]) <= EXACT
            assert not np.isfinite(got[:, -1]).all()


@pytest.mark.parametrize("T", [1, 12])
def test_a_mask_hides_rows_for_one_head_alone(dtype, level, T):
    arrays = drawn(np.random.default_rng(T), 1, 4, 1, T, 70, 32, 32, np.float32)
    mask = np.zeros((1, 4, T, 70), np.float16)
    mask[:, 1:, :, 5] = -INF
    mask[0, 2] = -INF
    blocks, plain = quantised(arrays | {"mask": mask}, dtype)
    for name in "kv":
        blocks[name]["scale"][:, :, 5] = NAN
        plain[name] = decoded(blocks[name])
    got = run(blocks, level, scale=0.25)
    assert np.isnan(got[:, :, 0]).all()
    assert not got[:, :, 2].any()
    assert nmse(got[:, :, [1, 3]], oracle(**plain, scale=0.25)[:, :, [1, 3]]) <= EXACT


def test_rows_of_a_shared_cache(dtype, level):
    rng = np.random.default_rng(1)
    arrays = drawn(rng, 1, 4, 2, 3, 50, 32, 32, np.float32)
    arrays["q"] = rng.standard_normal((2, 4, 3, 32)).astype(np.float32)
    rows = rng.integers(-1, 50, (2, 90)).astype(np.int32)
    blocks, plain = quantised(arrays | {"kv_rows": rows, "kv_len": np.array([90, 33], np.int32)}, dtype)
    assert nmse(run(blocks, level, 2, scale=0.2, causal=True), oracle(**plain, scale=0.2, causal=True)) <= EXACT
    rows[0, 4] = 50
    step = bound(blocks, level, scale=0.2)
    assert isinstance(step.run(), BadIndex)
    listed = plain | {"kv_rows": np.where(rows == 50, -1, rows)}
    assert nmse(step.result(), oracle(**listed, scale=0.2)) <= EXACT


@pytest.mark.parametrize("T", [1, 20])
def test_one_program_serves_every_length(dtype, level, T):
    arrays = drawn(np.random.default_rng(T), 2, 4, 2, T, 300, 32, 64, np.float32)
    blocks, plain = quantised(arrays | {"kv_len": np.zeros(2, np.int32)}, dtype)
    step = bound(blocks, level, 2, scale=0.2, causal=True)
    for length in (0, 1, T - 1, T, T + 1, 128, 129, 299, 300, 2):
        kv_len = np.array([length, 300 - length], np.int32)
        step.write("kv_len", kv_len)
        assert step.run() is None
        assert nmse(step.result(), oracle(**(plain | {"kv_len": kv_len}), scale=0.2, causal=True)) <= EXACT


@pytest.mark.parametrize("T", [1, 9])
def test_results_with_gaps(dtype, level, T):
    blocks, _ = quantised(drawn(np.random.default_rng(T), 1, 4, 2, T, 40, 32, 32, np.float32), dtype)
    dense = run(blocks, level, scale=0.25)
    strides = (4096 * T, 4096, 1024, 12)
    np.testing.assert_array_equal(run(blocks, level, scale=0.25, strides=strides), dense)
