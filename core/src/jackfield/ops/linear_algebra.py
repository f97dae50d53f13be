"""Systems of linear equations."""

from __future__ import annotations

import numpy as np

from jackfield.dtypes import f16, f32
from jackfield.errors import AttributeValueError, DTypeError, ShapeError
from jackfield.op import Array, Call, Draw, Work, case, op, rand, values
from jackfield.ops.elementwise import INF, NAN
from jackfield.rules import like, rank_of, touched
from jackfield.spec import Shape, Spec


def _solved(call: Call) -> Shape:
    rank_of(call, "a", 2)
    rank_of(call, "b", 2)
    a, b = call["a"].shape, call["b"].shape
    if a[-1] != a[-2]:
        raise call.shape_error(f"a is {list(a)}, its last two extents must be equal")
    axis = -2 if call.attr("left") else -1
    if a[:-2] != b[:-2] or b[axis] != a[-1]:
        raise call.shape_error(
            f"a is {list(a)} and b {list(b)}: leading extents must be equal, and axis {axis} of b must have {a[-1]}"
        )
    return b


def _work(call: Call, result: Spec) -> Work:
    """Half of a's elements for each column of b."""
    n = call["a"].shape[-1]
    return Work(result.size * (n + 1) // 2, touched(call, result))


# Entries that hardly differ keep the system well conditioned at every size: its inverse is nearly two diagonals.
def _even(*shape: int) -> Draw:
    return rand(*shape, low=2.0, high=2.1)


_UPPER_NAN = [[2.0, NAN, NAN], [1.0, -4.0, INF], [0.5, 1.0, 2.0]]


@op(
    shape=_solved,
    dtype=like("b"),
    work=_work,
    accepts={"a": (f32,), "b": (f32,)},
    inplace=("b",),
    tolerance="R",
    priority="P1",
    rare={"lower": (False,), "unit_diagonal": (True,), "left": (False,)},
    cases=[
        case(_even(2, 5, 5), rand(2, 5, 3)),
        case(_even(33, 33), rand(33, 257)),
        case(_even(2, 3, 64, 64), rand(2, 3, 64, 1)),
        case(values(_UPPER_NAN), rand(3, 4)),
        case(values([[2.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 1.0, 2.0]]), values([[1.0], [2.0], [3.0]])),
        case(rand(7, 7, low=-0.1, high=0.1), rand(7, 3), unit_diagonal=True),
        case(values([[NAN, 0.5], [NAN, NAN]]), rand(2, 3), lower=False, unit_diagonal=True),
        case(_even(2, 5, 5), rand(2, 5, 3), lower=False),
        case(_even(2, 5, 5), rand(2, 3, 5), left=False),
        case(_even(5, 5), rand(3, 5), lower=False, left=False),
        case(_even(1, 1), rand(1, 1)),
        case(rand(0, 0), rand(0, 3)),
        case(_even(5, 5), rand(5, 0)),
        case(rand(0, 5, 5), rand(0, 5, 3)),
        case(rand(5, 4), rand(5, 3), raises=ShapeError),
        case(rand(5, 5), rand(4, 3), raises=ShapeError),
        case(rand(5, 5), rand(5, 3), left=False, raises=ShapeError),
        case(rand(2, 5, 5), rand(5, 3), raises=ShapeError),
        case(rand(5), rand(5, 3), raises=ShapeError),
        case(rand(5, 5), rand(5), raises=ShapeError),
        case(rand(5, 5), rand(5, 3), lower=1, raises=AttributeValueError),
        case(rand(5, 5, dtype=f16), rand(5, 3), raises=DTypeError),
    ],
)
def solve_triangular(
    a: Array, b: Array, *, lower: bool = True, unit_diagonal: bool = False, left: bool = True
) -> Array:
    """X with a X = b, row after row, where one triangle of a is taken as zeros and not read.

    a: f32 (..., n, n), well conditioned if the result shall mean something. b: f32 (..., n, m), the same leading axes.
    lower: the triangle on and below the diagonal counts, else the one on and above it.
    unit_diagonal: the diagonal is taken as ones and not read. left: else X a = b, with b (..., m, n).
    Returns: f32, shape of b; a zero on the diagonal gives inf or NaN. Raises: ShapeError.
    """
    if not left:
        a, b, lower = a.swapaxes(-1, -2), b.swapaxes(-1, -2), not lower
    n = a.shape[-1]
    x = b.copy()
    for i in range(n) if lower else reversed(range(n)):
        done = slice(0, i) if lower else slice(i + 1, n)
        x[..., i, :] -= np.einsum("...k,...km->...m", a[..., i, done], x[..., done, :])
        if not unit_diagonal:
            x[..., i, :] /= a[..., i, i, None]
    return x if left else x.swapaxes(-1, -2)
