"""Recurrent models whose text is taken back and goes on otherwise: they answer as one that reads the text afresh.

Every call that moves the cache takes its turn, and what follows a cut are other tokens than those that were cut off: a
state that is left over from them would show.
"""

from __future__ import annotations

import families
import numpy as np
import presence
import pytest
from families import nmse

import jackfield as jf
import jackfield_llm
from jackfield_llm.config import read_config

NAMES = (
    *("mamba", "falcon_mamba", "mamba2"),
    *("rwkv6", "rwkv7", "rwkv6qwen2", "arwkv7"),
    *("qwen3next", "qwen35", "qwen35moe"),
)
VARIANTS = (
    *("mamba2_one_group", "rwkv6_split", "rwkv7_f16", "rwkv6qwen2_f16", "arwkv7_f16", "qwen3next_joined"),
    *("qwen3next_predicting", "qwen35_predicting", "qwen35moe_predicting"),
)
"""Of the same layers, so for the quick device only."""
CASES = (
    *(("reference", name, 24) for name in NAMES),
    *(("cpu:0", name, 72) for name in (*NAMES, *VARIANTS)),
)
"""Device, model, steps: the reference takes a hundred times as long."""
CONTEXT = 28


def bound(path):
    """NMSE between rounds of f32 sums; where x is rounded to bf16, a last digit may turn over, and all that follows."""
    tensors = jf.gguf.open(path).tensors
    return 1e-4 if any(tensors[name].dtype.name == "bf16" for name in tensors) else 1e-8


def load(path, device, **options):
    return jackfield_llm.load(path, device, context=CONTEXT, cache_dtype="f32", **options)


def test_the_recurrent_ones_are_all_here(family_path):
    found = {name for name in families.NAMES if read_config(jf.gguf.open(family_path(name)).metadata).recurrent}
    assert found == {*NAMES, *VARIANTS}


class Afresh:
    """A model that forgets everything before each text."""

    def __init__(self, model):
        self.model = model

    def last(self, text):
        """Logits after the last token."""
        self.model.reset()
        return self.model.prefill(text)

    def logits(self, text):
        return np.stack([self.last(text[: end + 1]) for end in range(len(text))])

    def embed(self, texts):
        return np.concatenate([self.model.embed([text]) for text in texts])


class Trace:
    """A model that tries tokens and takes them back, beside one that reads afresh what the first should hold.

    text: what the first should hold. bound: of the NMSE between their answers.
    """

    def __init__(self, tried, fresh, seed, bound):
        self.tried, self.fresh, self.bound = tried, fresh, bound
        self.text: list[int] = []
        self._rng = np.random.default_rng(seed)

    def number(self, least, most):
        return int(self._rng.integers(least, most + 1))

    def tokens(self, most=8):
        """New ones: no two are alike, and none stands in the text."""
        drawn = self._rng.permutation(families.family_files.VOCABULARY).tolist()
        return [token for token in drawn if token not in self.text][: self.number(1, most)]

    def cut(self):
        """Where a few tokens end that are taken back, or more of them: always some when the text is long."""
        least = max(0, len(self.text) + 8 - CONTEXT)
        return max(0, len(self.text) - self.number(least, least + self.number(1, 6)))

    def reset(self):
        """Twice in a row now and then."""
        for _ in range(1 + (self.number(1, 8) == 1)):
            keep = self.cut()
            self.tried.reset(keep=keep)
            del self.text[keep:]

    def go_back(self):
        """Mostly, and where there would be no room."""
        if len(self.text) + 8 > CONTEXT or self.number(1, 10) > 3:
            self.reset()

    def prefill(self):
        self.go_back()
        ids = self.tokens()
        self.text += ids
        self.expect_last(self.tried.prefill(ids))

    def decode(self):
        """Tokens one by one, as an answer grows."""
        self.go_back()
        for token in self.tokens(most=4):
            self.text.append(token)
            got = self.tried.decode(token)
        self.expect_last(got)

    def advance(self):
        keep = self.cut()
        self.text = self.text[:keep] + self.tokens()
        got, reused = self.tried.advance(self.text)
        assert 0 <= reused <= keep
        self.expect_last(got)

    def logits(self):
        self.text = self.tokens(most=12)
        assert nmse(self.tried.logits(self.text), self.fresh.logits(self.text)) < self.bound

    def embed(self):
        texts = [self.tokens(most=12) for _ in range(self.number(1, 2))]
        self.text = list(texts[-1])
        assert nmse(self.tried.embed(texts), self.fresh.embed(texts)) < self.bound

    def expect_last(self, got):
        assert nmse(got, self.fresh.last(self.text)) < self.bound


@pytest.fixture(params=CASES, ids=lambda case: f"{case[1]}-{case[0]}")
def case(request):
    presence.opens(request.param[0])
    return request.param


@pytest.mark.parametrize("rollback", [0, 3])
def test_what_is_taken_back_leaves_nothing_behind(rollback, case, family_path):
    device, name, steps = case
    path = family_path(name)
    with load(path, device, rollback=rollback) as tried, load(path, device, batch=4) as fresh:
        trace = Trace(tried, Afresh(fresh), [*name.encode(), rollback], bound(path))
        often = [trace.prefill, trace.prefill, trace.decode, trace.advance]
        for step in range(steps):
            calls = [trace.logits, trace.embed] if step % 8 == 0 else often
            calls[trace.number(0, len(calls) - 1)]()
            assert tried.cached == tuple(trace.text)
