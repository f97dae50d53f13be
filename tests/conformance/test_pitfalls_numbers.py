"""Numbers that have gone wrong elsewhere: overflow of halves, zeros over zeros, rounding, masks, integers, NaN."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from recipes import BLOCKS, examples_of, taken

import jackfield as jf
from jackfield import ops
from jackfield.conformance import expected, made
from jackfield.dtypes import DTYPES, bf16, f16, f32, i32
from jackfield.errors import BadIndex, ShapeError
from jackfield.op import Case, rand, values
from jackfield_conformance import Refused, mistakes, run
from jackfield_conformance.direct import NAN_GUARD

PART = 3  # see thorough.py

BF16 = np.dtype(ml_dtypes.bfloat16)
INF, NAN = np.inf, np.nan


def has_encoder(name):
    try:
        DTYPES[name].encode(np.zeros(DTYPES[name].block, np.float32))
    except jf.Error:
        return False
    return True


CODED = [name for name in BLOCKS if has_encoder(name)]


def result(on, op, arrays, **attrs):
    return run(made(op, arrays, **attrs), *on).result


def path(on):
    backend, device = on
    return f"{device.name}+reference" if backend.name != "reference" else "reference"


# products


def products(on, x, weight, **attrs):
    """linear of these very f32 rows, with the weight as an operand and as a constant, where the device takes it."""
    case = Case({"x": values(x, f32), "weight": weight}, attrs)
    return taken([e for e in examples_of("linear", case) if e.layout in ("dense", "constant")], on)


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("rows", [1, 2, 33])
def test_long_sums_of_one_sign_keep_their_digits(on, name, rows):
    """Item 29: a half accumulator is off by a percent here, and infinite beyond 65504."""
    k = 8192
    dtype = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": BF16}[name]
    rng = np.random.default_rng(rows)
    x = rng.uniform(3, 5, (rows, k)).astype(np.float32)
    w = rng.uniform(3, 5, (5, k)).astype(dtype)
    want = x.astype(np.float64) @ w.astype(np.float64).T
    assert want.min() > 65504
    # x may be rounded to the dtype of the weight; those errors average out over k, those of an accumulator do not
    bound = {"f32": 1e-6, "f16": 1e-5, "bf16": 1e-4}[name]
    np.testing.assert_allclose(result(on, ops.linear, {"x": x, "weight": w}), want, rtol=bound)
    np.testing.assert_allclose(result(on, ops.matmul, {"a": x, "b": np.ascontiguousarray(w.T)}), want, rtol=bound)


def test_reductions_of_halves_are_not_made_in_halves(on):
    """Item 29 for sums: 70000 ones are 70000 on the way to their mean."""
    for dtype in (np.float16, BF16):
        x = np.ones((2, 70_000), dtype)
        assert result(on, ops.mean, {"x": x}).astype(np.float32).tolist() == [1, 1]
        assert result(on, ops.sum, {"x": x}, axis=None)[()] == 140_000
    big = np.full((2, 64), 300, np.float16)
    np.testing.assert_allclose(result(on, ops.rms_norm, {"x": big}).astype(np.float32), 1, rtol=2e-3)
    np.testing.assert_allclose(result(on, ops.l2_norm, {"x": big}).astype(np.float32), 1 / 8, rtol=2e-3)
    assert not result(on, ops.norm, {"x": big}).any()


@pytest.mark.parametrize("rows", [1, 4, 33])
@pytest.mark.parametrize("precision", ["default", "f32"])
@pytest.mark.parametrize("name", ["f16", "bf16", *CODED])
def test_large_activations_do_not_overflow(on, name, precision, rows):
    """Item 30: x beyond the largest half, by weights of every dtype."""
    dtype = DTYPES[name]
    rng = np.random.default_rng(rows)
    x = (rng.standard_normal((rows, 256)) * 1.5e5).astype(np.float32)
    x[0, 0] = 1e8
    for example in products(on, x, rand(7, 256, dtype=dtype), precision=precision):
        outcome = run(example, *on)
        assert np.isfinite(outcome.result).all()
        want, _ = expected(example)
        if precision == "default" and dtype.is_block:
            error = np.square(outcome.result - want).sum() / np.square(want).sum()
            assert error <= 5e-3, "blocks of x with one large element keep few digits of the others"
        else:
            assert not mistakes(example, *on)


@pytest.mark.parametrize("name", CODED)
def test_blocks_of_zeros_and_of_next_to_nothing(on, name):
    """Item 33: a block of x whose largest element is 0 has no scale to divide by."""
    x = np.random.default_rng(3).standard_normal((6, 512)).astype(np.float32)
    x[0] = 0
    x[1, :256] = 0
    x[2] = 0
    x[2, 5] = 1e-42
    x[3, 32:64] = 1e-42
    x[4] = -0.0
    x[5] *= 1e-38
    for rows in (slice(0, 6), slice(0, 1), slice(2, 3)):
        for example in products(on, x[rows], rand(9, 512, dtype=DTYPES[name])):
            assert not mistakes(example, *on)
            got = run(example, *on).result
            assert np.isfinite(got).all()
            assert not got[0].any() or rows.start == 2


@pytest.mark.parametrize("name", CODED)
@pytest.mark.parametrize("sign", [1, -1])
def test_the_longest_sums_of_the_largest_integers(on, name, sign):
    """Item 32: no accumulator of integers overflows, and no bias grows with the length (item 34)."""
    dtype, k = DTYPES[name], 1 << 15
    pattern = np.where(np.arange(k) % 2, 1.0, -1.0).astype(np.float32)
    for w in (np.full(k, 1.0, np.float32), pattern):
        x = (w * sign * 127).reshape(1, k)
        for example in products(on, x, values(np.stack([w, w * 3]), dtype)):
            want, _ = expected(example)
            assert abs(want[0, 0]) > 1e5
            np.testing.assert_allclose(run(example, *on).result, want, rtol=3e-3)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("name", ["f32", "f16", *CODED])
def test_nan_and_inf_stay_in_their_row(on, name, rows):
    """Items 19, 42: a row of x that is not finite shows, and its neighbours do not."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((rows + 1, 256)).astype(np.float32)
    for bad in (NAN, INF, -INF):
        x[-1, 77] = bad
        for example in products(on, x, rand(5, 256, dtype=DTYPES[name])):
            got = run(example, *on).result
            assert np.isfinite(got[:-1]).all()
            assert not np.isfinite(got[-1]).any()
            assert not mistakes(example, *on)


# rounding


def halves_between(dtype):
    """Each finite number of a 16-bit float, the middle to the next one, and both f32 beside the middle."""
    with np.errstate(all="ignore"):  # of signalling NaN
        bits = np.arange(65536, dtype=np.uint16).view(dtype).astype(np.float64)
    finite = np.unique(bits[np.isfinite(bits)])
    with np.errstate(all="ignore"):
        middle = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
    return np.concatenate([finite.astype(np.float32), middle, np.nextafter(middle, INF), np.nextafter(middle, -INF)])


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_every_converter_rounds_to_even(on, dtype):
    """Item 39: a value half way between two 16-bit floats goes to the even one, whichever op makes it."""
    x = halves_between(dtype.numpy)
    x = np.resize(x, (-(-len(x) // 64), 64)).astype(np.float32)
    with np.errstate(all="ignore"):
        want = x.astype(dtype.numpy)
    blank = np.zeros(x.shape, dtype.numpy)
    rows = np.arange(len(x), dtype=np.int32)
    made_by = {
        "cast": (ops.cast, {"x": x}, {"dtype": dtype.name}),
        "write": (ops.write, {"target": blank, "x": x}, {"start": (0, 0)}),
        "put_rows": (ops.put_rows, {"target": blank, "x": x, "rows": rows}, {}),
        "add": (ops.add, {"a": blank, "b": x}, {}),
    }
    for name, (op, arrays, attrs) in made_by.items():
        outcome = run(made(op, arrays, **attrs), *on)
        assert outcome.fault is None
        different = outcome.result != want
        assert not (different & ~np.isnan(want)).any(), (name, x[different][:4], outcome.result[different][:4])


@pytest.mark.parametrize("name", ["i32", "i64"])
def test_whole_numbers_beyond_24_bits_survive(on, name):
    """Item 31: nothing that moves integers goes by way of f32."""
    dtype = DTYPES[name].numpy
    info = np.iinfo(dtype)
    edge = [2**24 + 1, -(2**24) - 1, 2**31 - 1, -(2**31), info.max, info.min, info.max - 1, 123_456_789]
    x = np.array([edge, edge[::-1]], dtype)
    rows = np.array([1, 0], np.int32)
    moves = {
        "contiguous": (ops.contiguous, {"x": x}, {}, x),
        "cast": (ops.cast, {"x": x}, {"dtype": name}, x),
        "tile": (ops.tile, {"x": x}, {"repeats": (2, 1)}, np.tile(x, (2, 1))),
        "concatenate": (ops.concatenate, {"a": x, "b": x}, {"axis": 1}, np.concatenate([x, x], 1)),
        "write": (ops.write, {"target": np.zeros_like(x), "x": x}, {"start": (0, 0)}, x),
    }
    if name == "i32":
        moves["take_rows"] = (ops.take_rows, {"x": x, "rows": rows}, {}, x[rows])
        wide = x.astype(np.int64)
        moves["widen"] = (ops.cast, {"x": x}, {"dtype": "i64"}, wide)
    for what, (op, arrays, attrs, want) in moves.items():
        np.testing.assert_array_equal(result(on, op, arrays, **attrs), want, err_msg=what)


def test_attributes_are_not_cut_to_f32(on):
    """Item 31 for attributes: 16777217 is no f32, and a bound that is none moves to the nearest one."""
    x = np.array([0, 2, -3], np.float32)
    np.testing.assert_array_equal(
        result(on, ops.scale, {"x": x}, scale=1.0, bias=1e-3), (x.astype(np.float64) + 1e-3).astype(np.float32)
    )
    wide = np.array([16777215, 16777216, 16777218, NAN, INF, -INF], np.float32)
    got = result(on, ops.clip, {"x": wide}, min=-INF, max=16777217.0)
    assert got[:2].tolist() == [16777215, 16777216] and got[4] in (16777216, 16777218) and np.isnan(got[3])


# clamps


def test_the_clamped_gated_unit(on):
    """Items 21, 22: the clamp comes before silu, keeps NaN, and -inf in the gate is NaN by the formula."""
    gate = np.array([1e9, INF, -100, -INF, NAN, 1, 0, 20, -20], np.float32)
    up = np.array([1e9, -INF, 3, 3, 1, NAN, INF, 9, -9], np.float32)
    clamped, low, sigmoid = 48.95536, -20 / (1 + np.exp(20.0)), 1 / (1 + np.exp(-1.702 * 7))
    wanted = {
        "swiglu_clamp": [clamped, -clamped, -0.0, NAN, NAN, NAN, 0, clamped, low * -7],
        "swiglu_oai": [56 * sigmoid, -42 * sigmoid, -0.0, NAN, NAN, NAN, 0, 56 * sigmoid, 0],
    }
    for name, want in wanted.items():
        if name in on[0].kernels():
            op, attrs = getattr(ops, name), {"limit": 7.0}
            got = result(on, op, {"gate": gate, "up": up}, **attrs)
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
            fused = np.concatenate([up, gate]).reshape(1, -1)
            np.testing.assert_array_equal(result(on, op, {"gate": fused}, swapped=True, **attrs)[0], got)


# zeroing


def test_what_a_triangle_cuts_away_is_zero(on):
    """Item 44: also where it held NaN, which no product with 0 clears."""
    x = np.full((2, 33, 33), NAN, np.float32)
    for name in ("tril", "triu"):
        if name in on[0].kernels():
            got = result(on, getattr(ops, name), {"x": x}, k=1 if name == "triu" else -1)
            kept = np.isnan(got)
            assert kept[0].sum() == kept[1].sum() == 33 * 32 // 2
            assert not got[~kept].any()


def test_cleared_memory_is_zero_whatever_it_held(on):
    """Item 44: 0 times NaN is NaN, so nothing is cleared by a product. Results lie on NaN here (the kit's poison)."""
    table = np.full((3, 8), NAN, np.float32)
    outcome = run(made(ops.take_rows, {"x": table, "rows": np.array([0, 3, 1, -1], np.int32)}), *on)
    assert isinstance(outcome.fault, BadIndex) and not outcome.result[[1, 3]].any()
    assert np.isnan(outcome.result[[0, 2]]).all()
    none = np.zeros((3, 0), np.float32)
    assert not result(on, ops.linear, {"x": none, "weight": np.zeros((5, 0), np.float32)}).any()
    assert not result(on, ops.matmul, {"a": none, "b": np.zeros((0, 5), np.float32)}).any()
    assert result(on, ops.sum, {"x": none}).tolist() == [0, 0, 0]
    session = jf.Session(path(on))
    state = jf.state("s", (5, 7))
    session.compile(ops.write(state, jf.input("x", (5, 7)), start=(0, 0)))(x=np.full((5, 7), NAN, np.float32))
    assert np.isnan(session.states["s"].read()).all()
    session.states["s"].clear()
    assert not session.states["s"].read().any()


# attention


def by_hand(q, k, v, entries, sinks, scale):
    """One stream, by the words of the declaration: entries (T, N); -inf drops a column, NaN keeps it."""
    H, T, _ = q.shape
    y = np.zeros((T, H, v.shape[-1]))
    for h in range(H):
        for t in range(T):
            kept = np.flatnonzero(~(entries[t] == -INF))
            z = scale * k[h, kept].astype(np.float64) @ q[h, t].astype(np.float64) + entries[t, kept]
            every = np.append(z, [] if sinks is None else float(sinks[h]))
            if kept.size:
                e = np.exp(every - every.max())
                y[t, h] = e[: len(kept)] @ v[h, kept].astype(np.float64) / e.sum()
    return y


COLUMNS = 70


def mask_table(T, rng):
    """Rows of a mask of every kind, repeated over T queries."""
    kinds = [
        np.zeros(COLUMNS),
        np.full(COLUMNS, -INF),
        np.where(np.arange(COLUMNS) % 3, -INF, 0.5),
        np.where(np.arange(COLUMNS) == 69, 0.0, -INF),
        np.where(np.arange(COLUMNS) == 5, NAN, rng.standard_normal(COLUMNS)),
        np.where(np.arange(COLUMNS) < 64, -INF, 1.0),
        np.full(COLUMNS, -60000.0),
    ]
    return np.stack([kinds[t % len(kinds)] for t in range(T)])


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("T", [1, 2, 7, 33])
def test_one_table_of_masks_on_every_path(on, T, sinks):
    """Item 24: -inf hides, NaN keeps and shows, a row with nothing kept is 0, and so it is with only the sink."""
    rng = np.random.default_rng(T)
    q = rng.standard_normal((1, 4, T, 32)).astype(np.float32)
    k, v = (rng.standard_normal((1, 4, COLUMNS, 32)).astype(np.float32) for _ in range(2))
    shift = 0 if T > 1 else 4  # with one query, each kind in turn
    for first in range(7 if T == 1 else 1):
        entries = np.roll(mask_table(T + 7, rng), -first - shift, axis=0)[:T].astype(np.float16)
        sink = rng.standard_normal(4).astype(np.float32) if sinks else None
        want = by_hand(q[0], k[0], v[0], entries.astype(np.float64), sink, 0.2)
        for dtype in (np.float16, np.float32):
            arrays = {"q": q, "k": k, "v": v, "mask": entries.astype(dtype)} | ({"sinks": sink} if sinks else {})
            got = result(on, ops.attention, arrays, scale=0.2)[0]
            np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
            # a shift of 60000 costs the products of a row their last digits in f32
            bound = np.where((entries == -60000).all(-1), 2e-3, 2e-5)[:, None, None]
            assert (np.abs(np.nan_to_num(got - want)) <= bound).all()
        softmax = {"x": np.zeros((1, 4, T, COLUMNS), np.float32), "mask": entries} | ({"sinks": sink} if sinks else {})
        soft = result(on, ops.softmax, softmax)[0]
        shut = (entries == -INF).all(-1)
        assert not soft[:, shut].any()
        assert np.isnan(soft[:, np.isnan(entries).any(-1)]).all()


@pytest.mark.parametrize("T", [1, 2, 33])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_hidden_columns_may_hold_anything(on, T, dtype):
    """Item 24: NaN and infinities of K and V behind a mask, spread over its columns, do not reach the result."""
    rng = np.random.default_rng(T)
    q = rng.standard_normal((1, 4, T, 32)).astype(np.float32)
    k, v = (rng.standard_normal((1, 2, 150, 32)).astype(dtype) for _ in range(2))
    mask = rng.standard_normal((1, 1, T, 150)).astype(np.float16)
    hidden = rng.random(150) < 0.5
    mask[..., hidden] = -INF
    want = by_hand(q[0], k[0].repeat(2, 0), v[0].repeat(2, 0), mask[0, 0].astype(np.float64), None, 0.2)
    for bad in (NAN, INF, -INF):
        for poisoned in (k, v):
            kept = poisoned.copy()
            poisoned[:, :, hidden] = bad
            got = result(on, ops.attention, {"q": q, "k": k, "v": v, "mask": mask}, scale=0.2)[0]
            np.testing.assert_allclose(got, want, atol=1e-4 if dtype == np.float32 else 4e-3)
            poisoned[...] = kept


@pytest.mark.parametrize("T", [1, 2, 33])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_padding_of_a_list_reads_no_row(on, T, dtype):
    """Items 26, 27: padding is dropped by its sign alone; row 0 is NaN, and 0 times NaN would show."""
    rng = np.random.default_rng(T)
    q = rng.standard_normal((2, 2, T, 16)).astype(np.float32)
    k, v = (rng.standard_normal((1, 2, 40, 16)).astype(dtype) for _ in range(2))
    for n in (1, 31, 64, 255, 256, 257):  # item 171: round the length of a padded list
        rows = rng.integers(1, 40, (2, n)).astype(np.int32)
        rows[rng.random(rows.shape) < 0.4] = -1
        rows[1, n // 2 :] = -7
        mask = rng.standard_normal((2, 1, T, n)).astype(np.float16)
        k[:, :, 0] = v[:, :, 0] = NAN
        for length in (None, np.array([n, max(0, n - 1)], np.int32)):
            arrays = {"q": q, "k": k, "v": v, "mask": mask, "kv_rows": rows}
            if length is not None:
                arrays["kv_len"] = length
            try:
                outcome = run(made(ops.attention, arrays, scale=0.25), *on)
            except Refused as reason:
                pytest.skip(str(reason))
            assert outcome.fault is None and np.isfinite(outcome.result).all()
            for s in range(2):
                end = n if length is None else length[s]
                entries = np.where(rows[s, :end] < 0, -INF, mask[s, 0, :, :end].astype(np.float64))
                seen = np.where(rows[s, :end] < 0, 1, rows[s, :end])
                want = by_hand(q[s], k[0][:, seen], v[0][:, seen], entries, None, 0.25)
                np.testing.assert_allclose(outcome.result[s], want, atol=1e-4 if dtype == np.float32 else 4e-3)


def test_lists_with_bad_equal_or_no_entries(on):
    """Item 27: a row behind the cache is told, equal rows count twice, no column gives zeros."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, n, 16)).astype(np.float32) for n in (3, 9, 9))
    lists = {"bad": [1, 9, 2], "equal": [4, 4, 4, 7], "none": [], "padding": [-1, -1]}
    for name, rows in lists.items():
        n = len(rows)
        arrays = {"q": q, "k": k, "v": v, "kv_rows": np.array([rows], np.int32).reshape(1, n)}
        arrays["kv_len"] = np.array([n], np.int32)
        try:
            outcome = run(made(ops.attention, arrays, scale=0.25), *on)
        except Refused as reason:
            pytest.skip(str(reason))
        kept = [r for r in rows if 0 <= r < 9]
        want = by_hand(q[0], k[0][:, kept], v[0][:, kept], np.zeros((3, len(kept))), None, 0.25)
        np.testing.assert_allclose(outcome.result[0], want, atol=2e-5, err_msg=name)
        assert isinstance(outcome.fault, BadIndex) == (name == "bad")
        assert name != "bad" or "9" in str(outcome.fault)


def test_a_mask_of_one_stream_does_not_serve_several_lists():
    """Item 28: it would give all streams the columns of the first list."""
    q, cache = jf.input("q", (3, 2, 1, 16)), jf.input("k", (1, 2, 9, 16))
    rows, mask = jf.input("rows", (3, 5), i32), jf.input("m", (1, 1, 1, 5), f32)
    with pytest.raises(ShapeError, match="mask has 1 streams, q 3: with kv_rows they must be equal"):
        ops.attention(q, cache, cache, mask, kv_rows=rows, scale=1.0)


@pytest.mark.parametrize("count", [9, 10, 11])
def test_a_promise_of_few_entries_that_is_kept(on, count):
    """Item 25: with at most `kv_limit` entries the result is the dense one; no device may drop the last of them."""
    arrays = few_open(count)
    for limit in (count, count + 1, 40, 10**9):
        try:
            got = result(on, ops.attention, arrays, scale=0.25, kv_limit=limit)
        except Refused as reason:
            pytest.skip(str(reason))
        q, k, v, mask = arrays.values()
        want = by_hand(q[0], k[0], v[0], mask[0, 0].astype(np.float64), None, 0.25)
        np.testing.assert_allclose(got[0], want, atol=2e-5)


@pytest.mark.parametrize("count", [9, 10, 11])
def test_a_promise_of_few_entries_that_is_broken(on, count):
    """Item 25: one entry or many too many make the numbers anyone's, but nothing outside the operands is touched.

    All around them lies NaN, and the result must be an average of rows of v, whichever were taken.
    """
    arrays = few_open(count)
    for limit in (count - 1, 1):
        try:
            outcome = run(made(ops.attention, arrays, scale=0.25, kv_limit=limit), *on, guard=NAN_GUARD)
        except Refused as reason:
            pytest.skip(str(reason))
        assert outcome.damage == ""
        assert (np.abs(outcome.result) <= np.abs(arrays["v"]).max() + 1e-4).all()


def few_open(count):
    """Operands of attention whose mask opens so many columns a row, the last one among them."""
    rng = np.random.default_rng(count)
    q, k, v = (rng.standard_normal((1, 2, n, 16)).astype(np.float32) for n in (2, 40, 40))
    mask = np.full((1, 1, 2, 40), -INF, np.float32)
    for t in range(2):
        mask[0, 0, t, np.append(rng.permutation(39)[: count - 1], 39)] = 0.25
    return {"q": q, "k": k, "v": v, "mask": mask}


# gated units and activations


def test_gates_that_are_not_finite(on):
    """Item 21 for the units there are: NaN in either part stays, and -inf has the one value of the formula."""
    g = np.array([-INF, INF, NAN, 1.0, -100.0, 0.0], np.float32)
    u = np.array([3.0, 1.0, 1.0, NAN, 3.0, INF], np.float32)
    for op in (ops.swiglu, ops.geglu, ops.geglu_erf):
        got = result(on, op, {"gate": g, "up": u})
        assert np.isnan(got[[0, 2, 3, 5]]).all() and got[1] == INF
        assert abs(got[4]) < 1e-38
    for op in (ops.relu, ops.tanh, ops.sigmoid, ops.square):
        for dtype in (np.float32, np.float16, BF16):
            x = np.full(37, NAN, dtype)
            assert np.isnan(result(on, op, {"x": x}).astype(np.float32)).all(), "operand order of SIMD max and min"
    got = result(on, ops.clip, {"x": np.full(37, NAN, np.float32)}, min=0.0, max=1.0)
    assert np.isnan(got).all()


# casts


@pytest.mark.parametrize("name", BLOCKS)
def test_scales_of_every_bit_pattern_decode_alike(on, name):
    """Items 36 to 38: bytes of a block are whatever a file holds; each device reads them as the declaration does."""
    dtype = DTYPES[name]
    raw = np.arange(256 * dtype.block_nbytes, dtype=np.int64).reshape(256, -1) * 7
    raw = (raw + np.arange(256)[:, None] * 31).astype(np.uint8)
    table = jf.input("table", (256, dtype.block), dtype)
    rows = jf.input("rows", (256,), i32)
    plan = jf.compile(ops.take_rows(table, rows), device=path(on))
    got = plan(table=raw, rows=np.arange(256, dtype=np.int32))
    with np.errstate(all="ignore"):
        want = dtype.decode(raw)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    assert ((got == want) | np.isnan(want)).all()
