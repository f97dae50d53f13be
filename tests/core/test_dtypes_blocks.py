"""Decoding of block dtypes against the package `gguf` and recorded digests, and the check of their scales."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from block_facts import BLOCKS, DECODED, F16_SCALES, WITHOUT_ORACLE, bits, digest, f16_bytes, oracle, random_blocks
from hypothesis import given, settings
from hypothesis import strategies as st

from jackfield.dtypes import DTYPES

each = pytest.mark.parametrize("dtype", BLOCKS, ids=repr)
each_with_oracle = pytest.mark.parametrize("dtype", [d for d in BLOCKS if d.name not in WITHOUT_ORACLE], ids=repr)


def theirs(dtype, raw):
    with np.errstate(all="ignore"):  # scales of mxfp4 reach beyond f32
        return gguf.quants.dequantize(raw, oracle(dtype))


@pytest.mark.parametrize("name", DECODED)
def test_golden_decode(name):
    dtype = DTYPES[name]
    b, i = np.mgrid[0:4, 0 : dtype.block_nbytes]
    raw = ((37 * i + 11 * b + 5) % 256).astype(np.uint8)
    for start, at in zip((0x2C00, 0x2800), F16_SCALES[name], strict=False):
        raw[:, at : at + 2] = (start + 0x111 * np.arange(4)).astype("<u2")[:, None].view(np.uint8)
    if name == "iq1_m":
        raw[:, 55] &= 0xBF
    if name == "mxfp4":
        raw[:, 0] = 120 + np.arange(4)
    if name == "nvfp4":
        raw[:, :4] &= 0x7F
    assert digest(dtype.decode(raw)) == DECODED[name]


@each_with_oracle
@settings(max_examples=20)  # of 60 random blocks each
@given(seed=st.integers(0, 2**32))
def test_decode_has_the_bits_of_gguf(dtype, seed):
    raw = random_blocks(dtype, seed, 60)
    np.testing.assert_array_equal(bits(dtype.decode(raw)), bits(theirs(dtype, raw)))


@each
def test_decode_of_many_rows_and_axes(dtype):
    # More than one piece of the decoder, in a shape of rank 3, read through a transposed view.
    n = (1 << 16) // dtype.block + 7
    flat = random_blocks(dtype, 1, 2 * n)
    raw = flat.reshape(2, n, -1).swapaxes(0, 1)
    got = dtype.decode(raw)
    assert got.shape == (n, 2, dtype.block)
    one_by_one = np.stack([dtype.decode(block) for block in flat[::97]])
    np.testing.assert_array_equal(bits(got.swapaxes(0, 1).reshape(2 * n, -1)[::97]), bits(one_by_one))
    if dtype.name not in WITHOUT_ORACLE:
        rows = np.ascontiguousarray(raw).reshape(2 * n, -1)
        np.testing.assert_array_equal(bits(got.reshape(2 * n, -1)), bits(theirs(dtype, rows).reshape(2 * n, -1)))


@each_with_oracle
def test_decode_of_all_values_of_a_byte(dtype):
    raw = np.repeat(np.arange(256, dtype=np.uint8)[:, None], dtype.block_nbytes, axis=1)
    for at in F16_SCALES[dtype.name]:
        raw[:, at : at + 2] = f16_bytes(0x35EC)
    if dtype.name == "mxfp4":
        raw[:, 0] = np.arange(256)[::-1] % 255
    if dtype.name == "nvfp4":
        raw[:, :4] = np.arange(256)[::-1, None] % 0x7F
    if dtype.name == "iq1_m":
        raw[:, 55] &= 0xBF
    np.testing.assert_array_equal(bits(dtype.decode(raw)), bits(theirs(dtype, raw)))


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4"])
def test_decode_of_all_scale_bytes(name):
    dtype, width = DTYPES[name], {"mxfp4": 1, "nvfp4": 4}[name]
    raw = np.random.default_rng(4).integers(0, 256, (256, dtype.block_nbytes), dtype=np.uint8)
    raw[:, :width] = np.arange(256)[:, None]
    np.testing.assert_array_equal(bits(dtype.decode(raw)), bits(theirs(dtype, raw)))


def test_decode_of_the_types_that_gguf_can_not_decode():
    # By the definition, an element at a time.
    rng = np.random.default_rng(6)
    for name in ("q1_0", "q2_0", "q8_1", "q8_K"):
        dtype = DTYPES[name]
        for raw in random_blocks(dtype, int(rng.integers(99)), 20):
            d = raw[:4].view("<f4")[0] if name == "q8_K" else raw[:2].view("<f2")[0].astype(np.float32)
            want = []
            for e in range(dtype.block):
                if name == "q1_0":
                    q = 1 if raw[2 + e // 8] >> e % 8 & 1 else -1
                elif name == "q2_0":
                    q = int(raw[2 + e // 4] >> 2 * (e % 4) & 3) - 1
                else:
                    q = int(raw[4 + e].view(np.int8))
                want.append(d * np.float32(q))
            np.testing.assert_array_equal(bits(dtype.decode(raw)), bits(np.array(want)))


def spoilt(dtype, block):
    """Copies of a block with a scale that is not allowed."""
    wrong = []
    for at in F16_SCALES[dtype.name]:
        for pattern in (0x7C00, 0xFC00, 0x7E01):
            wrong.append(block.copy())
            wrong[-1][at : at + 2] = f16_bytes(pattern)
    if dtype.name == "iq1_m":
        for pattern in (0x7C00, 0xFC00, 0x7E01):
            wrong.append(block.copy())
            nibbles = np.array([pattern >> 4 * i & 15 for i in range(4)], np.uint8)
            wrong[-1][49::2] = wrong[-1][49::2] & 15 | nibbles << 4
    if dtype.name == "q8_K":
        for pattern in (0x7F800000, 0xFF800000, 0x7FC00001):
            wrong.append(block.copy())
            wrong[-1][:4] = np.array([pattern], "<u4").view(np.uint8)
    if dtype.name == "mxfp4":
        wrong.append(block.copy())
        wrong[-1][0] = 255
    if dtype.name == "nvfp4":
        for at, byte in ((0, 0x7F), (1, 0x80), (3, 0xFF)):
            wrong.append(block.copy())
            wrong[-1][at] = byte
    return wrong


@each
@settings(max_examples=10)
@given(seed=st.integers(0, 99), at=st.integers(0, 9))
def test_the_first_bad_block_is_found(dtype, seed, at):
    raw = random_blocks(dtype, seed, 10)
    assert dtype.first_bad_block(raw) is None
    assert dtype.name == "mxfp4" or np.isfinite(dtype.decode(raw)).all()
    cases = spoilt(dtype, raw[at])
    assert cases
    for wrong in cases:
        broken = raw.copy()
        broken[at:] = wrong
        assert dtype.first_bad_block(broken.reshape(2, -1)) == at


@each
def test_what_a_reserved_scale_means_is_no_crash(dtype):
    for wrong in spoilt(dtype, random_blocks(dtype, 5, 1)[0]):
        assert dtype.decode(wrong).shape == (dtype.block,)


@pytest.mark.parametrize("blocks", [1, 2, 33])
@pytest.mark.parametrize("dtype", [d for d in DTYPES.values() if d.is_block], ids=str)
def test_looking_for_bad_blocks_and_decoding_change_nothing(dtype, blocks):
    """One block alone is where a slice of a column is no copy."""
    raw = np.random.default_rng(5).integers(0, 256, (blocks, dtype.block_nbytes), np.uint8)
    kept = raw.copy()
    raw.flags.writeable = False
    with np.errstate(all="ignore"):
        dtype.first_bad_block(raw)
        dtype.decode(raw)
    np.testing.assert_array_equal(raw, kept)
    writeable = kept.copy()
    with np.errstate(all="ignore"):
        dtype.first_bad_block(writeable)
        dtype.decode(writeable)
    np.testing.assert_array_equal(writeable, kept)


def test_plain_dtypes_have_no_bad_blocks():
    assert DTYPES["f32"].first_bad_block(np.full(4, 255, np.uint8)) is None
