"""What the ops mean, against golden values, formulas written out by hand, and numpy."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jackfield import ops
from jackfield.dtypes import DTYPES, bf16, f16, f32, i8, i16, i32, i64, q4_0, q8_0
from jackfield.dtypes.arrays import as_bytes, convert, decoded, element, widened
from jackfield.op import collect

INF, NAN = np.inf, np.nan
seeds = st.integers(0, 2**31)


def F(*values):
    return np.array(values, np.float32)


def ids(*values):
    return np.array(values, np.int32)


def near(got, want, tolerance=6e-7):
    np.testing.assert_allclose(np.asarray(got, np.float64).reshape(-1), want, rtol=0, atol=tolerance)


def faults_of(call):
    found = []
    with collect(found):
        result = call()
    return result, found


# elementwise


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("gelu", [0.841192, -0.158808, 2.996363]),
        ("gelu_erf", [0.841345, -0.158655, 2.995950]),
    ],
)
def test_golden_gelu(name, want):
    near(getattr(ops, name).run(F(1, -1, 3)), want)


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "silu", "square", "relu", "gelu", "gelu_erf"])
def test_elementwise_by_the_formulas(name):
    def sigmoid(x):
        return 1 / (1 + math.exp(-x))

    formula = {
        "tanh": math.tanh,
        "sigmoid": sigmoid,
        "silu": lambda x: x * sigmoid(x),
        "square": lambda x: x**2,
        "relu": lambda x: max(x, 0),
        "gelu": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        "gelu_erf": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    }[name]
    x = np.linspace(-9, 9, 101, dtype=np.float32)
    np.testing.assert_allclose(getattr(ops, name).run(x), [formula(float(v)) for v in x], rtol=1e-6, atol=1e-12)


def test_edges_of_elementwise():
    assert ops.sigmoid.run(F(-INF, INF, -1000)).tolist() == [0, 1, 0]
    assert math.isnan(ops.silu.run(F(-INF))[0])
    assert ops.silu.run(F(-100))[0] == pytest.approx(-100 * math.exp(-100))
    assert ops.tanh.run(F(-INF, INF)).tolist() == [-1, 1]
    assert math.isnan(ops.gelu.run(F(-INF))[0])
    assert ops.gelu.run(F(INF))[0] == INF
    assert ops.square.run(F(1e30))[0] == INF
    assert np.isnan(ops.relu.run(F(NAN))).all()
    assert np.isnan(ops.clip.run(F(NAN), min=-1, max=1)).all()
    assert ops.clip.run(F(-5, 0.5, 5), min=-1, max=INF).tolist() == [-1, 0.5, 5]
    assert ops.scale.run(F(1, 2), scale=3, bias=-1).tolist() == [2, 5]


def test_arithmetic_is_numpys_in_every_mix_of_dtypes():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 3, 1)), rng.standard_normal((3, 4))
    for first, second in [(np.float32, np.float16), (np.float16, np.float32), (ml_dtypes.bfloat16, np.float32)]:
        x, y = a.astype(first), b.astype(second)
        for name in ("add", "subtract", "multiply", "divide"):
            got = getattr(ops, name).run(x, y)
            want = getattr(np, name)(x.astype(np.float64), y.astype(np.float64))
            assert got.dtype == first
            np.testing.assert_allclose(got.astype(np.float64), want, rtol=2 * float(ml_dtypes.finfo(first).eps))
    assert np.isnan(ops.divide.run(F(0), F(0))[0])
    assert ops.divide.run(F(-1), F(0))[0] == -INF


def test_gated_units_take_the_right_half():
    g, u = F(1, -2, 3), F(4, 5, -6)
    both = np.concatenate([g, u])
    for gated, activation in ((ops.swiglu, ops.silu), (ops.geglu, ops.gelu), (ops.geglu_erf, ops.gelu_erf)):
        near(gated.run(g, u), activation.run(g) * u, 1e-5)
        near(gated.run(both), activation.run(g) * u, 1e-5)
        near(gated.run(both, swapped=True), activation.run(u) * g, 1e-5)
        assert np.isnan(gated.run(F(NAN, 1), F(1, NAN))).all()
    assert ops.swiglu.run(F(-100), F(3))[0] == pytest.approx(0, abs=1e-40)
    assert math.isnan(ops.swiglu.run(F(-INF), F(3))[0])


# reductions and searches


@given(seeds)
def test_reductions_are_numpys(seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(tuple(rng.integers(1, 6, int(rng.integers(1, 5))))).astype(np.float32)
    axis = None if rng.random() < 0.3 else int(rng.integers(-x.ndim, x.ndim))
    for op, meaning in ((ops.sum, np.sum), (ops.mean, np.mean)):
        want = meaning(x.astype(np.float64), axis=axis, keepdims=bool(seed % 2))
        got = op.run(x, axis=axis, keepdims=bool(seed % 2))
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


def test_dtypes_and_edges_of_reductions():
    half = np.ones((2, 3), np.float16)
    assert ops.sum.run(half).dtype == np.float16
    assert ops.sum.run(half, axis=None).dtype == np.float32
    assert ops.sum.run(np.zeros((3, 0), np.float32)).tolist() == [0, 0, 0]
    assert ops.mean.run(half, axis=None, keepdims=True).shape == (1, 1)
    assert ops.sum.run(np.full(70_000, 1, np.float16))[()] == INF


@given(st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, INF, -INF, NAN]), min_size=1, max_size=9))
def test_searches_by_definition(row):
    x = F(*row)
    nans = [i for i, v in enumerate(row) if math.isnan(v)]
    largest = nans[0] if nans else max(range(len(row)), key=lambda i: (row[i], -i))
    assert ops.argmax.run(x)[()] == largest
    assert ops.argmax.run(x.astype(ml_dtypes.bfloat16))[()] == largest
    up = sorted(range(len(row)), key=lambda i: (math.isnan(row[i]), 0 if math.isnan(row[i]) else row[i], i))
    assert ops.argsort.run(x).tolist() == up
    down = sorted(range(len(row)), key=lambda i: (math.isnan(row[i]), 0 if math.isnan(row[i]) else -row[i], i))
    assert ops.argsort.run(x, descending=True).tolist() == down
    for k in range(1, len(row) + 1):
        assert ops.top_k.run(x, k=k).tolist() == down[:k]


def test_argmax_along_any_axis():
    x = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)
    for axis in (-3, -2, -1, 0, 1, 2):
        np.testing.assert_array_equal(ops.argmax.run(x, axis=axis), x.argmax(axis))


# copies


def test_copies_keep_the_bits_of_nan_and_zero():
    bits = np.array([0x7FC12345, 0xFF812345, 0x80000000, 0x00000001], np.uint32)
    x = bits.view(np.float32)
    for y in (
        ops.contiguous.run(x),
        ops.cast.run(x, dtype=f32),
        ops.tile.run(x, repeats=(1,)),
        ops.concatenate.run(x, x[:0], axis=0),
        ops.write.run(np.zeros(4, np.float32), x, start=(0,)),
        ops.take_rows.run(x.reshape(4, 1), ids(0, 1, 2, 3))[:, 0],
        ops.put_rows.run(np.zeros((4, 1), np.float32), x.reshape(4, 1), ids(0, 1, 2, 3))[:, 0],
    ):
        assert y.view(np.uint32).tolist() == bits.tolist()


@given(st.lists(st.floats(width=32), min_size=1, max_size=40))
def test_casts_of_floats(row):
    x = F(*row)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(ops.cast.run(x, dtype=f16), x.astype(np.float16))
        np.testing.assert_array_equal(
            ops.cast.run(x, dtype=bf16).astype(np.float32), x.astype(ml_dtypes.bfloat16).astype(np.float32)
        )
    for dtype, info in (
        (i8, np.iinfo(np.int8)),
        (i16, np.iinfo(np.int16)),
        (i32, np.iinfo(np.int32)),
        (i64, np.iinfo(np.int64)),
    ):
        want = [0 if math.isnan(v) else min(max(v, info.min), info.max) for v in map(float, x)]
        assert ops.cast.run(x, dtype=dtype).tolist() == [math.trunc(v) for v in want]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
def test_casts_of_integers(row):
    x = np.array(row, np.int64)
    assert ops.cast.run(x, dtype=i16).tolist() == [min(max(v, -(2**15)), 2**15 - 1) for v in row]
    np.testing.assert_array_equal(ops.cast.run(x, dtype=f32), x.astype(np.float32))


def test_bf16_rounds_once_and_quiets_nan():
    # Just above the middle of two bf16 numbers, by less than f32 can say: two roundings would go down.
    middle = 1 + 2.0**-8
    assert float(convert(np.array([middle + 2.0**-40]), bf16)[0][0]) == 1 + 2.0**-7
    assert float(convert(np.array([middle - 2.0**-40]), bf16)[0][0]) == 1.0
    assert float(convert(np.array([middle]), bf16)[0][0]) == 1.0
    assert float(convert(np.array([2**24 + 2**16 + 1]), bf16)[0][0]) == 2**24 + 2**17
    nan = np.array([0xFF812345], np.uint32).view(np.float32)
    assert convert(nan, bf16)[0].view(np.uint16)[0] == 0xFFC1
    assert float(convert(np.array([1e300]), bf16)[0][0]) == INF


def test_casts_to_blocks_and_back():
    x = np.random.default_rng(0).standard_normal((3, 256)).astype(np.float32)
    for dtype in (d for d in DTYPES.values() if d.is_block):
        coded = ops.cast.run(x, dtype=dtype)
        assert coded.dtype == element(dtype)
        np.testing.assert_array_equal(as_bytes(coded), dtype.encode(x))
        np.testing.assert_array_equal(ops.cast.run(coded, dtype=f32), dtype.decode(dtype.encode(x)))
    again = ops.cast.run(ops.cast.run(x, dtype=q8_0), dtype=q4_0)
    np.testing.assert_array_equal(as_bytes(again), q4_0.encode(q8_0.decode(q8_0.encode(x))))


def test_a_block_that_cannot_be_coded_is_zero_and_a_fault():
    x = np.full((2, 64), 127, np.float32)
    x[0, 40], x[1, 3] = NAN, INF
    coded, found = faults_of(lambda: ops.cast.run(x, dtype=q8_0))
    assert [(f.kind, f.operand, f.value) for f in found] == [("nonfinite", "x", 1)]
    values = decoded(coded)
    assert values[0, :32].tolist() == [127] * 32
    assert not values[0, 32:].any()
    assert not values[1, :32].any()
    assert not as_bytes(coded)[0, 34:].any()


@pytest.mark.parametrize("dtype", [d for d in DTYPES.values() if d.is_block], ids=str)
@pytest.mark.parametrize("bad", [NAN, -INF, 3e38])
def test_the_bytes_of_such_a_block_are_zero(dtype, bad):
    if dtype.name in ("mxfp4", "nvfp4", "q8_K"):  # their scales reach that far, or end at their largest
        bad = bad if not math.isfinite(bad) else INF
    x = np.full((1, 3 * dtype.block), 0.5, np.float32)
    x[0, dtype.block + 5] = bad
    coded, found = faults_of(lambda: ops.cast.run(x, dtype=dtype))
    assert [(f.kind, f.value) for f in found] == [("nonfinite", 1)]
    blocks = as_bytes(coded).reshape(3, -1)
    assert not blocks[1].any()
    np.testing.assert_array_equal(blocks[[0, 2]], dtype.encode(x[:, : dtype.block]).repeat(2, 0))


def test_write_puts_a_region_and_casts():
    target = np.zeros((4, 6), np.float16)
    y = ops.write.run(target, F(1e6, 2, NAN).reshape(1, 3), start=(2, 1))
    assert y[2, 1] == INF
    assert y[2, 2] == 2
    assert math.isnan(y[2, 3])
    assert np.count_nonzero(y) == 3
    assert not target.any(), "run copies its target"
    blocks = ops.cast.run(np.full((2, 64), 127, np.float32), dtype=q8_0)
    z = decoded(ops.write.run(blocks, np.full((1, 32), 3 * 127, np.float32), start=(1, 32)))
    assert z[1, 32:].tolist() == [3 * 127] * 32
    assert (z[0] == 127).all()
    assert (z[1, :32] == 127).all()


def test_tile_and_concatenate_are_numpys():
    x = np.arange(6, dtype=np.int16).reshape(2, 3)
    np.testing.assert_array_equal(ops.tile.run(x, repeats=(2, 3)), np.tile(x, (2, 3)))
    np.testing.assert_array_equal(ops.concatenate.run(x, x, axis=-1), np.concatenate([x, x], -1))
    assert ops.tile.run(x, repeats=(0, 2)).shape == (0, 6)


# rows


def test_take_rows_reads_zeros_for_bad_rows():
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    y, found = faults_of(lambda: ops.take_rows.run(x, ids(3, -1, 0, 7)))
    assert y.tolist() == [[9, 10, 11], [0, 0, 0], [0, 1, 2], [0, 0, 0]]
    assert [(f.kind, f.operand, f.value) for f in found] == [("index", "rows", -1)]
    empty, found = faults_of(lambda: ops.take_rows.run(x[:0], ids(0)))
    assert empty.tolist() == [[0, 0, 0]]
    assert found[0].value == 0


def test_take_rows_decodes_and_has_batches():
    x = np.random.default_rng(0).standard_normal((2, 5, 64)).astype(np.float32)
    rows = np.array([[4, 0, 4], [1, 1, 2]], np.int64)
    want = np.stack([q8_0.decode(q8_0.encode(x))[b][rows[b]] for b in range(2)])
    np.testing.assert_array_equal(ops.take_rows.run(ops.cast.run(x, dtype=q8_0), rows), want)
    assert ops.take_rows.run(np.ones((2, 3), np.int32), ids(1)).dtype == np.int32
    assert ops.take_rows.run(np.ones((2, 3), np.float16), ids(1)).dtype == np.float32


def test_put_rows_skips_padding_and_reports_the_rest():
    target, x = np.zeros((4, 2), np.float32), np.arange(8, dtype=np.float32).reshape(4, 2) + 1
    y, found = faults_of(lambda: ops.put_rows.run(target, x, ids(2, -1, 4, -2)))
    assert y.tolist() == [[0, 0], [0, 0], [1, 2], [0, 0]]
    assert [(f.kind, f.operand, f.value) for f in found] == [("index", "rows", 4)]
    _, found = faults_of(lambda: ops.put_rows.run(target, x, ids(2, -1, -1, 3)))
    assert not found
    y, found = faults_of(lambda: ops.put_rows.run(target, x, ids(2, -2, -1, 3)))
    assert [f.value for f in found] == [-2]
    assert y[:, 0].tolist() == [0, 0, 1, 7]


def test_put_rows_with_cyclic_rows_by_loops():
    rng = np.random.default_rng(0)
    target, x = (
        rng.standard_normal((4, 6, 9, 3)).astype(np.float16),
        rng.standard_normal((4, 6, 2, 3)).astype(np.float32),
    )
    rows = np.array([[[8, 1], [0, 3], [5, 2]], [[4, 7], [1, 0], [2, 6]]], np.int64)  # (2, 3, 2)
    want = target.copy()
    for b3 in range(4):
        for b2 in range(6):
            for i in range(2):
                want[b3, b2, rows[b3 % 2, b2 % 3, i]] = x[b3, b2, i]
    np.testing.assert_array_equal(ops.put_rows.run(target, x, rows), want)


def test_nan_in_a_skipped_row_of_a_block_cache_is_no_fault():
    target = ops.cast.run(np.full((3, 32), 127, np.float32), dtype=q8_0)
    x = np.stack([np.full(32, NAN), np.full(32, 5 * 127)]).astype(np.float32)
    y, found = faults_of(lambda: ops.put_rows.run(target, x, ids(-1, 1)))
    assert not found
    assert decoded(y)[:, 0].tolist() == [127, 5 * 127, 127]


# norms and softmax


def test_norms_by_hand():
    x = F(1, 2, 3, 6).reshape(1, 4)
    near(ops.norm.run(x, eps=0.0), [-2 / math.sqrt(3.5), -1 / math.sqrt(3.5), 0, 3 / math.sqrt(3.5)])
    near(ops.rms_norm.run(x, eps=0.5), np.array([1, 2, 3, 6]) / math.sqrt(12.5 + 0.5))
    near(ops.l2_norm.run(x), np.array([1, 2, 3, 6]) / math.sqrt(50))
    near(ops.l2_norm.run(x, eps=100.0), np.array([1, 2, 3, 6]) / 100)


def test_edges_of_norms():
    zeros = np.zeros((1, 3), np.float32)
    assert not ops.rms_norm.run(zeros).any()
    assert np.isnan(ops.rms_norm.run(zeros, eps=0)).all()
    assert not ops.l2_norm.run(zeros).any()
    assert ops.norm.run(F(7).reshape(1, 1)).tolist() == [[0]]
    assert ops.norm.run(np.zeros((3, 0), np.float32)).shape == (3, 0)


def softmax_by_hand(x, mask, sinks, scale, max_bias):
    S, H, M, N = x.shape
    y = np.zeros(x.shape)
    power = 2 ** math.floor(math.log2(H))
    for s in range(S):
        for h in range(H):
            slope = 1.0
            if max_bias > 0:
                slope = (
                    2 ** (-max_bias / power * (h + 1))
                    if h < power
                    else 2 ** (-max_bias / power / 2 * (2 * (h - power) + 1))
                )
            for m in range(M):
                z = [scale * float(x[s, h, m, n]) for n in range(N)]
                if mask is not None:
                    z = [v + slope * float(mask[s % mask.shape[0], h % mask.shape[1], m, n]) for n, v in enumerate(z)]
                top = max([*z, -INF if sinks is None else float(sinks[h])])
                if top == -INF:
                    continue
                total = sum(math.exp(v - top) for v in z) + (0 if sinks is None else math.exp(float(sinks[h]) - top))
                y[s, h, m] = [math.exp(v - top) / total for v in z]
    return y


@given(seeds)
def test_softmax_by_loops(seed):
    rng = np.random.default_rng(seed)
    S, H, M, N = (
        2 * int(rng.integers(1, 3)),
        int(rng.choice([1, 2, 3, 6, 12])),
        int(rng.integers(1, 4)),
        int(rng.integers(1, 6)),
    )
    x = (rng.standard_normal((S, H, M, N)) * 10).astype(np.float32)
    mask = rng.standard_normal((2, H, M + 1, N)).astype(np.float16) if seed % 3 else None
    if mask is not None:
        mask[rng.random(mask.shape) < 0.4] = -INF
    sinks = rng.standard_normal(H).astype(np.float32) if seed % 2 else None
    bias = 8.0 if mask is not None and seed % 5 else 0.0
    got = ops.softmax.run(x, mask, sinks, scale=0.3, max_bias=bias)
    np.testing.assert_allclose(got, softmax_by_hand(x, mask, sinks, 0.3, bias), rtol=2e-6, atol=1e-9)


def test_golden_slopes():
    # A mask of one, softened by the slope: the logit of column 0 in each of 12 heads.
    x, mask = np.zeros((1, 12, 1, 2), np.float32), np.array([1, 0], np.float32).reshape(1, 1, 1, 2)
    y = ops.softmax.run(x, mask, max_bias=8.0)[0, :, 0]
    near(np.log(y[:, 0] / y[:, 1]), [*(2.0**-h for h in range(1, 9)), 0.707107, 0.353553, 0.176777, 0.088388], 1e-6)


def test_edges_of_softmax():
    assert ops.softmax.run(F(-INF, -INF)).tolist() == [0, 0]
    assert np.isnan(ops.softmax.run(F(INF, 1))).all()
    assert np.isnan(ops.softmax.run(F(NAN, 1))).all()
    assert ops.softmax.run(F(1e30, -1e30)).tolist() == [1, 0]
    assert ops.softmax.run(np.zeros((2, 0), np.float32)).shape == (2, 0)
    near(ops.softmax.run(F(0).reshape(1, 1, 1, 1), sinks=F(0)), [0.5])


# products


@given(seeds)
def test_products_by_einsum(seed):
    rng = np.random.default_rng(seed)
    B, g, M, N, K = (int(v) for v in rng.integers(1, 4, 5))
    x, w = (
        rng.standard_normal((2, B * g, M, K)).astype(np.float32),
        rng.standard_normal((2, B, N, K)).astype(np.float32),
    )
    spread = np.repeat(w, g, axis=1).astype(np.float64)
    want = np.einsum("abmk,abnk->abmn", x.astype(np.float64), spread)
    np.testing.assert_allclose(ops.linear.run(x, w), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ops.matmul.run(x, np.swapaxes(w, -1, -2)), want, rtol=1e-5, atol=1e-6)


def test_linear_with_blocks_uses_the_decoded_weight():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((3, 256)).astype(np.float32), rng.standard_normal((5, 256)).astype(np.float32)
    for dtype in (d for d in DTYPES.values() if d.is_block and not d.is_activation):
        want = x.astype(np.float64) @ dtype.decode(dtype.encode(w)).astype(np.float64).T
        np.testing.assert_allclose(ops.linear.run(x, ops.cast.run(w, dtype=dtype)), want, rtol=1e-6, atol=1e-5)


def test_edges_of_products():
    assert not ops.linear.run(np.ones((2, 0), np.float32), np.ones((3, 0), np.float32)).any()
    y = ops.linear.run(F(INF, 1, 1, 1).reshape(2, 2), F(0, 1, 1, 1).reshape(2, 2))
    assert math.isnan(y[0, 0])
    assert y[0, 1] == INF
    assert y[1].tolist() == [1, 2]
    assert ops.linear.run(F(1, 2, 3, 4).reshape(1, 1, 2, 2), F(1, 1).reshape(1, 2)).shape == (1, 1, 2, 1)


def test_linear_experts_by_loops():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((5, 2, 8)).astype(np.float32), rng.standard_normal((6, 3, 8)).astype(np.float32)
    ids = rng.integers(0, 6, (5, 4)).astype(np.int32)
    ids[1] = 2
    ids[2, 1], ids[3, 0], ids[3, 2] = -1, 6, -2
    y, found = faults_of(lambda: ops.linear_experts.run(x, w, ids))
    assert [(f.operand, f.value) for f in found] == [("ids", 6)]
    for t in range(5):
        for i in range(4):
            e = ids[t, i]
            want = w[e].astype(np.float64) @ x[t, i % 2] if 0 <= e < 6 else np.zeros(3)
            np.testing.assert_allclose(y[t, i], want, rtol=1e-5, atol=1e-6)


# rope


EIGHT = np.ones((1, 1, 1, 8), np.float32)
FOUR = F(1, 2, 3, 4).reshape(1, 1, 1, 4)


@pytest.mark.parametrize(
    ("x", "positions", "attrs", "want"),
    [
        (FOUR, ids(3), {"mode": "normal", "n_dims": 4}, [-1.272233, -1.838865, 2.878668, 4.088187]),
        (FOUR, ids(3), {"mode": "neox", "n_dims": 4}, [-1.413353, 1.879118, -2.828857, 4.058191]),
        (
            FOUR,
            ids(3),
            {"mode": "neox", "n_dims": 4, "scale": 0.25, "ext_factor": 1, "original_context": 64},
            [-1.609285, 2.243036, -3.221020, 4.571469],
        ),
        (
            EIGHT,
            ids(1, 2, 3, 4).reshape(4, 1),
            {"mode": "mrope", "n_dims": 8, "sections": (2, 1, 1, 0)},
            [-0.301169, 0.895171, 0.979801, 0.996996, 1.381773, 1.094838, 1.019799, 1.002995],
        ),
        (
            EIGHT,
            ids(1, 2, 3, 4).reshape(4, 1),
            {"mode": "imrope", "n_dims": 8, "sections": (2, 1, 1, 0)},
            [-0.301169, 0.781397, 0.969555, 0.999000, 1.381773, 1.178736, 1.029546, 1.001000],
        ),
        (
            EIGHT,
            ids(1, 2, 0, 0).reshape(4, 1),
            {"mode": "vision", "n_dims": 4, "sections": (2, 2, 0, 0)},
            [-0.301169, 0.989950, -1.325444, 0.979801, 1.381773, 1.009950, 0.493151, 1.019799],
        ),
    ],
)
def test_golden_rope(x, positions, attrs, want):
    near(ops.rope.run(x, positions, **attrs), want)


def test_golden_yarn_bounds():
    from jackfield.ops.position import yarn_bounds

    assert yarn_bounds(128, 1e4, 4096, 32.0, 1.0) == (20, 46)


@given(seeds)
def test_rope_by_loops(seed):
    rng = np.random.default_rng(seed)
    D, n = 12, 2 * int(rng.integers(1, 5))
    offset = 2 * int(rng.integers(0, (D - n) // 2 + 1))
    mode = ["normal", "neox"][seed % 2]
    x = rng.standard_normal((2, 3, 2, D)).astype(np.float32)
    positions, factors = rng.integers(-50, 50, 3).astype(np.int32), rng.uniform(1, 4, n // 2).astype(np.float32)
    got = ops.rope.run(
        x, positions, factors, mode=mode, n_dims=n, offset=offset, base=500.0, scale=0.5, attn_factor=1.5
    )
    want = x.astype(np.float64)
    for t in range(3):
        for i in range(n // 2):
            a, b = (offset + 2 * i, offset + 2 * i + 1) if mode == "normal" else (offset + i, offset + i + n // 2)
            angle = 0.5 * positions[t] * 500.0 ** (-2 * i / n) / float(factors[i])
            turn = np.exp(1j * angle) * (x[:, t, :, a].astype(np.float64) + 1j * x[:, t, :, b]) * 1.5
            want[:, t, :, a], want[:, t, :, b] = turn.real, turn.imag
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6)


def test_channels_outside_are_copied():
    x = np.random.default_rng(0).standard_normal((1, 2, 1, 8)).astype(np.float16)
    y = ops.rope.run(x, ids(5, 6), mode="neox", n_dims=4)
    np.testing.assert_array_equal(y[..., 4:], x[..., 4:])
    assert (y[..., :4] != x[..., :4]).any()
    assert y.dtype == np.float16


# attention


Q1, K1 = F(1, 0).reshape(1, 1, 1, 2), F(1, 0, 0, 1, 1, 1).reshape(1, 1, 3, 2)
V1 = F(1, 2, 3, 4, 5, 6).reshape(1, 1, 3, 2)
Q2 = F(1, 0, 0, 1).reshape(1, 1, 2, 2)


@pytest.mark.parametrize(
    ("q", "operands", "attrs", "want"),
    [
        (Q1, {"mask": F(0, -INF, -0.5).reshape(1, 3)}, {}, [2.510163, 3.510163]),
        (Q1, {"mask": F(0, -INF, -0.5).reshape(1, 3), "sinks": F(0.25)}, {}, [1.690605, 2.364109]),
        (Q1, {"kv_len": ids(2)}, {}, [1.755081, 2.755081]),
        (Q2, {"kv_len": ids(3)}, {"causal": True}, [1.755081, 2.755081, 3.301910, 4.301910]),
        (Q2, {"kv_len": ids(3)}, {"causal": True, "window": 2}, [1.755081, 2.755081, 4, 5]),
        (Q2, {"kv_len": ids(1)}, {"causal": True}, [0, 0, 1, 2]),
    ],
)
def test_golden_attention(q, operands, attrs, want):
    near(ops.attention.run(q, K1, V1, **operands, scale=0.5, **attrs), want)


def attention_by_hand(q, k, v, mask, sinks, scale, softcap, slope):
    S, H, T, _ = q.shape
    y = np.zeros((S, T, H, v.shape[-1]))
    for s, h, t in np.ndindex(S, H, T):
        g = h // (H // k.shape[1])
        z = k[s, g].astype(np.float64) @ q[s, h, t].astype(np.float64) * scale
        if softcap:
            z = softcap * np.tanh(z / softcap)
        if mask is not None:
            z = z + slope[h] * mask[s % mask.shape[0], h % mask.shape[1], t].astype(np.float64)
        sink = [] if sinks is None else [float(sinks[h])]
        top = max([*z, *sink])
        if top > -INF:
            e = np.exp(z - top)
            y[s, t, h] = e @ v[s, g].astype(np.float64) / (e.sum() + sum(math.exp(v - top) for v in sink))
    return y


@given(seeds)
def test_attention_by_loops(seed):
    rng = np.random.default_rng(seed)
    Hkv, g, T, N = (int(n) for n in rng.integers(1, 5, 4))
    H, S = Hkv * g, 2
    q, k = rng.standard_normal((S, H, T, 6)).astype(np.float32), rng.standard_normal((S, Hkv, N, 6)).astype(np.float16)
    v = rng.standard_normal((S, Hkv, N, 3)).astype(np.float32)
    mask = rng.standard_normal((1, H, T + 1, N)).astype(np.float16) if seed % 3 else None
    if mask is not None:
        mask[rng.random(mask.shape) < 0.4] = -INF
    sinks = rng.standard_normal(H).astype(np.float32) if seed % 2 else None
    softcap = 3.0 if seed % 5 else 0.0
    bias = 8.0 if mask is not None and seed % 7 else 0.0
    power = 2 ** math.floor(math.log2(H))
    slope = [
        2 ** (-bias / power * (h + 1)) if h < power else 2 ** (-bias / power / 2 * (2 * (h - power) + 1))
        for h in range(H)
    ]
    got = ops.attention.run(q, k, v, mask, sinks, scale=0.4, logit_softcap=softcap, max_bias=bias)
    np.testing.assert_allclose(got, attention_by_hand(q, k, v, mask, sinks, 0.4, softcap, slope), rtol=2e-6, atol=1e-6)


def test_rows_of_a_cache_are_a_gather():
    rng = np.random.default_rng(0)
    q = rng.standard_normal((2, 2, 3, 4)).astype(np.float32)
    k, v = (rng.standard_normal((1, 1, 9, 4)).astype(np.float32) for _ in range(2))
    rows = np.array([[8, 2, 2, 0, -1], [1, 3, 5, 7, 40]], np.int32)
    length = ids(4, 4)
    got, found = faults_of(lambda: ops.attention.run(q, k, v, kv_rows=rows, kv_len=length, scale=0.5, causal=True))
    assert not found, "entries behind kv_len are not looked at"
    gathered = [np.concatenate([c[0, :, rows[s, :4]].transpose(1, 0, 2)[None] for s in range(2)]) for c in (k, v)]
    np.testing.assert_allclose(got, ops.attention.run(q, *gathered, scale=0.5, causal=True), rtol=1e-6)
    got, found = faults_of(lambda: ops.attention.run(q, k, v, kv_rows=rows, kv_len=ids(5, 5), scale=0.5))
    assert [(f.operand, f.value) for f in found] == [("kv_rows", 40)]
    np.testing.assert_allclose(got, ops.attention.run(q, *gathered, scale=0.5), rtol=1e-6)


def test_hidden_columns_are_never_read():
    q, k, v = Q2, K1.copy(), V1.copy()
    k[0, 0, 0] = v[0, 0, 0] = NAN
    mask = np.tile(F(-INF, 0, 0), (2, 1))
    near(
        ops.attention.run(q, k, v, mask, scale=0.5), ops.attention.run(q, K1[:, :, 1:], V1[:, :, 1:], scale=0.5).ravel()
    )
    causal = ops.attention.run(
        q, K1, np.where(np.arange(3)[:, None] == 2, INF, V1).astype(np.float32), scale=0.5, causal=True
    )
    near(causal[0, 0], [1.755081, 2.755081])
    assert (causal[0, 1] == INF).all()


def test_nan_in_a_mask_entry_keeps_the_column():
    y = ops.attention.run(Q2, K1, V1, F(0, NAN, 0, 0, 0, 0).reshape(2, 3), scale=0.5)
    assert np.isnan(y[0, 0]).all()
    assert np.isfinite(y[0, 1]).all()


def test_lengths_outside_give_zeros():
    q, k, v = (np.repeat(a, 3, axis=0) for a in (Q1, K1, V1))
    y, found = faults_of(lambda: ops.attention.run(q, k, v, kv_len=ids(-1, 4, 2), scale=0.5))
    assert not y[:2].any()
    near(y[2], [1.755081, 2.755081])
    assert [(f.operand, f.value) for f in found] == [("kv_len", -1), ("kv_len", 4)]


def test_block_caches_and_shapes():
    rng = np.random.default_rng(0)
    q, k = (rng.standard_normal((1, 2, 3, 32)).astype(np.float32) for _ in range(2))
    coded = ops.cast.run(k, dtype=q8_0)
    want = ops.attention.run(q, decoded(coded), decoded(coded), scale=0.2)
    np.testing.assert_array_equal(ops.attention.run(q, coded, coded, scale=0.2), want)
    assert want.shape == (1, 3, 2, 32)
    assert ops.attention.run(q[0], k[0], k[0], scale=0.2).shape == (3, 2, 32)
    assert not ops.attention.run(q, k[:, :, :0], k[:, :, :0], scale=0.2).any()
    assert widened(coded).dtype == np.float64
