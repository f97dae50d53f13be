"""Block dtypes against the package `gguf`, recorded digests, float64 and their own laws."""

from __future__ import annotations

import hashlib

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jackfield.dtypes import DTYPES
from jackfield.errors import AttributeValueError

BLOCKS = [dtype for dtype in DTYPES.values() if dtype.is_block]
SMALL = [dtype for dtype in BLOCKS if dtype.block == 32]
each = pytest.mark.parametrize("dtype", BLOCKS, ids=repr)
each_small = pytest.mark.parametrize("dtype", SMALL, ids=repr)

# Where the f16 scales of each layout stand, said again here so that the codec's own list is checked.
SCALES = {"q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "q8_0": (0,)}
SCALES |= {"q4_K": (0, 2), "q5_K": (0, 2), "q6_K": (208,)}

# First 12 hex digits of sha256, from the format notes of the block types; those of encode equal gguf's.
DECODED = {
    "q4_0": "78f61ec85f70",
    "q4_1": "d6ca93081d56",
    "q5_0": "cadca78afc42",
    "q5_1": "1beb3d33e5bf",
    "q8_0": "62dc53ba715a",
    "q4_K": "696786a7bf71",
    "q5_K": "d18266ba32e6",
    "q6_K": "46315d55591d",
}
ENCODED = {
    "q4_0": "45669ab9640e",
    "q4_1": "0a59f987dc15",
    "q5_0": "6712f283b1ad",
    "q5_1": "7715a7251c91",
    "q8_0": "e9b161128423",
}
# Allowed mean squared error over mean square, x ~ N(0, 1).
NMSE = {
    "q4_0": 0.008,
    "q4_1": 0.0066,
    "q5_0": 0.002,
    "q5_1": 0.0016,
    "q8_0": 3.2e-5,
    "q4_K": 0.0056,
    "q5_K": 0.0015,
    "q6_K": 3.5e-4,
}


def oracle(dtype):
    return gguf.GGMLQuantizationType(dtype.gguf_id)


def digest(array):
    return hashlib.sha256(array.tobytes()).hexdigest()[:12]


def bits(x):
    return np.ascontiguousarray(x, np.float32).view(np.uint32)


def nmse(dtype, x):
    wide = x.astype(np.float64)
    return np.square(dtype.decode(dtype.encode(x)) - wide).mean() / np.square(wide).mean()


def random_blocks(dtype, seed, n=600):
    raw = np.random.default_rng(seed).integers(0, 256, (n, dtype.block_nbytes), dtype=np.uint8)
    for at in SCALES[dtype.name]:
        raw[:, at + 1] &= 0xBF  # one exponent bit clear: finite
        raw[: n // 4, at + 1] &= 0x83  # a quarter of them subnormal
    return raw


@each
def test_golden_decode(dtype):
    b, i = np.mgrid[0:4, 0 : dtype.block_nbytes]
    raw = ((37 * i + 11 * b + 5) % 256).astype(np.uint8)
    for start, at in zip((0x2C00, 0x2800), SCALES[dtype.name], strict=False):
        raw[:, at : at + 2] = (start + 0x111 * np.arange(4)).astype("<u2")[:, None].view(np.uint8)
    assert digest(dtype.decode(raw)) == DECODED[dtype.name]


@each_small
def test_golden_encode(dtype):
    b, e = np.mgrid[0:4, 0 : dtype.block]
    x = ((((7 * e * e + 13 * b) % 61) - 30) / 8).astype(np.float32)
    assert digest(dtype.encode(x)) == ENCODED[dtype.name]


@each
@settings(max_examples=20)  # of 60 random blocks each
@given(seed=st.integers(0, 2**32))
def test_decode_has_the_bits_of_gguf(dtype, seed):
    raw = random_blocks(dtype, seed, 60)
    np.testing.assert_array_equal(bits(dtype.decode(raw)), bits(gguf.quants.dequantize(raw, oracle(dtype))))


@each
def test_decode_of_many_rows_and_axes(dtype):
    # More than one piece of the decoder, in a shape of rank 3, read through a transposed view.
    n = (1 << 16) // dtype.block + 7
    raw = random_blocks(dtype, 1, 2 * n).reshape(2, n, -1).swapaxes(0, 1)
    got = dtype.decode(raw)
    assert got.shape == (n, 2, dtype.block)
    want = gguf.quants.dequantize(np.ascontiguousarray(raw).reshape(2 * n, -1), oracle(dtype)).reshape(got.shape)
    np.testing.assert_array_equal(bits(got), bits(want))


@each
def test_decode_of_all_values_of_a_byte(dtype):
    raw = np.repeat(np.arange(256, dtype=np.uint8)[:, None], dtype.block_nbytes, axis=1)
    for at in SCALES[dtype.name]:
        raw[:, at : at + 2] = np.float16(0.37).tobytes()[0], np.float16(0.37).tobytes()[1]
    np.testing.assert_array_equal(bits(dtype.decode(raw)), bits(gguf.quants.dequantize(raw, oracle(dtype))))


# Elements of very different sizes, ties, equal and constant blocks: what rounding trips over.
ELEMENTS = st.one_of(
    st.floats(-3, 3, width=32),
    st.integers(-64, 64).map(lambda i: i / 2),
    st.sampled_from([0.0, -0.0, 1e-4, -1e-4, 2e-8, 1e4, -1e4, 63.5, 127.0, -127.0]),
)


@each_small
@settings(max_examples=40)
@given(data=st.data())
def test_encode_has_the_bytes_of_gguf(dtype, data):
    x = data.draw(hnp.arrays(np.float32, (3, 64), elements=ELEMENTS))
    np.testing.assert_array_equal(dtype.encode(x), gguf.quants.quantize(x, oracle(dtype)))


@each_small
def test_encode_of_special_blocks_has_the_bytes_of_gguf(dtype):
    rng = np.random.default_rng(3)
    rows = [np.zeros(32), np.full(32, 0.3), np.full(32, -7.0), np.full(32, 1e-20), np.full(32, 6e4)]
    rows += [np.where(np.arange(32) == k, v, 0) for k in (0, 13, 31) for v in (5.0, -5.0)]  # one outlier
    rows += [np.where(np.arange(32) % 2, 4.0, -4.0), np.arange(32) - 15.5, np.arange(32) * 0.5 - 8]  # ties
    rows += list(rng.standard_normal((400, 32)) * 10.0 ** rng.uniform(-6, 4, (400, 1)))
    x = np.array(rows, np.float32)
    np.testing.assert_array_equal(dtype.encode(x), gguf.quants.quantize(x, oracle(dtype)))


@each
def test_error_on_gaussian_data_stays_in_the_table(dtype):
    x = np.random.default_rng(11).standard_normal((64, 1024)).astype(np.float32)
    assert nmse(dtype, x) <= NMSE[dtype.name]


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
    assert nmse(dtype, x) < 0.93 * grid


@each
@pytest.mark.parametrize("scale", [1e-2, 1.0, 1e3])
@pytest.mark.parametrize("shift", [0.0, 3.0, -3.0])
def test_error_of_other_data_is_bounded(dtype, scale, shift):
    # Outliers and offsets: the fits must never be worse than a plain grid over the range of a block.
    x = np.random.default_rng(5).standard_t(3, (16, 512)) + shift
    x = (x * scale).astype(np.float32)
    blocks = x.reshape(-1, dtype.block).astype(np.float64)
    span = np.maximum(blocks.max(1), 0) - np.minimum(blocks.min(1), 0)
    levels = {"4": 15, "5": 31, "6": 63, "8": 254}[dtype.name[1]]
    if dtype.name in ("q4_0", "q5_0", "q6_K", "q8_0"):  # symmetric: the grid covers +-max
        span = 2 * np.abs(blocks).max(1)
    step = span / levels * 1.2 + span * 2e-3  # f16 and coded scales
    error = np.abs(dtype.decode(dtype.encode(x)).reshape(blocks.shape) - blocks).max(1)
    assert (error <= step).all()


@each
@settings(max_examples=25)  # blocks of 256 are slow to draw
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
    if 0.1 < top < 1e3 and np.abs(row[row != 0]).min() > 1e-3 and dtype.block == 32:
        np.testing.assert_array_equal(dtype.decode(dtype.encode(row * 4)), dtype.decode(raw) * 4)


@each
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_numbers_are_refused(dtype, bad):
    x = np.ones((3, dtype.block), np.float32)
    x[2, 7] = bad
    with pytest.raises(AttributeValueError, match=rf"\[encode {dtype}\] block 2 holds inf or NaN"):
        dtype.encode(x)
    with pytest.raises(ValueError, match="must be finite in f32"):
        dtype.encode(np.full(dtype.block, 1e300))


@each
def test_a_late_block_is_counted_from_the_start(dtype):
    x = np.ones(((1 << 16) // dtype.block + 9, dtype.block), np.float32)  # two pieces of the encoder
    x[-2, 3] = np.nan
    with pytest.raises(AttributeValueError, match=f"block {len(x) - 2} holds"):
        dtype.encode(x)
    x[-2] = -1e30
    x[-2, ::2] = 1e30
    with pytest.raises(AttributeValueError, match=f"block {len(x) - 2} spans up to 1e"):
        dtype.encode(x)


@each
@pytest.mark.parametrize("size", [1e9, 1e30, 3.3e38])
def test_a_scale_beyond_f16_is_refused(dtype, size):
    x = np.random.default_rng(0).uniform(0.5, 1, (2, dtype.block)).astype(np.float32)
    x[1] *= np.where(np.arange(dtype.block) % 2, size, -size)
    with pytest.raises(AttributeValueError, match=rf"\[encode {dtype}\] block 1 spans up to .* must fit f16"):
        dtype.encode(x)


@pytest.mark.parametrize("name", ["q4_1", "q5_1", "q4_K", "q5_K"])
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
def test_the_first_bad_block_is_found(dtype):
    raw = random_blocks(dtype, 2, 10)
    assert dtype.first_bad_block(raw) is None
    for at in SCALES[dtype.name]:
        for pattern in (0x7C00, 0xFC00, 0x7E01):
            broken = raw.copy()
            broken[4:, at : at + 2] = np.array([pattern], "<u2").view(np.uint8)
            assert dtype.first_bad_block(broken.reshape(2, -1)) == 4


def test_plain_dtypes_have_no_bad_blocks():
    assert DTYPES["f32"].first_bad_block(np.full(4, 255, np.uint8)) is None
