"""Block dtypes of 256 elements with two or three bits each and coded scales for each 16: q2_K q3_K.

Decoding was checked bit for bit against the package `gguf` (0.19); products are rounded in the order scale times coded
scale, times quant, minus coded minimum. The encoders are our own fits: the error is promised, not the bytes.
"""

from __future__ import annotations

import numpy as np

from jackfield.dtypes.dtype import F32, U8, Codec, f16_at
from jackfield.dtypes.fits import affine, coded, three_bits, weights
from jackfield.dtypes.small_blocks import largest, read_f16, write_f16

_PAIRS = np.array([0, 2, 4, 6], np.uint8)  # shifts of the four 2-bit codes of a byte
_BITS = np.arange(8, dtype=np.uint8)


def _two_bits(qs: U8) -> U8:
    """Codes 0 .. 3 in element order: (n, 64) to (n, 16, 16). Byte i of 32 holds elements i, i+32, i+64 and i+96."""
    return (qs.reshape(-1, 2, 1, 32) >> _PAIRS[:, None] & np.uint8(3)).reshape(-1, 16, 16)


def _pack_two_bits(q: U8) -> U8:
    """The way back: (n, 256) to (n, 64)."""
    return np.bitwise_or.reduce(q.reshape(-1, 2, 4, 32) << _PAIRS[:, None], axis=2).reshape(-1, 64)


def _scaled2(blocks: U8) -> tuple[F32, F32]:
    """Factors and minima of the 16 sub-blocks of q2_K: two f32 (n, 16, 1)."""
    scales = blocks[:, :16]
    factor, minimum = read_f16(blocks, 80) * (scales & 15), read_f16(blocks, 82) * (scales >> 4)
    return factor[:, :, None], minimum[:, :, None]


def _decode_q2_k(blocks: U8, out: F32) -> None:
    factor, minimum = _scaled2(blocks)
    rows = out.reshape(-1, 16, 16)
    np.multiply(factor, _two_bits(blocks[:, 16:80]), out=rows)
    rows -= minimum


def _encode_q2_k(x: F32, blocks: U8, importance: F32 | None = None) -> None:
    rows = x.reshape(-1, 16)
    scale, offset = affine(rows, weights(rows, importance, np.abs), 3, -0.5, 15, np.abs)
    d, scales = coded(scale.reshape(-1, 16), 15)
    dmin, minima = coded(-offset.reshape(-1, 16), 15)
    write_f16(blocks, 80, d)
    write_f16(blocks, 82, dmin)
    blocks[:, :16] = scales | minima << 4
    factor, minimum = _scaled2(blocks)
    q = np.clip(np.rint((x.reshape(-1, 16, 16) + minimum) / factor), 0, 3)
    blocks[:, 16:80] = _pack_two_bits(np.where(factor == 0, 0, q).astype(np.uint8))


def _unpack6(packed: U8) -> U8:
    """16 codes of 6 bits from 12 bytes: low halves in 8 bytes (first all low nibbles), then the upper two bits."""
    low = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)
    high = packed[:, None, 8:12] >> _PAIRS[:, None] & 3
    return low | high.reshape(-1, 16) << 4


def _pack6(codes: U8) -> U8:
    low = codes[:, :8] & 15 | codes[:, 8:] << 4
    high = np.bitwise_or.reduce((codes >> 4).reshape(-1, 4, 4) << _PAIRS[:, None], axis=1)
    return np.concatenate([low, high], axis=1)


def _scaled3(blocks: U8) -> F32:
    """Factors of the 16 sub-blocks of q3_K: f32 (n, 16, 1)."""
    scales = _unpack6(blocks[:, 96:108]).view(np.int8) - np.int8(32)
    return (read_f16(blocks, 108) * scales)[:, :, None]


def _decode_q3_k(blocks: U8, out: F32) -> None:
    high = (blocks[:, None, :32] >> _BITS[:, None] & 1) << 2
    q = (_two_bits(blocks[:, 32:96]) | high.reshape(-1, 16, 16)).view(np.int8) - np.int8(4)
    np.multiply(_scaled3(blocks), q, out=out.reshape(-1, 16, 16))


def _encode_q3_k(x: F32, blocks: U8, importance: F32 | None = None) -> None:
    scale = three_bits(x.reshape(-1, 16), importance).reshape(-1, 16)
    top = largest(scale)
    codes = np.clip(np.rint(np.where(top == 0, 0, -32 / top) * scale), -32, 31)
    blocks[:, 96:108] = _pack6((codes + 32).astype(np.uint8))
    write_f16(blocks, 108, top / np.float32(-32))
    factor = _scaled3(blocks)
    q = np.clip(np.rint(x.reshape(-1, 16, 16) / factor), -4, 3)
    q = (np.where(factor == 0, 0, q) + 4).astype(np.uint8)
    blocks[:, :32] = np.bitwise_or.reduce((q >> 2).reshape(-1, 8, 32) << _BITS[:, None], axis=1)
    blocks[:, 32:96] = _pack_two_bits(q & np.uint8(3))


Q2_K = Codec(_decode_q2_k, _encode_q2_k, f16_at(80, 82), _encode_q2_k)
Q3_K = Codec(_decode_q3_k, _encode_q3_k, f16_at(108), _encode_q3_k)
