"""Activations rounded for integer dot products: exact numbers against a slow float64 and Fraction oracle."""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jackfield.dtypes import q8_0, quantise_q8_0, quantise_q8_1, quantise_q8_K
from jackfield.errors import AttributeValueError, ShapeError

ELEMENTS = st.one_of(st.floats(-100, 100, width=32), st.integers(-254, 254).map(lambda i: i / 2))


def half_away(y):
    whole = math.floor(abs(Fraction(float(y))) + Fraction(1, 2))
    return whole if y >= 0 else -whole


@given(hnp.arrays(np.float32, (2, 96), elements=ELEMENTS))
def test_q8_0_rounds_halves_away_by_the_inverse_scale(x):
    q, d = quantise_q8_0(x)
    assert (q.shape, q.dtype, d.shape, d.dtype) == (x.shape, np.int8, (2, 3), np.float32)
    for (row, b), scale in np.ndenumerate(d):
        part = x[row, 32 * b : 32 * b + 32]
        d_want = np.abs(part).max() / np.float32(127)
        with np.errstate(all="ignore"):
            inverse = np.float32(1) / d_want
        alive = np.isfinite(inverse)
        assert scale == (d_want if alive else 0)
        want = [half_away(v * inverse) for v in part] if alive else [0] * 32
        assert q[row, 32 * b : 32 * b + 32].tolist() == want


@given(hnp.arrays(np.float32, (3, 64), elements=st.floats(-100, 100, width=32)))
def test_q8_0_agrees_with_the_dtype(x):
    q, d = quantise_q8_0(x)
    raw = q8_0.encode(x).reshape(3, 2, 34)
    np.testing.assert_array_equal(raw[..., 2:].view(np.int8).reshape(3, 64), q)
    np.testing.assert_array_equal(np.ascontiguousarray(raw[..., :2]).view(np.float16)[..., 0], d.astype(np.float16))


@given(hnp.arrays(np.float32, (2, 64), elements=ELEMENTS))
def test_q8_1_sums_its_own_quants(x):
    q, d, s = quantise_q8_1(x)
    q0, d0 = quantise_q8_0(x)
    np.testing.assert_array_equal(q, q0)
    np.testing.assert_array_equal(d, d0)
    np.testing.assert_array_equal(s, d * q.astype(np.int64).reshape(2, 2, 32).sum(-1).astype(np.float32))
    assert s.dtype == np.float32


@settings(max_examples=25)
@given(hnp.arrays(np.float32, (2, 512), elements=ELEMENTS))
def test_q8_K(x):
    q, d, sums = quantise_q8_K(x)
    assert (q.shape, d.shape, sums.shape) == ((2, 512), (2, 2), (2, 32))
    assert (q.dtype, d.dtype, sums.dtype) == (np.int8, np.float32, np.int16)
    assert q.min() >= -127
    np.testing.assert_array_equal(sums, q.astype(np.int64).reshape(2, 32, 16).sum(-1))
    for (row, b), scale in np.ndenumerate(d):
        part = x[row, 256 * b : 256 * b + 256]
        v = part[np.abs(part).argmax()]
        with np.errstate(all="ignore"):
            f = np.float32(-127) / v
        if not np.isfinite(f):
            assert scale == 0
            assert not q[row, 256 * b : 256 * b + 256].any()
            continue
        assert scale == np.float32(1) / f
        assert q[row, 256 * b : 256 * b + 256].tolist() == [min(round(float(f * e)), 127) for e in part]


def test_golden_bytes_of_the_activation_types():
    b, e = np.mgrid[0:4, 0:32]
    x = ((((7 * e * e + 13 * b) % 61) - 30) / 8).astype(np.float32)
    q, d, s = quantise_q8_1(x)
    raw = np.concatenate([d.astype("<f2").view(np.uint8), s.astype("<f2").view(np.uint8), q.view(np.uint8)], axis=1)
    assert hashlib.sha256(raw.tobytes()).hexdigest()[:12] == "a4824091f8ae"

    b, e = np.mgrid[0:4, 0:256]
    x = ((((7 * e * e + 13 * b) % 61) - 30) / 8).astype(np.float32)
    q, d, sums = quantise_q8_K(x)
    raw = np.concatenate([d.astype("<f4").view(np.uint8), q.view(np.uint8), sums.astype("<i2").view(np.uint8)], axis=1)
    assert hashlib.sha256(raw.tobytes()).hexdigest()[:12] == "ba3bc9149518"


@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-40, 1e-30, 3e3, 7e4, 1e30])
def test_extreme_blocks(size):
    x = (np.linspace(-1, 1, 256) * size).astype(np.float32)
    for q, d, *_ in (quantise_q8_0(x), quantise_q8_1(x), quantise_q8_K(x)):
        assert np.isfinite(d).all()
        assert q.min() >= -127
        assert d.any() == q.any()
        if size >= 1e-30:
            np.testing.assert_allclose(q.reshape(d.size, -1) * d[:, None], x.reshape(d.size, -1), atol=size / 250)


@pytest.mark.parametrize("quantise", [quantise_q8_0, quantise_q8_1, quantise_q8_K])
def test_wrong_use(quantise):
    with pytest.raises(ShapeError, match="the last axis must be a multiple of"):
        quantise(np.zeros((2, 33), np.float32))
    with pytest.raises(ShapeError):
        quantise(np.float32(1))
    with pytest.raises(AttributeValueError, match="holds inf or NaN"):
        quantise(np.full((2, 256), np.nan, np.float32))
    assert quantise(np.zeros((2, 3, 256), np.float32))[0].shape == (2, 3, 256)
