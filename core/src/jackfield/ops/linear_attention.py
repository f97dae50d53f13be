"""Linear attention: a matrix a head that is read with a query and changed by each token, instead of a cache.

All of them take the tokens of S sequences of equal length one after the other, except `gated_delta_net`, whose
sequences are an axis. The result is one tensor: the rows of the tokens, then the states as rows of as many numbers.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from jackfield.dtypes import f16, f32
from jackfield.errors import AttributeValueError, DTypeError, ShapeError
from jackfield.op import Array, Call, ShapeRule, Work, WorkRule, case, op, rand, values
from jackfield.ops.elementwise import INF, NAN
from jackfield.ops.state_space import snapshots_are_counted
from jackfield.rules import always, extents, multiple, newest_first, touched
from jackfield.spec import Shape, Spec


def _rows(*names: str) -> ShapeRule:
    """These operands are (T, H, D), `first` (H, D), the state (S, H * D * D)."""

    def shape(call: Call) -> Shape:
        axes = dict.fromkeys(names, "T H D") | ({"first": "H D"} if "first" in call.op.operands else {})
        e = extents(call, **axes, state="S HDD")
        if e["T"] % e["S"] if e["S"] else e["T"]:
            raise call.shape_error(f"there are {e['T']} tokens for {e['S']} states: each must have equally many")
        return (e["T"] + e["D"] * e["S"], e["H"] * e["D"])

    return shape


def _per_cell(multiply_adds: int) -> WorkRule:
    """So many multiply-adds a token and element of a head's matrix."""

    def work(call: Call, result: Spec) -> Work:
        T, H, D = call["k"].shape
        return Work(multiply_adds * T * H * D * D, touched(call, result))

    return work


def _sequences(state: Array, *tokens: Array) -> tuple[Array, ...]:
    """The state as (S, H, D, D), tokens as (S, T / S, H, D)."""
    S, (T, H, D) = len(state), tokens[0].shape
    return (state.reshape(S, H, D, D), *(each.reshape(S, T // max(1, S), H, D) for each in tokens))


def _packed(y: Array, states: Array) -> Array:
    """Outputs (S, T, H, D) and states (..., H, D, D) as rows of H * D numbers."""
    S, T, H, D = y.shape
    rows = S * T + math.prod(states.shape[:-3]) * D
    return np.concatenate([y.reshape(-1), states.reshape(-1)]).reshape(rows, H * D)


_T, _ONE = rand(6, 3, 8), rand(1, 1, 1)
_DECAYS = rand(6, 3, 8, low=0.3, high=1.0)
_LONG, _WIDE = rand(64, 2, 17), rand(2, 1, 257)


@op(
    shape=_rows("k", "v", "r", "decay"),
    dtype=always(f32),
    work=_per_cell(4),
    accepts=dict.fromkeys(("k", "v", "r", "first", "decay", "state"), (f32,)),
    tolerance="R",
    priority="P1",
    cases=[
        case(_T, _T, _T, rand(3, 8), _DECAYS, rand(1, 192)),
        case(_T, _T, _T, rand(3, 8), _DECAYS, rand(3, 192)),
        case(_LONG, _LONG, _LONG, rand(2, 17), rand(64, 2, 17, low=0.3, high=1.0), rand(2, 578)),
        case(
            rand(2, 1, 65),
            rand(2, 1, 65),
            rand(2, 1, 65),
            rand(1, 65),
            rand(2, 1, 65, low=0.3, high=1.0),
            rand(2, 4225),
        ),
        case(*[_WIDE] * 3, rand(1, 257), rand(2, 1, 257, low=0.3, high=1.0), rand(1, 257 * 257)),
        case(
            values([[[1.0, NAN]], [[1.0, INF]]]), *[rand(2, 1, 2, low=0.5)] * 2, rand(1, 2), rand(2, 1, 2), rand(2, 4)
        ),
        case(_ONE, _ONE, _ONE, rand(1, 1), _ONE, rand(1, 1)),
        case(*[rand(0, 3, 8)] * 3, rand(3, 8), rand(0, 3, 8), rand(2, 192)),
        case(*[rand(0, 3, 8)] * 3, rand(3, 8), rand(0, 3, 8), rand(0, 192)),
        case(*[rand(4, 0, 8)] * 3, rand(0, 8), rand(4, 0, 8), rand(2, 0)),
        case(_T, _T, _T, rand(3, 8), _DECAYS, rand(4, 192), raises=ShapeError),
        case(_T, _T, _T, rand(3, 8), _DECAYS, rand(0, 192), raises=ShapeError),
        case(_T, _T, _T, rand(3, 8), _DECAYS, rand(2, 96), raises=ShapeError),
        case(_T, _T, _T, rand(8), _DECAYS, rand(2, 192), raises=ShapeError),
        case(rand(6, 24), _T, _T, rand(3, 8), _DECAYS, rand(2, 192), raises=ShapeError),
        case(rand(6, 3, 8, dtype=f16), _T, _T, rand(3, 8), _DECAYS, rand(2, 192), raises=DTypeError),
    ],
)
def rwkv_wkv6(k: Array, v: Array, r: Array, first: Array, decay: Array, state: Array) -> Array:
    """RWKV 6: y[j] = sum over i of r[i] * (first[i] * kv[i, j] + st[i, j]); st[i, j] = decay[i] * st[i, j] + kv[i, j].

    kv[i, j] is k[i] * v[j]; the state that a token reads is the one before it.

    k, v, r, decay: f32 (T, H, D), the tokens of S sequences one after the other. first: f32 (H, D), what a token's own
    key and value count. state: f32 (S, H * D * D), read as (S, H, D, D) [key, value].
    Returns: f32 (T + D * S, H * D): the tokens' rows, then the states after them. Raises: ShapeError, DTypeError.
    Source: Peng et al. 2024, "Eagle and Finch: RWKV with matrix-valued states and dynamic recurrence".
    """
    st, k, v, r, decay = _sequences(state, k, v, r, decay)
    y = np.zeros(k.shape)
    for t in range(k.shape[1]):
        kv = k[:, t, :, :, None] * v[:, t, :, None, :]
        y[:, t] = np.sum(r[:, t, :, :, None] * (first[:, :, None] * kv + st), -2)
        st = decay[:, t, :, :, None] * st + kv
    return _packed(y, st)


_SMALL = rand(6, 3, 8, low=-0.3, high=0.3)


@op(
    shape=_rows("r", "w", "k", "v", "a", "b"),
    dtype=always(f32),
    work=_per_cell(5),
    accepts=dict.fromkeys(("r", "w", "k", "v", "a", "b", "state"), (f32,)),
    tolerance="R",
    priority="P1",
    cases=[
        case(_T, _DECAYS, _T, _T, _SMALL, _SMALL, rand(1, 192)),
        case(_T, _DECAYS, _T, _T, _SMALL, _SMALL, rand(3, 192)),
        case(
            _LONG,
            rand(64, 2, 17, low=0.3, high=0.9),
            _LONG,
            _LONG,
            *[rand(64, 2, 17, low=-0.2, high=0.2)] * 2,
            rand(2, 578),
        ),
        case(*[rand(2, 1, 65)] * 4, *[rand(2, 1, 65, low=-0.2, high=0.2)] * 2, rand(2, 4225)),
        case(*[_WIDE] * 4, *[rand(2, 1, 257, low=-0.1, high=0.1)] * 2, rand(1, 257 * 257)),
        case(values([[[1.0, NAN]], [[1.0, INF]]]), *[rand(2, 1, 2, low=0.5)] * 5, rand(2, 4)),
        case(*[_ONE] * 6, rand(1, 1)),
        case(*[rand(0, 3, 8)] * 6, rand(2, 192)),
        case(*[rand(4, 0, 8)] * 6, rand(2, 0)),
        case(_T, _DECAYS, _T, _T, _SMALL, _SMALL, rand(4, 192), raises=ShapeError),
        case(_T, _DECAYS, _T, _T, rand(6, 3, 4), _SMALL, rand(2, 192), raises=ShapeError),
        case(_T, _DECAYS, _T, _T, _SMALL, _SMALL, rand(2, 3, 64), raises=ShapeError),
        case(_T, _DECAYS, _T, _T, _SMALL, _SMALL, rand(2, 192, dtype=f16), raises=DTypeError),
    ],
)
def rwkv_wkv7(r: Array, w: Array, k: Array, v: Array, a: Array, b: Array, state: Array) -> Array:
    """RWKV 7: st[i, j] = st[i, j] * w[j] + v[i] * k[j] + sa[i] * b[j]; y[i] = sum over j of st[i, j] * r[j].

    sa[i] is the sum over j of a[j] * st[i, j], of the state before the token.

    r, w, k, v, a, b: f32 (T, H, D), the tokens of S sequences one after the other. state: f32 (S, H * D * D), read as
    (S, H, D, D) [value, key].
    Returns: f32 (T + D * S, H * D): the tokens' rows, then the states after them. Raises: ShapeError, DTypeError.
    Source: Peng et al. 2025, "RWKV-7 Goose with expressive dynamic state evolution".
    """
    st, r, w, k, v, a, b = _sequences(state, r, w, k, v, a, b)
    y = np.zeros(k.shape)
    for t in range(k.shape[1]):
        sa = np.sum(a[:, t, :, None, :] * st, -1)
        st = st * w[:, t, :, None, :] + v[:, t, :, :, None] * k[:, t, :, None, :] + sa[..., None] * b[:, t, :, None, :]
        y[:, t] = np.sum(st * r[:, t, :, None, :], -1)
    return _packed(y, st)


@op(
    shape=_rows("k", "v", "q", "g"),
    dtype=always(f32),
    work=_per_cell(3),
    accepts=dict.fromkeys(("k", "v", "q", "g", "state"), (f32,)),
    tolerance="R",
    priority="P1",
    cases=[
        case(_T, _T, _T, _DECAYS, rand(1, 192), scale=0.35),
        case(_T, _T, _T, _DECAYS, rand(3, 192), scale=-1.0),
        case(_LONG, _LONG, _LONG, rand(64, 2, 17, low=0.3, high=1.0), rand(2, 578), scale=0.25),
        case(*[rand(2, 1, 65)] * 4, rand(2, 4225), scale=0.125),
        case(*[_WIDE] * 4, rand(1, 257 * 257), scale=0.0625),
        case(values([[[1.0, NAN]], [[1.0, INF]]]), *[rand(2, 1, 2, low=0.5)] * 3, rand(2, 4), scale=1.0),
        case(*[_ONE] * 4, rand(1, 1), scale=1.0),
        case(*[rand(0, 3, 8)] * 4, rand(2, 192), scale=1.0),
        case(*[rand(4, 0, 8)] * 4, rand(2, 0), scale=1.0),
        case(_T, _T, _T, _DECAYS, rand(4, 192), scale=1.0, raises=ShapeError),
        case(_T, _T, _T, rand(6, 3, 1), rand(2, 192), scale=1.0, raises=ShapeError),
        case(_T, _T, _T, _DECAYS, rand(2, 192), raises=AttributeValueError),
        case(_T, _T, _T, rand(6, 3, 8, dtype=f16), rand(2, 192), scale=1.0, raises=DTypeError),
    ],
)
def gated_linear_attention(k: Array, v: Array, q: Array, g: Array, state: Array, *, scale: float) -> Array:
    """st[i, j] = st[i, j] * g[i] + k[i] * v[j]; y[j] = scale * sum over i of q[i] * st[i, j].

    k, v, q, g: f32 (T, H, D), the tokens of S sequences one after the other. state: f32 (S, H * D * D), read as
    (S, H, D, D) [key, value]. scale: times the result.
    Returns: f32 (T + D * S, H * D): the tokens' rows, then the states after them.
    Raises: ShapeError, DTypeError, AttributeValueError.
    Source: Yang et al. 2023, "Gated linear attention transformers with hardware-efficient training".
    """
    st, k, v, q, g = _sequences(state, k, v, q, g)
    y = np.zeros(k.shape)
    for t in range(k.shape[1]):
        st = st * g[:, t, :, :, None] + k[:, t, :, :, None] * v[:, t, :, None, :]
        y[:, t] = scale * np.sum(q[:, t, :, :, None] * st, -2)
    return _packed(y, st)


def _delta(call: Call) -> Shape:
    e = extents(call, v="S T H D", beta="S T H 1", state="S H D D", q="s T h D")
    extents(call, v="S T H D", k="s T h D")
    S, T, H, D, g = e["S"], e["T"], e["H"], e["D"], call["g"].shape
    if g not in ((S, T, H, 1), (S, T, H, D)):
        raise call.shape_error(f"g is {list(g)}, must be [{S}, {T}, {H}, 1] or [{S}, {T}, {H}, {D}]")
    for name in ("q", "k"):
        multiple(call, "v", -4, name, -4)
        multiple(call, "v", -2, name, -2)
    return (S * T + call.attr("snapshots") * S * D, H * D)


def _delta_work(call: Call, result: Spec) -> Work:
    return Work(4 * call["v"].size * call["v"].shape[-1], touched(call, result))


_V, _G, _BETA = rand(2, 5, 4, 8), rand(2, 5, 4, 1, low=-2, high=0), rand(2, 5, 4, 1, low=0.0)
_QK, _M = rand(2, 5, 2, 8, low=-0.4, high=0.4), rand(2, 4, 8, 8)


@op(
    shape=_delta,
    dtype=always(f32),
    work=_delta_work,
    accepts=dict.fromkeys(("q", "k", "v", "g", "beta", "state"), (f32,)),
    check=snapshots_are_counted,
    tolerance="R",
    priority="P1",
    cases=[
        case(_QK, _QK, _V, _G, _BETA, _M),
        case(_QK, _QK, _V, rand(2, 5, 4, 8, low=-2, high=0), _BETA, _M),
        case(rand(1, 5, 4, 8), rand(2, 5, 1, 8, low=-0.4, high=0.4), _V, _G, _BETA, _M, snapshots=3),
        case(_QK, _QK, _V, _G, _BETA, _M, snapshots=7),
        case(
            *[rand(1, 64, 2, 32, low=-0.2, high=0.2)] * 2,
            rand(1, 64, 6, 32),
            rand(1, 64, 6, 1, low=-1, high=0),
            rand(1, 64, 6, 1, low=0.0),
            rand(1, 6, 32, 32),
        ),
        case(
            *[rand(1, 2, 1, 65, low=-0.2, high=0.2)] * 2,
            rand(4, 2, 1, 65),
            rand(4, 2, 1, 65, low=-2, high=0),
            rand(4, 2, 1, 1, low=0.0),
            rand(4, 1, 65, 65),
        ),
        case(
            *[rand(1, 2, 1, 257, low=-0.1, high=0.1)] * 2,
            rand(1, 2, 1, 257),
            rand(1, 2, 1, 257, low=-2, high=0),
            rand(1, 2, 1, 1, low=0.0),
            rand(1, 1, 257, 257),
        ),
        case(
            *[rand(2, 2, 1, 2)] * 2,
            values([[[[1.0, NAN]], [[1.0, 2.0]]], [[[1.0, 2.0]], [[INF, 2.0]]]]),
            values([[[[-INF]], [[0.0]]], [[[-1.0]], [[-200.0]]]]),
            rand(2, 2, 1, 1, low=0.5),
            rand(2, 1, 2, 2),
        ),
        case(*[rand(1, 1, 1, 1)] * 5, rand(1, 1, 1, 1)),
        case(*[rand(2, 0, 2, 8)] * 2, rand(2, 0, 4, 8), *[rand(2, 0, 4, 1)] * 2, _M, snapshots=2),
        case(*[rand(0, 5, 2, 8)] * 2, rand(0, 5, 4, 8), *[rand(0, 5, 4, 1)] * 2, rand(0, 4, 8, 8)),
        case(_QK, rand(2, 4, 2, 8), _V, _G, _BETA, _M, raises=ShapeError),
        case(_QK, rand(2, 5, 3, 8), _V, _G, _BETA, _M, raises=ShapeError),
        case(_QK, _QK, _V, rand(2, 5, 4, 2), _BETA, _M, raises=ShapeError),
        case(_QK, _QK, _V, _G, rand(2, 5, 4), _M, raises=ShapeError),
        case(_QK, _QK, _V, _G, _BETA, rand(2, 4, 64), raises=ShapeError),
        case(_QK, _QK, _V, _G, _BETA, _M, snapshots=0, raises=AttributeValueError),
        case(_QK, _QK, rand(2, 5, 4, 8, dtype=f16), _G, _BETA, _M, raises=DTypeError),
    ],
)
def gated_delta_net(q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array, *, snapshots: int = 1) -> Array:
    """The gated delta rule: a matrix of each head fades, and what it answers to a key moves towards the value.

    M[j, i] = M[j, i] * exp(g[i]); delta[j] = beta * (v[j] - sum over i of M[j, i] * k[i]); M[j, i] += delta[j] * k[i];
    y[j] = sum over i of M[j, i] * q[i] / sqrt(D).

    q, k: f32 (s, T, h, D), each with its own s and h. s divides S and is grouped: sequence i reads i // (S // s). h
        divides H and repeats cyclically: head i reads i % h.
    v: f32 (S, T, H, D). g: f32 (S, T, H, 1) or (S, T, H, D). beta: f32 (S, T, H, 1).
    state: f32 (S, H, D, D) as M [value, key]. snapshots: at least 1, how many states are given back.
    Returns: f32 (S * T + snapshots * S * D, H * D): y (S, T, H, D), then the states (snapshots, S, H, D, D), the newest
    first: number j is the state before the last j tokens. Where there are fewer tokens it is the state before all of
    them. Raises: ShapeError, DTypeError, AttributeValueError.
    Source: Yang et al. 2024, "Gated delta networks: improving Mamba2 with delta rule".
    """
    S, T, H, D = v.shape
    q, k = (np.repeat(each, S // max(1, len(each)), 0)[:, :, np.arange(H) % each.shape[2]] for each in (q, k))
    states, y = deque([state], snapshots), np.zeros(v.shape)
    for t in range(T):
        M = states[-1] * np.exp(g[:, t, :, None, :])
        delta = beta[:, t] * (v[:, t] - np.sum(M * k[:, t, :, None, :], -1))
        M = M + delta[..., None] * k[:, t, :, None, :]
        y[:, t] = np.sum(M * q[:, t, :, None, :], -1) / math.sqrt(D)
        states.append(M)
    return _packed(y, newest_first(states, snapshots))
