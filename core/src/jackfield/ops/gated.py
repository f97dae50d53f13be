"""Gated units: an activated half times a linear half, from two operands or from one twice as wide."""

from __future__ import annotations

import numpy as np

from jackfield.errors import AttributeValueError, DTypeError, ShapeError
from jackfield.op import Array, Call, case, op, rand, values
from jackfield.ops.elementwise import INF, NAN, gelu, gelu_erf, silu
from jackfield.rules import F, like, per_element, rank_of
from jackfield.spec import Shape


def _halves_fit(call: Call) -> None:
    gate, up = call["gate"], call.get("up")
    rank_of(call, "gate", 1)
    if up is None:
        if gate.shape[-1] % 2:
            raise call.shape_error(f"gate is {list(gate.shape)} and holds both halves: its last extent must be even")
        return
    if call.attr("swapped"):
        raise call.attr_error("swapped is True and up is given: swapped says which half of one operand is activated")
    if gate.shape != up.shape:
        raise call.shape_error(f"gate is {list(gate.shape)} and up {list(up.shape)}: they must have one shape")
    if gate.dtype is not up.dtype:
        raise call.dtype_error(f"gate is {gate.dtype} and up {up.dtype}: they must have one dtype")


def _shape(call: Call) -> Shape:
    shape = call["gate"].shape
    return shape if call.get("up") is not None else (*shape[:-1], shape[-1] // 2)


def _halves(gate: Array, up: Array | None, *, swapped: bool) -> tuple[Array, Array]:
    """The activated and the linear part."""
    if up is not None:
        return gate, up
    n = gate.shape[-1] // 2
    first, second = gate[..., :n], gate[..., n:]
    return (second, first) if swapped else (first, second)


_NASTY = values([1e9, INF, -100.0, -INF, NAN, 0.0, 3.0, 1.0]), values([1e9, -INF, 3.0, 3.0, 1.0, INF, NAN, 1.0])
_CASES = (
    case(rand(3, 5, low=-4, high=4), rand(3, 5)),
    case(rand(3, 10, low=-4, high=4)),
    case(rand(2, 3, 514, low=-4, high=4), swapped=True),
    case(*_NASTY),
    case(rand(4, 1), rand(4, 1)),
    case(rand(0, 6)),
    case(rand(2, 3, 1, 256), rand(2, 3, 1, 256)),
    case(rand(3, 5), raises=ShapeError),
    case(rand(3, 1), raises=ShapeError),
    case(rand(3, 5), rand(3, 4), raises=ShapeError),
    case(rand(3, 4), rand(3, 4), swapped=True, raises=AttributeValueError),
    case(rand(3, dtype=F[0]), rand(3, dtype=F[1]), raises=DTypeError),
)
_gated = op(
    shape=_shape,
    dtype=like("gate"),
    work=per_element(10),
    accepts={"gate": F, "up": F},
    check=_halves_fit,
    inplace=("gate",),
    tolerance="T",
    cases=_CASES,
)


@_gated
def swiglu(gate: Array, up: Array | None = None, *, swapped: bool = False) -> Array:
    """silu(g) * u.

    gate: f32, f16 or bf16 (..., n), the part that is activated.
    up: like gate, the linear part. Absent: gate is (..., 2n), its first half is activated, with `swapped` its second.
    Returns: (..., n) in the dtype of gate. Raises: ShapeError, DTypeError; AttributeValueError for swapped with up.
    Source: Shazeer 2020, "GLU variants improve transformer".
    """
    g, u = _halves(gate, up, swapped=swapped)
    return np.asarray(silu.body(g) * u)


@_gated
def geglu(gate: Array, up: Array | None = None, *, swapped: bool = False) -> Array:
    """gelu(g) * u with the tanh form of gelu.

    gate: f32, f16 or bf16 (..., n), the part that is activated.
    up: like gate, the linear part. Absent: gate is (..., 2n), its first half is activated, with `swapped` its second.
    Returns: (..., n) in the dtype of gate. Raises: ShapeError, DTypeError; AttributeValueError for swapped with up.
    Source: Shazeer 2020, "GLU variants improve transformer".
    """
    g, u = _halves(gate, up, swapped=swapped)
    return np.asarray(gelu.body(g) * u)


@_gated
def geglu_erf(gate: Array, up: Array | None = None, *, swapped: bool = False) -> Array:
    """gelu_erf(g) * u: the exact form of gelu.

    gate: f32, f16 or bf16 (..., n), the part that is activated.
    up: like gate, the linear part. Absent: gate is (..., 2n), its first half is activated, with `swapped` its second.
    Returns: (..., n) in the dtype of gate. Raises: ShapeError, DTypeError; AttributeValueError for swapped with up.
    Source: Shazeer 2020, "GLU variants improve transformer".
    """
    g, u = _halves(gate, up, swapped=swapped)
    return np.asarray(gelu_erf.body(g) * u)
