"""`jackfield eval`: windows of a text, vocabularies, and what the command prints of two tiny models."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import jackfield as jf
import jackfield_llm
from jackfield.cli.app import app
from jackfield_llm import eval_command
from jackfield_llm.comparison import check_vocabularies, compare_models, default_text, default_window, windows
from jackfield_llm.errors import EvaluationError
from jackfield_llm.progress import Bar
from jackfield_llm.quantized_file import quantize

TEXT = "the rain in spain stays mainly on the plain, and so on and on."


@pytest.fixture(scope="module")
def worse_path(family_path, tmp_path_factory):
    """The tiny llama with weights of about four bits."""
    path = tmp_path_factory.mktemp("worse") / "worse.gguf"
    quantize(family_path("llama"), path, "q4_0", pure=True)
    return path


@pytest.fixture
def text_path(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def run(*arguments, text=None):
    return CliRunner().invoke(app, ["eval", *map(str, arguments)], input=text)


# ---- windows


@given(st.lists(st.integers(0, 99), max_size=60), st.integers(2, 20), st.none() | st.just(7))
def test_every_token_is_predicted_once_from_what_stands_before_it(text, length, bos):
    cut = list(windows(text, length, bos))
    targets = [target for window in cut for target in window.targets]
    assert targets == (text[1:] if bos is None else text)
    for window in cut:
        assert 0 < len(window.ids) == len(window.targets) <= length
        assert window.ids[1:] == window.targets[:-1]
        assert bos is None or window.ids[0] == bos
    assert all(len(window.ids) == length for window in cut[:-1])


def test_the_window_is_what_both_models_know(family_path):
    assert default_window(family_path("llama")) == 128
    assert default_window(family_path("llama"), family_path("llama_quantised")) == 128


def test_the_text_of_the_package_is_plain():
    text = default_text()
    assert 2000 < len(text) < 4000
    assert text.isascii()


# ---- vocabularies


class Words:
    """As much of a tokenizer as is asked for."""

    def __init__(self, *tokens):
        self.tokens = tokens
        self.vocab_size = len(tokens)

    def token_bytes(self, token):
        return self.tokens[token]


def test_vocabularies_must_be_the_same():
    check_vocabularies(Words(b"a", b"b"), Words(b"a", b"b"))
    with pytest.raises(EvaluationError, match="2 and 3 tokens"):
        check_vocabularies(Words(b"a", b"b"), Words(b"a", b"b", b"c"))
    with pytest.raises(EvaluationError, match="token 1 is b'b' in one model and b'c' in the other"):
        check_vocabularies(Words(b"a", b"b"), Words(b"a", b"c"))


def test_another_vocabulary_is_told_by_the_command(family_path):
    result = run(family_path("llama"), "--against", family_path("gemma3"), "-d", "reference")
    assert result.exit_code == 1
    assert "same" in result.stderr
    assert "vocabulary" in result.stderr
    assert result.stderr.count("\n") == 1


# ---- figures


@pytest.mark.parametrize(("name", "bos"), [("llama", False), ("gemma3", True)])
def test_figures_are_those_of_the_whole_logits(name, bos, family_path, tmp_path):
    """The windows, the parts and the sums against one straight computation from `Model.logits`."""
    worse = tmp_path / "worse.gguf"
    quantize(family_path(name), worse, "q4_0", pure=True)
    with jackfield_llm.load(worse, "reference") as judged, jackfield_llm.load(family_path(name), "reference") as base:
        told = []
        found = compare_models(judged, base, TEXT, window=24, report=lambda done, total: told.append((done, total)))
        ids = judged.tokenize(TEXT)
        assert judged.tokenizer.adds_bos == bos
        front = [judged.tokenizer.bos_id] if bos else ids[:1]
        ids = ids if bos else ids[1:]
        kl, nll, base_nll = [], [], []
        for at in range(0, len(ids), 24):
            part = ids[at : at + 24]
            before = [*front, *part[:-1]]
            front = front if bos else part[-1:]
            rows = [model.logits(before).astype(np.float64) for model in (base, judged)]
            log_p, log_q = (row - np.log(np.exp(row).sum(axis=1, keepdims=True)) for row in rows)
            kl += (np.exp(log_p) * (log_p - log_q)).sum(axis=1).tolist()
            nll += [-log_q[i, t] for i, t in enumerate(part)]
            base_nll += [-log_p[i, t] for i, t in enumerate(part)]
    assert found.positions == len(ids)
    assert found.kl.value == pytest.approx(np.mean(kl), rel=1e-6)
    assert found.kl.value > 1e-3
    assert found.perplexity.value == pytest.approx(math.exp(np.mean(nll)), rel=1e-6)
    assert found.base_perplexity.value == pytest.approx(math.exp(np.mean(base_nll)), rel=1e-6)
    assert told[-1] == (len(ids), len(ids))
    assert [done for done, _ in told] == sorted({done for done, _ in told})


def test_a_model_against_itself(family_path):
    result = run(family_path("llama"), "--against", family_path("llama"), "-d", "reference", "--json")
    document = json.loads(result.stdout)
    assert document["schema"] == "jackfield.eval/1"
    assert document["kl"] == {"value": 0, "error": 0}
    assert document["rms"]["value"] == document["kl_max"] == 0
    assert document["agreement"] == {"value": 1, "error": 0}
    assert document["perplexity"] == document["base_perplexity"]
    assert document["ratio"]["value"] == 1
    assert (document["device"], document["against_device"]) == ("reference:0", "reference:0")
    assert document["window"] == 128


def test_devices_are_compared(family_path, text_path):
    result = run(family_path("llama"), "--against", "sim", "-d", "reference", "--text", text_path)
    assert result.exit_code == 0
    assert "on reference:0" in result.stdout
    assert "on sim:0" in result.stdout
    for name in ("KL divergence", "99th percentile", "RMS of dp", "same top", "perplexity", "ratio", "+-"):
        assert name in result.stdout


def test_options(family_path, worse_path, text_path):
    options = ("-d", "reference", "--text", text_path, "--json")
    whole = json.loads(run(worse_path, "--against", family_path("llama"), *options).stdout)
    assert (whole["model"], whole["against"]) == ("worse.gguf", "llama.gguf")
    few = json.loads(run(worse_path, "--against", family_path("llama"), *options, "--tokens", "10").stdout)
    assert (few["positions"], few["text"]) == (9, str(text_path))
    short = json.loads(run(worse_path, "--against", family_path("llama"), *options, "--context", "8").stdout)
    assert short["positions"] == whole["positions"]
    assert short["window"] == 8
    assert short["perplexity"] != whole["perplexity"]
    piped = run(worse_path, "--against", family_path("llama"), "-d", "reference", "--text", "-", "--json", text=TEXT)
    assert json.loads(piped.stdout)["kl"] == whole["kl"]


def test_what_a_cache_costs(family_path, text_path):
    path = family_path("qwen3")
    options = (path, "--against", path, "-d", "reference", "--text", text_path, "--tokens", "40", "--json")
    dtypes = ("f16", "q8_0", "q4_0")
    results = [run(*options, "--cache-dtype", dtype) for dtype in dtypes]
    assert ["can't differ" in result.stderr for result in results] == [True, False, False]
    same, coded, coarse = (json.loads(result.stdout) for result in results)
    assert tuple(told["cache_dtype"] for told in (same, coded, coarse)) == dtypes
    assert same["kl"]["value"] == 0
    assert 0 < coded["kl"]["value"] < 1e-2
    assert coded["kl"]["value"] < coarse["kl"]["value"] < 1e-1
    assert coded["base_perplexity"] == coarse["base_perplexity"] == same["base_perplexity"]


def test_what_against_may_be(tmp_path):
    (tmp_path / "model").touch()
    for name in ("default", "hf:a/b/c.gguf", "pkg:a==1", "no/such.gguf", tmp_path / "model"):
        assert eval_command._is_source(str(name))
    for name in ("reference", "cuda:0+cpu", "sim"):
        assert not eval_command._is_source(name)


def test_the_default_model_is_what_is_meant(monkeypatch, family_path):
    asked = []
    path = family_path("llama")
    monkeypatch.setattr(eval_command, "resolve", lambda spec: asked.append(spec) or path)
    assert run("--against", "default", "-d", "reference", "--tokens", "4").exit_code == 0
    assert asked == [None, "default"]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--against", "no/such.gguf"], 1, "no/such.gguf: no such file"),
        (["--against", "nosuch"], 2, "nosuch"),
        ([], 2, "--against"),
        (["--against", "reference", "--context", "1"], 2, "context"),
        (["--against", "reference", "--text", "no/such.txt"], 1, "no/such.txt: can't be read"),
        (["--against", "reference", "--text", "EMPTY"], 1, "0 tokens to judge by"),
        (["--against", "reference", "--text", "LATIN"], 1, "no UTF-8 text: byte 1"),
    ],
)
def test_errors_are_one_line(arguments, code, text, family_path, tmp_path):
    (tmp_path / "EMPTY").touch()
    (tmp_path / "LATIN").write_bytes(b"a\xff")
    arguments = [tmp_path / a if a in ("EMPTY", "LATIN") else a for a in arguments]
    result = run(family_path("llama"), "-d", "reference", *arguments)
    assert result.exit_code == code
    assert result.stdout == ""
    assert text in result.stderr
    assert "Traceback" not in result.stderr
    if code == 1:
        assert result.stderr.count("\n") == 1


def test_models_are_closed_whatever_happens(family_path, monkeypatch):
    closed = []
    real = jackfield_llm.Model.close
    monkeypatch.setattr(jackfield_llm.Model, "close", lambda self: closed.append(self) or real(self))
    assert run(family_path("llama"), "--against", "sim", "-d", "reference", "--tokens", "4").exit_code == 0
    assert len(closed) == 2
    assert run(family_path("llama"), "--against", "nosuch", "-d", "reference").exit_code == 2
    assert len(closed) == 3


def test_help_states_the_definitions():
    result = CliRunner().invoke(app, ["eval", "--help"], terminal_width=200)
    for words in ("sum P (log P - log Q)", "Q(t) - P(t)", "mean of -log Q(t)", "FILE|DEVICE"):
        assert words in result.stdout


def test_parts_of_logits_are_the_logits(family_path):
    with jackfield_llm.load(family_path("llama"), "reference") as model:
        ids = list(range(2, 42))
        parts = list(model.logit_parts(ids))
        assert len(parts) > 1
        assert np.array_equal(np.concatenate(parts), model.logits(ids))
        assert list(model.logit_parts([])) == []


def test_between_parts_of_logits_the_model_is_busy(family_path):
    """Whatever it is asked, by the thread that reads them too: the text would be another."""
    with jackfield_llm.load(family_path("llama"), "reference") as model:
        ids = list(range(2, 42))
        whole = model.logits(ids)
        parts = model.logit_parts(ids)
        first = next(parts)
        calls = (
            lambda: model.logits([5]),
            lambda: model.prefill([5]),
            lambda: model.advance([5]),
            lambda: model.embed([[5]]),
            lambda: next(model.answer([5])),
            lambda: next(model.logit_parts([5])),
            model.reset,
        )
        for call in calls:
            with pytest.raises(jf.errors.Busy):
                call()
        assert np.array_equal(np.concatenate([first, *parts]), whole)
        parts = model.logit_parts(ids)
        next(parts)
        parts.close()
        assert np.array_equal(model.logits(ids), whole)


def test_one_model_is_not_both_sides(family_path):
    with jackfield_llm.load(family_path("llama"), "reference") as model, pytest.raises(EvaluationError, match="twice"):
        compare_models(model, model, TEXT, window=8)


@pytest.mark.parametrize(
    "wrong", [{"window": 0}, {"window": -1}, {"window": 8, "tokens": 0}, {"window": 8, "tokens": -2}]
)
def test_counts_below_one(wrong, family_path):
    path = family_path("llama")
    with (
        jackfield_llm.load(path, "reference") as one,
        jackfield_llm.load(path, "reference") as other,
        pytest.raises(EvaluationError, match="must be at least 1"),
    ):
        compare_models(one, other, TEXT, **wrong)


def test_only_what_is_alike_in_all_is_said_to_be(family_path, tmp_path, text_path):
    """Another file of the same name, or another cache, may differ; of two files of a name the paths are told."""
    path, note = family_path("llama"), "they can't differ"
    options = ("-d", "reference", "--text", text_path, "--tokens", "10")
    assert note in run(path, "--against", path, *options).stderr
    assert note in run(path, "--against", "reference", *options).stderr
    assert note not in run(path, "--against", path, *options, "--cache-dtype", "f32").stderr
    other = tmp_path / path.name
    other.write_bytes(path.read_bytes())
    result = run(path, "--against", other, *options)
    assert note not in result.stderr
    assert str(other) in result.stdout
    assert str(path) in result.stdout


def test_the_bar_counts_steps(capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    with Bar(always=True, steps=True) as bar:
        bar("comparing", 3, 40)
    out, err = capsys.readouterr()
    assert out == ""
    assert "comparing" in err
    assert "3/40" in err
