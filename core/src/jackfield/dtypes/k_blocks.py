"""Block dtypes of 256 elements with coded sub-block scales: q4_K q5_K q6_K.

Decoding was checked bit for bit against the package `gguf` (0.19): products are rounded in the order scale times
coded scale, times quant, minus coded minimum. The encoders are our own least-squares fits (`fits`): other encoders may
pick other bytes, so what is promised is the error (tests hold the table). A backend that encodes must give the bytes of
these: every step is one IEEE f32 operation, sums have an order of their own, and the sign of a zero never reaches a
byte.
"""

from __future__ import annotations

import numpy as np

from jackfield.dtypes.dtype import F32, U8, Codec, f16_at
from jackfield.dtypes.fits import affine, best_scale, coded, mean_square, scaled_to_largest, weights
from jackfield.dtypes.small_blocks import largest, read_f16, write_f16


def _unpack12(packed: U8) -> tuple[U8, U8]:
    """8 scales and 8 minima of 6 bits from 12 bytes: (n, 12) to two (n, 8)."""
    a, b, c = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([a & 63, (c & 15) | (a >> 6) << 4], axis=1)
    minima = np.concatenate([b & 63, (c >> 4) | (b >> 6) << 4], axis=1)
    return scales, minima


def _pack12(scales: U8, minima: U8) -> U8:
    a = scales[:, :4] | (scales[:, 4:] >> 4) << 6
    b = minima[:, :4] | (minima[:, 4:] >> 4) << 6
    c = (scales[:, 4:] & 15) | (minima[:, 4:] & 15) << 4
    return np.concatenate([a, b, c], axis=1)


def _scaled(blocks: U8) -> tuple[F32, F32]:
    """Factors and minima of the 8 sub-blocks: two f32 (n, 8)."""
    scales, minima = _unpack12(blocks[:, 4:16])
    return read_f16(blocks, 0) * scales, read_f16(blocks, 2) * minima


def _decode_q4_k(blocks: U8, out: F32) -> None:
    factor, minimum = _scaled(blocks)
    qs = blocks[:, 16:].reshape(-1, 4, 32)
    pairs = out.reshape(-1, 4, 2, 32)
    np.multiply(factor[:, 0::2, None], qs & 15, out=pairs[:, :, 0])
    np.multiply(factor[:, 1::2, None], qs >> 4, out=pairs[:, :, 1])
    rows = out.reshape(-1, 8, 32)
    rows -= minimum[:, :, None]


def _decode_q5_k(blocks: U8, out: F32) -> None:
    factor, minimum = _scaled(blocks)
    qs = blocks[:, 48:].reshape(-1, 4, 32)
    q = (blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1) << 4  # bit s of byte e%32
    q[:, 0::2] |= qs & 15
    q[:, 1::2] |= qs >> 4
    rows = out.reshape(-1, 8, 32)
    np.multiply(factor[:, :, None], q, out=rows)
    rows -= minimum[:, :, None]


def _decode_q6_k(blocks: U8, out: F32) -> None:
    ql = blocks[:, :128].reshape(-1, 2, 2, 32)
    qh = blocks[:, 128:192].reshape(-1, 2, 1, 32)
    q = (qh >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3) << 4
    q[:, :, :2] |= ql & 15
    q[:, :, 2:] |= ql >> 4
    factor = read_f16(blocks, 208) * blocks[:, 192:208].view(np.int8)
    signed = q.reshape(-1, 16, 16).view(np.int8) - np.int8(32)
    np.multiply(factor[:, :, None], signed, out=out.reshape(-1, 16, 16))


def _size(x: F32) -> F32:
    """Weights of the elements of a sub-block: rms + |x|, large ones matter more."""
    return np.sqrt(mean_square(x)) + np.abs(x)


def _encode_affine(x: F32, blocks: U8, importance: F32 | None, steps: int, first: float, trials: int) -> U8:
    """Write d, dmin and the 12 bytes of scales; return the quants (n, 8, 32) for the scales as stored."""
    rows = x.reshape(-1, 32)
    scale, offset = affine(rows, weights(rows, importance, _size), steps, first, trials)
    d, scales = coded(scale.reshape(-1, 8), 63)
    dmin, minima = coded(-offset.reshape(-1, 8), 63)
    write_f16(blocks, 0, d)
    write_f16(blocks, 2, dmin)
    blocks[:, 4:16] = _pack12(scales, minima)
    factor, minimum = (part[:, :, None] for part in _scaled(blocks))
    q = np.rint((x.reshape(-1, 8, 32) + minimum) / factor)
    return np.where(factor == 0, 0, np.clip(q, 0, steps)).astype(np.uint8)


def _encode_q4_k(x: F32, blocks: U8, importance: F32 | None = None) -> None:
    q = _encode_affine(x, blocks, importance, 15, -1.0, 20)
    blocks[:, 16:] = (q[:, 0::2] | q[:, 1::2] << 4).reshape(-1, 128)


def _encode_q5_k(x: F32, blocks: U8, importance: F32 | None = None) -> None:
    q = _encode_affine(x, blocks, importance, 31, -0.5, 15)
    blocks[:, 16:48] = np.bitwise_or.reduce((q >> 4) << np.arange(8, dtype=np.uint8)[:, None], axis=1)
    blocks[:, 48:] = (q[:, 0::2] & 15 | q[:, 1::2] << 4).reshape(-1, 128)


def _fit_signed(x: F32, n: int, importance: F32 | None) -> F32:
    """Scale of each sub-block x (m, 16) for quants -n .. n - 1: f32 (m, 1), of either sign.

    Tries 19 grids with the largest element near -n; the score is the weighted energy the fit explains.
    """
    u, v, flat = scaled_to_largest(x)
    tops = (np.float32(-(n + 0.1 * t)) for t in (0, *range(-9, 0), *range(1, 10)))
    levels = (np.clip(np.rint(top * u), -n, n - 1) for top in tops)
    return np.where(flat, 0, best_scale(u, weights(u, importance, np.square), levels) * v)


def _encode_q6_k(x: F32, blocks: U8, importance: F32 | None = None) -> None:
    scale = _fit_signed(x.reshape(-1, 16), 32, importance).reshape(-1, 16)
    top = largest(scale)
    zero = np.abs(top) < np.float32(1e-15)
    codes = np.clip(np.rint(np.where(zero, 0, -128 / top) * scale), -128, 127).astype(np.int8)
    write_f16(blocks, 208, np.where(zero, 0, top / np.float32(-128)))
    blocks[:, 192:208] = codes.view(np.uint8)
    factor = (read_f16(blocks, 208) * codes)[:, :, None]
    q = np.clip(np.rint(x.reshape(-1, 16, 16) / factor), -32, 31)
    q = (np.where(factor == 0, 0, q) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    q[zero[:, 0]] = 0
    blocks[:, :128] = (q[:, :, :2] & 15 | q[:, :, 2:] << 4).reshape(-1, 128)
    blocks[:, 128:192] = np.bitwise_or.reduce((q >> 4) << np.array([0, 2, 4, 6], np.uint8)[:, None], axis=2).reshape(
        -1, 64
    )


Q4_K = Codec(_decode_q4_k, _encode_q4_k, f16_at(0, 2), _encode_q4_k)
Q5_K = Codec(_decode_q5_k, _encode_q5_k, f16_at(0, 2), _encode_q5_k)
Q6_K = Codec(_decode_q6_k, _encode_q6_k, f16_at(208), _encode_q6_k)
