"""Reductions and searches along one axis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jackfield.dtypes import DType, f16, f32, i32, i64
from jackfield.errors import AttributeValueError, DTypeError, ShapeError
from jackfield.op import Array, Call, case, ints, op, rand, values
from jackfield.ops.elementwise import INF, NAN
from jackfield.rules import F, always, axis_of, countable, like, per_operand_element, rank_of, same_as
from jackfield.spec import Shape

_TIES = values([[0.0, 2.0, -0.0, 2.0, -1.0], [-INF, INF, INF, 1.0, -INF], [3.0, NAN, 5.0, NAN, 5.0]])


def _reduced(call: Call) -> Shape:
    shape = call["x"].shape
    keep = call.attr("keepdims")
    if call.attr("axis") is None:
        return (1,) * len(shape) if keep else ()
    if not shape:
        raise call.shape_error("x has no axis: use axis=None")
    axis = axis_of(call, len(shape))
    return (*shape[:axis], *([1] if keep else []), *shape[axis + 1 :])


def _reduced_dtype(call: Call) -> DType:
    return f32 if call.attr("axis") is None else call["x"].dtype


def _something_to_average(call: Call) -> None:
    shape = call["x"].shape
    axis = call.attr("axis")
    count = call["x"].size if axis is None else shape[axis_of(call, len(shape))] if shape else 1
    if count == 0:
        raise call.shape_error(f"x is {list(shape)}: an average needs at least one element, axis is {axis}")


_REDUCTIONS = (
    case(rand(3, 5)),
    case(rand(2, 3, 257), keepdims=True),
    case(rand(2, 3, 4, 5), axis=1),
    case(rand(2, 3, 4, 5), axis=-2, keepdims=True),
    case(rand(3, 256, low=0, high=1), axis=None),
    case(rand(2, 3), axis=None, keepdims=True),
    case(rand(2, 5000, low=0, high=1)),
    case(values([[1.0, INF, 2.0], [INF, -INF, 0.0], [NAN, 1.0, 2.0], [-INF, 1.0, 2.0]])),
    case(rand(0, 4)),
    case(rand(), axis=None),
    case(rand(3, 5), axis=2, raises=AttributeValueError),
    case(rand(3, 5), axis="rows", raises=AttributeValueError),
    case(ints(3, 5, high=4), raises=DTypeError),
    case(rand(), raises=ShapeError),
)


@op(
    shape=_reduced,
    dtype=_reduced_dtype,
    work=per_operand_element("x", 1),
    accepts={"x": F},
    tolerance="R",
    cases=[*_REDUCTIONS, case(rand(4, 0)), case(rand(4, 0), axis=None)],
)
def sum(x: Array, *, axis: int | None = -1, keepdims: bool = False) -> Array:
    """The sum along one axis; of nothing it is 0.

    x: f32, f16 or bf16. axis: None sums all elements. keepdims: summed axes stay with extent 1.
    Returns: f32 for axis None, else the dtype of x.
    """
    return np.asarray(np.sum(x, axis=axis, keepdims=keepdims))


@op(
    shape=_reduced,
    dtype=_reduced_dtype,
    work=per_operand_element("x", 1),
    accepts={"x": F},
    tolerance="R",
    check=_something_to_average,
    cases=[*_REDUCTIONS, case(rand(4, 0), raises=ShapeError), case(rand(4, 0), axis=None, raises=ShapeError)],
)
def mean(x: Array, *, axis: int | None = -1, keepdims: bool = False) -> Array:
    """The sum along one axis divided by its extent.

    x: f32, f16 or bf16. axis: None takes all elements. keepdims: the axes stay with extent 1.
    Returns: f32 for axis None, else the dtype of x. Raises: ShapeError for an average of nothing.
    """
    count = x.size if axis is None else x.shape[axis]
    return np.asarray(np.sum(x, axis=axis, keepdims=keepdims) / count)


def _without_axis(call: Call) -> Shape:
    shape = call["x"].shape
    rank_of(call, "x", 1)
    axis = axis_of(call, len(shape))
    if shape[axis] == 0:
        raise call.shape_error(f"x is {list(shape)}: the largest of nothing does not exist, axis is {axis}")
    countable(call, f"elements on axis {axis}", shape[axis])
    return (*shape[:axis], *shape[axis + 1 :])


@op(
    shape=_without_axis,
    dtype=always(i32),
    work=per_operand_element("x", 1),
    accepts={"x": F},
    tolerance="E",
    stored=True,
    cases=[
        case(rand(3, 5)),
        case(_TIES),
        case(rand(2, 3, 257)),
        case(rand(2, 3, 4), axis=0),
        case(rand(7, 1)),
        case(rand(0, 4)),
        case(values([-INF, -INF])),
        case(rand(4, 0), raises=ShapeError),
        case(rand(), raises=ShapeError),
        case(rand(4, 3), axis=-3, raises=AttributeValueError),
        case(rand(2**31, 0), axis=0, raises=ShapeError),
    ],
)
def argmax(x: Array, *, axis: int = -1) -> Array:
    """The index of the maximum along one axis: the first of equals; the first NaN if there is one.

    x: f32, f16 or bf16. Returns: i32 without that axis. Raises: ShapeError for an empty axis.
    """
    wide = x.astype(np.float32)  # exact for all three dtypes
    nan = np.isnan(wide)
    return np.where(nan.any(axis), nan.argmax(axis), np.where(nan, -np.inf, wide).argmax(axis))


def _rows_can_be_numbered(call: Call) -> None:
    rank_of(call, "x", 1)
    countable(call, "columns", call["x"].shape[-1])


@op(
    shape=lambda call: call["x"].shape,
    dtype=always(i32),
    work=per_operand_element("x", 16),
    accepts={"x": (f32,)},
    tolerance="E",
    stored=True,
    check=_rows_can_be_numbered,
    cases=[
        case(rand(3, 5)),
        case(_TIES),
        case(_TIES, descending=True),
        case(rand(2, 3, 257), descending=True),
        case(values([[1.0, NAN, -NAN, INF, -INF, 0.0, -0.0, 1.0]])),
        case(rand(7, 1)),
        case(rand(4, 0)),
        case(rand(2, 256, low=0, high=1)),
        case(rand(), raises=ShapeError),
        case(rand(0, 2**31), raises=ShapeError),
        case(rand(3, 5), descending=1, raises=AttributeValueError),
        case(ints(3, high=9), raises=DTypeError),
    ],
)
def argsort(x: Array, *, descending: bool = False) -> Array:
    """The indices that sort the last axis: ties by lower index, NaN last in both directions, -0 equal to +0.

    x: f32 (..., n). descending: the largest comes first. Returns: i32 (..., n).
    """
    return np.argsort(-x if descending else x, axis=-1, kind="stable")


def _k_fits(call: Call) -> None:
    _rows_can_be_numbered(call)
    k, n = call.attr("k"), call["x"].shape[-1]
    if not 1 <= k <= n:
        raise call.attr_error(f"k is {k}, must be 1 to {n}, the last extent of x")


@op(
    shape=lambda call: (*call["x"].shape[:-1], call.attr("k")),
    dtype=always(i32),
    work=per_operand_element("x", 4),
    accepts={"x": (f32,)},
    tolerance="E",
    stored=True,
    check=_k_fits,
    cases=[
        case(rand(3, 5), k=2),
        case(_TIES, k=3),
        case(_TIES, k=5),
        case(rand(2, 3, 257), k=40),
        case(rand(7, 1), k=1),
        case(rand(0, 4), k=4),
        case(rand(3, 5), k=0, raises=AttributeValueError),
        case(rand(3, 5), k=6, raises=AttributeValueError),
        case(rand(0, 2**31), k=1, raises=ShapeError),
        case(rand(3, 5), k=2.0, raises=AttributeValueError),
        case(rand(), k=1, raises=ShapeError),
    ],
)
def top_k(x: Array, *, k: int) -> Array:
    """The indices of the k largest elements of the last axis, in any order; here the largest comes first.

    x: f32 (..., n); NaN counts as smallest. Returns: i32 (..., k), distinct within a row. Which of equal elements are
    taken is left open. Raises: AttributeValueError unless 1 <= k <= n.
    """
    return np.argsort(-x, axis=-1, kind="stable")[..., :k]


def _prefix_rounded(arrays: Mapping[str, Array | None], attrs: Mapping[str, Any]) -> Array:
    """Every sum on the way is rounded, by a share of what was added up so far."""
    return 1e-5 * np.cumsum(np.abs(np.asarray(arrays["x"])), axis=attrs["axis"])


def _axis_is_there(call: Call) -> None:
    rank_of(call, "x", 1)
    axis_of(call, call["x"].rank)


@op(
    shape=same_as("x"),
    dtype=like("x"),
    work=per_operand_element("x", 1),
    accepts={"x": (f32,)},
    tolerance="R",
    slack=_prefix_rounded,
    priority="P1",
    check=_axis_is_there,
    cases=[
        case(rand(3, 5)),
        case(rand(2, 3, 257, low=0, high=1)),
        case(rand(2, 3, 4, 5), axis=1),
        case(rand(2, 3, 4, 5), axis=-4),
        case(rand(2, 5000)),
        case(values([[1.0, INF, 2.0, 3.0], [INF, 1.0, -INF, 0.0], [1.0, NAN, 2.0, 3.0], [1e30, 1.0, -1e30, 1.0]])),
        case(rand(7, 1)),
        case(rand(0, 4)),
        case(rand(4, 0)),
        case(rand(255)),
        case(rand(3, 5), axis=2, raises=AttributeValueError),
        case(rand(3, 5), axis=None, raises=AttributeValueError),
        case(rand(), raises=ShapeError),
        case(rand(3, 5, dtype=f16), raises=DTypeError),
    ],
)
def cumsum(x: Array, *, axis: int = -1) -> Array:
    """Along one axis, the sum of each element and all before it.

    x: f32, at least one axis. Returns: f32, shape of x. Raises: ShapeError, AttributeValueError.
    """
    return np.cumsum(x, axis=axis)


def _equal_shapes(call: Call) -> Shape:
    a, b = call["a"].shape, call["b"].shape
    if a != b:
        raise call.shape_error(f"a is {list(a)} and b {list(b)}: they must have one shape")
    return ()


@op(
    shape=_equal_shapes,
    dtype=always(i64),
    work=per_operand_element("a", 1),
    accepts={"a": (i32,), "b": (i32,)},
    tolerance="E",
    priority="P2",
    cases=[
        case(ints(3, 5, high=3), ints(3, 5, high=3)),
        case(ints(2, 3, 1, 257, high=2), ints(2, 3, 1, 257, high=2)),
        case(rand(2, 256), rand(2, 256)),
        case(values([2**31 - 1, -(2**31), 16777217, 0], dtype=i32), values([2**31 - 1, 2**31 - 1, 16777216, 0], i32)),
        case(ints(high=1), ints(high=1)),
        case(ints(0, 4, high=3), ints(0, 4, high=3)),
        case(ints(3, 5, high=3), ints(5, high=3), raises=ShapeError),
        case(ints(3, 5, high=3), ints(3, 5, high=3, dtype=i64), raises=DTypeError),
        case(rand(3, dtype=f32), rand(3, dtype=f32), raises=DTypeError),
    ],
)
def count_equal(a: Array, b: Array) -> Array:
    """In how many places two tensors hold the same number.

    a, b: i32 of one shape. Returns: i64 (). Raises: ShapeError, DTypeError.
    """
    return np.asarray(np.count_nonzero(a == b), np.int64)
