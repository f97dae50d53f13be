"""rope in all its modes against the formula written out pair by pair."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jackfield import ops
from jackfield.errors import AttributeValueError

MODES = ("normal", "neox", "mrope", "imrope", "vision")


def component(mode, i, sections):
    """Which of the four positions turns pair i, and the exponent of its angle."""
    if mode in ("normal", "neox"):
        return 0, i
    j = i % sum(sections)
    if mode == "imrope":
        turns = [c for c in range(3) if j % 3 == c and j < 3 * sections[c]]
        return (turns[0] if turns else 3), i
    c, start = 0, 0
    while j >= start + sections[c]:
        start += sections[c]
        c += 1
    return c, j - start if mode == "vision" else i


def turned(row, positions, factors, a):
    """One head of one token (D,), by positions (4,), in f64."""
    n, D, mode, offset = a["n_dims"], len(row), a["mode"], a["offset"]
    y = [float(x) for x in row]
    for i in range(D // 2 if mode == "vision" else n // 2):
        if mode == "normal":
            left, right = offset + 2 * i, offset + 2 * i + 1
        elif mode == "vision":
            left, right = i, i + D // 2
        else:
            left, right = offset + i, offset + i + n // 2
        c, e = component(mode, i, a["sections"])
        theta = float(positions[c]) * a["base"] ** (-2 * e / n) / (1.0 if factors is None else float(factors[i]))
        angle, size = a["scale"] * theta, a["attn_factor"]
        if a["ext_factor"]:
            low, high = (
                n * math.log(a["original_context"] / (2 * math.pi * turns)) / (2 * math.log(a["base"]))
                for turns in (a["beta_fast"], a["beta_slow"])
            )
            low, high = max(0, math.floor(low)), min(n - 1, math.ceil(high))
            w = (1 - min(1.0, max(0.0, (i - low) / max(0.001, high - low)))) * a["ext_factor"]
            angle = angle * (1 - w) + theta * w
            size *= 1 + 0.1 * math.log(1 / a["scale"])
        u, v = float(row[left]), float(row[right])
        y[left] = size * (u * math.cos(angle) - v * math.sin(angle))
        y[right] = size * (u * math.sin(angle) + v * math.cos(angle))
    return y


@pytest.mark.parametrize("mode", MODES)
@given(st.integers(0, 2**31))
def test_every_mode_pair_by_pair(mode, seed):
    rng = np.random.default_rng(seed)
    D = 4 * int(rng.integers(1, 7))
    n = D // 2 if mode == "vision" else 2 * int(rng.integers(1, D // 2 + 1))
    multi = mode not in ("normal", "neox")
    sections = [int(s) for s in rng.integers(0, 4, 4)]
    sections[int(rng.integers(0, 3))] += 1
    T = int(rng.integers(1, 4))
    attrs = {
        "mode": mode,
        "n_dims": n,
        "offset": 0 if mode == "vision" else 2 * int(rng.integers(0, (D - n) // 2 + 1)),
        "base": float(rng.choice([10000.0, 500.0])),
        "scale": float(rng.choice([1.0, 0.25])),
        "ext_factor": float(rng.choice([0.0, 1.0, 0.5])),
        "attn_factor": float(rng.choice([1.0, 1.5])),
        "beta_fast": float(rng.choice([32.0, 8.0])),
        "beta_slow": float(rng.choice([1.0, 2.0])),
        "original_context": int(rng.choice([64, 4096])),
        "sections": tuple(sections) if multi else (0, 0, 0, 0),
    }
    positions = rng.integers(-60, 60, (4, T)).astype(np.int32)
    factors = rng.uniform(1, 4, D // 2).astype(np.float32) if rng.random() < 0.5 else None
    x = rng.standard_normal((2, T, 3, D)).astype(np.float32)
    got = ops.rope.run(x, positions if multi else positions[0], factors, **attrs)
    for b, t, h in np.ndindex(2, T, 3):
        np.testing.assert_allclose(got[b, t, h], turned(x[b, t, h], positions[:, t], factors, attrs), rtol=0, atol=4e-6)


@pytest.mark.parametrize(
    ("attrs", "text"),
    [
        ({"beta_fast": 0.0}, "beta_fast is 0.0: ext_factor needs one above 0 and finite"),
        ({"beta_slow": -1.0}, "beta_slow is -1.0: ext_factor needs one above 0 and finite"),
        ({"base": 1.0}, "base is 1: with ext_factor it must be another"),
        ({"original_context": 0}, "original_context is 0: ext_factor needs one above 0"),
    ],
)
def test_a_blend_that_has_no_numbers_is_told(attrs, text):
    """Logarithms of nothing, and a division by the logarithm of 1: told where the node is built, never at a run."""
    x, usual = np.ones((1, 1, 1, 4), np.float32), {"mode": "neox", "n_dims": 4}
    with pytest.raises(AttributeValueError, match=text):
        ops.rope.run(x, np.ones(1, np.int32), **usual, ext_factor=1.0, **({"original_context": 64} | attrs))
    ops.rope.run(x, np.ones(1, np.int32), **usual, **attrs)


def test_a_base_of_one_turns_all_pairs_alike():
    x = np.array([1, 1, 0, 0], np.float32).reshape(1, 1, 1, 4)
    y = ops.rope.run(x, np.ones(1, np.int32), mode="neox", n_dims=4, base=1.0).ravel()
    np.testing.assert_allclose(y, [math.cos(1)] * 2 + [math.sin(1)] * 2, atol=1e-6)


def test_vision_needs_even_halves():
    x, positions = np.ones((1, 1, 1, 6), np.float32), np.ones((4, 1), np.int32)
    with pytest.raises(AttributeValueError, match="n_dims is 3 and offset 0: both must be even and end within 6"):
        ops.rope.run(x, positions, mode="vision", n_dims=3, sections=(1, 1, 1, 0))
