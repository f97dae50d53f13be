"""strided_view against numpy's as_strided, alone, in chains and as a target; and accumulate, which adds in place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jackfield as jf
from jackfield import ops
from jackfield.dtypes import f16, f32, q8_0
from jackfield.dtypes.arrays import decoded
from jackfield.errors import AttributeValueError, PlanError, ShapeError
from jackfield.graph import ArraySource
from jackfield.graph import input as leaf

as_strided = np.lib.stride_tricks.as_strided


def shown(tensor, **feeds):
    return jf.compile(ops.scale(tensor), device="reference")(**feeds)


@st.composite
def windows(draw, size):
    """(shape, strides, offset) of a window within so many elements."""
    rank = draw(st.integers(0, 4))
    shape = tuple(draw(st.integers(0, 4)) for _ in range(rank))
    strides = tuple(draw(st.integers(0, 7)) for _ in range(rank))
    reach = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    return shape, strides, draw(st.integers(0, max(0, size - reach)))


def inside(shape, strides, offset, size):
    return 0 in shape or offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) < size


def windowed(line, shape, strides, offset):
    if 0 in shape:
        return np.zeros(shape, line.dtype)
    return as_strided(line[offset:], shape, tuple(s * line.itemsize for s in strides))


@given(windows(24))
def test_windows_are_those_of_numpy(window):
    """Item 46: overlaps and steps of 0 are legal, what reaches beyond the tensor is not."""
    shape, strides, offset = window
    line = np.arange(24, dtype=np.float32)
    x = leaf("x", (2, 3, 4))
    make = lambda: ops.strided_view(x, shape=shape, strides=strides, offset=offset)
    if not inside(shape, strides, offset, 24):
        with pytest.raises(ShapeError, match="reaches element"):
            make()
        return
    view, want = make(), windowed(line, shape, strides, offset)
    assert (view.kind, view.shape) == ("view", shape)
    np.testing.assert_array_equal(shown(view, x=line.reshape(2, 3, 4)), want)
    np.testing.assert_array_equal(
        ops.strided_view.run(line.reshape(2, 3, 4), shape=shape, strides=strides, offset=offset), want
    )


@given(st.data())
def test_chains_of_windows(data):
    """A window on a view is one on its elements in row-major order, whatever that view's own strides are."""
    line = np.arange(30, dtype=np.float32)
    x, seen = leaf("x", (5, 6)), line.reshape(5, 6)
    tensor = x
    for _ in range(3):
        kind = data.draw(st.sampled_from(["window", "transpose", "slice"]))
        if kind == "window":
            shape, strides, offset = data.draw(windows(seen.size))
            if not inside(shape, strides, offset, seen.size):
                continue
            tensor = ops.strided_view(tensor, shape=shape, strides=strides, offset=offset)
            seen = windowed(np.ascontiguousarray(seen).reshape(-1), shape, strides, offset)
        elif kind == "transpose":
            tensor, seen = tensor.T, seen.T
        elif seen.ndim:
            tensor, seen = tensor[1::2], seen[1::2]
    np.testing.assert_array_equal(shown(tensor, x=line.reshape(5, 6)), seen)


def test_bounds_by_one():
    x = leaf("x", (3, 4))
    assert ops.strided_view(x, shape=(2, 5), strides=(6, 1), offset=1).offset == 4
    for shape, strides, offset in (((2, 5), (6, 1), 2), ((2, 5), (7, 1), 1), ((2, 6), (6, 1), 1), ((1,), (0,), 12)):
        with pytest.raises(ShapeError, match="reaches element 12 of x, which has 12"):
            ops.strided_view(x, shape=shape, strides=strides, offset=offset)
    for shape, strides in (((2, 2), (2**62, 1)), ((3, 3), (2**62, 2**62)), ((2**40, 2), (2**40, 1))):
        with pytest.raises(ShapeError):
            ops.strided_view(x, shape=shape, strides=strides)
    assert ops.strided_view(x, shape=(1, 3), strides=(2**62, 1)).spec.is_dense


def test_a_state_of_sliding_windows():
    """What a causal convolution reads: every window of 4 of a row, which overlap, without a copy."""
    x = jf.input("x", (2, 9))
    every = ops.strided_view(x, shape=(2, 6, 4), strides=(9, 1, 1))
    assert every.spec.byte_strides == (36, 4, 4)
    y = ops.sum(every)
    data = np.random.default_rng(0).standard_normal((2, 9)).astype(np.float32)
    want = np.lib.stride_tricks.sliding_window_view(data, 4, axis=1).sum(-1, dtype=np.float64)
    for device in ("reference", "sim"):
        plan = jf.compile(y, device=device)
        np.testing.assert_allclose(plan(x=data), want, rtol=1e-6, atol=1e-6)


def test_windows_of_blocks_count_blocks():
    numbers = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    coded = ops.cast.run(numbers, dtype=q8_0)
    blocks = decoded(coded).reshape(6, 32)
    w = jf.constant(ArraySource(q8_0.encode(numbers), q8_0, (3, 64)))
    view = ops.strided_view(w, shape=(5, 64), strides=(1, 1), offset=0)
    want = np.concatenate([blocks[:5], blocks[1:]], 1)
    np.testing.assert_array_equal(jf.compile(ops.cast(view, dtype=f32), device="reference")(), want)
    np.testing.assert_array_equal(decoded(ops.strided_view.run(coded, shape=(5, 64), strides=(1, 1))), want)
    with pytest.raises(ShapeError, match="reaches block 6 of x, which has 6"):
        ops.strided_view(w, shape=(5, 64), strides=(1, 1), offset=1)
    with pytest.raises(ShapeError, match="multiple of 32"):
        ops.strided_view(w, shape=(5, 48), strides=(1, 1))


@pytest.mark.parametrize("device", ["reference", "sim"])
def test_a_window_without_overlaps_is_a_target(device):
    """Item 47: written through where elements are distinct, refused where they are not."""
    session = jf.Session(device)
    state = jf.state("s", (4, 6))
    corner = ops.strided_view(state, shape=(2, 3), strides=(12, 2), offset=1)
    x = np.arange(6, dtype=np.float32).reshape(2, 3) + 1
    got = session.compile(ops.write(corner, jf.input("x", (2, 3)), start=(0, 0)))(x=x)
    np.testing.assert_array_equal(got, x)
    want = np.zeros((4, 6), np.float32)
    want[::2, 1::2] = x
    np.testing.assert_array_equal(session.states["s"].read(), want)
    for strides in ((1, 1), (0, 1), (2, 2), (0, 0)):
        window = ops.strided_view(state, shape=(2, 3), strides=strides)
        for update in (
            ops.write(window, jf.input("x", (2, 3)), start=(0, 0)),
            ops.accumulate(window, jf.input("x", (2, 3)), start=(0, 0)),
        ):
            with pytest.raises(PlanError, match="elements must be distinct"):
                session.compile(update)


def test_a_window_that_needs_a_copy_is_no_target():
    state = jf.state("s", (4, 6))
    window = ops.strided_view(state.T, shape=(2, 3), strides=(3, 1))
    with pytest.raises(PlanError, match="copy of the state"):
        jf.compile(ops.write(window, jf.input("x", (2, 3)), start=(0, 0)), device="reference")


def test_windows_survive_a_file(tmp_path):
    x = jf.input("x", (3, 4))
    jf.save(ops.square(ops.strided_view(x, shape=(5, 3), strides=(2, 1), offset=1)), tmp_path / "w.npz")
    data = np.arange(12, dtype=np.float32)
    got = jf.compile(jf.load_graph(tmp_path / "w.npz"), device="reference")(x=data.reshape(3, 4))
    np.testing.assert_array_equal(got, windowed(data, (5, 3), (2, 1), 1) ** 2)


def test_wrong_windows_say_why():
    x = leaf("x", (3, 4))
    for attrs in (
        {"shape": (2, 2), "strides": (1,)},
        {"shape": (2,), "strides": (-1,)},
        {"shape": (-2,), "strides": (1,)},
        {"shape": (2,), "strides": (1,), "offset": -1},
    ):
        with pytest.raises(AttributeValueError, match="one stride an axis, and none of them negative"):
            ops.strided_view(x, **attrs)


# accumulate


@given(st.integers(0, 2**31))
def test_accumulate_is_numpys(seed):
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(1, 6, int(rng.integers(1, 5))))
    start = tuple(int(rng.integers(0, n + 1)) for n in shape)
    size = tuple(int(rng.integers(0, n - s + 1)) for n, s in zip(shape, start, strict=True))
    target, x = rng.standard_normal(shape).astype(np.float32), rng.standard_normal(size).astype(np.float32)
    want, before = target.copy(), target.copy()
    for at in np.ndindex(size):
        want[tuple(i + s for i, s in zip(at, start, strict=True))] += x[at]
    np.testing.assert_array_equal(ops.accumulate.run(target, x, start=start), want)
    np.testing.assert_array_equal(target, before)


@pytest.mark.parametrize("device", ["reference", "sim"])
def test_a_state_adds_up(device):
    session = jf.Session(device)
    total = jf.state("total", (4, 3))
    plan = session.compile(ops.accumulate(total.T[1:], jf.input("x", (2, 2)), start=(0, 1)))
    x = np.float32([[1, 2], [3, 4]])
    for turn in range(1, 4):
        got = plan(x=x)
        want = np.zeros((3, 4), np.float32)
        want[1:, 1:3] = turn * x
        np.testing.assert_array_equal(got, want[1:])
        np.testing.assert_array_equal(session.states["total"].read(), want.T)


def test_the_old_value_of_a_sum_is_not_read_after_it():
    total, x = jf.state("total", (3,)), jf.input("x", (3,))
    with pytest.raises(PlanError, match="reads the value from before"):
        new = ops.accumulate(total, x, start=(0,))
        jf.compile(ops.accumulate(total, ops.add(new, x), start=(0,)), device="reference")


def test_accumulate_takes_f32_alone():
    with pytest.raises(jf.errors.DTypeError, match="must be one of f32"):
        ops.accumulate(leaf("t", (3,), f16), leaf("x", (3,)), start=(0,))
