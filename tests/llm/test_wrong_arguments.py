"""What is no list of tokens, no row of logits, no path: every public call says so in an error of ours."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import jackfield as jf
import jackfield_llm
from jackfield_llm import Sampler

NO_TOKENS = [None, 3, "ab", [1.5], ["a"], [None], [-1], [10**30], [1 << 63]]
ON_TOKENS = ("detokenize", "prefill", "logits", "advance", "answer")


@pytest.fixture(scope="module")
def model(chat_path):
    with jackfield_llm.load(chat_path, "reference", context=32) as model:
        yield model


@pytest.mark.parametrize("ids", NO_TOKENS, ids=repr)
@pytest.mark.parametrize("call", ON_TOKENS)
def test_what_is_no_list_of_tokens_is_named(model, call, ids):
    with pytest.raises(jf.Error, match=r"token|ids are"):
        getattr(model, call)(ids)
    assert model.cached == ()


@pytest.mark.parametrize("keep", [None, 1.5, "1", [1]], ids=repr)
def test_reset_takes_a_whole_number(model, keep):
    with pytest.raises(jf.Error, match="keep is"):
        model.reset(keep)
    model.reset(np.int64(0))


@pytest.mark.parametrize("stop", [None, 3, "x", [3], [""], [None]], ids=repr)
def test_stops_are_a_list_of_texts(model, stop):
    with pytest.raises(jf.Error, match=r"\[stop\]"):
        model.generate("a", raw=True, max_tokens=1, stop=stop)


NO_LOGITS = [None, "abc", [], [[1.0]], [None], ["a"], [1j], [True, "x"], object()]


@pytest.mark.parametrize("logits", NO_LOGITS, ids=lambda logits: repr(logits)[:12])
@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0}, {"repetition_penalty": 2.0}], ids=str)
def test_a_draw_wants_one_row_of_floats(logits, settings):
    with pytest.raises(jf.Error, match="logits are"):
        Sampler(**settings).draw(logits, [0])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, jf.bf16.numpy, np.int32])
def test_a_draw_takes_every_float_and_lists(dtype):
    row = np.array([0, 3, 1], dtype)
    for sampler in (Sampler(), Sampler(temperature=1e-3), Sampler(repetition_penalty=1.01)):
        assert sampler.draw(row, [2]) == sampler.draw(row.tolist(), [2]) == 1


@pytest.mark.parametrize("history", [["a"], [1.5], [None], [9], [-1], [10**30]], ids=repr)
def test_a_history_holds_tokens(history):
    with pytest.raises(jf.Error, match="history"):
        Sampler(repetition_penalty=1.1).draw(np.zeros(5, np.float32), history)


def test_the_smallest_temperature_is_quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Sampler(temperature=5e-324).draw(np.array([0.0, 1.0, -1e30], np.float32)) == 1


@pytest.mark.parametrize("path", [3, [1], b"\0", 1.5], ids=repr)
def test_no_path_of_a_model(path):
    with pytest.raises(jf.Error):
        jackfield_llm.load(path)


@pytest.mark.parametrize("source", [None, 3], ids=repr)
def test_no_path_of_a_file_to_quantize(source, tmp_path):
    with pytest.raises(jf.Error, match="source is"):
        jackfield_llm.quantize(source, tmp_path / "x.gguf", "Q4_0")
    with pytest.raises(jf.Error, match="target is"):
        jackfield_llm.quantize(tmp_path / "x.gguf", source, "Q4_0")
    with pytest.raises(jf.Error, match="file type"):
        jackfield_llm.quantize(tmp_path / "x.gguf", tmp_path / "y.gguf", source)


def test_the_default_model_has_a_name(default_model, monkeypatch):
    found = []
    monkeypatch.setattr("jackfield_llm.model.Model", lambda path, *_, **__: found.append(path))
    jackfield_llm.load()
    jackfield_llm.load("default")
    assert found == [default_model, default_model]
