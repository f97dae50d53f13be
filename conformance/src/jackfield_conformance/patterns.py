"""Graphs whose steps devices like to make together, and each op beside what is often fused with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from jackfield import ops
from jackfield.conformance.cases import Example, examples, raw_blocks
from jackfield.dtypes import DTYPES, DType, f32, i32
from jackfield.dtypes.arrays import dtype_of
from jackfield.errors import GraphError
from jackfield.graph import ArraySource, Tensor, constant
from jackfield.graph import input as graph_input
from jackfield.graph import state as graph_state
from jackfield.op import OPS, Array

__all__ = ["Build", "Pattern", "pattern_of", "patterns"]

ROWS, WIDTH, WIDE = 3, 64, 96
BLOCKS = ("q8_0", "q4_0")


@dataclass
class Pattern:
    """A graph to be, and what it is fed. data: of inputs and states by name."""

    rng: np.random.Generator
    outputs: list[Tensor] = field(default_factory=list)
    data: dict[str, Array] = field(default_factory=dict)

    def input(self, shape: tuple[int, ...], dtype: DType = f32) -> Tensor:
        """Numbers between -1 and 1."""
        return self.of(self.rng.uniform(-1, 1, shape).astype(dtype.numpy))

    def of(self, array: Array) -> Tensor:
        """An input that gets this very array, of a plain dtype."""
        name = f"x{len(self.data)}"
        self.data[name] = array
        return graph_input(name, array.shape, dtype_of(array))

    def weight(self, shape: tuple[int, ...], dtype: DType = f32) -> Tensor:
        """A constant that keeps what it is multiplied by near one."""
        if dtype.is_block:
            blocks = raw_blocks(dtype, (*shape[:-1], shape[-1] // dtype.block), self.rng, 1.0)
            return constant(ArraySource(blocks, dtype, shape))
        return constant((self.rng.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32))

    def state(self, shape: tuple[int, ...], dtype: DType = f32) -> Tensor:
        name = f"s{len(self.data)}"
        self.data[name] = self.rng.uniform(-1, 1, shape).astype(dtype.numpy)
        return graph_state(name, shape, dtype)


Build = Callable[[Pattern], list[Tensor]]
"""Adds a graph to a pattern and gives its outputs."""


def _op(name: str, *operands: Tensor, **attrs: object) -> Tensor:
    return OPS[name](*operands, **attrs)


def _normed(p: Pattern, x: Tensor) -> Tensor:
    return _op("multiply", _op("rms_norm", x), p.weight((x.shape[-1],)))


def norm(p: Pattern) -> list[Tensor]:
    x = p.input((ROWS, WIDTH))
    return [_normed(p, x), _op("add", _op("multiply", _op("rms_norm", x), p.weight((WIDTH,))), p.weight((WIDTH,)))]


def residual_norm(p: Pattern) -> list[Tensor]:
    """The sum is read again behind the norm."""
    total = _op("add", p.input((ROWS, WIDTH)), p.input((ROWS, WIDTH)))
    return [_op("add", total, _normed(p, total))]


def chain(p: Pattern) -> list[Tensor]:
    x, y = p.input((ROWS, 257)), p.input((ROWS, 257))
    return [_op("add", _op("silu", _op("multiply", _op("add", x, y), p.weight((257,)))), x)]


def square(p: Pattern) -> list[Tensor]:
    """One value read twice by the next step."""
    y = _op("add", p.input((ROWS, WIDTH)), p.input((ROWS, WIDTH)))
    return [_op("multiply", y, y)]


def rows_of_one(p: Pattern) -> list[Tensor]:
    """A view of what is made in between."""
    y = _op("multiply", p.input((ROWS, WIDTH)), p.input((ROWS, WIDTH)))
    return [_op("relu", y[1:]), _op("relu", y[:, : WIDTH // 2])]


def two_readers(p: Pattern) -> list[Tensor]:
    y = _op("add", p.input((ROWS, WIDTH)), p.input((ROWS, WIDTH)))
    return [_op("relu", y), _op("multiply", y, p.weight((WIDTH,)))]


def linears(dtype: DType, p: Pattern) -> list[Tensor]:
    h = _normed(p, p.input((ROWS, WIDTH)))
    return [_op("linear", h, p.weight((n, WIDTH), dtype)) for n in (WIDE, WIDTH, 5)]


def biased(dtype: DType, p: Pattern) -> list[Tensor]:
    x = p.input((ROWS, WIDTH))
    made = [_op("add", _op("linear", x, p.weight((WIDTH, WIDTH), dtype)), p.weight((WIDTH,))) for _ in range(2)]
    return [_op("add", x, made[0]), _op("gelu", made[1])]


def gated(dtype: DType, p: Pattern) -> list[Tensor]:
    x = p.input((ROWS, WIDTH))
    h = _normed(p, x)
    unit = _op("swiglu", *(_op("linear", h, p.weight((WIDE, WIDTH), dtype)) for _ in range(2)))
    return [_op("add", x, _op("linear", unit, p.weight((WIDTH, WIDE), dtype)))]


def products(p: Pattern) -> list[Tensor]:
    """Attention by hand."""
    q, k, v = (p.input((2, ROWS, 32)) for _ in range(3))
    scores = _op("scale", _op("matmul", q, ops.transpose(k, axes=(0, 2, 1))), scale=0.2)
    return [_op("matmul", _op("softmax", scores), v)]


def turned(p: Pattern) -> list[Tensor]:
    """Keys on their way into a cache, and queries by the same angles."""
    q, k = p.input((1, 5, 4, WIDTH)), p.input((1, 5, 2, WIDTH))
    at = constant(np.arange(7, 12, dtype=np.int32))
    q, k = (_op("rope", x, at, mode="neox", n_dims=WIDTH) for x in (q, k))
    rows = ops.transpose(ops.reshape(k, shape=(5, 2, WIDTH)), axes=(1, 0, 2))
    slots = constant(np.arange(2, 7, dtype=i32.numpy).reshape(1, -1))
    return [q, _op("put_rows", p.state((2, 9, WIDTH)), rows, slots)]


def halves(p: Pattern) -> list[Tensor]:
    x = p.input((ROWS, WIDTH))
    return [_op("cast", _op("relu", _op("cast", x, dtype="f16")), dtype="f32")]


def image(p: Pattern) -> list[Tensor]:
    y = _op("conv_2d", p.input((1, 3, 8, 9)), p.weight((4, 3, 3, 3)), padding=1)
    return [_op("relu", _op("add", y, p.weight((1, 4, 1, 1))))]


def kept(build: Build, p: Pattern) -> list[Tensor]:
    """All that is made on the way is read afterwards, so nothing of it can be fused away."""
    found: dict[Tensor, None] = {}

    def visit(tensor: Tensor) -> None:
        if tensor not in found:
            found.update({tensor: None} if tensor.kind == "node" else {})
            for operand in tensor.operands:
                if operand is not None:
                    visit(operand)

    for output in build(p):
        visit(output)
    return list(found)


SHAPES: Mapping[str, Build] = {
    "norm": norm,
    "residual-norm": residual_norm,
    "chain": chain,
    "square": square,
    "views": rows_of_one,
    "two-readers": two_readers,
    "products": products,
    "turned": turned,
    "halves": halves,
    "image": image,
    **{
        f"{what}-{dtype}": partial(build, DTYPES[dtype])
        for what, build in (("linears", linears), ("biased", biased), ("gated", gated))
        for dtype in ("f32", *BLOCKS)
    },
}
KEPT = ("norm", "chain", "gated-f32", "turned")


def patterns() -> Iterator[tuple[str, Build]]:
    """Names, and what builds each graph."""
    yield from SHAPES.items()
    for name in KEPT:
        yield f"{name}-kept", partial(kept, SHAPES[name])
    for name in ops.__all__:
        if not (OPS[name].is_view or OPS[name].updates or OPS[name].is_of_the_host):
            yield f"op-{name}", partial(beside, name)


def beside(name: str, p: Pattern) -> list[Tensor]:
    """An op behind a step that makes its first operand, and steps of several kinds behind it.

    Raises: GraphError for an op that has no case of f32 to build it from.
    """
    example = next((e for e in examples(OPS[name]) if _is_plain(e)), None)
    if example is None:
        raise GraphError(f"[{name}] no declared case makes f32 from plain operands")
    arrays = [None if array is None else np.ascontiguousarray(array) for array in example.arrays()]
    leaves = [None if array is None else p.of(array) for array in arrays]

    def made(*, behind: bool = False) -> Tensor:
        operands = list(leaves)
        if behind and operands and operands[0] is not None and operands[0].spec.dtype is f32:
            operands[0] = _op("add", operands[0], p.of(np.zeros_like(arrays[0])))
        return OPS[name](*operands, **example.attrs)

    other = p.input(example.result.shape)
    outputs = [_op("add", made(), other), _op("multiply", other, made()), _op("relu", made()), made(behind=True)]
    return [*outputs, _op("add", _op("silu", made()), other)]


def _is_plain(example: Example) -> bool:
    plain = all(spec is None or not spec.dtype.is_block for spec in example.specs)
    return plain and example.layout == "dense" and example.result.dtype is f32 and example.result.size > 1


def pattern_of(build: Build, seed: int) -> Pattern:
    """The graph and its data. Raises: GraphError where there is none."""
    pattern = Pattern(np.random.default_rng(seed))
    pattern.outputs = build(pattern)
    return pattern
