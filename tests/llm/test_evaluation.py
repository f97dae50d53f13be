"""Figures of two models' predictions: against plain numpy in float64, and by what must hold of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jackfield_llm.errors import EvaluationError
from jackfield_llm.evaluation import compare, figures, joined, log_softmax

LOGITS = st.floats(-200, 200, width=32)


@st.composite
def pairs(draw, rows=st.integers(1, 40), columns=st.integers(1, 9)):
    shape = (draw(rows), draw(columns))
    base, judged = (draw(hnp.arrays(np.float32, shape, elements=LOGITS)) for _ in range(2))
    targets = draw(st.lists(st.integers(0, shape[1] - 1), min_size=shape[0], max_size=shape[0]))
    return base, judged, targets


def softmax(row):
    """As the definition says, in long double."""
    wide = row.astype(np.longdouble)
    e = np.exp(wide - wide.max())
    return e / e.sum()


@given(pairs())
def test_positions_are_those_of_the_definition(pair):
    base, judged, targets = pair
    found = compare(base, judged, targets)
    for i, target in enumerate(targets):
        p, q = softmax(base[i]), softmax(judged[i])
        with np.errstate(divide="ignore", invalid="ignore"):
            kl = np.where(p > 0, p * (np.log(p) - np.log(q)), 0).sum()
        assert found.kl[i] == pytest.approx(float(kl), rel=1e-9, abs=1e-12)
        assert found.nll[i] == pytest.approx(float(-np.log(q[target])), rel=1e-9, abs=1e-12)
        assert found.base_nll[i] == pytest.approx(float(-np.log(p[target])), rel=1e-9, abs=1e-12)
        assert found.change[i] == pytest.approx(float(q[target] - p[target]), rel=1e-9, abs=1e-12)
        assert found.same[i] == (base[i].argmax() == judged[i].argmax())


@given(pairs())
def test_what_always_holds(pair):
    base, judged, targets = pair
    found = compare(base, judged, targets)
    assert (found.kl >= 0).all()
    assert (found.nll >= 0).all()
    assert (np.abs(found.change) <= 1).all()
    same = compare(base, base, targets)
    assert not same.kl.any()
    assert not same.change.any()
    assert same.same.all()


@given(pairs(), LOGITS)
def test_only_differences_of_logits_matter(pair, shift):
    base, judged, targets = pair
    one, other = compare(base, judged, targets), compare(base, judged + np.float32(shift), targets)
    assert other.kl == pytest.approx(one.kl, rel=1e-4, abs=1e-3)  # the shift itself is rounded in f32


def test_logits_far_apart_stay_finite():
    base = np.array([[3e38, -3e38, 0]], np.float32)
    found = compare(base, -base, [1])
    assert np.isfinite([found.kl[0], found.nll[0], found.base_nll[0]]).all()
    assert found.base_nll[0] == pytest.approx(6e38)
    assert figures(joined([found, found])).base_perplexity.value == math.inf


def test_known_figures():
    """Two tokens: P is (3/4, 1/4) and Q (1/2, 1/2), or both are (1/2, 1/2)."""
    base = np.log(np.array([[3, 1], [1, 1]], np.float32))
    found = figures(compare(base, np.zeros((2, 2), np.float32), [0, 1]))
    kl = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert found.positions == 2
    assert found.kl.value == pytest.approx(kl / 2)
    assert found.kl.error == pytest.approx(kl / 2)
    assert found.kl_max == pytest.approx(kl)
    assert found.kl_99 == pytest.approx(0.99 * kl)
    assert found.rms.value == pytest.approx(math.sqrt(0.25**2 / 2))
    assert found.perplexity.value == pytest.approx(2)
    assert found.perplexity.error == 0
    assert found.base_perplexity.value == pytest.approx(math.sqrt(4 / 3 * 2))
    assert found.ratio.value == pytest.approx(2 / math.sqrt(8 / 3))
    assert found.agreement.value == 1


def test_errors_shrink_as_positions_grow():
    random = np.random.default_rng(1)
    base, judged = random.normal(scale=0.3, size=(2, 4000, 50)).astype(np.float32)
    targets = random.integers(0, 50, 4000).tolist()
    found = compare(base, judged, targets)
    few, many = (figures(compare(base[:n], judged[:n], targets[:n])) for n in (400, 4000))
    for name in ("kl", "rms", "agreement", "perplexity", "base_perplexity", "ratio"):
        ratio = getattr(few, name).error / getattr(many, name).error
        assert 2.2 < ratio < 4.5, name  # root of 10
    means = [chunk.mean() for chunk in np.split(found.kl, 100)]
    assert many.kl.error == pytest.approx(np.std(means) / 10, rel=0.25)


@given(pairs(rows=st.integers(2, 80)), st.integers(0, 80))
def test_cut_anywhere_the_figures_are_the_same(pair, at):
    base, judged, targets = pair
    whole = figures(compare(base, judged, targets))
    parts = [compare(base[s], judged[s], targets[s]) for s in (slice(0, at), slice(at, None))]
    assert figures(joined(parts)) == whole


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_numbers_are_refused(wrong):
    good, bad = np.zeros((3, 4), np.float32), np.zeros((3, 4), np.float32)
    bad[1, 2] = wrong
    for pair in ((good, bad), (bad, good)):
        with pytest.raises(EvaluationError, match="NaN or infinities"):
            compare(*pair, [0, 0, 0])


def test_shapes_that_differ_are_refused():
    with pytest.raises(EvaluationError, match=r"\[3, 4\] and \[3, 5\]"):
        compare(np.zeros((3, 4), np.float32), np.zeros((3, 5), np.float32), [0, 0, 0])
    with pytest.raises(EvaluationError, match="for 2 tokens"):
        compare(np.zeros((3, 4), np.float32), np.zeros((3, 4), np.float32), [0, 0])


@pytest.mark.parametrize("rows", [0, 1])
def test_too_few_positions_are_refused(rows):
    with pytest.raises(EvaluationError, match=f"{rows} tokens"):
        figures(compare(np.zeros((rows, 4), np.float32), np.zeros((rows, 4), np.float32), [0] * rows))


def test_log_softmax_is_float64():
    row = log_softmax(np.array([1e4, 0, -1e4], np.float32))
    assert row.dtype == np.float64
    assert row.tolist() == [0, -1e4, -2e4]
