"""q4_K, q5_K and q6_K made by cast, write and put_rows: at every level the very bytes of the core's encoders."""

from __future__ import annotations

import numpy as np
import pytest
from bound_step import BoundStep
from encoded import bytes_of, cast, same_bytes, same_special_bytes
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from one_step import LEVELS

from jackfield import ops
from jackfield.dtypes import q4_K, q5_K, q6_K
from jackfield.errors import BadIndex, KernelError

DTYPES = (q4_K, q5_K, q6_K)
BLOCK = 256
each_level = pytest.mark.parametrize("level", LEVELS)
each = pytest.mark.parametrize("dtype", DTYPES, ids=repr)
INF, NAN = np.inf, np.nan


def random_blocks(rng, n=60):
    """Blocks of one size or of many, of one sign, with few values, with heavy tails or an offset."""
    x = rng.standard_normal((n, BLOCK))
    size = 10.0 ** rng.uniform(-36, 6, (n, 1))
    kinds = [x, x * size, np.abs(x) * size, -np.abs(x), x * 10.0 ** rng.uniform(-20, 3, x.shape)]
    kinds += [rng.choice([-1.0, 1.0, -0.0, 0.5], x.shape) * size, rng.integers(-64, 65, x.shape) / 2]
    kinds += [rng.standard_t(2, x.shape), x + 9 * rng.standard_normal((n, 1))]
    kinds += [np.where(rng.random(x.shape) < 0.02, x, 0)]
    return np.stack(kinds)[rng.integers(0, len(kinds), n), np.arange(n)].astype(np.float32)


@each_level
@each
@pytest.mark.parametrize("threads", [1, 3])
def test_special_blocks(dtype, level, threads):
    same_special_bytes(dtype, level, threads)


@each_level
@each
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_random_blocks(dtype, level, seed):
    same_bytes(random_blocks(np.random.default_rng(seed)), dtype, level)


ELEMENTS = st.one_of(
    st.floats(-3, 3, width=32),
    st.floats(width=32),  # NaN and inf among them
    st.integers(-64, 64).map(lambda i: i / 2),
    st.sampled_from([0.0, -0.0, 1e-4, -1e-4, 2e-8, 1e4, -1e4, 1e-30, 1e-40, 31.5, -32.0]),
)


@each_level
@each
@settings(max_examples=25)
@given(x=hnp.arrays(np.float32, (2, BLOCK), elements=ELEMENTS, fill=ELEMENTS))
def test_drawn_blocks(dtype, level, x):
    same_bytes(x, dtype, level)


@each_level
@each
def test_a_scale_or_minimum_just_beyond_f16_is_a_fault(dtype, level):
    # The edges: 65520 times 63 for minima, times 63 * 15, 63 * 31 or 128 * 32 for the largest element.
    minima = np.float32(-65520 * 63) * np.linspace(1 - 1e-3, 1 + 1e-3, 41)[:, None] * np.ones(BLOCK)
    largest = np.random.default_rng(4).uniform(0, 1, BLOCK) * np.geomspace(1e6, 4e8, 100)[:, None]
    for blocks in (minima.astype(np.float32), largest.astype(np.float32)):
        want, bad = bytes_of(blocks, dtype)
        got, fault = cast(blocks, dtype, level)
        np.testing.assert_array_equal(got, want)
        assert (fault is None) == (bad is None)
        fitted = want.any(axis=1).sum()
        assert 0 < fitted < len(blocks) or (dtype is q6_K and fitted == len(minima))


@each_level
@each
@pytest.mark.parametrize("bad", [NAN, INF, -INF, 1e30])
@pytest.mark.parametrize("at", [0, 37, 255])
def test_a_bad_block_is_zero_and_a_fault_and_its_neighbours_are_whole(dtype, level, bad, at):
    x = np.random.default_rng(5).standard_normal((2, 3 * BLOCK)).astype(np.float32)
    good = bytes_of(x, dtype)[0]
    x[1, BLOCK + at] = bad
    got, fault = cast(x, dtype, level)
    assert isinstance(fault, KernelError)
    assert str(fault) == "[cast] x holds inf, NaN or too large a value in block 4: it must be codable"
    assert not dtype.decode(got[4]).any()
    np.testing.assert_array_equal(np.delete(got, 4, axis=0), np.delete(good, 4, axis=0))


def sources():
    """(4, 2, 512) of random blocks, dense and as views: every second element, other orders, one row for two."""
    x = random_blocks(np.random.default_rng(6), 16).reshape(4, 2, 2 * BLOCK)
    spaced = np.full((4, 2, 4 * BLOCK), NAN, np.float32)
    spaced[:, :, ::2] = x
    yield x
    yield spaced[:, :, ::2]
    yield np.ascontiguousarray(x.transpose(2, 0, 1)).transpose(1, 2, 0)
    yield np.ascontiguousarray(x.transpose(1, 0, 2)).transpose(1, 0, 2)
    yield np.broadcast_to(x[:, :1].copy(), x.shape)


@each_level
@each
def test_sources_are_strided(dtype, level):
    for x in sources():
        want, bad = bytes_of(x, dtype)
        assert bad is None
        for threads in (1, 2):
            got, fault = cast(x, dtype, level, threads)
            assert fault is None
            np.testing.assert_array_equal(got, want)


@each_level
@each
@pytest.mark.parametrize("plain", [np.float32, np.float16])
@pytest.mark.parametrize("threads", [1, 4])
def test_rows_are_put_into_a_strided_cache(dtype, level, plain, threads):
    rng = np.random.default_rng(7)
    rows, heads, blocks = 12, 2, 3
    cache = rng.integers(0, 50, (rows, heads, blocks, dtype.block_nbytes), dtype=np.uint8)
    x = rng.standard_normal((6, heads, blocks * BLOCK)).astype(plain).transpose(1, 0, 2)
    x[0, 2, BLOCK + 9] = INF  # head 0, row list[2], its middle block
    into = np.array([11, -1, 0, 3, 3, 12], np.int32)
    step = BoundStep(
        ops.put_rows,
        {"target": cache.transpose(1, 0, 2, 3), "x": x, "rows": into},
        level,
        threads,
        blocks={"target": dtype},
    )
    assert isinstance(step.run(), (BadIndex, KernelError))  # two faults: the one found first is told
    want = cache.copy()
    for i, row in enumerate(into):
        if 0 <= row < rows:
            want[row] = bytes_of(x[:, i], dtype)[0].reshape(heads, blocks, -1)
    assert not want[0, 0, 1].any()
    np.testing.assert_array_equal(step.target().reshape(want.shape), want)


@each_level
@each
def test_write_changes_the_blocks_of_the_region_alone(dtype, level):
    for x in sources():
        base = np.random.default_rng(8).integers(0, 50, (2, 6, 4, dtype.block_nbytes), dtype=np.uint8)
        step = BoundStep(
            ops.write,
            {"target": base.transpose(1, 0, 2, 3), "x": x},
            level,
            2,
            attrs={"start": (1, 0, BLOCK)},
            blocks={"target": dtype},
        )
        assert step.run() is None
        want = base.copy()
        want.transpose(1, 0, 2, 3)[1:5, :, 1:3] = bytes_of(x, dtype)[0].reshape(4, 2, 2, -1)
        np.testing.assert_array_equal(step.target().reshape(base.shape), want)
