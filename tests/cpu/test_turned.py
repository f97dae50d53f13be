"""rope made together with the put_rows behind it: which steps, and the bits they have one by one."""

from __future__ import annotations

import numpy as np
import pytest
from grouped import groups_of, opened, results, same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from one_step import LEVELS

import jackfield as jf
from jackfield import ops
from jackfield.errors import BadIndex

HEADS, SIZE, CONTEXT = 3, 64, 40
CACHES = ("f16", "bf16", "f32", "q8_0", "q4_0", "q4_K")


def rows_of(x):
    """[1, tokens, heads, size] as rows for a cache: [heads, tokens, size]."""
    _, tokens, heads, size = x.shape
    return ops.transpose(ops.reshape(x, shape=(tokens, heads, size)), axes=(1, 0, 2))


def integers(values, shape=(-1,)):
    return jf.constant(np.array(values, np.int32).reshape(shape))


class Parts:
    """Tensors of one attention: what is turned, by which angles, into which cache."""

    def __init__(self, tokens=5, *, heads=HEADS, size=SIZE, dtype="f16", slots=None, **attrs):
        self.q, self.k = jf.input("q", (1, tokens, 4, size)), jf.input("k", (1, tokens, heads, size))
        self.at = integers(range(7, 7 + tokens))
        self.slots = integers(range(2, 2 + tokens) if slots is None else slots, (1, -1))
        self.cache = jf.state("cache", (heads, CONTEXT, size), jf.backend.DTYPES[dtype])
        self.attrs = {"mode": "neox", "n_dims": size, **attrs}

    def rope(self, x, at=None, **attrs):
        return ops.rope(x, self.at if at is None else at, **{**self.attrs, **attrs})

    def put(self, x):
        return ops.put_rows(self.cache, x, self.slots)


STORED, BOTH = [("rope", "put_rows")], [("rope", "rope", "put_rows")]


def test_keys_are_turned_and_stored_together_with_the_queries():
    p = Parts()
    assert groups_of(p.put(rows_of(p.rope(p.k)))) == STORED
    assert groups_of([p.rope(p.q), p.put(rows_of(p.rope(p.k)))]) == BOTH
    assert groups_of([p.put(rows_of(p.rope(p.k))), p.rope(p.q)]) == [("rope", "put_rows", "rope")]
    other = Parts()
    other.cache = jf.state("other", (4, CONTEXT, SIZE), jf.f32)
    two = [p.put(rows_of(p.rope(p.k))), ops.put_rows(other.cache, rows_of(p.rope(p.q)), p.slots)]
    assert groups_of(two) == [("rope", "put_rows", "rope", "put_rows")]


def near_misses():
    p = Parts()
    k, q = p.rope(p.k), p.rope(p.q)
    yield "no store", [q, k], []
    yield "an output too", [k, p.put(rows_of(k))], []
    yield "two readers", [ops.tanh(k), p.put(rows_of(k))], []
    yield (
        "rows in the order of tokens",
        ops.put_rows(
            jf.state("t", (5, CONTEXT, SIZE), jf.f16),
            ops.reshape(k, shape=(5, HEADS, SIZE)),
            integers([1, 2, 3], (1, -1)),
        ),
        [],
    )
    yield "some heads", ops.put_rows(jf.state("t", (2, CONTEXT, SIZE), jf.f16), rows_of(k)[:2], p.slots), []
    yield "some tokens", ops.put_rows(p.cache, rows_of(k)[:, 1:], integers([1, 2, 3, 4], (1, -1))), []
    stored = p.put(rows_of(k))
    yield "other angles", [p.rope(p.q, base=5e5), stored], STORED
    yield "other places", [p.rope(p.q, integers(range(5))), stored], STORED
    fresh = ops.reshape(ops.cast(stored[:, :5], dtype="f32"), shape=(1, 5, HEADS, SIZE))
    yield "queries of what was stored", [p.rope(fresh), stored], STORED
    yield "queries that are read before", [stored_after(p)], STORED


def stored_after(p):
    """Keys that are made of the turned queries: those can't wait until the keys are stored."""
    keys = ops.add(p.k, p.rope(p.q)[:, :, :HEADS])
    return p.put(rows_of(p.rope(keys)))


@pytest.mark.parametrize("case", [case[0] for case in near_misses()])
def test_near_misses_stay_apart(case):
    graph, groups = next((graph, groups) for name, graph, groups in near_misses() if name == case)
    outputs = {str(i): y for i, y in enumerate(graph if isinstance(graph, list) else [graph])}
    same_bits(plain(outputs, 2), plain(outputs, 1, fuses=False))
    assert groups_of(graph) == groups


def plain(outputs, threads, level=LEVELS[0], *, fuses=True):
    """Results as f32, so that each kind of cache can be read."""
    wide = {name: y if y.dtype == jf.f32 else ops.cast(y, dtype="f32") for name, y in outputs.items()}
    return results(wide, threads, level, fuses=fuses)


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_cache_and_any_slots(level, data):
    """Rows put twice (the last stays), rows left out, more workers than heads, channels that are not turned."""
    dtype = data.draw(st.sampled_from(CACHES))
    size = 256 if dtype == "q4_K" else data.draw(st.sampled_from([32, 64, 96, 160]))
    tokens = data.draw(st.sampled_from([1, 2, 7, 33, 150, 400]))
    heads = data.draw(st.integers(1, 5))
    slots = data.draw(st.lists(st.integers(-1, CONTEXT - 1), min_size=tokens, max_size=tokens))
    n_dims = data.draw(st.sampled_from([size, size // 2, 16]))
    offset = data.draw(st.sampled_from([0, size - n_dims]))
    mode = data.draw(st.sampled_from(["normal", "neox"]))
    p = Parts(tokens, heads=heads, size=size, dtype=dtype, slots=slots, mode=mode, n_dims=n_dims, offset=offset)
    ropes = [p.rope(p.q), p.put(rows_of(p.rope(p.k)))]
    graph = {str(i): y for i, y in enumerate(ropes if data.draw(st.booleans()) else ropes[::-1])}
    got, want = plain(graph, data.draw(st.integers(1, 7)), level), plain(graph, 1, level, fuses=False)
    same_bits(got, want)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("which", [[0, 1], [1, 0], [1, 2], [0, 1, 2, 3]])
def test_caches_that_are_no_states(level, which):
    """Rows put into what the plan itself makes, is given or copies: the group's own steps read and change it."""
    p = Parts(5, dtype="f32")
    shape = p.cache.shape
    fed, fixed = jf.input("fed", shape), jf.constant(np.full(shape, 7, np.float32))
    for cache in (ops.add(fed, fed), fed, fixed):
        p.cache = cache
        stored = p.put(rows_of(p.rope(p.k)))
        other = ops.put_rows(ops.multiply(fed, fed), rows_of(p.rope(jf.input("k2", p.k.shape))), p.slots)
        every = [p.rope(p.q), stored, other, ops.tanh(stored)]
        graph = {str(i): every[i] for i in which} | {"read": ops.tanh(ops.add(stored, other))}
        same_bits(plain(graph, 3, level), plain(graph, 1, level, fuses=False))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("tokens", [3, 400])
def test_a_bad_slot_is_an_error(threads, tokens):
    p = Parts(tokens, slots=[CONTEXT if i == tokens // 2 else i % CONTEXT for i in range(tokens)])
    with opened(threads=threads) as (session, device):
        plan = session.compile(ops.cast(p.put(rows_of(p.rope(p.k))), dtype="f32"))
        assert ("rope", "put_rows") in device.groups_made
        with pytest.raises(BadIndex, match=rf"rows holds the index {CONTEXT}"):
            plan(k=np.ones((1, tokens, HEADS, SIZE), np.float32))
