"""Windows that overlap, memory that is taken over, packed constants and work memory of exactly the promised size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recipes import BLOCKS, RECIPES, RUNNING, USUAL, examples_of, examples_with, need_kernel

import jackfield as jf
from jackfield import ops
from jackfield.backend import DTYPES, Step, Usage
from jackfield.dtypes import f32, i32
from jackfield.errors import PlanError
from jackfield.graph import ArraySource, Attrs, view
from jackfield.op import OPS, Case, rand, values
from jackfield.spec import Spec, View
from jackfield_conformance import Refused, mistakes
from jackfield_conformance.direct import step_of

PART = 3  # see thorough.py


def path(on):
    backend, device = on
    return f"{device.name}+reference" if backend.name != "reference" else "reference"


# windows


def sliding(spec, rng):
    """A window of this shape on one line of numbers whose axes overlap, and the line: (line, View)."""
    steps = [int(s) for s in rng.integers(0, 4, spec.rank)]
    if steps:
        steps[-1] = 1
    start = int(rng.integers(0, 5))
    n = start + sum((e - 1) * s for e, s in zip(spec.shape, steps, strict=True) if e) + 1
    line = rng.uniform(-1, 1, n + 3).astype(np.float32)
    return line, View(Spec(spec.dtype, spec.shape, tuple(4 * s for s in steps)), 4 * start)


def slid(example, rng):
    """The example with each f32 operand but a target as an overlapping window."""
    draws, views, bases = dict(example.draws), dict(example.views), dict(example.bases)
    targets = [example.op.operands[i] for i in example.op.targets]
    for name, old in example.views.items():
        spec = old.spec
        if spec.dtype is not f32 or not spec.size or name in targets or name == "mask":
            continue
        line, window = sliding(spec, rng)
        seen = np.lib.stride_tricks.as_strided(line[window.offset // 4 :], spec.shape, window.spec.byte_strides)
        draws[name], views[name], bases[name] = values(seen, f32), window, Spec(f32, line.shape)
    return replace(example, draws=draws, views=views, bases=bases, layout="sliced")


@pytest.mark.parametrize("name", RUNNING)
@given(data=st.data())
@settings(max_examples=12)
def test_overlapping_windows_are_operands_like_others(name, on, data):
    """Item 46: rows that overlap or stand still, as the windows of a sliding state do."""
    letters, _ = RECIPES[name]
    extents = {letter: data.draw(st.integers(1, 6)) for letter in letters}
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    for example in (e for e in examples_with(name, **extents) if e.layout == "dense" and e.dtype is f32):
        try:
            assert mistakes(slid(example, rng), *on) == []
        except Refused as reason:
            assert name in str(reason)


@pytest.mark.parametrize("op", ["write", "accumulate", "put_rows"])
def test_nothing_is_written_through_a_window_that_overlaps(op, on):
    """Item 47: two elements of one address have no value of their own."""
    state = jf.state("s", (64,))
    for strides in ((4, 4), (0, 4), (8, 8)):
        window = view("slice", state, Attrs(), View(Spec(f32, (3, 5), strides), 0))
        x = jf.input("x", (1, 5))
        update = (
            ops.put_rows(window, x, jf.input("rows", (1,), i32))
            if op == "put_rows"
            else OPS[op](window, x, start=(0, 0))
        )
        with pytest.raises(PlanError):
            jf.compile(update, device=path(on))


INPLACE = [name for name in RUNNING if OPS[name].inplace and not OPS[name].updates]


@pytest.mark.parametrize("name", INPLACE)
def test_an_operand_that_others_read_keeps_its_value(name, on):
    """Items 23, 53: memory is taken over only where nobody looks, and is taken over where it may."""
    need_kernel(name, on)
    letters, recipe = RECIPES[name]
    case = recipe({letter: USUAL[letter] for letter in letters})
    (example, *_) = examples_of(name, case)
    arrays = dict(zip(example.op.operands, example.arrays(), strict=True))
    leaves = {n: jf.input(n, a.shape, example.views[n].spec.dtype) for n, a in arrays.items() if a is not None}
    for taken in example.op.inplace:
        temporary = ops.contiguous(leaves[taken])
        made = example.op(*[temporary if n == taken else leaves.get(n) for n in example.op.operands], **example.attrs)
        both = jf.compile((made, ops.scale(temporary, scale=1.0)), device=path(on))
        alone = jf.compile(made, device=path(on))
        feeds = {n: arrays[n] for n in leaves}
        first, kept = both(**feeds)
        np.testing.assert_array_equal(kept, arrays[taken])
        np.testing.assert_array_equal(first, alone(**feeds))
        if made.spec == temporary.spec:
            name = alone.devices[0]
            assert alone.memory()[name]["temporaries"] < both.memory()[name]["temporaries"]


# constants


def weights(name, rows, columns, seed=0):
    """A constant of random bits in a block dtype, with its values; scales that are not finite are left out."""
    dtype = DTYPES[name]
    rng = np.random.default_rng(seed)
    if dtype.block > 1:
        try:
            raw = dtype.encode(rng.standard_normal((*rows, columns)).astype(np.float32))
        except jf.Error as reason:
            pytest.skip(str(reason))
        wide = dtype.decode(raw)
    else:
        wide = rng.standard_normal((*rows, columns)).astype(dtype.numpy)
        raw = wide.view(np.uint8)
    return jf.constant(ArraySource(np.ascontiguousarray(raw), dtype, (*rows, columns))), wide.astype(np.float64)


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", *BLOCKS])
def test_one_constant_serves_every_op(name, on):
    """Items 60, 66: packed for one op, plain for another, cut into, and never read as what it is not."""
    columns = max(256, DTYPES[name].block)
    w, wide = weights(name, (35,), columns)
    x, rows = jf.input("x", (3, columns)), jf.input("rows", (4,), i32)
    rng = np.random.default_rng(1)
    feeds = {"x": rng.standard_normal((3, columns)).astype(np.float32), "rows": np.array([34, 0, 7, 7], np.int32)}
    plan = jf.compile(
        {
            "linear": ops.linear(x, w, precision="f32"),
            "part": ops.linear(x, w[3:20], precision="f32"),
            "rows": ops.take_rows(w, rows),
            "some": ops.take_rows(w[7:], ops.write(rows, jf.constant(np.array([0], np.int32)), start=(0,))),
            "cast": ops.cast(w, dtype="f32"),
            "twice": ops.cast(ops.concatenate(w, w[:2], axis=0), dtype="f32"),
        },
        device=path(on),
    )
    got = plan(**feeds)
    want = feeds["x"].astype(np.float64) @ wide.T
    size = np.abs(feeds["x"].astype(np.float64)) @ np.abs(wide.T)
    assert (np.abs(got["linear"] - want) <= 1e-5 * size + 1e-7).all()
    assert (np.abs(got["part"] - want[:, 3:20]) <= 1e-5 * size[:, 3:20] + 1e-7).all()
    np.testing.assert_array_equal(got["rows"], wide[feeds["rows"]])
    np.testing.assert_array_equal(got["some"], wide[7:][[0, 0, 7, 7]])
    np.testing.assert_array_equal(got["cast"], wide)
    np.testing.assert_array_equal(got["twice"], np.concatenate([wide, wide[:2]]))


@pytest.mark.parametrize("name", ["f32", "f16", *BLOCKS])
def test_rows_of_every_number_are_packed_and_given_back(name, on):
    """Items 41, 51, 61, 65: into memory that is NaN, for odd numbers of rows and matrices; back, bit for bit."""
    backend, device = on
    dtype = DTYPES[name]
    columns = dtype.block if dtype.block > 1 else 33
    for shape in [(n, 2 * columns) for n in (1, 2, 15, 16, 17, 31, 33)] + [(3, n, columns) for n in (1, 15, 31, 32)]:
        spec = Spec(dtype, shape, role="constant")
        for user in ("linear", "linear_experts", "take_rows"):
            table = "x" if user == "take_rows" else "weight"
            if name not in backend.kernels()[user].operands[table]:
                continue
            step = Step(user, tuple(spec if n == table else None for n in OPS[user].operands), spec)
            packing = backend.pack(spec, [step], device.target)
            if packing is None:
                continue
            plain = np.random.default_rng(0).integers(0, 256, spec.nbytes).astype(np.uint8)
            before = plain.copy()
            kept = [np.full(packing.nbytes, fill, np.uint8) for fill in (0xFF, 0x00)]
            for packed in kept:
                packing.pack(plain.data, packed.data)
            np.testing.assert_array_equal(kept[0], kept[1], err_msg="padding depends on what was there before")
            np.testing.assert_array_equal(plain, before)
            if packing.unpack is not None:
                back = np.full(spec.nbytes, 0xFF, np.uint8)
                packing.unpack(kept[0].data, back.data)
                np.testing.assert_array_equal(back, plain)


@pytest.mark.parametrize("name", ["f32", "q4_0", "q6_K"])
def test_experts_are_found_behind_one_another(name, on):
    """Item 65: rows of a matrix that are no whole group of rows do not shift the next matrix."""
    for rows in (1, 15, 17, 31):
        case = Case(
            {
                "x": rand(5, 1, 256),
                "weight": rand(4, rows, 256, dtype=DTYPES[name]),
                "ids": values(np.array([[3, 0], [1, 2], [2, 2], [0, 3], [1, -1]]), i32),
            }
        )
        for example in (e for e in examples_of("linear_experts", case) if e.layout in ("dense", "constant")):
            assert mistakes(example, *on) == []


# work memory


@pytest.mark.parametrize("name", RUNNING)
@pytest.mark.parametrize("on", ["cpu"], indirect=True)  # the others need no work memory
def test_work_memory_is_as_large_as_was_said(name, on):
    """Items 49, 50: each step of 1 to 9, 17, 33 and 70 rows keeps within its own; the kit fills and guards it."""
    need_kernel(name, on)
    backend, device = on
    letters, _ = RECIPES[name]
    for extent in (*range(1, 10), 17, 33, 70):
        long = (
            {letters[0]: extent} | ({"M": extent} if "M" in letters else {}) | ({"T": extent} if "T" in letters else {})
        )
        for example in (e for e in examples_with(name, **long) if e.layout in ("dense", "constant")):
            if device.scratch([step_of(example)]) or example.layout == "constant":
                try:
                    assert mistakes(example, backend, device) == []
                except Refused as reason:
                    assert name in str(reason)


def test_no_bytes_are_a_buffer_too(on):
    """Item 3: nothing can be allocated, written, read and freed."""
    _, device = on
    buffer = device.alloc(0, Usage.COMPUTE)
    device.write(buffer, 0, memoryview(b""))
    device.read(buffer, 0, memoryview(bytearray()))
    device.free(buffer)
    for shape in ((0,), (3, 0), (0, 5, 2)):
        session = jf.Session(path(on))
        state, x = jf.state("s", shape), jf.input("x", shape)
        plan = session.compile({"copy": ops.contiguous(x), "new": ops.write(state, x, start=(0,) * len(shape))})
        nothing = np.zeros(shape, np.float32)
        assert plan(x=nothing)["copy"].shape == shape
        session.states["s"].write(nothing)
        assert session.states["s"].read().shape == shape
