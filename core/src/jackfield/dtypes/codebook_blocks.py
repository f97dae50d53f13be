"""Block dtypes of 4-bit codes for 16 unevenly spaced values: iq4_nl, and iq4_xs with coded scales for each 32.

Decoding was checked bit for bit against the package `gguf` (0.19). The encoders are our own fits: the error is
promised, not the bytes.
"""

from __future__ import annotations

import numpy as np

from jackfield.dtypes.codebooks import IQ4_VALUES
from jackfield.dtypes.dtype import F32, U8, Codec, f16_at
from jackfield.dtypes.fits import best_scale, scaled_to_largest, weights
from jackfield.dtypes.small_blocks import largest, read_f16, write_f16

_VALUES = np.array(IQ4_VALUES, np.float32)
# The code by twice a number, rounded down: the borders between two values are whole or half numbers.
_REACH = 256
_NEAREST = np.searchsorted(_VALUES[:-1] + _VALUES[1:], np.arange(-_REACH, _REACH), side="right").astype(np.uint8)
_PAIRS = np.array([0, 2, 4, 6], np.uint8)  # shifts of the four 2-bit fields of a byte


def _nearest(y: F32) -> U8:
    """Code of the value nearest to y; halfway, the larger value."""
    half = np.fmax(np.fmin(np.floor(2 * y), _REACH - 1), -_REACH)  # of a NaN, which a scale beyond f16 makes, no NaN
    return _NEAREST[half.astype(np.intp) + _REACH]


def _fit(x: F32, importance: F32 | None, tries: int) -> tuple[F32, U8]:
    """Scale (m, 1) of each row of x (m, 32), of either sign, and the codes (m, 32) of the first trial.

    Without tries the largest element becomes the first value; with tries also its negative, and its neighbours.
    """
    u, v, flat = scaled_to_largest(x)
    w = weights(u, importance, np.square)
    tops = (-_VALUES[0], *(t + _VALUES[0] for t in range(-tries, tries + 1))) if tries else (_VALUES[0],)
    codes = _nearest(tops[0] * u)
    scale = best_scale(u, w, (_VALUES[_nearest(np.float32(top) * u)] for top in tops))
    return np.where(flat, 0, scale * v), codes


def _pack(q: U8) -> U8:
    return q[..., :16] | q[..., 16:] << np.uint8(4)


def _decode_iq4_nl(blocks: U8, out: F32) -> None:
    d, qs = read_f16(blocks, 0), blocks[:, 2:]
    np.multiply(d, _VALUES[qs & 15], out=out[:, :16])
    np.multiply(d, _VALUES[qs >> 4], out=out[:, 16:])


def _encode_iq4_nl(x: F32, blocks: U8, importance: F32 | None = None) -> None:
    scale, codes = _fit(x, importance, 0)
    write_f16(blocks, 0, scale)
    blocks[:, 2:] = _pack(codes)


def _scaled(blocks: U8) -> F32:
    """Factors of the 8 sub-blocks of iq4_xs: f32 (n, 8, 1)."""
    low = np.stack([blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4], axis=2).reshape(-1, 8)
    high = (blocks[:, 2:4, None] >> _PAIRS & 3).reshape(-1, 8)
    return (read_f16(blocks, 0) * ((low | high << 4).view(np.int8) - np.int8(32)))[:, :, None]


def _decode_iq4_xs(blocks: U8, out: F32) -> None:
    factor = _scaled(blocks)
    qs, rows = blocks[:, 8:].reshape(-1, 8, 16), out.reshape(-1, 8, 32)
    np.multiply(factor, _VALUES[qs & 15], out=rows[:, :, :16])
    np.multiply(factor, _VALUES[qs >> 4], out=rows[:, :, 16:])


def _encode_iq4_xs(x: F32, blocks: U8, importance: F32 | None = None) -> None:
    scale = _fit(x.reshape(-1, 32), importance, 7)[0].reshape(-1, 8)
    d = largest(scale) / np.float32(-32)
    codes = (np.clip(np.rint(np.where(d == 0, 0, scale / d)), -32, 31) + 32).astype(np.uint8)
    write_f16(blocks, 0, d)
    blocks[:, 2:4] = np.bitwise_or.reduce((codes >> 4).reshape(-1, 2, 4) << _PAIRS, axis=2)
    blocks[:, 4:8] = codes[:, 0::2] & 15 | codes[:, 1::2] << 4
    factor = _scaled(blocks)
    y = np.where(factor == 0, 0, x.reshape(-1, 8, 32) / factor)
    blocks[:, 8:] = _pack(_nearest(y)).reshape(-1, 128)


IQ4_NL = Codec(_decode_iq4_nl, _encode_iq4_nl, f16_at(0), _encode_iq4_nl)
IQ4_XS = Codec(_decode_iq4_xs, _encode_iq4_xs, f16_at(0), _encode_iq4_xs)
