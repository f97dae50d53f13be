"""Activations rounded for integer dot products: the numbers every device that takes this path must agree on.

A device may replace x in `linear` by these, row by row. Scales stay in f32 here. A zero block (or one so small that
the inverse of its scale overflows) has scale 0 and all quants 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jackfield.dtypes.activation_blocks import round_to_int8_even, sums_of
from jackfield.dtypes.dtype import F32
from jackfield.dtypes.small_blocks import round_to_int8
from jackfield.errors import AttributeValueError, ShapeError


def quantise_q8_0(x: ArrayLike) -> tuple[NDArray[np.int8], F32]:
    """Of x (..., K), K a multiple of 32: q i8 (..., K) in -127..127, d f32 (..., K/32); x is about d*q.

    Raises: ShapeError, AttributeValueError for inf or NaN.
    """
    blocks = _blocks("q8_0", x, 32)
    q, d = round_to_int8(blocks)
    return q.reshape(np.shape(x)), d[..., 0]


def quantise_q8_1(x: ArrayLike) -> tuple[NDArray[np.int8], F32, F32]:
    """As q8_0, with s f32 (..., K/32) = d times the integer sum of the block's quants."""
    q, d = quantise_q8_0(x)
    return q, d, d * sums_of(q, 32).astype(np.float32)


def quantise_q8_K(x: ArrayLike) -> tuple[NDArray[np.int8], F32, NDArray[np.int16]]:  # noqa: N802 - the type's name
    """Of x (..., K), K a multiple of 256: q i8 (..., K), d f32 (..., K/256), sums i16 (..., K/16) of 16 quants each.

    The element of largest magnitude becomes -127, so d has the opposite sign; halves round to even.
    """
    q, d = round_to_int8_even(_blocks("q8_K", x, 256))
    q = q.reshape(np.shape(x))
    return q, d[..., 0], sums_of(q, 16).astype(np.int16)


def _blocks(name: str, x: ArrayLike, block: int) -> F32:
    array = np.asarray(x, np.float32)
    if array.ndim == 0 or array.shape[-1] % block:
        raise ShapeError(f"[quantise {name}] x is {list(array.shape)}: the last axis must be a multiple of {block}")
    if not np.isfinite(array).all():
        raise AttributeValueError(f"[quantise {name}] x holds inf or NaN: it must be finite")
    return array.reshape(*array.shape[:-1], array.shape[-1] // block, block)
