"""Rotary embedding at every level, near and far, against complex numbers in f64 and golden values."""

from __future__ import annotations

import numpy as np
import pytest
from bound_step import run
from one_step import LEVELS

from jackfield import ops

pytestmark = pytest.mark.parametrize("level", LEVELS)


def turned(x, positions, mode, n, offset=0, base=1e4):
    """Rotary embedding by complex numbers, in f64."""
    y = x.astype(np.float64).copy()
    pairs = np.arange(n // 2)
    angle = positions[:, None] * base ** (-2.0 * pairs / n)
    turn = np.exp(1j * angle)[None, :, None]
    a, b = (
        (offset + 2 * pairs, offset + 2 * pairs + 1) if mode == "normal" else (offset + pairs, offset + pairs + n // 2)
    )
    z = (y[..., a] + 1j * y[..., b]) * turn
    y[..., a], y[..., b] = z.real, z.imag
    return y


@pytest.mark.parametrize("mode", ["normal", "neox"])
@pytest.mark.parametrize(("D", "n", "offset"), [(64, 64, 0), (80, 80, 0), (13, 6, 4), (2, 2, 0), (256, 128, 32)])
def test_rope_near_and_far(level, mode, D, n, offset):
    rng = np.random.default_rng(D)
    x = rng.standard_normal((2, 6, 3, D)).astype(np.float32)
    positions = np.array([0, 1, 7, 4095, 131071, -20], np.int32)
    got = run(ops.rope, {"x": x, "positions": positions}, level, mode=mode, n_dims=n, offset=offset)
    want = turned(x, positions, mode, n, offset)
    limit = (2e-6 + 2e-7 * np.abs(positions))[None, :, None, None] * np.abs(x).max() * np.ones_like(want)
    assert (np.abs(got - want) <= limit).all()
    rest = np.r_[0:offset, offset + n : D]
    np.testing.assert_array_equal(got[..., rest], x[..., rest])


GOLDEN_ROPE = [
    ([1, 2, 3, 4], [3], {"mode": "normal", "n_dims": 4}, [-1.272233, -1.838865, 2.878668, 4.088187]),
    ([1, 2, 3, 4], [3], {"mode": "neox", "n_dims": 4}, [-1.413353, 1.879118, -2.828857, 4.058191]),
    (
        [1, 2, 3, 4],
        [3],
        {"mode": "neox", "n_dims": 4, "scale": 0.25, "ext_factor": 1.0, "original_context": 64},
        [-1.609285, 2.243036, -3.221020, 4.571469],
    ),
    (
        [1] * 8,
        [[1], [2], [3], [4]],
        {"mode": "mrope", "n_dims": 8, "sections": (2, 1, 1, 0)},
        [-0.301169, 0.895171, 0.979801, 0.996996, 1.381773, 1.094838, 1.019799, 1.002995],
    ),
    (
        [1] * 8,
        [[1], [2], [3], [4]],
        {"mode": "imrope", "n_dims": 8, "sections": (2, 1, 1, 0)},
        [-0.301169, 0.781397, 0.969555, 0.999000, 1.381773, 1.178736, 1.029546, 1.001000],
    ),
    (
        [1] * 8,
        [[1], [2], [0], [0]],
        {"mode": "vision", "n_dims": 4, "sections": (2, 2, 0, 0)},
        [-0.301169, 0.989950, -1.325444, 0.979801, 1.381773, 1.009950, 0.493151, 1.019799],
    ),
]


@pytest.mark.parametrize(
    ("x", "positions", "attrs", "want"), GOLDEN_ROPE, ids=lambda v: v.get("mode") if isinstance(v, dict) else ""
)
def test_rope_golden_values(level, x, positions, attrs, want):
    arrays = {"x": np.array(x, np.float32).reshape(1, 1, 1, -1), "positions": np.array(positions, np.int32)}
    np.testing.assert_allclose(run(ops.rope, arrays, level, **attrs).ravel(), want, atol=2e-6)


def test_rope_divides_frequencies_by_their_factors(level):
    x = np.random.default_rng(1).standard_normal((1, 3, 2, 32)).astype(np.float32)
    positions = np.array([5, 6, 700], np.int32)
    got = run(
        ops.rope,
        {"x": x, "positions": positions, "frequency_factors": np.full(16, 4, np.float32)},
        level,
        mode="neox",
        n_dims=32,
    )
    np.testing.assert_allclose(got, turned(x, positions / 4, "neox", 32), atol=1e-3)
