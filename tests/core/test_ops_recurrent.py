"""Recurrences against golden values and closed forms that know no state: sums over pairs of tokens, matrix products."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jackfield import ops
from jackfield.errors import AttributeValueError, ShapeError
from jackfield.op import collect

seeds = st.integers(0, 2**31)
RWKV = ("rwkv_wkv6", "rwkv_wkv7", "gated_linear_attention")


def drawn(rng, *shape, low=-1.0, high=1.0):
    return rng.uniform(low, high, shape).astype(np.float32)


def wide(*arrays):
    return [a.astype(np.float64) for a in arrays]


def close(got, want, tolerance=1e-5):
    want = np.asarray(want)
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * max(1.0, float(np.abs(want).max(initial=0))))


def cells(*values):
    return np.array(values, np.float32)


# golden values


def test_golden_scan():
    got = ops.ssm_scan.run(
        cells(1, 2).reshape(1, 1, 1, 2),
        cells(3).reshape(1, 1, 1, 1),
        np.zeros((1, 1, 1), np.float32),
        cells(-1, -2).reshape(1, 2),
        cells(1, 0.5).reshape(1, 1, 1, 2),
        cells(1, 1).reshape(1, 1, 1, 2),
        np.zeros(1, np.int32),
    )
    np.testing.assert_allclose(got, [4.119162, 2.579442, 1.539721], atol=6e-7)


K, V, R = (cells(*pair).reshape(1, 1, 2) for pair in ((1, 2), (3, 5), (1, 1)))
HALF = cells(0.5, 0.25).reshape(1, 1, 2)
STATE = cells(1, 2, 3, 4).reshape(1, 4)


def test_golden_rwkv():
    got = ops.rwkv_wkv6.run(K, V, R, cells(0.1, 0.2).reshape(1, 2), HALF, STATE)
    np.testing.assert_allclose(got, [[5.5, 8.5], [3.5, 6], [6.75, 11]], atol=6e-7)
    got = ops.rwkv_wkv7.run(R, HALF, K, V, cells(1, -1).reshape(1, 1, 2), cells(0.5, 0.5).reshape(1, 1, 2), STATE)
    np.testing.assert_allclose(got, [[9, 16.5], [3, 6], [6, 10.5]], atol=6e-7)


def test_golden_gated_delta_net():
    four = (1, 1, 1, 2)
    got = ops.gated_delta_net.run(
        cells(1, 1).reshape(four),
        cells(0.6, 0.8).reshape(four),
        cells(2, -1).reshape(four),
        cells(math.log(0.5)).reshape(1, 1, 1, 1),
        cells(0.5).reshape(1, 1, 1, 1),
        np.eye(2, dtype=np.float32).reshape(1, 1, 2, 2),
    )
    np.testing.assert_allclose(got, [[1.195010, -0.339411], [1.01, 0.68], [-0.42, -0.06]], atol=6e-7)


# the same numbers, got another way


@given(seeds)
def test_convolution_is_numpys_correlation(seed):
    rng = np.random.default_rng(seed)
    S, C, T, d = (int(n) for n in rng.integers(1, 6, 4))
    x, weight = drawn(rng, S, C, d - 1 + T), drawn(rng, C, d)
    want = [[np.correlate(x[s, c], weight[c], "valid") for c in range(C)] for s in range(S)]
    close(ops.ssm_conv.run(x, weight), np.swapaxes(want, 1, 2), 1e-6)


def scan_operands(rng, *, each):
    """state, x, dt, a, b, c, ids; each: a has a number for each of N."""
    S, T, G, g, P, N = (int(n) for n in rng.integers(1, 5, 6))
    H = G * g
    return (
        drawn(rng, S + 2, H, P, N),
        drawn(rng, S, T, H, P),
        drawn(rng, S, T, H, low=-3, high=2),
        drawn(rng, H, N if each else 1, low=-2, high=0),
        drawn(rng, S, T, G, N),
        drawn(rng, S, T, G, N),
        rng.integers(0, S + 2, S).astype(np.int32),
    )


def scan_by_pairs(state, x, dt, a, b, c, ids):
    """(y, last state): token t sees token u faded by all tokens in between, and the first state by all up to t."""
    state, x, dt, a, b, c = wide(state, x, dt, a, b, c)
    (_, T, H, _), N = x.shape, state.shape[3]
    b, c = (each[:, :, np.arange(H) * each.shape[2] // H] for each in (b, c))
    d = np.log1p(np.exp(dt))
    faded = np.cumsum(d[..., None] * np.broadcast_to(a, (H, N)), 1)  # (S, T, H, N), in logarithms
    between = np.exp(faded[:, :, None] - faded[:, None])  # (S, t, u, H, N)
    between *= np.tri(T)[None, :, :, None, None]
    y = np.einsum("sthn,stuhn,suhn,suh,suhp->sthp", c, between, b, d, x)
    y += np.einsum("sthn,sthn,shpn->sthp", c, np.exp(faded), state[ids])
    last = np.einsum("suhn,suhn,suh,suhp->shpn", between[:, -1], b, d, x)
    return y, last + np.exp(faded[:, -1])[:, :, None] * state[ids]


@given(seeds, st.booleans())
def test_scan_by_pairs_of_tokens(seed, each):
    operands = scan_operands(np.random.default_rng(seed), each=each)
    y, last = scan_by_pairs(*operands)
    close(ops.ssm_scan.run(*operands), np.concatenate([y.reshape(-1), last.reshape(-1)]))


def row_operands(rng, name, S=None, T=None):
    """Operands of one of RWKV by name; T tokens a sequence."""
    s, t, H, D = (int(n) for n in rng.integers(1, 6, 4))
    S, T = S or s, T or t
    shape = (S * T, H, D)
    names = {"rwkv_wkv6": "k v r decay", "rwkv_wkv7": "r w k v a b", "gated_linear_attention": "k v q g"}[name].split()
    found = {n: drawn(rng, *shape) for n in names}
    for n in ("decay", "w", "g"):
        if n in found:
            found[n] = drawn(rng, *shape, low=0.2)
    if name == "rwkv_wkv6":
        found["first"] = drawn(rng, H, D)
    if name == "rwkv_wkv7":
        found |= {n: drawn(rng, *shape, low=-0.3, high=0.3) for n in "ab"}
    return found | {"state": drawn(rng, S, H * D * D)}


ATTRS = {"gated_linear_attention": {"scale": 0.3}}


def pieces(got, S, T, H, D):
    """(y (S, T, H, D), states (n, S, H, D, D)) of a packed result."""
    return got[: S * T].reshape(S, T, H, D), got[S * T :].reshape(-1, S, H, D, D)


def one_by_matrices(name, o, s, t, h, before):
    """(y, state) of one token of one head, of products of matrices."""
    if name == "rwkv_wkv6":
        k, v, r, decay, u = o["k"][s, t, h], o["v"][s, t, h], o["r"][s, t, h], o["decay"][s, t, h], o["first"][h]
        return (r * u) @ k * v + r @ before, np.diag(decay) @ before + np.outer(k, v)
    if name == "rwkv_wkv7":
        r, w, k, v, a, b = (o[n][s, t, h] for n in "rwkvab")
        after = before @ (np.diag(w) + np.outer(a, b)) + np.outer(v, k)
        return after @ r, after
    k, v, q, g = (o[n][s, t, h] for n in "kvqg")
    after = np.diag(g) @ before + np.outer(k, v)
    return ATTRS[name]["scale"] * (q @ after), after


@pytest.mark.parametrize("name", RWKV)
@given(seeds)
def test_rows_by_matrices(name, seed):
    operands = row_operands(np.random.default_rng(seed), name)
    S = len(operands["state"])
    T, H, D = operands["k"].shape
    T //= S
    split = {n: a.astype(np.float64).reshape(S, T, H, D) for n, a in operands.items() if n not in ("first", "state")}
    if "first" in operands:
        split["first"] = operands["first"].astype(np.float64)
    state = operands["state"].astype(np.float64).reshape(S, H, D, D)
    want = np.zeros((S, T, H, D))
    for s, h in np.ndindex(S, H):
        for t in range(T):
            want[s, t, h], state[s, h] = one_by_matrices(name, split, s, t, h, state[s, h])
    y, states = pieces(getattr(ops, name).run(**operands, **ATTRS.get(name, {})), S, T, H, D)
    close(y, want)
    close(states, state[None])


def delta_operands(rng, *, wide_gate, T=None):
    s, grouped, t, Hk, cycles, D = (int(n) for n in rng.integers(1, 5, 6))
    T = t if T is None else T
    S, H = s * grouped, Hk * cycles
    return {
        "q": drawn(rng, s, T, H, D),
        "k": drawn(rng, S, T, Hk, D, low=-0.5, high=0.5),
        "v": drawn(rng, S, T, H, D),
        "g": drawn(rng, S, T, H, D if wide_gate else 1, low=-2, high=0),
        "beta": drawn(rng, S, T, H, 1, low=0),
        "state": drawn(rng, S, H, D, D),
    }


@given(seeds, st.booleans())
def test_delta_rule_by_matrices(seed, wide_gate):
    operands = delta_operands(np.random.default_rng(seed), wide_gate=wide_gate)
    q, k, v, g, beta, M = wide(*operands.values())
    S, T, H, D = v.shape
    want = np.zeros(v.shape)
    for s, h in np.ndindex(S, H):
        for t in range(T):
            key, query = k[s, t, h % k.shape[2]], q[s * len(q) // S, t, h]
            faded = M[s, h] @ np.diag(np.broadcast_to(np.exp(g[s, t, h]), D))
            rate = beta[s, t, h, 0]
            M[s, h] = faded @ (np.eye(D) - rate * np.outer(key, key)) + rate * np.outer(v[s, t, h], key)
            want[s, t, h] = M[s, h] @ query / math.sqrt(D)
    y, states = pieces(ops.gated_delta_net.run(**operands), S, T, H, D)
    close(y, want)
    close(states, M[None])


# what a state is good for


@given(seeds)
def test_a_scan_goes_on_where_it_stopped(seed):
    """And its earlier states are those of fewer tokens."""
    rng = np.random.default_rng(seed)
    state, x, dt, a, b, c, ids = scan_operands(rng, each=False)
    (S, T, H, P), N = x.shape, state.shape[3]
    snapshots = int(rng.integers(1, T + 3))
    got = ops.ssm_scan.run(state, x, dt, a, b, c, ids, snapshots=snapshots)
    kept = got[x.size :].reshape(snapshots, S, H, P, N)
    for j in range(snapshots):
        left = max(0, T - j)
        part = ops.ssm_scan.run(state, x[:, :left], dt[:, :left], a, b[:, :left], c[:, :left], ids)
        y, last = part[: S * left * H * P].reshape(S, left, H, P), part[S * left * H * P :].reshape(S, H, P, N)
        close(got[: x.size].reshape(x.shape)[:, :left], y)
        np.testing.assert_array_equal(kept[j], last)
        if left < T:  # the rest, from there
            rest = (x[:, left:], dt[:, left:], a, b[:, left:], c[:, left:])
            again = ops.ssm_scan.run(last, *rest, np.arange(S, dtype=np.int32))
            close(again[-kept[0].size :].reshape(kept[0].shape), kept[0])


@given(seeds, st.booleans())
def test_a_delta_net_goes_on_where_it_stopped(seed, wide_gate):
    rng = np.random.default_rng(seed)
    operands = delta_operands(rng, wide_gate=wide_gate)
    S, T, H, D = operands["v"].shape
    snapshots = int(rng.integers(1, T + 3))
    y, kept = pieces(ops.gated_delta_net.run(**operands, snapshots=snapshots), S, T, H, D)
    for j in range(snapshots):
        left = max(0, T - j)
        first = {n: a if n == "state" else a[:, :left] for n, a in operands.items()}
        some, (last,) = pieces(ops.gated_delta_net.run(**first), S, left, H, D)
        close(y[:, :left], some)
        np.testing.assert_array_equal(kept[j], last)
        rest = {n: last if n == "state" else a[:, left:] for n, a in operands.items()}
        _, (end,) = pieces(ops.gated_delta_net.run(**rest), S, T - left, H, D)
        close(end, kept[0])


@pytest.mark.parametrize("name", RWKV)
@given(seeds)
def test_rows_go_on_where_they_stopped(name, seed):
    rng = np.random.default_rng(seed)
    T, S = int(rng.integers(2, 7)), int(rng.integers(1, 4))
    cut = int(rng.integers(0, T + 1))
    operands = row_operands(rng, name, S, T)
    H, D = operands["k"].shape[1:]

    def run(state, start, stop):
        some = {
            n: a if n == "first" else a.reshape(S, T, H, D)[:, start:stop].reshape(-1, H, D)
            for n, a in operands.items()
            if n != "state"
        }
        packed = getattr(ops, name).run(**some, state=state.reshape(S, -1), **ATTRS.get(name, {}))
        return pieces(packed, S, stop - start, H, D)

    whole, (end,) = run(operands["state"], 0, T)
    first, (middle,) = run(operands["state"], 0, cut)
    second, (last,) = run(middle, cut, T)
    close(np.concatenate([first, second], 1), whole)
    close(last, end)


def test_without_tokens_the_state_is_copied():
    rng = np.random.default_rng(0)
    state, ids = drawn(rng, 4, 2, 3, 5), np.array([3, 0, 3], np.int32)
    nothing = [np.zeros((3, 0, 2, *rest), np.float32) for rest in ((3,), (), (5,), (5,))]
    x, dt, b, c = nothing
    got = ops.ssm_scan.run(state, x, dt, -np.ones((2, 1), np.float32), b, c, ids, snapshots=2)
    np.testing.assert_array_equal(got.reshape(2, 3, 2, 3, 5), np.stack([state[ids]] * 2))
    none, M = np.zeros((2, 0, 3, 4), np.float32), drawn(rng, 2, 3, 4, 4)
    got = ops.gated_delta_net.run(none, none, none, none, none[..., :1], M)
    np.testing.assert_array_equal(got.reshape(M.shape), M)
    for name in RWKV:
        operands = row_operands(rng, name)
        empty = {n: a if n in ("first", "state") else a[:0] for n, a in operands.items()}
        got = getattr(ops, name).run(**empty, **ATTRS.get(name, {}))
        np.testing.assert_array_equal(got.reshape(-1), operands["state"].reshape(-1))


def test_a_state_that_is_not_there_gives_zeros():
    rng = np.random.default_rng(1)
    S, T, H, P, N = 3, 4, 2, 3, 5
    operands = [drawn(rng, S, T, H, P), drawn(rng, S, T, H), -np.ones((H, 1), np.float32)]
    operands += [drawn(rng, S, T, 1, N), drawn(rng, S, T, 1, N)]
    state, found = drawn(rng, 6, H, P, N), []
    with collect(found):
        got = ops.ssm_scan.run(state, *operands, np.array([5, 6, -1], np.int32), snapshots=2)
    assert [(f.operand, f.value) for f in found] == [("ids", 6)]
    want = ops.ssm_scan.run(state, *operands, np.array([5, 0, 0], np.int32), snapshots=2)
    for part, whole in zip(
        (got[: S * T * H * P].reshape(1, S, -1), got[S * T * H * P :].reshape(2, S, -1)),
        (want[: S * T * H * P].reshape(1, S, -1), want[S * T * H * P :].reshape(2, S, -1)),
        strict=True,
    ):
        np.testing.assert_array_equal(part[:, 0], whole[:, 0])
        assert not part[:, 1:].any()
    empty = ops.ssm_scan.run(state[:0], *operands, np.zeros(3, np.int32))
    assert not empty.any()


def test_steps_that_overflow_e_to_the_x_are_what_they_are():
    """softplus(1000) is 1000, not infinity."""
    x, b = np.ones((1, 1, 1, 1), np.float32), np.ones((1, 1, 1, 1), np.float32)
    step = np.full((1, 1, 1), 1000, np.float32)
    got = ops.ssm_scan.run(x, x, step, np.zeros((1, 1), np.float32), b, b, np.zeros(1, np.int32))
    np.testing.assert_allclose(got, [1001, 1001], rtol=1e-7)


def test_errors_say_what_must_be():
    rows = [np.zeros((6, 3, 8), np.float32)] * 4
    with pytest.raises(ShapeError, match=r"\[gated_linear_attention\] state is \[2, 96\], must be \[2, 192\]"):
        ops.gated_linear_attention.run(*rows, np.zeros((2, 96), np.float32), scale=1.0)
    with pytest.raises(ShapeError, match=r"there are 6 tokens for 4 states: each must have equally many"):
        ops.gated_linear_attention.run(*rows, np.zeros((4, 192), np.float32), scale=1.0)
    with pytest.raises(ShapeError, match=r"\[gated_linear_attention\] v is \[6, 24\], must be \[6, 3, 8\]"):
        ops.gated_linear_attention.run(rows[0], np.zeros((6, 24), np.float32), *rows[2:], rows[0], scale=1.0)
    x = np.zeros((1, 2, 2, 3), np.float32)
    b = np.zeros((1, 2, 1, 4), np.float32)
    with pytest.raises(AttributeValueError, match=r"snapshots is 2 and a \[2, 4\]: must be 1 unless a is \[heads, 1\]"):
        ops.ssm_scan.run(
            np.zeros((1, 2, 3, 4), np.float32), x, x[..., 0], b[0, :, 0], b, b, np.zeros(1, np.int32), snapshots=2
        )
