"""Fills, diagonals, triangles and causal masks, by loops; and nodes that have no operands, through plans and files."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jackfield as jf
from jackfield import ops
from jackfield.conformance import compare, examples, expected
from jackfield.dtypes import DTYPES, bf16, f16, f32, i8, i64
from jackfield.dtypes.arrays import element
from jackfield.errors import AttributeValueError, DTypeError
from jackfield.op import OPS

INF, NAN = np.inf, np.nan
DEVICES = ("reference", "sim", "sim+reference")


def odd_bits(*shape):
    """f32 of random bits: NaN with payloads, -0, subnormals, infinities."""
    bits = np.random.default_rng(0).integers(0, 2**32, shape, np.uint32)
    bits.reshape(-1)[:4] = [0x7FC12345, 0xFF812345, 0x80000000, 0xFF800000][: bits.size]
    return bits.view(np.float32)


def same_bits(got, want):
    assert got.dtype == want.dtype == np.float32
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


# full


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "i8", "i16", "i32", "i64"])
def test_full_of_every_dtype(name):
    got = ops.full.run(shape=(2, 3), value=-7, dtype=name)
    assert got.dtype == element(DTYPES[name])
    assert got.astype(np.float64).tolist() == [[-7] * 3] * 2


def test_full_rounds_to_a_float_once_and_never_cuts_an_integer():
    assert ops.full.run(shape=(1,), value=0.1)[0] == np.float32(0.1)
    assert ops.full.run(shape=(1,), value=1e30, dtype=f16)[0] == INF
    middle = 1 + 2.0**-8 + 2.0**-40  # two roundings to bf16 would go down
    assert float(ops.full.run(shape=(1,), value=middle, dtype=bf16)[0]) == 1 + 2.0**-7
    assert math.isnan(ops.full.run(shape=(), value=NAN))
    for value in (2**53 + 1, 2**63 - 1, -(2**63)):
        assert ops.full.run(shape=(2,), value=value, dtype=i64).tolist() == [value] * 2
    assert ops.full.run(shape=(2,), value=-128.0, dtype=i8).tolist() == [-128] * 2


@pytest.mark.parametrize("value", [0.5, NAN, INF, 128, -129, 2**63 - 1])
def test_full_takes_no_value_that_an_integer_has_not(value):
    with pytest.raises(AttributeValueError, match="must be a whole number from -128 to 127 for i8"):
        ops.full(shape=(2,), value=value, dtype=i8)


def test_no_attribute_is_beyond_64_bits():
    for make in (
        lambda: ops.full(shape=(2,), value=10**400),
        lambda: ops.scale(jf.input("x", (2,)), scale=-(2**63) - 1),
        lambda: ops.tril(jf.input("x", (2, 2)), k=2**63),
        lambda: ops.strided_view(jf.input("x", (2,)), shape=(1,), strides=(2**70,)),
    ):
        with pytest.raises(AttributeValueError, match="beyond 64 bits"):
            make()


# arange


@pytest.mark.parametrize(
    ("attrs", "want"),
    [
        ({"start": 0, "stop": 5, "step": 2}, [0, 2, 4]),
        ({"start": 0, "stop": 4, "step": 2}, [0, 2]),
        ({"start": 1, "stop": 1.25}, [1]),
        ({"start": 3, "stop": -0.5, "step": -1.5}, [3, 1.5, 0]),
        ({"start": -2.5, "stop": 0}, [-2.5, -1.5, -0.5]),
    ],
)
def test_arange_goes_up_to_its_stop(attrs, want):
    node = ops.arange(**attrs)
    assert node.shape == (len(want),)
    assert jf.compile(node, device="reference")().tolist() == want


@given(st.integers(-1000, 1000), st.integers(1, 300), st.sampled_from([1.0, 0.5, -0.25, 3.0, -1.0]))
def test_arange_of_exact_steps(start, n, step):
    got = ops.arange.run(start=start, stop=start + n * step, step=step)
    assert got.tolist() == [start + i * step for i in range(n)]


@pytest.mark.parametrize("n", [1, 255, 256, 257, 1023, 1024, 1025, 2**20])
@pytest.mark.parametrize("step", [0.3, -0.3])
def test_arange_is_no_running_sum(n, step):
    """Item 15: every element is its own product, so the last is as near as the first."""
    start, stop = 7.0, 7.0 + (n - 0.5) * step
    got = ops.arange.run(start=start, stop=stop, step=step)
    assert got.shape == (n,)
    for i in (0, 1, n // 2, n - 1):
        if i < n:
            exact = Fraction(start) + i * Fraction(step)
            assert abs(Fraction(float(got[i])) - exact) <= Fraction(float(np.spacing(np.abs(got[i])))) / 2 + abs(
                exact
            ) * Fraction(1, 2**50)


def test_a_running_sum_is_found_and_f32_steps_are_not():
    (example,) = [e for e in examples(ops.arange) if e.attrs["start"] == -100]
    want, _ = expected(example)
    running = np.full(len(want), 0.3, np.float32)
    running[0] = -100
    running = np.cumsum(running, dtype=np.float32)
    assert "too far off" in compare(example, running, want)
    stepwise = np.float32(-100) + np.arange(len(want), dtype=np.float32) * np.float32(0.3)
    assert (stepwise != want).any()
    assert compare(example, stepwise, want) == ""


@pytest.mark.parametrize(
    "attrs",
    [
        {"start": 0, "stop": 1, "step": 0},
        {"start": 1, "stop": 1},
        {"start": 1, "stop": 0},
        {"start": 0, "stop": 1, "step": -1},
        {"start": NAN, "stop": 1},
        {"start": 0, "stop": INF},
        {"start": 0, "stop": 1e300},
    ],
)
def test_arange_of_nothing(attrs):
    with pytest.raises(AttributeValueError, match=r"^\[arange\]"):
        ops.arange(**attrs)


# nodes without operands


@pytest.mark.parametrize("device", DEVICES)
def test_a_graph_may_begin_with_nothing(device, tmp_path):
    numbers = ops.arange(start=0, stop=6)
    bias = ops.full(shape=(2, 3), value=10.0)
    y = ops.add(ops.reshape(numbers, shape=(2, 3)), bias)
    outputs = {"y": y, "numbers": numbers, "half": ops.full(shape=(2,), value=0.5, dtype=f16)}
    for graph in (outputs, saved(outputs, tmp_path)):
        plan = jf.compile(graph, device=device)
        for _ in range(2):
            got = plan()
            assert got["y"].tolist() == [[10, 11, 12], [13, 14, 15]]
            assert got["numbers"].tolist() == [0, 1, 2, 3, 4, 5]
            assert got["half"].tolist() == [0.5, 0.5]
        assert "full" in str(plan.explain())


def saved(outputs, folder):
    jf.save(outputs, folder / "graph.npz")
    return jf.load_graph(folder / "graph.npz")


@pytest.mark.parametrize("device", DEVICES)
def test_a_fill_can_be_a_target_and_be_taken_over(device):
    x = jf.input("x", (3,))
    blank = ops.full(shape=(2, 3), value=-1.0)
    put = ops.write(blank, ops.reshape(x, shape=(1, 3)), start=(1, 0))
    plan = jf.compile({"put": put, "sum": ops.add(ops.arange(start=0, stop=3), x)}, device=device)
    for _ in range(2):  # a second call fills anew
        got = plan(x=np.float32([1, 2, 3]))
        assert got["put"].tolist() == [[-1] * 3, [1, 2, 3]]
        assert got["sum"].tolist() == [1, 3, 5]


def test_equal_fills_of_other_values_are_kept_apart():
    fills = [ops.full(shape=(2,), value=v, dtype=d) for v in (0.0, 1.0, 1, 2) for d in (f32, f16)]
    got = jf.compile(tuple(fills), device="reference")()
    assert [(g.dtype.itemsize, g.tolist()) for g in got] == [(b, [v] * 2) for v in (0, 1, 1, 2) for b in (4, 2)]


# diagonals, triangles, causal masks


@pytest.mark.parametrize("shape", [(5,), (1, 7), (2, 1, 4), (2, 3, 1, 5), (1,), (0,)])
def test_diag_by_loops(shape):
    x = odd_bits(*shape)
    n = shape[-1]
    got = ops.diag.run(x)
    assert got.shape == (*shape[:-2], n, n)
    want = np.zeros(got.shape, np.float32)
    for at in np.ndindex(shape[:-2]):
        for i in range(n):
            want[(*at, i, i)] = x[(*at, 0, i)] if len(shape) > 1 else x[i]
    same_bits(got, want)


@pytest.mark.parametrize("k", [0, 1, -1, 3, -3, 7, -8, 2**62])
@pytest.mark.parametrize("shape", [(5, 5), (2, 3, 4, 4), (1, 1), (2, 0, 0)])
def test_triangles_by_loops(shape, k):
    """What is cut away is written, so NaN goes; what is kept keeps its bits (item 44)."""
    x = odd_bits(*shape)
    for op, keeps in ((ops.tril, lambda r, c: c <= r + k), (ops.triu, lambda r, c: c >= r + k)):
        want = x.copy()
        for *b, r, c in np.ndindex(shape):
            if not keeps(r, c):
                want[(*b, r, c)] = 0
        same_bits(op.run(x, k=k), want)


def test_ggml_kinds_of_triangles():
    x = np.arange(1, 10, dtype=np.float32).reshape(3, 3)
    assert ops.triu.run(x).tolist() == [[1, 2, 3], [0, 5, 6], [0, 0, 9]]
    assert ops.triu.run(x, k=1).tolist() == [[0, 2, 3], [0, 0, 6], [0, 0, 0]]
    assert ops.tril.run(x).tolist() == [[1, 0, 0], [4, 5, 0], [7, 8, 9]]
    assert ops.tril.run(x, k=-1).tolist() == [[0, 0, 0], [4, 0, 0], [7, 8, 0]]


@given(
    st.integers(1, 6), st.integers(1, 9), st.integers(-7, 9), st.sampled_from([-INF, 0.0, -1e9, NAN, 0.1, 1e300, -0.0])
)
def test_causal_masks_by_loops(m, n, past, fill):
    x = odd_bits(2, m, n)
    want = x.copy()
    with np.errstate(over="ignore"):
        value = np.float32(fill)
    for b, r, c in np.ndindex(2, m, n):
        if c > past + r:
            want[b, r, c] = value
    same_bits(ops.causal_mask.run(x, past=past, fill=fill), want)


def test_the_usual_causal_mask():
    got = ops.causal_mask.run(np.zeros((2, 4), np.float32), past=1)
    assert got.tolist() == [[0, 0, -INF, -INF], [0, 0, 0, -INF]]
    assert ops.causal_mask.run(np.ones((2, 2), np.float32), fill=0).tolist() == [[1, 0], [1, 1]]


@pytest.mark.parametrize("name", ["diag", "tril", "triu", "causal_mask"])
def test_only_f32(name):
    with pytest.raises(DTypeError, match="must be one of f32"):
        OPS[name](jf.input("x", (1, 1), f16))
