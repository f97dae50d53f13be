"""Block dtypes of 256 elements with coded sub-block scales: q4_K q5_K q6_K.

Decoding was checked bit for bit against the package `gguf` (0.19): products are rounded in the order scale times
coded scale, times quant, minus coded minimum. The encoders are our own least-squares fits over a few trial scales;
other encoders may pick other bytes, so what is promised is the error (tests hold the table). A backend that encodes
must give the bytes of these: every step is one IEEE f32 operation, sums have an order of their own, and the sign of a
zero never reaches a byte.
"""

from __future__ import annotations

import numpy as np

from jackfield.dtypes.dtype import F32, U8, Codec
from jackfield.dtypes.small_blocks import largest, read_f16, write_f16

_TINY = np.float32(1e-30)  # a narrower range than this has a scale that f16 stores as 0


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


def _fit_affine(x: F32, steps: int, first: float, trials: int) -> tuple[F32, F32]:
    """Scale and offset (offset at most 0) of each sub-block x (m, 32) for quants 0 .. steps: two f32 (m, 1).

    Tries `trials` + 1 grids around the range, fits scale and offset by weighted least squares on each, and keeps the
    pair with the least weighted squared error. Weights are rms + |x|: large values matter more.
    """
    low = np.minimum(x.min(axis=1, keepdims=True), 0)
    span = x.max(axis=1, keepdims=True) - low
    flat = span < _TINY
    span[flat] = 1
    w = np.sqrt(_total(np.square(x)) / np.float32(32)) + np.abs(x)
    sw, swx = _total(w), _total(w * x)
    scale, offset = span / np.float32(steps), low
    best = _total(w * np.square(scale * _grid(x, low, 1 / scale, steps) + offset - x))
    for t in range(trials + 1):
        level = _grid(x, low, np.float32(first + 0.1 * t + steps) / span, steps)
        wl = w * level
        swl, swll, swlx = _total(wl), _total(wl * level), _total(wl * x)
        det = sw * swll - swl * swl
        s, o = (sw * swlx - swx * swl) / det, (swll * swx - swl * swlx) / det
        s, o = np.where(o > 0, swlx / swll, s), np.minimum(o, 0)
        error = _total(w * np.square(s * level + o - x))
        better = (det > 0) & (error < best)  # a NaN is never better
        scale, offset, best = np.where(better, s, scale), np.where(better, o, offset), np.where(better, error, best)
    scale[flat] = 0
    return scale, np.where(flat, low, offset)


def _total(x: F32) -> F32:
    """Sums of the rows of x (m, 16 or 32): f32 (m, 1). Eight running sums, then pairs of neighbours: a fixed order."""
    eights = x.reshape(len(x), -1, 8)
    total = eights[:, 0]
    for i in range(1, eights.shape[1]):
        total = total + eights[:, i]
    while total.shape[1] > 1:
        total = total[:, 0::2] + total[:, 1::2]
    return total


def _grid(x: F32, low: F32, inverse: F32, steps: int) -> F32:
    return np.clip(np.rint(inverse * (x - low)), 0, steps)


def _code63(values: F32) -> tuple[F32, U8]:
    """Common factor (n, 1) and 6-bit codes (n, 8) of values >= 0, relative to the largest."""
    top = values.max(axis=1, keepdims=True) + np.float32(0)  # -0 becomes 0
    codes = np.rint(values * np.where(top > _TINY, 63 / top, 0))
    return top / np.float32(63), np.clip(codes, 0, 63).astype(np.uint8)


def _encode_affine(x: F32, blocks: U8, steps: int, first: float, trials: int) -> U8:
    """Write d, dmin and the 12 bytes of scales; return the quants (n, 8, 32) for the scales as stored."""
    scale, offset = _fit_affine(x.reshape(-1, 32), steps, first, trials)
    d, scales = _code63(scale.reshape(-1, 8))
    dmin, minima = _code63(-offset.reshape(-1, 8))
    write_f16(blocks, 0, d)
    write_f16(blocks, 2, dmin)
    blocks[:, 4:16] = _pack12(scales, minima)
    factor, minimum = (part[:, :, None] for part in _scaled(blocks))
    q = np.rint((x.reshape(-1, 8, 32) + minimum) / factor)
    return np.where(factor == 0, 0, np.clip(q, 0, steps)).astype(np.uint8)


def _encode_q4_k(x: F32, blocks: U8) -> None:
    q = _encode_affine(x, blocks, 15, -1.0, 20)
    blocks[:, 16:] = (q[:, 0::2] | q[:, 1::2] << 4).reshape(-1, 128)


def _encode_q5_k(x: F32, blocks: U8) -> None:
    q = _encode_affine(x, blocks, 31, -0.5, 15)
    blocks[:, 16:48] = np.bitwise_or.reduce((q >> 4) << np.arange(8, dtype=np.uint8)[:, None], axis=1)
    blocks[:, 48:] = (q[:, 0::2] & 15 | q[:, 1::2] << 4).reshape(-1, 128)


def _fit_signed(x: F32, n: int) -> F32:
    """Scale of each sub-block x (m, 16) for quants -n .. n - 1: f32 (m, 1), of either sign.

    Tries 19 grids with the largest element near -n; the score is the weighted energy the fit explains, weights x**2.
    """
    v = largest(x)
    flat = np.abs(v) < _TINY
    v = np.where(flat, 1, v)
    u = x / v  # within -1 .. 1, so that the fourth powers below don't overflow
    w = np.square(u)
    scale, best = np.zeros_like(v), np.zeros_like(v)
    for t in (0, *range(-9, 0), *range(1, 10)):
        level = np.clip(np.rint(np.float32(-(n + 0.1 * t)) * u), -n, n - 1)
        wl = w * level
        sul, sll = _total(wl * u), _total(wl * level)
        score = sul * sul / sll
        better = score > best
        scale, best = np.where(better, sul / sll, scale), np.where(better, score, best)
    return np.where(flat, 0, scale * v)


def _encode_q6_k(x: F32, blocks: U8) -> None:
    scale = _fit_signed(x.reshape(-1, 16), 32).reshape(-1, 16)
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


Q4_K = Codec(_decode_q4_k, _encode_q4_k, (0, 2))
Q5_K = Codec(_decode_q5_k, _encode_q5_k, (0, 2))
Q6_K = Codec(_decode_q6_k, _encode_q6_k, (208,))
