"""Attention within windows of an image: cutting into windows, putting together, and biases by relative position.

Source: Li et al. 2022, "Exploring plain vision transformer backbones for object detection"; Kirillov et al. 2023,
"Segment anything", which uses both.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jackfield.dtypes import bf16, f16, f32
from jackfield.errors import AttributeValueError, DTypeError, ShapeError
from jackfield.graph import Attr
from jackfield.op import Array, Call, case, ints, op, rand, values
from jackfield.ops.elementwise import INF, NAN
from jackfield.rules import like, per_element, rank_of
from jackfield.spec import Shape


def _window(call: Call) -> int:
    w = int(call.attr("window"))
    if w < 1:
        raise call.attr_error(f"window is {w}, must be at least 1")
    return w


def _partitioned(call: Call) -> Shape:
    rank_of(call, "x", 3, 3)
    (H, W, C), w = call["x"].shape, _window(call)
    return (-(-H // w) * -(-W // w), w, w, C)


@op(
    shape=_partitioned,
    dtype=like("x"),
    work=per_element(0),
    accepts={"x": (f32,)},
    tolerance="E",
    priority="P2",
    stored=True,
    cases=[
        case(rand(6, 4, 3), window=2),
        case(rand(5, 7, 3), window=3),
        case(rand(2, 3, 257), window=4),
        case(values([[[NAN], [INF], [-0.0]], [[1.0], [-INF], [2.0]]]), window=2),
        case(rand(1, 1, 1), window=1),
        case(rand(0, 4, 3), window=2),
        case(rand(4, 4, 0), window=2),
        case(rand(4, 4), window=2, raises=ShapeError),
        case(rand(4, 4, 3), window=0, raises=AttributeValueError),
        case(rand(4, 4, 3, dtype=f16), window=2, raises=DTypeError),
    ],
)
def window_partition(x: Array, *, window: int) -> Array:
    """An image cut into square windows, row by row; cells beyond its edges are 0.

    x: f32 (H, W, C). window: side of a window, w. Returns: f32 (ceil(H/w) * ceil(W/w), w, w, C).
    Raises: ShapeError, AttributeValueError.
    """
    (H, W, C), w = x.shape, window
    rows, columns = -(-H // w), -(-W // w)
    whole = np.zeros((rows * w, columns * w, C), x.dtype)
    whole[:H, :W] = x
    return whole.reshape(rows, w, columns, w, C).swapaxes(1, 2).reshape(rows * columns, w, w, C)


def _merged(call: Call) -> Shape:
    rank_of(call, "x", 4, 4)
    x, shape, w = call["x"].shape, call.attr("shape"), _window(call)
    if len(shape) != 2 or min(shape) < 0:
        raise call.attr_error(f"shape is {list(shape)}, must be the image's two extents")
    H, W = shape
    wanted = (-(-H // w) * -(-W // w), w, w)
    if x[:3] != wanted:
        raise call.shape_error(f"x is {list(x)}, must begin with {list(wanted)} for an image of {[H, W]}")
    return (H, W, x[3])


@op(
    shape=_merged,
    dtype=like("x"),
    work=per_element(0),
    accepts={"x": (f32,)},
    tolerance="E",
    priority="P2",
    stored=True,
    cases=[
        case(rand(6, 2, 2, 3), shape=(6, 4), window=2),
        case(rand(6, 3, 3, 3), shape=(5, 7), window=3),
        case(rand(1, 4, 4, 257), shape=(2, 3), window=4),
        case(values([[[[NAN], [INF]], [[-0.0], [1.0]]]]), shape=(2, 1), window=2),
        case(rand(1, 1, 1, 1), shape=(1, 1), window=1),
        case(rand(0, 2, 2, 3), shape=(0, 4), window=2),
        case(rand(5, 2, 2, 3), shape=(6, 4), window=2, raises=ShapeError),
        case(rand(6, 2, 3, 3), shape=(6, 4), window=2, raises=ShapeError),
        case(rand(6, 2, 2), shape=(6, 4), window=2, raises=ShapeError),
        case(rand(6, 2, 2, 3), shape=(6, 4, 3), window=2, raises=AttributeValueError),
        case(rand(6, 2, 2, 3), shape=(6, 4), window=-2, raises=AttributeValueError),
        case(rand(6, 2, 2, 3, dtype=f16), shape=(6, 4), window=2, raises=DTypeError),
    ],
)
def window_merge(x: Array, *, shape: Shape, window: int) -> Array:
    """Windows put together to the image they were cut from; cells beyond its edges are dropped.

    x: f32 (P, w, w, C), row by row. shape: (H, W) of the image. window: w. Returns: f32 (H, W, C).
    Raises: ShapeError where P is not the number of windows; AttributeValueError.
    """
    (H, W), w, C = shape, window, x.shape[-1]
    rows, columns = -(-H // w), -(-W // w)
    whole = x.reshape(rows, columns, w, w, C).swapaxes(1, 2).reshape(rows * w, columns * w, C)
    return whole[:H, :W]


def _relative(call: Call) -> Shape:
    rank_of(call, "table", 2, 2)
    n, keys, (rows, C) = call.attr("queries"), call.attr("keys"), call["table"].shape
    if n != keys or n < 1:
        raise call.attr_error(f"queries is {n} and keys {keys}: they must be equal and at least 1")
    if rows != 2 * n - 1:
        raise call.shape_error(f"table has {rows} rows, must have {2 * n - 1}, one a distance of {n} positions")
    return (n, n, C)


@op(
    shape=_relative,
    dtype=like("table"),
    work=per_element(0),
    accepts={"table": (f32, f16, bf16)},
    tolerance="E",
    priority="P2",
    stored=True,
    cases=[
        case(rand(5, 4), queries=3, keys=3),
        case(rand(33, 257), queries=17, keys=17),
        case(values([[NAN, -0.0], [INF, 1.0], [2.0, -INF]]), queries=2, keys=2),
        case(rand(1, 1), queries=1, keys=1),
        case(rand(5, 0), queries=3, keys=3),
        case(rand(6, 4), queries=3, keys=3, raises=ShapeError),
        case(rand(5), queries=3, keys=3, raises=ShapeError),
        case(rand(5, 4), queries=3, keys=4, raises=AttributeValueError),
        case(rand(5, 4), queries=0, keys=0, raises=AttributeValueError),
        case(ints(5, 4, high=9), queries=3, keys=3, raises=DTypeError),
    ],
)
def relative_positions(table: Array, *, queries: int, keys: int) -> Array:
    """The row of a table for each pair of positions: y[q, k] = table[q - k + n - 1].

    table: f32, f16 or bf16 (2n-1, C), row n-1 for the same position. queries, keys: both n.
    Returns: dtype of table (n, n, C), the same bits. Raises: ShapeError, AttributeValueError.
    """
    n = queries
    return table[np.arange(n)[:, None] - np.arange(keys) + n - 1]


def _biased(call: Call) -> Shape:
    x, width, height = call["x"], call["width"], call["height"]
    rank_of(call, "width", 4, 4)
    B, qh, qw, n = width.shape
    if height.shape != width.shape or x.shape != (B, qh * qw, n * n):
        raise call.shape_error(
            f"x is {list(x.shape)}, width {list(width.shape)}, height {list(height.shape)}: width and height must be "
            "[B, qh, qw, n], x [B, qh*qw, n*n]"
        )
    return x.shape


def _sums_rounded(arrays: Mapping[str, Array | None], _: Mapping[str, Attr]) -> Array:
    """Two additions, of which the first may be rounded."""
    x, width, height = (np.abs(array) for array in arrays.values() if array is not None)
    return add_relative_positions.body(x, width, height) * 2.0**-23


@op(
    shape=_biased,
    dtype=like("x"),
    work=per_element(2),
    accepts={"x": (f32,), "width": (f32,), "height": (f32,)},
    inplace=("x",),
    tolerance="A",
    slack=_sums_rounded,
    priority="P2",
    cases=[
        case(rand(2, 6, 16), rand(2, 2, 3, 4), rand(2, 2, 3, 4)),
        case(rand(1, 33, 9), rand(1, 3, 11, 3), rand(1, 3, 11, 3)),
        case(rand(1, 1, 256), rand(1, 1, 1, 16), rand(1, 1, 1, 16)),
        case(values([[[1.0, NAN, INF, -INF]]]), values([[[[1.0, INF]]]]), values([[[[-INF, 2.0]]]])),
        case(rand(1, 1, 1), rand(1, 1, 1, 1), rand(1, 1, 1, 1)),
        case(rand(0, 6, 16), rand(0, 2, 3, 4), rand(0, 2, 3, 4)),
        case(rand(2, 6, 12), rand(2, 2, 3, 4), rand(2, 2, 3, 3), raises=ShapeError),
        case(rand(2, 6, 12), rand(2, 2, 3, 4), rand(2, 2, 3, 4), raises=ShapeError),
        case(rand(2, 6, 16), rand(2, 6, 4), rand(2, 6, 4), raises=ShapeError),
        case(rand(2, 6, 16, dtype=f16), rand(2, 2, 3, 4), rand(2, 2, 3, 4), raises=DTypeError),
    ],
)
def add_relative_positions(x: Array, width: Array, height: Array) -> Array:
    """Scores plus what the distances of rows and of columns say: x[b, q, kh*n + kw] + height[b,q,kh] + width[b,q,kw].

    x: f32 (B, qh*qw, n*n). width, height: f32 (B, qh, qw, n). Returns: f32, shape of x. Raises: ShapeError.
    """
    B, qh, qw, n = width.shape
    scores = x.reshape(B, qh, qw, n, n) + height[..., None] + width[..., None, :]
    return scores.reshape(x.shape)
