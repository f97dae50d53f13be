"""Spec arithmetic against numpy: whatever chain of views, the same elements."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jackfield as jf
from jackfield import ops
from jackfield.dtypes import DTYPES, bf16, f16, f32, i8, q4_0, q4_K, q8_0
from jackfield.dtypes.arrays import dtype_of, element
from jackfield.errors import DTypeError, Error, ShapeError
from jackfield.graph import input as leaf
from jackfield.graph import root
from jackfield.spec import MAX_NBYTES, Spec, reshape_view, slice_view


def test_what_is_no_shape():
    for wrong in ((2.7, 3), 4, True, (True, 2), (np.True_, 2), "34", b"34", None, ("a",), 2.5, [None]):
        text = re.escape(f"a shape is a tuple of whole numbers, not {wrong!r}")
        for make in (jf.input, jf.state):
            with pytest.raises(ShapeError, match=text):
                make("x", wrong)
        with pytest.raises(ShapeError, match=text):
            Spec(f32, wrong)
    with pytest.raises(ShapeError, match=re.escape("not 4; for one axis write (4,)")):
        jf.input("x", 4)
    with pytest.raises(ShapeError, match="strides are a tuple of whole numbers"):
        Spec(f32, (2,), (1.5,))


def test_shapes_that_are_taken_become_plain_tuples():
    for shape in ([2, 3], np.array([2, 3]), (np.int64(2), np.uint8(3)), range(2, 4), (n for n in (2, 3))):
        spec = jf.input("x", shape).spec
        assert spec.shape == (2, 3)
        assert [type(n) for n in spec.shape] == [int, int]


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        (np.float32, "here jf.f32"),
        (np.dtype("int8"), "here jf.i8"),
        (bool, "here jf.bool_"),
        ("q4_K", "here jf.q4_K"),
        ("float32", "such as jf.f32"),
        (None, "such as jf.f32"),
        (object, "such as jf.f32"),
        (3, "such as jf.f32"),
    ],
)
def test_what_is_no_dtype(wrong, meant):
    text = re.escape(f"a dtype is one of jackfield's, {meant}, not {wrong!r}")
    for make in (lambda: jf.input("x", (2,), wrong), lambda: jf.state("x", (2,), wrong), lambda: Spec(wrong, (2,))):
        with pytest.raises(DTypeError, match=text):
            make()


extents = st.lists(st.integers(0, 5), min_size=0, max_size=4).map(tuple)


def numbered(dtype, shape):
    """Bytes of a dense tensor whose units all differ, and the array on them."""
    spec = Spec(dtype, shape)
    raw = np.random.default_rng(1).integers(0, 256, spec.nbytes, dtype=np.uint8)
    return raw, np.ndarray(spec.units, element(dtype), raw.data) if spec.size else np.zeros(spec.units, element(dtype))


def shown(raw, tensor):
    """What a view of a leaf with these bytes shows, from its root, offset and strides alone."""
    base, offset = root(tensor)
    spec = tensor.spec
    if base.op == "contiguous":
        return None  # a copy came first: there is no window on the leaf's bytes
    assert offset + spec.extent_nbytes <= raw.nbytes
    if spec.size == 0:
        return np.zeros(spec.units, element(spec.dtype))
    return np.ndarray(spec.units, element(spec.dtype), raw.data, offset, spec.byte_strides)


@st.composite
def chains(draw):
    """A dtype, a shape, and up to five steps as (op, attrs) drawn for the shape they meet."""
    dtype = draw(st.sampled_from([f32, f16, i8, q8_0]))
    shape = draw(extents)
    if dtype.block > 1:
        shape = (*shape[:3], draw(st.integers(0, 3)) * dtype.block)
    return dtype, shape, draw(st.lists(st.integers(0, 2**31), max_size=5))


def step(rng, x):
    """A random view op that fits x."""
    shape, block = x.shape, x.dtype.block
    kind = rng.choice(["transpose", "slice", "reshape", "broadcast_to"])
    if kind == "transpose":
        movable = len(shape) - (block > 1)
        return kind, {"axes": (*map(int, rng.permutation(movable)), *range(movable, len(shape)))}
    if kind == "slice":
        start, stop, by = [], [], []
        for axis, n in enumerate(shape):
            per = block if axis == len(shape) - 1 else 1
            a, b = sorted(int(v) * per for v in rng.integers(0, n // per + 1, 2))
            start.append(a)
            stop.append(b)
            by.append(1 if per > 1 else int(rng.integers(1, 4)))
        return kind, {"start": tuple(start), "stop": tuple(stop), "step": tuple(by)}
    if kind == "broadcast_to":
        wide = tuple(int(rng.integers(1, 4)) if n == 1 else n for n in shape)
        return kind, {"shape": (2, *wide) if len(shape) < 4 else wide}
    return kind, {"shape": regrouped(rng, x)}


def regrouped(rng, x):
    """Another shape of as many elements: neighbours merged, axes split, ones put in."""
    shape = list(x.shape)
    for _ in range(3):
        at = int(rng.integers(0, len(shape))) if shape else 0
        if rng.random() < 0.4 and len(shape) > 1 and at + 1 < len(shape):
            shape[at : at + 2] = [shape[at] * shape[at + 1]]
        elif rng.random() < 0.5 and shape and shape[at] % 2 == 0 and shape[at] and at < len(shape) - 1:
            shape[at : at + 1] = [2, shape[at] // 2]
        elif len(shape) < 4:
            shape.insert(0, 1)
    return tuple(shape)


@given(chains())
def test_chains_of_views_show_what_numpy_shows(chain):
    dtype, shape, seeds = chain
    raw, array = numbered(dtype, shape)
    tensor = leaf("x", shape, dtype)
    for seed in seeds:
        name, attrs = step(np.random.default_rng(seed), tensor)
        op = getattr(ops, name)
        tensor = op(tensor, **attrs)
        array = op.body(array, **attrs)
        assert tensor.spec.units == array.shape
    window = shown(raw, tensor)
    if window is not None:
        np.testing.assert_array_equal(window, array)
        at = window.__array_interface__["data"][0] - raw.__array_interface__["data"][0]
        assert at >= 0 or not window.size


@given(chains())
def test_a_dense_copy_is_needed_only_where_numpy_copies(chain):
    dtype, shape, seeds = chain
    raw, array = numbered(dtype, shape)
    tensor = leaf("x", shape, dtype)
    for seed in seeds[:-1]:
        name, attrs = step(np.random.default_rng(seed), tensor)
        if name != "reshape":
            tensor, array = getattr(ops, name)(tensor, **attrs), getattr(ops, name).body(array, **attrs)
    wanted = regrouped(np.random.default_rng(7), tensor)
    view = reshape_view(tensor.spec, wanted)
    copied = not np.shares_memory(ops.reshape.body(array, shape=wanted), raw)
    if array.size:
        assert (view is None) == copied


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple), st.integers(0, 2**31))
def test_integer_and_slice_indices_are_numpys(shape, seed):
    rng = np.random.default_rng(seed)
    raw, array = numbered(f32, shape)
    index = []
    for n in shape[: int(rng.integers(0, len(shape) + 1))]:
        a, b = (int(v) for v in rng.integers(-n, n + 1, 2))
        index.append(int(rng.integers(-n, n)) if rng.random() < 0.4 else slice(a, b, int(rng.integers(1, 3))))
    if rng.random() < 0.3:
        index.append(...)
    tensor = leaf("x", shape)[tuple(index)]
    np.testing.assert_array_equal(shown(raw, tensor), array[tuple(index)])


def test_an_empty_window_of_an_empty_tensor_starts_at_its_start():
    view = slice_view(Spec(f32, (0, 4)), [(0, 0, 1), (2, 4, 1)])
    assert view.offset == 0
    assert leaf("x", (0, 4))[:, 2:].shape == (0, 2)


def test_equal_tensors_have_equal_specs():
    dense = Spec(f32, (2, 3))
    assert Spec(f32, (2, 3), (12, 4)) == dense
    assert hash(Spec(f32, (2, 3), (12, 4))) == hash(dense)
    assert Spec(f32, (1, 3), (999, 4)).is_dense
    assert not Spec(f32, (2, 3), (16, 4)).is_dense
    assert Spec(f32, (2, 0), (64, 8)).is_dense
    assert pickle.loads(pickle.dumps(Spec(q4_0, (2, 64)))) == Spec(q4_0, (2, 64))


def test_sizes_of_block_dtypes():
    spec = Spec(q4_K, (3, 512))
    assert (spec.size, spec.units, spec.nbytes, spec.row_nbytes) == (1536, (3, 2), 3 * 2 * 144, 288)
    assert spec.byte_strides == (288, 144)
    assert Spec(bf16, ()).nbytes == 2
    assert Spec(f32, ()).row_nbytes == 4


def test_rows_and_overlap():
    assert Spec(f32, (2, 3), (64, 4)).rows_are_dense
    assert not Spec(f32, (2, 3), (64, 8)).rows_are_dense
    assert Spec(f32, (2, 1), (64, 8)).rows_are_dense
    assert Spec(f32, (2, 3), (0, 4)).overlaps_itself
    assert Spec(f32, (2, 3), (4, 4)).overlaps_itself
    assert not Spec(f32, (2, 3), (4, 8)).overlaps_itself
    assert not Spec(f32, (2, 3)).overlaps_itself
    assert Spec(f32, (2, 3), (4, 8)).extent_nbytes == 24
    assert Spec(f32, (0, 3)).extent_nbytes == 0


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Spec(f32, (2, -1)), "shape [2, -1] has a negative extent"),
        (lambda: Spec(q4_0, (2, 33)), "q4_0 needs a last extent that is a multiple of 32, it is 33"),
        (lambda: Spec(q4_0, ()), "q4_0 needs a last extent that is a multiple of 32, it is none"),
        (lambda: Spec(f32, (2**40, 2**30)), f"f32[{2**40}, {2**30}] takes {2**72} bytes, the limit is {MAX_NBYTES}"),
        (lambda: Spec(f32, (2, 3), (4,)), "1 strides for 2 axes"),
    ],
)
def test_wrong_specs(make, text):
    with pytest.raises(ShapeError) as e:
        make()
    assert str(e.value) == text


def test_specs_of_arrays_and_their_text():
    assert Spec.of(np.zeros((2, 3), np.int8)) == Spec(i8, (2, 3))
    with pytest.raises(DTypeError):
        Spec.of(np.zeros(2, np.complex64))
    assert str(Spec(f32, (2, 3), (16, 4), "packed")) == "f32[2, 3] strides [16, 4] layout packed"
    assert Spec(f32, (2, 3), (16, 4)).dense() == Spec(f32, (2, 3))
    assert Spec(f32, (2,)).with_role("state").role == "state"


def test_every_dtype_has_arrays_and_comes_back():
    for dtype in DTYPES.values():
        assert dtype_of(np.zeros(3, element(dtype))) is dtype
        assert element(dtype).itemsize == dtype.block_nbytes
    with pytest.raises(Error):
        dtype_of(np.zeros(3, ">f4"))
