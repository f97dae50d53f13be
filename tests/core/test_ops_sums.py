"""Running sums, counts, group norms, products and biases by expert, each against loops or another formula."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jackfield import ops
from jackfield.conformance import compare, examples, expected
from jackfield.dtypes import DTYPES, f16, i64
from jackfield.dtypes.arrays import decoded
from jackfield.errors import AttributeValueError, DTypeError, ShapeError
from jackfield.graph import input as leaf
from jackfield.op import collect

INF, NAN = np.inf, np.nan
seeds = st.integers(0, 2**31)


def F(*values):
    return np.array(values, np.float32)


# cumsum and count_equal


@given(seeds)
def test_cumsum_by_loops(seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(tuple(rng.integers(0, 6, int(rng.integers(1, 5))))).astype(np.float32)
    axis = int(rng.integers(-x.ndim, x.ndim))
    want = np.zeros(x.shape)
    for at in np.ndindex(x.shape):
        before = [(*at[: axis % x.ndim], i, *at[axis % x.ndim + 1 :]) for i in range(at[axis] + 1)]
        want[at] = math.fsum(float(x[b]) for b in before)
    got = ops.cumsum.run(x, axis=axis)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-7)


def test_edges_of_cumsum():
    assert ops.cumsum.run(F(1, 2, 3)).tolist() == [1, 3, 6]
    np.testing.assert_array_equal(ops.cumsum.run(F(1, INF, 2, -INF, 3)), [1, INF, INF, NAN, NAN])
    np.testing.assert_array_equal(ops.cumsum.run(F(1, NAN, 2)), [1, NAN, NAN])
    assert ops.cumsum.run(np.zeros((3, 0), np.float32)).shape == (3, 0)
    with pytest.raises(AttributeValueError, match="axis is 2"):
        ops.cumsum(leaf("x", (3, 4)), axis=2)
    with pytest.raises(DTypeError):
        ops.cumsum(leaf("x", (3,), f16))


def test_running_sums_in_f32_pass_and_those_in_halves_do_not():
    (example,) = [e for e in examples(ops.cumsum) if e.layout == "dense" and e.specs[0].shape == (2, 5000)]
    (x,), (want, _) = example.arrays(), expected(example)
    assert compare(example, np.cumsum(x, axis=-1, dtype=np.float32), want) == ""
    assert compare(example, np.cumsum(x, axis=-1, dtype=np.float16).astype(np.float32), want)
    shifted = np.roll(want, 1, axis=-1)
    assert compare(example, shifted, want)


@given(seeds)
def test_count_equal_counts(seed):
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(0, 5, int(rng.integers(0, 4))))
    a, b = (rng.integers(0, 3, shape).astype(np.int32) for _ in range(2))
    got = ops.count_equal.run(a, b)
    assert (got.dtype, got.shape) == (np.int64, ())
    assert got == sum(int(a[at] == b[at]) for at in np.ndindex(shape))


def test_count_equal_does_not_go_by_way_of_f32():
    a, b = np.array([2**24 + 1, 2**31 - 1], np.int32), np.array([2**24, 2**31 - 2], np.int32)
    assert ops.count_equal.run(a, b) == 0
    with pytest.raises(ShapeError, match="must have one shape"):
        ops.count_equal.run(a, a[:1])
    with pytest.raises(DTypeError):
        ops.count_equal(leaf("a", (2,), i64), leaf("b", (2,), i64))


# group norm


def grouped_by_hand(x, groups, eps):
    """Channel by channel: which group it is in, and that group's numbers one by one."""
    images = x[None] if x.ndim < 4 else x
    per = math.ceil(images.shape[1] / groups)
    y = np.zeros(images.shape)
    for n, image in enumerate(images):
        for c in range(len(image)):
            g = c // per
            numbers = [float(v) for v in image[g * per : min((g + 1) * per, len(image))].reshape(-1)]
            mean = math.fsum(numbers) / len(numbers)
            variance = math.fsum((v - mean) ** 2 for v in numbers) / len(numbers)
            y[n, c] = (image[c].astype(np.float64) - mean) / math.sqrt(variance + eps)
    return y.reshape(x.shape)


@pytest.mark.parametrize("shape", [(2, 6, 2, 3), (1, 7, 3, 1), (5, 2, 3), (4, 9), (3, 1)])
@pytest.mark.parametrize("groups", [1, 2, 3, 4, 9])
def test_group_norm_by_hand(shape, groups):
    x = (np.random.default_rng(0).standard_normal(shape) * 3 + 2).astype(np.float32)
    want = grouped_by_hand(x, groups, 1e-3)
    np.testing.assert_allclose(ops.group_norm.run(x, groups=groups, eps=1e-3), want, rtol=1e-6, atol=1e-6)
    for half in (np.float16, ml_dtypes.bfloat16):
        got = ops.group_norm.run(x.astype(half), groups=groups, eps=1e-3)
        assert got.dtype == half
        want = grouped_by_hand(x.astype(half), groups, 1e-3).astype(half)
        np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))


def test_edges_of_group_norm():
    assert not ops.group_norm.run(np.full((3, 1), 7, np.float32), groups=3).any()
    assert not ops.group_norm.run(np.zeros((2, 4), np.float32), groups=2).any()
    assert np.isnan(ops.group_norm.run(np.zeros((2, 4), np.float32), groups=2, eps=0)).all()
    spoiled = np.ones((4, 2), np.float32)
    spoiled[3, 0] = NAN
    got = ops.group_norm.run(spoiled, groups=2)
    assert np.isfinite(got[:2]).all() and np.isnan(got[2:]).all()
    assert ops.group_norm.run(np.zeros((2, 0, 3, 3), np.float32), groups=5).shape == (2, 0, 3, 3)


# products


def test_golden_hadamard():
    assert ops.hadamard.run(F(1, 2, 3, 4)).tolist() == [5, -1, -2, 0]


@pytest.mark.parametrize("n", [1, 2, 4, 8, 64, 512])
def test_hadamard_by_the_signs_of_its_matrix(n):
    """H[i, j] = (-1) ** popcount(i & j), and the transform is its own inverse."""
    x = np.random.default_rng(n).standard_normal((3, n)).astype(np.float32)
    H = np.array([[(-1.0) ** (i & j).bit_count() for j in range(n)] for i in range(n)])
    y = ops.hadamard.run(x)
    np.testing.assert_allclose(y, x @ H / math.sqrt(n), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(ops.hadamard.run(y), x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", [0, 3, 6, 12, 257])
def test_hadamard_of_no_power_of_two(n):
    with pytest.raises(ShapeError, match="must be a power of two"):
        ops.hadamard(leaf("x", (2, n)))


@given(seeds)
def test_outer_product_by_loops(seed):
    rng = np.random.default_rng(seed)
    n, m, p = (int(v) for v in rng.integers(0, 5, 3))
    b2, g2, b3, g3 = (int(v) for v in rng.integers(1, 3, 4))
    a = rng.standard_normal((b3, b2, n, m)).astype(rng.choice([np.float32, np.float16]))
    b = rng.standard_normal((b3 * g3, b2 * g2, n, p)).astype(np.float32)
    want = np.zeros((b3 * g3, b2 * g2, p, m))
    for i, j, row in np.ndindex(b3 * g3, b2 * g2, n):
        want[i, j] += np.multiply.outer(b[i, j, row].astype(np.float64), a[i // g3, j // g2, row].astype(np.float64))
    got = ops.outer_product.run(a, b)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["q4_0", "q8_0", "q4_K", "iq4_nl"])
def test_outer_product_decodes(name):
    rng = np.random.default_rng(0)
    a = ops.cast.run(rng.standard_normal((3, 256)).astype(np.float32), dtype=DTYPES[name])
    b = rng.standard_normal((3, 5)).astype(np.float32)
    want = np.einsum("np,nm->pm", b.astype(np.float64), decoded(a).astype(np.float64))
    np.testing.assert_allclose(ops.outer_product.run(a, b), want, rtol=1e-6, atol=1e-6)


def test_a_smaller_batch_of_a_is_grouped():
    with pytest.raises(ShapeError, match="must be a multiple"):
        ops.outer_product(leaf("a", (2, 3, 4)), leaf("b", (3, 3, 5)))
    with pytest.raises(ShapeError, match="second-last extents"):
        ops.outer_product(leaf("a", (3, 4)), leaf("b", (4, 3)))
    assert ops.outer_product(leaf("a", (1, 3, 4)), leaf("b", (3, 5))).shape == (5, 4)


# add_rows


@given(seeds)
def test_add_rows_by_loops(seed):
    rng = np.random.default_rng(seed)
    T, E, X, N = (int(v) for v in rng.integers(1, 5, 4))
    x, table = (rng.standard_normal(s).astype(np.float32) for s in ((T, E, N), (X, N)))
    ids = rng.integers(-1, X, (T, E)).astype(np.int32)
    want = x.copy()
    for t, e in np.ndindex(T, E):
        if ids[t, e] >= 0:
            want[t, e] += table[ids[t, e]]
    found = []
    with collect(found):
        np.testing.assert_array_equal(ops.add_rows.run(x, table, ids), want)
    assert not found


def test_a_bad_row_of_a_table_is_zero_and_told():
    x, table = np.ones((2, 2, 3), np.float32), np.full((2, 3), 5, np.float32)
    for bad in (2, -2, 2**31 - 1, -(2**31)):
        found = []
        with collect(found):
            got = ops.add_rows.run(x, table, np.array([[0, -1], [bad, 1]], np.int32))
        assert got.tolist() == [[[6] * 3, [1] * 3], [[0] * 3, [6] * 3]]
        assert [(f.kind, f.operand, f.value) for f in found] == [("index", "ids", bad)]


def test_nan_in_a_row_that_nobody_takes_stays_there():
    table = np.full((3, 4), NAN, np.float32)
    table[1] = 1
    got = ops.add_rows.run(np.zeros((1, 2, 4), np.float32), table, np.array([[1, -1]], np.int32))
    assert got.tolist() == [[[1] * 4, [0] * 4]]
