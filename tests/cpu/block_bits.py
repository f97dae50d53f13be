"""Where the scales of each block dtype lie, so that tests can plant some in blocks of random bits."""

from __future__ import annotations

from functools import cache

import numpy as np

from jackfield.dtypes import DTYPES

_EIGHT = {"iq2_xxs": 8, "iq2_xs": 8, "iq2_s": 8, "iq3_xxs": 4, "iq1_s": 8, "iq1_m": 8}  # what makes whole numbers


def random_blocks(dtype, shape, rng):
    """Blocks of random bits with small scales: u8 (..., blocks, bytes of one)."""
    raw = rng.integers(0, 256, (*shape[:-1], shape[-1] // dtype.block, dtype.block_nbytes), np.uint8)
    set_scales(dtype.name, raw, lambda: rng.standard_normal(raw.shape[:-1]) * 0.01)
    if dtype.name == "mxfp4":
        raw[..., 0] = rng.integers(110, 125, raw.shape[:-1])
    if dtype.name == "nvfp4":
        raw[..., :4] = rng.integers(0, 0x30, (*raw.shape[:-1], 4))
    return raw


def set_scales(name, raw, draw):
    """Give blocks raw u8 (..., bytes) the scales and minima of draw(), real numbers (...)."""
    for at in _halves(name):
        raw[..., at : at + 2] = _bytes(draw())
    if name == "iq1_m":
        _spread(raw, draw())
    if name == "nvfp4":
        raw[..., :4] &= 0x7F


def set_unit_scales(name, raw):
    """Scales, coded ones too, with which blocks decode to their quants, which are whole numbers; no minima."""
    for at, value in zip(_halves(name), (_EIGHT.get(name, 1), 0), strict=False):
        raw[..., at : at + 2] = _bytes(np.float16(value))
    if name == "iq1_m":
        raw[..., 48:56] = 0
        _spread(raw, np.full(raw.shape[:-1], 8.0))
    if name == "mxfp4":
        raw[..., 0] = 128
    if name == "nvfp4":
        raw[..., :4] = 0x40
    for where, value in _CODED.get(name, ()):
        raw[..., where] = value
    for where, mask in _MASKED.get(name, ()):
        raw[..., where] &= mask


# Coded scales that stand for one.
_CODED = {
    "q2_K": ((slice(0, 16), 1),),
    "q3_K": ((slice(96, 104), 0x11), (slice(104, 108), 0xAA)),
    "q4_K": ((slice(4, 8), 1), (slice(8, 12), 0), (slice(12, 16), 1)),
    "q5_K": ((slice(4, 8), 1), (slice(8, 12), 0), (slice(12, 16), 1)),
    "q6_K": ((slice(192, 208), 1),),
    "iq2_xs": ((slice(66, 74), 0),),
    "iq2_s": ((slice(74, 82), 0),),
    "iq3_s": ((slice(106, 110), 0),),
    "iq4_xs": ((slice(2, 4), 0xAA), (slice(4, 8), 0x11)),
}
# Bits that lie beside others in their byte.
_MASKED = {
    "iq2_xxs": ((slice(9, 66, 8), 0x0F),),
    "iq3_xxs": ((slice(69, 98, 4), 0x0F),),
    "iq1_s": ((slice(35, 50, 2), 0x8F),),
}


@cache
def _halves(name):
    """Byte offsets of f16 fields, first the scale, then a minimum: where an inf makes a block bad for the core.

    None for mxfp4 and nvfp4, which have bytes, and for iq1_m, which has four bits in each of four words.
    """
    dtype = DTYPES[name]
    blocks = np.zeros((dtype.block_nbytes - 1, dtype.block_nbytes), np.uint8)
    np.fill_diagonal(blocks[:, 1:], 0x7C)  # block i has an f16 inf at byte i
    return tuple(at for at, block in enumerate(blocks) if dtype.first_bad_block(block) is not None)


def _bytes(values):
    halves = np.asarray(values).astype("<f2")
    return np.ascontiguousarray(halves[..., None]).view(np.uint8)


def _spread(raw, values):
    """A half whose bits are the upper four of the words of iq1_m at byte 48."""
    bits = np.asarray(values).astype("<f2").view("<u2")
    for i in range(4):
        at = 49 + 2 * i
        raw[..., at] = (raw[..., at] & 0x0F) | (bits >> 4 * i << 4 & 0xF0).astype(np.uint8)
