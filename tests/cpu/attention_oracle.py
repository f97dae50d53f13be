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
    y = np.zeros((S, T, H, v.shape[3]))
    for s, h, t in itertools.product(range(S), range(H), range(T)):
        length = N if kv_len is None else int(kv_len[s])
        if not 0 <= length <= N:
            continue
        g, stream = h // (H // k.shape[1]), 0 if kv_rows is not None else s
        position = length - T + t
        entries = None if mask is None else mask[s % mask.shape[0], h % mask.shape[1], t].astype(np.float64)
        z, values = [], []
        for i in range(length):
            row = i if kv_rows is None else int(kv_rows[s, i])
            if row < 0 or (causal and i > position) or (window and i <= position - window):
                continue
            if entries is not None and entries[i] == -INF:
                continue
            logit = scale * (k[stream, g, row].astype(np.float64) @ q[s, h, t].astype(np.float64))
            if logit_softcap:
                logit = logit_softcap * np.tanh(logit / logit_softcap)
            z.append(logit + (0 if entries is None else slope(h, H, max_bias) * entries[i]))
            values.append(v[stream, g, row].astype(np.float64))
        if not z:
            continue
        every = np.array(z if sinks is None else [*z, float(sinks[h])])
        weights = np.exp(every - every.max())
        y[s, t, h] = weights[: len(values)] @ np.array(values) / weights.sum()
    return y


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
