"""What an op remembers of earlier uses never shows: other values and other Specs give other answers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jackfield as jf
from jackfield import ops
from jackfield.attributes import stamp
from jackfield.errors import AttributeValueError
from jackfield.op import OPS


def test_uses_that_python_calls_equal_are_told_apart():
    x = jf.input("x", (2, 3, 4))
    for _ in range(2):
        assert ops.argmax(x, axis=1).shape == (2, 4)
        for wrong in (True, 1.0):
            with pytest.raises(AttributeValueError, match=r"\[argmax\] axis is"):
                ops.argmax(x, axis=wrong)
        with pytest.raises(AttributeValueError, match=r"\[transpose\] axes is"):
            ops.transpose(x, axes=(0, True, 2))
        assert str(ops.scale(x, scale=0.0).attrs["scale"]) == "0.0"
        assert str(ops.scale(x, scale=-0.0).attrs["scale"]) == "-0.0"
        assert type(ops.scale(x, scale=1).attrs["scale"]) is float
        with pytest.raises(AttributeValueError, match=r"\[scale\] scale is nan"):
            ops.scale(x, scale=float("nan"))
        assert np.isnan(ops.causal_mask(x, fill=float("nan")).attrs["fill"])
        assert ops.transpose(x, axes=(1, 0, 2)).attrs == ops.transpose(x, axes=[1, 0, 2]).attrs


def test_the_same_use_gives_the_same_spec_and_another_tensor():
    x, y = jf.input("x", (2, 3)), jf.input("y", (2, 3))
    a, b = ops.add(x, y), ops.add(y, x)
    assert a is not b and a.operands == (x, y) and b.operands == (y, x)
    assert a.spec is b.spec and a.attrs is b.attrs
    wide = ops.add(x, jf.input("z", (5, 2, 3)))
    assert wide.shape == (5, 2, 3)


def test_views_of_copies_are_remembered_with_their_copy():
    x = jf.input("x", (2, 3, 4))
    for _ in range(2):
        flat = ops.reshape(ops.transpose(x, axes=(0, 2, 1)), shape=(2, 12))
        assert flat.kind == "view" and flat.spec.is_dense and flat.spec.role == "temporary"
        (copy,) = flat.operands
        assert copy.op == "contiguous" and copy.shape == (2, 4, 3)


def test_what_is_remembered_is_bounded():
    x = jf.input("x", (2, 3))
    for i in range(1000):
        ops.scale(x, scale=float(i))
    assert len(OPS["scale"]._known) <= 256


ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5]),
    st.sampled_from(["", "1"]),
)
VALUES = st.one_of(ATOMS, st.lists(ATOMS, max_size=2), st.lists(ATOMS, max_size=2).map(tuple))
KEYWORDS = st.dictionaries(st.sampled_from("ab"), VALUES, max_size=2)


@given(KEYWORDS, KEYWORDS)
def test_stamps_are_equal_only_where_texts_are(one, other):
    a, b = stamp(one), stamp(other)
    if a is not None and b is not None:
        assert (a == b) == (repr(one) == repr(other))


def test_rare_values_have_no_stamp():
    assert stamp({"a": np.int64(1)}) is None
    assert stamp({"a": (1, 2.0)}) is None
    assert stamp({"a": {}}) is None
    assert stamp({"a": jf.f16}) == stamp({"a": jf.f16}) != stamp({"a": jf.f32})
