"""Attention query by query in f64, and operands drawn for it."""

from __future__ import annotations

import itertools

import numpy as np

INF = np.inf


def slope(h, heads, max_bias):
    if max_bias <= 0:
        return 1.0
    whole = 2 ** int(np.floor(np.log2(heads)))
    first, second = 2 ** (-max_bias / whole), 2 ** (-max_bias / (2 * whole))
    return first ** (h + 1) if h < whole else second ** (2 * (h - whole) + 1)


def oracle(
    q,
    k,
    v,
    mask=None,
    sinks=None,
    kv_rows=None,
    kv_len=None,
    *,
    scale,
    causal=False,
    window=0,
    max_bias=0.0,
    logit_softcap=0.0,
):
    """Query by query, from the words of the op's declaration. Reads kept columns alone."""
    S, H, T, _ = q.shape
    N = k.shape[2] if kv_rows is None else kv_rows.shape[1]
    q, k, v = (a.astype(np.float64) for a in (q, k, v))
    y = np.zeros((S, T, H, v.shape[3]))
    for s, h, t in itertools.product(range(S), range(H), range(T)):
        length = N if kv_len is None else int(kv_len[s])
        kept = kept_columns(length, N, length - T + t, causal=causal, window=window)
        rows = kept if kv_rows is None else kv_rows[s, kept]
        kept, rows = kept[rows >= 0], rows[rows >= 0]
        entries = 0.0
        if mask is not None:
            entries = mask[s % mask.shape[0], h % mask.shape[1], t, kept].astype(np.float64)
            kept, rows, entries = (a[entries != -INF] for a in (kept, rows, entries))
        if not kept.size:
            continue
        g, stream = h // (H // k.shape[1]), 0 if kv_rows is not None else s
        z = scale * (k[stream, g, rows] @ q[s, h, t])
        if logit_softcap:
            z = logit_softcap * np.tanh(z / logit_softcap)
        z = z + slope(h, H, max_bias) * entries
        every = z if sinks is None else np.append(z, float(sinks[h]))
        weights = np.exp(every - every.max())
        y[s, t, h] = weights[: kept.size] @ v[stream, g, rows] / weights.sum()
    return y


def kept_columns(length, N, position, *, causal, window):
    """Of N columns those a query at this position may see, before lists and masks; none where the length is bad."""
    if not 0 <= length <= N:
        return np.arange(0)
    first = max(0, position - window + 1) if window else 0
    return np.arange(first, max(first, min(length, position + 1) if causal else length))


def nmse(got, want):
    power = np.square(want).sum()
    return float(np.square(got - want).sum() / power) if power else float(np.abs(got).max(initial=0))


def cache(rng, S, heads, rows, size, dtype):
    """A cache kept by token, (S, rows, heads, size), seen by head."""
    return rng.standard_normal((S, rows, heads, size)).astype(dtype).transpose(0, 2, 1, 3)


def drawn(rng, S, H, heads, T, N, dk, dv, dtype=np.float16):
    q = rng.standard_normal((S, T, H, dk)).astype(np.float32).transpose(0, 2, 1, 3)
    return {"q": q, "k": cache(rng, S, heads, N, dk, dtype), "v": cache(rng, S, heads, N, dv, dtype)}


def add_optional(arrays, pick, rng, extents):
    """Adds some of kv_len, mask and sinks, as `pick` draws them; the attributes that go with them.

    extents: sequences, query heads, queries, columns.
    """
    S, H, T, N = extents
    attrs = {}
    if pick(False, True):
        arrays["kv_len"] = rng.integers(0, N + 1, S).astype(np.int32)
    if pick(False, True):
        mask = rng.standard_normal((pick(1, S), pick(1, H), T + pick(0, 2), N)).astype(pick(np.float16, np.float32))
        mask[rng.random(mask.shape) < 0.4] = -INF
        arrays["mask"], attrs["max_bias"] = mask, pick(0.0, 8.0)
    if pick(False, True):
        arrays["sinks"] = rng.standard_normal(H).astype(np.float32)
    return attrs
