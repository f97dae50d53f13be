"""Search of codebook rows and scales for blocks of 256 elements, whole arrays of blocks at a time.

The weighted distance of x to scale s times a row g, less sum(w x**2), is a sum over the columns: of s**2 w g**2 - 2 s w
x g. A column takes few values, so half a row takes few too (at most 81): their sums are made once for all rows, and a
row's distance is one addition. Every step is one IEEE f32 operation and sums have a fixed order, so that a native
encoder can give the same bytes.

Here a matrix product guesses first, which is faster: (-2 s w x, s**2 w) times (g, g**2), in the order of sums of some
BLAS. Only where another row comes so near that rounding could decide is a guess not taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from jackfield.dtypes.dtype import F32, U8
from jackfield.dtypes.fits import mean_square, total

Index = NDArray[np.intp]

# Few elements that are guessed together, in products of so many multiply-adds: results stay in a core's cache, and a
# BLAS makes such a small product on the calling thread, without waking others for microseconds of work.
_STEP = 64
_MULTIPLY_ADDS = 1 << 18
# What rounding can move the difference of two distances by, over the sum of their largest terms: 2 (16 + 6) 2**-24 at
# most, for 16 terms in any order and 6 operations in the fixed one. Thrice that; and what lies below normal numbers.
_ROUNDING, _LEAST = np.float32(2.0**-17), np.float32(1e-30)
# Those in doubt are looked at so many at a time: sums of halves stay in a core's cache.
_LOOK = 2048
# Beyond this factor, which only an all but empty sub-block meets beside a large one, squares would overflow.
_MOST = np.float32(1e15)


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a codebook, f32 (rows, width), in runs that share their second half: tables are sorted by it."""

    values: F32

    @cached_property
    def levels(self) -> F32:
        """What an element may be, ascending."""
        return np.unique(self.values)

    @cached_property
    def terms(self) -> F32:
        """What products are made with: (g, g**2) of each row g, f32 (2 width, rows)."""
        return np.concatenate([self.values, np.square(self.values)], axis=1).T.copy()

    @cached_property
    def _halves(self) -> tuple[Index, Index]:
        """Numbers of the first and the second half of each row: digits are levels, the first column counts most."""
        digits = np.searchsorted(self.levels, self.values).reshape(len(self.values), 2, -1)
        numbers = digits @ len(self.levels) ** np.arange(digits.shape[2])[::-1]
        return numbers[:, 0], numbers[:, 1]

    @property
    def first(self) -> Index:
        """Number of the first half of each row."""
        return self._halves[0]

    @cached_property
    def starts(self) -> Index:
        """The first row of each run, and at last the number of rows: (runs + 1,)."""
        second = self._halves[1]
        return np.concatenate([[0], np.flatnonzero(np.diff(second)) + 1, [len(second)]])

    @cached_property
    def second(self) -> Index:
        """Number of the second half of each run."""
        return self._halves[1][self.starts[:-1]]

    @cached_property
    def listed(self) -> Index:
        """The rows of each run (runs, most of a run), filled up with its first."""
        starts, stops = self.starts[:-1, None], self.starts[1:, None]
        rows = starts + np.arange((stops - starts).max())
        return np.where(rows < stops, rows, starts)


@dataclass(frozen=True)
class Search:
    """How a type's blocks are fitted.

    alternatives: whose rows count one after the other; the elements under one scale take all their rows from one of
    them, or, where `mixed`, each row from the nearest.
    sub: elements under one scale.
    top: the largest code n of a scale; the scale is d * (2n + 1).
    trials: scales tried, in units of `unit` (f32 (m, sub) to (m, 1)).
    even: negatives of each 8 elements are made even in number; None for types without signs.
    """

    alternatives: Callable[[], tuple[Rows, ...]]
    sub: int
    top: int
    trials: tuple[np.float32, ...]
    unit: Callable[[F32], F32]
    even: bool | None
    mixed: bool = False

    def rows(self) -> F32:
        """All rows of the alternatives."""
        return np.concatenate([rows.values for rows in self.alternatives()])

    def nearest(self, wx: F32, w: F32, scale: F32 | np.float32) -> list[tuple[Index, F32]]:
        """Index and distance of the nearest rows to (m, sub) elements, of each alternative: two (m, sub / width).

        scale: one number, or one for each sub-block (m, 1).
        """
        found, before = [], 0
        for rows in self.alternatives():
            index, distance = _nearest(wx, w, scale, rows)
            found.append((index + before, distance))
            before += len(rows.values)
        return [_nearer(found)] if self.mixed else found


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
        factor = np.minimum((d * (2 * n + 1)).reshape(-1, 1) / self.unit, _MOST)
        found = self.search.nearest(self.wx, self.w, factor)
        index, _ = _nearer([(index, _pairs(distance)) for index, distance in found])
        return n, index.reshape(len(d), -1)


def largest_magnitude(x: F32) -> F32:
    """max |x| of each row."""
    return np.abs(x).max(axis=1, keepdims=True)


def root_mean_square(x: F32) -> F32:
    """Root of the mean of x**2 of each row, by way of the largest so that nothing overflows."""
    top = largest_magnitude(x)
    return top * np.sqrt(mean_square((x / np.where(top == 0, 1, top)).astype(np.float32, copy=False)))


def search(x: F32, importance: F32 | None, how: Search) -> Found:
    """The best uncoded scale of each `sub` elements of x (n, 256), by trial."""
    subs = x.reshape(-1, how.sub)
    unit = how.unit(subs)
    unit = np.where(unit == 0, 1, unit)
    u = subs / unit
    w = np.square(u) + mean_square(u) / 2
    if importance is not None:
        w *= importance.reshape(w.shape)
    signs = np.zeros((len(x), 32), np.uint8)
    if how.even is not None:
        negative = _negatives(u, w, even=how.even)
        signs = np.packbits(negative, axis=1, bitorder="little").reshape(-1, 32)
        u = np.where(negative, -u, u)
    wx = w * u
    scale = best = np.zeros((len(u), 1), np.float32)
    rows = how.rows()
    for s in how.trials:
        for index, _ in how.nearest(wx, w, s):
            row = rows[index].reshape(u.shape)
            sug, sgg = total(wx * row), total(w * np.square(row))
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


def _nearest(wx: F32, w: F32, scale: F32 | np.float32, rows: Rows) -> tuple[Index, F32]:
    """Nearest row for each `width` elements and its distance less sum(w x**2): two (m, sub / width). See `Search`.

    Of equals the first: first halves are compared within each run, then the runs.
    """
    width = rows.values.shape[1]
    a = (np.float32(-2) * scale * wx).reshape(-1, width)
    b = (scale * scale * w).reshape(-1, width)
    index, doubted = _guessed(a, b, rows)
    for start in range(0, len(doubted), _LOOK):
        piece = doubted[start : start + _LOOK]
        index[piece] = _nearest_columns(a[piece].T[:, None], b[piece].T[:, None], rows)
    g = rows.values[index]
    return index.reshape(len(wx), -1), _pairs((b * g + a) * g).reshape(len(wx), -1)


def _guessed(a: F32, b: F32, rows: Rows) -> tuple[Index, Index]:
    """Row of least sum of b g**2 + a g, by matrix products: (m,); and the numbers of those that may be another."""
    most = np.abs(rows.levels).max()
    doubt = (np.abs(a) * most + b * (most * most)).sum(axis=1) * _ROUNDING + _LEAST
    index, ahead = np.empty(len(a), np.intp), np.empty(len(a), np.float32)
    for start, distances in _products(np.concatenate([a, b], axis=1), rows.terms):
        found = distances.argmin(axis=1)[:, None]
        index[start : start + len(found)] = found[:, 0]
        least = np.take_along_axis(distances, found, axis=1)[:, 0]
        np.put_along_axis(distances, found, np.inf, axis=1)
        ahead[start : start + len(found)] = distances.min(axis=1) - least
    return index, np.flatnonzero(ahead <= doubt)


def _products(left: F32, right: F32) -> Iterator[tuple[int, F32]]:
    """The product of two matrices, `_STEP` rows at a time in one buffer."""
    inner, columns = right.shape
    width = _MULTIPLY_ADDS // (_STEP * inner)
    buffer = np.empty((_STEP, columns), np.float32)
    for start in range(0, len(left), _STEP):
        piece = left[start : start + _STEP]
        out = buffer[: len(piece)]
        for at in range(0, columns, width):
            np.matmul(piece, right[:, at : at + width], out=out[:, at : at + width])
        yield start, out


def _nearest_columns(a: F32, b: F32, rows: Rows) -> Index:
    """Row of least sum of (b g + a) g in the fixed order: a and b (width, 1, m); (m,)."""
    level = rows.levels[:, None]
    costs = (b * level + a) * level
    half = len(costs) // 2
    first = _half_sums(costs[:half])
    distances = _half_sums(costs[half:])[rows.second]
    for run, (start, stop) in enumerate(zip(rows.starts[:-1], rows.starts[1:], strict=True)):
        distances[run] += first[rows.first[start:stop]].min(axis=0)
    run = distances.argmin(axis=0)
    listed = rows.listed[run].T
    row = np.take_along_axis(first, rows.first[listed], axis=0).argmin(axis=0)
    return np.asarray(rows.starts[run] + row)


def _half_sums(costs: F32) -> F32:
    """Sums of the costs of half a row for all its values: (columns, levels, m) to (levels**columns, m), by pairs."""
    while len(costs) > 1:
        pairs = costs[0::2, :, None] + costs[1::2, None]
        costs = pairs.reshape(len(pairs), -1, pairs.shape[-1])
    return costs[0]


def _pairs(x: F32) -> F32:
    """Sums of the rows of x (m, 2**k): f32 (m, 1). Neighbours first."""
    while x.shape[1] > 1:
        x = x[:, 0::2] + x[:, 1::2]
    return x


def _nearer(found: list[tuple[Index, F32]]) -> tuple[Index, F32]:
    """Of several finds the one of less distance, the first of equals; an index may have more columns than distances."""
    index, least = found[0]
    for other, distance in found[1:]:
        better = distance < least
        index, least = np.where(better, other, index), np.where(better, distance, least)
    return index, least
