"""Block dtypes of rounded activations: q8_1 with the sum of a block, q8_K with a sum for each 16 elements.

They stand beside weights in integer dot products and are no types for weights. The package `gguf` has no codec for
them; digests recorded in the tests hold the bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jackfield.dtypes.dtype import F32, U8, Bad, Codec, f16_at
from jackfield.dtypes.small_blocks import largest, read_f16, round_to_int8, write_f16


def sums_of(q: NDArray[np.int8], width: int) -> NDArray[np.int32]:
    """Sums of each `width` neighbours of the last axis."""
    return q.reshape(*q.shape[:-1], q.shape[-1] // width, width).sum(axis=-1, dtype=np.int32)


def round_to_int8_even(x: F32) -> tuple[NDArray[np.int8], F32]:
    """Quants -127 .. 127 (halves to even) and f32 scales of blocks (..., K): (..., K) i8 and (..., 1).

    The element of largest magnitude becomes -127, so a scale has the opposite sign. A block too small for an inverse
    scale counts as zero, scale included.
    """
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        f = np.float32(-127) / largest(x)
        dead = ~np.isfinite(f)
        f = np.where(dead, 0, f)
        d = np.where(dead, 0, 1 / f).astype(np.float32)
    return np.minimum(np.rint(f * x), 127).astype(np.int8), d


def _decode_q8_1(blocks: U8, out: F32) -> None:
    np.multiply(read_f16(blocks, 0), blocks[:, 4:].view(np.int8), out=out)


def _encode_q8_1(x: F32, blocks: U8) -> None:
    q, d = round_to_int8(x)
    write_f16(blocks, 0, d)
    write_f16(blocks, 2, d * sums_of(q, 32).astype(np.float32))
    blocks[:, 4:] = q.view(np.uint8)


def _decode_q8_k(blocks: U8, out: F32) -> None:
    np.multiply(_f32_scale(blocks), blocks[:, 4:260].view(np.int8), out=out)


def _encode_q8_k(x: F32, blocks: U8) -> None:
    q, d = round_to_int8_even(x)
    blocks[:, :4] = d.astype("<f4").view(np.uint8)
    blocks[:, 4:260] = q.view(np.uint8)
    blocks[:, 260:] = sums_of(q, 16).astype("<i2").view(np.uint8)


def _f32_scale(blocks: U8) -> F32:
    return np.ascontiguousarray(blocks[:, :4]).view("<f4")


def _bad_q8_k(blocks: U8) -> Bad:
    return ~np.isfinite(_f32_scale(blocks)[:, 0])


Q8_1 = Codec(_decode_q8_1, _encode_q8_1, f16_at(0, 2))
Q8_K = Codec(_decode_q8_k, _encode_q8_k, _bad_q8_k)
