"""Tensors as numpy arrays: blocks as array elements, widening to f64, and conversion between any two dtypes.

A tensor of a block dtype is an array with one element a block: a structured dtype whose only field carries the block
dtype's name. Such arrays are sliced, transposed and copied like any other, with the strides of a Spec.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from jackfield.dtypes.dtype import REGISTERED, DType
from jackfield.dtypes.table import bf16, of_numpy

Array = np.ndarray[Any, Any]


@cache
def element(dtype: DType) -> np.dtype[Any]:
    """The array dtype of a tensor's elements, or of its blocks."""
    if dtype.numpy is not None:
        return dtype.numpy
    return np.dtype([(dtype.name, f"V{dtype.block_nbytes}")])


def dtype_of(array: Array) -> DType:
    """The way back from `element`. Raises: DTypeError for arrays that are no tensor."""
    names = array.dtype.names
    return REGISTERED[names[0]] if names else of_numpy(array.dtype)


def as_bytes(array: Array) -> Array:
    """u8 (..., bytes of a row) of an array of rank >= 1; a view where the last axis is dense."""
    return np.ascontiguousarray(array).view(np.uint8) if array.size else np.zeros((*array.shape[:-1], 0), np.uint8)


def decoded(array: Array) -> Array:
    """Blocks (..., n) as f32 (..., n * block); other arrays as they are."""
    dtype = dtype_of(array)
    if not dtype.is_block:
        return array
    if not array.size:
        return np.zeros((*array.shape[:-1], array.shape[-1] * dtype.block), np.float32)
    return dtype.decode(as_bytes(array))


def widened(array: Array) -> Array:
    """Floats and blocks as f64; integers and bools as they are."""
    dtype = dtype_of(array)
    return decoded(array).astype(np.float64) if dtype.is_float or dtype.is_block else array


def convert(array: Array, dtype: DType) -> tuple[Array, int | None]:
    """The same numbers in another dtype, and the number of the first block that could not be coded, or None.

    Same dtype: the very array. Float to float: nearest even, overflow gives inf, NaN stays NaN. Float to integer:
    toward zero, saturating, NaN gives 0. Integer to integer: saturating. Integer to float: nearest even. To a block
    dtype: by way of f32; a block with inf or NaN, or a scale beyond f16, becomes all zero bytes.
    """
    if dtype_of(array) is dtype:
        return array, None
    plain = decoded(array)
    with np.errstate(all="ignore"):
        if dtype.is_block:
            return _encoded(plain.astype(np.float32), dtype)
        if dtype.is_integer:
            return np.asarray(_integers(plain, element(dtype))), None
        if dtype is bf16:
            return np.asarray(_bf16(plain)), None
        return np.asarray(plain.astype(element(dtype))), None


def _integers(x: Array, plain: np.dtype[Any]) -> Array:
    info = np.iinfo(plain)
    if x.dtype.kind in "iub":
        return np.clip(x.astype(np.int64), info.min, info.max).astype(plain)
    whole = np.nan_to_num(np.trunc(x.astype(np.float64)), nan=0.0)
    inside = np.clip(whole, info.min, float(info.max))
    # float(i64.max) is 2**63, one too many: set it, and what lies beyond, by hand.
    below = np.where(inside < 2.0**63, inside, 0).astype(plain)
    return np.where(whole >= float(info.max), info.max, below).astype(plain)


def _bf16(x: Array) -> Array:
    """Nearest even in one rounding, also from f64 and i64; a NaN keeps its sign and upper payload, and is quiet."""
    wide = x if x.dtype.kind == "f" else x.astype(np.float64)
    single = wide.astype(np.float32)
    bits = single.view(np.uint32)
    if wide.dtype == np.float64:  # to f32 by round-to-odd, so that the rounding below is the only one
        above = np.isfinite(wide) & (np.abs(single.astype(np.float64)) > np.abs(wide))
        inexact = np.isfinite(wide) & (single.astype(np.float64) != wide)
        bits = np.where(inexact, (bits - above.astype(np.uint32)) | np.uint32(1), bits)
    nan = np.isnan(single)
    rounded = (bits + (np.uint32(0x7FFF) + (bits >> 16 & 1))) >> 16
    return np.where(nan, bits >> 16 | 0x40, rounded).astype(np.uint16).view(element(bf16))


def _encoded(x: Array, dtype: DType) -> tuple[Array, int | None]:
    codec = dtype.codec
    assert codec is not None
    shape = (*x.shape[:-1], x.shape[-1] // dtype.block)
    blocks = x.reshape(-1, dtype.block)
    bad: Array = np.asarray(~np.isfinite(blocks).all(axis=1))
    blocks = np.where(bad[:, None], np.float32(0), blocks)
    raw = np.zeros((len(blocks), dtype.block_nbytes), np.uint8)
    if len(blocks):
        codec.encode(blocks, raw)
    bad |= codec.bad(raw)
    raw[bad] = 0
    return raw.view(element(dtype)).reshape(shape), int(bad.argmax()) if bad.any() else None
