"""Search of codebook rows and scales for blocks of 256 elements, whole arrays of blocks at a time.

The weighted distance of x to scale s times a row g is sum(w x**2) - 2 s sum(w x g) + s**2 sum(w g**2), so the distances
of many x to all rows are one matrix product: (-2 s w x, s**2 w) times (g, g**2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jackfield.dtypes.dtype import F32, U8

Index = NDArray[np.intp]

# Distances are worked out for this many rows of x at a time, in products of so many multiply-adds: results stay in a
# core's cache, and a BLAS makes such a small product on the calling thread, without waking others for microseconds of
# work. All products have the same extents, so a row of x gets the same bits wherever it stands.
_STEP = 64
_MULTIPLY_ADDS = 1 << 18


@dataclass(frozen=True)
class Search:
    """How a type's blocks are fitted.

    rows: alternatives f32 (rows, width); the elements under one scale take all their rows from one of them.
    sub: elements under one scale.
    top: the largest code n of a scale; the scale is d * (2n + 1).
    trials: scales tried, in units of `unit` (f32 (m, sub) to (m, 1)).
    even: negatives of each 8 elements are made even in number; None for types without signs.
    """

    rows: Callable[[], tuple[F32, ...]]
    sub: int
    top: int
    trials: tuple[float, ...]
    unit: Callable[[F32], F32]
    even: bool | None


@dataclass(frozen=True)
class Found:
    """What a search found for n blocks.

    scale: f32 (n, 256 / sub), not yet coded.
    signs: u8 (n, 32): bit j of byte i is set where element 8i + j is negative.
    """

    search: Search
    scale: F32
    signs: U8
    wx: F32
    w: F32
    unit: F32

    def step(self) -> F32:
        """The factor d that lets the largest scale have the largest code: f32 (n, 1)."""
        return self.scale.max(axis=1, keepdims=True) / np.float32(2 * self.search.top + 1)

    def coded(self, d: F32) -> tuple[U8, Index]:
        """Codes u8 (n, 256 / sub) of the scales for the step d as stored, and the rows (n, 256 / width) found with it.

        A row counts over all alternatives, one after the other.
        """
        n = np.clip(np.rint((np.where(d == 0, 0, self.scale / d) - 1) / 2), 0, self.search.top).astype(np.uint8)
        factor = (d * (2 * n + 1)).reshape(-1, 1) / self.unit
        rows = self.search.rows()
        nearest = [_nearest(self.wx, self.w, factor, table) for table in rows]
        distances = np.stack([distance.reshape(len(factor), -1).sum(axis=1) for _, distance in nearest])
        choice = distances.argmin(axis=0)[:, None]
        index = np.zeros((len(factor), self.search.sub // rows[0].shape[1]), np.intp)
        for i, (found, _) in enumerate(nearest):
            index = np.where(choice == i, found.reshape(index.shape) + i * len(rows[0]), index)
        return n, index.reshape(len(d), -1)


def largest_magnitude(x: F32) -> F32:
    """max |x| of each row."""
    return np.abs(x).max(axis=1, keepdims=True)


def root_mean_square(x: F32) -> F32:
    """Root of the mean of x**2 of each row, by way of the largest so that nothing overflows."""
    top = largest_magnitude(x)
    return top * np.sqrt(np.square(x / np.where(top == 0, 1, top)).mean(axis=1, keepdims=True))


def search(x: F32, importance: F32 | None, how: Search) -> Found:
    """The best uncoded scale of each `sub` elements of x (n, 256), by trial."""
    subs = x.reshape(-1, how.sub)
    unit = how.unit(subs)
    unit = np.where(unit == 0, 1, unit)
    u = subs / unit
    w = np.square(u)
    w += w.mean(axis=1, keepdims=True) / 2
    if importance is not None:
        w *= importance.reshape(w.shape)
    signs = np.zeros((len(x), 32), np.uint8)
    if how.even is not None:
        negative = _negatives(u, w, even=how.even)
        signs = np.packbits(negative, axis=1, bitorder="little").reshape(-1, 32)
        u = np.where(negative, -u, u)
    wx = w * u
    scale = best = np.zeros((len(u), 1), np.float32)
    for s in how.trials:
        for table in how.rows():
            index, _ = _nearest(wx, w, np.float32(s), table)
            row = table[index].reshape(u.shape)
            sug, sgg = (wx * row).sum(axis=1, keepdims=True), (w * np.square(row)).sum(axis=1, keepdims=True)
            score = np.where(sug > 0, sug * sug / sgg, 0)
            better = score > best
            scale, best = np.where(better, sug / sgg, scale), np.where(better, score, best)
    return Found(how, (scale * unit).reshape(len(x), -1), signs, wx, w, unit)


def _negatives(u: F32, w: F32, *, even: bool) -> NDArray[np.bool_]:
    """Which elements get a negative sign: (m, sub). To make their number even, the one that costs least is turned."""
    negative = (u < 0).reshape(-1, 8)
    if even:
        odd = negative.sum(axis=1) % 2 == 1
        cheapest = (w * np.square(u)).reshape(-1, 8).argmin(axis=1)
        negative[odd, cheapest[odd]] ^= True
    return negative.reshape(u.shape)


def _nearest(wx: F32, w: F32, scale: F32 | np.float32, table: F32) -> tuple[Index, F32]:
    """Nearest row of the table for each `width` elements, and its distance less sum(w x**2): two (m,).

    wx, w: (subs, sub); scale: one number, or one for each sub-block (subs, 1).
    """
    width = table.shape[1]
    left = np.concatenate(
        [(-2 * scale * wx).reshape(-1, width), (scale * scale * w).reshape(-1, width)], axis=1, dtype=np.float32
    )
    right = np.concatenate([table, np.square(table)], axis=1).T.copy()
    index, least = np.empty(len(left), np.intp), np.empty(len(left), np.float32)
    for start, distances in _products(left, right):
        found = distances.argmin(axis=1)
        index[start : start + len(found)] = found
        least[start : start + len(found)] = np.take_along_axis(distances, found[:, None], axis=1)[:, 0]
    return index, least


def _products(left: F32, right: F32) -> Iterator[tuple[int, F32]]:
    """The product of two matrices, `_STEP` rows at a time in one buffer; the last rows are padded for their product."""
    inner, columns = right.shape
    width = _MULTIPLY_ADDS // (_STEP * inner)
    out, padded = np.empty((_STEP, columns), np.float32), np.zeros((_STEP, inner), np.float32)
    for start in range(0, len(left), _STEP):
        piece = left[start : start + _STEP]
        count = len(piece)
        if count < _STEP:
            padded[:count] = piece
            piece = padded
        for at in range(0, columns, width):
            np.matmul(piece, right[:, at : at + width], out=out[:, at : at + width])
        yield start, out[:count]
