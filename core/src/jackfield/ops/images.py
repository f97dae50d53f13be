"""Images: resampling, padding and rolling; and the embedding of a diffusion step."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from jackfield.dtypes import DTYPES, f16, f32, q8_0
from jackfield.errors import AttributeValueError, DTypeError, ShapeError
from jackfield.graph import Attr
from jackfield.op import Array, Call, Work, case, ints, op, rand, values
from jackfield.ops.elementwise import INF, NAN, NASTY
from jackfield.ops.sliding import Extents
from jackfield.rules import always, like, one_of, per_element, rank_of, touched
from jackfield.spec import Pairs, Shape, Spec

_TAPS = {"nearest": 0, "bilinear": 4, "bicubic": 16}


def _resized(call: Call) -> Shape:
    rank_of(call, "x", 4, 4)
    one_of(call, "mode", tuple(_TAPS))
    old, new = call["x"].shape, call.attr("shape")
    if len(new) != 4 or any(n < 0 for n in new):
        raise call.attr_error(f"shape is {list(new)}, must be four extents of at least 0")
    if call.attr("antialias") and call.attr("mode") != "bilinear":
        raise call.attr_error(f"antialias needs mode bilinear, mode is {call.attr('mode')}")
    if any(n and not m for m, n in zip(old, new, strict=True)):
        raise call.shape_error(f"x is {list(old)}: an axis without elements can't become {list(new)}")
    return tuple(new)


def _resize_work(call: Call, result: Spec) -> Work:
    taps = _TAPS[call.attr("mode")]
    if call.attr("antialias"):
        for old, new in zip(call["x"].shape[2:], result.shape[2:], strict=True):
            taps *= max(1, math.ceil(old / max(1, new)))
    return Work(result.size * taps, touched(call, result))


@op(
    shape=_resized,
    dtype=like("x"),
    work=_resize_work,
    accepts={"x": (f32,)},
    tolerance="R",
    priority="P1",
    cases=[
        case(rand(2, 3, 4, 6), shape=(2, 3, 8, 12), mode="bilinear"),
        case(rand(2, 3, 4, 6), shape=(2, 3, 7, 4)),
        case(rand(2, 3, 4, 6), shape=(4, 2, 5, 17)),
        case(rand(1, 2, 5, 7), shape=(1, 2, 9, 13), align_corners=True),
        case(rand(1, 2, 5, 7), shape=(1, 2, 13, 3), mode="bilinear"),
        case(rand(1, 2, 5, 7), shape=(1, 2, 1, 13), mode="bilinear", align_corners=True),
        case(rand(1, 2, 5, 7), shape=(1, 2, 16, 5), mode="bicubic"),
        case(rand(1, 2, 5, 7), shape=(1, 2, 9, 1), mode="bicubic", align_corners=True),
        case(rand(1, 2, 9, 33), shape=(1, 2, 4, 7), mode="bilinear", antialias=True),
        case(rand(1, 2, 3, 5), shape=(1, 2, 7, 11), mode="bilinear", antialias=True),
        case(values([[[[NAN, 1.0, INF, 2.0], [0.0, -1.0, 1.0, -INF]]]]), shape=(1, 1, 4, 8)),
        case(values([[[[NAN, 1.0, INF, 2.0], [0.0, -1.0, 1.0, -INF]]]]), shape=(1, 1, 4, 8), mode="bilinear"),
        case(rand(1, 1, 1, 1), shape=(2, 2, 3, 257), mode="bicubic"),
        case(rand(2, 3, 4, 6), shape=(2, 0, 8, 12)),
        case(rand(2, 0, 4, 6), shape=(2, 0, 8, 12), mode="bilinear"),
        case(rand(2, 3, 0, 6), shape=(2, 3, 8, 12), raises=ShapeError),
        case(rand(3, 4, 6), shape=(3, 8, 12), raises=ShapeError),
        case(rand(2, 3, 4, 6), shape=(3, 8, 12), raises=AttributeValueError),
        case(rand(2, 3, 4, 6), shape=(2, 3, 8, -12), raises=AttributeValueError),
        case(rand(2, 3, 4, 6), shape=(2, 3, 8, 12), mode="area", raises=AttributeValueError),
        case(rand(2, 3, 4, 6), shape=(2, 3, 2, 3), mode="bicubic", antialias=True, raises=AttributeValueError),
        case(rand(2, 3, 4, 6, dtype=f16), shape=(2, 3, 8, 12), raises=DTypeError),
    ],
)
def resize(
    x: Array, *, shape: Shape, mode: str = "nearest", align_corners: bool = False, antialias: bool = False
) -> Array:
    """An image with other extents, read between its elements.

    x: f32 (N, C, H, W). shape: all four new extents. The first two axes, and mode nearest, take element i*old//new.
    mode: nearest, bilinear (two elements an axis) or bicubic (four, kernel a = -0.75); beyond an edge lie copies of it.
        Every element taken counts, also with a weight of 0.
    align_corners: the first and last elements of old and new image lie upon each other; else their outer edges do.
    antialias: with bilinear, a triangle as wide as an element of the smaller image; only weights above 0 count.
    Returns: f32 of the new shape. Raises: ShapeError, AttributeValueError.
    Source: Keys 1981, "Cubic convolution interpolation for digital image processing"; the rules for positions are
    those of ggml's upscale.
    """
    for axis in (0, 1):
        x = np.take(x, np.arange(shape[axis]) * x.shape[axis] // max(1, shape[axis]), axis)
    for axis in (2, 3):
        index, weight = _taps(x.shape[axis], shape[axis], mode, align_corners=align_corners, antialias=antialias)
        taken = (
            np.take(x, index, axis)
            if x.shape[axis]
            else np.zeros((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))
        )
        weight = weight.reshape(*weight.shape, *[1] * (3 - axis))
        product = taken * weight
        x = np.sum(np.where(weight == 0, 0, product) if antialias else product, axis + 1)
    return x


def _taps(old: int, new: int, mode: str, *, align_corners: bool, antialias: bool) -> tuple[Array, Array]:
    """Which elements each new one is made of, and how much each counts: (new, taps) and (new, taps)."""
    i = np.arange(new)[:, None]
    corners = align_corners and old > 1 and new > 1
    if mode == "nearest":
        return (i * (old - 1) // (new - 1) if corners else i * old // max(1, new)), np.ones((new, 1))
    ratio = (new - 1) / (old - 1) if corners else new / max(1, old)
    if antialias:
        return _triangle(i, old, ratio)
    y = i / ratio if align_corners else (i + 0.5) / ratio - 0.5
    first = np.floor(y)
    if mode == "bilinear":
        d = np.clip(y - np.clip(first, 0, old - 1), 0, 1)
        steps, weight = np.arange(2), np.concatenate([1 - d, d], 1)
    else:
        steps = np.arange(-1, 3)
        weight = _cubic(np.abs(y - first - steps))
    return np.clip(first.astype(np.int64) + steps, 0, max(0, old - 1)), weight


def _triangle(i: Array, old: int, ratio: float) -> tuple[Array, Array]:
    """All old elements, those outside of the triangle with a weight of 0."""
    support = max(1.0, 1 / ratio) if ratio else 1.0
    j = np.arange(old)
    weight = np.maximum(0, 1 - np.abs((j + 0.5 - (i + 0.5) / ratio) / support))
    return np.broadcast_to(j, weight.shape), weight / weight.sum(1, keepdims=True)


def _cubic(u: Array, a: float = -0.75) -> Array:
    """Keys' kernel at a distance of at most 2 elements."""
    near = (a + 2) * u**3 - (a + 3) * u**2 + 1
    return np.where(u <= 1, near, a * (u**3 - 5 * u**2 + 8 * u - 4))


def _padded(call: Call) -> Shape:
    x, widths, mode = call["x"], call.attr("widths"), call.attr("mode")
    one_of(call, "mode", ("constant", "wrap", "reflect"))
    if len(widths) != x.rank or any(len(pair) != 2 or min(pair) < 0 for pair in widths):
        raise call.attr_error(
            f"widths is {[list(p) for p in widths]}, must be (before, after), at least 0, for each of the {x.rank} axes"
        )
    for axis, (pair, n) in enumerate(zip(widths, x.shape, strict=True)):
        if mode == "wrap" and max(pair) > n:
            raise call.attr_error(f"widths of axis {axis} are {list(pair)}: mode wrap pads at most its extent {n}")
        if mode == "reflect" and max(pair) > (max(0, n - 1) if axis == x.rank - 1 else 0):
            raise call.attr_error(
                f"widths of axis {axis} are {list(pair)}, its extent {n}: "
                "mode reflect pads the last axis alone, by less than its extent"
            )
    return tuple(before + n + after for (before, after), n in zip(widths, x.shape, strict=True))


@op(
    shape=_padded,
    dtype=like("x"),
    work=per_element(0),
    accepts={"x": (f32, f16)},
    tolerance="E",
    priority="P1",
    stored=True,
    cases=[
        case(rand(3, 5), widths=((1, 2), (0, 3))),
        case(rand(2, 3, 4, 5), widths=((0, 1), (2, 0), (1, 1), (0, 3)), mode="wrap"),
        case(rand(2, 3, 5), widths=((0, 0), (0, 0), (4, 2)), mode="reflect"),
        case(values([NASTY]), widths=((1, 0), (1, 1))),
        case(values([NASTY]), widths=((0, 1), (2, 3)), mode="wrap"),
        case(values([NASTY]), widths=((0, 0), (3, 2)), mode="reflect"),
        case(rand(3, 4), widths=((3, 3), (4, 4)), mode="wrap"),
        case(rand(), widths=()),
        case(rand(1, 1), widths=((0, 0), (128, 128))),
        case(rand(0, 4), widths=((1, 1), (0, 0))),
        case(rand(0, 4), widths=((0, 0), (1, 1)), mode="wrap"),
        case(rand(3, 0), widths=((0, 0), (0, 0)), mode="reflect"),
        case(rand(3, 5), widths=((1, 2),), raises=AttributeValueError),
        case(rand(3, 5), widths=((1, 2), (0, -1)), raises=AttributeValueError),
        case(rand(3, 5), widths=((1, 2), (0, 1, 1)), raises=AttributeValueError),
        case(rand(3, 5), widths=(1, 2), raises=AttributeValueError),
        case(rand(3, 5), widths=((0, 0), (0, 6)), mode="wrap", raises=AttributeValueError),
        case(rand(3, 5), widths=((0, 0), (0, 5)), mode="reflect", raises=AttributeValueError),
        case(rand(3, 5), widths=((1, 0), (0, 1)), mode="reflect", raises=AttributeValueError),
        case(rand(3, 5), widths=((0, 0), (0, 1)), mode="edge", raises=AttributeValueError),
        case(ints(3, 5, high=9), widths=((0, 0), (0, 1)), raises=DTypeError),
    ],
)
def pad(x: Array, *, widths: Pairs, mode: str = "constant") -> Array:
    """x with elements put before and behind it on each axis.

    x: f32 or f16, any shape. widths: (before, after) for each axis.
    mode: constant puts zeros; wrap goes on from the other end; reflect mirrors at the last element, which is not
        repeated, on the last axis only.
    Returns: dtype of x. Raises: AttributeValueError for widths below 0, above the extent (wrap), or not below it
    (reflect).
    """
    return np.pad(x, widths, mode=mode) if x.ndim else np.array(x)  # type: ignore[call-overload]


def _rolls(call: Call) -> list[tuple[int, int]]:
    """(axis, shift) in the order given."""
    shift, axis = (_several(call.attr(name)) for name in ("shift", "axis"))
    rank = call["x"].rank
    if len(shift) != len(axis):
        raise call.attr_error(f"shift is {list(shift)} and axis {list(axis)}: they must be equally many")
    if any(not -rank <= a < rank for a in axis):
        raise call.attr_error(f"axis is {list(axis)}, each must be within -{rank} to {rank - 1}")
    return list(zip(axis, shift, strict=True))


def _several(value: Extents) -> Shape:
    return (value,) if isinstance(value, int) else value


def _rolled(call: Call) -> Shape:
    _rolls(call)
    return call["x"].shape


@op(
    shape=_rolled,
    dtype=like("x"),
    work=per_element(0),
    accepts={"x": (f32, *(d for d in DTYPES.values() if not d.is_block and d is not f32))},
    tolerance="E",
    priority="P1",
    stored=True,
    cases=[
        case(rand(3, 5), shift=2, axis=1),
        case(rand(2, 3, 4, 5), shift=(1, -2, 4), axis=(0, 2, -1)),
        case(values(NASTY), shift=-3, axis=0),
        case(rand(3, 5), shift=(5, -3), axis=(1, 0)),
        case(rand(3, 5), shift=(-(2**63), 2**63 - 1), axis=(1, 0)),
        case(rand(3, 5), shift=(1, 2**70), axis=(1, 0), raises=AttributeValueError),
        case(rand(3, 5), shift=(1, 1), axis=(1, 1)),
        case(rand(3, 5), shift=(), axis=()),
        case(rand(0, 4), shift=3, axis=0),
        case(rand(1, 257), shift=(1, -1), axis=(0, 1)),
        case(rand(3, 5), shift=(1, 2), axis=1, raises=AttributeValueError),
        case(rand(3, 5), shift=1, axis=2, raises=AttributeValueError),
        case(rand(3, 5), shift=1.5, axis=1, raises=AttributeValueError),
        case(rand(3, 32, dtype=q8_0), shift=1, axis=0, raises=DTypeError),
    ],
)
def roll(x: Array, *, shift: Extents, axis: Extents) -> Array:
    """Elements moved along axes; what leaves at one end comes in at the other.

    x: any dtype but a block dtype, any shape. shift: places towards higher indices, a number, or one for each of axis;
    it counts modulo the extent. Returns: shape and dtype of x, the same bits. Raises: AttributeValueError.
    """
    for at, by in zip(_several(axis), _several(shift), strict=True):
        x = np.roll(x, by % max(1, x.shape[at]), at)
    return x


def _embedded(call: Call) -> Shape:
    rank_of(call, "t", 1, 1)
    if call.attr("dim") < 1:
        raise call.attr_error(f"dim is {call.attr('dim')}, must be at least 1")
    if not 0 < call.attr("max_period") < math.inf:
        raise call.attr_error(f"max_period is {call.attr('max_period')}, must be above 0 and finite")
    return (*call["t"].shape, call.attr("dim"))


def _angle_digits(arrays: Mapping[str, Array | None], _: Mapping[str, Attr]) -> Array:
    """Angles in f32 lose digits as steps grow."""
    t = arrays["t"]
    assert t is not None
    return np.asarray(1e-6 + 2e-7 * np.abs(np.where(np.isfinite(t), t, 0)))[:, None]


@op(
    shape=_embedded,
    dtype=always(f32),
    work=per_element(4),
    accepts={"t": (f32,)},
    tolerance="T",
    slack=_angle_digits,
    priority="P1",
    cases=[
        case(rand(3, low=0, high=1000), dim=8),
        case(rand(5, low=-9, high=9), dim=5),
        case(rand(2, low=0, high=100), dim=257, max_period=100.0),
        case(values([0.0, -0.0, 1e-30, 999.0, INF, NAN]), dim=4),
        case(rand(1), dim=1),
        case(rand(1), dim=2),
        case(rand(0), dim=8),
        case(rand(3), dim=0, raises=AttributeValueError),
        case(rand(3), dim=8, max_period=0.0, raises=AttributeValueError),
        case(rand(3, 1), dim=8, raises=ShapeError),
        case(ints(3, high=9), dim=8, raises=DTypeError),
    ],
)
def timestep_embedding(t: Array, *, dim: int, max_period: float = 10000.0) -> Array:
    """Cosines, then sines, of a step number at falling frequencies: max_period**(-j / (dim//2)).

    t: f32 (N,), need not be whole. dim: columns; an odd last one is 0. max_period: above 0.
    Returns: f32 (N, dim). Raises: ShapeError, AttributeValueError.
    Source: Vaswani et al. 2017, "Attention is all you need", section 3.5; Ho et al. 2020 for its use on steps.
    """
    half = dim // 2
    angle = t[:, None] * max_period ** (-np.arange(half) / max(1, half))
    return np.concatenate([np.cos(angle), np.sin(angle), np.zeros((len(t), dim % 2))], 1)
