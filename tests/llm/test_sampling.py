"""Sampling against plain float64 numpy, and stop strings against a search in the whole text."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from jackfield_llm.errors import SamplingError
from jackfield_llm.sampling import Sampler, StopStrings

# Quarters, so that ties are common.
LOGITS = arrays(np.float32, st.integers(1, 200), elements=st.integers(-80, 80).map(lambda n: n / 4))


def softmax(row):
    weights = np.exp(row.astype(np.float64) - row.max())
    return weights / weights.sum()


def left(sampler, logits, history=()):
    ids, probabilities = sampler.distribution(logits, history)
    assert probabilities.sum() == pytest.approx(1.0)
    assert (np.diff(ids) > 0).all()
    return ids.tolist(), probabilities


@given(LOGITS)
def test_greedy_takes_the_lowest_id_of_the_largest(logits):
    best = min(i for i, value in enumerate(logits) if value == max(logits))
    assert Sampler().draw(logits) == best
    assert left(Sampler(), logits)[0] == [best]


@given(LOGITS, st.integers(1, 250))
def test_top_k_keeps_exactly_k_of_the_largest(logits, k):
    ids, _ = left(Sampler(temperature=1.0, top_k=k), logits)
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    assert ids == sorted(order[:k])


@given(LOGITS, st.floats(0.01, 1.0))
def test_top_p_is_the_smallest_set_that_reaches_the_mass(logits, p):
    ids, _ = left(Sampler(temperature=1.0, top_p=p), logits)
    mass = softmax(logits)
    assert mass[ids].sum() >= min(p, 1.0) - 1e-9
    assert mass[ids].sum() - mass[ids].min() < p + 1e-9 or p == 1.0
    assert len(ids) == len(logits) or mass[ids].min() >= np.delete(mass, ids).max() - 1e-12


def test_top_p_of_a_vocabulary_as_large_as_real_ones():
    logits = np.random.default_rng(5).normal(size=49_152).astype(np.float32)
    ids, _ = left(Sampler(temperature=1.0, top_p=0.9), logits)
    mass = np.sort(softmax(logits))[::-1]
    assert len(ids) == int(np.searchsorted(np.cumsum(mass), 0.9)) + 1


@given(LOGITS, st.floats(0.001, 1.0))
def test_min_p_compares_with_the_likeliest(logits, p):
    ids, _ = left(Sampler(temperature=1.0, min_p=p), logits)
    mass = softmax(logits)
    near = np.abs(mass / mass.max() - p) < 1e-9
    assert set(ids) - set(np.flatnonzero(near)) == set(np.flatnonzero((mass >= p * mass.max()) & ~near))


@given(LOGITS, st.floats(0.05, 4.0))
def test_temperature_divides_the_logits(logits, temperature):
    _, probabilities = left(Sampler(temperature=temperature), logits)
    np.testing.assert_allclose(probabilities, softmax(logits.astype(np.float64) / temperature), atol=1e-12)


@given(LOGITS, st.floats(1.01, 3.0), st.data())
def test_penalty_changes_only_what_was_seen_lately(logits, penalty, data):
    history = data.draw(st.lists(st.integers(0, len(logits) - 1), max_size=30))
    last = data.draw(st.integers(-1, 30))
    _, probabilities = left(Sampler(temperature=1.0, repetition_penalty=penalty, repeat_last=last), logits, history)
    lately = history if last < 0 else history[len(history) - min(last, len(history)) :]
    expected = [
        value if i not in lately else value / penalty if value > 0 else value * penalty
        for i, value in enumerate(logits.astype(np.float64))
    ]
    np.testing.assert_allclose(probabilities, softmax(np.array(expected)), atol=1e-12)


def test_penalty_changes_the_greedy_choice_and_not_the_logits():
    logits = np.array([2.0, 1.9, 0.0], np.float32)
    assert Sampler(repetition_penalty=1.2).draw(logits, [0]) == 1
    assert Sampler(repetition_penalty=1.2).draw(logits, []) == 0
    assert logits.tolist() == pytest.approx([2.0, 1.9, 0.0])


def test_draws_follow_the_distribution():
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1]))
    sampler = Sampler(temperature=1.0, seed=7)
    counts = np.bincount([sampler.draw(logits) for _ in range(20_000)], minlength=4)
    expected = 20_000 * np.array([0.4, 0.3, 0.2, 0.1])
    assert ((counts - expected) ** 2 / expected).sum() < 16.27  # chi-square, 3 degrees of freedom, 0.1 %


def test_a_token_that_is_shut_out_is_never_drawn():
    logits = np.array([-np.inf, 0.0, -np.inf, 0.0, -np.inf])
    sampler = Sampler(temperature=5.0, seed=1)
    assert {sampler.draw(logits) for _ in range(500)} == {1, 3}


def test_seeds_repeat_and_their_absence_does_not():
    logits = np.zeros(1000, np.float32)

    def draws(seed):
        sampler = Sampler(temperature=1.0, seed=seed)
        return [sampler.draw(logits) for _ in range(20)]

    assert draws(3) == draws(3)
    assert draws(3) != draws(4)
    assert draws(None) != draws(None)


def test_a_tiny_temperature_is_greedy_and_does_not_overflow():
    logits = np.array([1e4, 3e4, -3e4], np.float32)
    assert Sampler(temperature=1e-300, seed=0).draw(logits) == 1


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("temperature", -0.1, r"temperature is -0.1: must be at least 0"),
        ("temperature", math.nan, r"temperature is nan: must be a finite number"),
        ("temperature", True, r"temperature is True: must be a finite number"),
        ("temperature", "1", r"temperature is '1': must be a finite number"),
        ("top_p", 0.0, r"top_p is 0.0: must be above 0 and at most 1"),
        ("top_p", 1.5, r"top_p is 1.5: must be above 0 and at most 1"),
        ("min_p", 1.01, r"min_p is 1.01: must be at least 0 and at most 1"),
        ("repetition_penalty", 0, r"repetition_penalty is 0: must be above 0"),
        ("top_k", -1, r"top_k is -1: must be a whole number, at least 0"),
        ("top_k", 1.5, r"top_k is 1.5: must be a whole number"),
        ("repeat_last", -2, r"repeat_last is -2: must be a whole number, at least -1"),
        ("seed", -1, r"seed is -1: must be a whole number, at least 0"),
    ],
)
def test_parameters_out_of_range_are_refused(field, value, text):
    with pytest.raises(SamplingError, match=rf"\[sample\] {text}"):
        Sampler(**{field: value})
    assert issubclass(SamplingError, ValueError)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("history", [[], [0]])
def test_logits_nothing_can_be_drawn_from_are_refused(temperature, history):
    sampler = Sampler(temperature=temperature, repetition_penalty=1.1)
    for bad in (np.nan, np.inf):
        with pytest.raises(SamplingError, match=r"logit 2 is (nan|inf): must be finite or -inf \(1 are not\)"):
            sampler.draw(np.array([1.0, 2.0, bad], np.float32), history)
    with pytest.raises(SamplingError, match="all logits are -inf"):
        sampler.draw(np.full(3, -np.inf, np.float32), history)
    with pytest.raises(SamplingError, match=r"logits are \[2, 3\]: must be one row"):
        sampler.draw(np.zeros((2, 3)), history)
    with pytest.raises(SamplingError, match=r"logits are \[0\]: must be one row"):
        sampler.draw(np.zeros(0), history)


@pytest.mark.parametrize(("token", "shown"), [(3, 3), (-1, -1)])
def test_a_history_with_strange_ids_is_refused(token, shown):
    with pytest.raises(SamplingError, match=f"history holds token {shown}: must be below 3"):
        Sampler(repetition_penalty=1.1).draw(np.zeros(3), [0, token])


def first_stop(text, stops):
    """Text before the match that ends first (the longer of two), and that match."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


LETTERS = st.text("ab\n", max_size=12)


@given(st.lists(LETTERS, max_size=12), st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=4))
def test_stops_do_not_depend_on_how_the_stream_is_cut(pieces, stops):
    matcher = StopStrings(stops)
    shown = "".join([matcher.push(piece) for piece in pieces])
    if matcher.stopped is None:
        shown += matcher.flush()
    assert (shown, matcher.stopped) == first_stop("".join(pieces), stops)
    assert matcher.flush() == ""


def test_a_beginning_of_a_stop_is_held_back_no_longer_than_needed():
    matcher = StopStrings(["###", "\nUser:"])
    assert [matcher.push(piece) for piece in ("Hi\n", "Us", "ual #", "#", " x", "##", "#", "more")] == [
        "Hi",
        "",
        "\nUsual ",
        "",
        "## x",
        "",
        "",
        "",
    ]
    assert matcher.stopped == "###"


@pytest.mark.parametrize("stops", ["abc", [""], [3]])
def test_wrong_stops_are_refused(stops):
    with pytest.raises(SamplingError, match=r"\[stop\].*must be a "):
        StopStrings(stops)
