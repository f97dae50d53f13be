"""Every vocabulary of llama.cpp's tree tokenises the texts of its tree the same, or is refused by name."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import platformdirs
import pytest

import jackfield as jf
from jackfield_llm.errors import TokenizerError
from jackfield_llm.tokenizer import Tokenizer

FOLDER = Path(__file__).parents[1] / "golden" / "vocab"
NAMES = sorted(path.name.removesuffix(".inp") for path in FOLDER.glob("*.inp"))
REFUSED = {
    "ggml-vocab-nomic-bert-moe.gguf": "tokenizer.ggml.model is 't5': known ones are bert, gemma4, gpt2, llama, rwkv"
}
WITHOUT_TEXTS = ["ggml-vocab-aquila.gguf", "ggml-vocab-baichuan.gguf", "ggml-vocab-gpt-neox.gguf"]
SEPARATOR = "\n__ggml_vocab_test__\n"


def folder():
    """Where the vocabularies are; of JACKFIELD_CACHE, which tests have one of their own for, nothing is asked."""
    chosen = os.environ.get("JACKFIELD_VOCABS")
    return Path(chosen) if chosen else platformdirs.user_cache_path("jackfield") / "vocabularies"


@pytest.fixture
def metadata(name, absent):
    """Metadata of a vocabulary file, whose checksum must be the one on record."""
    path = folder() / name
    if not path.is_file():
        absent("vocab", f"{path} is not there; tests/golden/vocab/README.md says how to get it")
    known = dict(reversed(line.split()) for line in (FOLDER / "VOCABS").read_text().splitlines())
    assert hashlib.sha256(path.read_bytes()).hexdigest() == known[name]
    return jf.gguf.open(path).metadata


def cases(name):
    """Texts and the ids llama.cpp gives them; a last separator ends the last text and begins no other."""
    texts = (FOLDER / f"{name}.inp").read_bytes().decode().removesuffix(SEPARATOR).split(SEPARATOR)
    ids = [[int(token) for token in line.split()] for line in (FOLDER / f"{name}.out").read_text().splitlines()]
    assert len(texts) == len(ids) > 40
    return list(zip(texts, ids, strict=True))


def test_the_list_of_vocabularies():
    assert len(NAMES) == 15
    listed = {line.split()[1] for line in (FOLDER / "VOCABS").read_text().splitlines()}
    assert listed == {*NAMES, *REFUSED, *WITHOUT_TEXTS}


@pytest.mark.parametrize("chosen", ["", "elsewhere"])
def test_the_script_puts_them_where_tests_look(chosen, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench"))
    from peer_sources import vocab_dir

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("JACKFIELD_VOCABS", chosen and str(tmp_path / chosen))
    wanted = tmp_path / chosen if chosen else folder()
    assert vocab_dir() == folder() == wanted


@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_those_of_llama_cpp_and_turn_back_into_the_text(name, metadata):
    tokenizer = Tokenizer.from_metadata(metadata)
    wrong = [(text, ids, got) for text, ids in cases(name) if (got := tokenizer.encode(text, special=False)) != ids]
    assert wrong == []
    for text, ids in cases(name):
        if "bert" not in name:  # which forgets case, accents and white space
            assert tokenizer.decode(ids) == text
        stream = tokenizer.stream(skip_special=False)
        streamed = "".join([stream.push(token) for token in ids]) + stream.flush()
        assert streamed in (tokenizer.decode(ids), " " + tokenizer.decode(ids))


@pytest.mark.parametrize("name", WITHOUT_TEXTS)
def test_vocabularies_without_texts_can_be_used(name, metadata):
    tokenizer = Tokenizer.from_metadata(metadata)
    text = "Hello world, 1234 é 中文\n\n  x"
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(("name", "reason"), REFUSED.items())
def test_other_kinds_are_refused_by_name(name, reason, metadata):
    with pytest.raises(TokenizerError) as caught:
        Tokenizer.from_metadata(metadata)
    assert str(caught.value) == reason
