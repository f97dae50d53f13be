"""Recipes (see recipes.py) of the ops that mix tokens beside attention: its companions, and recurrences.

Decays and keys are small enough for a state not to grow, however many tokens there are.
"""

from __future__ import annotations

import numpy as np

from jackfield.dtypes import i32
from jackfield.op import Case, ints, rand, values

SMALL = {"low": -0.2, "high": 0.2}


def slots(count, of):
    """Slots of states, each of them there; 0 where there is none."""
    return values(np.arange(count)[::-1] % max(of, 1), i32)


def top_k_mask(e):
    lead = e["S"], e["H"], e["T"]
    return Case(
        {
            "mask": rand(1, 1, e["T"], e["N"], shut=0.3),
            "picks": ints(*lead, e["K"], low=-1, high=e["B"] + 2),
            "score": rand(*lead, e["B"], shut=0.3),
            "blocks": ints(e["B"], e["X"], low=-1, high=e["N"] + 1),
            "extra": ints(*lead, e["E"], low=-1, high=e["N"] + 1),
        }
    )


def lightning_indexer(e):
    return Case(
        {
            "q": rand(e["S"], e["T"], e["H"], e["D"]),
            "k": rand(e["S"], e["N"], 1, e["D"]),
            "weights": rand(e["S"], 1, e["T"], e["H"]),
            "mask": rand(1, 1, e["T"], e["N"], shut=0.3),
        }
    )


def weights(e):
    length = (2 + e["C"]) * e["C"]
    operands = {"mixes": rand(e["T"], length, low=-4, high=4), "scale": rand(3), "base": rand(length)}
    return Case(operands, {"eps": 1e-6, "iterations": 3})


def going_in(e):
    return Case({"x": rand(e["T"], e["C"], e["E"]), "weights": rand(e["T"], e["C"])})


def coming_out(e):
    T, C, E = e["T"], e["C"], e["E"]
    return Case({"x": rand(T, E), "residual": rand(T, C, E), "post": rand(T, C), "mix": rand(T, C, C)})


def ssm_conv(e):
    return Case({"x": rand(e["S"], e["C"], max(0, e["D"] - 1 + e["T"])), "weight": rand(e["C"], e["D"])})


def ssm_scan(e):
    S, T, H, P, N = e["S"], e["T"], e["H"] * e["G"], e["P"], e["N"]
    return Case(
        {
            "state": rand(S + 1, H, P, N),
            "x": rand(S, T, H, P),
            "dt": rand(S, T, H, low=-3, high=1),
            "a": rand(H, 1, low=-2, high=-0.1),
            "b": rand(S, T, e["G"], N),
            "c": rand(S, T, e["G"], N),
            "ids": slots(S, S + 1),
        },
        {"snapshots": 2},
    )


def _rows(e, **operands):
    """Operands of equal shape by the bounds of their numbers, and the state."""
    shape = e["S"] * e["T"], e["H"], e["D"]
    drawn = {name: rand(*shape, **bounds) for name, bounds in operands.items()}
    return drawn | {"state": rand(e["S"], e["H"] * e["D"] * e["D"])}


DECAY = {"low": 0.3, "high": 0.9}


def wkv6(e):
    return Case(_rows(e, k={}, v={}, r={}, decay=DECAY) | {"first": rand(e["H"], e["D"])})


def wkv7(e):
    return Case(_rows(e, r={}, w=DECAY, k={}, v={}, a=SMALL, b=SMALL))


def gated(e):
    return Case(_rows(e, k={}, v={}, q={}, g=DECAY), {"scale": 0.5})


def delta(e):
    S, T, H, D = e["S"] * e["R"], e["T"], e["H"] * e["G"], e["D"]
    return Case(
        {
            "q": rand(e["S"], T, H, D),
            "k": rand(S, T, e["H"], D, **SMALL),
            "v": rand(S, T, H, D),
            "g": rand(S, T, H, D, low=-2, high=0),
            "beta": rand(S, T, H, 1, low=0, high=1),
            "state": rand(S, H, D, D),
        },
        {"snapshots": 2},
    )


MIXERS = {
    "top_k_mask": ("SHTKBXEN", top_k_mask),
    "lightning_indexer": ("SHTDN", lightning_indexer),
    "hyper_connection_weights": ("CT", weights),
    "hyper_connection_in": ("TCE", going_in),
    "hyper_connection_out": ("TCE", coming_out),
    "ssm_conv": ("SCDT", ssm_conv),
    "ssm_scan": ("SHGPNT", ssm_scan),
    "rwkv_wkv6": ("SHDT", wkv6),
    "rwkv_wkv7": ("SHDT", wkv7),
    "gated_linear_attention": ("SHDT", gated),
    "gated_delta_net": ("SRHGDT", delta),
}
