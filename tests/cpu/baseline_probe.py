"""Run by test_levels in another process, perhaps on an emulated old CPU: every kernel once on a case of its op, and a
graph whose steps are made together or packed, with weights of every dtype; against numpy.
"""

from __future__ import annotations

import sys
from math import prod

import numpy as np
from block_bits import random_blocks

import jackfield as jf
from jackfield import ops
from jackfield.conformance import made
from jackfield.conformance.cases import drawn
from jackfield.dtypes import DTYPES
from jackfield.op import OPS
from jackfield_conformance import Refused, mistakes
from jackfield_cpu.backend import CpuBackend

MOST = 2048  # elements of a case's operands: enough for vectors and what is left of them


def main() -> None:
    backend = CpuBackend()
    (device,) = backend.devices()
    kernels = sorted(backend.kernels())
    wrong = [text for name in kernels for text in mistakes_of(name, backend, device)]
    assert not wrong, "\n".join(wrong)
    run_graph()
    sys.stdout.write(f"{len(kernels)} kernels, level {device.target.arch}\n")


def mistakes_of(name, backend, device) -> list[str]:
    """Of the largest declared case of the op that is small and that its kernel takes."""
    op = OPS[name]
    small = [case for case in op.cases if case.raises is None and elements(case) <= MOST]
    for case in sorted(small, key=elements, reverse=True):
        dtypes = {n: draw.dtype or op.declared.accepts[n][0] for n, draw in case.operands.items()}
        if any(dtype.is_block for dtype in dtypes.values()):
            continue  # run_graph has those
        arrays = {n: drawn(draw, dtypes[n], np.random.default_rng(0)) for n, draw in case.operands.items()}
        try:
            return mistakes(made(op, arrays, **case.attrs), backend, device)
        except Refused:
            continue
    return [f"{name}: no small case is taken"]


def elements(case) -> int:
    return sum(prod(draw.shape) for draw in case.operands.values())


def run_graph() -> None:
    rng = np.random.default_rng(0)
    x = jf.input("x", (5, 64))
    weight = rng.standard_normal((33, 64)).astype(np.float32)
    packed = jf.constant(Blocks(weight, jf.q4_0))
    normed = ops.multiply(ops.rms_norm(x, eps=1e-6), jf.constant(np.ones(64, np.float32)))
    h = ops.linear(normed, packed)
    gated = ops.swiglu(h, h)
    soft = ops.softmax(ops.reshape(gated, shape=(1, 1, 5, 33)))
    some = jf.constant(np.array([0, 32, 7, 7], np.int32))
    rows = ops.take_rows(packed, some)
    heads = ops.reshape(x, shape=(1, 1, 5, 64))
    attended = ops.attention(heads, heads, heads, scale=0.125, causal=True)
    ids = jf.input("ids", (4,), jf.i32)
    turned = ops.rope(ops.reshape(x, shape=(5, 1, 64)), jf.input("positions", (5,), jf.i32), mode="neox", n_dims=64)
    experts = jf.constant(Blocks(rng.standard_normal((2, 32, 64)).astype(np.float32), jf.q8_0))
    chosen = jf.constant(np.array([[0], [1], [1], [0], [1]], np.int32))
    types = [dtype for dtype in DTYPES.values() if dtype.is_block and not dtype.is_activation]
    weights = [jf.constant(Raw(dtype, (33, 256), rng)) for dtype in types]
    stacks = [jf.constant(Raw(dtype, (2, 32, 256), rng)) for dtype in types]
    wide = ops.tile(x, repeats=(1, 4))
    each = ops.reshape(wide, shape=(5, 1, 256))
    outputs = (
        h,
        soft,
        rows,
        attended,
        ops.argmax(soft),
        ops.argsort(x),
        ops.top_k(x, k=3),
        turned,
        ops.linear_experts(ops.reshape(x, shape=(5, 1, 64)), experts, chosen),
        ops.matmul(x, x.T),
        ops.put_rows(ops.cast(x, dtype="f16"), ops.take_rows(x, ids), jf.constant(np.array([0, 2, -1, 4], np.int32))),
        ops.write(x, ops.take_rows(x, ids), start=(1, 0)),
        ops.norm(x, eps=1e-5),
        ops.l2_norm(x, eps=1e-6),
        ops.tile(x, repeats=(2, 1)),
        ops.concatenate(x, x, axis=1),
        ops.cast(x, dtype="q8_0"),
        ops.cast(x, dtype="f16"),
        ops.contiguous(x.T),
        ops.gelu(x),
        ops.sum(x),
        *(ops.linear(wide, weight) for weight in weights),
        *(ops.take_rows(weight, some) for weight in weights),
        *(ops.linear_experts(each, stack, chosen) for stack in stacks),
    )
    feeds = {
        "x": rng.standard_normal((5, 64)).astype(np.float32),
        "ids": np.array([0, 4, 3, 3], np.int32),
        "positions": np.arange(5, dtype=np.int32),
    }
    ours = jf.Session(device="cpu", policy="strict").compile(outputs)(**feeds)
    oracle = jf.Session(device="reference").compile(outputs)(**feeds)
    for number, (a, b) in enumerate(zip(ours, oracle, strict=True)):
        assert a.shape == b.shape and a.dtype == b.dtype, (number, a.shape, b.shape)
        got, want = a.astype(np.float64), b.astype(np.float64)
        assert np.square(got - want).sum() <= 5e-4 * np.square(want).sum(), f"output {number}: {a} for {b}"


class Blocks:
    """A constant in a block dtype, made on the spot."""

    def __init__(self, array: np.ndarray, dtype: jf.DType) -> None:
        self.dtype, self.shape = dtype, array.shape
        self._raw = np.ascontiguousarray(dtype.encode(array)).reshape(-1)

    @property
    def data(self) -> memoryview:
        return memoryview(self._raw)

    def release(self) -> None:
        pass


class Raw(Blocks):
    """A constant of random bits."""

    def __init__(self, dtype: jf.DType, shape: tuple[int, ...], rng: np.random.Generator) -> None:
        self.dtype, self.shape = dtype, shape
        self._raw = random_blocks(dtype, shape, rng).reshape(-1)


if __name__ == "__main__":
    main()
