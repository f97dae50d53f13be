"""Answers: where they end, what they show, and that nothing that happens in between makes a later one wrong."""

from __future__ import annotations

import threading

import families
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from interrupts import Interrupt

import jackfield as jf
import jackfield_llm
from jackfield_llm import ChatError, ContextOverflow, ModelError, Sampler, SamplingError, Tokenizer
from jackfield_llm.generation import Generation

END, FIRST_BYTE = 1, 3  # ids in the vocabulary of the tiny llama: 3 special tokens, 256 bytes, pairs


@pytest.fixture(scope="module")
def tokenizer(family_path):
    return Tokenizer.from_metadata(jf.gguf.open(family_path("llama")).metadata)


@pytest.fixture
def model(family_path):
    with jackfield_llm.load(family_path("llama"), "reference", context=64) as model:
        yield model


class Scripted:
    """A model that says what it is told, and checks what it is asked."""

    def __init__(self, tokenizer, script, *, context=1000, prompt=(5, 6)):
        self.tokenizer, self.script, self.context, self.prompt = tokenizer, list(script), context, list(prompt)
        self.calls = 0

    def advance(self, ids, *, checked=0):
        assert list(ids) == [*self.prompt, *self.script[: self.calls]]
        assert len(ids) <= self.context
        logits = np.zeros(tokenizer_size(self.tokenizer), np.float32)
        logits[self.script[self.calls] if self.calls < len(self.script) else END] = 1
        self.calls += 1
        return logits, 0

    def answer(self, *, max_tokens=None, stop=(), sampler=None):
        return Generation(self, self.prompt, max_tokens=max_tokens, stop=stop, sampler=sampler or Sampler())


def tokenizer_size(tokenizer):
    return tokenizer.vocab_size


def tokens_of(text: str) -> list[int]:
    """One token a byte. The vocabulary lists the bytes by their value."""
    return [FIRST_BYTE + byte for byte in text.encode()]


def cut(text: str, stops: list[str]) -> str:
    """The text up to the stop that ends first; of those that end together the longest."""
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return text[: min(ends)[1]] if ends else text


# ---- what is shown

WORDS = st.text(st.sampled_from("abcé日😀 \n"), max_size=12)


@given(text=WORDS, stops=st.lists(st.text(st.sampled_from("abcé日😀"), min_size=1, max_size=4), max_size=3))
def test_the_text_is_whole_up_to_the_first_stop(text, stops, tokenizer):
    answer = Scripted(tokenizer, tokens_of(text)).answer(stop=stops)
    pieces = list(answer)
    assert "".join(pieces) == answer.text == cut(text, stops)
    assert all(pieces)
    assert answer.stats.finish == ("stop" if any(stop in text for stop in stops) else "end")
    assert answer.stats.tokens == len(answer.ids) <= len(tokens_of(text))


@given(ids=st.lists(st.integers(0, 319).filter(lambda token: token != END), max_size=20))
def test_any_tokens_give_what_decoding_all_at_once_gives(ids, tokenizer):
    answer = Scripted(tokenizer, ids).answer()
    assert "".join(answer) == tokenizer.decode(ids, skip_special=True)
    assert answer.ids == ids


def test_a_character_is_shown_when_it_is_whole(tokenizer):
    answer = Scripted(tokenizer, tokens_of("a😀b")).answer()
    assert [next(answer), next(answer), next(answer)] == ["a", "😀", "b"]


def test_half_a_character_at_the_end_is_shown_as_such(tokenizer):
    assert "".join(Scripted(tokenizer, tokens_of("a😀")[:-1]).answer()) == "a\ufffd"


def test_what_may_become_a_stop_is_held_back_and_given_when_it_does_not(tokenizer):
    answer = Scripted(tokenizer, tokens_of("xSTOxSTOP")).answer(stop=["STOP"])
    assert list(answer) == ["x", "STOx"]
    assert list(Scripted(tokenizer, tokens_of("xSTO")).answer(stop=["STOP"])) == ["x", "STO"]


def test_a_stop_in_the_half_character_at_the_end(tokenizer):
    answer = Scripted(tokenizer, tokens_of("a😀")[:-1]).answer(stop=["\ufffd"])
    assert "".join(answer) == "a"
    assert answer.stats.finish == "stop"


def test_the_sampler_sees_the_prompt_and_what_it_drew(tokenizer):
    class Spy:
        seen = []

        def draw(self, logits, history):
            self.seen.append(list(history))
            return int(logits.argmax())

    ids = tokens_of("ab")
    "".join(Scripted(tokenizer, ids).answer(sampler=Spy()))
    assert Spy.seen == [[5, 6], [5, 6, ids[0]], [5, 6, *ids]]


# ---- where it ends


def test_the_end_token_ends_and_is_not_shown(tokenizer):
    answer = Scripted(tokenizer, [*tokens_of("ab"), END, *tokens_of("c")]).answer()
    assert "".join(answer) == "ab"
    assert answer.stats.finish == "end"
    assert answer.stats.tokens == 2
    assert list(answer) == []


@given(limit=st.integers(0, 8), length=st.integers(0, 8))
def test_max_tokens(limit, length, tokenizer):
    model = Scripted(tokenizer, tokens_of("a" * length))
    answer = model.answer(max_tokens=limit)
    assert "".join(answer) == "a" * min(limit, length)
    assert answer.stats.finish == ("length" if limit <= length else "end")
    assert model.calls == max(1, min(limit, length + 1)), "the last token needs no evaluation"


@given(room=st.integers(0, 5), limit=st.none() | st.integers(0, 10))
def test_the_context_ends_it(room, limit, tokenizer):
    model = Scripted(tokenizer, tokens_of("a" * 20), context=2 + room)
    answer = model.answer(max_tokens=limit)
    assert "".join(answer) == "a" * (room + 1 if limit is None else min(limit, room + 1))
    assert answer.stats.finish == ("length" if limit is not None and limit <= room + 1 else "context")


def test_figures(tokenizer):
    answer = Scripted(tokenizer, tokens_of("abc")).answer()
    "".join(answer)
    stats = answer.stats
    assert (stats.prompt_tokens, stats.cached_tokens, stats.tokens) == (2, 0, 3)
    assert 0 < stats.prompt_seconds <= stats.first_token_seconds
    assert stats.prompt_rate == stats.prompt_tokens / stats.prompt_seconds
    assert stats.rate == 2 / stats.seconds
    nothing = Scripted(tokenizer, []).answer()
    assert (nothing.stats.rate, nothing.stats.prompt_rate) == (0, 0)
    assert list(nothing) == []
    assert nothing.stats.rate == 0


# ---- a model that really evaluates


def test_greedy_is_the_likeliest_token_each_time(model):
    ids = model.tokenize("the rain")
    answer = model.answer(ids, max_tokens=12)
    "".join(answer)
    for token in answer.ids:
        assert token == int(model.logits(ids)[-1].argmax())
        ids.append(token)


def test_the_decode_plan_is_built_once(model, monkeypatch):
    model.generate("the rain", raw=True, max_tokens=1).__next__()
    monkeypatch.setattr(model.session, "compile", lambda *_a, **_k: pytest.fail("compiled while generating"))
    answer = model.generate("the rain in s", raw=True, max_tokens=20)
    "".join(answer)
    assert answer.stats.tokens == 20


def test_the_same_seed_gives_the_same_text(model):
    def text(seed):
        return "".join(model.generate("the", raw=True, max_tokens=20, temperature=1.0, seed=seed))

    assert text(1) == text(1)
    assert len({text(seed) for seed in range(4)}) == 4


def test_a_common_beginning_is_reused(model):
    """And the logits are those of a fresh evaluation."""
    ids = list(range(10, 40))
    fresh = model.logits(ids)
    for first in (ids[:20], [*ids[:20], 7, 7], ids, [*ids, 9], [7]):
        model.reset()
        model.advance(first)
        logits, reused = model.advance(ids)
        common = next(
            (i for i, (a, b) in enumerate(zip(first, ids, strict=False)) if a != b), min(len(first), len(ids))
        )
        assert reused == min(common, len(ids) - 1)
        assert families.nmse(logits, fresh[-1]) < 1e-6
        assert model.cached == tuple(ids)


def test_a_second_turn_evaluates_only_what_is_new(model):
    prompt = model.tokenize("the rain in spain")
    first = model.answer(prompt, max_tokens=5)
    "".join(first)
    more = [*prompt, *first.ids, *model.tokenize(" stays")]
    second = model.answer(more, max_tokens=1)
    "".join(second)
    assert second.stats.cached_tokens == len(prompt) + 4, "the last token of an answer is not evaluated"
    assert second.stats.prompt_tokens == len(more) - second.stats.cached_tokens


def test_answers_may_take_turns(model):
    alone = ["".join(model.generate(text, raw=True, max_tokens=8)) for text in ("the rain", "on a plain")]
    both = [model.generate(text, raw=True, max_tokens=8) for text in ("the rain", "on a plain")]
    said = ["", ""]
    for _ in range(8):
        for i in (0, 1):
            said[i] += next(both[i], "")
    assert said == alone


def test_an_answer_that_is_left_off_harms_nothing(model):
    whole = "".join(model.generate("the rain", raw=True, max_tokens=10))
    left = model.generate("the rain", raw=True, max_tokens=10)
    next(left)
    left.close()
    assert list(left) == []
    assert left.stats.finish == ""
    dropped = model.generate("of other things", raw=True)
    next(dropped)
    del dropped
    assert "".join(model.generate("the rain", raw=True, max_tokens=10)) == whole


# ---- several threads, interrupts, failures


class Held:
    """A plan that waits in the middle of its call."""

    def __init__(self, plan):
        self.plan, self.entered, self.go = plan, threading.Event(), threading.Event()

    def __call__(self, **inputs):
        self.entered.set()
        assert self.go.wait(60)
        return self.plan(**inputs)


def test_a_second_call_at_the_same_time_is_busy(model):
    ids = [10, 11, 12]
    model.advance(ids)
    held = model._decoder.plans[1, "last"] = Held(model._decoder.plan(1, "last"))
    thread = threading.Thread(target=model.decode, args=(13,))
    thread.start()
    try:
        assert held.entered.wait(60)
        for call in (
            lambda: model.decode(14),
            lambda: model.prefill([14]),
            lambda: model.advance([14]),
            lambda: model.logits([14]),
            model.reset,
            lambda: next(model.answer([14])),
        ):
            with pytest.raises(jf.errors.Busy):
                call()
    finally:
        held.go.set()
        thread.join()
    assert model.cached == (10, 11, 12, 13)


def test_one_answer_in_two_threads_is_busy(model):
    answer = model.answer([10], max_tokens=3)
    held = model._decoder.plans[1, "last"] = Held(model._decoder.plan(1, "last"))
    thread = threading.Thread(target=lambda: list(answer))
    thread.start()
    try:
        assert held.entered.wait(60)
        with pytest.raises(jf.errors.Busy):
            next(answer)
    finally:
        held.go.set()
        thread.join()
    assert answer.stats.finish == "length"


@pytest.mark.parametrize("error", [KeyboardInterrupt, jf.errors.KernelError, SystemExit])
@pytest.mark.parametrize("after", [0, 1])
def test_a_call_that_ends_early_leaves_no_lie_in_the_cache(error, after, model):
    """The plan writes rubbish to the cache, then fails; what comes next is as if nothing had been."""
    ids = list(range(20, 60))  # two plans
    fresh = model.logits(ids)[-1]
    before = model.advance(ids[:30])
    chunks = []

    def failing(plan):
        def call(*, tokens, **inputs):
            chunks.append(len(tokens))
            if len(chunks) > after:
                plan(tokens=np.zeros_like(tokens), **inputs)
                raise error
            return plan(tokens=tokens, **inputs)

        return call

    kept = model._decoder.plan
    model._decoder.plan = lambda rows, logits: failing(kept(rows, logits))
    with pytest.raises(error):
        model.advance([*ids[:10], *range(100, 140)])
    assert len(chunks) == after + 1
    model._decoder.plan = kept
    assert model.cached == ()
    assert families.nmse(model.advance(ids[:30])[0], before[0]) < 1e-6
    logits, reused = model.advance(ids)
    assert reused == 30
    assert families.nmse(logits, fresh) < 1e-6


def ours(code):
    """What the models or a running plan execute."""
    return "jackfield_llm" in code.co_filename or code.co_qualname in ("Plan._run", "_Output.fetch")


def test_ctrl_c_anywhere_leaves_the_model_usable(model):
    def said(text, tokens):
        return "".join(model.generate(text, raw=True, max_tokens=tokens))

    whole = said("the rain", 6)
    said("on a plain", 3)
    with Interrupt(ours) as run:
        said("on a plain", 3)
    assert run.seen > 300
    for at in range(1, run.seen, run.seen // 60):
        said("on a", 1)
        with pytest.raises(KeyboardInterrupt), Interrupt(ours, at):
            said("on a plain", 3)
        assert said("the rain", 6) == whole


@pytest.mark.parametrize("name", ["mamba2", "qwen3next", "rwkv7"])
@pytest.mark.parametrize("keep", [0, 3, 7])
def test_ctrl_c_while_tokens_are_taken_back(keep, name, family_path):
    """Anywhere: what the model then says it holds is what it goes on from. 3 lie before all checkpoints."""
    with (
        jackfield_llm.load(family_path(name), "reference", context=64, rollback=1) as model,
        jackfield_llm.load(family_path(name), "reference", context=64) as fresh,
    ):

        def filled():
            model.reset()
            for part in ([1, 2, 3, 4], [5, 6], [7, 8]):
                model.prefill(part)

        filled()
        with Interrupt(ours) as run:
            model.reset(keep)
        assert run.seen > 5
        for at in range(1, run.seen + 1):
            filled()
            with pytest.raises(KeyboardInterrupt), Interrupt(ours, at):
                model.reset(keep)
            want = fresh.logits([*model.cached, 9])[-1]
            assert families.nmse(model.prefill([9]), want) < 1e-8


# ---- prompts


def test_a_prompt_without_tokens(model, family_path):
    with pytest.raises(ModelError, match="prompt is empty"):
        model.generate("", raw=True)
    with pytest.raises(ModelError, match="prompt is empty"):
        model.answer([])
    with jackfield_llm.load(family_path("gemma3"), "reference", context=16) as other:
        answer = other.generate("", raw=True, max_tokens=2)  # its file puts a token in front of everything
        "".join(answer)
        assert answer.stats.prompt_tokens == 1


def test_the_first_token_stands_once(family_path, model):
    with jackfield_llm.load(family_path("gemma3"), "reference", context=16) as other:
        bos = other.tokenizer.bos_id
        assert other.raw_ids("the") == other.raw_ids("<bos>the")
        assert other.raw_ids("the")[0] == bos
        assert other.raw_ids("the").count(bos) == 1
    assert model.raw_ids("the") == model.tokenize("the"), "this file does not want one"


def test_raw_prompts_may_hold_special_tokens_and_tokenize_does_not_look_for_them(model):
    assert model.raw_ids("<|begin|>the")[0] == 0
    assert 0 not in model.tokenize("<|begin|>the")
    assert model.tokenize("<|begin|>", special=True) == [0]


def test_a_file_without_a_template_says_so(model):
    with pytest.raises(ChatError, match=r"no tokenizer\.chat_template"):
        model.generate("Why?")


def test_messages_go_through_the_template(chat_path):
    with jackfield_llm.load(chat_path, "reference", context=128) as model:
        asked = []
        model.answer = lambda ids, **_: asked.append(model.detokenize(ids))
        model.generate("Why?")
        model.generate("Why?", system="Be brief.")
        assert asked == ["user: Why?\nanswer:", "system: Be brief.\nuser: Why?\nanswer:"]


@pytest.mark.parametrize("prompt", [None, 3, b"text", ["text"]])
@pytest.mark.parametrize("raw", [True, False])
def test_a_prompt_is_a_text(prompt, raw, chat_path):
    with jackfield_llm.load(chat_path, "reference", context=16) as model:
        with pytest.raises(ModelError, match=f"prompt is a {type(prompt).__name__}: must be a text"):
            model.generate(prompt, raw=raw)
        with pytest.raises(ModelError, match="must be a text"):
            model.tokenize(prompt)
        if not raw and prompt is not None:
            with pytest.raises(ModelError, match="system is a"):
                model.generate("text", system=prompt)


def test_wrong_wishes_are_told_before_anything_is_evaluated(model):
    model._decoder.plans.clear()  # evaluating would need one
    for wrong, error, text in (
        ({"max_tokens": -1}, ModelError, "max_tokens -1"),
        ({"max_tokens": 1.5}, ModelError, "max_tokens 1.5"),
        ({"max_tokens": True}, ModelError, "max_tokens True"),
        ({"stop": "text"}, SamplingError, "must be a list of texts"),
        ({"stop": [""]}, SamplingError, "must be a text"),
        ({"temperature": -1.0}, SamplingError, "temperature"),
        ({"sampler": Sampler(), "top_k": 3}, SamplingError, "top_k is given beside a sampler"),
        ({"system": "x"}, ModelError, "system message"),
    ):
        with pytest.raises(error, match=text):
            model.generate("the", raw=True, **wrong)
    with pytest.raises(TypeError, match="temprature"):
        model.generate("the", raw=True, temprature=1.0)


def test_a_prompt_longer_than_the_context_names_the_limit(model):
    """A smaller context than the model knows can be made larger; the largest can not."""
    with pytest.raises(ContextOverflow, match=r"65 tokens do not fit the context of 64.*it knows 128") as e:
        model.answer([5] * 65)
    assert (e.value.needed, e.value.limit) == (65, 64)
    answer = model.answer([5] * 64)
    "".join(answer)
    assert (answer.stats.tokens, answer.stats.finish) == (1, "context")


def test_the_longest_context_can_not_be_made_longer(family_path):
    with jackfield_llm.load(family_path("llama"), "reference") as model:
        assert model.context == 128
        with pytest.raises(
            ContextOverflow, match="129 tokens do not fit the context of 128; the model knows no longer one"
        ):
            model.answer([5] * 129)
