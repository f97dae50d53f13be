"""Kernels that mostly move bytes, at every level: turned copies, rows by number, norms and rope of many rows.

Copies take other ways by extents, strides, element sizes and the size of the result; each is met here, with guard bytes
around all operands and between the elements of results with gaps.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from bound_step import BoundStep, run
from hypothesis import given, settings
from hypothesis import strategies as st
from one_step import LEVELS

from jackfield import ops

pytestmark = pytest.mark.parametrize("level", LEVELS)
SIZES = (1, 2, 4, 8)
EXTENTS = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 130])


def numbered(shape, size):
    """Each element another number, as far as its size allows."""
    count = int(np.prod(shape))
    return (np.arange(count, dtype=np.uint64) * 2654435761 >> 3).astype(f"i{size}").reshape(shape)


def short(extents):
    """At most 60,000 elements: the largest extents are halved."""
    extents = list(extents)
    while np.prod(extents) > 60_000:
        at = int(np.argmax(extents))
        extents[at] = extents[at] // 2 + 1
    return tuple(extents)


@settings(max_examples=150)
@given(st.data())
def test_copies_through_any_view(level, data):
    shape = short(data.draw(st.lists(EXTENTS, min_size=1, max_size=4)))
    order = data.draw(st.permutations(range(len(shape))))
    steps = data.draw(st.tuples(*[st.sampled_from([1, 1, 1, 2, 3])] * len(shape)))
    stretched = data.draw(st.tuples(*[st.sampled_from([False] * 5 + [True])] * len(shape)))
    size, threads = data.draw(st.sampled_from(SIZES)), data.draw(st.integers(1, 3))
    base = numbered([1 if wide else n * step + 1 for n, step, wide in zip(shape, steps, stretched, strict=True)], size)
    cut = tuple(
        slice(None) if wide else slice(1, 1 + n * step, step)
        for n, step, wide in zip(shape, steps, stretched, strict=True)
    )
    view = np.broadcast_to(base[cut], shape).transpose(order)
    gaps, strides = data.draw(st.integers(0, 2)), ()
    if gaps:
        laid = data.draw(st.permutations(range(view.ndim)))  # the result's axes from outermost to innermost
        made, at = [0] * view.ndim, size * gaps
        for axis in reversed(laid):
            made[axis] = at
            at *= view.shape[axis] + gaps - 1
        strides = tuple(made)
    np.testing.assert_array_equal(run(ops.contiguous, {"x": view}, level, threads, strides=strides), view)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("rows", "columns"), [(1 << 11, 1 << 10), (2047, 1030)])
def test_large_copies_turned(level, size, rows, columns):
    """From 8 MiB on with lines that are whole, stores go past the caches."""
    x = numbered((rows, 4 // min(size, 4), columns), size)
    view = x.transpose(2, 1, 0)
    np.testing.assert_array_equal(run(ops.contiguous, {"x": view}, level, 2), view)


@settings(max_examples=40)
@given(st.data())
def test_parts_are_put_side_by_side_through_views(level, data):
    shape = short(data.draw(st.lists(EXTENTS, min_size=2, max_size=4)))
    axis, size = data.draw(st.integers(-len(shape), len(shape) - 1)), data.draw(st.sampled_from(SIZES))
    order = data.draw(st.permutations(range(len(shape))))
    parts = []
    for extra in (0, 3):
        extents = list(shape)
        extents[axis] += extra
        parts.append(numbered([extents[a] for a in order], size).transpose(np.argsort(order)))
    got = run(ops.concatenate, {"a": parts[0], "b": parts[1]}, level, axis=axis)
    np.testing.assert_array_equal(got, np.concatenate(parts, axis=axis))


@settings(max_examples=60)
@given(st.data())
def test_elementwise_ops_of_turned_operands_are_those_of_dense_ones(level, data):
    """Blocks of one operand or both, of results with gaps, across the ends of a block; the bits of the dense way."""
    shape = short(data.draw(st.lists(EXTENTS, min_size=2, max_size=4)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    wide = tuple(1 if data.draw(st.sampled_from([True, False, False])) else n for n in shape)
    a, b = turned_array(data, rng, shape), turned_array(data, rng, wide)
    strides, threads = (), data.draw(st.integers(1, 3))
    if data.draw(st.booleans()):  # a result that lies together along another axis, with a gap after each line
        made, at = [0] * len(shape), a.dtype.itemsize
        for axis in data.draw(st.permutations(range(len(shape)))):
            made[axis] = at
            at *= shape[axis] + 1
        strides = tuple(made)
    dense = {"a": np.ascontiguousarray(a), "b": np.ascontiguousarray(np.broadcast_to(b, shape))}
    got = run(ops.subtract, {"a": a, "b": b}, level, threads, strides=strides)
    np.testing.assert_array_equal(got, run(ops.subtract, dense, level))
    got = run(ops.square, {"x": a}, level, threads, strides=strides)
    np.testing.assert_array_equal(got, run(ops.square, {"x": dense["a"]}, level))


def turned_array(data, rng, shape):
    """f32 or f16, its axes in any order."""
    order = data.draw(st.permutations(range(len(shape))))
    dtype = data.draw(st.sampled_from([np.float32, np.float16]))
    return rng.standard_normal([shape[axis] for axis in order]).astype(dtype).transpose(np.argsort(order))


@pytest.mark.parametrize("last", [1, 3, 4, 16, 65])
def test_tiles_of_short_and_long_rows(level, last):
    x = numbered((2, 3, last), 4)
    for repeats in ((1, 1, 5), (3, 1, 1), (2, 4, 3), (1, 7, 1)):
        np.testing.assert_array_equal(run(ops.tile, {"x": x}, level, repeats=repeats), np.tile(x, repeats))


@pytest.mark.parametrize("size", SIZES)
def test_tiles_of_many_short_rows(level, size):
    """Rows of up to 16 bytes, of 32 and 64, come many at a time; the last ones may not reach beyond their place."""
    for last, rows, times in itertools.product((1, 2, 3, 4, 5, 7, 8, 16), (16, 37), (1, 2, 3)):
        x = numbered((2, rows, last), size)
        for repeats in ((1, 1, times), (2, 3, times)):
            np.testing.assert_array_equal(run(ops.tile, {"x": x}, level, 3, repeats=repeats), np.tile(x, repeats))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("rows", "columns"), [(1 << 12, 1 << 10), (4095, 1026)])
def test_large_turned_operands(level, dtype, rows, columns):
    """From 8 MiB on, results with whole lines go past the caches: one operand turned, both, or the result."""
    rng = np.random.default_rng(rows)
    a, b = rng.standard_normal((2, rows, columns), np.float32).astype(dtype)
    dense = run(ops.subtract, {"a": a, "b": b}, level)
    flat, turned = np.ascontiguousarray(b.T), a.T
    np.testing.assert_array_equal(run(ops.subtract, {"a": turned, "b": flat}, level, 2), dense.T)
    np.testing.assert_array_equal(run(ops.subtract, {"a": turned, "b": b.T}, level, 2), dense.T)
    strides = (a.itemsize, a.itemsize * columns)
    got = run(ops.subtract, {"a": np.ascontiguousarray(a.T), "b": flat}, level, 2, strides=strides)
    np.testing.assert_array_equal(got, dense.T)
    np.testing.assert_array_equal(run(ops.square, {"x": turned}, level, 2), run(ops.square, {"x": a}, level).T)


@settings(max_examples=40)
@given(st.data())
def test_rows_are_taken_and_put_back(level, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    batches, rows, columns = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 40)), data.draw(EXTENTS)
    dtype = data.draw(st.sampled_from([np.float32, np.float16]))
    table = rng.standard_normal((batches, rows, columns)).astype(dtype)
    wanted = rng.integers(0, rows, (batches, data.draw(st.integers(1, 30)))).astype(rng.choice(["i4", "i8"]))
    threads = data.draw(st.integers(1, 3))
    taken = run(ops.take_rows, {"x": table, "rows": wanted}, level, threads)
    np.testing.assert_array_equal(taken, np.take_along_axis(table, wanted[..., None], 1).astype(np.float32))
    order = np.stack([rng.permutation(rows) for _ in range(batches)]).astype(np.int32)
    step = BoundStep(ops.put_rows, {"target": np.zeros_like(table), "x": table, "rows": order}, level, threads)
    assert step.run() is None
    want = np.zeros_like(table)
    np.put_along_axis(want, order[..., None].astype(np.int64), table, 1)
    np.testing.assert_array_equal(step.target().view(dtype).reshape(table.shape), want)


@pytest.mark.parametrize("columns", [1, 15, 64, 511, 513, 1100])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_sums_over_other_axes(level, columns, dtype):
    x = np.random.default_rng(columns).standard_normal((3, 5, 7, columns)).astype(dtype)
    for axis, op in itertools.product((0, 1, 2), (ops.sum, ops.mean)):
        want = getattr(x.astype(np.float64), op.name)(axis)
        got = run(op, {"x": x}, level, 2, axis=axis)
        np.testing.assert_allclose(got, want, rtol=2e-3 if dtype == np.float16 else 1e-6, atol=1e-6)


@pytest.mark.parametrize("n", [1, 5, 64, 100, 1031])
@pytest.mark.parametrize("mean", [0.0, 3e3, 1e30, -3e38])
def test_norm_keeps_its_digits_whatever_the_mean(level, n, mean):
    """Where sums of f32 would overflow, too."""
    x = (mean + np.random.default_rng(n).standard_normal((4, n)) * max(1.0, abs(mean) / 30)).astype(np.float32)
    x = np.clip(x, -3.3e38, 3.3e38)
    wide = x.astype(np.float64)
    want = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(run(ops.norm, {"x": x}, level), want, rtol=0, atol=2e-5 * max(1, np.abs(want).max()))


@pytest.mark.parametrize("mode", ["normal", "neox"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_rope_of_many_tokens_is_that_of_each(level, mode, dtype):
    """The angles of a token do not depend on which tokens stand beside it, nor on who works."""
    x = np.random.default_rng(3).standard_normal((2, 200, 3, 80)).astype(dtype)
    positions = np.arange(100, 300, dtype=np.int32)
    whole = run(ops.rope, {"x": x, "positions": positions}, level, 3, mode=mode, n_dims=72, offset=4)
    for t in (0, 1, 99, 199):
        one = {"x": x[:, t : t + 1].copy(), "positions": positions[t : t + 1].copy()}
        np.testing.assert_array_equal(run(ops.rope, one, level, mode=mode, n_dims=72, offset=4), whole[:, t : t + 1])
    pairs = np.arange(36)
    a, b = (4 + 2 * pairs, 5 + 2 * pairs) if mode == "normal" else (4 + pairs, 40 + pairs)
    turn = np.exp(1j * positions[:, None] * 1e4 ** (-pairs / 36))[None, :, None]
    z = (x[..., a].astype(np.float64) + 1j * x[..., b]) * turn
    limit = 3e-3 if dtype == np.float16 else 1e-4
    np.testing.assert_allclose(whole[..., a], z.real, rtol=0, atol=limit)
    np.testing.assert_allclose(whole[..., b], z.imag, rtol=0, atol=limit)


@pytest.mark.parametrize("mode", ["normal", "mrope", "imrope", "vision"])
def test_rope_of_scattered_positions_is_that_of_each(level, mode):
    """Many tokens share tables, whose anchors change with each: the bits are those of a token alone."""
    rng = np.random.default_rng(11)
    x = rng.standard_normal((1, 150, 2, 48)).astype(np.float32)
    lists = 1 if mode == "normal" else 4
    positions = rng.integers(-40, 5000, (lists, 150)).astype(np.int32)
    positions[:, 60:90] = np.arange(30) + np.array([0, 3, 16, 5])[:lists, None]
    attrs = {"mode": mode, "n_dims": 24 if mode == "vision" else 40}
    if mode != "normal":
        attrs["sections"] = (8, 6, 4, 2)
    at = positions[0] if mode == "normal" else positions
    whole = run(ops.rope, {"x": x, "positions": at}, level, 2, **attrs)
    for t in range(150):
        one = {"x": x[:, t : t + 1].copy(), "positions": np.ascontiguousarray(at[..., t : t + 1])}
        np.testing.assert_array_equal(run(ops.rope, one, level, **attrs), whole[:, t : t + 1])
    np.testing.assert_allclose(whole, ops.rope.run(x, at, **attrs), rtol=0, atol=3e-5)


@pytest.mark.parametrize(
    ("mode", "sections"), [("mrope", (8, 12, 20, 0)), ("imrope", (14, 13, 13, 0)), ("mrope", (0, 9, 20, 11))]
)
def test_rope_of_pictures_is_that_of_each(level, mode, sections):
    """From token to token few lists move, or none: what stays is not made again."""
    rows, columns = np.divmod(np.arange(120, dtype=np.int32), 37)
    picture = np.stack([np.full(120, 9, np.int32), rows, columns, rows + columns])
    text = np.repeat(np.arange(40, 60, dtype=np.int32), 2)
    positions = np.concatenate([picture, np.stack([text] * 4), picture], axis=1)
    x = np.random.default_rng(5).standard_normal((1, positions.shape[1], 2, 80)).astype(np.float32)
    attrs = {"mode": mode, "n_dims": 80, "sections": sections}
    whole = run(ops.rope, {"x": x, "positions": positions}, level, 2, **attrs)
    for t in range(positions.shape[1]):
        one = {"x": x[:, t : t + 1].copy(), "positions": positions[:, t : t + 1].copy()}
        np.testing.assert_array_equal(run(ops.rope, one, level, **attrs), whole[:, t : t + 1])
    np.testing.assert_allclose(whole, ops.rope.run(x, positions, **attrs), rtol=0, atol=3e-5)
