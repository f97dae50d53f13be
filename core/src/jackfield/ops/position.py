"""Rotary position embedding in all its layouts."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from jackfield.dtypes import f16, f32, i32
from jackfield.errors import AttributeValueError, DTypeError, ShapeError
from jackfield.graph import Attr
from jackfield.op import Array, Call, case, ints, op, rand, values
from jackfield.ops.elementwise import INF
from jackfield.rules import like, one_of, per_element, rank_of, same_as
from jackfield.spec import Shape

MULTI = ("mrope", "imrope", "vision")


def rope_fits(call: Call) -> None:
    """Shapes and attributes of rope and of its gradient, whose first operand has another name."""
    first = call.op.operands[0]
    x, positions, factors = call[first], call["positions"], call.get("frequency_factors")
    one_of(call, "mode", ("normal", "neox", *MULTI))
    rank_of(call, first, 3)
    T, _, D = x.shape[-3:]
    multi = call.attr("mode") in MULTI
    wanted = (4, T) if multi else (T,)
    if positions.shape != wanted:
        mode = call.attr("mode")
        raise call.shape_error(f"positions is {list(positions.shape)}, must be {list(wanted)} for mode {mode}")
    _check_dims(call, D)
    if multi:
        _check_sections(call)
    _check_numbers(call)
    pairs = call.attr("n_dims") if call.attr("mode") == "vision" else call.attr("n_dims") // 2
    if factors is not None and (factors.rank != 1 or factors.shape[0] < pairs):
        raise call.shape_error(f"frequency_factors is {list(factors.shape)}, must be at least [{pairs}], one a pair")


def _check_dims(call: Call, D: int) -> None:
    n, offset = call.attr("n_dims"), call.attr("offset")
    if call.attr("mode") == "vision" and (n * 2 != D or offset):
        raise call.attr_error(f"n_dims is {n} and offset {offset}: mode vision needs half of {D} and 0")
    if n % 2 or offset % 2 or n < 2 or offset < 0 or offset + n > D:
        raise call.attr_error(f"n_dims is {n} and offset {offset}: both must be even and end within {D} channels")


def _check_sections(call: Call) -> None:
    sections = call.attr("sections")
    if len(sections) != 4 or any(s < 0 for s in sections) or not any(sections[:3]):
        raise call.attr_error(f"sections is {list(sections)}: four numbers >= 0, the first three not all 0")


def _check_numbers(call: Call) -> None:
    for name in ("base", "scale"):
        if not 0 < call.attr(name) < math.inf:
            raise call.attr_error(f"{name} is {call.attr(name)}, must be above 0 and finite")
    if call.attr("ext_factor"):
        _check_blend(call)


def _check_blend(call: Call) -> None:
    """YaRN counts turns over a context, in logarithms."""
    if call.attr("original_context") <= 0:
        raise call.attr_error(f"original_context is {call.attr('original_context')}: ext_factor needs one above 0")
    for name in ("beta_fast", "beta_slow"):
        if not 0 < call.attr(name) < math.inf:
            raise call.attr_error(f"{name} is {call.attr(name)}: ext_factor needs one above 0 and finite")
    if call.attr("base") == 1:
        raise call.attr_error("base is 1: with ext_factor it must be another, all pairs turn equally fast")


def angle_digits(arrays: Mapping[str, Array | None], _: Mapping[str, Attr]) -> float:
    """Angles in f32 lose digits as positions grow."""
    x, positions = next(iter(arrays.values())), arrays["positions"]
    assert x is not None
    assert positions is not None
    if not x.size:
        return 0.0
    largest = float(np.abs(x).max(where=np.isfinite(x), initial=0))
    return (1e-6 + 2e-7 * float(np.abs(positions).max(initial=0))) * largest


@op(
    shape=same_as("x"),
    dtype=like("x"),
    work=per_element(4),
    inplace=("x",),
    tolerance="T",
    slack=angle_digits,
    check=rope_fits,
    accepts={"x": (f32, f16), "positions": (i32,), "frequency_factors": (f32,)},
    cases=[
        case(rand(2, 5, 3, 8), ints(5, high=100), mode="normal", n_dims=8),
        case(rand(1, 5, 3, 8), ints(5, high=100), mode="neox", n_dims=8),
        case(rand(1, 3, 2, 64), ints(3, high=4096), rand(32, low=1, high=8), mode="neox", n_dims=64, base=5e5),
        case(rand(1, 3, 2, 128), ints(3, high=4096), rand(64, low=1, high=8), mode="normal", n_dims=128),
        case(rand(1, 3, 1, 257), ints(3, high=100), mode="neox", n_dims=256),
        case(rand(1, 3, 1, 257), ints(3, high=100), mode="normal", n_dims=254, offset=2),
        case(rand(1, 3, 2, 12), ints(3, low=-9, high=9), mode="normal", n_dims=4, offset=2),
        case(rand(3, 2, 12), ints(3, low=-9, high=9), mode="neox", n_dims=4, offset=6, scale=0.5),
        case(
            rand(1, 4, 2, 64),
            ints(4, high=8000),
            mode="neox",
            n_dims=64,
            scale=0.25,
            ext_factor=1.0,
            attn_factor=1.1,
            beta_fast=16.0,
            beta_slow=2.0,
            original_context=2048,
        ),
        case(rand(1, 1, 1, 2), values([0], dtype=i32), mode="normal", n_dims=2),
        case(rand(0, 3, 2, 4), ints(3, high=9), mode="neox", n_dims=4),
        case(rand(1, 0, 2, 4), values([], dtype=i32), mode="neox", n_dims=4),
        case(rand(1, 3, 2, 8), ints(4, 3, high=50), mode="mrope", n_dims=8, sections=(2, 1, 1, 0)),
        case(rand(1, 3, 2, 8), ints(4, 3, high=50), mode="imrope", n_dims=8, sections=(2, 1, 1, 0)),
        case(rand(1, 3, 2, 8), ints(4, 3, high=50), mode="vision", n_dims=4, sections=(2, 2, 0, 0)),
        case(rand(1, 3, 2, 8), ints(4, high=9), mode="neox", n_dims=8, raises=ShapeError),
        case(rand(1, 3, 2, 8), ints(3, high=9), mode="mrope", n_dims=8, sections=(2, 1, 1, 0), raises=ShapeError),
        case(rand(2, 8), ints(2, high=9), mode="neox", n_dims=8, raises=ShapeError),
        case(rand(1, 3, 2, 8), ints(3, high=9), rand(3), mode="neox", n_dims=8, raises=ShapeError),
        case(rand(1, 3, 2, 8), ints(3, high=9), mode="gptj", n_dims=8, raises=AttributeValueError),
        case(rand(1, 3, 2, 8), ints(3, high=9), mode="neox", n_dims=5, raises=AttributeValueError),
        case(rand(1, 3, 2, 8), ints(3, high=9), mode="neox", n_dims=6, offset=4, raises=AttributeValueError),
        case(
            rand(1, 3, 2, 8),
            ints(4, 3, high=9),
            mode="vision",
            n_dims=8,
            sections=(1, 1, 0, 0),
            raises=AttributeValueError,
        ),
        case(rand(1, 3, 2, 8), ints(4, 3, high=9), mode="mrope", n_dims=8, raises=AttributeValueError),
        case(rand(1, 3, 2, 8), ints(3, high=9), mode="neox", n_dims=8, base=0.0, raises=AttributeValueError),
        case(rand(1, 3, 2, 8), ints(3, high=9), mode="neox", n_dims=8, ext_factor=1.0, raises=AttributeValueError),
        case(
            rand(1, 3, 2, 6),
            ints(4, 3, high=9),
            mode="vision",
            n_dims=3,
            sections=(1, 1, 1, 0),
            raises=AttributeValueError,
        ),
        *(
            case(
                rand(1, 3, 2, 8),
                ints(3, high=9),
                mode="neox",
                n_dims=8,
                ext_factor=1.0,
                original_context=64,
                **{name: value},
                raises=AttributeValueError,
            )
            for name, value in (("beta_fast", 0.0), ("beta_slow", -1.0), ("beta_fast", INF), ("base", 1.0))
        ),
        case(rand(1, 3, 2, 8), ints(3, high=9), mode="neox", raises=AttributeValueError),
        case(rand(1, 3, 2, 8), rand(3, dtype=f32), mode="neox", n_dims=8, raises=DTypeError),
    ],
)
def rope(
    x: Array,
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
    """Pairs of channels turned by an angle that grows with the token's position.

    x: f32 or f16 (B, T, H, D); B may be missing. positions: i32 (T,); (4, T) for mrope, imrope and vision.
    frequency_factors: f32 (pairs or more,), divides the angle of each pair; absent means 1.
    mode: normal pairs channel 2i with 2i+1; neox, mrope and imrope i with i + n_dims/2; vision i with i + D/2.
    n_dims, offset: the channels that turn, from offset on; even. The others are copied. vision: D/2 and 0.
    base: angle = position * base**(-2i/n_dims). scale: times the angle. attn_factor: times the result.
    ext_factor: above 0 blends scaled and unscaled angles by frequency (YaRN) between beta_fast and beta_slow turns
        over original_context tokens; these are then above 0, and base is not 1.
    sections: how many pairs take time, height, width and a further position; vision restarts its powers in each.
    Returns: shape and dtype of x. Raises: ShapeError, DTypeError, AttributeValueError.
    Source: Su et al. 2021, "RoFormer"; Peng et al. 2023, "YaRN"; Wang et al. 2024, "Qwen2-VL" for sections.
    """
    n, D = n_dims, x.shape[-1]
    pairs = np.arange(D // 2 if mode == "vision" else n // 2)
    component, exponent = _sectioned(mode, pairs, sections)
    p = positions[component].T if mode in MULTI else positions[:, None]
    theta = p * base ** (-2.0 * exponent / n)
    if frequency_factors is not None:
        theta = theta / frequency_factors[: len(pairs)]
    inner, size = scale * theta, attn_factor
    if ext_factor:
        low, high = yarn_bounds(n, base, original_context, beta_fast, beta_slow)
        w = (1 - np.clip((pairs - low) / max(0.001, high - low), 0, 1)) * ext_factor
        inner, size = inner * (1 - w) + theta * w, size * (1 + 0.1 * math.log(1 / scale))
    if mode == "normal":
        a, b = offset + 2 * pairs, offset + 2 * pairs + 1
    else:
        a, b = offset + pairs, offset + pairs + (D // 2 if mode == "vision" else n // 2)
    cos, sin = size * np.cos(inner)[:, None], size * np.sin(inner)[:, None]
    y = x.copy()
    y[..., a] = x[..., a] * cos - x[..., b] * sin
    y[..., b] = x[..., a] * sin + x[..., b] * cos
    return y


def _sectioned(mode: str, pairs: Array, sections: Shape) -> tuple[Array, Array]:
    """Which of the four positions turns each pair, and the pair's exponent."""
    if mode == "imrope":
        j = pairs % sum(sections)
        taken = [(j % 3 == c) & (j < 3 * sections[c]) for c in (1, 2, 0)]
        return np.select(taken, [1, 2, 0], 3), pairs
    if mode in ("mrope", "vision"):
        j = pairs % sum(sections)
        ends = np.cumsum(sections)
        component = np.searchsorted(ends, j, side="right")
        start = (ends - sections)[component]
        return component, j - start if mode == "vision" else pairs
    return np.zeros_like(pairs), pairs


def yarn_bounds(n: int, base: float, context: int, beta_fast: float, beta_slow: float) -> tuple[int, int]:
    """The pairs between which YaRN blends: those that turn beta_fast and beta_slow times over the context."""

    def pair(turns: float) -> float:
        return n * math.log(context / (2 * math.pi * turns)) / (2 * math.log(base))

    return max(0, math.floor(pair(beta_fast))), min(n - 1, math.ceil(pair(beta_slow)))
