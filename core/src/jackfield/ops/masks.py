"""Triangles and diagonals of the last two axes."""

from __future__ import annotations

import numpy as np

from jackfield.dtypes import f16, f32
from jackfield.errors import AttributeValueError, DTypeError, ShapeError
from jackfield.op import Array, Call, case, op, rand, values
from jackfield.ops.elementwise import INF, NAN
from jackfield.rules import like, per_element, rank_of, same_as
from jackfield.spec import Shape

_ACCEPTS = {"x": (f32,)}
_COPY = per_element(0)


def _spread(call: Call) -> Shape:
    x = call["x"]
    rank_of(call, "x", 1)
    if x.rank > 1 and x.shape[-2] != 1:
        raise call.shape_error(f"x is {list(x.shape)}, must be (n,) or (..., 1, n): one row a diagonal")
    return (*x.shape[:-2], x.shape[-1], x.shape[-1])


@op(
    shape=_spread,
    dtype=like("x"),
    work=_COPY,
    accepts=_ACCEPTS,
    tolerance="E",
    stored=True,
    priority="P1",
    cases=[
        case(rand(5)),
        case(rand(2, 3, 1, 4)),
        case(rand(1, 257)),
        case(values([[NAN, INF, -INF, -0.0, 1e-40]])),
        case(rand(1)),
        case(rand(0)),
        case(rand(0, 1, 4)),
        case(rand(3, 4), raises=ShapeError),
        case(rand(2, 2, 3, 1, 4), raises=ShapeError),
        case(rand(), raises=ShapeError),
        case(rand(5, dtype=f16), raises=DTypeError),
    ],
)
def diag(x: Array) -> Array:
    """Zeros with the row x on the diagonal.

    x: f32 (n,) or (..., 1, n). Returns: f32 (..., n, n), the same bits. Raises: ShapeError, DTypeError.
    """
    n = x.shape[-1]
    y = np.zeros((*x.shape[:-2], n, n), x.dtype)
    y[..., np.arange(n), np.arange(n)] = x[..., 0, :] if x.ndim > 1 else x
    return y


def _square(call: Call) -> None:
    shape = call["x"].shape
    rank_of(call, "x", 2)
    if shape[-1] != shape[-2]:
        raise call.shape_error(f"x is {list(shape)}, its last two extents must be equal")


_triangle = op(
    shape=same_as("x"),
    dtype=like("x"),
    work=_COPY,
    accepts=_ACCEPTS,
    tolerance="E",
    stored=True,
    inplace=("x",),
    priority="P1",
    check=_square,
    cases=[
        case(rand(5, 5)),
        case(rand(2, 3, 4, 4), k=1),
        case(rand(33, 33), k=-1),
        case(rand(3, 257, 257), k=-100),
        case(rand(3, 3), k=-9),
        case(rand(3, 3), k=2**40),
        case(values([[NAN, INF, -0.0], [NAN, -INF, NAN], [-0.0, 1e-40, NAN]])),
        case(rand(1, 1)),
        case(rand(2, 0, 0)),
        case(rand(0, 3, 3)),
        case(rand(3, 4), raises=ShapeError),
        case(rand(5), raises=ShapeError),
        case(rand(1, 1, 1, 3, 3), raises=ShapeError),
        case(rand(3, 3), k=0.5, raises=AttributeValueError),
        case(rand(3, 3, dtype=f16), raises=DTypeError),
    ],
)


def _ahead(shape: Shape) -> Array:
    """How far each column lies right of the diagonal: column - row, for the last two axes."""
    return np.arange(shape[-1]) - np.arange(shape[-2])[:, None]


@_triangle
def tril(x: Array, *, k: int = 0) -> Array:
    """The triangle below and on the diagonal, or the one k columns right of it; all else is 0.

    x: f32 (..., n, n). Returns: shape of x, the same bits; what is cut away is set to 0, NaN too. Raises: ShapeError.
    """
    return np.where(_ahead(x.shape) <= k, x, np.float32(0))


@_triangle
def triu(x: Array, *, k: int = 0) -> Array:
    """The triangle above and on the diagonal, or the one k columns right of it; all else is 0.

    x: f32 (..., n, n). Returns: shape of x, the same bits; what is cut away is set to 0, NaN too. Raises: ShapeError.
    """
    return np.where(_ahead(x.shape) >= k, x, np.float32(0))


@op(
    shape=same_as("x"),
    dtype=like("x"),
    work=_COPY,
    accepts=_ACCEPTS,
    tolerance="E",
    stored=True,
    inplace=("x",),
    priority="P1",
    check=lambda call: rank_of(call, "x", 2),
    infinite=("fill",),
    cases=[
        case(rand(5, 5)),
        case(rand(2, 3, 4, 7), past=3),
        case(rand(7, 3), past=1, fill=0.0),
        case(rand(3, 257), past=100, fill=-1e9),
        case(rand(3, 5), past=-2, fill=NAN),
        case(rand(3, 5), past=2**40),
        case(values([[NAN, NAN, INF], [-0.0, 1e-40, NAN]])),
        case(rand(1, 1)),
        case(rand(0, 5)),
        case(rand(5, 0)),
        case(rand(5), raises=ShapeError),
        case(rand(1, 1, 1, 3, 3), raises=ShapeError),
        case(rand(3, 3), past=1.0, raises=AttributeValueError),
        case(rand(3, 3, dtype=f16), raises=DTypeError),
    ],
)
def causal_mask(x: Array, *, past: int = 0, fill: float = -INF) -> Array:
    """x with `fill` in the columns that come after a row: row r sees the columns up to past + r.

    x: f32 (..., m, n). past: columns that come before the first row's own.
    Returns: shape of x, elsewhere the same bits. Raises: ShapeError.
    """
    return np.where(_ahead(x.shape) > past, np.float32(fill), x)
