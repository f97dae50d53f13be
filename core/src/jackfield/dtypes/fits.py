"""Least-squares fits of a scale (and an offset) to the elements of a sub-block, by trial of a few grids.

A row of x is a sub-block. Weights say how much an element counts; without an importance they are those of the type,
with one they are importance * sqrt(2 * mean(x**2) + x**2). Every step is one IEEE f32 operation and sums have a fixed
order, so that a native encoder can give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from jackfield.dtypes.dtype import F32, U8, Bad
from jackfield.dtypes.small_blocks import largest

TINY = np.float32(1e-30)  # a narrower range than this has a scale that f16 stores as 0


def total(x: F32) -> F32:
    """Sums of the rows of x (m, 8 * 2**k): f32 (m, 1). Eight running sums, then pairs of neighbours: a fixed order."""
    eights = x.reshape(len(x), -1, 8)
    sums = eights[:, 0]
    for i in range(1, eights.shape[1]):
        sums = sums + eights[:, i]
    while sums.shape[1] > 1:
        sums = sums[:, 0::2] + sums[:, 1::2]
    return sums


def mean_square(x: F32) -> F32:
    """Mean of x**2 of each row: f32 (m, 1)."""
    return total(np.square(x)) / np.float32(x.shape[1])


def weights(x: F32, importance: F32 | None, plain: Callable[[F32], F32]) -> F32:
    """How much each element counts: plain(x), unless an importance (of the shape of x) is given."""
    if importance is None:
        return plain(x)
    return importance.reshape(x.shape) * np.sqrt(2 * mean_square(x) + np.square(x))


def affine(x: F32, w: F32, steps: int, first: float, trials: int, error: np.ufunc = np.square) -> tuple[F32, F32]:
    """Scale and offset (at most 0) of each row of x (m, k) for quants 0 .. steps: two f32 (m, 1).

    Tries `trials` + 1 grids around the range, fits scale and offset by weighted least squares on each, and keeps the
    pair with the least weighted error: squares, or magnitudes with np.abs.
    """
    low = np.minimum(x.min(axis=1, keepdims=True), 0)
    span = x.max(axis=1, keepdims=True) - low
    flat = span < TINY
    span[flat] = 1
    sw, swx = total(w), total(w * x)
    scale, offset = span / np.float32(steps), low
    best = total(w * error(scale * _grid(x, low, 1 / scale, steps) + offset - x))
    for t in range(trials + 1):
        level = _grid(x, low, np.float32(first + 0.1 * t + steps) / span, steps)
        wl = w * level
        swl, swll, swlx = total(wl), total(wl * level), total(wl * x)
        det = sw * swll - swl * swl
        s, o = (sw * swlx - swx * swl) / det, (swll * swx - swl * swlx) / det
        s, o = np.where(o > 0, swlx / swll, s), np.minimum(o, 0)
        misfit = total(w * error(s * level + o - x))
        better = (det > 0) & (misfit < best)  # a NaN is never better
        scale, offset, best = np.where(better, s, scale), np.where(better, o, offset), np.where(better, misfit, best)
    scale[flat] = 0
    return scale, np.where(flat, low, offset)


def _grid(x: F32, low: F32, inverse: F32, steps: int) -> F32:
    return np.clip(np.rint(inverse * (x - low)), 0, steps)


def coded(values: F32, steps: int) -> tuple[F32, U8]:
    """Common factor (n, 1) and codes 0 .. steps (n, k) of values >= 0, relative to the largest."""
    top = values.max(axis=1, keepdims=True) + np.float32(0)  # -0 becomes 0
    codes = np.rint(values * np.where(top > TINY, np.float32(steps) / top, 0))
    return top / np.float32(steps), np.clip(codes, 0, steps).astype(np.uint8)


def scaled_to_largest(x: F32) -> tuple[F32, F32, Bad]:
    """u = x/v within -1 .. 1 so that powers of it don't overflow, v (m, 1), and which rows are as good as 0 (m, 1)."""
    v = largest(x)
    flat = np.abs(v) < TINY
    v = np.where(flat, 1, v)
    return (x / v).astype(np.float32, copy=False), v, flat


def best_scale(u: F32, w: F32, candidates: Iterable[F32]) -> F32:
    """Scale f32 (m, 1) of the candidate levels (m, k) that explain most of u: the largest sum(wul)**2 / sum(wll)."""
    scale = best = np.zeros((len(u), 1), np.float32)
    for level in candidates:
        wl = w * level
        sul, sll = total(wl * u), total(wl * level)
        score = sul * sul / sll
        better = score > best
        scale, best = np.where(better, sul / sll, scale), np.where(better, score, best)
    return scale


def three_bits(x: F32, importance: F32 | None) -> F32:
    """Scale of each row of x (m, k) for quants -4 .. 3: f32 (m, 1), of either sign.

    Starts with the largest element at -4; up to five sweeps then move one quant at a time to the level nearest to what
    the scale of the others asks for, where that explains more of x. (u has its largest at 1, so its scale is negative.)
    """
    u, v, flat = scaled_to_largest(x)
    w = weights(u, importance, np.square)
    level = np.clip(np.rint(np.float32(-4) * u), -4, 3)
    wu = w * u
    sul, sll = total(wu * level), total(w * level * level)
    for _ in range(5):
        moved = False
        for i in range(u.shape[1]):
            ui, wi, wui, li = (part[:, i : i + 1] for part in (u, w, wu, level))
            rest_ul, rest_ll = sul - wui * li, sll - wi * li * li
            new = np.clip(np.rint(ui * rest_ll / rest_ul), -4, 3)
            new_ul, new_ll = rest_ul + wui * new, rest_ll + wi * new * new
            better = (rest_ul < 0) & (new_ll > 0) & (new != li) & (new_ul * new_ul * sll > sul * sul * new_ll)
            level[:, i : i + 1] = np.where(better, new, li)
            sul, sll = np.where(better, new_ul, sul), np.where(better, new_ll, sll)
            moved |= bool(better.any())
        if not moved:
            break
    return np.where(flat | (sll == 0), 0, v * (sul / sll))
