"""Block dtypes of 32 elements: q4_0 q4_1 q5_0 q5_1 q8_0.

Layout and rounding are those of the GGUF format; each codec was checked against the package `gguf` (0.19): decode bit
for bit, encode byte for byte. Quants use the scale before it is rounded to f16.

Nibbles: byte i of the 16 holds element i low and element i + 16 high. Fifth bits: bit e of a u32 belongs to element e.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jackfield.dtypes.dtype import F32, U8, Codec, f16_at

HALF = 16


def read_f16(blocks: U8, at: int) -> F32:
    """The f16 at byte `at` of each block, widened: f32 (n, 1)."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def write_f16(blocks: U8, at: int, values: F32) -> None:
    """Store f32 (n, 1) as f16 (nearest even) at byte `at` of each block."""
    blocks[:, at : at + 2] = values.astype("<f2").view(np.uint8)


def reciprocal(d: F32) -> F32:
    """1/d in f32; 0 where d is 0, or so small that 1/d overflows (its f16 is 0 as well)."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / d
    inverse[~np.isfinite(inverse)] = 0
    return inverse


def round_half_away(x: F32) -> F32:
    """Round to the nearest whole number, halves away from zero. Exact: every step is."""
    whole = np.trunc(x)
    whole += np.trunc(2 * (x - whole))
    return whole


def largest(x: F32) -> F32:
    """The element of largest magnitude of each row, first of equals: (..., K) to (..., 1)."""
    return np.take_along_axis(x, np.abs(x).argmax(axis=-1, keepdims=True), axis=-1)


def _fifth_bits(blocks: U8, at: int) -> U8:
    bits = np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little")
    np.left_shift(bits, 4, out=bits)
    return bits


def _decode_q4_0(blocks: U8, out: F32) -> None:
    d, qs = read_f16(blocks, 0), blocks[:, 2:]
    np.multiply(d, (qs & 15).view(np.int8) - np.int8(8), out=out[:, :HALF])
    np.multiply(d, (qs >> 4).view(np.int8) - np.int8(8), out=out[:, HALF:])


def _decode_q4_1(blocks: U8, out: F32) -> None:
    d, qs = read_f16(blocks, 0), blocks[:, 4:]
    np.multiply(d, qs & 15, out=out[:, :HALF])
    np.multiply(d, qs >> 4, out=out[:, HALF:])
    out += read_f16(blocks, 2)


def _decode_q5_0(blocks: U8, out: F32) -> None:
    d, qs, q = read_f16(blocks, 0), blocks[:, 6:], _fifth_bits(blocks, 2)
    q[:, :HALF] |= qs & 15
    q[:, HALF:] |= qs >> 4
    np.multiply(d, q.view(np.int8) - np.int8(16), out=out)


def _decode_q5_1(blocks: U8, out: F32) -> None:
    d, qs, q = read_f16(blocks, 0), blocks[:, 8:], _fifth_bits(blocks, 4)
    q[:, :HALF] |= qs & 15
    q[:, HALF:] |= qs >> 4
    np.multiply(d, q, out=out)
    out += read_f16(blocks, 2)


def _decode_q8_0(blocks: U8, out: F32) -> None:
    np.multiply(read_f16(blocks, 0), blocks[:, 2:].view(np.int8), out=out)


def _symmetric(x: F32, levels: int) -> tuple[F32, U8]:
    """Scale (n, 1) and quants 0 .. 2*levels - 1; the element of largest magnitude sits at -levels, coded 0."""
    d = largest(x) / np.float32(-levels)
    q = np.trunc(x * reciprocal(d) + np.float32(levels + 0.5))
    return d, np.clip(q, 0, 2 * levels - 1).astype(np.uint8)


def _affine(x: F32, steps: int) -> tuple[F32, F32, U8]:
    """Scale (n, 1), minimum (n, 1) and quants 0 .. steps."""
    low = x.min(axis=1, keepdims=True)
    d = (x.max(axis=1, keepdims=True) - low) / np.float32(steps)
    q = np.trunc((x - low) * reciprocal(d) + np.float32(0.5))
    return d, low, np.clip(q, 0, steps).astype(np.uint8)


def _pack_nibbles(q: U8) -> U8:
    return np.bitwise_or(q[:, :HALF] & 15, q[:, HALF:] << 4)


def _pack_fifth_bits(q: U8) -> U8:
    return np.packbits(q >> 4, axis=1, bitorder="little")


def _encode_q4_0(x: F32, blocks: U8) -> None:
    d, q = _symmetric(x, 8)
    write_f16(blocks, 0, d)
    blocks[:, 2:] = _pack_nibbles(q)


def _encode_q4_1(x: F32, blocks: U8) -> None:
    d, low, q = _affine(x, 15)
    write_f16(blocks, 0, d)
    write_f16(blocks, 2, low)
    blocks[:, 4:] = _pack_nibbles(q)


def _encode_q5_0(x: F32, blocks: U8) -> None:
    d, q = _symmetric(x, 16)
    write_f16(blocks, 0, d)
    blocks[:, 2:6] = _pack_fifth_bits(q)
    blocks[:, 6:] = _pack_nibbles(q)


def _encode_q5_1(x: F32, blocks: U8) -> None:
    d, low, q = _affine(x, 31)
    write_f16(blocks, 0, d)
    write_f16(blocks, 2, low)
    blocks[:, 4:8] = _pack_fifth_bits(q)
    blocks[:, 8:] = _pack_nibbles(q)


def round_to_int8(x: F32) -> tuple[NDArray[np.int8], F32]:
    """Quants -127 .. 127 (halves away from zero) and f32 scales of blocks (..., 32): (..., 32) i8 and (..., 1).

    A block too small for an inverse scale counts as zero, scale included.
    """
    d = np.abs(x).max(axis=-1, keepdims=True) / np.float32(127)
    inverse = reciprocal(d)
    d[inverse == 0] = 0
    return round_half_away(x * inverse).astype(np.int8), d


def _encode_q8_0(x: F32, blocks: U8) -> None:
    q, d = round_to_int8(x)
    write_f16(blocks, 0, d)
    blocks[:, 2:] = q.view(np.uint8)


Q4_0 = Codec(_decode_q4_0, _encode_q4_0, f16_at(0))
Q4_1 = Codec(_decode_q4_1, _encode_q4_1, f16_at(0, 2))
Q5_0 = Codec(_decode_q5_0, _encode_q5_0, f16_at(0))
Q5_1 = Codec(_decode_q5_1, _encode_q5_1, f16_at(0, 2))
Q8_0 = Codec(_decode_q8_0, _encode_q8_0, f16_at(0))
