"""Block types made by a cast on the CPU, beside the very bytes of the core's encoders; blocks that are hard to fit."""

from __future__ import annotations

from functools import cache

import numpy as np
from bound_step import BoundStep
from one_step import content

from jackfield import ops
from jackfield.dtypes import DTYPES
from jackfield.errors import AttributeValueError, KernelError

LONG = 256  # elements of a row: whole blocks of every type


def bytes_of(x, dtype):
    """What the core encodes: u8 (blocks, bytes of one), zeros for blocks that it refuses; and the first refused."""
    blocks = np.ascontiguousarray(x, np.float32).reshape(-1, dtype.block)
    raw = np.zeros((len(blocks), dtype.block_nbytes), np.uint8)
    return raw, _encode_all(blocks, dtype, raw)


def _encode_all(blocks, dtype, raw, start=0):
    """Into raw, but for what is refused; the number of the first of those, counted from `start`, or None."""
    try:
        raw[:] = dtype.encode(blocks)
        return None
    except AttributeValueError:
        if len(blocks) == 1:
            return start
    half = len(blocks) // 2
    low = _encode_all(blocks[:half], dtype, raw[:half], start)
    high = _encode_all(blocks[half:], dtype, raw[half:], start + half)
    return high if low is None else low


def cast(x, dtype, level, threads=1):
    """The bytes of the result (blocks, bytes of one), and the fault or None."""
    step = BoundStep(ops.cast, {"x": x}, level, threads, attrs={"dtype": dtype.name})
    fault = step.run()
    return content(step.device, step.out, step.out_nbytes).reshape(-1, dtype.block_nbytes), fault


def same_bytes(x, dtype, level, threads=1, coded=None):
    """Blocks that the core refuses must be zeros, and the first of them is told. coded: `bytes_of`, where known."""
    want, bad = bytes_of(x, dtype) if coded is None else coded
    got, fault = cast(x, dtype, level, threads)
    np.testing.assert_array_equal(got, want)
    assert (fault is None) == (bad is None)
    if bad is not None:
        assert isinstance(fault, KernelError)
        if threads == 1:
            assert f"block {bad}:" in str(fault)


def same_special_bytes(dtype, level, threads):
    """`same_bytes` of the special rows, which the core encodes once a type."""
    same_bytes(special(), dtype, level, threads, _coded_special(dtype.name))


@cache
def _coded_special(name):
    return bytes_of(special(), DTYPES[name])


def same_random_bytes(dtype, level):
    """`same_bytes` of the random rows, which the core encodes once a type."""
    same_bytes(randoms(), dtype, level, coded=_coded_randoms(dtype.name))


@cache
def _coded_randoms(name):
    return bytes_of(randoms(), DTYPES[name])


def randoms():
    """Rows of many sizes and kinds: normal, of few values, of halves, with outliers, of one sign."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((60, LONG))
    kinds = [x, x * 10.0 ** rng.uniform(-36, 6, (60, 1)), rng.choice([-1.0, 1.0, -0.0, 0.5], x.shape)]
    kinds += [rng.integers(-127, 128, x.shape) / 2, rng.standard_t(2, x.shape), np.abs(x)]
    kinds += [x * 10.0 ** rng.uniform(-44, 4, (60, LONG // 16)).repeat(16, axis=1)]  # sub-blocks of unlike sizes
    return np.concatenate(kinds).astype(np.float32)


def special():
    """Rows that trip over zeros and their signs, ties, equal extremes, outliers, powers of two, ends of the ranges."""
    i = np.arange(LONG)
    rows = [i * 0.0, i * -0.0, np.where(i % 2, 0.0, -0.0)]
    rows += [np.full(LONG, v) for v in (1.0, -1.0, 0.3, -7.0, 6e4, -6e4, 1e-8, -1e-8, 1e-20)]
    rows += [np.full(LONG, v) for v in (-1e-31, 1e-37, -1e-40, 1e-45)]
    rows += [np.where(i == k, v, rest) for k in (0, 100, 255) for v in (5.0, -5.0) for rest in (0.0, -0.0, 0.25)]
    rows += [i - 128.0, (i - 128) / 2, i % 16 - 8.0, i % 32 / 2 - 8, i % 63 * 0.5, np.where(i % 2, 4.0, -4.0)]
    rows += [np.where(i % 3, 31.5, -32.0), np.where(i < 128, 0.0, i - 128.0), np.where(i < 32, -1e4, 1e-4)]
    rows += [i % 64 - np.float64(v) for v in (31.5, 32, 0.5)]
    rows += [np.where(i % 3, v, -v / 2) for v in (6.0, 12.0, 448.0 * 6, 449.0 * 6, 3e3, 7e4, 8.4e6, 1e30, 3e38)]
    rows += [np.resize([127, 0.5, -0.5, 1.5, -1.5, 2.5, 126.5, -126.5], LONG), np.resize([1, -0.5, 0.5, 0.25], LONG)]
    powers = np.float32(2) ** np.arange(-32, 33, dtype=np.float32)
    for power in np.concatenate([powers, np.nextafter(powers, np.float32(0)), np.nextafter(powers, np.float32(1e38))]):
        rows.append(np.where(i % 5, power / 3, power))
    return np.array(rows, np.float32)
