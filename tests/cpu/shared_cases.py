"""One case or more of every CPU kernel that is large enough for several workers: 64 Ki elements, or as much work.

A kernel that is not named here gets ROWS for each of its operands; what can't be made of them must be named.
"""

from __future__ import annotations

import numpy as np

from jackfield.conformance import Example, made
from jackfield.op import OPS

ROWS = (70, 1031)  # neither divides by a number of workers or by a vector


class Draws:
    """Random operands by what they are; the same for the same kernel."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __call__(self, *shape: int, low: float = -1.0, high: float = 1.0) -> np.ndarray:
        return self.rng.uniform(low, high, shape).astype(np.float32)

    def ids(self, *shape: int, low: int = 0, high: int) -> np.ndarray:
        return self.rng.integers(low, high, shape, np.int32)


def examples_of(name: str) -> list[Example]:
    """Raises: what building the op's node would raise."""
    draws, op = Draws(), OPS[name]
    if name not in CASES:
        return [made(op, {operand: draws(*ROWS) for operand in op.operands})]
    return [
        made(op, {n: v for n, v in case.items() if n in op.operands}, **_attrs(case, op)) for case in CASES[name](draws)
    ]


def _attrs(case, op):
    return {n: v for n, v in case.items() if n not in op.operands}


def _positive(f):
    return [{"x": f(*ROWS, low=1e-3, high=9)}]


def _products(f):
    yield {"x": f(33, 301), "weight": f(129, 301)}
    yield {"x": f(1, 1031), "weight": f(640, 1031)}


def _experts(f):
    yield {"x": f(17, 2, 65), "weight": f(5, 70, 65), "ids": f.ids(17, 4, low=-1, high=5)}


def _attention(f):
    yield {"q": f(1, 4, 67, 40), "k": f(1, 2, 131, 40), "v": f(1, 2, 131, 33), "scale": 0.2, "causal": True}
    yield {"q": f(1, 4, 1, 64), "k": f(1, 2, 1501, 64), "v": f(1, 2, 1501, 64), "scale": 0.1}


def _rope(f):
    for mode in ("normal", "neox"):
        yield {"x": f(301, 5, 66), "positions": f.ids(301, high=4000), "mode": mode, "n_dims": 64}


def _order(f):
    return [{"x": f(67, 301)}]


def _images(f):
    for mode in ("nearest", "bilinear", "bicubic"):
        yield {"x": f(2, 3, 50, 60), "shape": (2, 3, 131, 97), "mode": mode}
    yield {"x": f(2, 3, 141, 107), "shape": (2, 3, 131, 97), "mode": "bilinear", "antialias": True}


def _wkv6(f):
    k, v, r = (f(40, 7, 33) for _ in range(3))
    yield {"k": k, "v": v, "r": r, "first": f(7, 33), "decay": f(40, 7, 33, low=0.5), "state": f(2, 7 * 33 * 33)}


def _wkv7(f):
    r, k, v = (f(40, 7, 33) for _ in range(3))
    a, b = (f(40, 7, 33, low=-0.1, high=0.1) for _ in range(2))
    yield {"r": r, "w": f(40, 7, 33, low=0.5), "k": k, "v": v, "a": a, "b": b, "state": f(2, 7 * 33 * 33)}


def _linear_attention(f):
    k, v, q = (f(40, 7, 33) for _ in range(3))
    yield {"k": k, "v": v, "q": q, "g": f(40, 7, 33, low=0.5), "state": f(2, 7 * 33 * 33), "scale": 0.2}


def _delta(f):
    shared = {"g": f(2, 20, 7, 1, low=-1, high=0), "beta": f(2, 20, 7, 1, low=0), "state": f(2, 7, 33, 33)}
    q, k = (f(2, 20, 7, 33, low=-0.2, high=0.2) for _ in range(2))
    yield shared | {"q": q, "k": k, "v": f(2, 20, 7, 33), "snapshots": 2}


def _scan(f):
    shared = {"b": f(2, 30, 1, 16), "c": f(2, 30, 1, 16), "dt": f(2, 30, 41), "ids": np.array([2, 0], np.int32)}
    for width in (16, 1):
        a = f(41, width, low=-1, high=0)
        yield shared | {"state": f(3, 41, 33, 16), "x": f(2, 30, 41, 33), "a": a}


def _hyper_out(f):
    yield {"x": f(71, 331), "residual": f(71, 4, 331), "post": f(71, 4), "mix": f(71, 4, 4)}


def _indexer(f):
    mask = np.zeros((1, 1, 9, 301), np.float16)
    yield {"q": f(2, 9, 4, 33), "k": f(2, 301, 1, 33), "weights": f(2, 1, 9, 4), "mask": mask}


def _gathered(f):
    yield {"x": f(501, 303), "rows": f.ids(401, high=501)}


def _stored(f):
    rows = f.rng.permutation(1000)[:301].astype(np.int64)
    for kind in (np.float32, np.float16):
        yield {"target": f(1000, 303).astype(kind), "x": f(301, 303), "rows": rows}


def _solved(f):
    for lower in (True, False):
        yield {"a": f(3, 40, 40) + 8 * np.eye(40, dtype=np.float32), "b": f(3, 40, 97), "lower": lower}


def _padded(f):
    for mode, rows in (("constant", (3, 4)), ("wrap", (3, 4)), ("reflect", (0, 0))):
        yield {"x": f(*ROWS), "widths": (rows, (5, 6)), "mode": mode}


def _summed(f):
    return [{"x": f(17, 61, 103), "axis": axis} for axis in (-1, 1, 0)]


IMAGE = (2, 5, 83, 101)
CASES = {
    "sqrt": _positive,
    "log": _positive,
    "linear": _products,
    "linear_experts": _experts,
    "matmul": lambda f: [{"a": f(3, 33, 131), "b": f(3, 131, 67)}],
    "attention": _attention,
    "rope": _rope,
    "softmax": lambda f: [{"x": f(2, 5, 41, 301)}, {"x": f(1, 4, 67, 301), "mask": f(1, 1, 67, 301), "scale": 0.5}],
    "argsort": _order,
    "top_k": lambda f: [{"x": f(67, 301), "k": 9}],
    "clip": lambda f: [{"x": f(*ROWS), "min": -0.5, "max": 0.25}],
    "cast": lambda f: [{"x": f(70, 1024), "dtype": dtype} for dtype in ("f16", "q8_0", "q4_K")],
    "tile": lambda f: [{"x": f(7, 1031), "repeats": (10, 2)}],
    "concatenate": lambda f: [{"a": f(*ROWS), "b": f(71, 1031), "axis": 0}, {"a": f(*ROWS), "b": f(70, 33), "axis": 1}],
    "contiguous": lambda f: [{"x": f(*ROWS)}],
    "write": lambda f: [{"target": f(*ROWS), "x": f(66, 1022), "start": (3, 5)}],
    "put_rows": _stored,
    "take_rows": _gathered,
    "sum": _summed,
    "mean": _summed,
    "resize": _images,
    "pool_1d": lambda f: [
        {"x": f(140, 1031), "kind": k, "kernel": 3, "stride": 2, "padding": 1} for k in ("mean", "max")
    ],
    "pool_2d": lambda f: [
        {"x": f(8, 5, 83, 101), "kind": k, "kernel": 3, "stride": 2, "padding": 1} for k in ("mean", "max")
    ],
    "conv_1d": lambda f: [{"x": f(2, 7, 301), "weight": f(9, 7, 3), "padding": 1}],
    "conv_1d_depthwise": lambda f: [{"x": f(3, 37, 701), "weight": f(37, 1, 3)}],
    "conv_2d": lambda f: [{"x": f(*IMAGE), "weight": f(7, 5, 3, 3), "stride": 2, "padding": 1}],
    "conv_2d_depthwise": lambda f: [{"x": f(*IMAGE), "weight": f(5, 1, 3, 3)}],
    "conv_3d": lambda f: [{"x": f(6, 11, 13, 17), "weight": f(15, 3, 3, 3), "channels": 3}],
    "conv_transpose_1d": lambda f: [{"x": f(3, 9, 301), "weight": f(9, 11, 5), "stride": 2}],
    "conv_transpose_2d": lambda f: [{"x": f(3, 5, 31, 29), "weight": f(5, 7, 3, 4), "stride": 2}],
    "im2col": lambda f: [{"x": f(*IMAGE), "kernel": 3, "padding": 1}],
    "im2col_3d": lambda f: [{"x": f(6, 21, 23, 27), "channels": 3, "kernel": 3}],
    "col2im_1d": lambda f: [{"x": f(401, 55 * 7), "stride": 3, "channels": 55, "padding": 1}],
    "group_norm": lambda f: [{"x": f(3, 37, 41, 43), "groups": 5}],
    "cumsum": lambda f: [{"x": f(*ROWS), "axis": axis} for axis in (-1, 0)],
    "hadamard": lambda f: [{"x": f(301, 256)}],
    "roll": lambda f: [{"x": f(*ROWS), "shift": (3, -700), "axis": (0, 1)}],
    "pad": _padded,
    "tril": lambda f: [{"x": f(3, 301, 301)}],
    "triu": lambda f: [{"x": f(3, 301, 301), "k": -3}],
    "diag": lambda f: [{"x": f(3, 1, 257)}],
    "causal_mask": lambda f: [{"x": f(300, 301), "past": 5}],
    "arange": lambda _: [{"start": 0.0, "stop": 100001.0, "step": 1.0}],
    "full": lambda _: [{"shape": (301, 303), "value": 3.0}],
    "add_rows": lambda f: [{"x": f(61, 5, 301), "table": f(11, 301), "ids": f.ids(61, 5, low=-1, high=11)}],
    "timestep_embedding": lambda f: [{"t": f(301, high=1000), "dim": 301}],
    "xielu": lambda f: [{"x": f(*ROWS), "alpha_n": 0.3, "alpha_p": 0.7}],
    "solve_triangular": _solved,
    "hyper_connection_in": lambda f: [{"x": f(71, 4, 331), "weights": f(71, 4)}],
    "hyper_connection_out": _hyper_out,
    "hyper_connection_weights": lambda f: [
        {"mixes": f(5001, 24), "scale": f(3), "base": f(24), "eps": 1e-6, "iterations": 3}
    ],
    "ssm_conv": lambda f: [{"x": f(2, 131, 404), "weight": f(131, 4)}],
    "lightning_indexer": _indexer,
    "top_k_mask": lambda f: [{"mask": f(1, 2, 67, 701), "picks": f.ids(1, 2, 67, 9, high=701)}],
    "swiglu_clamp": lambda f: [{"gate": f(*ROWS), "up": f(*ROWS), "limit": 0.7}],
    "rwkv_wkv6": _wkv6,
    "rwkv_wkv7": _wkv7,
    "gated_linear_attention": _linear_attention,
    "gated_delta_net": _delta,
    "ssm_scan": _scan,
}
