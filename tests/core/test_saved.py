"""Graphs in files: what is saved comes back, and nothing else does."""

from __future__ import annotations

import io
import json
import random
import zipfile

import numpy as np
import pytest

import jackfield as jf
from jackfield.errors import Error, GraphError
from jackfield.graph import toposort
from jackfield.saved import load_graph, save


def network():
    rng = np.random.default_rng(3)
    x = jf.input("x", (4, 32))
    w = jf.constant(rng.standard_normal((8, 32)).astype(np.float32), "w")
    k = jf.state("k", (16, 8), jf.f16)
    h = jf.ops.linear(x, w)
    rows = jf.constant(np.array([1, 2, -1, 0], np.int32))
    cache = jf.ops.put_rows(k, h, rows)
    view = jf.ops.softmax(h[1:3, :4].T)
    padded = jf.ops.pad(h, widths=((0, 1), (2, 0)), mode="wrap")
    rolled = jf.ops.roll(padded, shift=(1, -2), axis=(0, 1))
    return {"y": view, "cache": cache, "last": h[-1], "rolled": rolled}


def shape_of(outputs):
    """The graph as data, without names of objects."""
    order = toposort(list(outputs.values()))
    at = {t: i for i, t in enumerate(order)}
    rows = []
    for t in order:
        operands = [None if o is None else at[o] for o in t.operands]
        data = None if t.source is None else bytes(t.source.data)
        rows.append((t.kind, t.op, operands, dict(t.attrs), t.spec, t.name, t.offset, data))
    return rows, {name: at[t] for name, t in outputs.items()}


def test_what_is_saved_comes_back(tmp_path):
    path = tmp_path / "graph.npz"
    outputs = network()
    save(outputs, path)
    assert shape_of(load_graph(path)) == shape_of(outputs)
    assert [p.name for p in tmp_path.iterdir()] == ["graph.npz"]


def test_it_computes_the_same(tmp_path):
    x = np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32)
    save(network(), tmp_path / "g.npz")
    first, second = (jf.compile(y, device="reference")(x=x) for y in (network(), load_graph(tmp_path / "g.npz")))
    assert list(first) == list(second) == ["y", "cache", "last", "rolled"]
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name])


def test_block_constants_and_kinds_of_outputs(tmp_path):
    raw = jf.q4_1.encode(np.random.default_rng(1).standard_normal((6, 64)).astype(np.float32))

    class Blocks:
        dtype, shape, data = jf.q4_1, (6, 64), memoryview(np.ascontiguousarray(raw).reshape(-1))

        def release(self):
            """Nothing to do."""

    w = jf.constant(Blocks(), "w")
    y = jf.ops.linear(jf.input("x", (2, 64)), w)
    path = tmp_path / "g.npz"
    for outputs in (y, (y,), [y, w], {"a": y}):
        save(outputs, path)
        back = load_graph(path)
        assert type(back) is (tuple if isinstance(outputs, list) else type(outputs))
    save((y,), path)
    (again,) = load_graph(path)
    assert bytes(again.operands[1].source.data) == raw.tobytes()
    assert again.operands[1].spec == w.spec


def test_a_failed_save_leaves_the_old_file(tmp_path):
    path = tmp_path / "g.npz"
    save(jf.input("x", (1,)), path)
    before = path.read_bytes()
    for wrong in (3, [], [None], {"a": 1}):
        with pytest.raises((GraphError, TypeError)):
            save(wrong, path)
    assert path.read_bytes() == before


def document(path):
    with np.load(path) as file:
        return json.loads(file["graph"].tobytes()), {n: file[n] for n in file.files if n != "graph"}


def rewrite(path, content, arrays):
    np.savez(path, graph=np.frombuffer(json.dumps(content).encode(), np.uint8), **arrays)


def changed(path, change):
    content, arrays = document(path)
    change(content, arrays)
    rewrite(path, content, arrays)


def of_op(content, op):
    return next(t for t in content["tensors"] if t.get("op") == op)


CHANGES = {
    "schema": lambda c, a: c.update(schema="jackfield.graph/2"),
    "no tensors": lambda c, a: c.update(tensors=3),
    "no outputs": lambda c, a: c.update(outputs=[]),
    "empty outputs": lambda c, a: c["outputs"].update(tensors=[], names=None),
    "names too few": lambda c, a: c["outputs"].update(names=["a"]),
    "output outside": lambda c, a: c["outputs"].update(tensors=[99, 0, 0]),
    "kind": lambda c, a: c["tensors"][0].update(kind="pickle"),
    "dtype": lambda c, a: c["tensors"][0].update(dtype="f33"),
    "shape": lambda c, a: c["tensors"][0].update(shape=[-1, 2]),
    "huge": lambda c, a: c["tensors"][0].update(shape=[2**61, 2**61]),
    "shape of text": lambda c, a: c["tensors"][0].update(shape="12"),
    "op": lambda c, a: of_op(c, "linear").update(op="system"),
    "forward operand": lambda c, a: of_op(c, "linear").update(operands=[90, 91]),
    "wrong result": lambda c, a: of_op(c, "linear").update(shape=[4, 9]),
    "attribute": lambda c, a: of_op(c, "softmax")["attrs"].update(what=1),
    "nested attribute": lambda c, a: of_op(c, "softmax").update(attrs={"scale": {"a": 1}}),
    "view as node": lambda c, a: of_op(c, "slice").update(kind="node"),
    "node as view": lambda c, a: of_op(c, "linear").update(kind="view", strides=[4, 4], offset=0),
    "view outside": lambda c, a: of_op(c, "slice").update(offset=4000),
    "view offset": lambda c, a: of_op(c, "slice").update(offset=None),
    "view of another dtype": lambda c, a: of_op(c, "slice").update(dtype="i32"),
    "view strides": lambda c, a: of_op(c, "slice").update(strides=[4]),
    "constant missing": lambda c, a: a.clear(),
    "constant short": lambda c, a: a.update({n: v[:-1] for n, v in a.items()}),
    "constant typed": lambda c, a: a.update({n: v.astype(np.float32) for n, v in a.items()}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_file_is_a_graph_error(tmp_path, name):
    path = tmp_path / "g.npz"
    save(network(), path)
    changed(path, CHANGES[name])
    with pytest.raises(Error) as caught:
        load_graph(path)
    assert isinstance(caught.value, GraphError)


@pytest.mark.parametrize("content", [b"", b"PK", b"\x93NUMPY", b"GGUF" * 100])
def test_other_files(tmp_path, content):
    path = tmp_path / "g.npz"
    path.write_bytes(content)
    with pytest.raises(GraphError, match="graph file"):
        load_graph(path)


def test_a_bare_array_and_a_pickle(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3))
    with pytest.raises(GraphError, match="an npz archive"):
        load_graph(tmp_path / "a.npy")
    np.savez(tmp_path / "p.npz", graph=np.array([{"a": 1}], object))
    with pytest.raises(GraphError):
        load_graph(tmp_path / "p.npz")
    with pytest.raises(FileNotFoundError):
        load_graph(tmp_path / "gone.npz")


def test_deep_json(tmp_path):
    text = b'{"schema": ' + b"[" * 200_000
    np.savez(tmp_path / "d.npz", graph=np.frombuffer(text, np.uint8))
    with pytest.raises(GraphError):
        load_graph(tmp_path / "d.npz")


def test_mutants_of_the_file(tmp_path):
    path = tmp_path / "g.npz"
    save(network(), path)
    whole = path.read_bytes()
    rng = random.Random(5)
    loaded = refused = 0
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        if rng.random() < 0.2:
            del data[rng.randrange(len(data)) :]
        path.write_bytes(data)
        try:
            load_graph(path)
            loaded += 1
        except GraphError:
            refused += 1
    assert refused > 200
    assert loaded + refused == 400


def test_mutants_of_the_structure(tmp_path):
    path = tmp_path / "g.npz"
    save(network(), path)
    content, arrays = document(path)
    text = json.dumps(content)
    rng = random.Random(6)
    refused = 0
    for _ in range(600):
        mutant = list(text)
        for _ in range(rng.randint(1, 3)):
            mutant[rng.randrange(len(mutant))] = rng.choice('0123456789-"{}[],:eaxnul ')
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, array in {"graph": np.frombuffer("".join(mutant).encode(), np.uint8), **arrays}.items():
                part = io.BytesIO()
                np.save(part, array)
                archive.writestr(f"{name}.npy", part.getvalue())
        path.write_bytes(buffer.getvalue())
        try:
            load_graph(path)
        except GraphError:
            refused += 1
    assert refused > 300


@pytest.mark.parametrize("dtype", [jf.f32, jf.q8_0])
def test_a_constant_of_another_size_is_named(tmp_path, dtype):
    class Bytes:
        shape, data = (2, 32), memoryview(bytes(dtype.nbytes((2, 32))))

        def release(self):
            """Nothing to do."""

    Bytes.dtype = dtype
    path = tmp_path / "g.npz"
    save(jf.constant(Bytes()), path)
    changed(path, lambda c, a: a.update(c0=a["c0"][:-1]))
    with pytest.raises(GraphError, match=r"constant c0 has \d+ bytes, .* takes \d+"):
        load_graph(path)


HEADERS = {
    "open brackets": b"(" * 200 + b"\n",
    "an open text": b"{'descr': '''" + b"\n",
    "deep brackets": b"[" * 4000 + b"]" * 4000 + b"\n",
    "more than there is memory": b"{'descr': '|u1', 'fortran_order': False, 'shape': (999999999999999,), }\n",
    "more than a number": b"{'descr': '|u1', 'fortran_order': False, 'shape': (" + b"9" * 400 + b",), }\n",
    "no header": b"\n",
    "binary": bytes(range(128, 256)),
    "objects": b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n",
    "a code of a record": b"{'descr': [('a', [('b', 3)])], 'fortran_order': False, 'shape': (1,), }\n",
}


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("name", HEADERS)
def test_whatever_a_header_of_numpy_says_is_a_graph_error(name, version, tmp_path):
    """Its parser raises many kinds of exceptions, tokenize's among them."""
    header = HEADERS[name]
    size = len(header).to_bytes(2 if version == 1 else 4, "little")
    path = tmp_path / "g.npz"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("graph.npy", b"\x93NUMPY" + bytes([version, 0]) + size + header)
    with pytest.raises(GraphError, match="graph"):
        load_graph(path)


def test_an_encrypted_archive_is_a_graph_error(tmp_path):
    """zipfile asks for a password with a RuntimeError."""
    path = tmp_path / "g.npz"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("graph.npy", b"secret")
    raw = bytearray(path.read_bytes())
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        raw[raw.index(mark) + at] |= 1
    path.write_bytes(raw)
    with pytest.raises(GraphError, match="encrypted"):
        load_graph(path)
