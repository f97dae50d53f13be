"""What chooses the columns that sparse attention may see: their scores, and a mask opened where they were picked."""

from __future__ import annotations

import numpy as np

from jackfield.dtypes import f16, f32, i32
from jackfield.errors import DTypeError, ShapeError
from jackfield.op import Array, Call, Work, case, ints, op, rand, values
from jackfield.ops.elementwise import INF, NAN
from jackfield.rules import STORED, always, four, like, multiple, padded, per_element, rank_of, touched
from jackfield.spec import Shape, Spec


def _opened(call: Call) -> Shape:
    mask, picks = call["mask"], call["picks"]
    for name in ("mask", "picks"):
        rank_of(call, name, 1)
    for axis in (2, 3, 4):
        multiple(call, "picks", -axis, "mask", -axis)
    for name in ("score", "extra"):
        spec = call.get(name)
        if spec is not None and (spec.rank != picks.rank or spec.shape[:-1] != picks.shape[:-1]):
            raise call.shape_error(
                f"{name} is {list(spec.shape)} and picks {list(picks.shape)}: all axes but the last must be equal"
            )
    _check_blocks(call)
    return (*picks.shape[:-1], mask.shape[-1])


def _check_blocks(call: Call) -> None:
    blocks, score = call.get("blocks"), call.get("score")
    if blocks is None:
        return
    rank_of(call, "blocks", 2, 2)
    if score is not None and score.shape[-1] < blocks.shape[0]:
        raise call.shape_error(
            f"score is {list(score.shape)} and blocks {list(blocks.shape)}: there must be a score for each block"
        )


_MASK = rand(1, 1, 5, 9, shut=0.3)
_PICKS = ints(2, 3, 5, 4, low=-2, high=11)


@op(
    shape=_opened,
    dtype=like("mask"),
    work=per_element(1),
    accepts={"mask": (f16, f32), "picks": (i32,), "score": (f32,), "blocks": (i32,), "extra": (i32,)},
    tolerance="E",
    priority="P1",
    stored=True,
    cases=[
        case(_MASK, _PICKS),
        case(_MASK, _PICKS, rand(2, 3, 5, 7, shut=0.4)),
        case(_MASK, _PICKS, rand(2, 3, 5, 12, shut=0.4)),
        case(_MASK, _PICKS, blocks=ints(6, 2, low=-1, high=11)),
        case(_MASK, _PICKS, extra=ints(2, 3, 5, 2, low=-1, high=11)),
        case(
            rand(2, 1, 1, 40),
            ints(4, 2, 3, 5, low=-1, high=9),
            rand(4, 2, 3, 8, shut=0.4),
            ints(8, 5, high=40),
            ints(4, 2, 3, 2, high=40),
        ),
        case(values([[NAN, -0.0, INF, -INF, 1.0]]), values([[4, 0, 0, 1]], dtype=i32)),
        case(
            values([1.0, 2.0, 3.0, 4.0]),
            values([0, 1, 2, 3], dtype=i32),
            values([NAN, INF, -INF, -1.0]),
        ),
        case(rand(3, 257), ints(6, 64, high=300)),
        case(rand(1), values([0], dtype=i32)),
        case(rand(2, 256), values(np.zeros((2, 0)), dtype=i32)),
        case(rand(3, 5), ints(3, 2, high=5), blocks=values(np.zeros((0, 4)), dtype=i32)),
        case(rand(3, 5), ints(3, 2, high=5), blocks=values(np.zeros((6, 0)), dtype=i32)),
        case(rand(5, 0), ints(5, 3, high=2)),
        case(_MASK, ints(4, 4, high=9), raises=ShapeError),
        case(rand(), ints(4, high=9), raises=ShapeError),
        case(_MASK, _PICKS, rand(2, 3, 1, 9), raises=ShapeError),
        case(_MASK, _PICKS, extra=ints(5, 2, high=9), raises=ShapeError),
        case(_MASK, _PICKS, blocks=ints(6, high=9), raises=ShapeError),
        case(_MASK, _PICKS, rand(2, 3, 5, 5), ints(6, 2, high=9), raises=ShapeError),
        case(_MASK, rand(2, 3, 5, 4, dtype=f32), raises=DTypeError),
    ],
)
def top_k_mask(
    mask: Array,
    picks: Array,
    score: Array | None = None,
    blocks: Array | None = None,
    extra: Array | None = None,
) -> Array:
    """The entries of a mask at the columns that were picked, and -inf at all others.

    mask: f16 or f32 (h3, h2, h1, n); leading extents divide those of picks and repeat cyclically, missing ones are 1.
    picks: i32 (d3, d2, d1, k), numbers of columns, or of blocks. score: f32 (d3, d2, d1, s), one a column or block: a
        pick whose score is -inf or NaN is skipped. Picks count up to s, with blocks up to their number, at most s.
    blocks: i32 (count, cells), the columns of each block. extra: i32 (d3, d2, d1, e), columns that are opened besides.
    Returns: dtype of mask, (d3, d2, d1, n), its entries bit by bit. What lies outside is skipped and no error; a column
    may be named often. Raises: ShapeError, DTypeError.
    """
    lead, columns = picks.shape[:-1], mask.shape[-1]
    rows = mask.reshape(padded(mask.shape, picks.ndim)[-picks.ndim :])
    places = len(blocks) if blocks is not None else columns if score is None else score.shape[-1]
    out = np.full((*lead, columns), -np.inf, mask.dtype)
    for at in np.ndindex(lead):
        picked = picks[at][(picks[at] >= 0) & (picks[at] < places)]
        if score is not None:
            picked = picked[score[at][picked] > -np.inf]
        if blocks is not None:
            picked = blocks[picked].reshape(-1)
        if extra is not None:
            picked = np.concatenate([picked, extra[at]])
        picked = picked[(picked >= 0) & (picked < columns)]
        row = rows[tuple(i % n for i, n in zip(at, rows.shape, strict=False))]
        out[at][picked] = row[picked]
    return out


def _scored(call: Call) -> Shape:
    for name in ("q", "k", "weights", "mask"):
        rank_of(call, name, 3)
    q, k = padded(call["q"].shape), padded(call["k"].shape)
    weights, mask = padded(call["weights"].shape), padded(call["mask"].shape)
    (S, T, Hi, D), N = q, k[1]
    if k != (S, N, 1, D) or weights != (S, 1, T, Hi):
        raise call.shape_error(
            f"k is {list(k)} and weights {list(weights)}, must be [{S}, columns, 1, {D}] and [{S}, 1, {T}, {Hi}]"
        )
    if mask[1:] != (1, T, N):
        raise call.shape_error(f"mask is {list(mask)}, must be [streams, 1, {T}, {N}]")
    multiple(call, "q", -4, "mask", -4)
    return (*call["q"].shape[:-3], 1, T, N)


def _scored_work(call: Call, result: Spec) -> Work:
    heads, size = call["q"].shape[-2:]
    return Work(result.size * heads * (size + 1), touched(call, result))


@op(
    shape=_scored,
    dtype=always(f32),
    work=_scored_work,
    accepts={"q": (f32,), "k": STORED, "weights": (f32,), "mask": (f16,)},
    tolerance="M",
    priority="P1",
    cases=[
        case(rand(2, 3, 4, 32), rand(2, 7, 1, 32), rand(2, 1, 3, 4), rand(1, 1, 3, 7, shut=0.3)),
        case(rand(1, 2, 3, 256), rand(1, 5, 1, 256), rand(1, 1, 2, 3), rand(1, 1, 2, 5)),
        case(rand(4, 1, 2, 16), rand(4, 257, 1, 16), rand(4, 1, 1, 2), rand(2, 1, 1, 257, shut=0.5)),
        case(rand(3, 4, 8), rand(7, 1, 8), rand(1, 3, 4), rand(1, 3, 7)),
        case(
            rand(1, 2, 2, 8),
            values(np.where(np.arange(4)[:, None, None] % 2, NAN, 1.0) * np.ones((1, 4, 1, 8))),
            rand(1, 1, 2, 2),
            values([[[[0.0, -INF, -INF, 0.0], [-INF] * 4]]]),
        ),
        case(
            values([[[[INF, 1.0]], [[NAN, 1.0]], [[-2.0, 1.0]]]]), rand(1, 3, 1, 2), rand(1, 1, 3, 1), rand(1, 1, 3, 3)
        ),
        case(rand(1, 2, 3, 8), rand(1, 0, 1, 8), rand(1, 1, 2, 3), rand(1, 1, 2, 0)),
        case(rand(1, 2, 0, 8), rand(1, 3, 1, 8), rand(1, 1, 2, 0), rand(1, 1, 2, 3)),
        case(rand(1, 1, 1, 1), rand(1, 1, 1, 1), rand(1, 1, 1, 1), rand(1, 1, 1, 1)),
        case(rand(1, 2, 3, 8), rand(1, 5, 1, 4), rand(1, 1, 2, 3), rand(1, 1, 2, 5), raises=ShapeError),
        case(rand(1, 2, 3, 8), rand(1, 5, 2, 8), rand(1, 1, 2, 3), rand(1, 1, 2, 5), raises=ShapeError),
        case(rand(1, 2, 3, 8), rand(1, 5, 1, 8), rand(1, 1, 3, 3), rand(1, 1, 2, 5), raises=ShapeError),
        case(rand(1, 2, 3, 8), rand(1, 5, 1, 8), rand(1, 1, 2, 3), rand(1, 1, 3, 5), raises=ShapeError),
        case(rand(3, 2, 3, 8), rand(3, 5, 1, 8), rand(3, 1, 2, 3), rand(2, 1, 2, 5), raises=ShapeError),
        case(rand(3, 8), rand(1, 5, 1, 8), rand(1, 1, 2, 3), rand(1, 1, 2, 5), raises=ShapeError),
        case(rand(1, 2, 3, 8), rand(1, 5, 1, 8), rand(1, 1, 2, 3), rand(1, 1, 2, 5, dtype=f32), raises=DTypeError),
    ],
)
def lightning_indexer(q: Array, k: Array, weights: Array, mask: Array) -> Array:
    """How much each token wants each column: the sum over heads of weights * relu(q . k), plus the mask.

    q: f32 (S, T, Hi, D): streams, tokens, heads, head size; S may be missing in all operands and the result.
    k: f32, f16, bf16 or a block dtype (S, N, 1, D), one head for all of q. weights: f32 (S, 1, T, Hi), scaled already.
    mask: f16 (s, 1, T, N), s divides S and repeats cyclically. An entry of -inf gives -inf, whatever k holds.
    Returns: f32 (S, 1, T, N). Raises: ShapeError, DTypeError.
    Source: DeepSeek-AI 2025, "DeepSeek-V3.2-Exp", equation 1.
    """
    lead = q.shape[:-3]
    q, k, weights, mask = four(q), four(k), four(weights), four(mask)
    products = np.maximum(q @ np.moveaxis(k, 1, -1), 0)  # (S, T, Hi, N), by (S, 1, D, N): k has one head for all tokens
    score = np.sum(np.moveaxis(weights, 1, -1) * products, 2)[:, None]
    mask = mask[np.arange(len(q)) % max(1, len(mask))]
    return np.where(mask == -np.inf, -np.inf, score + mask).reshape(*lead, *score.shape[1:])
