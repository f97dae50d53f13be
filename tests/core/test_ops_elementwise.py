"""Elementwise ops and gated units of P1 and P2, against golden values and formulas on Python's own floats."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jackfield as jf
from jackfield import ops
from jackfield.conformance import compare, examples, expected
from jackfield.dtypes import DTYPES, bf16, f16, f32, q4_0, q8_0
from jackfield.dtypes.arrays import as_bytes, decoded
from jackfield.errors import AttributeValueError, ShapeError
from jackfield.graph import input as leaf
from jackfield.op import OPS, collect
from jackfield.reference import ReferenceBackend
from jackfield_conformance import mistakes

INF, NAN = np.inf, np.nan
FLOATS = (np.float32, np.float16, ml_dtypes.bfloat16)


def F(*values):
    return np.array(values, np.float32)


def near(got, want, tolerance=6e-7):
    np.testing.assert_allclose(np.asarray(got, np.float64).reshape(-1), want, rtol=0, atol=tolerance)


def same(got, *want):
    """Equal numbers; NaN where NaN is wanted."""
    np.testing.assert_array_equal(np.asarray(got, np.float64).reshape(-1), want)


def test_golden_values():
    near(ops.gelu_quick.run(F(1, -1, 3)), [0.845796, -0.154204, 2.981929])
    near(ops.xielu.run(F(-2, 1.5), alpha_n=0.8, alpha_p=0.8, beta=0.5), [0.897260, 3.384976])
    near(ops.swiglu_oai.run(F(1, 10, -3), F(1, 10, -9)), [1.691592, 55.999625, 0.108428], 3e-6)


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def softplus(x):
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def xielu(x):
    p, n = softplus(0.7), 0.5 + softplus(-0.3)
    return p * x**2 + 0.5 * x if x > 0 else (math.expm1(min(x, -1e-6)) - x) * n + 0.5 * x


FORMULAS = {
    "abs": lambda x: max(x, -x),
    "negative": lambda x: 0 - x,
    "sign": lambda x: math.copysign(1, x) if x else 0,
    "step": lambda x: float(x > 0),
    "sqrt": lambda x: x**0.5 if x >= 0 else NAN,
    "log": lambda x: math.log(x) if x > 0 else -INF if x == 0 else NAN,
    "exp": math.exp,
    "expm1": math.expm1,
    "sin": math.sin,
    "cos": math.cos,
    "leaky_relu": lambda x: x if x > 0 else 0.01 * x,
    "elu": lambda x: x if x > 0 else math.expm1(x),
    "hardsigmoid": lambda x: min(max((x + 3) / 6, 0.0), 1.0),
    "hardswish": lambda x: x * min(max((x + 3) / 6, 0.0), 1.0),
    "gelu_quick": lambda x: x * sigmoid(1.702 * x),
    "softplus": softplus,
    "xielu": xielu,
}


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_by_the_formulas(name, dtype):
    x = np.concatenate([np.linspace(-9, 9, 101), [-0.0, 1e-4, -1e-4, 80, -80]]).astype(dtype)
    got = OPS[name].run(x, **({"alpha_p": 0.7, "alpha_n": -0.3} if name == "xielu" else {}))
    assert got.dtype == dtype
    want = np.array([FORMULAS[name](float(v)) for v in x])
    with np.errstate(over="ignore"):
        once = want.astype(dtype)
    step = float(ml_dtypes.finfo(dtype).eps)
    np.testing.assert_allclose(got.astype(np.float64), once.astype(np.float64), rtol=step, atol=1e-12)


def test_edges():
    same(ops.abs.run(F(-0.0, -INF, NAN)), 0, INF, NAN)
    same(ops.negative.run(F(INF, NAN, 2)), -INF, NAN, -2)
    same(ops.sign.run(F(-0.0, 0.0, 1e-45, -INF, NAN)), 0, 0, 1, -1, NAN)
    same(ops.step.run(F(-0.0, 0.0, 1e-45, -INF, INF, NAN)), 0, 0, 1, 0, 1, NAN)
    same(ops.sqrt.run(F(-1e-45, 0, INF, NAN)), NAN, 0, INF, NAN)
    same(ops.log.run(F(0, -1, INF, NAN, 1)), -INF, NAN, INF, NAN, 0)
    same(ops.exp.run(F(89, -INF, INF, NAN)), INF, 0, INF, NAN)
    same(ops.expm1.run(F(89, -INF, 0, NAN)), INF, -1, 0, NAN)
    same(ops.sin.run(F(INF, -INF, NAN, 0)), NAN, NAN, NAN, 0)
    same(ops.cos.run(F(INF, -INF, NAN, 0)), NAN, NAN, NAN, 1)
    same(ops.leaky_relu.run(F(-INF, INF, NAN, -2), slope=0.0), NAN, INF, NAN, 0)
    same(ops.elu.run(F(-INF, INF, NAN, 1e30)), -1, INF, NAN, np.float32(1e30))
    same(ops.hardsigmoid.run(F(-INF, INF, NAN, -3, 3)), 0, 1, NAN, 0, 1)
    same(ops.hardswish.run(F(-INF, INF, NAN, -3, 4)), NAN, INF, NAN, 0, 4)
    same(ops.gelu_quick.run(F(-INF, INF, NAN)), NAN, INF, NAN)
    same(ops.softplus.run(F(-INF, INF, NAN, 1e30, -1e30)), 0, INF, NAN, np.float32(1e30), 0)
    assert math.isnan(ops.xielu.run(F(NAN), alpha_n=1.0, alpha_p=1.0)[0])


def exactly(name, x):
    """The whole number for x, in exact arithmetic."""
    f = Fraction(x)
    below, above = math.floor(f), math.ceil(f)
    if name == "round_away":
        return int(math.copysign(math.floor(abs(f) + Fraction(1, 2)), x)) if f else 0
    return {"floor": below, "ceil": above, "trunc": below if x > 0 else above}[name]


@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "round_away"])
@given(row=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=30))
def test_rounding_is_exact(name, row):
    same(OPS[name].run(F(*row)), *(exactly(name, v) for v in row))


@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "round_away"])
def test_edges_of_rounding(name):
    row = [0.5, -2.5, 2.5, 0.49999997, -0.49999997, 8388607.5, 8388609.0, 3.4e38, -0.5, 1.5, 2.0**24 + 2]
    same(OPS[name].run(F(*row)), *(exactly(name, float(np.float32(v))) for v in row))
    same(OPS[name].run(F(INF, -INF, NAN)), INF, -INF, NAN)
    for dtype in FLOATS[1:]:
        halves = (np.arange(-40, 40) / 4).astype(dtype)
        same(OPS[name].run(halves), *(exactly(name, float(v)) for v in halves))


def test_halves_go_away_from_zero():
    same(ops.round_away.run(F(0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999997)), 1, 2, 3, -1, -2, -3, 0)


def test_far_angles_are_only_kept_in_range():
    backend = ReferenceBackend()
    for name in ("sin", "cos"):
        example = next(e for e in examples(OPS[name]) if e.case == 1 and e.layout == "dense" and e.dtype is f32)
        want, _ = expected(example)
        x = example.arrays()[0]
        off = np.where(np.abs(x) > 1e4, -want, want)
        assert np.isfinite(off).any() and (off != want).any()
        assert compare(example, off, want) == ""
        assert compare(example, np.where(np.abs(x) == 1, -want, want), want)
        assert compare(example, np.where(np.abs(x) > 1e4, np.float32(7), want), want)
        assert not mistakes(example, backend, backend.devices()[0])


def test_two_roundings_more_are_let_pass_and_no_third():
    """hardswish in f32 steps, as a kernel does it, keeps within its class; an error of some units does not."""
    example = next(e for e in examples(ops.hardswish) if e.case == 2 and e.layout == "dense" and e.dtype is f32)
    (x,), (want, _) = example.arrays(), expected(example)
    stepwise = x * np.clip((x + np.float32(3)) / np.float32(6), np.float32(0), np.float32(1))
    assert stepwise.dtype == np.float32 and (stepwise != want).any()
    assert compare(example, stepwise, want) == ""
    assert compare(example, want * np.float32(1 + 2.0**-20), want)


# gated units


def test_golden_clamped_units():
    """Item 21: the clamp before silu, its edges, and NaN, which no clamp may swallow."""
    g, u = F(1e9, INF, -100, 0, -INF, NAN, 1), F(1e9, -INF, 3, INF, 3, 1, NAN)
    got = ops.swiglu_clamp.run(g, u, limit=7.0)
    near(got[:4], [48.95536, -48.95536, 0, 0], 1e-5)
    assert np.isnan(got[4:]).all()
    got = ops.swiglu_oai.run(g, u)
    near(got[:4], [7 * sigmoid(1.702 * 7) * 8, 7 * sigmoid(1.702 * 7) * -6, 0, 0], 1e-5)
    assert np.isnan(got[4:]).all()


@pytest.mark.parametrize("limit", [0.5, 7.0])
def test_the_clamp_comes_before_the_activation(limit):
    """Item 22: clamping silu's result is another unit, and they differ where the operands exceed the limit."""
    g, u = np.linspace(-20, 20, 41, dtype=np.float32), np.linspace(9, -9, 41, dtype=np.float32)
    want = [min(a, limit) * sigmoid(min(a, limit)) * min(max(b, -limit), limit) for a, b in zip(g, u, strict=True)]
    got = ops.swiglu_clamp.run(g, u, limit=limit)
    near(got, want, 1e-5)
    after = [min(a * sigmoid(a), limit) * min(max(b, -limit), limit) for a, b in zip(g, u, strict=True)]
    assert np.abs(got - after).max() > 1e-3


def test_units_take_the_right_half():
    g, u = F(1, -2, 9), F(4, -9, -6)
    both = np.concatenate([g, u])
    formulas = {
        "geglu_quick": ({}, lambda a, b: a * sigmoid(1.702 * a) * b),
        "reglu": ({}, lambda a, b: max(a, 0) * b),
        "swiglu_oai": (
            {"alpha": 1.3, "limit": 5.0},
            lambda a, b: min(a, 5) * sigmoid(1.3 * min(a, 5)) * (min(max(b, -5), 5) + 1),
        ),
        "swiglu_clamp": ({"limit": 5.0}, lambda a, b: min(a, 5) * sigmoid(min(a, 5)) * min(max(b, -5), 5)),
    }
    for name, (attrs, formula) in formulas.items():
        unit = OPS[name]
        for first, second in ((g, u), (u, g)):
            want = [formula(float(a), float(b)) for a, b in zip(first, second, strict=True)]
            near(unit.run(first, second, **attrs), want, 1e-5)
            near(unit.run(both, swapped=first is u, **attrs), want, 1e-5)
        assert np.isnan(unit.run(F(NAN, 1), F(1, NAN), **attrs)).all()
        for half in FLOATS[1:]:
            assert unit.run(g.astype(half), u.astype(half), **attrs).dtype == half
        with pytest.raises(ShapeError, match="must be even"):
            unit(leaf("x", (3, 5)), **attrs)
        assert unit(leaf("g", (3, 1)), leaf("u", (3, 1)), **attrs).shape == (3, 1)


def test_a_limit_that_is_none():
    for limit in (0, -1, 1e-320 * 0, INF, NAN):
        with pytest.raises(AttributeValueError, match=r"must be (above 0 and )?finite"):
            ops.swiglu_clamp(leaf("g", (2,)), leaf("u", (2,)), limit=limit)


# sums with blocks


@pytest.mark.parametrize("dtype", [d for d in DTYPES.values() if d.is_block], ids=str)
def test_blocks_are_added_to_in_f32(dtype):
    rng = np.random.default_rng(0)
    x, b = rng.standard_normal((2, 3, 256)).astype(np.float32)
    a = ops.cast.run(x, dtype=dtype)
    got = ops.add.run(a, b)
    np.testing.assert_array_equal(as_bytes(got), dtype.encode(decoded(a) + b))


def test_a_sum_that_no_block_holds_is_zero_and_told():
    a = ops.cast.run(np.full((2, 64), 1, np.float32), dtype=q8_0)
    b = np.zeros((2, 64), np.float32)
    b[1, 3], b[1, 40] = NAN, INF
    found = []
    with collect(found):
        got = decoded(ops.add.run(a, b))
    assert [(f.kind, f.value) for f in found] == [("nonfinite", 2)]
    np.testing.assert_allclose(got[0], 1, rtol=1e-2)
    assert not got[1].any()


def test_blocks_take_no_broadcasting():
    a = leaf("a", (3, 64), q4_0)
    for shape in ((64,), (1, 64), (3, 1), (2, 3, 64)):
        with pytest.raises(ShapeError, match="must have its shape"):
            ops.add(a, leaf("b", shape))
    for dtype in (f16, bf16):
        with pytest.raises(jf.errors.DTypeError, match="must be f32"):
            ops.add(a, leaf("b", (3, 64), dtype))


def test_a_sum_in_blocks_that_is_wrong_is_found():
    example = next(e for e in examples(ops.add) if e.dtype is q8_0 and e.layout == "dense" and not e.given)
    want, _ = expected(example)
    assert compare(example, want, want) == ""
    assert "NMSE" in compare(example, ops.cast.run(decoded(want) * np.float32(1.1), dtype=q8_0), want)


def test_a_sum_in_blocks_goes_through_a_plan():
    x = np.linspace(-2, 2, 192, dtype=np.float32).reshape(3, 64)
    y = ops.cast(ops.add(ops.cast(jf.input("x", (3, 64)), dtype=q8_0), jf.input("b", (3, 64))), dtype=f32)
    for device in ("reference", "sim+reference"):
        got = jf.compile(y, device=device)(x=x, b=x)
        np.testing.assert_allclose(got, 2 * x, atol=0.05)
