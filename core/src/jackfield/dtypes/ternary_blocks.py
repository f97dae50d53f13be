"""Block dtypes of one or two bits an element: q1_0 (two values), q2_0 (four values), tq1_0 and tq2_0 (ternary).

tq1_0 and tq2_0 were checked against the package `gguf` (0.19): decode bit for bit, encode byte for byte. It has no
codec for q1_0 and q2_0.
"""

from __future__ import annotations

import numpy as np

from jackfield.dtypes.dtype import F32, U8, Codec, f16_at
from jackfield.dtypes.small_blocks import read_f16, reciprocal, round_half_away, write_f16

_PAIRS = np.array([0, 2, 4, 6], np.uint8)  # shifts of the four 2-bit codes of a byte
_POWERS = np.array([81, 27, 9, 3, 1], np.uint8)  # of the trits of a byte, first one most significant


def _decode_q1_0(blocks: U8, out: F32) -> None:
    bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").view(np.int8)
    np.multiply(read_f16(blocks, 0), 2 * bits - np.int8(1), out=out)


def _encode_q1_0(x: F32, blocks: U8) -> None:
    write_f16(blocks, 0, np.abs(x).mean(axis=1, keepdims=True))
    blocks[:, 2:] = np.packbits(x >= 0, axis=1, bitorder="little")


def _decode_q2_0(blocks: U8, out: F32) -> None:
    q = (blocks[:, 2:, None] >> _PAIRS & 3).reshape(-1, 64)
    np.multiply(read_f16(blocks, 0), q.view(np.int8) - np.int8(1), out=out)


def _encode_q2_0(x: F32, blocks: U8) -> None:
    d, q = _ternary(x)
    write_f16(blocks, 0, d)
    blocks[:, 2:] = np.bitwise_or.reduce(q.reshape(-1, 16, 4) << _PAIRS, axis=2)


def _ternary(x: F32) -> tuple[F32, U8]:
    """Largest magnitude of each row (n, 1) and codes 0, 1, 2 for -1, 0, 1 times it."""
    d = np.abs(x).max(axis=1, keepdims=True)
    return d, (round_half_away(x * reciprocal(d)) + 1).astype(np.uint8)


def _decode_tq1_0(blocks: U8, out: F32) -> None:
    d = read_f16(blocks, 52)
    for start, stop, at, width in ((0, 160, 0, 32), (160, 240, 32, 16), (240, 256, 48, 4)):
        trits = (stop - start) // width
        shifted = blocks[:, None, at : at + width] * _POWERS[::-1][:trits, None]  # u8: the product modulo 256
        codes = (shifted.astype(np.uint16) * 3 >> 8).astype(np.int8) - np.int8(1)
        np.multiply(d, codes.reshape(-1, stop - start), out=out[:, start:stop])


def _encode_tq1_0(x: F32, blocks: U8) -> None:
    d, q = _ternary(x)
    for start, stop, at, width in ((0, 160, 0, 32), (160, 240, 32, 16), (240, 256, 48, 4)):
        trits = q[:, start:stop].reshape(len(q), -1, width)
        number = (trits * _POWERS[: trits.shape[1], None]).sum(axis=1, dtype=np.uint16)
        blocks[:, at : at + width] = (number * 256 + 242) // 243
    write_f16(blocks, 52, d)


def _decode_tq2_0(blocks: U8, out: F32) -> None:
    q = (blocks[:, :64].reshape(-1, 2, 1, 32) >> _PAIRS[:, None] & 3).reshape(-1, 256)
    np.multiply(read_f16(blocks, 64), q.view(np.int8) - np.int8(1), out=out)


def _encode_tq2_0(x: F32, blocks: U8) -> None:
    d, q = _ternary(x)
    packed = np.bitwise_or.reduce(q.reshape(-1, 2, 4, 32) << _PAIRS[:, None], axis=2)
    blocks[:, :64] = packed.reshape(-1, 64)
    write_f16(blocks, 64, d)


Q1_0 = Codec(_decode_q1_0, _encode_q1_0, f16_at(0))
Q2_0 = Codec(_decode_q2_0, _encode_q2_0, f16_at(0))
TQ1_0 = Codec(_decode_tq1_0, _encode_tq1_0, f16_at(52))
TQ2_0 = Codec(_decode_tq2_0, _encode_tq2_0, f16_at(64))
