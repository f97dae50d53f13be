"""Casts, copies and rows put into caches, at every level: exact bits, and not a byte beside them."""

from __future__ import annotations

import gguf
import ml_dtypes
import numpy as np
import pytest
from bound_step import BoundStep, run
from one_step import LEVELS, content

from jackfield import ops
from jackfield.dtypes import q4_0, q8_0
from jackfield.errors import BadIndex, KernelError

pytestmark = pytest.mark.parametrize("level", LEVELS)
BF16 = np.dtype(ml_dtypes.bfloat16)
INF, NAN = np.inf, np.nan
SPECIAL = np.array([0.0, -0.0, INF, -INF, NAN, 1e-45, -1e-45, 3.4e38, -3.4e38, 65504.0], np.float32)


def test_every_half_is_widened_and_every_tie_is_rounded(level):
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    wide = run(ops.cast, {"x": halves}, level, dtype="f32")
    np.testing.assert_array_equal(wide, halves.astype(np.float32))
    finite = np.sort(halves[np.isfinite(halves)].astype(np.float64))
    middle = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
    x = np.concatenate(
        [middle, np.nextafter(middle, INF), np.nextafter(middle, -INF), SPECIAL, [65519.996, 65520, 2.0**-25]]
    )
    x = x.astype(np.float32)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(run(ops.cast, {"x": x}, level, dtype="f16"), x.astype(np.float16))


def test_bf16_rounds_to_even_and_keeps_nan_quiet(level):
    bits = np.arange(0, 65536, 7, dtype=np.uint32)[:, None] << 16 | np.array(
        [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32
    )
    x = bits.reshape(-1).view(np.float32)
    got = run(ops.cast, {"x": x}, level, dtype="bf16")
    with np.errstate(all="ignore"):
        want = x.astype(BF16)
    same = got.view(np.uint16) == want.view(np.uint16)
    assert (same | np.isnan(x)).all()
    assert np.isnan(got[np.isnan(x)].astype(np.float32)).all()
    np.testing.assert_array_equal(
        run(ops.cast, {"x": got}, level, dtype="f32").view(np.uint32), got.view(np.uint16).astype(np.uint32) << 16
    )


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_whole_numbers_saturate(level, size):
    dtype = np.dtype(f"i{size}")
    name, low, high = f"i{8 * size}", np.iinfo(dtype).min, np.iinfo(dtype).max
    x = np.array(
        [-3e38, -INF, INF, NAN, 2.9, -2.9, 127.5, -128.5, 2.0**31, 2.0**63, -(2.0**63), 16777217.0], np.float32
    )
    want = [low, low, high, 0, 2, -2, min(127, high), max(-128, low), min(2**31, high), high, low, min(16777216, high)]
    got = run(ops.cast, {"x": x}, level, dtype=name)
    assert got.tolist() == want
    whole = np.array([-(2**63), 2**63 - 1, 300, -7, 2**24 + 1, 257], np.int64)
    np.testing.assert_array_equal(
        run(ops.cast, {"x": whole}, level, dtype=name), np.clip(whole, low, high).astype(dtype)
    )
    np.testing.assert_array_equal(run(ops.cast, {"x": whole}, level, dtype="f32"), whole.astype(np.float32))


TYPES = {q8_0: gguf.GGMLQuantizationType.Q8_0, q4_0: gguf.GGMLQuantizationType.Q4_0}


def ties(rng, rows, columns):
    """Rows rich in ties, zeros, repeated extremes and large or tiny numbers."""
    x = rng.standard_normal((rows, columns)).astype(np.float32)
    x[0] = 0
    x[1] = rng.integers(-127, 128, columns) / 2
    x[2] = np.float32(2.5)
    x[3] = rng.choice([-8.0, 8.0, 0.5, -0.5], columns)
    x[4] *= 1e5
    x[5] *= 1e-30
    return x


@pytest.mark.parametrize("dtype", TYPES)
def test_blocks_are_coded_as_the_format_says(level, dtype):
    x = ties(np.random.default_rng(6), 9, 96)
    step = BoundStep(ops.cast, {"x": x}, level, attrs={"dtype": dtype.name})
    assert step.run() is None
    got = content(step.device, step.out, step.out_nbytes).reshape(9, -1)
    np.testing.assert_array_equal(got, gguf.quantize(x, TYPES[dtype]))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("threads", [1, 4])
def test_rows_are_put_into_a_strided_cache_of_blocks(level, dtype, threads):
    rng = np.random.default_rng(7)
    rows, heads, blocks = 12, 3, 2
    cache = rng.integers(0, 50, (rows, heads, blocks, dtype.block_nbytes), dtype=np.uint8)
    view = cache.transpose(1, 0, 2, 3)
    x = ties(rng, 6, heads * 64).reshape(6, heads, 64).transpose(1, 0, 2)
    list_ = np.array([11, -1, 0, 3, 3, 12], np.int32)
    step = BoundStep(ops.put_rows, {"target": view, "x": x, "rows": list_}, level, threads, blocks={"target": dtype})
    fault = step.run()
    assert isinstance(fault, BadIndex)
    assert "12" in str(fault)
    want = cache.copy()
    for i, row in enumerate(list_):
        if 0 <= row < rows:
            want[row] = gguf.quantize(np.ascontiguousarray(x[:, i]), TYPES[dtype]).reshape(heads, blocks, -1)
    np.testing.assert_array_equal(step.target().reshape(want.shape), want)


def test_a_block_that_cant_be_coded_is_zero_and_a_fault(level):
    x = np.ones((3, 64), np.float32)
    x[1, 40] = NAN
    x[2, 0] = 3e38
    step = BoundStep(
        ops.put_rows,
        {"target": np.full((5, 2, 34), 9, np.uint8), "x": x, "rows": np.array([4, 0, 1], np.int32)},
        level,
        blocks={"target": q8_0},
    )
    fault = step.run()
    assert isinstance(fault, KernelError)
    assert "block 3" in str(fault)
    got = step.target().reshape(5, 2, 34)
    assert got[4].any(axis=-1).all()
    assert not got[0, 1].any()
    assert not got[1, 0].any()
    assert got[0, 0].any()
    assert (got[2:4] == 9).all()


def test_of_a_row_written_twice_the_last_wins_whole(level):
    rng = np.random.default_rng(8)
    x = rng.standard_normal((64, 1500)).astype(np.float32)
    rows = np.tile(np.arange(4, dtype=np.int64), 16)
    for threads in (1, 3):
        step = BoundStep(
            ops.put_rows, {"target": np.zeros((4, 1500), np.float32), "x": x, "rows": rows}, level, threads
        )
        assert step.run() is None
        np.testing.assert_array_equal(step.target().view(np.float32).reshape(4, 1500), x[-4:])


def test_rows_are_put_through_every_view(level):
    rng = np.random.default_rng(9)
    x = rng.standard_normal((3, 5, 40)).astype(np.float32)
    rows = np.array([[6, 0, 2, 9, -1]], np.int32)
    for order in ((0, 1, 2), (1, 0, 2), (2, 1, 0), (0, 2, 1)):
        base = rng.standard_normal([(3, 10, 80)[a] for a in order]).astype(np.float16)
        view = base.transpose(np.argsort(order))[:, :, ::2]
        step = BoundStep(ops.put_rows, {"target": view, "x": x, "rows": rows}, level)
        assert step.run() is None
        view[:, rows[0, :4]] = x[:, :4]
        np.testing.assert_array_equal(step.target().view(np.float16), base.reshape(-1))


def test_write_changes_the_region_alone(level):
    rng = np.random.default_rng(10)
    base = rng.standard_normal((6, 9, 50)).astype(np.float16)
    view = base.transpose(1, 0, 2)[:, :, ::2]
    x = rng.standard_normal((4, 3, 11)).astype(np.float32)
    step = BoundStep(ops.write, {"target": view, "x": x}, level, attrs={"start": (2, 1, 5)})
    assert step.run() is None
    view[2:6, 1:4, 5:16] = x
    np.testing.assert_array_equal(step.target().view(np.float16), base.reshape(-1))


def test_copies_of_all_element_sizes_and_orders(level):
    rng = np.random.default_rng(11)
    for dtype in (np.int8, np.float16, np.float32, np.float64):
        x = rng.integers(-99, 99, (3, 18, 5, 33)).astype(dtype)
        for order in ((0, 1, 2, 3), (0, 2, 1, 3), (0, 1, 3, 2), (3, 2, 1, 0)):
            for threads in (1, 2):
                np.testing.assert_array_equal(
                    run(ops.contiguous, {"x": x.transpose(order)}, level, threads), x.transpose(order)
                )
