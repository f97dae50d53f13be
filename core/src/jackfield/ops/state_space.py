"""State-space layers as in Mamba: a short causal convolution, and the scan of a state along the tokens."""

from __future__ import annotations

from collections import deque

import numpy as np

from jackfield.dtypes import f16, f32, i32
from jackfield.errors import AttributeValueError, DTypeError, ShapeError
from jackfield.op import Array, Call, Work, case, ints, op, rand, values
from jackfield.ops.elementwise import INF, NAN
from jackfield.rules import always, extents, known, multiple, newest_first, touched
from jackfield.spec import Shape, Spec


def _convolved(call: Call) -> Shape:
    e = extents(call, x="S C L", weight="C d")
    T = e["L"] - e["d"] + 1
    if e["d"] < 1 or T < 0:
        raise call.shape_error(
            f"x ends in {e['L']} and weight in {e['d']}: weight must have taps, x at least one input fewer than taps"
        )
    return (e["S"], T, e["C"])


@op(
    shape=_convolved,
    dtype=always(f32),
    work=lambda call, result: Work(result.size * call["weight"].shape[1], touched(call, result)),
    accepts={"x": (f32,), "weight": (f32,)},
    tolerance="R",
    priority="P1",
    cases=[
        case(rand(2, 5, 10), rand(5, 4)),
        case(rand(1, 257, 4), rand(257, 4)),
        case(rand(3, 33, 35), rand(33, 3)),
        case(rand(2, 256, 7), rand(256, 1)),
        case(values([[[NAN, 1.0, 2.0, 3.0, 4.0], [0.0, INF, 2.0, 3.0, 4.0]]]), rand(2, 3, low=0.5)),
        case(rand(1, 1, 1), rand(1, 1)),
        case(rand(2, 5, 3), rand(5, 4)),
        case(rand(0, 5, 6), rand(5, 4)),
        case(rand(2, 0, 6), rand(0, 4)),
        case(rand(2, 5, 2), rand(5, 4), raises=ShapeError),
        case(rand(2, 5, 6), rand(5, 0), raises=ShapeError),
        case(rand(2, 5, 6), rand(4, 4), raises=ShapeError),
        case(rand(5, 6), rand(5, 4), raises=ShapeError),
        case(rand(2, 5, 6, dtype=f16), rand(5, 4), raises=DTypeError),
    ],
)
def ssm_conv(x: Array, weight: Array) -> Array:
    """Each channel convolved with its own taps: y[s, t, c] = sum over j of x[s, c, t + j] * weight[c, j].

    x: f32 (S, C, d - 1 + T): sequences, channels, tokens behind the last d - 1 inputs before them.
    weight: f32 (C, d), the last tap for the token itself.
    Returns: f32 (S, T, C). Raises: ShapeError, DTypeError. Source: Gu and Dao 2023, "Mamba".
    """
    d = weight.shape[1]
    T = x.shape[2] - d + 1
    y = np.zeros((x.shape[0], T, x.shape[1]))
    for j in range(d):
        y += np.swapaxes(x[:, :, j : j + T], 1, 2) * weight[:, j]
    return y


def _scanned(call: Call) -> Shape:
    e = extents(call, x="S T H P", dt="S T H", state="A H P N", b="S T G N", c="S T G N", ids="S")
    H, N, a = e["H"], e["N"], call["a"]
    if a.shape not in ((H, N), (H, 1)):
        raise call.shape_error(f"a is {list(a.shape)}, must be [{H}, {N}] or [{H}, 1]")
    multiple(call, "x", -2, "b", -2)
    return (e["S"] * (e["T"] * H * e["P"] + call.attr("snapshots") * H * e["P"] * N),)


def snapshots_are_counted(call: Call) -> None:
    """At least the last state is asked for."""
    if call.attr("snapshots") < 1:
        raise call.attr_error(f"snapshots is {call.attr('snapshots')}, must be at least 1: the last state")


def _keeps(call: Call) -> None:
    snapshots_are_counted(call)
    a, snapshots = call["a"], call.attr("snapshots")
    if a.rank == 2 and a.shape[1] > 1 and snapshots > 1:
        raise call.attr_error(f"snapshots is {snapshots} and a {list(a.shape)}: must be 1 unless a is [heads, 1]")


def _scan_work(call: Call, result: Spec) -> Work:
    """Of the states only the rows that `ids` names are read."""
    (S, T, H, P), state = call["x"].shape, call["state"]
    read = Spec(state.dtype, (S, *state.shape[1:])).nbytes
    rest = touched(call, result) - state.nbytes
    return Work(3 * S * T * H * P * state.shape[3], read + rest)


@op(
    shape=_scanned,
    dtype=always(f32),
    work=_scan_work,
    accepts={
        "state": (f32,),
        "x": (f32,),
        "dt": (f32,),
        "a": (f32,),
        "b": (f32,),
        "c": (f32,),
        "ids": (i32,),
    },
    check=_keeps,
    tolerance="R",
    priority="P1",
    cases=[
        case(
            rand(5, 4, 3, 16),
            rand(2, 7, 4, 3),
            rand(2, 7, 4, low=-3, high=2),
            rand(4, 1, low=-2, high=-0.1),
            rand(2, 7, 2, 16),
            rand(2, 7, 2, 16),
            values([4, 1], dtype=i32),
        ),
        case(
            rand(2, 33, 1, 16),
            rand(1, 9, 33, 1),
            rand(1, 9, 33, low=-3, high=2),
            rand(33, 16, low=-2, high=-0.1),
            rand(1, 9, 1, 16),
            rand(1, 9, 1, 16),
            values([1], dtype=i32),
        ),
        case(
            rand(3, 2, 4, 8),
            rand(2, 5, 2, 4),
            rand(2, 5, 2),
            rand(2, 1, low=-2, high=-0.1),
            rand(2, 5, 2, 8),
            rand(2, 5, 2, 8),
            values([2, 2], dtype=i32),
            snapshots=3,
        ),
        case(  # more snapshots than tokens
            rand(3, 2, 4, 8),
            rand(1, 2, 2, 4),
            rand(1, 2, 2),
            rand(2, 1, low=-2, high=-0.1),
            rand(1, 2, 1, 8),
            rand(1, 2, 1, 8),
            values([0], dtype=i32),
            snapshots=5,
        ),
        case(  # no token: the state is copied
            rand(3, 2, 4, 8),
            rand(2, 0, 2, 4),
            rand(2, 0, 2),
            rand(2, 8, low=-2, high=-0.1),
            rand(2, 0, 1, 8),
            rand(2, 0, 1, 8),
            values([2, 0], dtype=i32),
        ),
        case(  # states that are not there
            rand(3, 2, 4, 8),
            rand(3, 2, 2, 4),
            rand(3, 2, 2),
            rand(2, 1, low=-2, high=-0.1),
            rand(3, 2, 1, 8),
            rand(3, 2, 1, 8),
            values([1, 3, -1], dtype=i32),
        ),
        case(
            rand(2, 1, 2, 257),
            rand(1, 64, 1, 2),
            rand(1, 64, 1, low=-3, high=0),
            rand(1, 1, low=-2, high=-0.1),
            rand(1, 64, 1, 257),
            rand(1, 64, 1, 257),
            values([1], dtype=i32),
        ),
        case(
            rand(1, 1, 1, 2),
            values([[[[1.0]], [[NAN]]], [[[2.0]], [[INF]]], [[[1.0]], [[2.0]]]]),
            values([[[30.0], [0.0]], [[-200.0], [0.0]], [[0.5], [-0.5]]]),
            values([[-1.0, -2.0]]),
            rand(3, 2, 1, 2, low=0.5),
            rand(3, 2, 1, 2, low=0.5),
            values([0, 0, 0], dtype=i32),
        ),
        case(
            rand(1, 1, 1, 1),
            rand(1, 1, 1, 1),
            rand(1, 1, 1),
            rand(1, 1),
            rand(1, 1, 1, 1),
            rand(1, 1, 1, 1),
            values([0], dtype=i32),
        ),
        case(
            rand(2, 2, 3, 0),
            rand(1, 2, 2, 3),
            rand(1, 2, 2),
            rand(2, 1),
            rand(1, 2, 1, 0),
            rand(1, 2, 1, 0),
            values([1], dtype=i32),
        ),
        *(
            case(
                rand(3, 4, 3, 8),
                rand(2, 5, heads, 3, dtype=dtype),
                rand(2, 5, 4),
                rand(4, width),
                rand(2, 5, groups, 8),
                rand(2, 5, groups, 8),
                ints(2, high=3),
                snapshots=snapshots,
                raises=error,
            )
            for heads, width, groups, snapshots, dtype, error in (
                (3, 1, 2, 1, None, ShapeError),
                (4, 2, 2, 1, None, ShapeError),
                (4, 1, 3, 1, None, ShapeError),
                (4, 1, 2, 0, None, AttributeValueError),
                (4, 8, 2, 2, None, AttributeValueError),
                (4, 1, 2, 1, f16, DTypeError),
            )
        ),
    ],
)
def ssm_scan(
    state: Array, x: Array, dt: Array, a: Array, b: Array, c: Array, ids: Array, *, snapshots: int = 1
) -> Array:
    """A selective scan: each head's state decays, takes in the token's input, and is read out.

    d = softplus(dt[s, t, h]); st[p, n] = st[p, n] * exp(d * a[h, n]) + x[s, t, h, p] * d * b[s, t, g, n];
    y[s, t, h, p] = sum over n of st[p, n] * c[s, t, g, n]; g = h // (H // G).

    state: f32 (slots, H, P, N). ids: i32 (S,), the slot that each sequence goes on from; one outside gives zeros in
        all that is the sequence's, and a BadIndex.
    x: f32 (S, T, H, P). dt: f32 (S, T, H). a: f32 (H, N) or (H, 1). b, c: f32 (S, T, G, N), G divides H.
    snapshots: at least 1, how many states are given back; more than 1 only with a of (H, 1).
    Returns: f32, one axis: y (S, T, H, P), then the states (snapshots, S, H, P, N), the newest first: number j is the
    state before the last j tokens. Where there are fewer tokens it is the state before all of them.
    Raises: ShapeError, DTypeError, AttributeValueError.
    Source: Gu and Dao 2023, "Mamba"; Dao and Gu 2024, "Transformers are SSMs", for a of one number a head.
    """
    S, T, H, _ = x.shape
    found = known("ids", ids, len(state))
    st = np.zeros((S, *state.shape[1:]))
    st[found] = state[ids[found]]
    states, y = deque([st], snapshots), np.zeros(x.shape)
    d = np.logaddexp(0, dt)
    b, c = (np.repeat(each, H // max(1, each.shape[2]), 2) for each in (b, c))
    for t in range(T):
        decay = np.exp(d[:, t, :, None] * a)
        taken = (x[:, t] * d[:, t, :, None])[..., None] * b[:, t, :, None, :]
        st = st * decay[:, :, None, :] + taken
        y[:, t] = np.sum(st * c[:, t, :, None, :], -1)
        states.append(st)
    kept = newest_first(states, snapshots)
    y[~found], kept[:, ~found] = 0, 0
    return np.concatenate([y.reshape(-1), kept.reshape(-1)])
