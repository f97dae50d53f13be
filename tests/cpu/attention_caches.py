"""Operands of attention whose caches are floats or blocks of q8_0, as tests draw them, and one step on them.

A cache of blocks is u8 (S, heads, N, blocks, 34), kept by token like one of floats; everything here takes both.
"""

from __future__ import annotations

import numpy as np
from bound_step import BoundStep

from jackfield import ops
from jackfield.dtypes import q8_0

BLOCK = 34


def coded(rows):
    """f32 (S, heads, N, size) of a cache kept by token, as blocks u8 (S, heads, N, size / 32, 34) kept alike."""
    by_token = np.ascontiguousarray(rows.transpose(0, 2, 1, 3), np.float32)
    raw = q8_0.encode(by_token).reshape(*by_token.shape[:-1], -1, BLOCK)
    return raw.transpose(0, 2, 1, 3, 4)


def decoded(blocks):
    return q8_0.decode(np.ascontiguousarray(blocks).reshape(*blocks.shape[:-2], -1))


def quantised(arrays, names="kv"):
    """The same operands with these coded, and their plain values for the oracle."""
    blocks = arrays | {name: coded(arrays[name]) for name in names}
    return blocks, plain(blocks)


def plain(arrays):
    """The same operands with every cache of blocks decoded."""
    return arrays | {name: decoded(arrays[name]) for name in "kv" if arrays[name].ndim == 5}


def channels(cache, first, count):
    """A view of so many channels of every row; of blocks, whole ones."""
    if cache.ndim == 5:
        return cache[..., first // 32 : (first + count) // 32, :]
    return cache[..., first : first + count]


def spoil(cache, stream, group, row):
    """Makes rows of the cache NaN; indices of one or of many."""
    if cache.ndim == 5:
        cache[stream, group, row, :, :2] = np.frombuffer(np.float16(np.nan).tobytes(), np.uint8)
    else:
        cache[stream, group, row] = np.nan


def bound(arrays, level, threads=1, strides=(), **attrs):
    blocks = {name: q8_0 for name in "kv" if arrays[name].ndim == 5}
    return BoundStep(ops.attention, arrays, level, threads, attrs=attrs, strides=strides, blocks=blocks)


def run(arrays, level, threads=1, strides=(), **attrs):
    """The result of one step that finds no fault."""
    step = bound(arrays, level, threads, strides, **attrs)
    fault = step.run()
    assert fault is None, fault
    return step.result()
