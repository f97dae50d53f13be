"""Opening models and evaluating tokens: wrong files and wishes, how a prompt is cut, what the cache holds."""

from __future__ import annotations

import functools
import logging

import families
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jackfield as jf
import jackfield_llm
from jackfield_llm import ContextOverflow, ModelError, TokenizerError
from jackfield_llm.decoding import LOGIT_ROWS, PASS_ROWS, ROWS, chunk_rows


@pytest.fixture
def model(family_path):
    with jackfield_llm.load(family_path("llama"), "reference", context=64) as model:
        yield model


# ---- how a prompt is cut


@functools.cache
def least(left: int, sizes: tuple[int, ...]) -> int:
    """The least cost of any cut whose last plan alone may be padded."""
    if left == 0:
        return 0
    padded = min(n for n in sizes if n >= left) if left <= sizes[-1] else 10**9
    full = [least(left - n, sizes) + n + PASS_ROWS for n in sizes if n <= left]
    return min([padded + PASS_ROWS, *full])


@given(tokens=st.integers(0, 700), sizes=st.sampled_from([ROWS, LOGIT_ROWS]))
def test_a_prompt_is_cut_at_the_least_cost(tokens, sizes):
    chunks = chunk_rows(tokens, sizes)
    assert set(chunks) <= set(sizes)
    assert sum(chunks[:-1]) < tokens <= sum(chunks) or tokens == 0 == len(chunks)
    for left in range(tokens):
        least(left, sizes)  # so that the recursion stays shallow
    assert sum(chunks) + PASS_ROWS * len(chunks) == least(tokens, sizes)


@pytest.mark.parametrize(
    ("tokens", "chunks"),
    [(0, []), (1, [1]), (2, [4]), (5, [4, 1]), (9, [32]), (36, [32, 4]), (513, [512, 1]), (2048, [512] * 4)],
)
def test_cuts(tokens, chunks):
    assert chunk_rows(tokens) == chunks


@pytest.mark.parametrize("batch", [1, 4, 32])
def test_no_plan_is_larger_than_the_batch(batch, family_path, monkeypatch):
    with jackfield_llm.load(family_path("llama"), "reference", context=64, batch=batch) as model:
        made = []
        plan = model._decoder.plan
        monkeypatch.setattr(model._decoder, "plan", lambda rows, logits: made.append(rows) or plan(rows, logits))
        last = model.prefill([5] * 40)
        assert max(made) == batch
        assert families.nmse(last, model.logits([5] * 40)[-1]) < 1e-5


# ---- files


def test_files_that_are_no_models(tmp_path, family_path):
    with pytest.raises(ModelError, match=r"none\.gguf: can't be read: No such file"):
        jackfield_llm.load(tmp_path / "none.gguf")
    with pytest.raises(jf.Error):
        jackfield_llm.load(tmp_path)
    empty = tmp_path / "empty.gguf"
    empty.touch()
    with pytest.raises(jf.errors.GGUFError):
        jackfield_llm.load(empty)
    whole = family_path("llama").read_bytes()
    short = tmp_path / "short.gguf"
    short.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(jf.errors.GGUFError, match=r"short\.gguf"):
        jackfield_llm.load(str(short), "reference")


def test_a_file_without_a_vocabulary(family_path, monkeypatch):
    file = jf.gguf.open(family_path("llama"))
    words = {k: v for k, v in file.metadata.items() if not k.startswith("tokenizer.")}
    monkeypatch.setattr(jackfield_llm.model, "_opened", lambda _: families.Changed(words, dict(file.tensors)))
    with pytest.raises(TokenizerError, match=r"tokenizer\.ggml\.model"):
        jackfield_llm.load("x", "reference")


@pytest.mark.parametrize(
    "wrong",
    [{"context": 0}, {"context": -1}, {"context": 2.5}, {"context": True}, {"cache_dtype": "q6_K"}, {"batch": 64}],
)
def test_wrong_wishes(wrong, family_path):
    ((key, value),) = wrong.items()
    with pytest.raises(ModelError, match=f"{key} {value!r}: must be"):
        jackfield_llm.load(family_path("llama"), "reference", **wrong)


def test_a_device_that_is_not_there(family_path):
    with pytest.raises(jf.errors.DeviceNameError, match="nosuch"):
        jackfield_llm.load(family_path("llama"), "nosuch")
    with pytest.raises(jf.errors.PlanError, match="policy"):
        jackfield_llm.load(family_path("llama"), "reference", policy="perhaps")


def test_a_failed_load_closes_the_file(family_path, monkeypatch):
    opened = []
    real = jackfield_llm.model._opened
    monkeypatch.setattr(jackfield_llm.model, "_opened", lambda path: opened.append(real(path)) or opened[0])
    with pytest.raises(jf.errors.DeviceNameError):
        jackfield_llm.load(family_path("llama"), "nosuch")
    with pytest.raises(jf.errors.GGUFError, match="closed"):
        _ = next(iter(opened[0].tensors.values())).data


def test_closing(family_path):
    with jackfield_llm.load(family_path("llama"), "reference", context=8) as model:
        assert model.logits([1, 2]).shape == (2, 320)
    model.close()
    with pytest.raises(jf.errors.PlanError, match="closed"):
        model.logits([1])
    assert model.device_names == "reference:0"


def test_a_context_the_model_was_not_made_for_is_told(family_path, caplog):
    with (
        caplog.at_level(logging.WARNING, "jackfield"),
        jackfield_llm.load(family_path("llama"), "reference", context=129) as model,
    ):
        assert model.context == 129
    assert "a context of 129 is longer than the 128 tokens" in caplog.text


def test_the_default_context_is_the_model_s_up_to_4096(family_path, monkeypatch):
    with jackfield_llm.load(family_path("llama"), "reference") as model:
        assert model.context == 128
    file = jf.gguf.open(family_path("llama"))
    long = {**file.metadata, "llama.context_length": 100_000}
    monkeypatch.setattr(jackfield_llm.model, "_opened", lambda _: families.Changed(long, dict(file.tensors)))
    with jackfield_llm.load("x", "reference") as model:
        assert model.context == 4096


@pytest.mark.parametrize(
    ("name", "known"),
    [
        *((name, 2**31 - 1) for name in ("mamba", "mamba2", "rwkv6", "rwkv7", "rwkv6qwen2", "arwkv7")),
        *((name, 4096) for name in ("qwen3next", "qwen35", "deepseek2")),  # some layers keep something of each token
    ],
)
def test_a_model_that_keeps_nothing_of_a_token_has_the_context_it_knows(name, known, opened):
    """And no memory goes by it."""
    file = opened(name)
    held = []
    for context in (64, 2**31 - 1):
        file.metadata[f"{file.metadata['general.architecture']}.context_length"] = context
        with jackfield_llm.load("x", "reference") as model:
            assert model.context == min(context, known)
            held.append(model._decoder.plan(1, "last").memory()["reference:0"])
    assert (held[0] == held[1]) == (known > 4096)


def test_a_text_of_a_model_without_a_cache_may_be_long(opened):
    """Longer than the default where there is a cache; at its end, where the model knows no more, it is told."""
    file = opened("mamba")
    file.metadata["mamba.context_length"] = 4100
    ids = [token % 320 for token in range(4099)]
    with jackfield_llm.load("x", "reference") as model:
        model.prefill(ids)
        assert len(model.cached) == 4099
        model.decode(1)
        with pytest.raises(ContextOverflow, match="4101 tokens do not fit the context of 4100; the model knows"):
            model.decode(1)


# ---- tokens


def test_shapes_and_dtypes(model):
    logits = model.logits([1, 2, 3])
    assert (logits.shape, logits.dtype) == ((3, 320), np.float32)
    assert model.logits([]).shape == (0, 320)
    assert model.prefill([4, 5]).shape == (320,)
    assert model.decode(6).shape == (320,)
    assert model.cached == (4, 5, 6)
    assert model.logits(np.array([1, 2])).shape == (2, 320)
    assert model.cached == (1, 2)


@pytest.mark.parametrize("ids", [[320], [-1], [5, 10**12]])
def test_a_token_outside_the_vocabulary(ids, model):
    for call in (model.logits, model.prefill, model.advance, model.answer):
        with pytest.raises(ModelError, match=f"token {ids[-1]} lies outside the vocabulary of 320"):
            call(ids)


@pytest.mark.parametrize("ids", [[1.5], ["a"], "text", [None], 3, None])
def test_what_is_no_list_of_tokens(ids, model):
    for call in (model.logits, model.prefill, model.advance, model.answer):
        with pytest.raises(ModelError, match="must be a list of whole numbers"):
            call(ids)


def test_no_tokens(model):
    for call in (model.prefill, model.advance):
        with pytest.raises(ModelError, match="no tokens to evaluate"):
            call([])


def test_what_is_refused_leaves_the_cache_alone(model):
    model.prefill([1, 2, 3])
    for call, ids in ((model.logits, [400]), (model.prefill, [400]), (model.advance, [400]), (model.logits, [1] * 65)):
        with pytest.raises((ModelError, ContextOverflow)):
            call(ids)
        assert model.cached == (1, 2, 3)


def test_the_context_is_full_to_the_last_token(model):
    model.prefill([1] * 63)
    model.decode(2)
    with pytest.raises(ContextOverflow, match="65 tokens do not fit the context of 64"):
        model.decode(2)
    assert len(model.cached) == 64
    model.reset(10)
    assert model.cached == (1,) * 10
    assert families.nmse(model.decode(5), model.logits([1] * 10 + [5])[-1]) < 1e-5


@settings(max_examples=12)  # numpy evaluates some hundred tokens in each
@given(
    kept=st.lists(st.integers(0, 319), max_size=30),
    cuts=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    seed=st.integers(0, 9),
)
def test_whatever_came_before_the_logits_are_those_of_the_text(kept, cuts, seed, shared):
    """Old columns beyond the text are in the cache, padded rows are in the plans: none of it may be seen."""
    ids = np.random.default_rng(seed).integers(0, 320, sum(cuts)).tolist()[:64]
    shared.reset()
    if kept:
        shared.prefill(kept)
    shared.reset()
    last = None
    for cut in cuts:
        part = ids[len(shared.cached) : len(shared.cached) + cut]
        last = shared.prefill(part) if part else last
    assert families.nmse(last, shared.logits(ids)[-1]) < 1e-5


@pytest.fixture(scope="module")
def shared(family_path):
    with jackfield_llm.load(family_path("gemma3"), "reference", context=64, cache_dtype="f32") as model:
        yield model


# ---- where it runs


def test_pins_and_policy(family_path):
    """Layer 0 here, layer 1 there, by the names of weights and caches."""
    with (
        jf.sim(parts=2),
        jackfield_llm.load(
            family_path("qwen3"),
            "sim:0:0+sim:0:1",
            context=16,
            policy="strict",
            pins={r"(blk\.0\..*|[kv]0)": "sim:0:0", r"(blk\.1\..*|[kv]1)": "sim:0:1"},
        ) as model,
        jackfield_llm.load(family_path("qwen3"), "reference", context=16) as plain,
    ):
        assert model.session.states["k0"].device == model.session.states["v0"].device == "sim:0:0"
        assert model.session.states["k1"].device == "sim:0:1"
        assert model.device_names.count("sim") == 2
        assert "sim:0:1" in model.explain()
        assert families.nmse(model.logits([5, 6, 7]), plain.logits([5, 6, 7])) < 1e-9


def test_text_and_back(model):
    ids = model.tokenize("the <|end|> rain")
    assert model.detokenize(ids) == "the <|end|> rain"
    ids = model.tokenize("the <|end|> rain", special=True)
    assert 1 in ids
    assert model.detokenize(ids, skip_special=True) == "the  rain"


@pytest.mark.parametrize(
    ("simulated", "policy", "error", "text"),
    [
        ({"mem": "40KiB"}, None, jf.errors.OutOfMemory, "the plan needs"),
        ({"refuse": "swiglu"}, "strict", jf.errors.PlacementError, r"swiglu\.0"),
    ],
)
def test_what_a_device_can_not_do_is_an_error_of_loading(simulated, policy, error, text, family_path):
    with jf.sim(**simulated), pytest.raises(error, match=text):
        jackfield_llm.load(family_path("llama"), "sim", context=16, policy=policy)


@pytest.mark.parametrize(("batch", "rows"), [(1, 1), (4, 4), (32, 32), (128, 32)])
def test_loading_makes_the_plan_of_a_prompt(batch, rows, family_path):
    ids = [7, 3, 9]
    with jackfield_llm.load(family_path("llama"), "reference", context=64, batch=batch) as model:
        assert list(model._decoder.plans) == [(rows, "last")]
        assert model.device_names == "reference:0"
        assert all(name in model.session.states for name in ("k0", "v0"))
        first = model.prefill(ids)
        assert families.nmse(first, model.logits(ids)[-1]) < 1e-9
        model.reset()
        model.prefill(ids[:-1])
        assert families.nmse(model.decode(ids[-1]), first) < 1e-9
        assert (1, "last") in model._decoder.plans


def test_the_report_on_one_token_needs_none_evaluated(family_path):
    with jackfield_llm.load(family_path("llama"), "reference", context=16) as model:
        report = model.explain()
        assert "reference:0" in report
        model.decode(3)
        assert model.explain() == report


def test_of_several_devices_one_token_decides(family_path):
    with jf.sim(), jackfield_llm.load(family_path("llama"), "sim+reference", context=16) as one:
        assert list(one._decoder.plans) == [(32, "last")]  # the reference is a last resort
    with jf.sim(parts=2), jackfield_llm.load(family_path("llama"), "sim:0:0+sim:0:1", context=16) as two:
        assert list(two._decoder.plans) == [(1, "last")]


def test_a_source_that_is_no_path_is_resolved(monkeypatch):
    """`load` takes what `-m` takes."""
    asked = []

    def refuse(spec):
        asked.append(spec)
        raise jackfield_llm.SourceError("not here")

    monkeypatch.setattr("jackfield_llm.model.resolve", refuse)
    for spec in ("hf:owner/repo/file.gguf", "pkg:nothing==1"):
        with pytest.raises(jackfield_llm.SourceError, match="not here"):
            jackfield_llm.load(spec, "reference")
    assert asked == ["hf:owner/repo/file.gguf", "pkg:nothing==1"]
