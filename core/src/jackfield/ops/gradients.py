"""Gradients of other ops: `grad` is the gradient of what those made, the result that of what they were made from."""

from __future__ import annotations

import numpy as np

from jackfield.dtypes import f16, f32, i32
from jackfield.errors import AttributeValueError, DTypeError, ShapeError
from jackfield.op import Array, Call, Check, case, ints, op, rand, values
from jackfield.ops.elementwise import INF, NAN
from jackfield.ops.position import angle_digits, rope, rope_fits
from jackfield.rules import (
    all_of,
    always,
    has_last_axis,
    known,
    like,
    not_negative,
    per_element,
    per_operand_element,
    rank_of,
    same_as,
    uneven_row,
)
from jackfield.spec import Shape


def equal_shapes(first: str, second: str) -> Check:
    def check(call: Call) -> None:
        a, b = call[first].shape, call[second].shape
        if a != b:
            raise call.shape_error(f"{first} is {list(a)} and {second} {list(b)}: they must be equal")

    return check


@op(
    shape=same_as("grad"),
    dtype=like("grad"),
    work=per_element(8),
    accepts={"grad": (f32,), "x": (f32,)},
    check=equal_shapes("grad", "x"),
    inplace=("grad",),
    tolerance="T",
    priority="P2",
    cases=[
        case(rand(3, 5), rand(3, 5, low=-4, high=4)),
        case(rand(2, 3, 257), rand(2, 3, 257, low=-9, high=9)),
        case(values([1.0, 1.0, 1.0, NAN, 1.0, 0.0]), values([-100.0, 100.0, 0.0, 1.0, NAN, -0.0])),
        case(values([1.0, 1.0]), values([INF, -INF])),
        case(rand(), rand()),
        case(rand(0, 4), rand(0, 4)),
        case(rand(3, 5), rand(5, 3), raises=ShapeError),
        case(rand(3, 5, dtype=f16), rand(3, 5), raises=DTypeError),
    ],
)
def silu_backward(grad: Array, x: Array) -> Array:
    """The gradient of silu: grad * s * (1 + x * (1 - s)), s = sigmoid(x).

    grad, x: f32, equal shapes. Returns: f32, their shape; NaN for an infinite x. Raises: ShapeError.
    """
    s = 1 / (1 + np.exp(-x))
    return grad * s * (1 + x * (1 - s))


@op(
    shape=same_as("grad"),
    dtype=like("grad"),
    work=per_element(6),
    accepts={"grad": (f32,), "x": (f32,)},
    check=all_of(has_last_axis("x"), equal_shapes("grad", "x"), not_negative("eps")),
    tolerance="R",
    priority="P2",
    cases=[
        case(rand(3, 5), rand(3, 5), eps=1e-5),
        case(rand(2, 3, 257), rand(2, 3, 257, low=-9, high=9), eps=1e-2),
        case(values([[1.0, 2.0], [NAN, 1.0], [1.0, 1.0]]), values([[0.0, 0.0], [1.0, 2.0], [1.0, INF]]), eps=1e-6),
        case(values([[1.0, 2.0]]), values([[0.0, 0.0]]), eps=0.0),
        case(rand(4, 1), rand(4, 1), eps=1e-5),
        case(rand(0, 4), rand(0, 4), eps=1e-5),
        case(rand(4, 0), rand(4, 0), eps=1e-5),
        case(rand(3, 5), rand(3, 4), eps=1e-5, raises=ShapeError),
        case(rand(), rand(), eps=1e-5, raises=ShapeError),
        case(rand(3, 5), rand(3, 5), eps=-1.0, raises=AttributeValueError),
        case(rand(3, 5), rand(3, 5), raises=AttributeValueError),
        case(rand(3, 5, dtype=f16), rand(3, 5), eps=1e-5, raises=DTypeError),
    ],
)
def rms_norm_backward(grad: Array, x: Array, *, eps: float) -> Array:
    """The gradient of rms_norm: r * (grad - x * sum(x*grad) / (sum(x^2) + n*eps)), r = 1 / sqrt(mean(x^2) + eps).

    grad, x: f32 (..., n), equal shapes. eps: at least 0. Returns: f32, their shape. Raises: ShapeError,
    AttributeValueError.
    """
    n = max(1, x.shape[-1])
    power = np.sum(x * x, -1, keepdims=True)
    r = 1 / np.sqrt(power / n + eps)
    return r * (grad - x * np.sum(x * grad, -1, keepdims=True) / (power + n * eps))


def _made_by_softmax(_: Call, y: Array) -> str | None:
    found = uneven_row(y, "y", least=0)  # sinks take a part
    return found and f"{found}, softmax makes shares of 0 to 1 that sum to at most 1: give the result of softmax"


@op(
    shape=same_as("grad"),
    dtype=like("grad"),
    work=per_element(4),
    accepts={"grad": (f32,), "y": (f32,)},
    check=all_of(has_last_axis("y"), equal_shapes("grad", "y")),
    promises={"y": _made_by_softmax},
    inplace=("grad",),
    tolerance="R",
    priority="P2",
    cases=[
        case(rand(3, 5), rand(3, 5, low=0, high=0.4)),
        case(rand(2, 3, 4, 257), rand(2, 3, 4, 257, low=0, high=0.01), scale=0.125),
        case(values([[1.0, NAN], [INF, 1.0], [1.0, 2.0]]), values([[0.5, 0.5], [0.0, 1.0], [0.0, 0.0]])),
        case(rand(4, 1), rand(4, 1), scale=0.0),
        case(rand(0, 4), rand(0, 4)),
        case(rand(4, 0), rand(4, 0)),
        case(rand(3, 5), rand(3, 4), raises=ShapeError),
        case(rand(), rand(), raises=ShapeError),
        case(rand(3, 5, dtype=f16), rand(3, 5), raises=DTypeError),
    ],
)
def softmax_backward(grad: Array, y: Array, *, scale: float = 1.0) -> Array:
    """The gradient of softmax: scale * y * (grad - sum(y * grad)) along the last axis.

    grad: f32. y: f32, what softmax made, without max_bias; equal shapes. scale: that of softmax.
    Returns: f32, their shape: the gradient of softmax's x. Raises: ShapeError.
    """
    return scale * y * (grad - np.sum(y * grad, -1, keepdims=True))


@op(
    shape=same_as("grad"),
    dtype=like("grad"),
    work=per_element(4),
    accepts={"grad": (f32,), "positions": (i32,), "frequency_factors": (f32,)},
    check=rope_fits,
    tolerance="R",
    slack=angle_digits,
    priority="P2",
    cases=[
        case(rand(2, 5, 3, 8), ints(5, high=100), mode="normal", n_dims=8),
        case(rand(1, 3, 2, 64), ints(3, high=4096), rand(32, low=1, high=8), mode="neox", n_dims=64, base=5e5),
        case(rand(3, 2, 12), ints(3, low=-9, high=9), mode="neox", n_dims=4, offset=6, scale=0.5),
        case(
            rand(1, 4, 2, 64),
            ints(4, high=8000),
            mode="neox",
            n_dims=64,
            scale=0.25,
            ext_factor=1.0,
            attn_factor=1.1,
            original_context=2048,
        ),
        case(rand(1, 3, 2, 8), ints(4, 3, high=50), mode="mrope", n_dims=8, sections=(2, 1, 1, 0)),
        case(rand(1, 3, 2, 8), ints(4, 3, high=50), mode="imrope", n_dims=8, sections=(2, 1, 1, 0)),
        case(rand(1, 3, 2, 8), ints(4, 3, high=50), mode="vision", n_dims=4, sections=(2, 2, 0, 0)),
        case(values([[[[NAN, 1.0, INF, 2.0]]]]), values([3], dtype=i32), mode="normal", n_dims=4),
        case(rand(0, 3, 2, 4), ints(3, high=9), mode="neox", n_dims=4),
        case(rand(1, 3, 2, 8), ints(4, high=9), mode="neox", n_dims=8, raises=ShapeError),
        case(rand(1, 3, 2, 8), ints(3, high=9), mode="gptj", n_dims=8, raises=AttributeValueError),
        case(rand(1, 3, 2, 8, dtype=f16), ints(3, high=9), mode="neox", n_dims=8, raises=DTypeError),
    ],
)
def rope_backward(
    grad: Array,
    positions: Array,
    frequency_factors: Array | None = None,
    *,
    mode: str,
    n_dims: int,
    offset: int = 0,
    base: float = 10000.0,
    scale: float = 1.0,
    ext_factor: float = 0.0,
    attn_factor: float = 1.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    original_context: int = 0,
    sections: Shape = (0, 0, 0, 0),
) -> Array:
    """The gradient of rope: the pairs turned back, which is a turn by the negative position.

    grad: f32 (B, T, H, D); B may be missing. positions, frequency_factors, and the attributes mode, n_dims, offset,
    base, scale, ext_factor, attn_factor (which stays a factor), beta_fast, beta_slow, original_context and sections:
    those of rope. Returns: f32, shape of grad. Raises: ShapeError, DTypeError, AttributeValueError.
    """
    return np.asarray(
        rope.body(
            grad,
            -positions.astype(np.int64),
            frequency_factors,
            mode=mode,
            n_dims=n_dims,
            offset=offset,
            base=base,
            scale=scale,
            ext_factor=ext_factor,
            attn_factor=attn_factor,
            beta_fast=beta_fast,
            beta_slow=beta_slow,
            original_context=original_context,
            sections=sections,
        )
    )


def _untiled(call: Call) -> Shape:
    grad, shape = call["grad"].shape, call.attr("shape")
    if len(shape) != len(grad) or any(n < 0 for n in shape):
        raise call.attr_error(f"shape is {list(shape)}, must be an extent of at least 0 for each of {len(grad)} axes")
    if any(big % n if n else big for big, n in zip(grad, shape, strict=True)):
        raise call.shape_error(f"grad is {list(grad)}, its extents must be multiples of {list(shape)}")
    return tuple(shape)


@op(
    shape=_untiled,
    dtype=like("grad"),
    work=per_operand_element("grad", 1),
    accepts={"grad": (f32,)},
    tolerance="R",
    priority="P2",
    cases=[
        case(rand(6, 5), shape=(3, 5)),
        case(rand(2, 3, 6, 10), shape=(2, 1, 3, 5)),
        case(rand(4, 257), shape=(1, 1)),
        case(values([1.0, NAN, INF, 2.0, 1.0, -INF]), shape=(3,)),
        case(rand(), shape=()),
        case(rand(0, 4), shape=(2, 2)),
        case(rand(0, 4), shape=(0, 2)),
        case(rand(6, 5), shape=(4, 5), raises=ShapeError),
        case(rand(6, 5), shape=(0, 5), raises=ShapeError),
        case(rand(6, 5), shape=(6,), raises=AttributeValueError),
        case(rand(6, 5), shape=(6, -5), raises=AttributeValueError),
        case(rand(6, 5, dtype=f16), shape=(3, 5), raises=DTypeError),
    ],
)
def tile_backward(grad: Array, *, shape: Shape) -> Array:
    """The gradient of tile: all tiles added up.

    grad: f32. shape: of one tile; each extent divides that of grad. Returns: f32 of this shape.
    Raises: ShapeError where an extent does not divide; AttributeValueError.
    """
    tiles = [part for big, n in zip(grad.shape, shape, strict=True) for part in (big // max(1, n), n)]
    return np.sum(grad.reshape(tiles), tuple(range(0, len(tiles), 2)))


def _table(call: Call) -> Shape:
    rank_of(call, "grad", 2, 2)
    grad, rows, count = call["grad"], call["rows"], call.attr("count")
    if rows.shape != grad.shape[:1]:
        raise call.shape_error(f"rows is {list(rows.shape)}, must be [{grad.shape[0]}], one number a row of grad")
    if count < 0:
        raise call.attr_error(f"count is {count}, must be at least 0")
    return (count, grad.shape[1])


@op(
    shape=_table,
    dtype=always(f32),
    work=per_operand_element("grad", 1),
    accepts={"grad": (f32, f16), "rows": (i32,)},
    tolerance="R",
    priority="P2",
    cases=[
        case(rand(4, 5), ints(4, high=9), count=9),
        case(rand(257, 3), ints(257, high=2), count=3),
        case(rand(4, 3), values([1, 1, 0, 1], dtype=i32), count=2),
        case(values([[NAN], [INF], [1.0]]), values([1, 0, 2], dtype=i32), count=4),
        case(rand(4, 3), values([1, 5, -1, 2], dtype=i32), count=5),
        case(rand(1, 1), values([0], dtype=i32), count=1),
        case(rand(0, 3), values([], dtype=i32), count=2),
        case(rand(4, 5), ints(3, high=9), count=9, raises=ShapeError),
        case(rand(2, 4, 5), ints(2, high=9), count=9, raises=ShapeError),
        case(rand(4, 5), ints(4, high=9), count=-1, raises=AttributeValueError),
        case(rand(4, 5), rand(4, dtype=f32), count=9, raises=DTypeError),
    ],
)
def take_rows_backward(grad: Array, rows: Array, *, count: int) -> Array:
    """The gradient of take_rows: each row of grad added to the row of the table that it was taken from.

    grad: f32 or f16 (n, C). rows: i32 (n,). count: rows of the table, R. Returns: f32 (R, C), zeros where no row was
    taken. A number outside 0 .. R-1 adds nothing, with a BadIndex at the end. Raises: ShapeError, AttributeValueError.
    """
    inside = known("rows", rows, count)
    table = np.zeros((count, grad.shape[1]))
    np.add.at(table, rows[inside], grad[inside])
    return table
