"""Resampling, padding, rolling, windows, relative positions, step embeddings and triangular systems by other means."""

from __future__ import annotations

import math
from itertools import product

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jackfield import ops

INF, NAN = np.inf, np.nan
seeds = st.integers(0, 2**32)


def drawn(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


# resize


@pytest.mark.parametrize(
    ("n", "how", "want"),
    [
        (8, {"mode": "bilinear"}, [0, 0.25, 0.75, 1.75, 3.25, 5.25, 7.75, 9]),
        (7, {"mode": "bilinear", "align_corners": True}, [0, 0.5, 1, 2.5, 4, 6.5, 9]),
        (
            8,
            {"mode": "bicubic"},
            [-0.105469, 0.121094, 0.457031, 1.609375, 2.828125, 5.449219, 7.972656, 9.527344],
        ),
        (2, {"mode": "bilinear", "antialias": True}, [1, 5.714286]),
        (8, {}, [0, 0, 1, 1, 4, 4, 9, 9]),
        (2, {}, [0, 4]),
        (7, {"align_corners": True}, [0, 0, 1, 1, 4, 4, 9]),
    ],
)
def test_golden_resize(n, how, want):
    line = np.array([0, 1, 4, 9], np.float32)
    across = ops.resize.run(line.reshape(1, 1, 1, 4), shape=(1, 1, 1, n), **how)
    down = ops.resize.run(line.reshape(1, 1, 4, 1), shape=(1, 1, n, 1), **how)
    np.testing.assert_allclose(across.reshape(-1), want, atol=1e-6)
    np.testing.assert_array_equal(across.reshape(-1), down.reshape(-1))


def cubic(u, a=-0.75):
    u = abs(u)
    if u <= 1:
        return (a + 2) * u**3 - (a + 3) * u**2 + 1
    return a * u**3 - 5 * a * u**2 + 8 * a * u - 4 * a if u < 2 else 0.0


def row_of_weights(i, old, new, mode, align, antialias):
    """How much each old element counts in the new one: a dict, by the formulas as they are told."""
    corners = align and old > 1 and new > 1
    f = (new - 1) / (old - 1) if corners else new / old
    counts = dict.fromkeys(range(old), 0.0)
    if mode == "nearest":
        counts[i * (old - 1) // (new - 1) if corners else i * old // new] = 1.0
        return counts
    if antialias:
        s, centre = max(1.0, 1 / f), (i + 0.5) / f
        counts = {j: max(0.0, 1 - abs((j + 0.5 - centre) / s)) for j in range(old)}
        whole = sum(counts.values())
        return {j: w / whole for j, w in counts.items()}
    y = i / f if align else (i + 0.5) / f - 0.5
    first = math.floor(y)
    if mode == "bilinear":
        d = min(1.0, max(0.0, y - min(max(first, 0), old - 1)))
        taps = {first: 1 - d, first + 1: d}
    else:
        taps = {first + j: cubic(y - first - j) for j in range(-1, 3)}
    for j, w in taps.items():
        counts[min(max(j, 0), old - 1)] += w
    return counts


@given(
    st.tuples(*[st.integers(1, 6)] * 4),
    st.sampled_from(["nearest", "bilinear", "bicubic", "antialias"]),
    st.booleans(),
    seeds,
)
def test_resize_by_matrices(sizes, mode, align, seed):
    (H, W, h, w), antialias = sizes, mode == "antialias"
    mode = "bilinear" if antialias else mode
    x = drawn(np.random.default_rng(seed), 2, 3, H, W)

    def matrix(old, new):
        rows = [row_of_weights(i, old, new, mode, align, antialias) for i in range(new)]
        return np.array([[row[j] for j in range(old)] for row in rows])

    want = np.einsum("hi,wj,ncij->nchw", matrix(H, h), matrix(W, w), x.astype(np.float64))
    got = ops.resize.run(x, shape=(2, 3, h, w), mode=mode, align_corners=align, antialias=antialias)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    more = ops.resize.run(x, shape=(5, 2, h, w), mode=mode, align_corners=align, antialias=antialias)
    np.testing.assert_array_equal(more, got[[i * 2 // 5 for i in range(5)]][:, [i * 3 // 2 for i in range(2)]])


def test_the_same_size_is_the_same_image():
    x = drawn(np.random.default_rng(0), 2, 3, 5, 7)
    for mode in ("nearest", "bilinear", "bicubic"):
        for align in (False, True):
            np.testing.assert_array_equal(ops.resize.run(x, shape=x.shape, mode=mode, align_corners=align), x)
    np.testing.assert_array_equal(ops.resize.run(x, shape=x.shape, mode="bilinear", antialias=True), x)


# pad and roll


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.sampled_from(["constant", "wrap", "reflect"]), seeds)
def test_pad_by_where_each_element_comes_from(shape, mode, seed):
    rng = np.random.default_rng(seed)
    x = drawn(rng, *shape)
    room = {"constant": [9] * len(shape), "wrap": shape, "reflect": [0] * (len(shape) - 1) + [shape[-1] - 1]}[mode]
    widths = tuple((int(rng.integers(0, n + 1)), int(rng.integers(0, n + 1))) for n in room)
    got = ops.pad.run(x, widths=widths, mode=mode)
    assert got.shape == tuple(n + a + b for n, (a, b) in zip(shape, widths, strict=True))
    for place in product(*map(range, got.shape)):
        source = [p - before for p, (before, _) in zip(place, widths, strict=True)]
        if mode == "constant":
            inside = all(0 <= s < n for s, n in zip(source, shape, strict=True))
            assert got[place] == (x[tuple(source)] if inside else 0)
        elif mode == "wrap":
            assert got[place] == x[tuple(s % n for s, n in zip(source, shape, strict=True))]
        else:
            n = shape[-1]
            s = abs(source[-1])
            assert got[place] == x[(*source[:-1], s if s < n else 2 * (n - 1) - s)]


@pytest.mark.parametrize("shift", [0, 1, 6, -6, 7, -7, 15, -(2**63), 2**63 - 1])
def test_roll_by_any_distance(shift):
    """Item 14 of the pitfalls: the smallest integer, and a whole turn."""
    x = np.arange(7, dtype=np.int16)
    assert ops.roll.run(x, shift=shift, axis=0).tolist() == [(i - shift) % 7 for i in range(7)]


@given(seeds)
def test_roll_is_numpys(seed):
    rng = np.random.default_rng(seed)
    x = drawn(rng, *rng.integers(1, 5, 3)).astype(ml_dtypes.bfloat16)
    axes = tuple(int(a) for a in rng.permutation(3)[: rng.integers(0, 4)])
    shift = tuple(int(s) for s in rng.integers(-9, 10, len(axes)))
    want = np.roll(x.view(np.uint16), shift, axes) if axes else x.view(np.uint16)
    assert ops.roll.run(x, shift=shift, axis=axes).view(np.uint16).tolist() == want.tolist()


# embedding of a step


def test_golden_timestep_embedding():
    got = ops.timestep_embedding.run(np.array([2], np.float32), dim=5)
    np.testing.assert_allclose(got[0], [-0.416147, 0.999800, 0.909297, 0.019999, 0], atol=1e-6)


@given(st.integers(1, 9), st.floats(1, 1e6), seeds)
def test_timestep_embedding_by_columns(dim, period, seed):
    t = np.random.default_rng(seed).uniform(-50, 50, 3).astype(np.float32)
    got = ops.timestep_embedding.run(t, dim=dim, max_period=period)
    half = dim // 2
    for i, j in product(range(3), range(half)):
        angle = float(t[i]) * math.exp(-math.log(period) * j / half)
        np.testing.assert_allclose(got[i, [j, half + j]], [math.cos(angle), math.sin(angle)], atol=1e-6)
    assert not got[:, 2 * half :].any()


# windows


@given(st.integers(1, 7), st.integers(1, 7), st.integers(1, 4), seeds)
def test_windows_by_loops_and_back(H, W, w, seed):
    x = drawn(np.random.default_rng(seed), H, W, 2)
    parts = ops.window_partition.run(x, window=w)
    columns = math.ceil(W / w)
    assert parts.shape == (math.ceil(H / w) * columns, w, w, 2)
    for p, i, j in product(*map(range, parts.shape[:3])):
        r, c = p // columns * w + i, p % columns * w + j
        assert parts[p, i, j].tolist() == (x[r, c].tolist() if r < H and c < W else [0, 0])
    np.testing.assert_array_equal(ops.window_merge.run(parts, shape=(H, W), window=w), x)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), seeds)
def test_relative_positions_by_loops(n, qh, qw, seed):
    rng = np.random.default_rng(seed)
    table = drawn(rng, 2 * n - 1, 3)
    found = ops.relative_positions.run(table, queries=n, keys=n)
    for q, k in product(range(n), range(n)):
        assert found[q, k].tolist() == table[q - k + n - 1].tolist()
    x, width, height = drawn(rng, 2, qh * qw, n * n), drawn(rng, 2, qh, qw, n), drawn(rng, 2, qh, qw, n)
    got = ops.add_relative_positions.run(x, width, height)
    for b, q, kh, kw in product(range(2), range(qh * qw), range(n), range(n)):
        row, column = divmod(q, qw)
        want = float(x[b, q, kh * n + kw]) + float(height[b, row, column, kh]) + float(width[b, row, column, kw])
        assert got[b, q, kh * n + kw] == pytest.approx(want, rel=1e-6, abs=1e-6)


# triangular systems


@given(st.integers(0, 6), st.integers(0, 3), st.booleans(), st.booleans(), st.booleans(), seeds)
def test_solutions_fulfil_their_equations(n, m, lower, unit, left, seed):
    rng = np.random.default_rng(seed)
    a = drawn(rng, 2, n, n) + 4 * n * np.eye(n, dtype=np.float32)
    b = drawn(rng, 2, n, m) if left else drawn(rng, 2, m, n)
    used = (np.tril if lower else np.triu)(a.astype(np.float64))
    if unit:
        a /= np.float32(8 * n or 1)
        used = (np.tril if lower else np.triu)(a.astype(np.float64), -1 if lower else 1) + np.eye(n)
    a = np.where(used == 0, np.float32(NAN), a)  # the other triangle is not read
    if unit:
        a = np.where(np.eye(n) == 1, np.float32(NAN), a)
    x = ops.solve_triangular.run(a, b, lower=lower, unit_diagonal=unit, left=left).astype(np.float64)
    np.testing.assert_allclose(used @ x if left else x @ used, b, rtol=1e-5, atol=1e-5)


def test_a_zero_on_the_diagonal():
    a, b = np.array([[0, 0], [1, 1]], np.float32), np.array([[1], [2]], np.float32)
    assert ops.solve_triangular.run(a, b).reshape(-1).tolist() == [INF, -INF]
    assert np.isnan(ops.solve_triangular.run(a, 0 * b)).all()
