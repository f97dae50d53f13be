"""The nearest rows of a codebook: those of a plain search, and of nobody's order of sums but the documented one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jackfield.dtypes import DTYPES, grid_fits
from jackfield.dtypes.codebooks import codebook, codebooks
from jackfield.dtypes.grid_fits import Rows

NAMES = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")
each_book = pytest.mark.parametrize("book", codebooks())


def drawn(rng, width, m, *, few):
    """wx and w (m, width); with `few` values, so that many rows are equally near."""
    u = rng.integers(0, 3, (m, width)) / 2 if few else rng.uniform(0, 1, (m, width))
    w = np.square(u) + 0.25
    return (w * u).astype(np.float32), w.astype(np.float32)


def in_order(a, b, g):
    """(b g + a) g, neighbours added first, each step in f32."""
    costs = [(b[:, j, None] * g[:, j] + a[:, j, None]) * g[:, j] for j in range(g.shape[1])]
    while len(costs) > 1:
        costs = [x + y for x, y in zip(costs[0::2], costs[1::2], strict=True)]
    return costs[0]


@each_book
@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("scale", [0.0, 1e-20, 0.02, 0.7, 1e15])
def test_the_least_distance_is_that_of_a_plain_search(book, few, scale):
    g, scale = codebook(book), np.float32(scale)
    wx, w = drawn(np.random.default_rng(1), g.shape[1], 300, few=few)
    index, least = grid_fits._nearest(wx, w, scale, Rows(g))
    distances = in_order(np.float32(-2) * scale * wx, scale * scale * w, g)
    np.testing.assert_array_equal(least[:, 0], distances.min(axis=1))
    np.testing.assert_array_equal(np.take_along_axis(distances, index, axis=1), least)


@each_book
def test_of_equals_the_first(book):
    g = codebook(book)
    wx, w = drawn(np.random.default_rng(2), g.shape[1], 40, few=False)
    index, _ = grid_fits._nearest(wx, w, np.float32(0), Rows(g))
    assert not index.any()


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=8)
@given(seed=st.integers(0, 2**32), few=st.booleans())
def test_the_order_of_sums_of_a_product_does_not_matter(name, seed, few):
    rng = np.random.default_rng(seed)
    x = (rng.integers(-2, 3, (3, 256)) if few else rng.standard_normal((3, 256))).astype(np.float32)
    want = DTYPES[name].encode(x)
    calls, products = [], grid_fits._products

    def rounded_otherwise(left, right):
        """As of a BLAS that adds in another order."""
        calls.append(len(left))
        for start, out in products(left[:, ::-1], right[::-1]):
            yield start, out * (1 + rng.choice([-2, 0, 2], out.shape) * np.float32(2.0**-23))

    def doubted(a, b, rows):
        """No guess at all."""
        return np.zeros(len(a), np.intp), np.arange(len(a))

    for part, other in (("_products", rounded_otherwise), ("_guessed", doubted)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(grid_fits, part, other)
            np.testing.assert_array_equal(DTYPES[name].encode(x), want)
    assert calls


def test_a_guess_is_doubted_where_another_row_is_as_near():
    rows = Rows(codebook("iq3_s"))
    u = np.array([[4, 4, 4, 4], [1.01, 1.02, 1.01, 1.02]], np.float32)  # between 3 and 5; near 1
    _, found = grid_fits._guessed(-2 * u, np.ones_like(u), rows)
    assert found.tolist() == [0]
