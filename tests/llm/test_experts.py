"""The router against a plain loop: which experts each token takes, and with what weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jackfield as jf
from jackfield_llm.experts import choose
from jackfield_llm.graph_parts import Parts
from jackfield_llm.hyperparameters import Experts


@st.composite
def routers(draw):
    groups = draw(st.integers(1, 5))
    size = draw(st.integers(2 if groups > 1 else 1, 6))
    groups_used = draw(st.integers(1, groups))
    return Experts(
        count=groups * size,
        used=draw(st.integers(1, groups_used * size)),
        inner=32,
        gating=draw(st.sampled_from(["softmax", "sigmoid"])),
        normed=draw(st.booleans()),
        scale=draw(st.sampled_from([1.0, 2.5])),
        groups=groups,
        groups_used=groups_used,
    )


def expected(scores, bias, experts):
    """{expert: weight} of one token."""
    if experts.gating == "softmax":
        grown = np.exp(scores - scores.max())
        probabilities = grown / grown.sum()
    else:
        probabilities = 1 / (1 + np.exp(-scores))
    preferred = probabilities + bias
    size = experts.count // experts.groups
    best = [sum(sorted(preferred[g * size : (g + 1) * size])[-2:]) for g in range(experts.groups)]
    open_groups = sorted(range(experts.groups), key=lambda g: -best[g])[: experts.groups_used]
    candidates = [e for e in range(experts.count) if e // size in open_groups]
    chosen = sorted(candidates, key=lambda e: -preferred[e])[: experts.used]
    total = max(sum(probabilities[chosen]), 2.0**-14) if experts.normed else 1.0
    return {e: probabilities[e] / total * experts.scale for e in chosen}


def check(device, experts, rows, seed, biased):
    rng = np.random.default_rng(seed)
    # distinct everywhere, so that no tie decides: steps of a permutation and a little noise
    scores = np.array([rng.permutation(experts.count) for _ in range(rows)]) * 0.7 - 2 + rng.random((rows, 1))
    scores = scores.astype(np.float32)
    bias = rng.normal(size=experts.count).astype(np.float32) if biased else np.zeros(experts.count, np.float32)
    parts = Parts(None, None, context=1, cache_dtype=jf.f32)
    made = choose(parts, jf.input("s", scores.shape, jf.f32), jf.constant(bias) if biased else None, experts)
    with jf.Session(device) as session:
        ids, weights = session.compile(made)(s=scores)
    for row in range(rows):
        want = expected(scores[row].astype(np.float64), bias.astype(np.float64), experts)
        got = dict(zip(ids[row].tolist(), weights[row, :, 0].tolist(), strict=True))
        assert got == pytest.approx(want, rel=1e-4, abs=1e-7)


@given(experts=routers(), rows=st.integers(1, 4), seed=st.integers(0, 2**32 - 1), biased=st.booleans())
def test_choice_and_weights(experts, rows, seed, biased):
    check("reference", experts, rows, seed, biased)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rows", [1, 5, 33])
def test_choice_and_weights_on_cpu(rows, biased, absent):
    try:
        jf.Session("cpu").close()
    except (jf.errors.DeviceNameError, jf.errors.BackendError) as e:
        absent("cpu", f"no device cpu here: {e}")
    check("cpu", Experts(count=20, used=3, inner=32, gating="sigmoid", groups=5, groups_used=2), rows, 1, biased)
    check("cpu", Experts(count=33, used=8, inner=32, normed=False, scale=16.0), rows, 2, biased)


def test_graphs_share_what_no_file_has():
    """A plan more makes no constant more."""
    parts = Parts(None, None, context=1, cache_dtype=jf.f32)
    first = parts.table("numbers", np.arange(4, dtype=np.int32))
    assert parts.table("numbers", np.arange(4, dtype=np.int32)) is first
