"""Encoding into block dtypes: bytes of the package `gguf`, recorded digests, errors in float64, and laws."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from block_facts import BLOCKS, ENCODED, ENCODED_AS_GGUF, NMSE, digest, oracle
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jackfield.dtypes import DTYPES, quantise_q8_0, quantise_q8_1, quantise_q8_K
from jackfield.dtypes.arrays import as_bytes, convert
from jackfield.dtypes.fits import three_bits
from jackfield.dtypes.small_blocks import largest
from jackfield.errors import AttributeValueError, DTypeError, ShapeError

AS_GGUF = [DTYPES[name] for name in ENCODED_AS_GGUF]
each = pytest.mark.parametrize("dtype", BLOCKS, ids=repr)
each_as_gguf = pytest.mark.parametrize("dtype", AS_GGUF, ids=repr)
weighed = pytest.mark.parametrize("dtype", [d for d in BLOCKS if d.heeds_importance], ids=repr)

TERNARY = ("tq1_0", "tq2_0")
WITHOUT_F16 = ("mxfp4", "nvfp4", "q8_K")  # their scales reach, or saturate, beyond f16


def nmse(dtype, x, raw):
    wide = x.astype(np.float64)
    return np.square(dtype.decode(raw) - wide).mean() / np.square(wide).mean()


@pytest.mark.parametrize("name", ENCODED)
def test_golden_encode(name):
    b, e = np.mgrid[0:4, 0 : DTYPES[name].block]
    x = ((((7 * e * e + 13 * b) % 61) - 30) / 8).astype(np.float32)
    assert digest(DTYPES[name].encode(x)) == ENCODED[name]


# Elements of very different sizes, ties, equal and constant blocks: what rounding trips over.
ELEMENTS = st.one_of(
    st.floats(-3, 3, width=32),
    st.integers(-64, 64).map(lambda i: i / 2),
    st.sampled_from([0.0, -0.0, 1e-4, -1e-4, 2e-8, 1e4, -1e4, 63.5, 127.0, -127.0]),
)


@each_as_gguf
@settings(max_examples=30)
@given(data=st.data())
def test_encode_has_the_bytes_of_gguf(dtype, data):
    x = data.draw(hnp.arrays(np.float32, (2, 64 if dtype.block == 32 else 256), elements=ELEMENTS))
    x[np.abs(x) < 1e-30] = 0  # the package lets small exponents of mxfp4 wrap round
    np.testing.assert_array_equal(dtype.encode(x), gguf.quants.quantize(x, oracle(dtype)))


@each_as_gguf
def test_encode_of_special_blocks_has_the_bytes_of_gguf(dtype):
    n = dtype.block
    e, rng = np.arange(n), np.random.default_rng(3)
    rows = [np.zeros(n), np.full(n, 0.3), np.full(n, -7.0), np.full(n, 1e-20), np.full(n, 6e4)]
    rows += [np.where(e == k, v, 0) for k in (0, 13, n - 1) for v in (5.0, -5.0)]  # one outlier
    rows += [np.where(e % 2, 4.0, -4.0), e % 32 - 15.5, e % 32 * 0.5 - 8]  # ties
    rows += [np.where(e == 3, 2.0**k * (1 + s * 2.0**-24), 0.1) for k in (-3, 0, 5) for s in (-1, 0, 2)]
    rows += list(rng.standard_normal((400, n)) * 10.0 ** rng.uniform(-6, 4, (400, 1)))
    x = np.array(rows, np.float32)
    np.testing.assert_array_equal(dtype.encode(x), gguf.quants.quantize(x, oracle(dtype)))


@pytest.mark.parametrize("name", NMSE)
def test_error_on_gaussian_data_stays_in_the_table(name):
    dtype = DTYPES[name]
    shape = (16, 256) if name.startswith(("iq1", "iq2", "iq3")) else (64, 1024)
    x = np.random.default_rng(11).standard_normal(shape).astype(np.float32)
    assert nmse(dtype, x, dtype.encode(x)) <= NMSE[name]


@pytest.mark.parametrize("name", TERNARY)
@given(c=st.integers(1, 60_000).map(lambda i: i / 7), seed=st.integers(0, 99))
def test_ternary_weights_are_kept(name, c, seed):
    x = np.random.default_rng(seed).integers(-1, 2, (3, 256))
    x[:, 17] = 1
    got = DTYPES[name].decode(DTYPES[name].encode(x * np.float32(c)))
    np.testing.assert_array_equal(got, x * np.float32(np.float16(c)))


def test_the_fit_of_q6_K_beats_the_plain_grid():
    # The plain grid puts the largest element at -32 and codes scales and quants like the encoder does.
    dtype = DTYPES["q6_K"]
    x = np.random.default_rng(3).standard_normal((256, 256)).astype(np.float32)
    sub = x.reshape(256, 16, 16).astype(np.float64)
    scale = np.take_along_axis(sub, np.abs(sub).argmax(2)[..., None], 2) / -32
    top = np.take_along_axis(scale, np.abs(scale).argmax(1)[:, None], 1)
    d = (top / -128).astype(np.float16).astype(np.float64)
    factor = d * np.clip(np.rint(-128 * scale / top), -128, 127)
    plain = np.clip(np.rint(sub / factor), -32, 31) * factor
    grid = np.square(plain - sub).mean() / np.square(sub).mean()
    assert nmse(dtype, x, dtype.encode(x)) < 0.93 * grid


@each
@pytest.mark.parametrize("scale", [1e-2, 1.0, 1e3])
@pytest.mark.parametrize("shift", [0.0, 3.0, -3.0])
def test_error_of_other_data_is_bounded(dtype, scale, shift):
    # Outliers and offsets: the fits must never be worse than a plain grid over the range of a block; of types with few
    # values the whole block may lie anywhere in its range.
    x = np.random.default_rng(5).standard_t(3, (4, 512)) + shift
    scale = min(scale, 20) if dtype.name in ("nvfp4", "q8_1") else scale  # a largest scale; an f16 sum of quants
    x = (np.clip(x, -60, 60) * scale).astype(np.float32)
    blocks = x.reshape(-1, dtype.block).astype(np.float64)
    span = np.maximum(blocks.max(1), 0) - np.minimum(blocks.min(1), 0)
    if dtype.name not in ("q4_1", "q5_1", "q2_K", "q4_K", "q5_K"):  # symmetric: the grid covers +-max
        span = 2 * np.abs(blocks).max(1)
    digit = int(next(c for c in dtype.name if c.isdigit()))
    levels = {4: 7 if dtype not in AS_GGUF else 15, 5: 31, 6: 63, 8: 254}.get(digit, 1)
    if dtype.name in ("mxfp4", "nvfp4"):
        levels = 4
    if dtype.name == "q4_K":
        levels = 15
    step = span / levels * 1.2 + span * 2e-3  # f16 and coded scales
    error = np.abs(dtype.decode(dtype.encode(x)).reshape(blocks.shape) - blocks).max(1)
    assert (error <= step).all()


@each
@settings(max_examples=15)  # blocks of 256 are slow to draw
@given(data=st.data())
def test_laws_of_encode(dtype, data):
    row = data.draw(hnp.arrays(np.float32, dtype.block, elements=ELEMENTS))
    assert not dtype.decode(dtype.encode(np.zeros_like(row))).any()
    raw = dtype.encode(row)
    assert dtype.first_bad_block(raw) is None
    # Blocks do not know each other, nor where they lie.
    np.testing.assert_array_equal(dtype.encode(np.stack([row * 0, row])[::-1]), np.stack([raw, dtype.encode(row * 0)]))
    # A power of two moves only the scales: quants have the same bits as long as f16 is normal.
    top = np.abs(row).max()
    if 0.1 < top < 1e3 and np.abs(row[row != 0]).min() > 1e-3 and dtype in AS_GGUF:
        np.testing.assert_array_equal(dtype.decode(dtype.encode(row * 4)), dtype.decode(raw) * 4)


@each
def test_blocks_of_many_pieces_do_not_know_each_other(dtype):
    n = (1 << 16) // dtype.block + 7
    few = np.random.default_rng(8).standard_normal((5, dtype.block)).astype(np.float32)
    if dtype.name.startswith(("iq1", "iq2", "iq3")):  # slow: fewer, but more than one product
        n = 67
    x = few[np.arange(n) % 5]
    np.testing.assert_array_equal(dtype.encode(x), np.stack([dtype.encode(row) for row in few])[np.arange(n) % 5])


@each
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_numbers_are_refused(dtype, bad):
    x = np.ones((3, dtype.block), np.float32)
    x[2, 7] = bad
    with pytest.raises(AttributeValueError, match=rf"\[encode {dtype}\] block 2 holds inf or NaN"):
        dtype.encode(x)
    with pytest.raises(ValueError, match="must be finite in f32"):
        dtype.encode(np.full(dtype.block, 1e300))


@pytest.mark.parametrize("dtype", [d for d in BLOCKS if not d.name.startswith(("iq1", "iq2", "iq3"))], ids=repr)
def test_a_late_block_is_counted_from_the_start(dtype):
    x = np.ones(((1 << 16) // dtype.block + 9, dtype.block), np.float32)  # two pieces of the encoder
    x[-2, 3] = np.nan
    with pytest.raises(AttributeValueError, match=f"block {len(x) - 2} holds"):
        dtype.encode(x)
    x[-2] = -1e30
    x[-2, ::2] = 1e30
    if dtype.name not in WITHOUT_F16:
        with pytest.raises(AttributeValueError, match=f"block {len(x) - 2} spans up to 1e"):
            dtype.encode(x)


@pytest.mark.parametrize("dtype", [d for d in BLOCKS if d.name not in WITHOUT_F16], ids=repr)
@pytest.mark.parametrize("size", [1e9, 1e30, 3.3e38])
def test_a_scale_beyond_f16_is_refused(dtype, size):
    x = np.random.default_rng(0).uniform(0.5, 1, (2, dtype.block)).astype(np.float32)
    x[1] *= np.where(np.arange(dtype.block) % 2, size, -size)
    with pytest.raises(AttributeValueError, match=rf"\[encode {dtype}\] block 1 spans up to .* must fit f16"):
        dtype.encode(x)


@pytest.mark.parametrize("name", WITHOUT_F16)
@pytest.mark.parametrize("size", [1e9, 3.3e38])
def test_other_scales_reach_further_or_end_at_their_largest(name, size):
    dtype = DTYPES[name]
    x = (np.linspace(-1, 1, dtype.block) * size).astype(np.float32)
    got = dtype.decode(dtype.encode(x))
    if name == "nvfp4":
        assert np.abs(got).max() == 448 * 6
    else:
        np.testing.assert_allclose(got, x, atol=size / 3)


@pytest.mark.parametrize("name", ["q4_1", "q5_1", "q2_K", "q4_K", "q5_K"])
def test_a_minimum_beyond_f16_is_refused(name):
    dtype = DTYPES[name]
    with pytest.raises(AttributeValueError, match="must fit f16"):
        dtype.encode(np.full(dtype.block, -1e7, np.float32))


@each
@pytest.mark.parametrize("size", [1e-45, 1e-40, 1e-38, 1e-30, 1e-10])
def test_tiny_blocks_become_near_zero_and_nothing_worse(dtype, size):
    x = (np.linspace(-1, 1, dtype.block) * size).astype(np.float32)
    got = dtype.decode(dtype.encode(x))
    assert np.isfinite(got).all()
    assert np.abs(got).max() <= 1e-6


@each
def test_a_kernel_turns_what_can_not_be_coded_into_zeros_and_leaves_its_neighbours(dtype):
    x = np.random.default_rng(9).standard_normal((2, 3 * dtype.block)).astype(np.float32)
    good = as_bytes(convert(x, dtype)[0])
    np.testing.assert_array_equal(good, dtype.encode(x))
    blocks = x.reshape(6, dtype.block)
    for value in (np.nan, np.inf, -np.inf, 3e38):
        if value == 3e38 and dtype.name in WITHOUT_F16:
            continue
        broken = blocks.copy()
        broken[4, 5] = value
        got, bad = convert(broken.reshape(x.shape), dtype)
        assert bad == 4
        rows = as_bytes(got).reshape(6, -1)
        assert not dtype.decode(rows[4]).any()
        np.testing.assert_array_equal(np.delete(rows, 4, 0), np.delete(good.reshape(6, -1), 4, 0))


def test_the_activation_types_hold_the_numbers_of_the_functions():
    x = np.random.default_rng(2).standard_normal((3, 512)).astype(np.float32)
    q, d, s = quantise_q8_1(x)
    raw = DTYPES["q8_1"].encode(x).reshape(3, 16, 36)
    np.testing.assert_array_equal(raw[..., 4:].view(np.int8).reshape(x.shape), q)
    np.testing.assert_array_equal(np.ascontiguousarray(raw[..., :2]).view("<f2")[..., 0], d.astype(np.float16))
    np.testing.assert_array_equal(np.ascontiguousarray(raw[..., 2:4]).view("<f2")[..., 0], s.astype(np.float16))
    np.testing.assert_array_equal(quantise_q8_0(x)[0], q)
    q, d, sums = quantise_q8_K(x)
    raw = DTYPES["q8_K"].encode(x).reshape(3, 2, 292)
    np.testing.assert_array_equal(
        DTYPES["q8_K"].decode(raw.reshape(3, -1)).reshape(3, 2, 256), q.reshape(3, 2, 256) * d[..., None]
    )
    np.testing.assert_array_equal(np.ascontiguousarray(raw[..., 260:]).view("<i2").reshape(3, 32), sums)


def weighted_error(dtype, x, raw, importance):
    return (importance * np.square(dtype.decode(raw).astype(np.float64) - x)).sum()


@weighed
def test_importance_moves_the_error_to_where_it_matters_less(dtype):
    rng = np.random.default_rng(13)
    x = rng.standard_normal((12, 512)).astype(np.float32)
    importance = np.where(rng.random(512) < 0.25, 100.0, 1.0)
    plain, aware = dtype.encode(x), dtype.encode(x, importance)
    if dtype.name == "iq4_nl":  # its codes follow from the largest element, so only the scale can give way
        assert weighted_error(dtype, x, aware, importance) < weighted_error(dtype, x, plain, importance)
    else:
        assert weighted_error(dtype, x, aware, importance) < 0.97 * weighted_error(dtype, x, plain, importance)
    # Rows share the columns' weights, and only ratios count.
    np.testing.assert_array_equal(dtype.encode(x[3], importance), aware[3])
    np.testing.assert_array_equal(dtype.encode(x, importance * 1024), aware)


@weighed
def test_equal_or_no_importance_keeps_the_quality(dtype):
    x = np.random.default_rng(17).standard_normal((16, 256)).astype(np.float32)
    for importance in (np.ones(256), np.zeros(256)):
        assert nmse(dtype, x, dtype.encode(x, importance)) < 1.1 * NMSE[dtype.name]
    holes = np.where(np.arange(256) < 64, 0.0, 1.0)  # whole sub-blocks that count for nothing are still coded
    assert nmse(dtype, x, dtype.encode(x, holes)) < 1.2 * NMSE[dtype.name]


@each
def test_wrong_importance_is_named_and_unweighted_types_take_any(dtype):
    x = np.random.default_rng(1).standard_normal((2, dtype.block)).astype(np.float32)
    with pytest.raises(ShapeError, match=rf"\[encode {dtype}\] importance is \[3\]: it must be \[{dtype.block}\]"):
        dtype.encode(x, np.ones(3))
    for wrong in (-1.0, np.nan, np.inf):
        with pytest.raises(AttributeValueError, match="importance holds negative numbers, inf or NaN"):
            dtype.encode(x, np.full(dtype.block, wrong))
    if not dtype.heeds_importance:
        np.testing.assert_array_equal(dtype.encode(x, np.arange(dtype.block)), dtype.encode(x))


NO_NUMBERS = {
    "complex": np.ones(256, complex),
    "text": "x",
    "texts": ["x"] * 256,
    "objects": [None] * 256,
    "large integers": [10**400] * 256,
    "dates": np.zeros(256, "M8[s]"),
    "records": np.zeros(256, [("a", "f4")]),
    "bytes without a type": np.zeros(256, "V4"),
}


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("name", NO_NUMBERS)
def test_what_is_no_real_number_is_named(dtype, name):
    with pytest.raises((DTypeError, ShapeError), match=rf"^\[encode {dtype.name}\] x (is|has) "):
        dtype.encode(NO_NUMBERS[name])
    with pytest.raises((DTypeError, ShapeError), match=rf"^\[encode {dtype.name}\] importance (is|has) "):
        dtype.encode(np.ones(256), importance=NO_NUMBERS[name])


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_rows_of_unequal_length_are_named(dtype):
    with pytest.raises(ShapeError, match=rf"^\[encode {dtype.name}\] x is no array: .* must be rows of equal length$"):
        dtype.encode([[1.0], [1.0, 2.0]])
    with pytest.raises(ShapeError, match=rf"^\[encode {dtype.name}\] importance is no array"):
        dtype.encode(np.ones(256), importance=[1.0, [1.0, 2.0]])


@given(st.sampled_from([d for d in DTYPES.values() if d.numpy is not None]), st.sampled_from(list(DTYPES.values())))
def test_arrays_of_every_plain_dtype_are_real_numbers(given_dtype, dtype):
    """bf16 too, which is of numpy's kind for raw bytes."""
    ones = np.ones(256).astype(given_dtype.numpy)
    assert np.array_equal(dtype.encode(ones, importance=ones), dtype.encode(np.ones(256)))


def test_sweeps_over_three_bits_find_better_scales():
    """Elements count by their squares; the first grid puts the largest at -4."""
    x = np.random.default_rng(12).standard_normal((4000, 16)).astype(np.float32)
    wide, w = x.astype(np.float64), np.square(x.astype(np.float64))

    def misfit(scale):
        return (w * np.square(wide - scale * np.clip(np.rint(wide / scale), -4, 3))).sum()

    level = np.clip(np.rint(-4 * wide / largest(wide)), -4, 3)
    first = (w * wide * level).sum(1, keepdims=True) / (w * level * level).sum(1, keepdims=True)
    assert misfit(three_bits(x, None).astype(np.float64)) < 0.93 * misfit(first)
