"""argmax at every level: along any axis of any view, the first of equals, and the first NaN before all.

numpy's argmax has the same two rules. Guard bytes lie around the operand and between the elements of the result.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from bound_step import run
from hypothesis import given, settings
from hypothesis import strategies as st
from one_step import LEVELS

from jackfield import ops

pytestmark = pytest.mark.parametrize("level", LEVELS)
DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]
EXTENTS = st.sampled_from([1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 64, 65, 130])
LONG = st.sampled_from([1023, 1024, 1025, 1031, 2049, 3000])  # lines and rows in one piece, and in several


def with_ties(rng, shape, dtype):
    """Few different numbers, so that most lines hold their largest more than once; zeros of both signs, inf, NaN."""
    x = rng.integers(-4, 5, shape) / 4
    some = rng.random(shape)
    x = np.where(some < 0.05, -0.0, np.where(some < 0.1, -np.inf, x))
    lines = rng.random((*shape[:-1], 1))
    x = np.where((lines < 0.3) & (some > 0.98), np.nan, np.where((lines > 0.6) & (some > 0.95), np.inf, x))
    return np.where((lines > 0.5) & (lines < 0.6), -np.inf, x).astype(dtype)


def expected(x, axis):
    return x.astype(np.float32).argmax(axis)


def with_gaps(data, shape, itemsize):
    """Byte strides of a result whose axes lie in any order, and which may have gaps."""
    gap = data.draw(st.integers(0, 2))
    laid = data.draw(st.permutations(range(len(shape))))
    made, at = [0] * len(shape), itemsize * (1 + gap)
    for axis in reversed(laid):
        made[axis] = at
        at *= shape[axis] + gap
    return tuple(made)


@settings(max_examples=200)
@given(st.data())
def test_any_axis_of_any_view(level, data):
    shape = data.draw(st.lists(EXTENTS, min_size=1, max_size=4))
    while np.prod(shape) > 30_000:
        at = int(np.argmax(shape))
        shape[at] = shape[at] // 2 + 1
    if np.prod(shape) < 100 and data.draw(st.booleans()):
        shape[data.draw(st.integers(0, len(shape) - 1))] = data.draw(LONG)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    order = data.draw(st.permutations(range(len(shape))))
    steps = data.draw(st.tuples(*[st.sampled_from([1, 1, 1, 2, 3])] * len(shape)))
    stretched = data.draw(st.tuples(*[st.sampled_from([False] * 5 + [True])] * len(shape)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    dtype, threads = data.draw(st.sampled_from(DTYPES)), data.draw(st.integers(1, 3))
    cuts = list(zip(shape, steps, stretched, strict=True))
    base = with_ties(rng, tuple(1 if wide else n * step + 1 for n, step, wide in cuts), dtype)
    cut = tuple(slice(None) if wide else slice(1, 1 + n * step, step) for n, step, wide in cuts)
    x = np.broadcast_to(base[cut], shape).transpose(order)
    want = expected(x, axis)
    strides = with_gaps(data, want.shape, 4)
    np.testing.assert_array_equal(run(ops.argmax, {"x": x}, level, threads, strides=strides, axis=axis), want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(70, 1031), (5, 3000, 9), (3, 70, 5, 130), (66000, 1), (2, 1100, 2, 33)])
def test_shared_among_workers(level, dtype, shape):
    """Large enough that all workers take part."""
    x = with_ties(np.random.default_rng(7), shape, dtype)
    for axis in range(len(shape)):
        for threads in (2, 3, 7):
            np.testing.assert_array_equal(run(ops.argmax, {"x": x}, level, threads, axis=axis), expected(x, axis))
            got = run(ops.argmax, {"x": x.T}, level, threads, axis=len(shape) - 1 - axis)
            np.testing.assert_array_equal(got, expected(x, axis).T)


@pytest.mark.parametrize("n", [1023, 1024, 1025, 5000])
@pytest.mark.parametrize("axis", [0, 1])
def test_across_the_pieces_of_a_line(level, n, axis):
    x = np.random.default_rng(n).standard_normal((4, n)).astype(np.float32)
    x[1, [n - 1, 1000, 7]] = 9  # the first of equals
    x[2] = -np.inf
    x[2, n - 1] = -1
    x[3, [n - 1, n // 2]] = np.nan
    lying = x if axis == 1 else x.T.copy()
    got = run(ops.argmax, {"x": lying}, level, axis=axis)
    assert got.tolist() == [int(x[0].argmax()), 7, n - 1, n // 2]


def test_the_first_of_equals_and_nan_first_of_all(level):
    for n in (1, 15, 16, 17, 100, 49152):
        x = np.zeros((3, n), np.float32)
        x[0, n // 2 :] = 5
        x[1] = -np.inf
        x[2, n // 3 :] = np.nan
        assert run(ops.argmax, {"x": x}, level).tolist() == [n // 2, 0, n // 3]
        assert run(ops.argmax, {"x": x.T.copy()}, level, axis=0).tolist() == [n // 2, 0, n // 3]
