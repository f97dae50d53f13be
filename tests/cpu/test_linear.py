"""Products and row look-up of the CPU wheel at every level here: sizes, integers, hostile values, layouts."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from block_bits import random_blocks, set_scales, set_unit_scales
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from one_step import BACKEND, LEVELS, Tensor, device, packed, plain, run, spaced

from jackfield.backend import DTYPES, Spec, Step
from jackfield.dtypes.activations import quantise_q8_0, quantise_q8_K
from jackfield.errors import BadIndex, Unavailable
from jackfield_cpu.settings import read_settings

PART = 3  # see thorough.py
BLOCKS = tuple(name for name, dtype in DTYPES.items() if dtype.is_block and not dtype.is_activation)
FLOATS = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
CPUINFO = Path("/proc/cpuinfo")
COLUMNS = (1, 2, 3, 7, 8, 31, 32, 33, 64, 66)
ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 33)

NUMBERS = st.floats(-300, 300, width=32) | st.integers(-254, 254).map(lambda n: n / 2)  # with many ties

levels = pytest.mark.parametrize("level", LEVELS)
block_dtypes = pytest.mark.parametrize("name", BLOCKS)
# Of every dtype; of bf16 in each of its two ways.
WEIGHTS = [*((name, "widened") for name in (*BLOCKS, *FLOATS)), ("bf16", "paired")]
every_weight = pytest.mark.parametrize(("name", "products"), WEIGHTS)


def decoded(name, raw):
    return DTYPES[name].decode(raw.reshape(*raw.shape[:-2], -1)).astype(np.float64)


def weight(name, shape, rng):
    """A random weight of a block dtype or of floats, and its values in f64."""
    if name in FLOATS:
        array = rng.standard_normal(shape).astype(FLOATS[name])
        return plain(array), array.astype(np.float64)
    raw = random_blocks(DTYPES[name], shape, rng)
    return plain(raw, DTYPES[name], shape), decoded(name, raw)


def rounded(name, x):
    """x as the integer products see it, f64; rows that hold inf or NaN are NaN."""
    finite = np.isfinite(x).all(-1, keepdims=True)
    q, d = (quantise_q8_K if DTYPES[name].block == 256 else quantise_q8_0)(np.where(finite, x, np.float32(0)))[:2]
    values = q.astype(np.float64) * np.repeat(d.astype(np.float64), x.shape[-1] // d.shape[-1], -1)
    return np.where(finite, values, np.nan)


def seen_by(name, x, products="widened"):
    """x as the products with a weight of this dtype see it, f64. products: of bf16 weights."""
    if name in BLOCKS:
        return rounded(name, x)
    return (x.astype(ml_dtypes.bfloat16) if products == "paired" else x).astype(np.float64)


def grouped(x, w):
    """y and the sums of magnitudes for batch axes of w that divide those of x."""
    if w.ndim > 2:
        for axis in range(w.ndim - 2):
            w = np.repeat(w, x.shape[axis] // w.shape[axis], axis)
    turned = np.swapaxes(w, -1, -2)
    return x @ turned, np.abs(x) @ np.abs(turned)


def assert_near(y, want, size, factor=1e-5):
    """|y - want| <= factor * size; NaN where NaN is wanted and nowhere else."""
    np.testing.assert_array_equal(np.isnan(y), np.isnan(want))
    error, bound = np.abs(np.nan_to_num(y - want)), factor * np.nan_to_num(size) + 1e-37
    worst = np.unravel_index(np.argmax(error / bound), error.shape)
    assert (error <= bound).all(), f"{worst}: {y[worst]}, must be {want[worst]} within {bound[worst]}"


def same_bits(a, b):
    np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


def multiply(level, x, w, *, threads=1, strides=(), **attrs):
    """linear for an array or a Tensor x."""
    x = x if isinstance(x, Tensor) else plain(x)
    shape = (*x.spec.shape[:-1], w.spec.shape[-2])
    return run("linear", [x, w], shape, on=device(level, threads), strides=strides, **attrs)


@levels
@block_dtypes
@pytest.mark.parametrize("blocks", [1, 3])
def test_every_extent(level, name, blocks):
    rng = np.random.default_rng(blocks)
    k = blocks * DTYPES[name].block
    raw, x = random_blocks(DTYPES[name], (max(COLUMNS), k), rng), rng.standard_normal((max(ROWS), k), np.float32)
    values, seen = decoded(name, raw), rounded(name, x)
    for n in COLUMNS:
        w = packed(plain(raw[:n], DTYPES[name], (n, k)))
        want, size = grouped(seen, values[:n])
        for rows in ROWS:
            y = multiply(level, x[:rows], w, threads=1 + (rows + n) % 4)
            assert_near(y, want[:rows], size[:rows])


@levels
@block_dtypes
def test_long_rows(level, name):
    rng = np.random.default_rng(5)
    w, values = weight(name, (33, 4096), rng)
    x = rng.standard_normal((9, 4096), np.float32)
    y = multiply(level, x, packed(w), threads=2)
    assert_near(y, *grouped(rounded(name, x), values))
    exact = x @ values.T
    assert np.square(y - exact).sum() <= 5e-4 * np.square(exact).sum()


@levels
@block_dtypes
def test_one_row_has_the_same_bits_however_it_is_multiplied(level, name):
    """Packed or plain, alone or among others, dense or strided, at any number of threads."""
    rng = np.random.default_rng(7)
    k = 3 * DTYPES[name].block
    w, _ = weight(name, (45, k), rng)
    p, x = packed(w), rng.standard_normal((33, k), np.float32)
    y = multiply(level, x, p)
    for threads in (2, 3, 4):
        same_bits(y, multiply(level, x, p, threads=threads))
    same_bits(y, multiply(level, x, w, threads=3))
    same_bits(y, multiply(level, spaced(x), p, strides=(8 * 45 + 4, 8)))
    same_bits(y[17:18], multiply(level, x[17:18], p, threads=2))
    same_bits(y[4:11], multiply(level, x[4:11], p))


def diagonal_q8_0():
    """A weight of ones on the diagonal: the product shows the integers of x themselves."""
    raw = np.zeros((32, 1, 34), np.uint8)
    raw[:, 0, :2] = np.array([1], "<f2").view(np.uint8)
    raw[range(32), 0, range(2, 34)] = 1
    return packed(plain(raw, DTYPES["q8_0"], (32, 32)))


@levels
@given(x=arrays(np.float32, (3, 32), elements=NUMBERS))
@settings(max_examples=60)
def test_integers_of_small_blocks_are_numpys(level, x):
    q, d = quantise_q8_0(x)
    np.testing.assert_array_equal(multiply(level, x, diagonal_q8_0()), q * d)


@levels
def test_integers_round_halves_away_and_nothing_else(level):
    """All halves up to 126.5, and their two neighbours in f32, of either sign."""
    halves = np.arange(127, dtype=np.float32) + np.float32(0.5)
    near = np.concatenate([halves, np.nextafter(halves, np.float32(0)), np.nextafter(halves, np.float32(200))])
    every = np.concatenate([near, -near]).clip(-126.6, 126.6)
    x = np.concatenate([np.resize(every, (28, 28)), np.full((28, 4), 127, np.float32)], axis=1)
    q, d = quantise_q8_0(x)
    assert (d == 1).all()
    np.testing.assert_array_equal(multiply(level, x, diagonal_q8_0()), q)


@levels
@given(x=arrays(np.float32, (2, 256), elements=NUMBERS))
@settings(max_examples=60)
def test_integers_of_super_blocks_are_numpys(level, x):
    raw = np.zeros((256, 1, 210), np.uint8)
    raw[:, 0, 208:] = np.array([1], "<f2").view(np.uint8)
    raw[:, 0, 192:208] = 1
    raw[:, 0, 128:192] = 0b10101010  # 32, which stands for 0
    for e in range(256):
        raw[e, 0, 64 * (e // 128) + e % 64] = 1 << 4 * (e % 128 // 64)  # 33, which stands for 1
    q, d, _ = quantise_q8_K(x)
    np.testing.assert_array_equal(multiply(level, x, packed(plain(raw, DTYPES["q6_K"], (256, 256)))), q * d)


@levels
@block_dtypes
def test_integer_sums_are_exact(level, name):
    """With scales of one the result is the integer sum: for random bits and for all of them at their largest."""
    rng = np.random.default_rng(11)
    k = DTYPES[name].block
    raw = random_blocks(DTYPES[name], (31, k), rng)
    raw[7], raw[8] = 255, 0
    set_unit_scales(name, raw)
    x = np.clip(rng.standard_normal((6, k)) * 60, -126.9, 126.9).astype(np.float32)
    x[1], x[2] = 127, np.where(rng.integers(0, 2, k), 127, -127)
    x[3] = np.trunc(x[3]) + 0.5
    x[:, ::32] = -127  # scale 1 for both kinds of rounding
    seen, values = rounded(name, x), decoded(name, raw)
    np.testing.assert_array_equal(seen, np.trunc(seen))
    np.testing.assert_array_equal(values, np.trunc(values))
    y = multiply(level, x, packed(plain(raw, DTYPES[name], (31, k))))
    np.testing.assert_array_equal(y, seen @ values.T)


@levels
@block_dtypes
def test_hostile_rows(level, name):
    rng = np.random.default_rng(13)
    block = DTYPES[name].block
    w, values = weight(name, (33, 2 * block), rng)
    x = rng.standard_normal((10, 2 * block), np.float32)
    x[0] *= 1e-30
    x[1] *= 3e3
    x[2] *= 7e4
    x[3] = 0
    x[4, 5] = np.nan
    x[5, block + 1] = np.inf
    x[6, :block] = 0
    x[7] *= 1e-42
    x[8, -1] = -np.inf
    x[9, 3] = 1e37
    with np.errstate(invalid="ignore"):
        want, size = grouped(rounded(name, x), values)
    for operand in (packed(w), w):
        assert_near(multiply(level, x, operand, threads=3), want, size)


@levels
@every_weight
@pytest.mark.parametrize(
    ("many", "few"), [((2, 4), ()), ((2, 4), (2, 2)), ((4, 3), (2, 1)), ((1, 6), (1, 3)), ((6,), (2,))]
)
def test_batches_share_weights(level, name, products, many, few, bf16_products):
    bf16_products(products)
    rng = np.random.default_rng(17)
    shape = (*few, 18, 256)
    w, values = weight(name, shape, rng)
    x = rng.standard_normal((*many, 5, 256), np.float32)
    want, size = grouped(seen_by(name, x, products), values)
    y = multiply(level, x, packed(w), threads=2)
    assert_near(y, want, size)
    same_bits(y, multiply(level, x, w, threads=4))


@levels
@block_dtypes
def test_rows_and_blocks_beside_a_view_are_not_read(level, name):
    rng = np.random.default_rng(19)
    dtype = DTYPES[name]
    raw = random_blocks(DTYPES[name], (40, 2 * dtype.block), rng)
    values = decoded(name, raw[:20, :1])
    raw[:, 1], raw[20:] = 255, 255  # scales are NaN
    spec = Spec(dtype, (20, dtype.block), (2 * dtype.block_nbytes, dtype.block_nbytes))
    x = rng.standard_normal((3, dtype.block), np.float32)
    y = multiply(level, x, Tensor(spec, raw.reshape(-1)), threads=2)
    assert_near(y, *grouped(rounded(name, x), values))


@levels
@block_dtypes
def test_rows_that_fill_up_a_group_change_nothing(level, name):
    """Sixteen rows lie interleaved; those beyond the last one may hold anything, NaN too."""
    rng = np.random.default_rng(71)
    dtype = DTYPES[name]
    raw = random_blocks(dtype, (32, 2 * dtype.block), rng)
    raw[18:] = 255
    full = packed(plain(raw, dtype, (32, 2 * dtype.block)))
    part = plain(raw[:18], dtype, (18, 2 * dtype.block))
    spoiled = Tensor(packed(part).spec, full.raw)
    x = rng.standard_normal((21, 2 * dtype.block), np.float32)
    for rows in (1, 21):
        same_bits(multiply(level, x[:rows], spoiled, threads=2), multiply(level, x[:rows], part))


@levels
@block_dtypes
@pytest.mark.parametrize("rows", [1, 7])
def test_precision_f32_does_not_round_x(level, name, rows):
    rng = np.random.default_rng(23)
    w, values = weight(name, (33, 768), rng)
    x = rng.standard_normal((rows, 768), np.float32)
    y = multiply(level, x, packed(w), threads=2, precision="f32")
    assert_near(y, *grouped(x.astype(np.float64), values))
    same_bits(y, multiply(level, x, w, precision="f32"))


@levels
@pytest.mark.parametrize(("name", "products"), [row for row in WEIGHTS if row[0] in FLOATS])
def test_float_weights(level, name, products, bf16_products):
    bf16_products(products)
    rng = np.random.default_rng(29)
    for k in (0, 1, 63, 65, 257, 600):
        x = rng.standard_normal((33, k), np.float32)
        for n in (1, 7, 16, 33):
            array = rng.standard_normal((n, k)).astype(FLOATS[name])
            want, size = grouped(seen_by(name, x, products), array.astype(np.float64))
            for rows in (1, 2, 3, 5, 17, 33):
                y = multiply(level, x[:rows], plain(array), threads=1 + rows % 3)
                assert_near(y, want[:rows], size[:rows])
                if k:
                    same_bits(y, multiply(level, x[:rows], packed(plain(array)), threads=2))


@levels
@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_narrow_x_is_widened(level, name):
    rng = np.random.default_rng(31)
    x = rng.standard_normal((5, 64)).astype(FLOATS[name])
    for w in (weight("q4_0", (20, 64), rng)[0], plain(rng.standard_normal((20, 64)).astype(np.float32))):
        same_bits(multiply(level, spaced(x), w, threads=2), multiply(level, x.astype(np.float32), w))


@levels
def test_inf_and_nan_stay_in_their_row_of_a_float_product(level):
    rng = np.random.default_rng(37)
    array, x = rng.standard_normal((19, 40)).astype(np.float32), rng.standard_normal((6, 40)).astype(np.float32)
    clean = multiply(level, x, plain(array))
    x[2, 3], x[4, 0] = np.nan, np.inf
    y = multiply(level, x, plain(array))
    same_bits(y[[0, 1, 3, 5]], clean[[0, 1, 3, 5]])
    assert np.isnan(y[2]).all()
    np.testing.assert_array_equal(y[4], np.inf * np.sign(array[:, 0]))


@levels
def test_paired_bf16_products_round_x_and_nothing_else(level, bf16_products):
    """Against f64 on x rounded to bf16: odd and even columns, every width of panel, plain and packed, any threads."""
    rng = np.random.default_rng(53)
    for k in (0, 1, 2, 63, 64, 65, 257, 600):
        x = rng.standard_normal((33, k), np.float32)
        for n in (1, 16, 33):
            array = rng.standard_normal((n, k)).astype(ml_dtypes.bfloat16)
            want, size = grouped(x.astype(ml_dtypes.bfloat16).astype(np.float64), array.astype(np.float64))
            bf16_products("paired")
            whole = multiply(level, x, plain(array), threads=2)
            for rows in (1, 2, 3, 5, 17, 33):
                y = multiply(level, x[:rows], plain(array), threads=1 + rows % 3)
                assert_near(y, want[:rows], size[:rows])
                same_bits(y, whole[:rows])
                if k:
                    same_bits(y, multiply(level, x[:rows], packed(plain(array)), threads=2))
            exact = multiply(level, x, plain(array), precision="f32")
            bf16_products("widened")
            same_bits(exact, multiply(level, x, plain(array)))


@levels
def test_inf_and_nan_stay_in_their_row_of_a_paired_product(level, bf16_products):
    bf16_products("paired")
    rng = np.random.default_rng(59)
    array, x = rng.standard_normal((19, 41)).astype(ml_dtypes.bfloat16), rng.standard_normal((6, 41)).astype(np.float32)
    clean = multiply(level, x, plain(array))
    x[2, 3], x[4, 40], x[5, 1] = np.nan, np.inf, np.uint32(0x7F800001).view(np.float32)
    y = multiply(level, x, plain(array))
    same_bits(y[[0, 1, 3]], clean[[0, 1, 3]])
    assert np.isnan(y[[2, 5]]).all()
    np.testing.assert_array_equal(y[4], np.inf * np.sign(array[:, 40].astype(np.float32)))


@pytest.mark.skipif(not CPUINFO.exists(), reason="this system does not list what its CPU has")
def test_bf16_products_are_in_pairs_by_themselves_where_the_cpu_adds_pairs(bf16_products):
    rng = np.random.default_rng(73)
    array, x = rng.standard_normal((16, 64)).astype(ml_dtypes.bfloat16), rng.standard_normal((3, 64), np.float32)
    bf16_products("auto")
    chosen = multiply(LEVELS[0], x, plain(array))
    bf16_products("paired" if "avx512_bf16" in CPUINFO.read_text().split() else "widened")
    same_bits(chosen, multiply(LEVELS[0], x, plain(array)))


def test_unknown_ways_of_bf16_products_are_refused(bf16_products):
    assert not bf16_products("doubled")
    with pytest.raises(Unavailable, match=r"JACKFIELD_CPU_BF16='doubled': must be one of auto, widened, paired"):
        read_settings({"JACKFIELD_CPU_BF16": "doubled"})
    assert read_settings({}).bf16 == "auto"


@levels
@pytest.mark.parametrize("name", FLOATS)
def test_matmul(level, name):
    rng = np.random.default_rng(41)
    a = rng.standard_normal((4, 2, 5, 70)).astype(np.float32)
    b = rng.standard_normal((2, 1, 70, 21)).astype(FLOATS[name])
    want, size = grouped(a.astype(np.float64), np.swapaxes(b.astype(np.float64), -1, -2))
    y = run("matmul", [plain(a), plain(b)], (4, 2, 5, 21), on=device(level, 3))
    assert_near(y, want, size)
    same_bits(y, run("matmul", [spaced(a), spaced(b)], (4, 2, 5, 21), on=device(level, 2)))
    turned = np.ascontiguousarray(np.swapaxes(b, -1, -2))
    other = Tensor(Spec(plain(b).spec.dtype, b.shape, np.swapaxes(turned, -1, -2).strides), plain(turned).raw)
    same_bits(y, run("matmul", [plain(a), other], (4, 2, 5, 21), on=device(level, 1)))
    assert not run("matmul", [plain(a[0, 0, :, :0]), plain(b[0, 0, :0])], (5, 21), on=device(level, 1)).any()


def experts_are_right(level, name, experts, tokens, slots, rows, products="widened"):
    """Random choices, some of them -1, against numpy; the weight plain and packed. products: see `seen_by`."""
    rng = np.random.default_rng(43)
    shape = (experts, 18 if experts < 300 else 32, 256)
    w, values = weight(name, shape, rng)
    x = rng.standard_normal((tokens, rows, 256), np.float32)
    ids = rng.integers(-1, experts, (tokens, slots), np.int32)
    seen = np.tile(seen_by(name, x, products), (1, slots // rows, 1))[:, :, None]
    chosen = np.swapaxes(np.where(ids[..., None, None] < 0, 0, values[ids]), -1, -2)
    want, size = (seen @ chosen)[:, :, 0], (np.abs(seen) @ np.abs(chosen))[:, :, 0]
    shape = (tokens, slots, shape[1])
    for operand in (w, packed(w, "linear_experts")):
        y = run("linear_experts", [plain(x), operand, plain(ids)], shape, on=device(level, 3))
        assert_near(y, want, size)
    assert not y[ids < 0].any()


@levels
@every_weight
@pytest.mark.parametrize(("experts", "tokens", "slots", "rows"), [(5, 3, 2, 1), (3, 33, 6, 2)])
def test_experts(level, name, products, experts, tokens, slots, rows, bf16_products):
    bf16_products(products)
    experts_are_right(level, name, experts, tokens, slots, rows, products)


@levels
@pytest.mark.parametrize("name", ["q4_1", "q5_K", "mxfp4", "iq3_s", "f32"])
@pytest.mark.parametrize(
    ("experts", "tokens", "slots", "rows"),
    [
        (1, 1, 1, 1),
        (8, 40, 4, 4),
        (300, 9, 8, 1),
        (10, 300, 2, 1),
        (4, 2, 16, 8),
        (7, 5, 10, 5),
    ],
)
def test_one_expert_or_many_few_tokens_or_many(level, name, experts, tokens, slots, rows):
    experts_are_right(level, name, experts, tokens, slots, rows)


@levels
def test_a_bad_expert_is_reported_and_its_row_is_zero(level):
    rng = np.random.default_rng(47)
    w, _ = weight("q4_0", (4, 20, 64), rng)
    x = rng.standard_normal((5, 1, 64), np.float32)
    ids = rng.integers(0, 4, (5, 2), np.int32)
    ids[3, 1] = 4
    with pytest.raises(BadIndex, match=r"linear_experts.*ids.* 4"):
        run("linear_experts", [plain(x), w, plain(ids)], (5, 2, 20), on=device(level, 2))


@levels
@pytest.mark.parametrize("name", [*BLOCKS, *FLOATS, "i32"])
def test_take_rows_is_exact(level, name):
    rng = np.random.default_rng(53)
    shape = (2, 37, 768) if name in BLOCKS else (2, 37, 300)
    if name in BLOCKS:
        table, values = weight(name, shape, rng)
    else:
        array = rng.standard_normal(shape).astype(FLOATS.get(name, np.float32))
        array = array.view(np.int32) if name == "i32" else array
        table, values = plain(array), array
    rows = rng.integers(0, 37, (2, 9), np.int64)
    dtype = DTYPES["i32" if name == "i32" else "f32"]
    want = np.take_along_axis(values, rows[..., None], 1).astype(dtype.numpy)
    tables = [table] if name == "i32" else [table, packed(table, "take_rows")]
    for operand in tables:
        shape = (2, 9, shape[-1])
        y = run("take_rows", [operand, plain(rows)], shape, on=device(level, 3), dtype=dtype)
        np.testing.assert_array_equal(y, want)
        narrow = spaced(rows.astype(np.int32))
        strides = (9 * 8 * shape[-1], 8 * shape[-1], 8)
        y = run("take_rows", [operand, narrow], shape, on=device(level, 1), dtype=dtype, strides=strides)
        np.testing.assert_array_equal(y, want)


@levels
@pytest.mark.parametrize("name", BLOCKS)
def test_scales_of_any_size_are_decoded_exactly(level, name):
    """All finite halves, subnormal ones too; all scale bytes of the types that have no halves."""
    rng = np.random.default_rng(61)
    dtype = DTYPES[name]
    raw = rng.integers(0, 256, (256, 3, dtype.block_nbytes), np.uint8)
    set_scales(name, raw, lambda: rng.integers(0, 0x7C00, (256, 3), np.uint16).view(np.float16))
    if name in ("mxfp4", "nvfp4"):
        raw[:, 0, 0], raw[:, 1, 0] = np.arange(256), np.arange(256)[::-1]
    table = plain(raw, dtype, (256, 3 * dtype.block))
    want = dtype.decode(raw.reshape(256, -1))
    for operand in (table, packed(table, "take_rows")):
        y = run("take_rows", [operand, plain(np.arange(256, dtype=np.int32))], want.shape, on=device(level, 1))
        same_bits(y, want)


@levels
@block_dtypes
def test_many_rows_of_x_and_many_groups(level, name):
    """More than one panel and more groups than are decoded at once, on one worker and on several."""
    rng = np.random.default_rng(67)
    w, values = weight(name, (16 * 9 + 5, 512), rng)
    x = rng.standard_normal((70, 512), np.float32)
    y = multiply(level, x, packed(w))
    assert_near(y, *grouped(rounded(name, x), values))
    same_bits(y, multiply(level, x, packed(w), threads=3))
    same_bits(y[40:41], multiply(level, x[40:41], packed(w)))


@levels
@pytest.mark.parametrize("bad", [-1, 37, 2**40])
def test_a_bad_row_is_reported(level, bad):
    table, _ = weight("q8_0", (37, 64), np.random.default_rng(59))
    rows = np.array([0, bad, 36], np.int64)
    with pytest.raises(BadIndex, match=rf"take_rows.*rows.* {bad}"):
        run("take_rows", [packed(table, "take_rows"), plain(rows)], (3, 64), on=device(level, 1))


@pytest.mark.parametrize(("shape", "fits"), [((17, 4096), True), ((300, 17, 4096), False), ((300, 32, 4096), True)])
def test_packing_that_would_waste_memory_is_refused(shape, fits):
    spec = Spec(DTYPES["q4_0"], shape, role="constant")
    packing = BACKEND.pack(spec, [Step("linear", (None, spec), spec)], BACKEND.targets()[0])
    assert (packing is not None) == fits
    if packing is not None:
        assert packing.nbytes >= spec.nbytes


@block_dtypes
def test_packed_bytes_are_the_plain_bytes(name):
    """Rows in sixteens and 64-byte rows of scales cost nothing."""
    spec = Spec(DTYPES[name], (64, 1024), role="constant")
    packing = BACKEND.pack(spec, [Step("linear", (None, spec), spec)], BACKEND.targets()[0])
    assert packing is not None
    assert packing.nbytes == spec.nbytes
