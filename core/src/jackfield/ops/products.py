"""Products of matrices: by a stored weight, of two activations, and by experts chosen per token."""

from __future__ import annotations

import math

import numpy as np

from jackfield.dtypes import f16, f32, i32, q8_0, q8_1
from jackfield.dtypes.arrays import widened
from jackfield.errors import AttributeValueError, DTypeError, ShapeError
from jackfield.op import Array, Call, Work, case, ints, op, rand, values
from jackfield.ops.elementwise import INF, NAN
from jackfield.rules import (
    STORED,
    F,
    all_of,
    always,
    countable,
    grouped,
    known,
    like,
    multiple,
    precision,
    rank_of,
    same_as,
    touched,
)
from jackfield.spec import Shape, Spec


def _dense_rows(call: Call) -> None:
    weight = call["weight"]
    if not weight.rows_are_dense:
        raise call.shape_error(
            f"weight is {weight}: its last axis must have no gaps; use matmul for a transposed one, or contiguous"
        )


def _linear(call: Call) -> Shape:
    x, weight = call["x"], call["weight"]
    rank_of(call, "x", 2)
    rank_of(call, "weight", 2)
    if x.shape[-1] != weight.shape[-1]:
        raise call.shape_error(f"weight is {list(weight.shape)}, x ends in {x.shape[-1]}: the last axes must be equal")
    multiple(call, "x", -3, "weight", -3)
    multiple(call, "x", -4, "weight", -4)
    return (*x.shape[:-1], weight.shape[-2])


def _product(call: Call, result: Spec) -> Work:
    """Rows times columns times inner length."""
    return Work(result.size * call["x"].shape[-1], touched(call, result))


@op(
    shape=_linear,
    dtype=always(f32),
    work=_product,
    accepts={"x": F, "weight": STORED},
    tolerance="M",
    check=all_of(precision, _dense_rows),
    cases=[
        case(rand(3, 256), rand(5, 256)),
        case(rand(1, 512), rand(33, 512)),
        case(rand(7, 96), rand(31, 96)),
        case(rand(2, 4, 3, 32), rand(2, 2, 5, 32)),
        case(rand(4, 3, 33), rand(5, 33)),
        case(rand(33, 256), rand(257, 256)),
        case(rand(5, 64), rand(3, 64), precision="f32"),
        case(values([[INF, 1.0], [NAN, 1.0], [1.0, 2.0], [1e5, 1.0]]), values([[1.0, 2.0], [3.0, 4.0], [0.0, 1.0]])),
        case(values([[1.0] * 32, [INF] + [0.5] * 31, [NAN] * 32, [-2.0] * 32]), rand(4, 32)),
        case(rand(2, 256, high=1e5), rand(3, 256), precision="f32"),
        case(rand(3, 0), rand(5, 0)),
        case(rand(0, 32), rand(5, 32)),
        case(rand(3, 32), rand(0, 32)),
        case(rand(1, 1), rand(1, 1)),
        case(rand(2, 255), rand(257, 255)),
        case(rand(3, 128), rand(512, 256), raises=ShapeError),
        case(rand(4, 3, 32), rand(3, 5, 32), raises=ShapeError),
        case(rand(3, 32), rand(2, 5, 32), raises=ShapeError),
        case(rand(32), rand(5, 32), raises=ShapeError),
        case(rand(3, 32), rand(5, 32), precision="f16", raises=AttributeValueError),
        case(rand(3, 32), ints(5, 32, high=4), raises=DTypeError),
        case(rand(3, 32), rand(5, 32, dtype=q8_1), raises=DTypeError),
    ],
)
def linear(x: Array, weight: Array, *, precision: str = "default") -> Array:  # noqa: ARG001 - f64 is always enough
    """x times the transposed weight: y[m, n] = sum over k of x[m, k] * weight[n, k].

    x: f32, f16 or bf16 (..., M, K).
    weight: f32, f16, bf16 or a block dtype (..., N, K), in the order [out, in]; its last axis is dense. Its batch
        extents divide those of x: batch i of x uses i // (B // b).
    precision: "default" lets a device round x to the partner dtype of the weight; "f32" forbids it.
    Returns: f32 (..., M, N). Raises: ShapeError, DTypeError, AttributeValueError.
    """
    weight = grouped(weight.reshape(weight.shape[-x.ndim :]), x.shape[:-2])
    return x @ np.swapaxes(weight, -1, -2)


def _matmul(call: Call) -> Shape:
    a, b = call["a"], call["b"]
    rank_of(call, "a", 2)
    rank_of(call, "b", 2)
    if a.shape[-1] != b.shape[-2]:
        raise call.shape_error(
            f"a is {list(a.shape)} and b {list(b.shape)}: the last axis of a must equal the second-last of b"
        )
    multiple(call, "a", -3, "b", -3)
    multiple(call, "a", -4, "b", -4)
    return (*a.shape[:-1], b.shape[-1])


@op(
    shape=_matmul,
    dtype=always(f32),
    accepts={"a": F, "b": F},
    tolerance="M",
    work=lambda call, result: Work(result.size * call["a"].shape[-1], touched(call, result)),
    cases=[
        case(rand(3, 5), rand(5, 4)),
        case(rand(2, 4, 3, 33), rand(2, 2, 33, 7)),
        case(rand(4, 3, 8), rand(8, 5)),
        case(rand(1, 256), rand(256, 257)),
        case(values([[INF, 1.0], [NAN, 1.0], [1.0, 2.0]]), values([[1.0, 0.0], [2.0, 3.0]])),
        case(rand(3, 0), rand(0, 4)),
        case(rand(0, 3), rand(3, 4)),
        case(rand(1, 1), rand(1, 1)),
        case(rand(3, 5), rand(4, 5), raises=ShapeError),
        case(rand(3, 2, 5), rand(2, 5, 4), raises=ShapeError),
        case(rand(2, 5), rand(2, 5, 4), raises=ShapeError),
        case(rand(5), rand(5, 4), raises=ShapeError),
        case(rand(3, 32), rand(32, 32, dtype=q8_0), raises=DTypeError),
    ],
)
def matmul(a: Array, b: Array) -> Array:
    """a times b: the same as `linear(a, transpose(b))`, and nobody copies the transpose.

    a: f32, f16 or bf16 (..., M, K). b: f32, f16 or bf16 (..., K, N); batch extents divide those of a, grouped.
    Returns: f32 (..., M, N). Raises: ShapeError, DTypeError.
    """
    return a @ grouped(b.reshape(b.shape[-a.ndim :]), a.shape[:-2])


def _experts(call: Call) -> Shape:
    x, weight, ids = call["x"], call["weight"], call["ids"]
    for name, rank in (("x", 3), ("weight", 3), ("ids", 2)):
        rank_of(call, name, rank, rank)
    if x.shape[0] != ids.shape[0] or x.shape[-1] != weight.shape[-1]:
        raise call.shape_error(
            f"x is {list(x.shape)}, weight {list(weight.shape)}, ids {list(ids.shape)}: "
            "x and ids must have equally many tokens, x and weight equal last axes"
        )
    multiple(call, "ids", -1, "x", -2)
    countable(call, "slots of tokens", math.prod(ids.shape))
    countable(call, "experts", weight.shape[0])
    return (*ids.shape, weight.shape[1])


def _experts_work(call: Call, result: Spec) -> Work:
    weight, slots = call["weight"], math.prod(call["ids"].shape)
    read = weight.nbytes // max(1, weight.shape[0]) * min(slots, weight.shape[0])
    return Work(result.size * weight.shape[-1], call["x"].nbytes + call["ids"].nbytes + read + result.nbytes)


@op(
    shape=_experts,
    dtype=always(f32),
    work=_experts_work,
    tolerance="M",
    stored=True,
    accepts={"x": F, "weight": STORED, "ids": (i32,)},
    check=all_of(precision, _dense_rows),
    cases=[
        case(rand(3, 1, 256), rand(4, 5, 256), ints(3, 2, high=4)),
        case(rand(5, 4, 32), rand(8, 3, 32), ints(5, 4, high=8)),
        case(rand(2, 2, 33), rand(4, 3, 33), ints(2, 6, high=4)),
        case(rand(2, 1, 32), rand(16, 3, 32), ints(2, 16, high=16)),
        case(rand(3, 1, 32), rand(4, 5, 32), values([[2, 2], [2, 2], [2, 2]], dtype=i32)),
        case(rand(3, 1, 64), rand(4, 5, 64), values([[0, -1], [-1, -1], [3, 3]], dtype=i32), precision="f32"),
        case(rand(2, 1, 32), rand(4, 5, 32), values([[0, 4], [-2, 1]], dtype=i32)),
        case(values([[[INF] + [1.0] * 31], [[2.0] * 32]]), rand(2, 3, 32), values([[0, 1], [1, 0]], dtype=i32)),
        case(rand(0, 1, 32), rand(4, 5, 32), values(np.zeros((0, 2)), dtype=i32)),
        case(rand(1, 1, 1), rand(1, 1, 1), ints(1, 1, high=1)),
        case(rand(3, 1, 32), rand(4, 5, 64), ints(3, 2, high=4), raises=ShapeError),
        case(rand(3, 3, 32), rand(4, 5, 32), ints(3, 2, high=4), raises=ShapeError),
        case(rand(2, 1, 32), rand(4, 5, 32), ints(3, 2, high=4), raises=ShapeError),
        case(rand(3, 32), rand(4, 5, 32), ints(3, 2, high=4), raises=ShapeError),
        case(rand(2**16, 1, 0), rand(4, 5, 0), ints(2**16, 2**15, high=4), raises=ShapeError),
        case(rand(3, 1, 0), rand(2**31, 5, 0), ints(3, 2, high=4), raises=ShapeError),
        case(rand(3, 1, 32), rand(4, 5, 32), ints(3, 2, high=4), precision="", raises=AttributeValueError),
        case(rand(3, 1, 32), rand(4, 5, 32), rand(3, 2, dtype=f32), raises=DTypeError),
    ],
)
def linear_experts(
    x: Array,
    weight: Array,
    ids: Array,
    *,
    precision: str = "default",  # noqa: ARG001 - f64 is always enough
) -> Array:
    """Each token times the weights of the experts chosen for it: y[t, i] = weight[ids[t, i]] @ x[t, i % e].

    x: f32, f16 or bf16 (T, e, K), e divides E. weight: f32, f16, bf16 or a block dtype (X, N, K), last axis dense.
    ids: i32 (T, E). Id -1 skips the slot: its row is zero. Another id outside 0 .. X-1 gives zeros and a BadIndex.
    precision: as in `linear`. Returns: f32 (T, E, N). Raises: ShapeError, DTypeError, AttributeValueError.
    """
    wide = widened(x)
    y = np.zeros((*ids.shape, weight.shape[1]))
    chosen = known("ids", ids, len(weight), skip=lambda i: i == -1)
    for expert in np.unique(ids[chosen]):
        token, slot = np.nonzero(chosen & (ids == expert))
        y[token, slot] = wide[token, slot % x.shape[1]] @ widened(weight[expert]).T
    return y


def _outer(call: Call) -> Shape:
    a, b = call["a"], call["b"]
    rank_of(call, "a", 2)
    rank_of(call, "b", 2)
    if a.shape[-2] != b.shape[-2]:
        raise call.shape_error(f"a is {list(a.shape)} and b {list(b.shape)}: their second-last extents must be equal")
    multiple(call, "b", -3, "a", -3)
    multiple(call, "b", -4, "a", -4)
    return (*b.shape[:-2], b.shape[-1], a.shape[-1])


@op(
    shape=_outer,
    dtype=always(f32),
    accepts={"a": STORED, "b": (f32,)},
    tolerance="M",
    priority="P2",
    work=lambda call, result: Work(result.size * call["a"].shape[-2], touched(call, result)),
    cases=[
        case(rand(3, 5), rand(3, 4)),
        case(rand(3, 256), rand(3, 5)),
        case(rand(2, 2, 7, 33), rand(2, 4, 7, 5)),
        case(rand(5, 8), rand(4, 5, 3)),
        case(rand(257, 3), rand(257, 2)),
        case(values([[INF, 1.0], [NAN, 1.0]]), values([[0.0, 2.0], [1.0, 3.0]])),
        case(rand(0, 5), rand(0, 4)),
        case(rand(3, 0), rand(3, 4)),
        case(rand(1, 1), rand(1, 1)),
        case(rand(3, 5), rand(4, 5), raises=ShapeError),
        case(rand(2, 3, 5), rand(3, 3, 4), raises=ShapeError),
        case(rand(2, 1, 3, 5), rand(3, 3, 4), raises=ShapeError),
        case(rand(5), rand(5, 4), raises=ShapeError),
        case(rand(3, 5), rand(3, 4, dtype=f16), raises=DTypeError),
    ],
)
def outer_product(a: Array, b: Array) -> Array:
    """The sum of the outer products of the rows of b and a: y[p, m] = sum over n of b[n, p] * a[n, m].

    a: f32, f16, bf16 or a block dtype (..., n, m); batch extents divide those of b, grouped. b: f32 (..., n, p).
    Returns: f32 (..., p, m). Raises: ShapeError, DTypeError.
    """
    a = grouped(a.reshape(a.shape[-b.ndim :]), b.shape[:-2])
    return np.swapaxes(b, -1, -2) @ a


def _rows_of_a_power_of_two(call: Call) -> None:
    rank_of(call, "x", 1)
    n = call["x"].shape[-1]
    if n < 1 or n & (n - 1):
        raise call.shape_error(f"x is {list(call['x'].shape)}, its last extent must be a power of two")


@op(
    shape=same_as("x"),
    dtype=like("x"),
    work=lambda call, result: Work(result.size * call["x"].shape[-1].bit_length(), touched(call, result)),
    accepts={"x": (f32,)},
    inplace=("x",),
    tolerance="R",
    priority="P1",
    check=_rows_of_a_power_of_two,
    cases=[
        case(rand(3, 8)),
        case(rand(2, 3, 1, 256)),
        case(rand(2, 1024)),
        case(values([[1.0, 2.0, 3.0, 4.0], [NAN, 0.0, 0.0, 0.0], [INF, 1.0, INF, 1.0], [1e30, 1.0, -1e30, 0.0]])),
        case(rand(7, 1)),
        case(rand(2)),
        case(rand(0, 4)),
        case(rand(3, 12), raises=ShapeError),
        case(rand(3, 0), raises=ShapeError),
        case(rand(), raises=ShapeError),
        case(rand(3, 4, dtype=f16), raises=DTypeError),
    ],
)
def hadamard(x: Array) -> Array:
    """The Walsh-Hadamard transform of each row in natural order, divided by sqrt(n): its own inverse.

    x: f32 (..., n), n a power of two. Returns: f32, shape of x. Raises: ShapeError, DTypeError.
    Source: Fino and Algazi 1976, "Unified matrix treatment of the fast Walsh-Hadamard transform".
    """
    n, y, stride = x.shape[-1], x, 1
    while stride < n:
        pairs = y.reshape(*x.shape[:-1], n // (2 * stride), 2, stride)
        u, v = pairs[..., 0, :], pairs[..., 1, :]
        y = np.stack([u + v, u - v], -2).reshape(x.shape)
        stride *= 2
    return y / math.sqrt(n)
