"""A stored weight with a scale that is no finite number: refused by name before anything is computed with it."""

from __future__ import annotations

import numpy as np
import pytest

import jackfield as jf
from jackfield import ops
from jackfield.dtypes import DTYPES
from jackfield.errors import DTypeError, GraphError


class Blocks:
    """The source of a constant: bytes of a block dtype."""

    def __init__(self, dtype, shape, raw):
        self.dtype, self.shape, self.data = dtype, shape, memoryview(raw.reshape(-1))

    def release(self):
        pass


@pytest.mark.parametrize("dtype", [d for d in DTYPES.values() if d.is_block and not d.is_activation], ids=repr)
@pytest.mark.parametrize("device", ["reference", "sim"])
def test_it_is_named_with_its_block(dtype, device):
    weight = np.random.default_rng(0).standard_normal((5, 4 * dtype.block)).astype(np.float32)
    good = dtype.encode(weight).reshape(20, -1)
    bad = good.copy()
    bad[13] = 255  # every scale inf, NaN or reserved, whatever the type
    x = np.random.default_rng(1).standard_normal((2, 4 * dtype.block)).astype(np.float32)

    def product(raw):
        w = jf.constant(Blocks(dtype, weight.shape, raw), name="blk.0.w")
        return jf.compile(ops.linear(jf.input("x", x.shape, jf.f32), w), device=device)(x=x)

    want = x.astype(np.float64) @ dtype.decode(good).reshape(weight.shape).T
    assert np.square(product(good) - want).sum() <= 5e-4 * np.square(want).sum()
    text = rf"constant 'blk.0.w' is {dtype}.*: block 1 of row 3 has a scale that is no finite number"
    with pytest.raises(GraphError, match=text):
        product(bad)


@pytest.mark.parametrize("name", ["q8_1", "q8_K"])
def test_activation_types_are_no_weights_and_no_caches(name):
    dtype = DTYPES[name]
    x, w = jf.input("x", (2, 256), jf.f32), jf.input("w", (3, 256), dtype)
    with pytest.raises(DTypeError, match=rf"\[linear\] weight is {name} \(rounded activations, no type for stored"):
        ops.linear(x, w)
    with pytest.raises(DTypeError, match=rf"\[linear_experts\] weight is {name} \(rounded activations"):
        ops.linear_experts(
            jf.input("x", (2, 1, 256), jf.f32), jf.input("w", (3, 4, 256), dtype), jf.input("ids", (2, 1), jf.i32)
        )
    q, k = jf.input("q", (1, 2, 3, 256), jf.f32), jf.input("k", (1, 2, 4, 256), dtype)
    with pytest.raises(DTypeError, match=rf"\[attention\] k is {name} \(rounded activations"):
        ops.attention(q, k, k, scale=1.0)
    data = np.random.default_rng(2).standard_normal((2, 256)).astype(np.float32)
    back = jf.compile(ops.cast(ops.cast(x, dtype=name), dtype="f32"), device="reference")(x=data)
    np.testing.assert_array_equal(back, dtype.decode(dtype.encode(data)))
