"""What is special about the CPU's kernels: levels, tails, strided results, shares of workers, exact bits.

The op suite (tests/conformance) compares every kernel with its declaration; here each level is taken by its name.
"""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
from bound_step import run
from hypothesis import given, settings
from hypothesis import strategies as st
from one_step import LEVELS

from jackfield import ops
from jackfield.dtypes import i32

pytestmark = pytest.mark.parametrize("level", LEVELS)
BF16 = np.dtype(ml_dtypes.bfloat16)
INF, NAN = np.inf, np.nan
SPECIAL = np.array(
    [0.0, -0.0, INF, -INF, NAN, 1e-45, -1e-45, 3.4e38, -3.4e38, 88.7, 88.8, -87.3, -103.9, -104.1], np.float32
)


def sweep():
    """f32 of all sizes and both signs, dense where functions bend."""
    wide = np.exp(np.linspace(-80, 80, 2001))
    near = np.linspace(0, 12, 4001)
    plain = np.concatenate([wide, near]).astype(np.float32)
    return np.concatenate([plain, -plain, SPECIAL])


def erf(x):
    """In f64: Taylor's series up to 3, beyond that the continued fraction of erfc."""
    a = np.minimum(np.abs(x), 7.0)
    term, total = a.copy(), a.copy()
    for n in range(1, 90):
        term = -term * a * a / n
        total += term / (2 * n + 1)
    small = total * 2 / np.sqrt(np.pi)
    tail = np.zeros_like(a)
    for n in range(60, 0, -1):
        tail = n / 2 / (a + tail)
    far = 1 - np.exp(-a * a) / np.sqrt(np.pi) / (a + tail)
    return np.sign(x) * np.where(a < 3, small, far)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gelu_erf(x):
    return 0.5 * x * (1 + erf(x / np.sqrt(2)))


def softplus(x):
    return np.logaddexp(0, x)


def away(x):
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


FUNCTIONS = {
    "abs": np.abs,
    "ceil": np.ceil,
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "exp": np.exp,
    "expm1": np.expm1,
    "floor": np.floor,
    "gelu_quick": lambda x: x * sigmoid(1.702 * x),
    "hardsigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "hardswish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "log": np.log,
    "negative": np.negative,
    "round_away": away,
    "sign": np.sign,
    "softplus": softplus,
    "sqrt": np.sqrt,
    "trunc": np.trunc,
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "silu": silu,
    "gelu": gelu,
    "gelu_erf": gelu_erf,
    "relu": lambda x: np.maximum(x, 0),
    "square": np.square,
}
GATES = {
    "swiglu": silu,
    "geglu": gelu,
    "geglu_erf": gelu_erf,
    "geglu_quick": FUNCTIONS["gelu_quick"],
    "reglu": FUNCTIONS["relu"],
}


def close(got, want, relative=2e-6, absolute=1e-6):
    with np.errstate(all="ignore"):
        want = want.astype(np.float32).astype(np.float64)
    assert (np.isnan(got) == np.isnan(want)).all()
    infinite = np.isinf(want)
    assert (got[infinite] == want[infinite]).all()
    finite = np.isfinite(want)
    error = np.abs(got[finite].astype(np.float64) - want[finite]) - (relative * np.abs(want[finite]) + absolute)
    assert error.max(initial=-1) <= 0, error.max()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_over_the_whole_range(level, name):
    x = sweep()
    with np.errstate(all="ignore"):
        close(run(getattr(ops, name), {"x": x}, level), FUNCTIONS[name](x.astype(np.float64)))


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_waves_at_any_distance(level, name):
    """Near by as exact as f32 allows; far out, where a turn is less than a unit of x, still within -1 and 1."""
    near = np.linspace(-1e4, 1e4, 40001).astype(np.float32)
    close(run(getattr(ops, name), {"x": near}, level), getattr(np, name)(near.astype(np.float64)))
    far = sweep()
    got = run(getattr(ops, name), {"x": far}, level)
    assert (np.isnan(got) == ~np.isfinite(far)).all()
    assert np.abs(got[np.isfinite(far)]).max() <= 1


@pytest.mark.parametrize("name", GATES)
def test_gated_units_over_the_whole_range(level, name):
    g = sweep()
    u = np.linspace(-2, 2, len(g)).astype(np.float32)
    with np.errstate(all="ignore"):
        want = GATES[name](g.astype(np.float64)) * u
    close(run(getattr(ops, name), {"gate": g, "up": u}, level), want, absolute=2e-6)
    fused = np.stack([np.stack([u, g]).ravel()] * 2)
    np.testing.assert_array_equal(
        run(getattr(ops, name), {"gate": fused}, level, swapped=True)[1],
        run(getattr(ops, name), {"gate": g, "up": u}, level),
    )


@pytest.mark.parametrize("name", ["tanh", "gelu_erf", "silu"])
def test_an_element_does_not_depend_on_its_neighbours(level, name):
    x = sweep()[1900:2000]
    whole = run(getattr(ops, name), {"x": x}, level)
    for n in range(1, 70):
        np.testing.assert_array_equal(run(getattr(ops, name), {"x": x[:n].copy()}, level), whole[:n])


def test_clip_and_relu_keep_nan_and_let_infinite_bounds_be(level):
    x = np.concatenate([SPECIAL] * 3)
    got = run(ops.clip, {"x": x}, level, min=-INF, max=2.0)
    np.testing.assert_array_equal(got, np.minimum(x, 2))
    np.testing.assert_array_equal(run(ops.relu, {"x": x}, level), np.maximum(x, 0))


def strided(rng, shape, dtype):
    """A view: some axes of a larger array, permuted, with steps and a start."""
    axes = list(rng.permutation(len(shape)))
    steps = rng.integers(1, 3, len(shape))
    inner = [shape[a] * steps[a] + 2 for a in axes]
    base = rng.standard_normal(inner).astype(dtype)
    view = base.transpose(np.argsort(axes))
    return view[tuple(slice(1, 1 + n * s, s) for n, s in zip(shape, steps, strict=True))]


NUMPY = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide}


@settings(max_examples=60)
@given(st.data())
def test_binary_ops_broadcast_as_numpy(level, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    shape = tuple(data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=4)))
    shapes = [tuple(1 if rng.random() < 0.3 else n for n in shape[rng.integers(0, len(shape)) :]) for _ in range(2)]
    dtypes = data.draw(
        st.sampled_from([(np.float32,) * 2, (np.float16,) * 2, (np.float32, BF16), (np.float16, np.float32)])
    )
    a, b = (strided(rng, s, d) for s, d in zip(shapes, dtypes, strict=True))
    name = data.draw(st.sampled_from(sorted(NUMPY)))
    with np.errstate(all="ignore"):
        want = NUMPY[name](a.astype(np.float32), b.astype(np.float32)).astype(dtypes[0])
    np.testing.assert_array_equal(run(getattr(ops, name), {"a": a, "b": b}, level), want)


def test_every_pattern_of_dense_operands(level):
    """Dense f32 has ways of its own: one line, a row repeated, one number."""
    rng = np.random.default_rng(2)
    shapes = [(*lead, m, n) for lead in ((), (1,), (3,)) for m in (1, 4) for n in (1, 21)]
    for first, second in itertools.product(shapes, shapes):
        a, b = rng.standard_normal(first).astype(np.float32), rng.standard_normal(second).astype(np.float32)
        np.testing.assert_array_equal(run(ops.subtract, {"a": a, "b": b}, level), a - b)


GAPS = (640, 96, 12)  # of a (2, 5, 7) result: 12 bytes an element


def operands_with_gaps():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, 5, 7)).astype(np.float32)
    mask = rng.standard_normal((5, 7)).astype(np.float16)
    return {
        "silu": ({"x": x}, {}),
        "scale": ({"x": x}, {"scale": 2.0, "bias": 1.0}),
        "add": ({"a": x, "b": x[0]}, {}),
        "divide": ({"a": x, "b": x[:, :, :1]}, {}),
        "swiglu": ({"gate": x, "up": x}, {}),
        "rms_norm": ({"x": x}, {}),
        "norm": ({"x": x}, {}),
        "softmax": ({"x": x[:, None], "mask": mask}, {}),
        "contiguous": ({"x": x.T.copy().T}, {}),
        "cast": ({"x": x.astype(np.float16)}, {"dtype": "f32"}),
        "tile": ({"x": x[:1]}, {"repeats": (2, 1, 1)}),
        "concatenate": ({"a": x[:, :2], "b": x[:, 2:]}, {"axis": 1}),
        "argsort": ({"x": x}, {}),
        "top_k": ({"x": np.concatenate([x, x - 9], axis=-1)}, {"k": 7}),
        "sum": ({"x": np.repeat(x[:, :, None], 3, 2)}, {"axis": 2}),
        "rope": ({"x": x[..., :7], "positions": np.arange(2, dtype=np.int32)}, {"mode": "neox", "n_dims": 6}),
    }


@pytest.mark.parametrize("name", operands_with_gaps())
def test_results_with_gaps(level, name):
    arrays, attrs = operands_with_gaps()[name]
    dense = run(getattr(ops, name), arrays, level, **attrs)
    strides = (*([5120] * (dense.ndim - 3)), *GAPS)
    np.testing.assert_array_equal(run(getattr(ops, name), arrays, level, strides=strides, **attrs), dense)


def shared_work():
    rng = np.random.default_rng(4)
    x = rng.standard_normal((70, 1031)).astype(np.float32)
    heads = rng.standard_normal((1, 33, 40, 64)).astype(np.float32)
    return {
        "silu": ({"x": x}, {}),
        "add": ({"a": x, "b": x[0]}, {}),
        "multiply": ({"a": x.T, "b": x[:, 0]}, {}),
        "swiglu": ({"gate": x, "up": x}, {}),
        "rms_norm": ({"x": x}, {}),
        "softmax": ({"x": heads}, {}),
        "sum": ({"x": x}, {}),
        "mean": ({"x": x}, {"axis": 0}),
        "argmax": ({"x": x}, {}),
        "argsort": ({"x": x}, {}),
        "top_k": ({"x": x}, {"k": 5}),
        "contiguous": ({"x": x.T}, {}),
        "cast": ({"x": x}, {"dtype": "f16"}),
        "tile": ({"x": x}, {"repeats": (1, 2)}),
        "concatenate": ({"a": x, "b": x}, {"axis": 1}),
        "rope": ({"x": heads, "positions": np.arange(33, dtype=np.int32)}, {"mode": "normal", "n_dims": 64}),
    }


@pytest.mark.parametrize("name", shared_work())
def test_bits_do_not_depend_on_the_number_of_workers(level, name):
    arrays, attrs = shared_work()[name]
    alone = run(getattr(ops, name), arrays, level, **attrs)
    for threads in (2, 3, 7):
        np.testing.assert_array_equal(run(getattr(ops, name), arrays, level, threads, **attrs), alone)


def test_more_workers_than_rows(level):
    x = np.random.default_rng(5).standard_normal((2, 40000)).astype(np.float32)
    for op in (ops.rms_norm, ops.norm, ops.sum, ops.argsort, ops.silu):
        np.testing.assert_array_equal(run(op, {"x": x}, level, 7), run(op, {"x": x}, level))


@pytest.mark.parametrize("n", [1, 63, 64, 65, 257, 1023, 1024, 1025, 5000])
@pytest.mark.parametrize("descending", [False, True])
def test_argsort_is_stable_with_nan_last(level, n, descending):
    rng = np.random.default_rng(n)
    x = np.round(rng.standard_normal((3, n)).astype(np.float32) * 20) / 4
    x[1, rng.random(n) < 0.2] = NAN
    x[2, rng.random(n) < 0.3] = -0.0
    x[2, 0] = -INF
    got = run(ops.argsort, {"x": x}, level, descending=descending)
    np.testing.assert_array_equal(got, np.argsort(-x if descending else x, axis=-1, kind="stable"))
    assert got.dtype == i32.numpy


@pytest.mark.parametrize(
    ("n", "k"), [(1, 1), (8, 8), (64, 8), (65, 1), (257, 40), (1025, 128), (5000, 7), (1024, 1024)]
)
def test_top_k_takes_the_largest(level, n, k):
    rng = np.random.default_rng(n)
    x = np.round(rng.standard_normal((2, n)).astype(np.float32) * 20) / 4
    x[1, rng.random(n) < 0.5] = NAN
    got = run(ops.top_k, {"x": x}, level, k=k)
    want = np.argsort(-x, axis=-1, kind="stable")[:, :k]
    np.testing.assert_array_equal(np.take_along_axis(x, got, -1), np.take_along_axis(x, want, -1))
    assert all(len(set(row)) == k for row in got.tolist())


@pytest.mark.parametrize("n", [1, 3, 16, 100, 4097, 70001])
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e25])
def test_norms_at_any_size(level, n, size):
    x = (np.random.default_rng(n).standard_normal((2, n)) * size).astype(np.float32)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    want = {
        ops.rms_norm: wide / np.sqrt(np.square(wide).mean(-1, keepdims=True) + 1e-12),
        ops.norm: centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + 1e-12),
        ops.l2_norm: wide / np.maximum(np.sqrt(np.square(wide).sum(-1, keepdims=True)), 1e-12),
    }
    for op, y in want.items():
        got = run(op, {"x": x}, level, eps=1e-12)
        np.testing.assert_allclose(got, y, rtol=0, atol=1e-5 * np.abs(y).max() + 1e-6, err_msg=op.name)


def test_norm_of_small_changes_on_a_large_mean(level):
    x = (1e4 + np.random.default_rng(0).standard_normal((3, 777))).astype(np.float32)
    wide = x.astype(np.float64)
    want = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(run(ops.norm, {"x": x}, level), want, rtol=0, atol=1e-5 * np.abs(want).max())


def test_sums_do_not_lose_small_addends(level):
    x = np.full((2, 100_001), 1e-3, np.float32)
    x[:, 0] = 1e6
    x[1, -1] = -1e6
    want = x.astype(np.float64).sum(-1)
    np.testing.assert_allclose(run(ops.sum, {"x": x}, level), want, rtol=1e-7)
    np.testing.assert_allclose(run(ops.sum, {"x": x}, level, axis=None), want.sum(), rtol=1e-7)
    np.testing.assert_allclose(run(ops.mean, {"x": x}, level), want / x.shape[1], rtol=1e-7)


def test_softmax_of_long_and_of_shut_rows(level):
    rng = np.random.default_rng(12)
    x = (rng.standard_normal((1, 3, 2, 3001)) * 30).astype(np.float32)
    x[0, 1] = -INF
    x[0, 2, 0, 7], x[0, 2, 1, 3000] = INF, NAN
    x[0, 2, 1, :3000] = -INF
    z = x.astype(np.float64) * 0.5
    with np.errstate(invalid="ignore"):
        e = np.exp(z - z.max(-1, keepdims=True))
        want = e / e.sum(-1, keepdims=True)
    want[0, 1] = 0
    close(run(ops.softmax, {"x": x}, level, scale=0.5), want)


def test_softmax_slopes_and_sinks(level):
    rng = np.random.default_rng(13)
    x = rng.standard_normal((2, 12, 3, 37)).astype(np.float32)
    mask, sinks = rng.standard_normal((2, 1, 4, 37)).astype(np.float16), rng.standard_normal(12).astype(np.float32)
    slopes = [2.0 ** -(h + 1) for h in range(8)] + [2.0 ** -(0.5 * (2 * h + 1)) for h in range(4)]
    z = x + np.array(slopes)[None, :, None, None] * mask[:, :, :3].astype(np.float64)
    top = np.maximum(z.max(-1), sinks[None, :, None])[..., None]
    want = np.exp(z - top) / (np.exp(z - top).sum(-1, keepdims=True) + np.exp(sinks[None, :, None, None] - top))
    close(run(ops.softmax, {"x": x, "mask": mask, "sinks": sinks}, level, max_bias=8.0), want)
