"""Block dtypes of 4-bit floats (E2M1): mxfp4 with a power of two as scale, nvfp4 with an E4M3 scale for each 16.

Decoding was checked bit for bit against the package `gguf` (0.19), encoding of mxfp4 byte for byte; it cannot encode
nvfp4. E2M1 values are kept doubled, so both scales carry a factor of one half.
"""

from __future__ import annotations

import numpy as np

from jackfield.dtypes.codebooks import E2M1_VALUES, e4m3_values
from jackfield.dtypes.dtype import F32, U8, Bad, Codec

_VALUES = np.array(E2M1_VALUES, np.float32)
# Scales of mxfp4, 2**(e - 128) from the bits of f32: the first two are subnormal.
_POWERS = np.array([0x200000, 0x400000, *(e << 23 for e in range(1, 255))], np.uint32).view(np.float32)
_TOP = np.uint8(0x7E)  # the largest scale of nvfp4: 448


def _nearest(x: F32, scale: F32) -> U8:
    """First of the 16 codes whose value times scale is nearest to x; scale broadcasts against x."""
    best = np.zeros(x.shape, np.uint8)
    least = np.abs(x)
    for code in range(1, 16):
        error = np.abs(scale * _VALUES[code] - x)
        better = error < least
        best[better] = code
        np.minimum(least, error, out=least)
    return best


def _decode_mxfp4(blocks: U8, out: F32) -> None:
    d, qs = _POWERS[blocks[:, :1]], blocks[:, 1:]
    np.multiply(d, _VALUES[qs & 15], out=out[:, :16])
    np.multiply(d, _VALUES[qs >> 4], out=out[:, 16:])


def _encode_mxfp4(x: F32, blocks: U8) -> None:
    top = np.abs(x).max(axis=1, keepdims=True)
    e = np.where(top > 0, np.clip(np.floor(np.log2(top)) + 125, 0, 254), 0).astype(np.uint8)
    q = _nearest(x, _POWERS[e])
    blocks[:, :1] = e
    blocks[:, 1:] = q[:, :16] | q[:, 16:] << 4


def _decode_nvfp4(blocks: U8, out: F32) -> None:
    d = (np.float32(0.5) * e4m3_values()[blocks[:, :4]])[:, :, None]
    qs, groups = blocks[:, 4:].reshape(-1, 4, 8), out.reshape(-1, 4, 16)
    np.multiply(d, _VALUES[qs & 15], out=groups[:, :, :8])
    np.multiply(d, _VALUES[qs >> 4], out=groups[:, :, 8:])


def _to_e4m3(x: F32) -> U8:
    """The byte of unsigned E4M3 for x >= 0: beyond 448 the largest, halves up."""
    x = np.minimum(x, np.float32(448))
    small = np.minimum(np.trunc(x * np.float32(512) + np.float32(0.5)), 7).astype(np.uint8)
    bits = x.view(np.uint32)
    # Exponent and three bits of fraction as one number, the next bit added: a carry moves into the exponent.
    normal = (bits >> 20).astype(np.int32) + (bits >> 19 & 1).astype(np.int32) - (120 << 3)
    return np.where(bits >> 23 <= 120, small, np.minimum(normal, _TOP).astype(np.uint8))


def _encode_nvfp4(x: F32, blocks: U8) -> None:
    groups = x.reshape(-1, 4, 16)
    blocks[:, :4] = _to_e4m3(np.abs(groups).max(axis=2) / np.float32(6))
    scale = (np.float32(0.5) * e4m3_values()[blocks[:, :4]])[:, :, None]
    reach = np.float32(12) * scale  # beyond it differences could round to equal ones
    q = _nearest(np.clip(groups, -reach, reach), scale)
    blocks[:, 4:] = (q[:, :, :8] | q[:, :, 8:] << 4).reshape(-1, 32)


def _bad_mxfp4(blocks: U8) -> Bad:
    return (blocks[:, :1] == 255).any(axis=1)


def _bad_nvfp4(blocks: U8) -> Bad:
    return np.asarray((blocks[:, :4] > _TOP).any(axis=1))


MXFP4 = Codec(_decode_mxfp4, _encode_mxfp4, _bad_mxfp4)
NVFP4 = Codec(_decode_nvfp4, _encode_nvfp4, _bad_nvfp4)
