"""Tokenizers: the default model's golden ids, small vocabularies against plain oracles, files that make no sense."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from jackfield_llm.errors import TokenizerError
from jackfield_llm.tokenizer import Tokenizer
from jackfield_llm.tokenizer import bpe as bpe_module
from jackfield_llm.tokenizer.patterns import PRE_TOKENIZERS

GOLDEN = Path(__file__).parents[1] / "golden"
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPACE = "\u2581"


def byte_letter(byte):
    """GPT-2's letter for a byte, by its rule: printable ones stand for themselves."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return chr(byte) if byte in plain else chr(0x100 + [b for b in range(256) if b not in plain].index(byte))


LETTERS = [byte_letter(byte) for byte in range(256)]


def bpe(merges, special=(), pre="gpt-2", **more):
    """A byte-level vocabulary: the bytes, what the merges make, and special tokens {text: role}."""
    made = list(dict.fromkeys(merge.replace(" ", "") for merge in merges))
    special = dict(special)
    tokens = [*LETTERS, *made, *special]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [NORMAL] * (256 + len(made)) + list(special.values()),
        "tokenizer.ggml.merges": list(merges),
        **{f"tokenizer.ggml.{key}": value for key, value in more.items()},
    }


def spm(scored, special=(), *, with_bytes=True, **more):
    """A SentencePiece vocabulary: <unk>, <s>, </s>, the bytes, tokens {text: score}, special ones {text: role}."""
    special = dict(special)
    in_bytes = [f"<0x{byte:02X}>" for byte in range(256)] if with_bytes else []
    tokens = ["<unk>", "<s>", "</s>", *in_bytes, *scored, *special]
    roles = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * len(in_bytes) + [NORMAL] * len(scored) + list(special.values())
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * (3 + len(in_bytes)) + list(scored.values()) + [0.0] * len(special),
        "tokenizer.ggml.token_type": roles,
        "tokenizer.ggml.unknown_token_id": 0,
        **{f"tokenizer.ggml.{key}": value for key, value in more.items()},
    }


def made_of(metadata, **options):
    return Tokenizer.from_metadata(metadata), options


def texts(tokenizer, ids):
    return [tokenizer.decode([token]) for token in ids]


# The default model.


def test_golden_tokens(default_metadata):
    tokenizer = Tokenizer.from_metadata(default_metadata)
    golden = json.loads((GOLDEN / "tokens.json").read_text("utf-8"))
    assert len(golden) >= 40
    assert [case["text"] for case in golden if tokenizer.encode(case["text"], special=True) != case["ids"]] == []
    assert [case["text"] for case in golden if tokenizer.decode(case["ids"]) != case["text"]] == []


def test_golden_prompts(default_metadata):
    tokenizer = Tokenizer.from_metadata(default_metadata)
    for case in json.loads((GOLDEN / "greedy.json").read_text("utf-8")).values():
        assert tokenizer.encode(case["prompt"], special=True) == case["prompt_ids"]


def test_what_the_default_model_says_of_itself(default_metadata):
    tokenizer = Tokenizer.from_metadata(default_metadata)
    assert tokenizer.vocab_size == 49_152
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.adds_bos) == (1, 2, False)
    assert tokenizer.eos_ids == {0, 2, 4}  # <|endoftext|>, <|im_end|> and <reponame>, as in llama.cpp
    assert "<|im_start|>" in tokenizer.control_texts


def test_any_text_survives(default_metadata):
    tokenizer = Tokenizer.from_metadata(default_metadata)

    # Some control characters are no token of this vocabulary; llama.cpp leaves them out, too.
    missing = [chr(byte) for byte in range(128) if not tokenizer.encode(chr(byte))]
    assert missing == list("\x04\x06\x13\x14\x16\x1d")

    @given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters=missing)))
    def check(text):
        assume(not any(0x40000 <= ord(letter) < 0xC0000 for letter in text))  # their first bytes are missing, too
        for special in (False, True):
            ids = tokenizer.encode(text, special=special)
            assert tokenizer.decode(ids) == text
            assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()

    check()


def test_a_stream_gives_what_decoding_all_at_once_gives(default_metadata):
    tokenizer = Tokenizer.from_metadata(default_metadata)

    @given(st.lists(st.integers(0, 49_151), max_size=40), st.booleans())
    def check(ids, skip):
        stream = tokenizer.stream(skip_special=skip)
        pieces = [stream.push(token) for token in ids]
        assert "".join(pieces) + stream.flush() == tokenizer.decode(ids, skip_special=skip)
        assert stream.flush() == ""

    check()


# Byte-level vocabularies.


def test_an_unfinished_character_is_held_back():
    tokenizer = Tokenizer.from_metadata(bpe([]))
    stream = tokenizer.stream()
    ids = tokenizer.encode("é🦙x")
    assert [stream.push(token) for token in ids] == ["", "é", "", "", "", "🦙", "x"]
    assert stream.push(ids[0]) == ""
    assert stream.flush() == "\ufffd"
    assert stream.push(ids[-1]) == "x"  # and the stream can go on


def naive_bpe(word, ranks):
    symbols = list(word)
    while True:
        pairs = [(ranks[pair], place) for place, pair in enumerate(pairwise(symbols)) if pair in ranks]
        if not pairs:
            return symbols
        _, place = min(pairs)
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]


@given(st.data())
def test_merges_are_done_in_their_order(data):
    merges, halves = [], ["a", "b", "c"]
    for _ in range(data.draw(st.integers(0, 12))):
        left, right = data.draw(st.sampled_from(halves)), data.draw(st.sampled_from(halves))
        if f"{left} {right}" not in merges and left + right not in halves:
            merges.append(f"{left} {right}")
            halves.append(left + right)
    text = data.draw(st.text("abc", max_size=30))
    tokenizer = Tokenizer.from_metadata(bpe(merges))
    ranks = {tuple(merge.split(" ")): place for place, merge in enumerate(merges)}
    assert texts(tokenizer, tokenizer.encode(text)) == naive_bpe(text, ranks)


def test_a_whole_word_that_is_a_token_is_taken_where_the_pre_tokenizer_says_so():
    # "abcd" is a token no merge reaches: "a b" comes first, and nothing joins "ab" and "cd".
    merges = ["a b", "c d", "b c", "a bc", "abc d"]
    whole = Tokenizer.from_metadata(bpe(merges, pre="llama-bpe"))
    merged = Tokenizer.from_metadata(bpe(merges, pre="qwen2"))
    assert texts(whole, whole.encode("abcd")) == ["abcd"]
    assert texts(merged, merged.encode("abcd")) == ["ab", "cd"]


# The words of a text, by pre-tokenizer.
@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt-2", "don't 123", ["don", "'t", " 123"]),
        ("llama-bpe", "DON'T 12345", ["DON", "'T", " ", "123", "45"]),
        ("qwen2", "x 123", ["x", " ", "1", "2", "3"]),
        ("smollm", "x 123", ["x", " ", "1", "2", "3"]),
        ("falcon", "a==1234", ["a", "==", "123", "4"]),
        ("deepseek-llm", "ab1234", ["ab", "1234"]),
        ("deepseek-v3", "ab1234", ["ab", "123", "4"]),
        ("bloom", "a, b", ["a", ",", " b"]),
        ("viking", "a12", ["a", "1", "2"]),
        ("tekken", "HTMLParserOf it", ["HTMLParser", "Of", " it"]),
        ("gpt-4o", "we'll 1234", ["we'll", " ", "123", "4"]),
        ("bailingmoe", "i'D\n\nb", ["i", "'D", "\n\n", "b"]),
        ("seed-coder", "a!\n", ["a", "!", "\n"]),
        ("ufakzeka", "a'ti", ["a", "'ti"]),
        ("laguna", "a!\nb", ["a", "!", "\n", "b"]),
        ("exaone-moe", "ab cd", ["ab cd"]),
        ("minicpm5", "ab1234", ["ab", "123", "4"]),
        ("qwen35", "e\u0301a", ["e\u0301a"]),
        ("glm4", "1234", ["123", "4"]),
        ("default", "a.b", ["a", ".", "b"]),
    ],
)
def test_words_of_a_pre_tokenizer(pre, text, words):
    letters = [byte_letter(byte) for byte in text.encode()]
    # Enough merges to join any run of this text's letters: a token then is a whole word.
    runs = {"".join(letters[a:b]) for a in range(len(letters)) for b in range(a + 1, len(letters) + 1)}
    merges = [f"{run[:cut]} {run[cut:]}" for run in sorted(runs, key=len) for cut in range(1, len(run))]
    tokenizer = Tokenizer.from_metadata(bpe(merges, pre=pre))
    assert texts(tokenizer, tokenizer.encode(text)) == words


def test_every_pre_tokenizer_keeps_every_byte():
    text = "Hello WORLD, it's 12345 and 3.14!\r\n\t été \u3000中文かな한국 🦙\u0301\u00a0 x  \n\n <|a|> 'LL \u0085"
    for pre in PRE_TOKENIZERS:
        tokenizer = Tokenizer.from_metadata(bpe([], pre=pre))
        assert tokenizer.decode(tokenizer.encode(text)) == text, pre


def test_a_merge_may_begin_with_a_space_token():
    # A space is written as a letter, but a file may still hold texts that begin with one.
    metadata = bpe([])
    metadata["tokenizer.ggml.tokens"] = [*LETTERS, " ", " a"]
    metadata["tokenizer.ggml.token_type"] = [NORMAL] * 258
    metadata["tokenizer.ggml.merges"] = ["  a"]
    assert Tokenizer.from_metadata(metadata).vocab_size == 258


# Special tokens.

MARKED = {"<|end|>": CONTROL, "<|end|>>": CONTROL, "<mask>": USER, "<?>": UNKNOWN}


def test_special_tokens_are_parsed_on_request_only():
    tokenizer = Tokenizer.from_metadata(bpe(["e n"], MARKED))
    text = "a<|end|>b<|end|>>c<mask>d<?>"
    assert texts(tokenizer, tokenizer.encode(text, special=True)) == [
        "a",
        "<|end|>",
        "b",
        "<|end|>>",
        "c",
        "<mask>",
        "d",
        "<?>",
    ]
    plain = tokenizer.encode(text, special=False)
    assert [token for token in plain if token > 256] == [259]  # <mask> is the user's own, so it is always found
    assert tokenizer.decode(plain) == text
    assert tokenizer.decode(tokenizer.encode(text, special=True), skip_special=True) == "abc<mask>d"
    assert set(tokenizer.control_texts) == {"<|end|>", "<|end|>>", "<?>"}
    stream = tokenizer.stream()
    assert "".join(stream.push(token) for token in tokenizer.encode(text, special=True)) == "abc<mask>d"


def test_splitting_and_joining():
    tokenizer = Tokenizer.from_metadata(bpe([], MARKED))
    assert tokenizer.split("a<|end|><mask>b", special=True) == ["a", 256, 258, "b"]
    assert tokenizer.split("a<|end|><mask>b", special=False) == ["a<|end|>", 258, "b"]
    assert tokenizer.split("", special=True) == []
    assert tokenizer.decode(tokenizer.join([256, "<|end|>"])) == "<|end|><|end|>"
    assert tokenizer.join([256, "<|end|>"]).count(256) == 1


def test_a_token_that_looks_special_is_not_found_unasked():
    tokenizer = Tokenizer.from_metadata(bpe([], {"<|user|>": USER, "<\uff5cuser\uff5c>": USER}))
    assert [token for token in tokenizer.encode("<|user|><\uff5cuser\uff5c>") if token >= 256] == []
    assert tokenizer.encode("<|user|><\uff5cuser\uff5c>", special=True) == [256, 257]


def test_a_control_token_never_comes_out_of_plain_text():
    # Merges that would make it, as llama.cpp would do them, are left out; so is a whole word that is one.
    merges = ["a b", "ab c", "x y"]
    metadata = bpe(merges, pre="llama-bpe")
    roles = metadata["tokenizer.ggml.token_type"]
    roles[metadata["tokenizer.ggml.tokens"].index("abc")] = CONTROL
    tokenizer = Tokenizer.from_metadata(metadata)
    assert texts(tokenizer, tokenizer.encode("abcxy")) == ["ab", "c", "xy"]
    assert texts(tokenizer, tokenizer.encode("abcxy", special=True)) == ["abc", "xy"]
    pieces = Tokenizer.from_metadata(spm({"<": -1, "s": -2, ">": -3, "<s": -4}, add_space_prefix=False))
    assert texts(pieces, pieces.encode("<s>")) == ["<s", ">"]


def test_white_space_beside_some_tokens_belongs_to_them():
    phi = bpe([], {"<|end|>": CONTROL, "<s>": CONTROL}) | {"general.name": "Phi-3 mini"}
    tokenizer = Tokenizer.from_metadata(phi)
    assert texts(tokenizer, tokenizer.encode("<|end|> \n a<s> b", special=True)) == ["<|end|>", "a", "<s>", " ", "b"]
    jina = Tokenizer.from_metadata(bpe([], {"<mask>": CONTROL}, pre="jina-v2-de"))
    assert texts(jina, jina.encode("a \n<mask> b", special=True)) == ["a", "<mask>", " ", "b"]


def test_tokens_that_end_an_answer():
    special = {
        "<|im_end|>": CONTROL,
        "<|endoftext|>": NORMAL,
        "</s>": USER,
        "<|file_sep|>": CONTROL,
        "<fim_pad>": CONTROL,
    }
    metadata = bpe([], {**special, "<x>": CONTROL, "<y>": CONTROL}, eos_token_id=261, eot_token_id=262)
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.eos_ids == set(range(256, 263))
    assert tokenizer.eos_id == 261
    assert [token for token in tokenizer.encode("</s><|endoftext|>") if token > 255] == []
    harmony = Tokenizer.from_metadata(bpe([], dict.fromkeys(("<|end|>", "<|return|>", "<|call|>"), CONTROL)))
    assert harmony.eos_ids == {257, 258}
    gemma = Tokenizer.from_metadata(bpe([], {"</s>": CONTROL, "<|tool_response>": CONTROL}))
    assert gemma.eos_ids == {257}
    assert Tokenizer.from_metadata(bpe([])).eos_ids == frozenset()


def test_tokens_round_a_text_are_added_as_the_file_says():
    metadata = bpe([], {"<s>": CONTROL, "</s>": CONTROL}, bos_token_id=256, eos_token_id=257)
    assert Tokenizer.from_metadata(metadata).encode("a", add_special=True) == [LETTERS.index("a")]
    both = Tokenizer.from_metadata(
        metadata | {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    )
    assert both.encode("a", add_special=True) == [256, LETTERS.index("a"), 257]
    assert both.encode("", add_special=True) == [256, 257]
    assert both.encode("a") == [LETTERS.index("a")]
    assert Tokenizer.from_metadata(metadata | {"tokenizer.ggml.pre": "llama-bpe"}).adds_bos
    without = Tokenizer.from_metadata(bpe([], add_bos_token=True))
    with pytest.raises(TokenizerError, match=r"tokenizer\.ggml\.bos_token_id: absent, and the file asks to add"):
        without.encode("a", add_special=True)


# SentencePiece vocabularies.


def naive_spm(text, scores):
    """All joins one by one: the best score first, of equal ones the leftmost."""
    symbols = list(text)
    while True:
        joins = [(-scores[a + b], place) for place, (a, b) in enumerate(pairwise(symbols)) if a + b in scores]
        if not joins:
            return symbols
        _, place = min(joins)
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]


# Texts of two letters and a space in all orders, so that words may and may not be told apart.
PIECES = st.dictionaries(st.text(f"ab{SPACE}", min_size=1, max_size=4), st.integers(-4, 0).map(float), max_size=14)


@given(PIECES, st.text("ab ", max_size=20))
def test_joins_are_done_by_score(pieces, text):
    scores = {"a": 0.0, "b": 0.0, SPACE: 0.0} | pieces
    tokenizer = Tokenizer.from_metadata(spm(scores, add_space_prefix=False))
    first = 3 + 256
    expected = [first + list(scores).index(symbol) for symbol in naive_spm(text.replace(" ", SPACE), scores)]
    assert tokenizer.encode(text) == expected
    assert tokenizer.decode(expected) == text


def test_of_three_spaces_the_left_two_are_joined_first():
    tokenizer = Tokenizer.from_metadata(spm({SPACE: -3, SPACE * 2: -1, "a": -2}, add_space_prefix=False))
    assert texts(tokenizer, tokenizer.encode("   a")) == ["  ", " ", "a"]


def test_a_space_is_put_in_front_where_the_file_says_so():
    metadata = spm({SPACE: -1, "a": -2, f"{SPACE}a": -0.5}, {"<x>": CONTROL})
    tokenizer = Tokenizer.from_metadata(metadata)
    a, control = tokenizer.encode("a"), tokenizer.vocab_size - 1
    assert len(a) == 1
    assert tokenizer.encode("a<x>a", special=True) == [*a, control, *a]
    assert tokenizer.decode(a) == "a"
    assert tokenizer.decode([control, *a]) == "<x> a"
    assert tokenizer.token_bytes(a[0]) == b" a"
    assert tokenizer.encode("", special=True) == []
    assert tokenizer.encode("a", add_special=True) == [1, *a]
    without = Tokenizer.from_metadata(metadata | {"tokenizer.ggml.add_space_prefix": False})
    assert without.encode("a") != a


def test_what_is_no_token_becomes_bytes_or_unknown():
    with_bytes = Tokenizer.from_metadata(spm({SPACE: -1}, add_space_prefix=False))
    assert with_bytes.encode("é") == [3 + 0xC3, 3 + 0xA9]
    assert with_bytes.decode([3 + 0xC3, 3 + 0xA9]) == "é"
    without = Tokenizer.from_metadata(spm({SPACE: -1}, with_bytes=False, add_space_prefix=False))
    assert without.encode("é ") == [0, 3]
    metadata = spm({SPACE: -1}, with_bytes=False, add_space_prefix=False)
    del metadata["tokenizer.ggml.unknown_token_id"]
    metadata["tokenizer.ggml.tokens"][0] = "a"
    metadata["tokenizer.ggml.token_type"][0] = NORMAL
    assert Tokenizer.from_metadata(metadata).encode("é") == [0]  # token 0 is the unknown one where the file is silent


# The other two kinds.


def test_merges_over_text():
    in_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = [*in_bytes, SPACE, "a", "b", f"{SPACE}a", "\n", "\n\n"]
    metadata = {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [BYTE] * 256 + [NORMAL] * 6,
        "tokenizer.ggml.merges": [f"{SPACE} a"],
    }
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.encode("a ab\n\né") == [257, 259, 258, 261, 0xC3, 0xA9]
    assert tokenizer.decode(tokenizer.encode("a ab\n\n\né")) == "a ab\n\n\né"


def test_word_pieces():
    words = ["[UNK]", "[CLS]", "[SEP]", f"{SPACE}hello", f"{SPACE}he", "llo", f"{SPACE}!", f"{SPACE}e"]
    metadata = {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.token_type": [CONTROL] * 3 + [NORMAL] * 5,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.seperator_token_id": 2,
    }
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.encode("Hello hellO!  é xyz") == [3, 3, 6, 7, 0]
    assert tokenizer.encode("hello", add_special=True) == [1, 3, 2]
    assert tokenizer.encode("", add_special=True) == [1, 2]
    flags = {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": True}  # llama.cpp heeds neither
    assert Tokenizer.from_metadata(metadata | flags).encode("hello", add_special=True) == [1, 3, 2]
    assert tokenizer.decode([3, 6]) == " hello !"
    metadata["tokenizer.ggml.normalizer.lowercase"] = False
    assert Tokenizer.from_metadata(metadata).encode("Hello") == [0]
    del metadata["tokenizer.ggml.unknown_token_id"]
    with pytest.raises(TokenizerError, match=r"unknown_token_id: absent; this kind of vocabulary needs one"):
        Tokenizer.from_metadata(metadata)


# Vocabularies of byte strings.


def world(strings, special=(), **more):
    """A vocabulary of byte strings, written as a GGUF file has them; special tokens {text: role}."""
    special = dict(special)
    tokens = [*(repr(string)[2:-1] for string in strings), *special]
    return {
        "tokenizer.ggml.model": "rwkv",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [NORMAL] * len(strings) + list(special.values()),
        **{f"tokenizer.ggml.{key}": value for key, value in more.items()},
    }


EVERY_BYTE = [bytes([byte]) for byte in range(256)]
STRINGS = st.lists(
    st.binary(min_size=2, max_size=6) | st.text("aé中", min_size=1, max_size=4).map(str.encode), max_size=12
)


def naive_longest(data, strings):
    """All tokens tried at each place."""
    ids = []
    while data:
        length, token = max((len(string), token) for token, string in enumerate(strings) if data.startswith(string))
        ids.append(token)
        data = data[length:]
    return ids


@given(STRINGS, st.text("aé中\\'\"\n\t\0x", max_size=20))
def test_the_longest_string_is_taken(more, text):
    strings = [*EVERY_BYTE, *dict.fromkeys(string for string in more if len(string) > 1)]
    tokenizer = Tokenizer.from_metadata(world(strings))
    ids = tokenizer.encode(text)
    assert ids == naive_longest(text.encode(), strings)
    assert tokenizer.decode(ids) == text


@given(st.lists(st.binary(min_size=1, max_size=8), min_size=1, unique=True))
def test_byte_strings_are_read_as_python_writes_them(strings):
    tokenizer = Tokenizer.from_metadata(world(strings))
    assert [tokenizer.token_bytes(token) for token in range(len(strings))] == strings


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("é", b"\xc3\xa9"),
        (r"\'", b"'"),
        (r"\q", b"q"),
        (r"\xC3\xa9", b"\xc3\xa9"),
        (r"é\n", b"\xc3\xa9\n"),
        (r"\\n", b"\\n"),
    ],
)
def test_other_escapes_are_read_as_llama_cpp_reads_them(text, data):
    metadata = world(EVERY_BYTE)
    metadata["tokenizer.ggml.tokens"] = [text]
    metadata["tokenizer.ggml.token_type"] = [NORMAL]
    assert Tokenizer.from_metadata(metadata).token_bytes(0) == data


@pytest.mark.parametrize("text", ["\\", "a\\", r"\x", r"\x1", r"\xg0", r"\\\x-1"])
def test_escapes_that_make_no_byte_are_refused(text):
    metadata = {"tokenizer.ggml.model": "rwkv", "tokenizer.ggml.tokens": ["a", text]}
    with pytest.raises(TokenizerError, match=r"tokens holds .*: a backslash must come before a letter, a sign or xHH"):
        Tokenizer.from_metadata(metadata)


def test_names_of_control_and_unused_tokens_are_plain_text_among_byte_strings():
    metadata = world(EVERY_BYTE, {"<s>": CONTROL, "[PAD7]": UNUSED, "<mine>": USER}, eos_token_id=256, eot_token_id=10)
    tokenizer = Tokenizer.from_metadata(metadata)
    text = "<s>[PAD7]<mine>"
    assert tokenizer.encode(text) == [*b"<s>[PAD7]", 258]
    assert tokenizer.encode(text, special=True) == [256, *b"[PAD7]", 258]
    assert tokenizer.decode([256, 257, 258]) == "<s><mine>"
    assert tokenizer.eos_ids == {10, 256}
    assert tokenizer.encode("a", add_special=True) == [97]


def test_a_byte_that_begins_no_string_is_unknown():
    tokenizer = Tokenizer.from_metadata(world([b"a", b"bcd"], {"<unk>": UNKNOWN}, unknown_token_id=2))
    assert tokenizer.encode("abcbcdé") == [0, 2, 2, 1, 2, 2]
    without = Tokenizer.from_metadata(world([b"a", b"bcd"]))
    with pytest.raises(TokenizerError, match=r"\[encode\] byte 0x62 begins no token: the vocabulary must have it"):
        without.encode("abc")


# Merges in bulk.

SMALL_TOKENS = ["a", "b", "ab", "ba", "aba", " ", " a", "\n", "\n\n", "é", "éa", "</s>", "\x1f"]
HALVES = st.sampled_from([*SMALL_TOKENS, "", "c", "<"])
LINES = st.lists(st.tuples(HALVES, HALVES).map(" ".join) | st.sampled_from(["ab", "a  b", "  a", 3, None]), max_size=6)


@example(["a b", "a", "b a b"], "gpt2", 9)  # would make merges of halves of two lines
@example(["a b\x1fa b"], "gpt2", 9)  # would make two merges of one
@given(LINES, st.sampled_from(["gpt2", "gemma4"]), st.integers(1, 9))
def test_merges_in_bulk_are_those_one_by_one(lines, kind, piece):
    """Whatever the lines: the same tokens for a text, or the same error, as with every line looked at alone."""
    metadata = {
        "tokenizer.ggml.model": kind,
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": SMALL_TOKENS,
        "tokenizer.ggml.token_type": [NORMAL] * 11 + [CONTROL, NORMAL],
        "tokenizer.ggml.merges": lines,
    }

    def outcome():
        try:
            tokenizer = Tokenizer.from_metadata(metadata)
        except TokenizerError as e:
            return str(e)
        return [tokenizer.encode(text) for text in ("aba", "a b", "éab", "bab\n\na", "</s>", " a\x1f")]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bpe_module, "_PIECE", piece)
        at_once = outcome()
        patch.setattr(bpe_module._Pairs, "of", lambda *_: None)
        assert at_once == outcome()


def test_the_usual_merges_are_never_looked_at_alone(default_metadata, monkeypatch):
    monkeypatch.setattr(bpe_module, "_merges", None)
    assert Tokenizer.from_metadata(default_metadata).encode("Hello world") == [19556, 905]
    pairs = bpe_module._Pairs("a b\x1fab c\x1fd e", 3)
    assert (len(pairs), list(pairs), pairs[1]) == (3, [("a", "b"), ("ab", "c"), ("d", "e")], ("ab", "c"))


# Files and calls that make no sense.


def changed(**more):
    metadata = bpe(["a b"])
    for key, value in more.items():
        metadata[f"tokenizer.ggml.{key}"] = value
        if value is None:
            del metadata[f"tokenizer.ggml.{key}"]
    return metadata


TOKENS = [*LETTERS, "ab"]


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({}, r"tokenizer\.ggml\.model is absent: must be a text"),
        (changed(model=3), r"tokenizer\.ggml\.model is 3: must be a text"),
        (changed(model="t5"), r"tokenizer\.ggml\.model is 't5': known ones are bert, gemma4, gpt2, llama, rwkv"),
        (changed(pre="kimi-k2"), r"tokenizer\.ggml\.pre is 'kimi-k2': known ones are a\.x-4\.0, .*, viking"),
        (changed(pre=3), r"tokenizer\.ggml\.pre is 3: known ones are"),
        (changed(tokens=None), r"tokenizer\.ggml\.tokens: must be a list of texts that is not empty"),
        (changed(tokens=[]), r"tokenizer\.ggml\.tokens: must be a list of texts that is not empty"),
        (changed(tokens="abc"), r"tokenizer\.ggml\.tokens: must be a list of texts that is not empty"),
        (changed(tokens=[*TOKENS[:-1], 3]), r"tokenizer\.ggml\.tokens\[256\] is 3: must be a text"),
        (changed(tokens=[*TOKENS[:-1], ["a"]]), r"tokenizer\.ggml\.tokens\[256\] is \['a'\]: must be a text"),
        (changed(tokens=[3] * 257), r"tokenizer\.ggml\.tokens\[0\] is 3: must be a text"),
        (changed(tokens=[*TOKENS[:-1], "a"]), r"tokens holds 'a' twice, at 97 and 256: must be unique"),
        (changed(token_type=[1] * 256), r"token_type holds 256 entries: must be 257 numbers, one a token"),
        (changed(token_type=["a"] * 257), r"token_type holds 257 entries: must be 257 numbers"),
        (changed(token_type=[1.5] * 257), r"token_type holds 257 entries: must be 257 numbers"),
        (changed(token_type=[[1], [1, 2]] * 200), r"token_type: must be a list of numbers"),
        (changed(merges=None), r"tokenizer\.ggml\.merges: absent; this kind of vocabulary needs a list of texts"),
        (changed(merges="a b"), r"tokenizer\.ggml\.merges: absent"),
        (changed(merges=["a b", "ab"]), r"tokenizer\.ggml\.merges\[1\] is 'ab': must be two texts and a space between"),
        (changed(merges=["a b", 3]), r"tokenizer\.ggml\.merges\[1\] is 3: must be two texts"),
        (changed(merges=["a b", "a c"]), r"merges joins 'a' and 'c' \(number 1\): 'ac' must be a token"),
        (changed(merges=["x\u2603 b"]), r"merges joins 'x\u2603' and 'b' \(number 0\): 'x\u2603' must be a token"),
        (changed(bos_token_id=257), r"tokenizer\.ggml\.bos_token_id is 257: must be an id below 257"),
        (changed(eos_token_id=-1), r"tokenizer\.ggml\.eos_token_id is -1: must be an id below 257"),
        (changed(eot_token_id="x"), r"tokenizer\.ggml\.eot_token_id is 'x': must be an id below 257"),
        (changed(fim_pad_token_id=1e9), r"tokenizer\.ggml\.fim_pad_token_id is 1000000000\.0: must be an id"),
        (changed(add_bos_token="yes"), r"tokenizer\.ggml\.add_bos_token is 'yes': must be true or false"),
        (changed(model="llama"), r"tokenizer\.ggml\.scores: absent; this kind of vocabulary needs a number for each"),
        (changed(model="llama", scores=[0.0] * 3), r"scores holds 3 entries: must be 257 numbers"),
        (changed(model="llama", scores=[float("nan")] * 257), r"scores\[0\] is nan: must be a number"),
        (changed(model="llama", scores=3), r"scores: must be a list of numbers"),
        (changed(model="gemma4", merges=["a z"]), r"merges joins 'a' and 'z' \(number 0\): 'az' must be a token"),
    ],
)
def test_files_that_contradict_themselves(metadata, reason):
    with pytest.raises(TokenizerError, match=reason):
        Tokenizer.from_metadata(metadata)


def test_empty_tokens_and_unknown_roles_are_taken_as_llama_cpp_takes_them():
    metadata = changed(tokens=[*TOKENS, "", "x?"], token_type=[1] * 257 + [99, 5], pre=None)
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.vocab_size == 259
    assert [tokenizer.token_bytes(token) for token in (256, 257, 258)] == [b"ab", b"", b""]


def test_ids_outside_the_vocabulary_are_refused():
    tokenizer = Tokenizer.from_metadata(changed())
    for token in (-1, 257, 10**12):
        for call in (tokenizer.token_bytes, lambda t: tokenizer.decode([t]), lambda t: tokenizer.stream().push(t)):
            with pytest.raises(TokenizerError, match=rf"\[decode\] token {token}: must be an id below 257"):
                call(token)


def test_half_characters_from_a_terminal_become_replacement_signs():
    for metadata in (changed(), spm({SPACE: -1}), spm({SPACE: -1}, with_bytes=False)):
        tokenizer = Tokenizer.from_metadata(metadata)
        assert tokenizer.encode("a\udc80\ud800b") == tokenizer.encode("a\ufffd\ufffdb")


ODD = (
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.floats()
    | st.text(max_size=3)
    | st.lists(st.integers(-1, 9), max_size=4)
)
KEYS = ["model", "pre", "tokens", "token_type", "scores", "merges", "bos_token_id", "eot_token_id", "add_bos_token"]


@given(
    st.sampled_from(["gpt2", "llama", "gemma4", "bert", "rwkv"]),
    st.dictionaries(
        st.sampled_from([*KEYS, "unknown_token_id", "add_space_prefix", "seperator_token_id"]), ODD, max_size=3
    ),
    st.lists(st.sampled_from([*LETTERS, "ab", SPACE, "", "<s>", r"\x0"]), max_size=6),
    st.lists(st.sampled_from(["a b", "ab a", "  a", "", "a", "< s", "<s >"]), max_size=3),
)
def test_no_file_can_do_worse_than_an_error(kind, odd, tokens, merges):
    metadata = {
        "tokenizer.ggml.model": kind,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-float(place) for place in range(len(tokens))],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.unknown_token_id": 0,
        **{f"tokenizer.ggml.{key}": value for key, value in odd.items()},
    }
    try:
        tokenizer = Tokenizer.from_metadata(metadata)
        ids = tokenizer.encode("ab <s>\n\u2603", special=True, add_special=True)
    except TokenizerError:
        return
    assert all(0 <= token < tokenizer.vocab_size for token in ids)
    tokenizer.decode(range(tokenizer.vocab_size))
