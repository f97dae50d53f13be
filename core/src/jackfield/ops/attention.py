"""Attention over a cache of keys and values."""

from __future__ import annotations

import numpy as np

from jackfield.dtypes import f16, f32, i32
from jackfield.dtypes.arrays import dtype_of, widened
from jackfield.errors import AttributeValueError, DTypeError, ShapeError
from jackfield.op import Array, Call, Work, bad_index, case, ints, op, rand, values
from jackfield.ops.elementwise import INF, NAN
from jackfield.rules import (
    STORED,
    always,
    four,
    known,
    not_negative,
    padded,
    precision,
    rank_of,
    row_named,
    slopes,
    touched,
)
from jackfield.spec import Shape, Spec


def _fits(call: Call) -> None:
    for name in ("q", "k", "v"):
        rank_of(call, name, 3)
    _check_cache(call)
    _check_mask(call)
    _check_lists(call)
    _check_attributes(call)


def _check_cache(call: Call) -> None:
    (S, H, _, Dk), k, v = padded(call["q"].shape), padded(call["k"].shape), padded(call["v"].shape)
    if k[:3] != v[:3] or k[3] != Dk:
        raise call.shape_error(
            f"k is {list(k)} and v {list(v)}, q ends in {Dk}: "
            "k and v must agree but for the last axis, k must end like q"
        )
    if k[1] == 0 or H % k[1]:
        raise call.shape_error(f"q has {H} heads, k {k[1]}: the first must be a multiple of the second")
    streams = 1 if call.get("kv_rows") is not None else S
    if k[0] != streams:
        raise call.shape_error(f"k has {k[0]} streams, q {S}: k must have {streams}" + " with kv_rows" * (streams != S))


def _columns(call: Call) -> int:
    rows = call.get("kv_rows")
    return call["k"].shape[-2] if rows is None else rows.shape[-1]


def _check_mask(call: Call) -> None:
    mask = call.get("mask")
    if mask is None:
        return
    S, H, T, _ = padded(call["q"].shape)
    s, h, m, n = padded(mask.shape)
    if m < T or n != _columns(call):
        raise call.shape_error(
            f"mask is {list(mask.shape)}, its last axes must be at least {T} and exactly {_columns(call)}"
        )
    if call.get("kv_rows") is not None and s != S:
        raise call.shape_error(f"mask has {s} streams, q {S}: with kv_rows they must be equal")
    if s == 0 or h == 0 or S % s or H % h:
        raise call.shape_error(f"mask is {list(mask.shape)}, q has {S} streams and {H} heads: multiples of the mask's")


def _check_lists(call: Call) -> None:
    S, H, _, _ = padded(call["q"].shape)
    for name, wanted in (("sinks", (H,)), ("kv_len", (S,))):
        spec = call.get(name)
        if spec is not None and spec.shape != wanted:
            raise call.shape_error(f"{name} is {list(spec.shape)}, must be {list(wanted)}")
    rows = call.get("kv_rows")
    if rows is not None and (rows.rank != 2 or rows.shape[0] != S):
        raise call.shape_error(f"kv_rows is {list(rows.shape)}, must be [{S}, columns]")


def _check_attributes(call: Call) -> None:
    precision(call)
    for name in ("window", "kv_limit", "logit_softcap"):
        not_negative(name)(call)
    mask, rows = call.get("mask"), call.get("kv_rows")
    for name in ("max_bias", "kv_limit"):
        if call.attr(name) > 0 and mask is None:
            raise call.attr_error(f"{name} is {call.attr(name)} and mask is absent: it needs a mask")
    if rows is not None and mask is None and call.get("kv_len") is None:
        raise call.attr_error("kv_rows is given without mask and kv_len: one of them must say which columns are valid")
    if rows is not None and call.attr("kv_limit") > 0:
        raise call.attr_error(f"kv_limit is {call.attr('kv_limit')} and kv_rows is given: they exclude each other")


def _shape(call: Call) -> Shape:
    q = call["q"].shape
    return (*q[:-3], q[-2], q[-3], call["v"].shape[-1])


def _work(call: Call, result: Spec) -> Work:
    S, H, T, Dk = padded(call["q"].shape)
    N = _columns(call)
    each = S * H * T * (Dk + call["v"].shape[-1])
    return Work(each * N // 2 if call.attr("causal") and T == N else each * N, touched(call, result))


def _few_open(call: Call, mask: Array) -> str | None:
    """A row of a query opens at most `kv_limit` columns. All N count: a device may gather by the mask alone."""
    limit, queries = call.attr("kv_limit"), call["q"].shape[-2]
    opened = np.count_nonzero(four(mask)[:, :, :queries] != -np.inf, axis=-1)
    if not limit or opened.max(initial=0) <= limit:
        return None
    at = np.unravel_index(opened.argmax(), opened.shape)
    row = row_named(at[4 - mask.ndim :], "mask")
    return (
        f"{row} opens {opened[at]} columns, kv_limit promises at most {limit}: "
        "give a larger kv_limit, or close columns with -inf"
    )


_Q, _K = rand(1, 4, 3, 32), rand(1, 2, 7, 32)
_TWO, _ROWS, _LISTS = rand(2, 4, 3, 24), rand(1, 2, 9, 24), ints(2, 6, low=-1, high=9)  # no blocks: few dtypes
_OPEN = (np.arange(9) + 2 * np.arange(3)[:, None]) % 4 == 0  # 3, 2 and 3 columns of 9


@op(
    shape=_shape,
    dtype=always(f32),
    work=_work,
    tolerance="N",
    check=_fits,
    stored=True,
    promises={"mask": _few_open},
    accepts={
        "q": (f32,),
        "k": STORED,
        "v": STORED,
        "mask": (f16, f32),
        "sinks": (f32,),
        "kv_rows": (i32,),
        "kv_len": (i32,),
    },
    cases=[
        case(_Q, _K, _K, scale=0.18),
        case(rand(2, 4, 3, 256), rand(2, 2, 5, 256), rand(2, 2, 5, 256), scale=0.06, causal=True),
        case(_Q, _K, _K, scale=0.18, causal=True, kv_len=values([5], dtype=i32)),
        case(rand(2, 6, 1, 16), rand(2, 2, 33, 16), rand(2, 2, 33, 8), scale=0.25, kv_len=values([33, 4], dtype=i32)),
        case(_Q, _K, _K, rand(1, 1, 4, 7, shut=0.3), scale=0.18),
        case(
            rand(2, 12, 3, 32),
            rand(2, 4, 7, 32),
            rand(2, 4, 7, 32),
            rand(1, 12, 3, 7, shut=0.3),
            scale=0.18,
            max_bias=8.0,
            logit_softcap=5.0,
        ),
        case(
            _Q,
            _K,
            _K,
            rand(1, 2, 3, 7, shut=0.5),
            rand(4),
            scale=0.18,
            causal=True,
            window=2,
            kv_len=values([6], dtype=i32),
        ),
        case(_Q, _K, _K, scale=0.18, window=3, causal=True),
        case(_Q, _K, _K, scale=0.18, window=2, precision="f32"),
        case(
            rand(2, 4, 3, 32),
            rand(1, 2, 9, 32),
            rand(1, 2, 9, 32),
            kv_rows=ints(2, 6, low=-1, high=9),
            kv_len=values([6, 4], dtype=i32),
            scale=0.18,
            causal=True,
        ),
        case(
            rand(2, 4, 3, 32),
            rand(1, 2, 9, 32),
            rand(1, 2, 9, 32),
            rand(2, 1, 4, 6, shut=0.3),
            rand(4),
            _LISTS,
            values([6, 4], dtype=i32),
            scale=0.18,
            causal=True,
            window=4,
            max_bias=8.0,
            logit_softcap=5.0,
        ),
        case(_TWO, _ROWS, _ROWS, rand(2, 4, 3, 6, shut=0.3), kv_rows=_LISTS, scale=0.2, max_bias=8.0, window=3),
        case(_TWO, _ROWS, _ROWS, sinks=rand(4), kv_rows=_LISTS, kv_len=values([6, 4], dtype=i32), scale=0.2, window=2),
        case(
            rand(2, 6, 3, 24),
            rand(2, 2, 7, 24),
            rand(2, 2, 7, 16),
            rand(2, 6, 3, 7, shut=0.3),
            kv_len=values([7, 4], dtype=i32),
            scale=0.2,
            max_bias=8.0,
        ),
        case(_Q, _K, _K, rand(1, 1, 3, 7, shut=0.5), scale=0.18, kv_limit=7),
        case(
            _Q,
            rand(1, 2, 9, 32),
            rand(1, 2, 9, 32),
            values(np.where(_OPEN, 0.5, -INF)),
            rand(4),
            kv_len=values([8], dtype=i32),
            scale=0.18,
            kv_limit=3,
        ),
        case(_Q, _K, _K, rand(3, 7, shut=1.0), scale=0.18),
        case(_Q, _K, _K, rand(3, 7, shut=1.0), rand(4), scale=0.18),
        case(_Q, _K, _K, scale=0.18, causal=True, kv_len=values([1], dtype=i32)),
        case(_Q, _K, _K, scale=0.18, kv_len=values([0], dtype=i32), sinks=rand(4)),
        case(rand(2, 2, 1, 8), rand(2, 1, 5, 8), rand(2, 1, 5, 8), scale=0.3, kv_len=values([-1, 6], dtype=i32)),
        case(
            _Q,
            values(np.where(np.arange(7)[:, None] % 3, 0.5, NAN) * np.ones((1, 2, 7, 32))),
            _K,
            values([[[[-INF, 0.0, 1.0, -INF, -1.0, 0.5, -INF]] * 3]]),
            scale=0.18,
        ),
        case(
            _Q,
            _K,
            values(np.where(np.arange(7)[:, None] < 5, 0.5, INF) * np.ones((1, 2, 7, 32))),
            scale=0.18,
            causal=True,
        ),
        case(_Q, _K, _K, values([[[[NAN, 0.0, 1.0, -INF, -1.0, 0.5, -INF]] + [[0.0] * 7] * 2]]), scale=0.18),
        case(rand(2, 3, 32), rand(2, 7, 32), rand(2, 7, 32), scale=0.18, causal=True),
        case(rand(1, 3, 33, 32), rand(1, 3, 33, 32), rand(1, 3, 33, 32), scale=0.18, causal=True),
        case(
            rand(1, 3, 2, 64),
            rand(1, 1, 257, 64),
            rand(1, 1, 257, 64),
            scale=0.125,
            causal=True,
            window=32,
            kv_len=values([200], dtype=i32),
        ),
        case(rand(1, 2, 3, 8), rand(1, 2, 0, 8), rand(1, 2, 0, 8), scale=0.3),
        case(rand(1, 2, 0, 8), rand(1, 2, 4, 8), rand(1, 2, 4, 8), scale=0.3),
        case(rand(1, 1, 1, 1), rand(1, 1, 1, 1), rand(1, 1, 1, 1), scale=1.0),
        case(_Q, _K, rand(1, 2, 6, 32), scale=0.18, raises=ShapeError),
        case(_Q, rand(1, 2, 7, 16), _K, scale=0.18, raises=ShapeError),
        case(_Q, rand(1, 3, 7, 32), rand(1, 3, 7, 32), scale=0.18, raises=ShapeError),
        case(_Q, rand(2, 2, 7, 32), rand(2, 2, 7, 32), scale=0.18, raises=ShapeError),
        case(rand(3, 32), _K, _K, scale=0.18, raises=ShapeError),
        case(_Q, _K, _K, rand(1, 1, 2, 7), scale=0.18, raises=ShapeError),
        case(_Q, _K, _K, rand(1, 3, 3, 7), scale=0.18, raises=ShapeError),
        case(_Q, _K, _K, sinks=rand(3), scale=0.18, raises=ShapeError),
        case(_Q, _K, _K, kv_len=values([1, 2], dtype=i32), scale=0.18, raises=ShapeError),
        case(_Q, _K, _K, kv_rows=ints(2, 3, high=7), kv_len=values([3], dtype=i32), scale=0.18, raises=ShapeError),
        case(rand(2, 4, 3, 32), _K, _K, rand(1, 1, 3, 4), kv_rows=ints(2, 4, high=7), scale=0.18, raises=ShapeError),
        case(_Q, _K, _K, scale=0.18, window=-1, raises=AttributeValueError),
        case(_Q, _K, _K, scale=0.18, max_bias=8.0, raises=AttributeValueError),
        case(_Q, _K, _K, scale=0.18, kv_limit=4, raises=AttributeValueError),
        case(_Q, _K, _K, kv_rows=ints(1, 3, high=7), scale=0.18, raises=AttributeValueError),
        case(_Q, _K, _K, rand(3, 3), kv_rows=ints(1, 3, high=7), scale=0.18, kv_limit=2, raises=AttributeValueError),
        case(_Q, _K, _K, scale=0.18, precision="half", raises=AttributeValueError),
        case(_Q, _K, _K, scale=0.18, logit_softcap=-1.0, raises=AttributeValueError),
        case(_Q, _K, _K, raises=AttributeValueError),
        case(rand(1, 4, 3, 32, dtype=f16), _K, _K, scale=0.18, raises=DTypeError),
    ],
)
def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None = None,
    sinks: Array | None = None,
    kv_rows: Array | None = None,
    kv_len: Array | None = None,
    *,
    scale: float,
    causal: bool = False,
    window: int = 0,
    max_bias: float = 0.0,
    logit_softcap: float = 0.0,
    kv_limit: int = 0,  # noqa: ARG001 - a hint for devices
    precision: str = "default",  # noqa: ARG001 - f64 is always enough
) -> Array:
    """Each query's average of the values, weighted by the softmax of its products with the keys.

    q: f32 (S, H, T, Dk): streams, heads, tokens, head size; S may be missing in q, k, v and the result.
    scale: times the products.
    k, v: f32, f16, bf16 or a block dtype (S, Hkv, N, Dk) and (S, Hkv, N, Dv); Hkv divides H, each serves H // Hkv heads
        in a row. With kv_rows (1, Hkv, R, .): one cache for all streams.
    mask: f16 or f32 (s, h, m, N), m >= T, added to the products; s and h repeat cyclically; -inf hides a column.
    sinks: f32 (H,), one more logit a head, without a value.
    kv_rows: i32 (S, N), the cache row of each column; negative is padding. A row >= R is dropped with a BadIndex.
    kv_len: i32 (S,), how many columns of a stream are valid; absent means N. Outside 0 .. N the stream's rows are zero,
        with a BadIndex. The last query stands at column kv_len - 1.
    causal: a query sees no column behind its own. window: above 0, only that many columns up to its own.
    max_bias: above 0, slopes the mask by head. logit_softcap: above 0, c * tanh(z / c) before the mask.
    kv_limit: above 0, a promise that a row of the mask opens at most so many columns, whatever else hides them.
    precision: "f32" forbids f16 accumulators. Returns: f32 (S, T, H, Dv); zeros where nothing is seen.
    A column that is not seen is never read: NaN there changes nothing.
    Raises: ShapeError, DTypeError; AttributeValueError, also for max_bias or kv_limit without mask, kv_rows without
    mask and kv_len, kv_rows with kv_limit.
    """
    q4, k4, v4 = four(q), four(k), four(v)
    S, H, T, _ = q4.shape
    N = k4.shape[2] if kv_rows is None else kv_rows.shape[1]
    y = np.zeros((S, T, H, _head_size(v4)))
    for s in range(S):
        n = N if kv_len is None else int(kv_len[s])
        if not 0 <= n <= N:
            bad_index("kv_len", n)
        elif n > 0:
            columns = np.arange(n)
            rows, listed = (columns, True) if kv_rows is None else _listed(kv_rows[s, :n], k4.shape[2])
            stream = s if kv_rows is None else 0
            place = n - T + np.arange(T)[:, None]  # the column of each query
            seen = np.broadcast_to(listed, (T, n)) & (not causal or columns <= place)
            seen = seen & (window == 0 or columns > place - window)
            z = scale * _products(widened(q4[s]), widened(k4[stream][:, rows]))
            if logit_softcap:
                z = logit_softcap * np.tanh(z / logit_softcap)
            if mask is not None:
                entry = _heads(four(mask)[s % four(mask).shape[0]], H)[:, :T, :n].astype(np.float64)
                z = z + slopes(H, max_bias)[:, None, None] * entry
                seen = seen & (entry != -np.inf)
            y[s] = _average(z, np.broadcast_to(seen, z.shape), widened(v4[stream][:, rows]), sinks).swapaxes(0, 1)
    return y.reshape((*q.shape[:-3], T, H, y.shape[-1]))


def _head_size(v: Array) -> int:
    return v.shape[-1] * dtype_of(v).block


def _listed(rows: Array, extent: int) -> tuple[Array, Array]:
    """Cache rows to read, and which columns have one."""
    listed = known("kv_rows", rows, extent, skip=lambda row: row < 0)
    return np.where(listed, rows, 0), listed


def _heads(mask: Array, H: int) -> Array:
    return mask[np.arange(H) % mask.shape[0]]


def _products(q: Array, k: Array) -> Array:
    """(H, T, D) by (Hkv, n, D) to (H, T, n)."""
    H, T, D = q.shape
    together = q.reshape(k.shape[0], H // k.shape[0] * T, D) @ k.swapaxes(1, 2)
    return together.reshape(H, T, k.shape[1])


def _average(z: Array, seen: Array, v: Array, sinks: Array | None) -> Array:
    """(H, T, n) logits and values (Hkv, n, D) to (H, T, D); what is not seen counts nothing, even NaN."""
    H, T, n = z.shape
    z = np.where(seen, z, -np.inf)
    sink = np.full((H, 1, 1), -np.inf) if sinks is None else sinks.astype(np.float64)[:, None, None]
    top = np.maximum(z.max(-1, keepdims=True), sink)
    e = np.where(z == -np.inf, 0, np.exp(z - top))
    total = e.sum(-1, keepdims=True) + np.where(sink == -np.inf, 0, np.exp(sink - top))
    weight = np.where(total == 0, 0, e / total)
    finite, looked = np.isfinite(v), seen.reshape(v.shape[0], -1, n).any(1)
    summed = weight.reshape(v.shape[0], -1, n) @ np.where(finite, v, 0)
    y = summed.reshape(H, T, v.shape[-1])
    for group, column in np.argwhere(looked & ~finite.all(-1)):  # inf and NaN reach who sees them, not by 0 * NaN
        heads = np.s_[group * (H // v.shape[0]) : (group + 1) * (H // v.shape[0])]
        infected = weight[heads, :, column, None] * np.where(finite[group, column], 0, v[group, column])
        y[heads] += np.where(seen[heads, :, column, None], infected, 0)
    return y
