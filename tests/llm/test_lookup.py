"""Texts cut by tokens that are looked up where they lie in a file, against the library's tables of all of them."""

from __future__ import annotations

import copy
import json
import pickle
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from gguf_files import file
from hypothesis import example, given
from hypothesis import strategies as st

import jackfield as jf
import jackfield_llm
from jackfield_llm.errors import TokenizerError
from jackfield_llm.tokenizer import Tokenizer
from jackfield_llm.tokenizer import bpe as bpe_module
from jackfield_llm.tokenizer import lookup as lookup_module
from jackfield_llm.tokenizer.lookup import Lookup

NORMAL, CONTROL, USER = 1, 3, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("lookup")


def in_a_file(folder, tokens, merges, roles=None, pre="gpt-2"):
    """Metadata as a file gives it."""
    path = folder / "vocabulary.gguf"
    metadata = {
        "tokenizer.ggml.model": ("string", "gpt2"),
        "tokenizer.ggml.pre": ("string", pre),
        "tokenizer.ggml.tokens": ("array", ("string", tokens)),
        "tokenizer.ggml.token_type": ("array", ("i32", roles or [NORMAL] * len(tokens))),
        "tokenizer.ggml.merges": ("array", ("string", merges)),
    }
    path.write_bytes(file(metadata))
    return jf.gguf.open(path).metadata


def as_lists(metadata):
    """The same without a file: the library's tables are filled at once."""
    return {key: value.to_list() if isinstance(value, jf.gguf.Strings) else value for key, value in metadata.items()}


def looked_up(metadata):
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer._segmenter._whole is None
    return tokenizer


LETTERS = "abĠé"
MERGES = st.lists(
    st.tuples(st.text(LETTERS, min_size=1, max_size=3), st.text(LETTERS, min_size=1, max_size=3)),
    min_size=1,
    max_size=12,
)


@example([("a", "b"), ("ab", "a")], "gpt-2", {1: CONTROL}, ["aba", "ab"])
@example([("a", "b")], "gpt-2", {}, ["acb", "ab"])  # c is no token, and what is left is joined
@given(
    MERGES,
    st.sampled_from(["gpt-2", "llama-bpe", "qwen2"]),
    st.dictionaries(st.integers(0, 9), st.sampled_from([CONTROL, USER]), max_size=3),
    st.lists(st.text("abc \n1<|x>é", max_size=12), min_size=1, max_size=4),
)
def test_few_words_are_cut_as_by_the_whole_tables(folder, merges, pre, roles, texts):
    """Also where control tokens are halves of merges, or what merges make."""
    lines = list(dict.fromkeys(" ".join(pair) for pair in merges))
    halves = dict.fromkeys(part for left, right in merges for part in (left, right, left + right))
    tokens = list(dict.fromkeys([*halves, *LETTERS, "<|x|>"]))
    kinds = [roles.get(i, NORMAL) for i in range(len(tokens))]
    metadata = in_a_file(folder, tokens, lines, kinds, pre)
    few, all_of_them = looked_up(metadata), Tokenizer.from_metadata(as_lists(metadata))
    filled = looked_up(metadata)
    filled._segmenter._left = -1
    for text in texts:
        want = all_of_them.encode(text, special=True)
        assert few.encode(text, special=True) == want
        assert filled.encode(text, special=True) == want
        assert few.decode(want) == all_of_them.decode(want)


@pytest.mark.parametrize(
    ("tokens", "merges"),
    [
        (["a", "b", "ab", "a"], ["a b"]),
        (["a", "b", "ab", ""], ["a b"]),
        (["a", "b", "ab", "a" * 256], ["a b"]),
        (["a", "b", "ab", "\x1f"], ["a b"]),
        (["a", "b", "ab"], []),
        (["a", "b", "ab"], ["a b", "a b"]),
        (["a", "b", "ab"], ["a  b"]),
        (["a", "b", "ab"], [" ab"]),
        (["a", "b", "ab"], ["ab"]),
        (["a", "b", "ab"], ["a b c"]),
        (["a", "b", "ab"], ["a b", "ab a"]),
        (["a", "b", "ab"], ["a c"]),
        (["a", "b", "ab"], ["c b"]),
        (["a b", "b", "a bb"], ["a b b"]),
    ],
)
def test_what_is_odd_is_left_to_the_library(folder, tokens, merges):
    metadata = in_a_file(folder, tokens, merges)
    assert Lookup.of(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]) is None
    assert Lookup.of(tokens, merges) is None


def test_bytes_that_are_no_text_are_told_as_ever(folder):
    in_a_file(folder, ["a", "b", "ab"], ["a b"])
    path = folder / "vocabulary.gguf"
    path.write_bytes(path.read_bytes().replace(b"\x02\0\0\0\0\0\0\0ab", b"\x02\0\0\0\0\0\0\0a\xff"))
    with pytest.raises(jf.errors.GGUFError, match=r"string 2 of value of 'tokenizer\.ggml\.tokens' .*not UTF-8"):
        Tokenizer.from_metadata(jf.gguf.open(path).metadata)


@given(st.lists(st.text(max_size=60).filter(lambda text: len(text.encode()) <= 255), min_size=1, max_size=30))
def test_hashes_of_many_are_those_of_each(texts):
    raw = [text.encode() for text in texts]
    ends = np.cumsum([len(text) for text in raw])
    starts = ends - [len(text) for text in raw]
    found = lookup_module._hashes(b"".join(raw) + b"\0", starts, ends)
    assert found.tolist() == [lookup_module._hash(text) for text in texts]


def test_hashes_that_collide_only_cost_time(folder, monkeypatch):
    """With a base of 1 all texts of the same bytes collide: then the library is asked, and nothing is mistaken."""
    monkeypatch.setattr(lookup_module, "_BASE", 1)
    metadata = in_a_file(folder, ["a", "b", "c", "ab", "ba"], ["a b", "b a"])
    assert Lookup.of(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]) is None
    metadata = in_a_file(folder, ["a", "b", "c", "ab"], ["a b"])
    found = Lookup.of(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"])
    assert ("ab" in found, "ba" in found, found["ab"]) == (True, False, 3)
    assert found.part(["ba"], (), most=99).merges == []
    with pytest.raises(KeyError):
        found["ba"]


def test_the_default_model(default_metadata):
    text, dice = jackfield_llm.default_text(), random.Random(0)
    few, whole = looked_up(default_metadata), Tokenizer.from_metadata(as_lists(default_metadata))
    for _ in range(100):
        start = dice.randrange(len(text))
        part = text[start : start + dice.randrange(100)] + dice.choice(["", " <|im_end|>", "日本 😀\n\n1234"])
        few._segmenter._left = bpe_module._FEW_PARTS
        assert few.encode(part, special=True) == whole.encode(part, special=True)
    assert few._segmenter._whole is None
    assert [few._vocabulary.tokens[i] for i in range(few.vocab_size)] == list(whole._vocabulary.tokens)


def many_words():
    dice = random.Random(0)
    return " ".join("".join(dice.choices("etaoinshrdlu", k=dice.randrange(1, 9))) for _ in range(4000))


def test_bytes_that_are_no_tokens(default_metadata):
    """The default model has no token for some control characters: the library joins what lies beside them."""
    whole = Tokenizer.from_metadata(as_lists(default_metadata))
    for byte in range(128):
        text = f"--{chr(byte)}-- a{chr(byte)}nd"
        assert Tokenizer.from_metadata(default_metadata).encode(text) == whole.encode(text), byte


def test_a_pickled_tokenizer_says_the_same_in_another_process(default_metadata):
    tokenizer = looked_up(default_metadata)
    want = tokenizer.encode("Hello world")
    ask = "import pickle, sys; print(pickle.load(sys.stdin.buffer).encode('Hello world'))"
    done = subprocess.run([sys.executable, "-c", ask], input=pickle.dumps(tokenizer), capture_output=True, check=True)
    assert json.loads(done.stdout) == want
    assert copy.deepcopy(tokenizer).encode("Hello world") == want


@pytest.mark.parametrize("pre", [("array", ("string", ["a"])), ("array", ("i32", [1])), ("u32", 7), ("bool", True)])
def test_a_pre_tokenizer_that_is_no_text(folder, pre):
    metadata = {"tokenizer.ggml.model": ("string", "gpt2"), "tokenizer.ggml.pre": pre}
    for key, texts in (("tokens", ["a", "b", "ab"]), ("merges", ["a b"])):
        metadata[f"tokenizer.ggml.{key}"] = ("array", ("string", texts))
    (folder / "odd.gguf").write_bytes(file(metadata))
    with pytest.raises(TokenizerError, match=r"tokenizer\.ggml\.pre is .*: known ones are"):
        Tokenizer.from_metadata(jf.gguf.open(folder / "odd.gguf").metadata)


def test_many_words_fill_the_tables_once(default_metadata):
    tokenizer, text = looked_up(default_metadata), many_words()
    want = Tokenizer.from_metadata(as_lists(default_metadata)).encode(text)
    assert tokenizer.encode(text) == want
    whole = tokenizer._segmenter._whole
    assert whole is not None
    assert tokenizer.encode(text) == want
    assert tokenizer._segmenter._whole is whole


def test_one_long_word_fills_the_tables(default_metadata):
    tokenizer = looked_up(default_metadata)
    assert tokenizer.decode(tokenizer.encode("x" * 3000)) == "x" * 3000
    assert tokenizer._segmenter._whole is not None


def test_threads_share_a_tokenizer_while_its_tables_are_filled(default_metadata):
    tokenizer, text = looked_up(default_metadata), many_words()
    parts = [text[i : i + 400] for i in range(0, len(text), 400)]
    want = [*map(Tokenizer.from_metadata(as_lists(default_metadata)).encode, parts)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(tokenizer.encode, parts)) == want
    assert tokenizer._segmenter._whole is not None
