"""Gated units: an activated half times a linear half, from two operands or from one twice as wide."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jackfield.draws import UnboundCase
from jackfield.errors import AttributeValueError, DTypeError, ShapeError
from jackfield.graph import Attr
from jackfield.op import Array, Call, Check, Op, Priority, Slack, case, op, rand, values
from jackfield.ops.activations import gelu, gelu_erf, gelu_quick, relu, silu
from jackfield.ops.elementwise import INF, NAN
from jackfield.rules import F, all_of, like, per_element, rank_of
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


_LOST = 1e-6  # as much of the activated half a device need not have: what class T allows of the activation alone


def _half_may_be_lost(activation: Op) -> Slack:
    """Where the activated half is so small, the product may be 0, however large the linear half is."""

    def slack(arrays: Mapping[str, Array | None], attrs: Mapping[str, Attr]) -> Array:
        g, u = _given_halves(arrays, attrs)
        half = np.abs(activation.body(g))
        return np.where((half <= _LOST) & np.isfinite(u), half * np.abs(u), 0)

    return slack


def _lost_times_inf(activation: Op) -> Slack:
    """Where the linear half is infinite, the product is NaN if the activated half is lost, else infinite."""

    def nan_too(arrays: Mapping[str, Array | None], attrs: Mapping[str, Attr]) -> Array:
        g, u = _given_halves(arrays, attrs)
        return (np.abs(activation.body(g)) <= _LOST) & (g != 0) & np.isinf(u)

    return nan_too


def _given_halves(arrays: Mapping[str, Array | None], attrs: Mapping[str, Attr]) -> tuple[Array, Array]:
    gate = arrays["gate"]
    assert gate is not None
    return _halves(gate, arrays["up"], swapped=bool(attrs["swapped"]))


_NASTY = (
    values([1e9, INF, -100.0, -INF, NAN, 0.0, 3.0, 1.0, -104.0, -104.0, -90.0]),
    values([1e9, -INF, 3.0, 3.0, 1.0, INF, NAN, 1.0, INF, 3e38, -INF]),
)


def _cases(**attrs: Any) -> list[UnboundCase]:
    """The cases of every gated unit, with these attributes."""
    return [
        case(rand(3, 5, low=-4, high=4), rand(3, 5), **attrs),
        case(rand(3, 10, low=-4, high=4), **attrs),
        case(rand(2, 3, 514, low=-4, high=4), swapped=True, **attrs),
        case(*_NASTY, **attrs),
        case(rand(4, 1), rand(4, 1), **attrs),
        case(rand(0, 6), **attrs),
        case(rand(2, 3, 1, 256), rand(2, 3, 1, 256), **attrs),
        case(rand(3, 5), raises=ShapeError, **attrs),
        case(rand(3, 1), raises=ShapeError, **attrs),
        case(rand(3, 5), rand(3, 4), raises=ShapeError, **attrs),
        case(rand(3, 4), rand(3, 4), swapped=True, raises=AttributeValueError, **attrs),
        case(rand(3, dtype=F[0]), rand(3, dtype=F[1]), raises=DTypeError, **attrs),
    ]


def _unit(
    multiply_adds: int,
    cases: Sequence[UnboundCase],
    *,
    priority: Priority = "P0",
    check: Check = _halves_fit,
    activation: Op | None = None,
) -> Callable[[Callable[..., Any]], Op]:
    return op(
        shape=_shape,
        dtype=like("gate"),
        work=per_element(multiply_adds),
        accepts={"gate": F, "up": F},
        check=check,
        inplace=("gate",),
        tolerance="T",
        slack=None if activation is None else _half_may_be_lost(activation),
        nan_too=None if activation is None else _lost_times_inf(activation),
        priority=priority,
        cases=cases,
    )


@_unit(10, _cases(), activation=silu)
def swiglu(gate: Array, up: Array | None = None, *, swapped: bool = False) -> Array:
    """silu(g) * u.

    gate: f32, f16 or bf16 (..., n), the part that is activated.
    up: like gate, the linear part. Absent: gate is (..., 2n), its first half is activated, with `swapped` its second.
    Returns: (..., n) in the dtype of gate. Raises: ShapeError, DTypeError; AttributeValueError for swapped with up.
    Source: Shazeer 2020, "GLU variants improve transformer".
    """
    g, u = _halves(gate, up, swapped=swapped)
    return np.asarray(silu.body(g) * u)


@_unit(10, _cases(), activation=gelu)
def geglu(gate: Array, up: Array | None = None, *, swapped: bool = False) -> Array:
    """gelu(g) * u with the tanh form of gelu.

    gate: f32, f16 or bf16 (..., n), the part that is activated.
    up: like gate, the linear part. Absent: gate is (..., 2n), its first half is activated, with `swapped` its second.
    Returns: (..., n) in the dtype of gate. Raises: ShapeError, DTypeError; AttributeValueError for swapped with up.
    Source: Shazeer 2020, "GLU variants improve transformer".
    """
    g, u = _halves(gate, up, swapped=swapped)
    return np.asarray(gelu.body(g) * u)


@_unit(10, _cases(), activation=gelu_erf)
def geglu_erf(gate: Array, up: Array | None = None, *, swapped: bool = False) -> Array:
    """gelu_erf(g) * u: the exact form of gelu.

    gate: f32, f16 or bf16 (..., n), the part that is activated.
    up: like gate, the linear part. Absent: gate is (..., 2n), its first half is activated, with `swapped` its second.
    Returns: (..., n) in the dtype of gate. Raises: ShapeError, DTypeError; AttributeValueError for swapped with up.
    Source: Shazeer 2020, "GLU variants improve transformer".
    """
    g, u = _halves(gate, up, swapped=swapped)
    return np.asarray(gelu_erf.body(g) * u)


@_unit(10, _cases(), activation=gelu_quick, priority="P1")
def geglu_quick(gate: Array, up: Array | None = None, *, swapped: bool = False) -> Array:
    """gelu_quick(g) * u: the sigmoid form of gelu.

    gate: f32, f16 or bf16 (..., n), the part that is activated.
    up: like gate, the linear part. Absent: gate is (..., 2n), its first half is activated, with `swapped` its second.
    Returns: (..., n) in the dtype of gate. Raises: ShapeError, DTypeError; AttributeValueError for swapped with up.
    Source: Shazeer 2020, "GLU variants improve transformer".
    """
    g, u = _halves(gate, up, swapped=swapped)
    return np.asarray(gelu_quick.body(g) * u)


@_unit(10, _cases(), priority="P1")
def reglu(gate: Array, up: Array | None = None, *, swapped: bool = False) -> Array:
    """relu(g) * u.

    gate: f32, f16 or bf16 (..., n), the part that is activated.
    up: like gate, the linear part. Absent: gate is (..., 2n), its first half is activated, with `swapped` its second.
    Returns: (..., n) in the dtype of gate. Raises: ShapeError, DTypeError; AttributeValueError for swapped with up.
    Source: Shazeer 2020, "GLU variants improve transformer".
    """
    g, u = _halves(gate, up, swapped=swapped)
    return np.asarray(relu.body(g) * u)


def _limit_clamps(call: Call) -> None:
    limit = call.attr("limit")
    if not 0 < limit < math.inf:
        raise call.attr_error(f"limit is {limit}, must be above 0 and finite; a unit without a clamp is swiglu")


_clamped_cases = [
    case(rand(3, 257, low=-9, high=9), rand(3, 257, low=-9, high=9), limit=2.5),
    *(case(rand(3, 4), limit=wrong, raises=AttributeValueError) for wrong in (0.0, -7.0, INF, NAN)),
]


@_unit(
    12,
    [*_cases(), *_clamped_cases, case(rand(3, 6, low=-9, high=9), alpha=1.0, swapped=True)],
    priority="P1",
    check=all_of(_halves_fit, _limit_clamps),
)
def swiglu_oai(
    gate: Array, up: Array | None = None, *, swapped: bool = False, alpha: float = 1.702, limit: float = 7.0
) -> Array:
    """g * sigmoid(alpha * g) * (u + 1), where g is kept below `limit` and u between its negative and itself.

    gate: f32, f16 or bf16 (..., n), the part that is activated.
    up: like gate, the linear part. Absent: gate is (..., 2n), its first half is activated, with `swapped` its second.
    limit: above 0, finite. Returns: (..., n) in the dtype of gate; NaN stays, -inf in g gives NaN.
    Raises: ShapeError, DTypeError; AttributeValueError for swapped with up, or a limit out of its range.
    Source: OpenAI 2025, "gpt-oss-120b and gpt-oss-20b model card", section 2.2.
    """
    g, u = _halves(gate, up, swapped=swapped)
    g, u = np.minimum(g, limit), np.clip(u, -limit, limit)
    return np.asarray(g / (1 + np.exp(-alpha * g)) * (u + 1))


@_unit(
    12,
    [*_cases(limit=7.0), *_clamped_cases, case(rand(3, 4), raises=AttributeValueError)],
    priority="P1",
    check=all_of(_halves_fit, _limit_clamps),
)
def swiglu_clamp(gate: Array, up: Array | None = None, *, swapped: bool = False, limit: float) -> Array:
    """silu(g) * u, where g is kept below `limit` and u between its negative and itself, both before silu.

    gate: f32, f16 or bf16 (..., n), the part that is activated.
    up: like gate, the linear part. Absent: gate is (..., 2n), its first half is activated, with `swapped` its second.
    limit: above 0, finite. Returns: (..., n) in the dtype of gate; NaN stays, -inf in g gives NaN.
    Raises: ShapeError, DTypeError; AttributeValueError for swapped with up, or a limit out of its range.
    Source: Shazeer 2020, "GLU variants improve transformer", for the unit without its clamp.
    """
    g, u = _halves(gate, up, swapped=swapped)
    return np.asarray(silu.body(np.minimum(g, limit)) * np.clip(u, -limit, limit))
