"""Convolution, columns and pooling against loops over every element, golden values, and each other."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jackfield import ops
from jackfield.conformance import examples
from jackfield.errors import AttributeValueError, ShapeError

INF, NAN = np.inf, np.nan


@st.composite
def settings_of(draw, axes):
    """Extents, kernel, stride, padding and dilation with room for one window; and a generator."""
    kernel = [draw(st.integers(1, 3)) for _ in range(axes)]
    stride = [draw(st.integers(1, 3)) for _ in range(axes)]
    padding = [draw(st.integers(0, 2)) for _ in range(axes)]
    dilation = [draw(st.integers(1, 3)) for _ in range(axes)]
    extents = [
        max(1, d * (k - 1) + 1 - 2 * p) + draw(st.integers(0, 4))
        for k, d, p in zip(kernel, dilation, padding, strict=True)
    ]
    how = {"stride": tuple(stride), "padding": tuple(padding), "dilation": tuple(dilation)}
    return extents, kernel, how, np.random.default_rng(draw(st.integers(0, 2**32)))


def at(image, place):
    """The element at this place, 0 outside."""
    inside = all(0 <= p < n for p, n in zip(place, image.shape, strict=True))
    return image[tuple(place)] if inside else 0.0


def convolved(image, kernel, how):
    """One channel, one kernel: loops over windows and taps."""
    counts = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(image.shape, kernel.shape, how["stride"], how["padding"], how["dilation"], strict=True)
    ]
    out = np.zeros(counts)
    for window in product(*map(range, counts)):
        for tap in product(*map(range, kernel.shape)):
            steps = zip(window, tap, how["stride"], how["padding"], how["dilation"], strict=True)
            out[window] += at(image, [o * s - p + i * d for o, i, s, p, d in steps]) * kernel[tap]
    return out


def near(got, want):
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)


def drawn(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("axes", [1, 2])
@given(st.data())
def test_convolution_is_the_sum_over_channels(axes, data):
    extents, kernel, how, rng = data.draw(settings_of(axes))
    N, C, O = rng.integers(1, 4, 3)
    x, w = drawn(rng, N, C, *extents), drawn(rng, O, C, *kernel)
    want = np.array([[sum(convolved(x[n, c], w[o, c], how) for c in range(C)) for o in range(O)] for n in range(N)])
    near({1: ops.conv_1d, 2: ops.conv_2d}[axes].run(x, w, **how), want)
    each = {1: ops.conv_1d_depthwise, 2: ops.conv_2d_depthwise}[axes]
    own = drawn(rng, C, 1, *kernel)
    near(each.run(x, own, **how), np.array([[convolved(x[n, c], own[c, 0], how) for c in range(C)] for n in range(N)]))


@given(settings_of(3))
def test_volumes(drawn_settings):
    extents, kernel, how, rng = drawn_settings
    N, C, O = rng.integers(1, 3, 3)
    x, w = drawn(rng, N * C, *extents), drawn(rng, O * C, *kernel)
    want = [sum(convolved(x[n * C + c], w[o * C + c], how) for c in range(C)) for n in range(N) for o in range(O)]
    near(ops.conv_3d.run(x, w, channels=int(C), **how), np.array(want))
    columns = ops.im2col_3d.run(x, channels=int(C), kernel=tuple(kernel), dtype="f32", **how)
    D, H, W = want[0].shape
    assert columns.shape == (N * D, H, W, C * np.prod(kernel))
    by_columns = columns.reshape(N, D, H, W, -1) @ w.reshape(O, -1).T
    near(np.moveaxis(by_columns, -1, 1).reshape(N * O, D, H, W), np.array(want))


@pytest.mark.parametrize("axes", [1, 2])
@given(st.data())
def test_a_product_of_columns_is_a_convolution(axes, data):
    extents, kernel, how, rng = data.draw(settings_of(axes))
    x, w = drawn(rng, 2, 3, *extents), drawn(rng, 4, 3, *kernel)
    columns = ops.im2col.run(x, kernel=tuple(kernel), dtype="f32", **how)
    conv = {1: ops.conv_1d, 2: ops.conv_2d}[axes].run(x, w, **how)
    near(np.moveaxis(columns @ w.reshape(4, -1).T, -1, 1), conv)


def test_columns_are_ordered_by_channel_row_and_column():
    x = np.arange(2 * 3 * 3, dtype=np.float32).reshape(1, 2, 3, 3)
    columns = ops.im2col.run(x, kernel=2)
    assert columns.dtype == np.float16
    assert columns.shape == (1, 2, 2, 8)
    assert columns[0, 1, 0].tolist() == [3, 4, 6, 7, 12, 13, 15, 16]
    edge = ops.im2col.run(x, kernel=2, padding=1)[0, 0, 0]
    assert edge.tolist() == [0, 0, 0, 0, 0, 0, 0, 9]


def test_golden_col2im_1d():
    x = np.array([[1, 2, 3], [10, 20, 30]], np.float32)
    assert ops.col2im_1d.run(x, stride=2, channels=1).tolist() == [[1, 2, 13, 20, 30]]
    assert ops.col2im_1d.run(x, stride=2, channels=1, padding=1).tolist() == [[2, 13, 20]]


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(0, 2**32))
def test_columns_added_up(T, O, k, stride, seed):
    rng = np.random.default_rng(seed)
    x = drawn(rng, T, O * k)
    want = np.zeros((O, (T - 1) * stride + k))
    for t, o, j in product(range(T), range(O), range(k)):
        want[o, t * stride + j] += x[t, o * k + j]
    near(ops.col2im_1d.run(x, stride=stride, channels=O), want)


@given(
    st.tuples(*[st.integers(1, 3)] * 3),
    st.tuples(*[st.integers(1, 4)] * 2),
    st.tuples(*[st.integers(1, 3)] * 4),
    st.integers(0, 2**32),
)
def test_transposed_convolution_of_every_image(batch, extents, steps, seed):
    """Item 8 of the pitfalls: each image of a batch, not only the first."""
    rng = np.random.default_rng(seed)
    (N, I, O), (H, W), (kh, kw, sh, sw) = batch, extents, steps
    x, w = drawn(rng, N, I, H, W), drawn(rng, I, O, kh, kw)
    want = np.zeros((N, O, (H - 1) * sh + kh, (W - 1) * sw + kw))
    for n, i, o, h, l, a, b in product(*map(range, (N, I, O, H, W, kh, kw))):
        want[n, o, h * sh + a, l * sw + b] += float(x[n, i, h, l]) * float(w[i, o, a, b])
    near(ops.conv_transpose_2d.run(x, w, stride=(sh, sw)), want)
    near(ops.conv_transpose_1d.run(x[:, :, 0], w[:, :, 0], stride=sw), _line(x[:, :, 0], w[:, :, 0], sw))
    for n in range(N):
        near(ops.conv_transpose_2d.run(x[n : n + 1], w, stride=(sh, sw)), want[n : n + 1])


def _line(x, w, stride):
    """By columns: a product, then `col2im_1d`."""
    (_, O, k), columns = w.shape, np.einsum("nil,iok->nlok", x, w)
    lines = [ops.col2im_1d.run(c.reshape(-1, O * k), stride=stride, channels=O) for c in columns]
    return np.stack(lines)


def test_zeros_round_the_image_take_part():
    w = np.array([[[INF, 1.0]]], np.float32)
    y = ops.conv_1d.run(np.ones((1, 1, 2), np.float32), w, padding=1)
    assert np.isnan(y[0, 0, 0])
    assert y[0, 0, 1:].tolist() == [INF, INF]


def test_golden_pooling():
    row = np.array([1, 2, 3], np.float32)
    assert ops.pool_1d.run(row, kind="mean", kernel=3, stride=1, padding=1).tolist() == [1.5, 2, 2.5]
    plane = ops.pool_2d.run(row.reshape(1, 1, 1, 3), kind="mean", kernel=(1, 3), stride=1, padding=(0, 1))
    np.testing.assert_allclose(plane.reshape(-1), [1, 2, 1.666667], atol=1e-6)


@st.composite
def pooling(draw):
    kernel = [draw(st.integers(1, 4)) for _ in range(2)]
    padding = [draw(st.integers(0, k - 1)) for k in kernel]
    stride = [draw(st.integers(1, 3)) for _ in range(2)]
    extents = [max(1, k - 2 * p) + draw(st.integers(0, 5)) for k, p in zip(kernel, padding, strict=True)]
    return extents, kernel, stride, padding, np.random.default_rng(draw(st.integers(0, 2**32)))


@given(pooling())
def test_pooling_is_a_loop_over_cells(drawn_settings):
    (H, W), kernel, stride, padding, rng = drawn_settings
    x = drawn(rng, 2, 2, H, W)
    x[rng.random(x.shape) < 0.05] = NAN
    counts = [(n + 2 * p - k) // s + 1 for n, k, s, p in zip((H, W), kernel, stride, padding, strict=True)]
    largest, mean = np.zeros((2, 2, *counts)), np.zeros((2, 2, *counts))
    for n, c, oh, ow in product(range(2), range(2), *map(range, counts)):
        rows = [oh * stride[0] - padding[0] + i for i in range(kernel[0])]
        columns = [ow * stride[1] - padding[1] + j for j in range(kernel[1])]
        cells = [float(x[n, c, r, q]) for r in rows for q in columns if 0 <= r < H and 0 <= q < W]
        assert cells
        largest[n, c, oh, ow] = NAN if np.isnan(cells).any() else max(cells)
        mean[n, c, oh, ow] = sum(cells) / (kernel[0] * kernel[1])
    how = {"kernel": tuple(kernel), "stride": tuple(stride), "padding": tuple(padding)}
    near(ops.pool_2d.run(x, kind="max", **how), largest)
    near(ops.pool_2d.run(x, kind="mean", **how), mean)
    line = {name: value[1] for name, value in how.items()}
    for row in x[0, 0]:
        cells = [
            [
                float(row[j])
                for j in range(o * stride[1] - padding[1], o * stride[1] - padding[1] + kernel[1])
                if 0 <= j < W
            ]
            for o in range(counts[1])
        ]
        near(ops.pool_1d.run(row, kind="mean", **line), np.array([sum(c) / len(c) for c in cells]))


def test_a_window_without_an_element_is_refused():
    x = np.zeros((1, 4), np.float32)
    with pytest.raises(AttributeValueError, match=r"^\[pool_1d\] padding is 2 and kernel 2: padding must be smaller"):
        ops.pool_1d.run(x, kind="max", kernel=2, stride=1, padding=2)
    with pytest.raises(ShapeError, match=r"^\[pool_1d\] x is \[1, 0\]: there is nothing to pool$"):
        ops.pool_1d.run(x[:, :0], kind="max", kernel=3, stride=1, padding=2)


@pytest.mark.parametrize("name", ["conv_1d", "conv_2d", "conv_3d", "im2col", "im2col_3d"])
def test_settings_may_be_one_number_for_all_axes(name):
    declared = getattr(ops, name)
    first = next(e for e in examples(declared) if e.layout == "dense" and e.dtype.name == "f32")
    axes = 3 if "3d" in name else len(first.specs[0].shape) - 2
    arrays = first.arrays()
    kept = {k: v for k, v in first.attrs.items() if k in ("channels", "kernel", "dtype")}
    one = declared.run(*arrays, **kept, stride=2, padding=1, dilation=1)
    each = declared.run(*arrays, **kept, stride=(2,) * axes, padding=(1,) * axes, dilation=(1,) * axes)
    np.testing.assert_array_equal(one, each)


def test_multiply_adds_are_counted_by_taps():
    def work(op, *shapes, **attrs):
        from jackfield.dtypes import f32
        from jackfield.spec import Spec

        return op.work([Spec(f32, shape) for shape in shapes], attrs).multiply_adds

    assert work(ops.conv_2d, (2, 3, 8, 9), (4, 3, 3, 2)) == 2 * 4 * 6 * 8 * 3 * 3 * 2
    assert work(ops.conv_2d_depthwise, (2, 3, 8, 9), (3, 1, 3, 2)) == 2 * 3 * 6 * 8 * 3 * 2
    assert work(ops.conv_3d, (6, 4, 5, 6), (12, 2, 3, 2), channels=3) == 2 * 4 * 3 * 3 * 5 * 3 * 2 * 3 * 2
    assert work(ops.conv_transpose_1d, (2, 3, 5), (3, 4, 3), stride=2) == 2 * 3 * 5 * 4 * 3
