"""Each op that runs, with extents to choose: what its operands are when their axes have these lengths.

The declared cases have fixed shapes. Here a letter is the length of an axis, and the kit draws, lays out and judges.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
from imaging import IMAGING
from mixers import MIXERS

from jackfield import ops
from jackfield.backend import refusal
from jackfield.conformance import examples
from jackfield.dtypes import i32
from jackfield.errors import GraphError
from jackfield.op import OPS, Case, ints, rand, values
from jackfield.spec import Spec
from jackfield_conformance.direct import step_of

UNARY = (
    *("abs", "ceil", "clip", "contiguous", "cos", "elu", "exp", "expm1", "floor", "gelu", "gelu_erf", "gelu_quick"),
    *("hardsigmoid", "hardswish", "leaky_relu", "log", "negative", "relu", "round_away", "scale", "sigmoid", "sign"),
    *("silu", "sin", "softplus", "sqrt", "square", "step", "tanh", "trunc", "xielu"),
)
BINARY = ("add", "subtract", "multiply", "divide")
GATED = ("swiglu", "geglu", "geglu_erf", "geglu_quick", "reglu", "swiglu_clamp", "swiglu_oai")
ROWS = ("norm", "rms_norm", "l2_norm", "sum", "mean", "argmax", "argsort", "top_k", "cumsum")
ATTRS = {
    "clip": {"min": -0.5, "max": 0.25},
    "scale": {"scale": 0.5, "bias": 1.0},
    "swiglu_clamp": {"limit": 0.75},
    "xielu": {"alpha_n": 0.3, "alpha_p": 0.8},
}


def drawn_ids(*shape, low, high):
    """Indices below `high`; where there is none, -1, or 0 for ops that know no -1."""
    return ints(*shape, low=low, high=high) if high > max(low, 0) else values(np.full(shape, low), i32)


def attention(e):
    k, v = rand(e["S"], e["H"], e["N"], e["D"]), rand(e["S"], e["H"], e["N"], e["V"])
    return Case(
        {
            "q": rand(e["S"], e["H"] * e["G"], e["T"], e["D"]),
            "k": k,
            "v": v,
            "mask": rand(1, 1, e["T"] + 1, e["N"], shut=0.3),
            "sinks": rand(e["H"] * e["G"]),
            "kv_len": ints(e["S"], high=e["N"] + 1),
        },
        {"scale": 0.2, "causal": True, "window": 5},
    )


def put_rows(e):
    places = np.full(e["n"], -1)
    room = min(e["n"], e["R"])
    places[:room] = np.arange(e["R"])[::-1][:room]
    target, x = rand(e["B"], e["H"], e["R"], e["C"]), rand(e["B"], e["H"], e["n"], e["C"])
    return Case({"target": target, "x": x, "rows": values(places, i32)})


def rope(e):
    return Case(
        {
            "x": rand(e["B"], e["T"], e["H"], 2 * e["P"] + e["C"]),
            "positions": ints(e["T"], high=99),
            "frequency_factors": rand(e["P"], low=1, high=3),
        },
        {"mode": "neox", "n_dims": 2 * e["P"]},
    )


def experts(e):
    return Case(
        {
            "x": rand(e["T"], e["P"], e["K"]),
            "weight": rand(e["X"], e["N"], e["K"]),
            "ids": drawn_ids(e["T"], e["P"] * e["R"], low=-1, high=e["X"]),
        }
    )


def softmax(e):
    x = rand(e["S"], e["H"], e["M"], e["N"], low=-9, high=9)
    return Case({"x": x, "mask": rand(1, 1, e["M"] + 1, e["N"], shut=0.3), "sinks": rand(e["H"])}, {"scale": 0.5})


def outer_product(e):
    a = rand(e["A"], e["B"], e["K"], e["M"])
    return Case({"a": a, "b": rand(e["A"] * e["G"], e["B"], e["K"], e["N"])})


def add_rows(e):
    ids = drawn_ids(e["T"], e["P"], low=-1, high=e["X"])
    return Case({"x": rand(e["T"], e["P"], e["C"]), "table": rand(e["X"], e["C"]), "ids": ids})


def region(e):
    target, x = rand(e["A"], e["B"] + e["s"], e["C"]), rand(e["A"], e["B"], e["C"])
    return Case({"target": target, "x": x}, {"start": (0, e["s"], 0)})


def _four(e):
    return rand(e["A"], e["B"], e["C"], e["D"])


def _rows(name):
    def case(e):
        return Case({"x": rand(e["A"], e["B"], e["C"], e["D"])}, {"k": max(1, e["D"] // 2)} if name == "top_k" else {})

    return case


# By op: the letters of its axes, and the case for their lengths.
RECIPES = {
    **IMAGING,
    **MIXERS,
    **{n: ("ABCD", lambda e, n=n: Case({"x": rand(e["A"], e["B"], e["C"], e["D"])}, ATTRS.get(n, {}))) for n in UNARY},
    **{
        n: (
            "ABCD",
            lambda e: Case({"a": rand(e["A"], e["B"], e["C"], e["D"]), "b": rand(e["C"], e["D"], low=0.5, high=2)}),
        )
        for n in BINARY
    },
    **{n: ("ABCD", lambda e, n=n: Case({"gate": _four(e), "up": _four(e)}, ATTRS.get(n, {}))) for n in GATED},
    **{n: ("ABCD", _rows(n)) for n in ROWS},
    "attention": ("SHGTNDV", attention),
    "cast": ("ABC", lambda e: Case({"x": rand(e["A"], e["B"], e["C"])}, {"dtype": "f16"})),
    "concatenate": (
        "ABCX",
        lambda e: Case({"a": rand(e["A"], e["B"], e["C"]), "b": rand(e["A"], e["X"], e["C"])}, {"axis": 1}),
    ),
    "linear": (
        "AGBMNK",
        lambda e: Case(
            {"x": rand(e["A"] * e["G"], e["B"], e["M"], e["K"]), "weight": rand(e["A"], e["B"], e["N"], e["K"])}
        ),
    ),
    "linear_experts": ("TPRXNK", experts),
    "matmul": (
        "AGBMNK",
        lambda e: Case({"a": rand(e["A"] * e["G"], e["B"], e["M"], e["K"]), "b": rand(e["A"], e["B"], e["K"], e["N"])}),
    ),
    "put_rows": ("BHRnC", put_rows),
    "rope": ("BTHPC", rope),
    "softmax": ("SHMN", softmax),
    "take_rows": (
        "BRCn",
        lambda e: Case({"x": rand(e["B"], e["R"], e["C"]), "rows": drawn_ids(e["B"], e["n"], low=0, high=e["R"])}),
    ),
    "tile": ("ABCr", lambda e: Case({"x": rand(e["A"], e["B"], e["C"])}, {"repeats": (1, e["r"], 2)})),
    "write": ("ABCxs", region),
    "accumulate": ("ABCxs", region),
    "add_rows": ("TPXC", add_rows),
    "arange": ("D", lambda e: Case({}, {"start": 0.5, "stop": 0.5 + 0.3 * e["D"], "step": 0.3})),
    "causal_mask": ("ABCD", lambda e: Case({"x": _four(e)}, {"past": 2})),
    "count_equal": (
        "ABCD",
        lambda e: Case({name: ints(e["A"], e["B"], e["C"], e["D"], high=3) for name in ("a", "b")}),
    ),
    "diag": ("ABD", lambda e: Case({"x": rand(e["A"], e["B"], 1, e["D"])})),
    "full": ("ABC", lambda e: Case({}, {"shape": (e["A"], e["B"], e["C"]), "value": 0.3})),
    "group_norm": ("ABCD", lambda e: Case({"x": _four(e)}, {"groups": 2})),
    "hadamard": ("ABCD", lambda e: Case({"x": rand(e["A"], e["B"], e["C"], 1 << e["D"] % 9)})),
    "outer_product": ("AGBMNK", outer_product),
    **{n: ("ABD", lambda e: Case({"x": rand(e["A"], e["B"], e["D"], e["D"])}, {"k": 1})) for n in ("tril", "triu")},
}
RUNNING = tuple(name for name in ops.__all__ if not OPS[name].is_view)
BLOCKS = [dtype.name for dtype in OPS["linear"].declared.accepts["weight"] if dtype.is_block]
USUAL = dict.fromkeys("ABCDEGHKMNPRSTVXnrsx", 3) | {"K": 32, "D": 5}


def examples_of(name, case):
    """The kit's examples of one case. Raises what building it raises."""
    op = OPS[name]
    specs = {n: Spec(draw.dtype or op.declared.accepts[n][0], draw.shape) for n, draw in case.operands.items()}
    op.infer([specs.get(n) for n in op.operands], op.complete(case.attrs))
    twin = copy.copy(op)
    twin.cases = (case,)
    return examples(twin)


def examples_with(name, **extents):
    """The kit's examples of an op whose other axes have their usual lengths; none where the op refuses these."""
    letters, recipe = RECIPES[name]
    chosen = USUAL | extents
    try:
        return list(examples_of(name, recipe({letter: chosen[letter] for letter in letters})))
    except GraphError:
        return []


def need_kernel(name, on):
    """Skip where the device has no kernel of this op at all: then the step goes to another device."""
    backend, device = on
    if name not in backend.kernels():
        pytest.skip(f"{device.name}: no kernel for {name}")


def taken(tried, on):
    """Those of the examples that a device takes."""
    backend, device = on
    found = []
    for example in tried:
        step = step_of(example)
        if refusal(step, backend.kernels(), device.target) is None and backend.why_not(step, device.target) is None:
            found.append(example)
    return found
