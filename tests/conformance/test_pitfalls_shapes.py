"""Extents 0, 1 and odd on every axis, in every layout, with NaN round every operand; experts; widths; big tensors."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import imaging
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recipes import ATTRS, GATED, RECIPES, RUNNING, USUAL, examples_of, examples_with, need_kernel

from jackfield import ops
from jackfield.backend import Group, Place, PlacedStep, Spec, Step, Usage
from jackfield.conformance import examples, made
from jackfield.dtypes import by_name, f32, i32, u8
from jackfield.errors import BadIndex, ShapeError
from jackfield.op import OPS, Case, rand, values
from jackfield.spec import View
from jackfield_conformance import Refused, direct, mistakes, run

PART = 3  # see thorough.py
NAN_BYTE = 0xFF  # repeated: NaN in every float dtype, -1 in every integer one


def wrong_in(tried, on):
    """What is wrong with these examples on a device, and how many it took; NaN lies round every operand."""
    backend, device = on
    found, taken = [], 0
    with mock.patch.object(direct, "GUARD", NAN_BYTE):
        for example in tried:
            try:
                found += mistakes(example, backend, device)
                taken += 1
            except Refused:
                continue
    assert not found, f"{len(found)} mistakes on {device.name}\n" + "\n".join(found[:8])
    return taken


def test_every_op_has_a_recipe():
    assert RECIPES.keys() == set(RUNNING)


# An average and a largest element of nothing do not exist; a rotation needs a pair, attention a head of the cache, a
# convolution a tap.
NOT_EMPTY = {("mean", "D"), ("argmax", "D"), ("top_k", "D"), ("rope", "P"), ("attention", "H"), ("linear", "A")}
NOT_EMPTY |= {("linear", "B"), ("matmul", "A"), ("matmul", "B"), ("linear_experts", "P"), ("arange", "D")}
NOT_EMPTY |= {("ssm_conv", "D")} | imaging.NOT_EMPTY


@pytest.mark.parametrize("name", RUNNING)
def test_every_axis_empty_one_and_odd(name, on):
    """Items 1, 3, 9, 10 of the pitfalls: nothing runs that must, or divides by nothing."""
    need_kernel(name, on)
    letters, _ = RECIPES[name]
    for letter in letters:
        empty = examples_with(name, **{letter: 0})
        if (name, letter) in NOT_EMPTY and not empty:
            continue
        assert empty, f"{name} refuses an axis {letter} of 0"
        wrong_in(empty, on)
        for extent in (1, 2, 7, 33):
            assert wrong_in(examples_with(name, **{letter: extent}), on), f"{name}: axis {letter} of {extent}"
    ones = dict.fromkeys(letters, 1)
    assert wrong_in(examples_with(name, **ones), on)
    wrong_in(examples_with(name, **dict.fromkeys(letters, 0)), on)


@pytest.mark.parametrize("name", RUNNING)
@given(data=st.data())
@settings(max_examples=4)
def test_random_extents_in_every_layout(name, on, data):
    """Items 10, 19, 73: what `why_not` lets pass runs, and reads nothing beside its operands."""
    letters, _ = RECIPES[name]
    extents = {letter: data.draw(st.integers(1, 9)) for letter in letters}
    inner = letters[-1]
    extents[inner] = data.draw(st.sampled_from([1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 130, 256]))
    wrong_in(examples_with(name, **extents), on)


@pytest.mark.parametrize("name", GATED)
@pytest.mark.parametrize("width", [1, 2, 3, 31, 32, 33])
def test_widths_of_gated_units(name, width, on):
    """Item 2: the split form is as wide as gate itself; a fused one holds two halves."""
    need_kernel(name, on)
    attrs = ATTRS.get(name, {})
    split = Case({"gate": rand(3, width, low=-4, high=4), "up": rand(3, width)}, attrs)
    assert wrong_in(examples_of(name, split), on)
    for swapped in (False, True):
        fused = Case({"gate": rand(3, 2 * width, low=-4, high=4)}, {"swapped": swapped, **attrs})
        assert wrong_in(examples_of(name, fused), on)
    with pytest.raises(ShapeError, match="must be even"):
        examples_of(name, Case({"gate": rand(3, 2 * width - 1)}, attrs))


EXPERTS = 16


def chosen(pattern, tokens, slots, rng):
    """Ids of experts (tokens, slots): spread out, all at one, one expert twice in a token, or left out."""
    ids = np.stack([rng.permutation(EXPERTS)[:slots] for _ in range(tokens)])
    if pattern == "one for all":
        ids[:] = 5
    elif pattern == "twice in a token":
        ids[:, : slots // 2 * 2] = np.repeat(ids[:, : slots // 2], 2, axis=1)
    elif pattern == "some skipped":
        ids[rng.random(ids.shape) < 0.4] = -1
    elif pattern == "all skipped":
        ids[:] = -1
    return ids


@pytest.mark.parametrize("pattern", ["spread", "one for all", "twice in a token", "some skipped", "all skipped"])
@pytest.mark.parametrize("slots", [1, 2, 4, 6, 8, 10, EXPERTS])
def test_experts_of_every_number(slots, pattern, on):
    """Items 4, 5, 6: every number of experts a token, whoever is chosen; skipped rows are zero."""
    rng = np.random.default_rng(slots)
    for tokens in (1, 33):
        ids = chosen(pattern, tokens, slots, rng)
        for width in (1, slots):
            case = Case({"x": rand(tokens, width, 64), "weight": rand(EXPERTS, 5, 64), "ids": values(ids, i32)})
            tried = [e for e in examples_of("linear_experts", case) if e.layout in ("dense", "constant")]
            assert wrong_in(tried, on)


def test_a_row_of_a_skipped_slot_is_zero_and_a_bad_expert_is_told(on):
    """Item 6: by hand, with poison where the result goes."""
    x, weight = np.ones((2, 1, 32), np.float32), np.ones((3, 4, 32), np.float32)
    for bad in (3, -2, 2**31 - 1, -(2**31)):
        ids = np.array([[0, -1], [bad, 2]], np.int32)
        outcome = run(made(ops.linear_experts, {"x": x, "weight": weight, "ids": ids}), *on)
        assert outcome.result.tolist() == [[[32] * 4, [0] * 4], [[0] * 4, [32] * 4]]
        assert isinstance(outcome.fault, BadIndex)
        assert str(bad) in str(outcome.fault)


@pytest.mark.parametrize("n", [1023, 1024, 1025])
def test_searches_round_a_limit_of_others(n, on):
    """Item 12."""
    for name, attrs in (("argsort", {}), ("argsort", {"descending": True}), ("top_k", {"k": 1}), ("top_k", {"k": n})):
        assert wrong_in(examples_of(name, Case({"x": rand(3, n)}, attrs)), on)


@pytest.mark.parametrize("n", [1, 255, 256, 257, 1023, 1024, 1025, 2**20])
@pytest.mark.parametrize("step", [1.0, 0.3, -0.3])
def test_ranges_of_every_length(n, step, on):
    """Item 15: each element is start + i * step, the last as near as the first, whatever the number of groups."""
    need_kernel("arange", on)
    example = made(ops.arange, {}, start=-5.0, stop=-5.0 + (n - 0.5) * step, step=step)
    assert example.result.shape == (n,)
    assert wrong_in([example], on)


@pytest.mark.parametrize("k", [*range(1, 70), 95, 97, 127, 129, 255, 257, 511, 1000, 1023, 1025, 4097, 8191, 8192])
def test_every_column_is_read_once(k, on):
    """Item 17: products of whole numbers are exact, so that a column read twice or never shows."""
    rng = np.random.default_rng(k)
    x, w = rng.integers(-8, 9, (2, k)).astype(np.float32), rng.integers(-8, 9, (3, k)).astype(np.float32)
    for rows in (1, 2):
        for dtype in (np.float32, np.float16):
            y = run(made(ops.linear, {"x": x[:rows], "weight": w.astype(dtype)}), *on).result
            np.testing.assert_array_equal(y, x[:rows] @ w.T)
        y = run(made(ops.matmul, {"a": x[:rows], "b": np.ascontiguousarray(w.T)}), *on).result
        np.testing.assert_array_equal(y, x[:rows] @ w.T)
    y = run(made(ops.sum, {"x": x}), *on).result
    np.testing.assert_array_equal(y, x.sum(-1))


def test_every_number_of_rows_and_columns(on):
    """Item 18: M, N and K that are no multiple of a tile lose nothing, with plain and with packed weights."""
    backend, device = on
    rng = np.random.default_rng(0)
    x, w = rng.integers(-8, 9, (65, 96)).astype(np.float32), rng.integers(-8, 9, (33, 96)).astype(np.float32)
    for rows in range(1, 66) if device.target.kind == "cpu" else (1, 33, 65):
        for columns in (1, 2, 7, 8, 9, 31, 32, 33):
            k = (32, 33, 1, 95, 96)[(rows + columns) % 5]
            plain = made(ops.linear, {"x": x[:rows, :k], "weight": w[:columns, :k]})
            for role in ("temporary", "constant"):
                weight = View(plain.views["weight"].spec.with_role(role), 0)
                example = replace(plain, views=plain.views | {"weight": weight})
                got = run(example, backend, device).result
                np.testing.assert_array_equal(got, x[:rows, :k] @ w[:columns, :k].T)


FAR = (1 << 31) + 4096  # elements, and bytes of one row: beyond 32 bits


@pytest.fixture
def vast(on):
    """A device and four gigabytes of its memory that no page stands behind until it is touched."""
    _, device = on
    buffer = device.alloc(2 * FAR + 4096, Usage.COMPUTE)
    yield device, buffer
    device.free(buffer)


def far_step(device, op, places, result, **attrs):
    step = Step(op.name, tuple(p.spec for p in places), result.spec, op.complete(attrs))
    program = device.compile([Group((PlacedStep(step, tuple(places), result),))], None)
    program.run()
    device.synchronize()
    program.check()


# sim poisons all of its memory, so that all of it would be touched
@pytest.mark.parametrize("on", ["reference", "cpu"], indirect=True)
def test_strides_and_offsets_beyond_32_bits(vast):
    """Item 16: rows two gigabytes apart are read and written where they lie."""
    device, buffer = vast
    wide = Spec(f32, (3, 4), (FAR, 4))
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    small, out, index = (Place(buffer, 512 * i, Spec(u8, ())) for i in (1, 2, 3))
    device.write(buffer, small.offset, memoryview(rows).cast("B"))
    device.write(buffer, index.offset, memoryview(np.array([2, 0, 1], np.int32)).cast("B"))
    dense, back = Place(buffer, small.offset, Spec(f32, (3, 4))), Place(buffer, out.offset, Spec(f32, (3, 4)))
    far = Place(buffer, 2048, wide)
    far_step(device, OPS["write"], [far, dense], far, start=(0, 0))
    for i in range(3):
        seen = np.empty(4, np.float32)
        device.read(buffer, 2048 + i * FAR, memoryview(seen).cast("B"))
        assert seen.tolist() == rows[i].tolist()
    far_step(device, OPS["contiguous"], [far], back)
    got = np.empty((3, 4), np.float32)
    device.read(buffer, back.offset, memoryview(got).cast("B"))
    np.testing.assert_array_equal(got, rows)
    places = Place(buffer, index.offset, Spec(i32, (3,)))
    far_step(device, OPS["take_rows"], [far, places], back)
    device.read(buffer, back.offset, memoryview(got).cast("B"))
    np.testing.assert_array_equal(got, rows[[2, 0, 1]])
    far_step(device, OPS["put_rows"], [far, dense, places], far)
    far_step(device, OPS["contiguous"], [far], back)
    device.read(buffer, back.offset, memoryview(got).cast("B"))
    np.testing.assert_array_equal(got, rows[[1, 2, 0]])


@pytest.mark.parametrize("target", ["f32", "f16", "bf16", "i8", "i16", "i32", "i64", "q8_0"])
def test_writes_into_every_view_in_all_pairs_of_dtypes(target, on):
    """Item 11: a result whose rows or elements lie apart is not written as if they were dense."""
    op = OPS["write"]
    sources = ("f32", "f16", "bf16", "i8", "i16", "i32", "i64", "q8_0", "q4_0")
    taken = 0
    for source in sources:
        case = Case(
            {
                "target": rand(4, 3, 96, dtype=by_name(target)),
                "x": rand(2, 3, 64, low=-9, high=9, dtype=by_name(source)),
            },
            {"start": (1, 0, 32)},
        )
        tried = list(examples_of(op.name, case))
        assert {"dense", "rows", "sliced", "transposed"} <= {e.layout for e in tried}
        taken += wrong_in(tried, on)
    assert taken >= 4 * 7


@pytest.mark.parametrize("name", RUNNING)
def test_declared_cases_between_nan(name, on):
    """Item 19 for the declared cases: what lies outside the operands is NaN here, and no result shows it."""
    need_kernel(name, on)
    tried = [e for e in examples(OPS[name]) if e.layout in ("sliced", "constant")]
    assert wrong_in(tried, on) or not OPS[name].operands


def test_usual_lengths_cover_every_letter():
    assert {letter for letters, _ in RECIPES.values() for letter in letters} <= USUAL.keys()
