"""Operands of attention whose caches are floats or blocks, as tests draw them, and one step on them.

A cache of blocks is (S, heads, N, blocks), kept by token like one of floats. An element of it is a block: its scale, of
some dtypes its minimum, and the rest under the name of its dtype. Everything here takes both.
"""

from __future__ import annotations

import numpy as np
from bound_step import BoundStep

from jackfield import ops
from jackfield.dtypes import by_name

CODED = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")  # those attention reads
WITH_MINIMUM = ("q4_1", "q5_1")


def block_dtype(name):
    """numpy's view of a block."""
    halves = ["scale", "minimum"] if name in WITH_MINIMUM else ["scale"]
    return np.dtype([*((half, "<f2") for half in halves), (name, "u1", by_name(name).block_nbytes - 2 * len(halves))])


def coding(cache):
    """The block dtype of a cache, None of one of floats."""
    return by_name(cache.dtype.names[-1]) if cache.dtype.names else None


def coded(rows, name):
    """f32 (S, heads, N, size) of a cache kept by token, as blocks (S, heads, N, size / 32) kept alike."""
    by_token = np.ascontiguousarray(rows.transpose(0, 2, 1, 3), np.float32)
    raw = by_name(name).encode(by_token)
    return np.ascontiguousarray(raw).reshape(*by_token.shape[:-1], -1).view(block_dtype(name)).transpose(0, 2, 1, 3)


def decoded(blocks):
    return coding(blocks).decode(np.ascontiguousarray(blocks).view(np.uint8))


def quantised(arrays, name, which="kv"):
    """The same operands with these coded, and their plain values for the oracle."""
    blocks = arrays | {operand: coded(arrays[operand], name) for operand in which}
    return blocks, plain(blocks)


def plain(arrays):
    """The same operands with every cache of blocks decoded."""
    return arrays | {name: decoded(arrays[name]) for name in "kv" if coding(arrays[name])}


def channels(cache, first, count):
    """A view of so many channels of every row; of blocks, whole ones."""
    unit = 32 if coding(cache) else 1
    return cache[..., first // unit : (first + count) // unit]


def spoil(cache, stream, group, row):
    """Makes rows of the cache NaN; indices of one or of many."""
    (cache["scale"] if coding(cache) else cache)[stream, group, row] = np.nan


def bound(arrays, level, threads=1, strides=(), **attrs):
    blocks = {name: coding(arrays[name]) for name in "kv" if coding(arrays[name])}
    raw = arrays | {name: arrays[name][..., None].view(np.uint8) for name in blocks}
    return BoundStep(ops.attention, raw, level, threads, attrs=attrs, strides=strides, blocks=blocks)


def run(arrays, level, threads=1, strides=(), **attrs):
    """The result of one step that finds no fault."""
    step = bound(arrays, level, threads, strides, **attrs)
    fault = step.run()
    assert fault is None, fault
    return step.result()
