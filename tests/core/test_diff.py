"""Two devices node by node: the node that is wrong is found, and its file alone shows it."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner
from fakes import Minimal, Picky, Steps, registered

import jackfield as jf
from jackfield.cli.app import app
from jackfield.diff import diff
from jackfield.errors import DeviceNameError, GraphError, PlanError
from jackfield.graph import ArraySource, root
from jackfield.saved import load_graph

pytestmark = pytest.mark.usefixtures("only_core")


class Spoilt(Steps):
    """`harm(placed)` after each step that `which` names."""

    def run(self):
        for placed, call in zip(self.placed, self.calls, strict=True):
            call()
            if self.device.which(placed.step):
                self.device.harm(placed)


class Faulty(Minimal):
    def __init__(self, which, harm):
        super().__init__("faulty:0")
        self.which, self.harm = which, harm

    def compile(self, run, scratch):
        return Spoilt(self, run)


def faulty(which, harm=None, **keywords):
    return registered(Picky([Faulty(which, harm or add_one)], reads="any", **keywords))


def result_of(placed):
    result = placed.result
    return np.ndarray(
        result.spec.shape, result.spec.dtype.numpy, result.buffer.bytes, result.offset, result.spec.byte_strides
    )


def add_one(placed):
    array = result_of(placed)
    array.reshape(-1)[-1] += 1


def set_bytes(placed):
    placed.result.buffer.bytes[placed.result.offset + 3] ^= 0x40


def long_graph(nodes=200, seed=5):
    """Elementwise ops, products, reductions and views, each node with attributes or shapes of its own."""
    rng = np.random.default_rng(seed)
    y = jf.input("x", (4, 32))
    weights = jf.constant(rng.standard_normal((32, 32)).astype(np.float32) / 6, "w")
    for i in range(nodes):
        kind = i % 5
        if kind == 0:
            y = jf.ops.scale(y, scale=1 + i / 1000)
        elif kind == 1:
            y = jf.ops.linear(y, weights)
        elif kind == 2:
            y = jf.ops.tanh(y)
        elif kind == 3:
            y = jf.ops.add(y, jf.constant(rng.standard_normal(32).astype(np.float32)))
        else:
            y = jf.ops.softmax(y.T).T
    return y


@pytest.mark.parametrize("at", [0, 100, 195])
def test_a_fault_planted_in_200_nodes_is_the_first_and_its_file_shows_it(at, tmp_path):
    y = long_graph()
    path = tmp_path / "graph.npz"
    jf.save(y, path)
    repro = tmp_path / "small.npz"

    def planted(step):
        return step.op == "scale" and step.attrs["scale"] == 1 + at / 1000

    with faulty(planted):
        found = diff(load_graph(path), "reference", "faulty", repro=lambda node: repro)
        assert found.first.node == f"scale.{at // 5}"
        assert found.first.index == (3, 31)
        assert found.first.max_abs == pytest.approx(1, rel=1e-5)
        assert found.first.wrong == ("b",)
        assert len(found.nodes) == 200
        assert [n.node for n in found.nodes if n.verdict != "equal"] == [f"scale.{at // 5}"]
        small = load_graph(repro)
        assert [small.op, *(root(o)[0].kind for o in small.operands)] == ["scale", "constant"]
        again = diff(small, "reference", "faulty")
        assert [n.verdict for n in again.nodes] == ["differs"]
        assert (again.first.index, again.first.text) == (found.first.index, found.first.text)
        turned = diff(small, "faulty", "reference")
        assert turned.first.wrong == ("a",)
    assert diff(small, "reference", "sim").first is None


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = jf.input("x", (2, 3))
    jf.save(jf.ops.tanh(jf.ops.softmax(x)), "g.npz")

    def run(*arguments):
        return CliRunner().invoke(app, ["diff", *arguments], prog_name="jackfield")

    with faulty(lambda step: step.op == "softmax"):
        result = run("reference", "faulty", "g.npz", "--json")
        assert result.exit_code == 1
        found = json.loads(result.stdout)
        assert list(found)[:5] == ["schema", "a", "b", "mode", "first"]
        assert (found["schema"], found["mode"]) == ("jackfield.diff/1", "same-inputs")
        assert {"node", "op", "max_ulp", "max_abs", "index", "tolerance"} <= set(found["first"])
        assert (found["first"]["node"], found["first"]["tolerance"]) == ("softmax.0", "R")
        assert found["repro"] == "g.softmax.0.npz"
        assert [n["verdict"] for n in found["nodes"]] == ["differs", "equal"]
        text = run("reference", "faulty", "g.softmax.0.npz")
        assert text.exit_code == 1
        assert "again: jackfield diff reference faulty g.softmax.0.npz\n" in text.stdout
        assert sorted(p.name for p in tmp_path.iterdir()) == ["g.npz", "g.softmax.0.npz"], "a minimal file stays alone"
        assert run("reference", "faulty", "g.npz", "--repro", "there.npz").exit_code == 1
        assert (tmp_path / "there.npz").read_bytes()
    equal = run("reference", "sim", "g.npz")
    assert equal.exit_code == 0
    assert "2 nodes, 2 equal, 0 differ, 0 not compared" in equal.stdout
    assert json.loads(run("reference", "sim", "g.npz", "--json").stdout)["repro"] is None


def test_nodes_without_operands_are_compared(tmp_path):
    y = jf.ops.add_rows(
        jf.ops.reshape(jf.ops.arange(start=0, stop=12), shape=(2, 2, 3)),
        jf.ops.full(shape=(5, 3), value=0.5),
        jf.input("ids", (2, 2), jf.i32),
    )
    with faulty(lambda step: step.op == "full"):
        found = diff(y, "reference", "faulty", repro=lambda node: tmp_path / f"{node}.npz")
        assert [(n.op, n.verdict) for n in found.nodes] == [
            ("arange", "equal"),
            ("full", "differs"),
            ("add_rows", "equal"),
        ]
        again = diff(load_graph(tmp_path / "full.0.npz"), "reference", "faulty")
        assert [n.verdict for n in again.nodes] == ["differs"]
    assert diff(y, "reference", "sim").first is None


def test_wrong_use(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    jf.save(jf.ops.tanh(jf.input("x", (2, 3))), "g.npz")
    np.save("x.npy", np.zeros((2, 3), np.float32))
    np.save("other.npy", np.zeros((3, 3), np.float32))
    np.savez("two.npz", a=np.zeros(1), b=np.zeros(1))
    (tmp_path / "no.npz").write_bytes(b"nothing")

    def code(*arguments, a="reference", b="sim"):
        return CliRunner().invoke(app, ["diff", a, b, *arguments], prog_name="jackfield").exit_code

    assert code("g.npz", "--input", "x=x.npy") == 0
    assert code("g.npz", "--input", "x=other.npy") == 2
    assert code("g.npz", "--input", "y=x.npy") == 2
    assert code("g.npz", "--input", "x") == 2
    assert code("g.npz", "--input", "x=two.npz") == 2
    assert code("g.npz", "--input", "x=absent.npy") == 2
    assert code("g.npz", "--seed", "-1") == 2
    assert code("no.npz") == 2
    assert code("absent.npz") == 2
    assert code("g.npz", b="nix:0") == 2


def small_error(placed):
    array = result_of(placed)
    array *= np.float32(1 + 1e-6)  # within the class of tanh, whatever it does further on


def test_errors_grow_only_in_chained_mode(tmp_path):
    y = jf.input("x", (2, 8))
    for _ in range(10):
        y = jf.ops.scale(jf.ops.tanh(y), scale=3.0)
    repro = tmp_path / "small.npz"
    with faulty(lambda step: step.op == "tanh", small_error):
        assert diff(y, "reference", "faulty").first is None
        found = diff(y, "reference", "faulty", chained=True, repro=lambda node: repro)
        assert found.mode == "chained"
        assert found.first.op == "scale", "an ulp is all that scale may be off, and it gets more as its input"
        assert found.first.wrong == ()
        assert found.chained_repro, "scale alone is right"
        assert diff(load_graph(repro), "reference", "faulty").first is None
        again = diff(load_graph(repro), "reference", "faulty", chained=True)
        assert (again.first.node, again.first.max_ulp) == (found.first.node, found.first.max_ulp)
    with faulty(lambda step: step.op == "tanh"):
        found = diff(y, "reference", "faulty", chained=True, repro=lambda node: repro)
        assert (found.first.node, found.chained_repro) == ("tanh.0", False)
        assert diff(load_graph(repro), "reference", "faulty").first.op == "tanh"


def test_nan_is_nan_and_infinity_is_infinity():
    x = jf.input("x", (5,))
    values = {"x": np.array([np.nan, np.inf, -np.inf, -0.0, 1.0], np.float32)}
    y = jf.ops.scale(x, scale=2.0)

    def to_nan(placed):
        result_of(placed)[1] = np.nan

    def other_nan(placed):
        result_of(placed).view(np.uint32)[0] += 1

    with faulty(lambda step: step.op == "scale", other_nan):
        (node,) = diff(y, "reference", "faulty", inputs=values).nodes
        assert (node.verdict, node.max_abs, node.max_ulp) == ("equal", 0, 0)
    with faulty(lambda step: step.op == "scale", to_nan):
        first = diff(y, "reference", "faulty", inputs=values).first
        assert (first.index, first.max_abs) == ((1,), None)


def test_ulps_are_counted():
    y = jf.ops.scale(jf.input("x", (4,)), scale=1.0)

    def three(placed):
        result_of(placed).view(np.int32)[2] += 3

    with faulty(lambda step: True, three):
        first = diff(y, "reference", "faulty", inputs={"x": np.full(4, -1, np.float32)}).first
        assert (first.max_ulp, first.index) == (3, (2,))


def test_two_right_answers_may_be_twice_as_far_apart_as_one_from_the_truth():
    y = jf.ops.square(jf.input("x", (3,)))

    def one(step):
        def move(placed):
            result_of(placed).view(np.int32)[...] += step

        return move

    class Other(Faulty):
        def __init__(self):
            super().__init__(lambda step: True, one(-1))
            self.name = "other:0"

    x = {"x": np.array([1.5, 2.0, 3.0], np.float32)}
    with faulty(lambda step: True, one(1)), registered(Picky([Other()])):
        (node,) = diff(y, "faulty", "other", inputs=x).nodes
        assert (node.verdict, node.max_ulp) == ("equal", 2)


def blocks(rows, columns, dtype, seed=0):
    x = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)
    return jf.constant(ArraySource(dtype.encode(x), dtype, (rows, columns)), dtype.name)


def test_block_dtypes(tmp_path):
    rows = jf.input("rows", (3,), jf.i32)
    x = jf.ops.take_rows(blocks(9, 64, jf.q4_0), rows)
    y = jf.ops.linear(x, blocks(32, 64, jf.q8_0, 1))
    z = jf.ops.cast(y, dtype="q8_0")
    out = jf.ops.cast(z, dtype="f32")
    assert diff(out, "reference", "sim").first is None
    repro = tmp_path / "small.npz"
    for op, dtype in (("cast", "q8_0"), ("take_rows", "f32"), ("linear", "f32")):

        def wrong(step, op=op, dtype=dtype):
            return step.op == op and step.result.dtype.name == dtype

        with faulty(wrong, set_bytes):
            found = diff(out, "reference", "faulty", repro=lambda node: repro)
            assert (found.first.op, [n.verdict for n in found.nodes].count("differs")) == (op, 1)
            assert found.first.tolerance == ("Q" if op == "linear" else "E")
            again = diff(load_graph(repro), "reference", "faulty").first
            assert (again.op, again.index) == (op, found.first.index)


def test_views_reach_the_device_as_views(tmp_path):
    x = jf.input("x", (4, 6, 8))
    y = jf.ops.add(x[1:3, ::2, 1:], jf.ops.tanh(x)[0:2, 3:, :-1])
    z = jf.ops.softmax(y.T)
    seen = []

    def strided(step):
        seen.extend(o for o in step.operands if o is not None and not o.is_dense)
        return step.op == "add"

    repro = tmp_path / "small.npz"
    with faulty(strided):
        found = diff(z, "reference", "faulty", repro=lambda node: repro)
        assert found.first.op == "add"
        assert len({s.strides for s in seen}) == 3
        assert diff(load_graph(repro), "reference", "faulty").first.index == found.first.index
    assert diff(z, "reference", "sim").first is None


def cache_graph():
    """Two updates of one state, the second through a view of the first, and readers of both."""
    k = jf.state("k", (2, 6, 4), jf.f16)
    x, at = jf.input("x", (2, 2, 4)), jf.input("at", (2,), jf.i32)
    once = jf.ops.put_rows(k, x, at)
    late = jf.ops.put_rows(once[:, 2:, 1:3], jf.ops.scale(x, scale=2.0)[:, :, :2], at)
    return jf.ops.softmax(jf.ops.cast(late, dtype="f32")[:, ::2])


def test_states(tmp_path):
    out = cache_graph()
    repro = tmp_path / "small.npz"
    held = np.random.default_rng(0).standard_normal((2, 6, 4)).astype(np.float16)
    given = {"k": held, "at": np.array([3, 1], np.int32)}
    assert diff(out, "reference", "sim", inputs=given).first is None
    assert diff(out, "reference", "sim", inputs=given, chained=True).first is None

    def spoil(placed):
        result_of(placed)[1, 0, 1] = 77

    for number in (0, 1):
        shape = ((2, 6, 4), (2, 4, 2))[number]
        with faulty(lambda step, shape=shape: step.op == "put_rows" and step.result.shape == shape, spoil):
            found = diff(out, "reference", "faulty", inputs=given, repro=lambda node: repro)
            assert (found.first.node, found.first.index) == (f"put_rows.{number}", (1, 0, 1))
            assert sum(n.verdict == "differs" for n in found.nodes) == 1
            small = load_graph(repro)
            assert [n.node for n in diff(small, "reference", "faulty").nodes] == ["contiguous.0", "put_rows.0"]
            assert diff(small, "reference", "faulty").first.index == (1, 0, 1)


def test_nodes_one_side_refuses_are_told_and_nothing_else_changes():
    x = jf.input("x", (2, 8))
    y = jf.ops.scale(jf.ops.softmax(jf.ops.tanh(x)), scale=2.0)

    def no_softmax(step, target):
        return "softmax: not today" if step.op == "softmax" else None

    with faulty(lambda step: step.op == "scale", refuse=no_softmax):
        for a, b in (("reference", "faulty"), ("faulty", "reference")):
            for chained in (False, True):
                found = diff(y, a, b, chained=chained)
                assert [n.verdict for n in found.nodes] == ["equal", "refused", "differs"]
                side = "b" if b == "faulty" else "a"
                assert found.nodes[1].text == f"{side}: faulty:0: softmax: not today"
    with faulty(lambda step: False, refuse=no_softmax):
        assert diff(y, "reference", "faulty").first is None


def test_errors_in_data_are_compared_too():
    x = jf.constant(np.arange(12, dtype=np.float32).reshape(4, 3))
    y = jf.ops.tanh(jf.ops.take_rows(x, jf.input("rows", (2,), jf.i32)))
    wrong = {"rows": np.array([1, 9], np.int32)}

    class Quiet(Steps):
        def check(self):
            self.fault = None

    class Silent(Minimal):
        def compile(self, run, scratch):
            return Quiet(self, run)

    (first, _) = diff(y, "reference", "sim", inputs=wrong).nodes
    assert first.verdict == "equal"
    assert "raised BadIndex: [take_rows] rows holds the index 9" in first.text
    with registered(Picky([Silent("silent:0")])):
        found = diff(y, "reference", "silent", inputs=wrong)
        assert found.first.node == "take_rows.0"
        assert "b gave a result" in found.first.text
        assert found.nodes[1].verdict == "equal"


def indexed(name):
    """A graph whose drawn indices are more than its table has rows."""
    wide = jf.input("wide", (7,), jf.i32)
    if name == "take_rows":
        return jf.ops.take_rows(jf.input("x", (3, 4)), wide)
    if name == "take_rows of a view":
        return jf.ops.take_rows(jf.input("x", (3, 4))[:2], wide[1:])
    if name == "put_rows":
        return jf.ops.put_rows(jf.state("s", (3, 4)), jf.input("x", (7, 4)), wide)
    if name == "take_rows_backward":
        return jf.ops.take_rows_backward(jf.input("grad", (7, 4)), wide, count=3)
    if name == "linear_experts":
        ids = jf.input("ids", (2, 5), jf.i32)
        return jf.ops.linear_experts(jf.input("x", (2, 1, 32)), jf.input("w", (3, 4, 32)), ids)
    q, k = jf.input("q", (1, 2, 1, 8)), jf.input("k", (1, 2, 3, 8))
    if name == "kv_len":
        q, k = jf.input("q", (9, 2, 1, 8)), jf.input("k", (9, 2, 3, 8))
        return jf.ops.attention(q, k, k, kv_len=jf.input("n", (9,), jf.i32), scale=1.0)
    rows = jf.input("rows", (1, 6), jf.i32)
    more = {"mask": jf.input("m", (1, 1, 1, 6)), "kv_len": jf.input("n", (1,), jf.i32)}
    return jf.ops.attention(q, k, k, kv_rows=rows, **more, scale=1.0)


KINDS = ("take_rows", "take_rows of a view", "put_rows", "take_rows_backward", "linear_experts", "kv_len", "kv_rows")


@pytest.mark.parametrize("name", KINDS)
def test_drawn_indices_lie_in_their_tables(name):
    found = diff(indexed(name), "reference", "sim")
    assert [(n.verdict, n.text) for n in found.nodes] == [("equal", "")] * len(found.nodes)
    assert all(n.max_abs is not None for n in found.nodes), "results were compared"


def test_drawn_indices_that_are_wrong_are_no_comparison():
    x = jf.constant(np.ones((2, 3), np.float32))
    i = jf.input("i", (4,), jf.i32)
    far = jf.ops.take_rows(jf.constant(np.full((2, 1), 9, np.int32)), i)[:, 0]
    y = jf.ops.tanh(jf.ops.take_rows(x, far))
    verdicts = [n.verdict for n in diff(y, "reference", "sim").nodes]
    assert verdicts == ["equal", "refused", "equal"]
    given = diff(y, "reference", "sim", inputs={"i": np.zeros(4, np.int32)})
    assert [n.verdict for n in given.nodes] == ["equal"] * 3, "the fault is in the data that was asked for"
    empty = jf.ops.take_rows(jf.constant(np.ones((0, 3), np.float32)), i)
    (node,) = diff(empty, "reference", "sim").nodes
    assert node.verdict == "refused"
    assert "give the inputs" in node.text


@pytest.mark.parametrize("outputs", [None, 5, [3], [], {}, [None], "x"])
def test_what_is_no_graph_is_a_graph_error(outputs):
    with pytest.raises(GraphError, match="output"):
        diff(outputs, "reference", "sim")


@pytest.mark.parametrize("seed", [-1, 0.5, None, "0"])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(PlanError, match="must be a whole number from 0 on"):
        diff(jf.ops.tanh(jf.input("x", (3,))), "reference", "sim", seed=seed)


def npy(header):
    """A .npy file of nothing but this header."""
    return b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04 no archive",
        npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (999999999999999,), }\n"),
        npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }\n"),
        npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n") + b"four",
        npy(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n"),
        npy(b"[" * 100 + b"1\n"),
        npy(b"(" * 5000 + b")" * 5000 + b"\n"),
        npy(b"{" * 3 + b"\xff\n"),
        npy(b"'"),
    ],
)
def test_an_input_file_that_is_damaged_is_wrong_use(content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    jf.save(jf.ops.tanh(jf.input("x", (2, 3))), "g.npz")
    (tmp_path / "x.npy").write_bytes(content)
    done = CliRunner().invoke(app, ["diff", "reference", "sim", "g.npz", "--input", "x=x.npy"], prog_name="jackfield")
    assert (done.exit_code, type(done.exception)) == (2, SystemExit)
    assert "--input: x.npy" in done.output


def test_inputs_are_drawn_by_seed_or_taken():
    x = jf.input("x", (3, 4), jf.bf16)
    i = jf.input("i", (2,), jf.i64)
    y = (jf.ops.take_rows(x, i), jf.ops.square(x))
    seen = []

    def look(placed):
        seen.append(result_of(placed).astype(np.float32).copy())

    def results(**keywords):
        seen.clear()
        with faulty(lambda step: True, look):
            diff(y, "faulty", "reference", **keywords)
        return [a.tolist() for a in seen]

    assert results() == results(seed=0) != results(seed=1)
    values = np.arange(12).reshape(3, 4).astype(ml_dtypes.bfloat16)
    taken = results(inputs={"x": values.view("V2"), "i": np.array([2, 0])})
    assert taken[0] == [[8, 9, 10, 11], [0, 1, 2, 3]]


@pytest.mark.parametrize("dtype", [jf.q4_K, jf.q8_0, jf.bool_, jf.f64])
def test_inputs_of_any_dtype(dtype):
    x = jf.input("x", (2, 256), dtype)
    (node,) = diff(jf.ops.contiguous(x), "reference", "sim").nodes
    assert node.verdict == "equal"


def test_what_is_not_there_is_said_before_anything_runs():
    y = jf.ops.tanh(jf.input("x", (3,)))
    with pytest.raises(PlanError, match="there is no input or state 'z'; the graph has: x"):
        diff(y, "reference", "sim", inputs={"z": np.zeros(3)})
    with pytest.raises(PlanError, match="input 'x' is float64"):
        diff(y, "reference", "sim", inputs={"x": np.zeros(3)})
    with pytest.raises(DeviceNameError):
        diff(y, "reference", "nix:0")
