"""Tensors: leaves, nodes, views, and the order they are made in."""

from __future__ import annotations

import pickle

import ml_dtypes
import numpy as np
import pytest

from jackfield import ops
from jackfield.dtypes import bf16, f16, f32, q4_0, q8_0
from jackfield.errors import AttributeValueError, DTypeError, GraphError, ShapeError
from jackfield.graph import Attrs, Source, Tensor, constant, root, state, toposort, view
from jackfield.graph import input as leaf
from jackfield.spec import Spec, View


def test_leaves_know_what_they_are():
    x = leaf("x", (2, 3))
    assert (x.kind, x.name, x.shape, x.dtype, x.rank, x.is_leaf) == ("input", "x", (2, 3), f32, 2, True)
    assert x.spec.role == "input"
    k = state("cache.k", [3, 4], f16)
    assert (k.kind, k.spec) == ("state", Spec(f16, (3, 4), role="state"))
    assert repr(k) == "<state cache.k: f16[3, 4]>"


def test_constants_hold_the_bytes_of_their_array():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    c = constant(array.T, name="w")
    assert (c.spec.role, c.shape, c.name) == ("constant", (3, 2), "w")
    assert bytes(c.source.data) == array.T.tobytes()
    assert constant(np.float32(7)).shape == ()
    assert bytes(constant(np.zeros((0, 3), np.int8)).source.data) == b""
    b = constant(np.ones(3, ml_dtypes.bfloat16))
    assert (b.dtype, b.source.data.nbytes) == (bf16, 6)
    c.source.release()


class FileTensor:
    name, dtype, shape = "blk.0.w", q8_0, (2, 32)
    data = memoryview(bytes(68))

    def release(self):
        pass


def test_a_source_is_a_constant_too():
    source = FileTensor()
    assert isinstance(source, Source)
    c = constant(source)
    assert (c.name, c.spec, c.source) == ("blk.0.w", Spec(q8_0, (2, 32), role="constant"), source)


def test_indexing_makes_views_of_the_root():
    x = leaf("x", (4, 6))
    y = x[1:3, ::2]
    assert (y.kind, y.op, y.shape, y.spec.strides) == ("view", "slice", (2, 3), (24, 8))
    assert root(y) == (x, 24)
    assert root(x[2, 3]) == (x, (2 * 6 + 3) * 4)
    assert x[-1].shape == (6,)
    assert x[np.int64(1)].shape == (6,)
    assert x[..., 0].shape == (4,)
    assert x.T.shape == (6, 4)
    assert y.spec.role == "temporary"
    assert leaf("q", (32,), q8_0).T.shape == (32,)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda x: x[4], ShapeError, "[slice] index 4 on axis 0 of extent 4"),
        (lambda x: x[::-1], AttributeValueError, "[slice] step is -1 on axis 0, must be at least 1"),
        (lambda x: x[:, ::0], AttributeValueError, "[slice] step is 0 on axis 1, must be at least 1"),
        (lambda x: x[:, :: np.int64(0)], AttributeValueError, "[slice] step is 0 on axis 1, must be at least 1"),
        (lambda x: x[0, 0, 0], ShapeError, "[slice] 3 indices for 2 axes of f32[4, 6]"),
        (lambda x: x[..., ...], ShapeError, "[slice] more than one '...'"),
        (lambda x: x["a"], GraphError, "[slice] an index is a slice or an int, not str"),
        (
            lambda x: leaf("q", (2, 64), q8_0)[:, 16:],
            ShapeError,
            "[slice] the last axis of q8_0[2, 64] can only be cut at multiples of 32, step 1",
        ),
        (
            lambda x: leaf("q", (2, 64), q4_0).T,
            DTypeError,
            "[transpose] q4_0[2, 64] has blocks along its last axis, which must stay last",
        ),
        (
            lambda x: view("strided", x, Attrs(), View(Spec(f32, (4, 6)), 4)),
            ShapeError,
            "[strided] f32[4, 6] at byte 4 reaches byte 100 of 96",
        ),
        (
            lambda x: leaf("not a name", (1,)),
            GraphError,
            "an input's name must be a Python identifier, not 'not a name'",
        ),
        (lambda x: state("", (1,)), GraphError, "a state needs a name, a text: it is how a Session finds it again"),
        (lambda x: constant(np.zeros(2, np.complex64)), DTypeError, None),
        (list, TypeError, "a Tensor has no data to iterate over; compile it and call the plan"),
        (bool, TypeError, "a Tensor has no value yet; compile it and call the plan"),
    ],
)
def test_mistakes_are_named_on_their_line(make, error, text):
    with pytest.raises(error) as e:
        make(leaf("x", (4, 6)))
    assert text is None or str(e.value) == text


def test_attributes_cannot_change_and_hash_by_value():
    attrs = Attrs(scale=1.0, axes=(1, 0))
    assert attrs == Attrs(axes=(1, 0), scale=1.0)
    assert hash(attrs) == hash(Attrs(axes=(1, 0), scale=1.0))
    for change in (lambda: attrs.update(scale=2.0), lambda: attrs.pop("scale"), lambda: attrs.__setitem__("a", 1)):
        with pytest.raises(TypeError, match="can't be changed"):
            change()
    assert pickle.loads(pickle.dumps(attrs)) == attrs


def test_order_makers_before_users_each_once():
    x = leaf("x", (2, 2))
    a = ops.add(x, x)
    b = ops.multiply(a, x)
    c = ops.add(b, a)
    assert toposort([c, a]) == [x, a, b, c]
    assert toposort([b, c]) == [x, a, b, c]


def test_order_of_a_very_deep_graph():
    y = x = leaf("x", (1,))
    for _ in range(20_000):
        y = ops.square(y)
    order = toposort([y])
    assert order[0] is x
    assert len(order) == 20_001


def test_nodes_remember_how_they_are_made():
    x, w = leaf("x", (2, 32)), constant(np.zeros((5, 32), np.float32))
    y = ops.linear(x, w)
    assert (y.kind, y.op, y.operands, y.attrs) == ("node", "linear", (x, w), {"precision": "default"})
    assert repr(y) == "<linear: f32[2, 5]>"
    assert isinstance(y, Tensor)
    assert not y.is_leaf
    s = ops.softmax(y, sinks=None)
    assert s.operands == (y, None, None)


def test_an_update_keeps_the_strides_of_its_target():
    cache = state("k", (3, 8, 4))
    rows = ops.transpose(cache, axes=(1, 0, 2))
    y = ops.write(rows, leaf("x", (1, 3, 4)), start=(2, 0, 0))
    assert y.spec.strides == rows.spec.strides


def test_a_view_that_no_strides_express_copies_first():
    y = ops.reshape(leaf("x", (3, 4)).T, shape=(12,))
    (base,) = y.operands
    assert (y.kind, base.kind, base.op) == ("view", "node", "contiguous")
    assert y.spec.is_dense
