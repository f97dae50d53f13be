"""Gradients against differences of the ops they belong to, and training steps against the formulas written out."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jackfield as jf
from jackfield import ops
from jackfield.op import collect

NAN = np.nan
seeds = st.integers(0, 2**32)


def drawn(rng, *shape):
    return rng.standard_normal(shape)


def slope(forward, x, grad, step=1e-6):
    """The gradient of sum(grad * forward(x)), by central differences in f64."""
    found = np.zeros(x.shape)
    for place in np.ndindex(*x.shape):
        up, down = x.copy(), x.copy()
        up[place] += step
        down[place] -= step
        found[place] = np.sum(grad * (forward(up) - forward(down))) / (2 * step)
    return found


def near(got, want):
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


@given(seeds)
def test_gradients_of_what_works_on_rows(seed):
    rng = np.random.default_rng(seed)
    x, grad = drawn(rng, 2, 5), drawn(rng, 2, 5)
    near(ops.silu_backward.body(grad, x), slope(ops.silu.body, x, grad))
    near(
        ops.rms_norm_backward.body(grad, x, eps=0.3),
        slope(lambda v: ops.rms_norm.body(v, eps=0.3), x, grad),
    )

    def softmax(v):
        return ops.softmax.body(v, scale=0.7)

    near(ops.softmax_backward.body(grad, softmax(x), scale=0.7), slope(softmax, x, grad))


ROPES = {
    "normal": {"n_dims": 6, "offset": 2},
    "neox": {"n_dims": 8, "scale": 0.25, "ext_factor": 1.0, "attn_factor": 1.3, "original_context": 64},
    "mrope": {"n_dims": 8, "sections": (2, 1, 1, 0)},
    "imrope": {"n_dims": 8, "sections": (2, 1, 1, 0)},
    "vision": {"n_dims": 4, "sections": (2, 2, 0, 0)},
}


@pytest.mark.parametrize("mode", ROPES)
@given(seeds)
def test_the_gradient_of_rope_is_its_adjoint(mode, seed):
    """The turn is linear, so sum(grad * rope(x)) = sum(rope_backward(grad) * x), whatever the numbers."""
    rng = np.random.default_rng(seed)
    x, grad, factors = drawn(rng, 2, 3, 2, 8), drawn(rng, 2, 3, 2, 8), rng.uniform(1, 3, 4)
    shape = (3,) if mode in ("normal", "neox") else (4, 3)
    positions = rng.integers(-50, 50, shape).astype(np.int32)
    forward = ops.rope.body(x, positions, factors, mode=mode, **ROPES[mode])
    back = ops.rope_backward.body(grad, positions, factors, mode=mode, **ROPES[mode])
    assert np.sum(grad * forward) == pytest.approx(np.sum(back * x), rel=1e-9)
    np.testing.assert_allclose(np.sum(back**2) > 0, True)


def test_rope_backward_of_the_least_position():
    grad = np.ones((1, 1, 2), np.float32)
    least = np.array([-(2**31)], np.int32)
    got = ops.rope_backward.run(grad, least, mode="normal", n_dims=2)
    angle = math.fmod(2.0**31, 2 * math.pi)
    np.testing.assert_allclose(
        got[0, 0], [math.cos(angle) - math.sin(angle), math.sin(angle) + math.cos(angle)], atol=1e-5
    )


@given(seeds)
def test_gradients_of_copies_are_their_adjoints(seed):
    """tile, take_rows and im2col are linear: sum(grad * f(x)) = sum(f_backward(grad) * x)."""
    rng = np.random.default_rng(seed)
    x, repeats = drawn(rng, 2, 3), tuple(int(r) for r in rng.integers(1, 4, 2))
    grad = drawn(rng, 2 * repeats[0], 3 * repeats[1])
    back = ops.tile_backward.body(grad, shape=(2, 3))
    assert np.sum(grad * np.tile(x, repeats)) == pytest.approx(np.sum(back * x), abs=1e-9)

    table, rows = drawn(rng, 5, 3), rng.integers(0, 5, 7).astype(np.int32)
    grad = drawn(rng, 7, 3)
    back = ops.take_rows_backward.body(grad, rows, count=5)
    assert np.sum(grad * table[rows]) == pytest.approx(np.sum(back * table), abs=1e-9)

    image = drawn(rng, 2, 3, 5, 6)
    how = {"kernel": (2, 3), "stride": (1, 2), "padding": (2, 1), "dilation": (2, 1)}
    columns = ops.im2col.body(image, dtype="f32", **how)
    grad = drawn(rng, *columns.shape)
    back = ops.im2col_backward.body(grad, shape=image.shape, **how)
    assert np.sum(grad * columns) == pytest.approx(np.sum(back * image), abs=1e-9)


def test_a_bad_row_adds_nothing():
    found = []
    with collect(found):
        got = ops.take_rows_backward.run(np.ones((3, 2), np.float32), np.array([4, 0, -1], np.int32), count=4)
    assert got.tolist() == [[1, 1], [0, 0], [0, 0], [0, 0]]
    assert [(f.operand, f.value) for f in found] == [("rows", 4)]


@given(st.sampled_from(["max", "mean"]), seeds)
def test_the_gradient_of_pooling(kind, seed):
    rng = np.random.default_rng(seed)
    x = rng.permutation(2 * 3 * 5 * 4).reshape(2, 3, 5, 4).astype(np.float64)  # no ties
    how = {"kind": kind, "kernel": (3, 2), "stride": (1, 2), "padding": (2, 1)}
    grad = drawn(rng, *ops.pool_2d.body(x, **how).shape)
    near(ops.pool_2d_backward.body(grad, x, **how), slope(lambda v: ops.pool_2d.body(v, **how), x, grad, 1e-3))


def test_the_first_of_equal_maxima_takes_it_all():
    x = np.array([[[[5, NAN, 5, 5, -np.inf, -np.inf]]]], np.float32)
    grad = np.array([[[[1, 2, 4, 8, 16]]]], np.float32)
    got = ops.pool_2d_backward.run(grad, x, kind="max", kernel=(1, 2), stride=1)
    assert got.reshape(-1).tolist() == [0, 3, 4, 8, 16, 0]
    only = np.full((1, 1, 1, 2), -np.inf, np.float32)
    edge = ops.pool_2d_backward.run(
        np.ones((1, 1, 1, 1), np.float32), only, kind="max", kernel=(1, 3), stride=9, padding=(0, 2)
    )
    assert edge.reshape(-1).tolist() == [1, 0]


@given(seeds)
def test_the_loss_and_its_gradient(seed):
    rng = np.random.default_rng(seed)
    logits, labels = drawn(rng, 2, 3, 4), rng.uniform(0, 1, (2, 3, 4))
    labels /= labels.sum(-1, keepdims=True)
    want = 0.0
    for row, share in zip(logits.reshape(-1, 4), labels.reshape(-1, 4), strict=True):
        whole = sum(math.exp(v) for v in row)
        want -= sum(s * math.log(math.exp(v) / whole) for v, s in zip(row, share, strict=True)) / 6
    assert ops.cross_entropy.body(logits, labels) == pytest.approx(want)
    near(
        ops.cross_entropy_backward.body(np.array(2.5), logits, labels),
        slope(lambda v: ops.cross_entropy.body(v, labels), logits, 2.5),
    )


@given(st.booleans(), seeds)
def test_the_gradients_of_attention(masked, seed):
    rng = np.random.default_rng(seed)
    q, k, v = drawn(rng, 2, 4, 2, 3), drawn(rng, 2, 2, 3, 3), drawn(rng, 2, 2, 3, 2)
    mask = np.where(rng.random((1, 2, 3, 3)) < 0.3, -np.inf, drawn(rng, 1, 2, 3, 3)) if masked else None
    grad = drawn(rng, 2, 2, 4, 2)

    def attention(q, k, v):
        with np.errstate(invalid="ignore"):
            return ops.attention.body(q, k, v, mask, scale=0.6)

    with np.errstate(invalid="ignore"):  # a row of -inf less its largest element
        packed = ops.attention_backward.body(grad, q, k, v, mask, scale=0.6)
    of_q, of_k, of_v = np.split(packed, [q.size, q.size + k.size])
    near(of_q.reshape(q.shape), slope(lambda a: attention(a, k, v), q, grad))
    near(of_k.reshape(k.shape), slope(lambda a: attention(q, a, v), k, grad))
    near(of_v.reshape(v.shape), slope(lambda a: attention(q, k, a), v, grad))


# steps


def adamw(w, g, m, v, rate, b1, b2, eps, decay, t):
    """One element, as the paper has it."""
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g * g
    first, second = m / (1 - b1**t), v / (1 - b2**t)
    return w - rate * decay * w - rate * first / (math.sqrt(second) + eps), m, v


def test_steps_of_adamw_in_a_session():
    """Three calls of one plan; weights and both means are states that the op changes where they lie."""
    rate, b1, b2, eps, decay = 0.1, 0.9, 0.99, 1e-8, 0.05
    weights, m, v = (jf.state(name, (2, 3)) for name in ("w", "m", "v"))
    grad, params = jf.input("grad", (2, 3)), jf.input("params", (7,))
    session = jf.Session(device="reference")
    plan = session.compile(ops.adamw_step(weights, grad, m, v, params))
    start = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
    session.states["w"].write(start)
    want = [(float(w), 0.0, 0.0) for w in start.reshape(-1)]
    rng = np.random.default_rng(0)
    for t in range(1, 4):
        g = drawn(rng, 2, 3).astype(np.float32)
        numbers = [rate, b1, b2, eps, decay, 1 / (1 - b1**t), 1 / (1 - b2**t)]
        got = plan(grad=g, params=np.array(numbers, np.float32))
        want = [
            adamw(*one[:1], float(d), *one[1:], rate, b1, b2, eps, decay, t)
            for one, d in zip(want, g.reshape(-1), strict=True)
        ]
        np.testing.assert_allclose(got.reshape(-1), [w for w, _, _ in want], rtol=2e-6)
        for name, at in (("w", 0), ("m", 1), ("v", 2)):
            held = session.states[name].read().reshape(-1)
            np.testing.assert_allclose(held, [one[at] for one in want], rtol=2e-6)


def test_a_step_of_descent():
    w, g = np.array([1, -2], np.float32), np.array([0.5, 4], np.float32)
    got = ops.sgd_step.run(w, g, np.array([0.1, 0.2], np.float32))
    np.testing.assert_allclose(got, [1 * 0.98 - 0.05, -2 * 0.98 - 0.4], rtol=1e-6)
    assert w.tolist() == [1, -2]


def test_a_small_net_learns():
    """linear, softmax's loss, its gradient, and the step, all in one graph: the loss falls at every call."""
    rng = np.random.default_rng(1)
    x, labels = jf.input("x", (8, 4)), jf.input("labels", (8, 3))
    w, m, v = (jf.state(name, (3, 4)) for name in ("w", "m", "v"))
    kept = ops.contiguous(w)
    logits = ops.linear(x, kept)
    loss = ops.cross_entropy(logits, labels)
    of_logits = ops.cross_entropy_backward(jf.constant(np.float32(1)), logits, labels)
    of_w = ops.matmul(of_logits.T, x)
    params = jf.constant(np.array([0.1, 0.9, 0.99, 1e-8, 0.0, 1.0, 1.0], np.float32))
    plan = jf.compile((loss, ops.adamw_step(w, of_w, m, v, params)), device="reference")
    data, wanted = drawn(rng, 8, 4).astype(np.float32), np.eye(3, dtype=np.float32)[rng.integers(0, 3, 8)]
    losses = [float(plan(x=data, labels=wanted)[0]) for _ in range(12)]
    assert losses[0] == pytest.approx(math.log(3), rel=1e-5)
    assert all(b < a for a, b in pairwise(losses))
