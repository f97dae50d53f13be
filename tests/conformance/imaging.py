"""Recipes of convolution, images, windows, triangular systems, training and the host. See `recipes`.

A kernel's extents are A and B, the image is larger by D and E, so that there is always room for a window.
"""

from __future__ import annotations

import numpy as np

from jackfield.dtypes import i32
from jackfield.op import Case, ints, rand, values


def conv_1d(e):
    return Case({"x": rand(e["N"], e["C"], e["A"] + e["B"]), "weight": rand(e["M"], e["C"], e["A"])}, {"padding": 1})


def image(e):
    return rand(e["N"], e["C"], e["A"] + e["D"], e["B"] + e["E"])


def conv_2d(e):
    return Case({"x": image(e), "weight": rand(e["M"], e["C"], e["A"], e["B"])}, {"padding": (1, 0)})


def conv_3d(e):
    x = rand(e["N"] * e["C"], e["A"] + e["D"], 2, e["B"] + e["E"])
    return Case({"x": x, "weight": rand(e["M"] * e["C"], e["A"], 2, e["B"])}, {"channels": e["C"]})


def conv_1d_depthwise(e):
    return Case({"x": rand(e["N"], e["C"], e["A"] + e["B"]), "weight": rand(e["C"], 1, e["A"])}, {"padding": 1})


def conv_2d_depthwise(e):
    return Case({"x": image(e), "weight": rand(e["C"], 1, e["A"], e["B"])}, {"padding": (0, 1)})


def conv_transpose_1d(e):
    return Case({"x": rand(e["N"], e["C"], e["B"]), "weight": rand(e["C"], e["M"], e["A"])}, {"stride": 2})


def conv_transpose_2d(e):
    x = rand(e["N"], e["C"], e["D"], e["E"])
    return Case({"x": x, "weight": rand(e["C"], e["M"], e["A"], e["B"])}, {"stride": (2, 1)})


def im2col_3d(e):
    x = rand(e["N"] * e["C"], e["A"] + e["D"], 2, e["B"] + e["E"])
    return Case({"x": x}, {"channels": e["C"], "kernel": (e["A"], 2, e["B"])})


def pool_1d(e):
    how = {"kind": "mean", "kernel": e["A"], "stride": 2, "padding": min(1, e["A"] - 1)}
    return Case({"x": rand(e["N"], e["C"], e["A"] + e["D"])}, how)


def resize(e):
    shape = (e["N"], e["C"], 2 * e["A"], 3 * e["B"])
    return Case({"x": rand(e["N"], e["C"], e["A"], e["B"])}, {"shape": shape, "mode": "bilinear"})


def window_merge(e):
    windows = -(-e["A"] // 2) * -(-e["B"] // 2)
    return Case({"x": rand(windows, 2, 2, e["C"])}, {"shape": (e["A"], e["B"]), "window": 2})


def add_relative_positions(e):
    sides = {name: rand(e["S"], e["A"], e["B"], e["C"]) for name in ("width", "height")}
    return Case({"x": rand(e["S"], e["A"] * e["B"], e["C"] ** 2), **sides})


def solve_triangular(e):
    a = rand(e["A"], e["N"], e["N"], low=2.0, high=2.1)  # well conditioned at every size
    return Case({"a": a, "b": rand(e["A"], e["N"], e["B"])})


def rope_backward(e):
    factors = rand(e["P"], low=1, high=3)
    grad = rand(e["B"], e["T"], e["H"], 2 * e["P"] + e["C"])
    given = {"grad": grad, "positions": ints(e["T"], high=99), "frequency_factors": factors}
    return Case(given, {"mode": "neox", "n_dims": 2 * e["P"]})


def take_rows_backward(e):
    rows = ints(e["n"], high=e["R"]) if e["R"] else values(np.zeros(e["n"]), i32)
    return Case({"grad": rand(e["n"], e["C"]), "rows": rows}, {"count": e["R"]})


def im2col_backward(e):
    grad = rand(e["N"], e["D"] + 1, e["E"] + 1, e["C"] * e["A"] * e["B"])
    return Case({"grad": grad}, {"shape": image(e).shape, "kernel": (e["A"], e["B"])})


def pool_2d_backward(e):
    how = {"kind": "max", "kernel": (e["A"], e["B"]), "stride": 1}
    return Case({"grad": rand(e["N"], e["C"], e["D"] + 1, e["E"] + 1), "x": image(e)}, how)


def attention_backward(e):
    heads = e["H"] * e["G"]
    given = {
        "grad": rand(e["S"], e["T"], heads, e["V"]),
        "q": rand(e["S"], heads, e["T"], e["D"]),
        "k": rand(e["S"], e["H"], e["N"], e["D"]),
        "v": rand(e["S"], e["H"], e["N"], e["V"]),
        "mask": rand(1, 1, e["T"] + 1, e["N"], shut=0.3),
    }
    return Case(given, {"scale": 0.3})


def adamw_step(e):
    same = {name: rand(e["A"], e["B"], e["C"]) for name in ("target", "grad", "m")}
    params = values([0.01, 0.9, 0.999, 1e-8, 0.1, 2.0, 30.0])
    return Case({**same, "v": rand(e["A"], e["B"], e["C"], low=0), "params": params})


def sgd_step(e):
    same = {name: rand(e["A"], e["B"], e["C"]) for name in ("target", "grad")}
    return Case({**same, "params": values([0.1, 0.01])})


def total(*arrays):
    return np.float32(sum(array.size for array in arrays))


def _four(e):
    return rand(e["A"], e["B"], e["C"], e["D"])


# By op: the letters of its axes, and the case for their lengths.
IMAGING = {
    "conv_1d": ("NCMAB", conv_1d),
    "conv_2d": ("NCMDEAB", conv_2d),
    "conv_3d": ("NCMDEAB", conv_3d),
    "conv_1d_depthwise": ("NCAB", conv_1d_depthwise),
    "conv_2d_depthwise": ("NCDABE", conv_2d_depthwise),
    "conv_transpose_1d": ("NCMAB", conv_transpose_1d),
    "conv_transpose_2d": ("NCMABDE", conv_transpose_2d),
    "im2col": ("NCDABE", lambda e: Case({"x": image(e)}, {"kernel": (e["A"], e["B"])})),
    "im2col_3d": ("NCDABE", im2col_3d),
    "col2im_1d": ("TMA", lambda e: Case({"x": rand(e["T"], e["M"] * e["A"])}, {"stride": 2, "channels": e["M"]})),
    "pool_1d": ("NCAD", pool_1d),
    "pool_2d": (
        "NCDABE",
        lambda e: Case({"x": image(e)}, {"kind": "max", "kernel": (e["A"], e["B"]), "stride": (1, 2)}),
    ),
    "resize": ("NCAB", resize),
    "pad": ("ABC", lambda e: Case({"x": rand(e["A"], e["B"], e["C"])}, {"widths": ((0, 1), (1, 0), (2, 1))})),
    "roll": ("ABCD", lambda e: Case({"x": _four(e)}, {"shift": (1, -2), "axis": (1, 3)})),
    "timestep_embedding": ("AD", lambda e: Case({"t": rand(e["A"], high=99)}, {"dim": e["D"]})),
    "window_partition": ("ABC", lambda e: Case({"x": rand(e["A"], e["B"], e["C"])}, {"window": 2})),
    "window_merge": ("ABC", window_merge),
    "relative_positions": (
        "AC",
        lambda e: Case({"table": rand(max(0, 2 * e["A"] - 1), e["C"])}, {"queries": e["A"], "keys": e["A"]}),
    ),
    "add_relative_positions": ("SABC", add_relative_positions),
    "solve_triangular": ("ANB", solve_triangular),
    "silu_backward": ("ABCD", lambda e: Case({"grad": _four(e), "x": _four(e)})),
    "rms_norm_backward": ("ABCD", lambda e: Case({"grad": _four(e), "x": _four(e)}, {"eps": 1e-5})),
    "softmax_backward": ("ABCD", lambda e: Case({"grad": _four(e), "y": _four(e)}, {"scale": 0.5})),
    "rope_backward": ("BTHPC", rope_backward),
    "tile_backward": (
        "ArBC",
        lambda e: Case({"grad": rand(e["A"], e["r"] * e["B"], 2 * e["C"])}, {"shape": (e["A"], e["B"], e["C"])}),
    ),
    "take_rows_backward": ("nRC", take_rows_backward),
    "im2col_backward": ("NCDABE", im2col_backward),
    "pool_2d_backward": ("NCDABE", pool_2d_backward),
    "cross_entropy": (
        "ABD",
        lambda e: Case({name: rand(e["A"], e["B"], e["D"]) for name in ("logits", "labels")}),
    ),
    "cross_entropy_backward": (
        "ABD",
        lambda e: Case({"grad": rand(), **{name: rand(e["A"], e["B"], e["D"]) for name in ("logits", "labels")}}),
    ),
    "attention_backward": ("SHGTNDV", attention_backward),
    "adamw_step": ("ABC", adamw_step),
    "sgd_step": ("ABC", sgd_step),
    "host_call": (
        "AB",
        lambda e: Case({"a": rand(e["A"], e["B"])}, {"function": total, "shape": (), "dtype": "f32"}),
    ),
}

# Kernels without an element, no channels to divide by, no columns to embed in, a loss of no rows.
NOT_EMPTY = {(name, "A") for name in IMAGING if name.startswith("conv")}
NOT_EMPTY |= {(n, "B") for n in ("conv_2d", "conv_3d", "conv_2d_depthwise", "conv_transpose_2d")}
NOT_EMPTY |= {(n, k) for n in ("im2col", "im2col_3d", "im2col_backward", "pool_2d", "pool_2d_backward") for k in "AB"}
NOT_EMPTY |= {("conv_3d", "C"), ("im2col_3d", "C"), ("col2im_1d", "A"), ("col2im_1d", "M"), ("pool_1d", "A")}
NOT_EMPTY |= {("timestep_embedding", "D"), ("relative_positions", "A"), ("rope_backward", "P")}
NOT_EMPTY |= {(n, k) for n in ("cross_entropy", "cross_entropy_backward") for k in "AB"} | {("attention_backward", "H")}
