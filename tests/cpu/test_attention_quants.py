"""Attention over a cache of q8_0 at every level, by rows and by tiles, against softmax by hand over decoded values."""

from __future__ import annotations

import numpy as np
import pytest
from attention_caches import bound, decoded, quantised, run
from attention_oracle import drawn, nmse, oracle
from one_step import LEVELS

from jackfield.errors import BadIndex

pytestmark = pytest.mark.parametrize("level", LEVELS)
INF, NAN = np.inf, np.nan
EXACT = 1e-8  # the kernels decode: what is left is the rounding of f32


@pytest.mark.parametrize("T", [1, 13])
@pytest.mark.parametrize("other", [np.float16, np.float32])
@pytest.mark.parametrize("names", ["k", "v"])
def test_one_of_both_is_quantised(level, names, other, T):
    arrays = drawn(np.random.default_rng(T), 1, 6, 2, T, 150, 64, 32, other)
    blocks, plain = quantised(arrays, names)
    assert nmse(run(blocks, level, scale=0.2, causal=True), oracle(**plain, scale=0.2, causal=True)) <= 1e-5


@pytest.mark.parametrize("size", [32, 64, 96, 128, 192, 256])
@pytest.mark.parametrize(("H", "heads"), [(1, 1), (2, 1), (3, 1), (4, 1), (9, 3), (7, 1)])
def test_sizes_and_groupings_of_heads(level, H, heads, size):
    for T in (1, 3, 20):
        blocks, plain = quantised(drawn(np.random.default_rng(size), 1, H, heads, T, 75, size, size, np.float32))
        got = run(blocks, level, scale=size**-0.5, causal=True)
        assert nmse(got, oracle(**plain, scale=size**-0.5, causal=True)) <= EXACT


def test_it_is_within_what_quantised_operands_may_cost(level):
    """Against the values before they were coded: the class of the op for blocks."""
    for T in (1, 20):
        arrays = drawn(np.random.default_rng(T), 1, 6, 2, T, 500, 64, 64, np.float32)
        got = run(quantised(arrays)[0], level, scale=0.125, causal=True)
        assert 1e-6 < nmse(got, oracle(**arrays, scale=0.125, causal=True)) <= 5e-4


@pytest.mark.parametrize("T", [1, 2, 5, 40])
def test_bits_do_not_depend_on_the_number_of_workers(level, T):
    arrays = drawn(np.random.default_rng(T), 2, 6, 2, T, 1030, 64, 64, np.float32)
    blocks, _ = quantised(arrays | {"kv_len": np.array([1030, 517], np.int32)})
    alone = run(blocks, level, scale=0.125, causal=True)
    for threads in (2, 3, 5):
        np.testing.assert_array_equal(run(blocks, level, threads, scale=0.125, causal=True), alone)


@pytest.mark.parametrize("T", [1, 2, 7, 33])
@pytest.mark.parametrize("scale", [NAN, INF])
def test_what_is_not_seen_is_never_read(level, T, scale):
    """Blocks whose scale is NaN or inf, as a cache may hold that was written from outside."""
    arrays = drawn(np.random.default_rng(T), 1, 6, 2, T, 140, 32, 64, np.float32)
    length, window = 137, 50
    attrs = {"scale": 0.3, "causal": True, "window": window}
    blocks, plain = quantised(arrays | {"kv_len": np.array([length], np.int32)})
    clean = oracle(**plain, **attrs)
    bad = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    for name in "kv":
        poisoned = blocks[name].copy()
        poisoned[:, :, length:, :, :2] = bad
        poisoned[:, :, : max(0, length - T - window + 1), :, :2] = bad
        assert nmse(run(blocks | {name: poisoned}, level, **attrs), clean) <= EXACT
        if T > 1:
            poisoned[:, :, length - 1, :, :2] = bad  # only the last query sees it
            got = run(blocks | {name: poisoned}, level, **attrs)
            assert nmse(got[:, :-1], clean[:, :-1]) <= EXACT
            assert not np.isfinite(got[:, -1]).all()


@pytest.mark.parametrize("T", [1, 12])
def test_a_mask_hides_rows_for_one_head_alone(level, T):
    arrays = drawn(np.random.default_rng(T), 1, 4, 1, T, 70, 32, 32, np.float32)
    mask = np.zeros((1, 4, T, 70), np.float16)
    mask[:, 1:, :, 5] = -INF
    mask[0, 2] = -INF
    blocks, plain = quantised(arrays | {"mask": mask})
    for name in "kv":
        blocks[name][:, :, 5, :, :2] = np.frombuffer(np.float16(NAN).tobytes(), np.uint8)
        plain[name] = decoded(blocks[name])
    got = run(blocks, level, scale=0.25)
    assert np.isnan(got[:, :, 0]).all()
    assert not got[:, :, 2].any()
    assert nmse(got[:, :, [1, 3]], oracle(**plain, scale=0.25)[:, :, [1, 3]]) <= EXACT


def test_rows_of_a_shared_cache(level):
    rng = np.random.default_rng(1)
    arrays = drawn(rng, 1, 4, 2, 3, 50, 32, 32, np.float32)
    arrays["q"] = rng.standard_normal((2, 4, 3, 32)).astype(np.float32)
    rows = rng.integers(-1, 50, (2, 90)).astype(np.int32)
    blocks, plain = quantised(arrays | {"kv_rows": rows, "kv_len": np.array([90, 33], np.int32)})
    assert nmse(run(blocks, level, 2, scale=0.2, causal=True), oracle(**plain, scale=0.2, causal=True)) <= EXACT
    rows[0, 4] = 50
    step = bound(blocks, level, scale=0.2)
    assert isinstance(step.run(), BadIndex)
    listed = plain | {"kv_rows": np.where(rows == 50, -1, rows)}
    assert nmse(step.result(), oracle(**listed, scale=0.2)) <= EXACT


@pytest.mark.parametrize("T", [1, 20])
def test_one_program_serves_every_length(level, T):
    arrays = drawn(np.random.default_rng(T), 2, 4, 2, T, 300, 32, 64, np.float32)
    blocks, plain = quantised(arrays | {"kv_len": np.zeros(2, np.int32)})
    step = bound(blocks, level, 2, scale=0.2, causal=True)
    for length in (0, 1, T - 1, T, T + 1, 128, 129, 299, 300, 2):
        kv_len = np.array([length, 300 - length], np.int32)
        step.write("kv_len", kv_len)
        assert step.run() is None
        assert nmse(step.result(), oracle(**(plain | {"kv_len": kv_len}), scale=0.2, causal=True)) <= EXACT


@pytest.mark.parametrize("T", [1, 9])
def test_results_with_gaps(level, T):
    blocks, _ = quantised(drawn(np.random.default_rng(T), 1, 4, 2, T, 40, 32, 32, np.float32))
    dense = run(blocks, level, scale=0.25)
    strides = (4096 * T, 4096, 1024, 12)
    np.testing.assert_array_equal(run(blocks, level, scale=0.25, strides=strides), dense)
