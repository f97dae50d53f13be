"""Block dtypes of 256 elements with two or three bits each and coded scales for each 16: q2_K q3_K.

Decoding was checked bit for bit against the package `gguf` (0.19); products are rounded in the order scale times coded
scale, times quant, minus coded minimum. The encoders are our own fits: the error is promised, not the bytes.
"""

from __future__ import annotations

import numpy as np

from jackfield.dtypes.dtype import F32, U8, Codec, f16_at
from jackfield.dtypes.small_blocks import read_f16

_PAIRS = np.array([0, 2, 4, 6], np.uint8)  # shifts of the four 2-bit codes of a byte
_BITS = np.arange(8, dtype=np.uint8)


def _two_bits(qs: U8) -> U8:
    """Codes 0 .. 3 in element order: (n, 64) to (n, 16, 16). Byte i of 32 holds elements i, i+32, i+64 and i+96."""
    return (qs.reshape(-1, 2, 1, 32) >> _PAIRS[:, None] & 3).reshape(-1, 16, 16)


def _decode_q2_k(blocks: U8, out: F32) -> None:
    scales = blocks[:, :16]
    factor, minimum = read_f16(blocks, 80) * (scales & 15), read_f16(blocks, 82) * (scales >> 4)
    rows = out.reshape(-1, 16, 16)
    np.multiply(factor[:, :, None], _two_bits(blocks[:, 16:80]), out=rows)
    rows -= minimum[:, :, None]


def _unpack6(packed: U8) -> U8:
    """16 codes of 6 bits from 12 bytes: low halves in 8 bytes (first all low nibbles), then the upper two bits."""
    low = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)
    high = packed[:, None, 8:12] >> _PAIRS[:, None] & 3
    return low | high.reshape(-1, 16) << 4


def _decode_q3_k(blocks: U8, out: F32) -> None:
    high = (blocks[:, None, :32] >> _BITS[:, None] & 1) << 2
    q = (_two_bits(blocks[:, 32:96]) | high.reshape(-1, 16, 16)).view(np.int8) - np.int8(4)
    scales = _unpack6(blocks[:, 96:108]).view(np.int8) - np.int8(32)
    np.multiply((read_f16(blocks, 108) * scales)[:, :, None], q, out=out.reshape(-1, 16, 16))


Q2_K = Codec(_decode_q2_k, None, f16_at(80, 82))
Q3_K = Codec(_decode_q3_k, None, f16_at(108))
