"""Steps that are made together: which ones, and that every result has the bits it has one by one."""

from __future__ import annotations

import logging
from itertools import pairwise

import numpy as np
import pytest
from block_bits import random_blocks
from grouped import groups_of, results, same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from one_step import LEVELS

import jackfield as jf
from jackfield import ops
from jackfield.backend import DTYPES
from jackfield.graph import ArraySource
from jackfield_cpu.settings import read_settings

WEIGHTS = ("q4_1", "q8_0", "q6_K", "iq4_xs", "f16", "f32")  # both tiles, staged, a format without one, floats
WIDTH = 256


def constant(rng, shape, dtype="f32"):
    """A weight that keeps activations near one."""
    kind = DTYPES[dtype]
    if kind.is_block:
        return jf.constant(ArraySource(random_blocks(kind, shape, rng), kind, shape))
    return jf.constant((rng.standard_normal(shape) / shape[-1] ** 0.5).astype(kind.numpy))


# What is made together


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def x():
    return jf.input("x", (3, WIDTH))


def linear(x, rng, outputs=48, dtype="q8_0"):
    return ops.linear(x, constant(rng, (outputs, x.shape[-1]), dtype))


def normed(x, rng):
    return ops.multiply(ops.rms_norm(x), jf.constant(rng.standard_normal(x.shape[-1]).astype(np.float32)))


def test_linears_of_one_x_their_norm_units_and_additions(x, rng):
    h = normed(x, rng)
    assert groups_of([linear(h, rng), linear(h, rng), linear(h, rng)]) == [("rms_norm", "multiply", *["linear"] * 3)]
    assert groups_of(ops.swiglu(linear(x, rng), linear(x, rng))) == [("linear", "linear", "swiglu")]
    assert groups_of(ops.geglu(linear(x, rng), linear(x, rng, dtype="q4_1"))) == [("linear", "linear", "geglu")]
    bias = constant(rng, (48,))
    biased = [ops.add(linear(x, rng), bias), ops.add(bias, linear(x, rng))]
    assert groups_of(biased) == [("linear", "add", "linear", "add")]
    assert groups_of(ops.add(x, ops.add(linear(x, rng, WIDTH), constant(rng, (WIDTH,))))) == [("linear", "add", "add")]
    many = jf.input("many", (17, WIDTH))
    assert groups_of(ops.add(linear(many, rng), constant(rng, (48,)))) == [("linear", "add")]
    assert groups_of(normed(x, rng)) == [("rms_norm", "multiply")]


def test_a_bias_in_front_of_a_unit_stays_outside(x, rng):
    gate, up = (ops.add(linear(x, rng), constant(rng, (48,))) for _ in range(2))
    assert groups_of(ops.swiglu(gate, up)) == [("linear", "add", "linear", "add")]


def near_misses(x, rng):
    other, h = jf.input("other", (3, WIDTH)), normed(x, rng)
    a, b, gate, up = linear(x, rng), linear(other, rng), linear(x, rng), linear(x, rng)
    wide = linear(x, rng, WIDTH)
    yield "another x", [a, b], []
    yield "another part of x", [linear(x[:2], rng), linear(x[1:], rng)], []
    yield "floats and blocks", [a, linear(x, rng, dtype="f16")], []
    yield "bf16 and other floats", [linear(x, rng, dtype="bf16"), linear(x, rng, dtype="f16")], []
    yield "another precision", [a, ops.linear(x, constant(rng, (9, WIDTH), "q8_0"), precision="f32")], []
    yield "a sum that is read twice", [ops.add(a, a)], []
    yield "what is added is made of the product", ops.add(wide, ops.tanh(wide)), []
    yield "what is added is made later", ops.add(a, ops.tanh(linear(ops.tanh(x), rng))), []
    yield "the product is an output too", [a, ops.add(a, constant(rng, (48,)))], []
    yield "a product with two readers", [ops.add(a, constant(rng, (48,))), ops.tanh(a)], []
    yield "the sum is larger than the product", ops.add(linear(x[:1], rng), jf.input("b", (5, 48))), []
    yield "a view of the product", ops.add(a[:, :16], constant(rng, (16,))), []
    yield "half precision is added to", ops.add(jf.input("h", (3, 48), jf.f16), a), []
    yield "the gate is an output", [gate, ops.swiglu(gate, up)], [("linear", "linear")]
    yield "a gate of itself", ops.swiglu(gate, gate), []
    yield "halves of one row", ops.swiglu(gate), []
    yield "gate and up of two x", ops.swiglu(a, b), []
    yield "the norm is an output", [h, linear(h, rng), linear(h, rng)], [("rms_norm", "multiply"), ("linear", "linear")]
    yield "the norm without weights", linear(ops.rms_norm(x), rng), []
    n = ops.rms_norm(x)
    yield "a norm read twice", [ops.multiply(n, constant(rng, (WIDTH,))), ops.tanh(n)], []
    yield "weights of a column", ops.multiply(ops.rms_norm(x), jf.input("c", (3, 1))), []
    yield "weights for each element", ops.multiply(ops.rms_norm(x), other), []
    yield "rows of the norm", [linear(h, rng), linear(h[1:], rng)], [("rms_norm", "multiply")]
    empty = jf.input("e", (0, WIDTH))
    yield "no rows", [linear(empty, rng), linear(empty, rng)], []
    many = jf.input("many", (17, WIDTH))
    yield "a residual of many rows", ops.add(many, linear(many, rng, WIDTH)), []
    yield "no columns", [linear(x, rng, 0), linear(x, rng, 0)], []
    yield "several matrices", [ops.linear(jf.input("t", (2, 3, WIDTH)), constant(rng, (2, 9, WIDTH)))] * 2, []


@pytest.mark.parametrize("case", [case[0] for case in near_misses(jf.input("x", (3, WIDTH)), np.random.default_rng(0))])
def test_near_misses_stay_apart(case, x, rng):
    graph, groups = next((graph, groups) for name, graph, groups in near_misses(x, rng) if name == case)
    assert groups_of(graph) == groups
    outputs = {str(i): y for i, y in enumerate(graph if isinstance(graph, list) else [graph])}
    same_bits(results(outputs, 2, LEVELS[0]), results(outputs, 1, LEVELS[0], fuses=False))


def test_a_state_that_changes_between_is_another_x(rng):
    """linear, write, linear of one memory: the second must see what was written."""
    state = jf.state("s", (3, WIDTH), jf.f32)
    before = linear(state, rng)
    after = linear(ops.write(state, jf.input("x", (3, WIDTH)), start=(0, 0)), rng)
    assert groups_of([before, after]) == []


def test_a_norm_is_not_made_after_its_rows_change(rng):
    state = jf.state("s", (3, WIDTH), jf.f32)
    scaled = normed(state, rng)
    changed = ops.write(state, jf.input("x", (3, WIDTH)), start=(0, 0))
    graph = {"a": linear(scaled, rng), "b": linear(ops.tanh(changed), rng)}
    want = results(graph, 1, LEVELS[0], fuses=False)
    same_bits(results(graph, 2, LEVELS[0]), want)


def test_the_switch(monkeypatch, caplog):
    assert read_settings({}).fuses
    assert not read_settings({"JACKFIELD_CPU_DISABLE_FUSION": "2"}).fuses
    assert read_settings({"JACKFIELD_CPU_DISABLE_FUSION": "0"}).fuses
    with caplog.at_level(logging.WARNING, "jackfield"):
        assert read_settings({"JACKFIELD_CPU_DISABLE_FUSION": "yes"}).fuses
    assert "JACKFIELD_CPU_DISABLE_FUSION='yes' is ignored" in caplog.text
    x, rng = jf.input("x", (3, WIDTH)), np.random.default_rng(0)
    assert groups_of([linear(x, rng), linear(x, rng)], fuses=False) == []


# The same bits


@st.composite
def graphs(draw):
    """Products, norms, units and sums, mostly of what was made last, so that much can be made together and much not."""
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    rows = draw(st.sampled_from([1, 2, 3, 7, 17, 40]))
    width, inner = 256, draw(st.sampled_from([5, 16, 48, 100]))
    dtypes = draw(st.lists(st.sampled_from(WEIGHTS), min_size=1, max_size=2))
    wide, narrow = [jf.input("x", (rows, width))], []

    def pick(tensors):
        return tensors[-1 - draw(st.integers(0, min(2, len(tensors) - 1)))]

    for kind in draw(
        st.lists(
            st.sampled_from(["norm", "down", "down", "up", "gate", "bias", "sum", "view", "write"]),
            min_size=3,
            max_size=14,
        )
    ):
        dtype = draw(st.sampled_from(dtypes))
        if kind == "norm":
            wide.append(normed(pick(wide), rng))
        elif kind == "down":
            narrow.append(linear(pick(wide), rng, inner, dtype))
        elif kind == "up" and narrow:
            wide.append(ops.linear(pick(narrow), constant(rng, (width, inner))))
        elif kind == "gate":
            unit = draw(st.sampled_from([ops.swiglu, ops.geglu, ops.geglu_erf]))
            x = pick(wide)
            narrow.append(unit(linear(x, rng, inner, dtype), linear(x, rng, inner, dtype)))
        elif kind == "bias":
            tensors = draw(st.sampled_from([t for t in (wide, narrow) if t]))
            extent = draw(st.sampled_from([(1,), (tensors[-1].shape[-1],), (rows, 1), (1, tensors[-1].shape[-1])]))
            tensors.append(ops.add(pick(tensors), constant(rng, extent)))
        elif kind == "sum":
            a, b = pick(wide), linear(pick(wide), rng, width, dtype)
            wide.append(ops.add(a, b) if draw(st.booleans()) else ops.add(b, a))
        elif kind == "view":
            x = linear(pick(wide), rng, 2 * width, dtype)
            wide.append(x[:, ::2] if draw(st.booleans()) else x[:, width:])
        elif kind == "write":
            state = jf.state(f"s{len(wide)}", (rows, width), jf.f32)
            narrow.append(linear(state, rng, inner, dtype))
            wide.append(ops.write(state, pick(wide), start=(0, 0)))
    made = [*wide[1:], *narrow]
    chosen = draw(st.lists(st.sampled_from(made), max_size=3)) if made else []
    return {str(i): t for i, t in enumerate([*chosen, *(made[-1:] or wide)])}


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=40, deadline=None)
@given(graphs(), st.integers(1, 5))
def test_random_graphs(level, graph, threads):
    same_bits(results(graph, threads, level), results(graph, 1, level, fuses=False))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", [n for n, d in DTYPES.items() if d.is_block and not d.is_activation] + ["f16", "bf16"])
def test_every_weight(level, name):
    """A gated unit and its neighbours of every dtype, in panels of every width, on more workers than groups."""
    rng = np.random.default_rng(3)
    for rows, threads in ((1, 2), (4, 5), (23, 3), (80, 2)):
        x = jf.input("x", (rows, WIDTH))
        h = normed(x, rng)
        unit = ops.swiglu(linear(h, rng, 70, name), linear(h, rng, 70, name))
        graph = {"unit": unit, "other": linear(h, rng, 33, name), "sum": ops.add(linear(h, rng, WIDTH, name), x)}
        assert len(groups_of(graph, level=level)) == 1
        same_bits(results(graph, threads, level), results(graph, 1, level, fuses=False))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("gate", ["q8_0", "q4_K", "iq3_s", "f16"])
@pytest.mark.parametrize("up", ["q8_0", "q4_K", "iq3_s"])
def test_a_unit_of_two_types_keeps_to_its_work_memory(level, gate, up):
    """Each has its own way to be decoded: work memory must do for both, with many groups of rows a worker."""
    rng, n = np.random.default_rng(5), 2064
    for rows in (5, 9, 17, 40):
        x = jf.input("x", (rows, WIDTH))
        graph = {"unit": ops.swiglu(linear(x, rng, n, gate), linear(x, rng, n, up))}
        want = results(graph, 1, level, fuses=False)
        for threads in (1, 2):
            same_bits(results(graph, threads, level), want)


@pytest.mark.parametrize("level", LEVELS)
def test_bf16_weights_in_pairs(level, bf16_products):
    bf16_products("paired")
    test_every_weight(level, "bf16")


def test_nothing_in_between_has_memory():
    """A gated unit far wider than what goes in and comes out."""
    rng, x = np.random.default_rng(1), jf.input("x", (512, WIDTH))
    h = normed(x, rng)
    y = ops.swiglu(linear(h, rng, 1024), linear(h, rng, 1024))
    with jf.Session("cpu") as session:
        memory = session.draw(y).memory
    scratch = sum(block.nbytes for block in memory.scratch if block is not None)
    assert memory.arenas[0].nbytes - scratch < y.spec.nbytes + x.spec.nbytes + 4096


def test_groups_make_what_each_other_reads():
    """A chain of groups, each of which reads the last one's result: order and lives hold."""
    rng, x = np.random.default_rng(1), jf.input("x", (5, WIDTH))
    layers = [x]
    for _ in range(4):
        h = normed(layers[-1], rng)
        fed = ops.linear(ops.swiglu(linear(h, rng, 64), linear(h, rng, 64)), constant(rng, (WIDTH, 64), "q4_1"))
        layers.append(ops.add(layers[-1], fed))
    assert groups_of(layers[-1]) == [("rms_norm", "multiply", "linear", "linear", "swiglu"), ("linear", "add")] * 4
    for one, other in pairwise(range(1, 6)):
        same_bits(results({"y": layers[-1]}, one, LEVELS[0]), results({"y": layers[-1]}, other, LEVELS[0], fuses=False))
