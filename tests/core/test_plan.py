"""Plans against plain numpy, on the reference and on devices that are hard to please."""

from __future__ import annotations

import re

import numpy as np
import pytest
from fakes import Minimal, Picky, Poisoner, registered
from graphs import graphs
from hypothesis import given, settings
from hypothesis import strategies as st

import jackfield as jf
from jackfield import ops
from jackfield.errors import PlanError


def check(built, device, **keywords):
    plan = jf.compile(built.tensors(), device, **keywords)
    for _ in range(2):
        names = plan.inputs
        got = plan(**{name: built.inputs[name] for name in names})
        for value, expected in zip(got, built.expected(), strict=True):
            np.testing.assert_array_equal(value, expected)
    plan.session.close()


@given(graphs())
@settings(max_examples=80)
def test_random_graphs_on_the_reference(built):
    check(built, "reference")


@given(graphs())
@settings(max_examples=80)
def test_random_graphs_where_every_result_is_spoiled_first(built):
    with registered(Picky([Poisoner("poison:0")])):
        check(built, "poison", policy="strict")


@given(
    graphs(),
    st.lists(
        st.sampled_from(
            ["accumulate", "add", "causal_mask", "concatenate", "contiguous", "full", "multiply", "put_rows", "write"]
        )
    ),
    st.data(),
)
@settings(max_examples=80)
def test_random_graphs_over_three_devices(built, refused, data):
    one = Picky([Poisoner("one:0")], without=refused)
    two = Picky([Minimal("two:0"), Poisoner("two:1")], reads="any")
    pins = [
        (f"{op}.{i}", data.draw(st.sampled_from(["one:0", "two:0", "two:1"])))
        for op in ("add", "write", "contiguous", "full")
        for i in (0, 1)
    ]
    with registered(one, two):
        check(built, "one:0+two:0+two:1", pins=pins)


@given(graphs())
@settings(max_examples=60)
def test_random_graphs_on_the_simulated_device(built):
    check(built, "sim+reference")


@given(graphs(), st.data())
@settings(max_examples=80)
def test_random_graphs_over_two_queues(built, data):
    """Each part of `sim` is as late as it may be: a copy or an order that is missing shows as a wrong number."""
    pins = [(t, f"sim:0:{data.draw(st.integers(0, 1))}") for t, _ in built.values if t.kind == "node"]
    with jf.sim(parts=2):
        check(built, "sim:0:0+sim:0:1+reference", pins=pins)


@pytest.mark.parametrize("seed", range(80))
def test_chains_that_cross_between_two_queues(seed):
    """Each step on a random part: memory is used again while the other part may still have to read it."""
    random = np.random.default_rng(seed)
    data = random.standard_normal((4, 8)).astype(np.float32)
    pool, values, pins = [jf.input("x", (4, 8))], [data], []
    pairs = [(ops.add, np.add), (ops.subtract, np.subtract), (ops.multiply, np.multiply)]
    for _ in range(24):
        a, b = random.integers(max(0, len(pool) - 3), len(pool), 2)
        build, compute = pairs[random.integers(3)]
        pool.append(build(pool[a], pool[b]))
        with np.errstate(all="ignore"):
            values.append(compute(values[a], values[b]))
        pins.append((pool[-1], f"sim:0:{random.integers(2)}"))
    with jf.sim(parts=2):
        plan = jf.compile(pool[-1], "sim:0:0+sim:0:1", policy="strict", pins=pins)
        for _ in range(2):
            np.testing.assert_array_equal(plan(x=data), values[-1])


# What goes in and comes out


def adder(dtype=jf.f32, shape=(2, 3)):
    x, y = jf.input("x", shape, dtype), jf.input("y", shape, dtype)
    return jf.compile(ops.add(x, y), "reference")


ONES = np.ones((2, 3), np.float32)


def test_a_missing_input_is_named():
    with pytest.raises(
        PlanError, match=r"input 'y' is missing; this plan needs x: float32\[2, 3\], y: float32\[2, 3\]"
    ):
        adder()(x=ONES)


def test_an_unknown_input_is_named():
    with pytest.raises(PlanError, match="there is no input 'z'; this plan has: x, y"):
        adder()(x=ONES, y=ONES, z=ONES)


@pytest.mark.parametrize(
    "value",
    [
        ONES.astype(np.float64),
        ONES.astype(">f4"),
        ONES.astype(np.int32),
        ONES[:1],
        ONES.T,
        ONES.reshape(-1),
        ONES[None],
    ],
    ids=lambda a: f"{a.dtype.str}{list(a.shape)}",
)
def test_nothing_is_cast_and_no_shape_is_changed(value):
    with pytest.raises(PlanError, match=r"input 'y' is .* must be float32\[2, 3\]; nothing is cast here"):
        adder()(x=ONES, y=value)


@pytest.mark.parametrize("value", [[[1.0] * 3] * 2, "text", 1.0, object()])
def test_what_is_no_array(value):
    with pytest.raises(PlanError, match=f"input 'y' is a {type(value).__name__}; hand over a numpy array"):
        adder()(x=ONES, y=value)


def test_no_input_is_written_when_one_is_wrong():
    device = Minimal("one:0")
    x, y = jf.input("x", (2, 3)), jf.input("y", (2, 3))
    with registered(Picky([device])):
        plan = jf.compile(ops.add(x, y), "one")
        with pytest.raises(PlanError):
            plan(x=ONES, y=ONES[0])
        assert device.counts["write"] == 0


def test_strided_inputs_are_made_contiguous():
    wide = np.arange(36, dtype=np.float32).reshape(6, 6)
    view = wide[::3, ::2]
    np.testing.assert_array_equal(adder()(x=view, y=ONES), view + 1)
    fortran = np.asfortranarray(ONES * 5)
    np.testing.assert_array_equal(adder()(x=fortran, y=ONES), ONES * 6)


class Shared:
    """Host memory by DLPack, as other frameworks hand it over."""

    def __init__(self, array, kind=1):
        self.array, self.kind = array, kind

    def __dlpack__(self, **keywords):
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return (self.kind, 0)


def test_memory_of_others_is_taken_without_a_copy(monkeypatch):
    plan = adder()
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    seen = []

    def spy(array):
        seen.append(array)
        return array.reshape(-1).view(np.uint8).data

    monkeypatch.setattr("jackfield.plan.bytes_of", spy)
    for one in plan._inputs:
        one.type.cast = False
    for value in (Shared(a), memoryview(a), a):
        np.testing.assert_array_equal(plan(x=value, y=ONES), a + 1)
    assert all(np.shares_memory(seen[i], a) for i in (0, 2, 4))
    with pytest.raises(PlanError, match=r"input 'x' lies on another device \(DLPack type 2\)"):
        plan(x=Shared(a, kind=2), y=ONES)


@pytest.mark.parametrize(
    "dtype", [jf.f32, jf.f64, jf.f16, jf.bf16, jf.i8, jf.u8, jf.i16, jf.i32, jf.i64, jf.bool_], ids=str
)
@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (0, 3), (2, 1, 2)])
def test_every_dtype_and_rank_goes_in_and_out(dtype, shape):
    plan = jf.compile(ops.contiguous(jf.input("x", shape, dtype)), "reference")
    a = np.ones(shape, dtype.numpy)
    out = plan(x=a)
    assert out.dtype == dtype.numpy
    assert out.shape == shape
    assert out.tobytes() == a.tobytes()


def test_block_dtypes_travel_as_bytes():
    raw = jf.q8_0.encode(np.arange(64, dtype=np.float32).reshape(2, 32))
    x = jf.input("x", (2, 32), jf.q8_0)
    plan = jf.compile({"same": ops.contiguous(x), "values": ops.cast(x, dtype="f32")}, "reference")
    assert plan.inputs == {"x": "uint8[2, 34]"}
    out = plan(x=raw)
    np.testing.assert_array_equal(out["same"], raw)
    np.testing.assert_array_equal(out["values"], jf.q8_0.decode(raw))


def test_outputs_come_as_they_were_given_and_are_fresh():
    x = jf.input("x", (3,))
    y, z = ops.add(x, x), ops.multiply(x, x)
    a = np.arange(3, dtype=np.float32)
    one = jf.compile(y, "reference")
    first, second = one(x=a), one(x=a)
    assert not np.shares_memory(first, second)
    assert first.flags.owndata
    assert first.flags.writeable
    assert type(jf.compile((y, z), "reference")(x=a)) is tuple
    assert type(jf.compile([y], "reference")(x=a)) is tuple
    assert list(jf.compile({"b": y, "a": z}, "reference")(x=a)) == ["b", "a"]


def test_leaves_and_views_as_outputs():
    x = jf.input("x", (2, 3))
    c = jf.constant(np.arange(6, dtype=np.float32).reshape(2, 3), "c")
    plan = jf.compile((x, x.T, c, c[:, 1:], x, c.T), "sim+reference")
    got = plan(x=ONES * 2)
    value = c.source.array
    for have, want in zip(got, (ONES * 2, ONES.T * 2, value, value[:, 1:], ONES * 2, value.T), strict=True):
        np.testing.assert_array_equal(have, want)
    got[2][:] = 9
    np.testing.assert_array_equal(plan(x=ONES)[2], value)


def test_a_graph_without_inputs():
    c = jf.constant(np.ones(3, np.float32))
    plan = jf.compile(ops.add(c, c), "reference")
    np.testing.assert_array_equal(plan(), [2, 2, 2])
    with pytest.raises(PlanError, match="there is no input 'x'; this plan has: none"):
        plan(x=ONES)


def test_what_a_plan_says_of_itself(tmp_path):
    import json

    from jackfield import trace

    plan = adder()
    assert repr(plan) == "<Plan of 1 nodes on reference:0>"
    assert plan.devices == ("reference:0",)
    with pytest.raises(PlanError, match="not called yet"):
        trace.save(plan, tmp_path / "trace.json")
    plan(x=ONES, y=ONES)
    events = plan.trace()["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert [e["name"] for e in spans] == ["call", "write inputs", "reference:0: 1 steps", "read outputs"]
    assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in spans)
    trace.save(plan, tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text()) == plan.trace()


# docs/walk.md


def test_the_walk_of_a_tensor():
    """The stations of docs/walk.md that move bytes, counted on a device."""
    device = Minimal("spy:0")
    with registered(Picky([device])), jf.Session("spy") as session:
        x = jf.input("x", (4, 8))
        w = jf.constant(np.ones((16, 8), np.float32))
        y = ops.softmax(ops.linear(x, w))[:, :4]
        assert not device.counts
        plan = session.compile(y)
        assert device.counts == {"alloc": 2, "write": 1, "compile": 1}  # constants, arena; one constant; one run
        assert device.log == [("write", 16 * 8 * 4)]
        device.counts.clear()
        device.log.clear()
        out = plan(x=np.ones((4, 8), np.float32))
        assert device.counts == {"write": 1, "run": 1, "read": 1}
        assert device.log == [("write", 4 * 8 * 4), ("read", 4 * 4 * 4)]
        np.testing.assert_allclose(out, np.full((4, 4), 1 / 16), rtol=1e-6)


def test_the_walk_over_two_devices():
    one, two = Minimal("one:0"), Minimal("two:0")
    backends = Picky([one], without=["multiply"]), Picky([two], without=["add"])
    with registered(*backends), jf.Session("one+two", policy="strict") as session:
        x = jf.input("x", (4, 8))
        plan = session.compile(ops.multiply(ops.add(x, x), ops.add(x, x)))
        for device in (one, two):
            device.counts.clear()
        plan(x=np.ones((4, 8), np.float32))
        assert one.counts == {"write": 1, "run": 1, "read": 2}  # two crossings
        assert two.counts == {"write": 2, "run": 1, "read": 1}


def test_the_walk_page_names_what_there_is():
    """Every function the page's table names exists."""
    from importlib import import_module
    from pathlib import Path

    page = (Path(__file__).parents[2] / "docs/walk.md").read_text()
    stations = [
        line.split("|")[2]
        for line in page.splitlines()
        if line.startswith("| ") and line.split("|")[1].strip().isdigit()
    ]
    assert len(stations) == 13
    named = re.findall(r"`(\w+)\.(\w+)(?:\.(\w+))?`", " ".join(stations))
    assert len(named) >= 10
    for module, first, second in named:
        found = getattr(import_module(f"jackfield.{module}"), first)
        assert not second or hasattr(found, second)
