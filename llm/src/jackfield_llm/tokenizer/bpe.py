"""Byte-pair vocabularies with a list of merges, served by the library `tokenizers`.

Two kinds: the usual one over bytes that are written as letters (GPT-2's alphabet), cut into words by the file's
pre-tokenizer; and Gemma 4's over the text itself, with "▁" for a space and tokens such as <0x0A> for what is left.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, overload

import numpy as np
from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

import jackfield as jf
from jackfield_llm.errors import TokenizerError, shown
from jackfield_llm.tokenizer.lookup import BETWEEN, Lookup, cuts_of_pairs
from jackfield_llm.tokenizer.patterns import PRE_TOKENIZERS, PreTokenizer
from jackfield_llm.tokenizer.vocabulary import Vocabulary

__all__ = ["ByteBPE", "TextBPE", "pre_tokenizer"]

_SPACE = "▁"
_MERGES = "tokenizer.ggml.merges"
_PIECE = 1 << 16  # letters of merges that are taken apart together
_FEW_PARTS = (
    1 << 14
)  # of words, in all texts so far: to look up so many takes about as long as to fill the whole tables


def pre_tokenizer(name: object) -> PreTokenizer:
    """The rules of that name; a file without a name gets the default, as in llama.cpp."""
    wanted = "default" if name is None else name
    found = PRE_TOKENIZERS.get(wanted) if isinstance(wanted, str) else None
    if found is None:
        raise TokenizerError(f"tokenizer.ggml.pre is {shown(name)}: known ones are {', '.join(sorted(PRE_TOKENIZERS))}")
    return found


class ByteBPE:
    """Merges over bytes, inside the words of a pre-tokenizer."""

    def __init__(self, vocabulary: Vocabulary, tables: Library | Lookup) -> None:
        """vocabulary: its tokens are not looked at. tables: of `tables`, or that they are made from when it pays."""
        rules = pre_tokenizer(vocabulary.pre)
        splits: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rules.patterns]
        letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._cut = pre_tokenizers.Sequence([*splits, letters])
        self._whole_words = rules.whole_words
        self._whole: Library | None = None
        self._lookup: Lookup | None = None
        self._left = _FEW_PARTS
        self.texts: Sequence[str]
        if isinstance(tables, Lookup):
            self._lookup, self.texts = tables, tables.texts
            self._hidden = frozenset(vocabulary.controls())
        else:
            self._whole, self.texts = tables, _Texts(tables, vocabulary)
            self._whole.pre_tokenizer = self._cut

    @staticmethod
    def tables(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> Library:
        """Tokens and merges in the library's memory; `vocabulary.ids` are changed."""
        whole_words = pre_tokenizer(vocabulary.pre).whole_words
        return Library(_model(vocabulary, metadata, ignore_merges=whole_words))

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        library = self._whole or self._small(text) or self._filled()
        return list(library.encode(text, add_special_tokens=False).ids)

    def _small(self, text: str) -> Library | None:
        """Tables for this text alone; None where those of all texts so far took as long as the whole ones."""
        if self._lookup is None or len(text) > self._left:
            return None
        words = {word for word, _ in self._cut.pre_tokenize_str(text)}
        found = self._lookup.part(words, self._hidden, most=self._left)
        if found is None:
            return None
        self._left -= found.parts
        return self._served(found.ids, found.merges)

    def _filled(self) -> Library:
        """The whole tables. Two threads may both fill them: they are alike."""
        assert self._lookup is not None
        hidden, merges = self._hidden, _Pairs(self._lookup.merges.joined, len(self._lookup.merges))
        ids = {text: token for token, text in enumerate(self._lookup.texts) if text not in hidden}
        pairs: Sequence[tuple[str, str]] = merges
        if not all(left in ids and right in ids and left + right in ids for left, right in merges):
            pairs = [(a, b) for a, b in merges if a in ids and b in ids and a + b in ids]
        self._whole = self._served(ids, pairs)
        return self._whole

    def _served(self, ids: dict[str, int], merges: Sequence[tuple[str, str]]) -> Library:
        library = Library(models.BPE(ids, merges, ignore_merges=self._whole_words))
        library.pre_tokenizer = self._cut
        return library

    def piece(self, text: str) -> bytes:
        """The bytes a token's text stands for; a letter outside the alphabet stands for itself."""
        return b"".join(_BYTES.get(letter) or letter.encode() for letter in text)


class TextBPE:
    """Merges over the text itself; only line breaks separate words."""

    def __init__(self, vocabulary: Vocabulary, library: Library) -> None:
        """vocabulary: its tokens are not looked at. library: of `tables`."""
        self._library = library
        self.texts = _Texts(library, vocabulary)
        self._library.normalizer = normalizers.Replace(" ", _SPACE)

    @staticmethod
    def tables(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> Library:
        """Tokens and merges in the library's memory; `vocabulary.ids` are changed."""
        return Library(_model(vocabulary, metadata, byte_fallback=True))

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        ids: list[int] = []
        for word in re.findall(r"[^\n]+|\n+", text):
            # Runs of line breaks are tokens of their own that no merge makes.
            whole = self._library.token_to_id(word) if word[0] == "\n" else None
            ids += self._library.encode(word, add_special_tokens=False).ids if whole is None else [whole]
        return ids

    def piece(self, text: str) -> bytes:
        return text.replace(_SPACE, " ").encode()


class _Texts(Sequence[str]):
    """Tokens by id out of the library's own table, so that Python's list of them need not stay in memory."""

    def __init__(self, library: Library, vocabulary: Vocabulary) -> None:
        self._text = library.id_to_token
        self._size = len(vocabulary)
        self._specials = {special.id: special.text for special in vocabulary.specials}

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[place] for place in range(self._size)[index]]
        found = self._specials.get(index)
        found = self._text(index) if found is None and index >= 0 else found
        if found is None:
            raise IndexError(index)
        return found


def _alphabet() -> dict[str, bytes]:
    """GPT-2's letters for the 256 bytes: printable ones are themselves, the others follow from U+0100 on, in order.

    Source: Radford et al. 2019, the code published with it (encoder.py, bytes_to_unicode).
    """
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in plain]
    letters = {chr(byte): bytes([byte]) for byte in plain}
    return letters | {chr(0x100 + place): bytes([byte]) for place, byte in enumerate(others)}


_BYTES = _alphabet()


def _model(vocabulary: Vocabulary, metadata: Mapping[str, Any], **options: bool) -> models.BPE:
    ids = vocabulary.ids
    controls = set(vocabulary.controls())
    for text in controls:
        del ids[text]
    lines = metadata.get(_MERGES)
    if not isinstance(lines, Sequence) or isinstance(lines, (str, bytes)):
        raise TokenizerError(f"{_MERGES}: absent; this kind of vocabulary needs a list of texts")
    pairs = _Pairs.of(lines, ids)
    if pairs is not None:
        with suppress(Exception):  # a half that is no token: looked for below
            return models.BPE(ids, pairs, **options)
    return models.BPE(ids, _merges(lines, ids, controls), **options)


class _Pairs(Sequence[tuple[str, str]]):
    """The halves of merges as the library wants them, a few at a time: a list would hold two texts and a tuple for each
    of them, and set off the collection of garbage over and over.
    """

    def __init__(self, text: str, count: int) -> None:
        self._text, self._count = text, count

    @classmethod
    def of(cls, lines: Sequence[Any], tokens: Container[str]) -> _Pairs | None:
        """None unless every line is two texts with the only space of the line between, and the longest makes a token.

        The library looks for all others itself, but does not survive a merge that is longer than every token.
        """
        try:
            text = lines.joined(BETWEEN) if isinstance(lines, jf.gguf.Strings) else BETWEEN.join(lines)
            raw = text.encode()
        except (TypeError, UnicodeEncodeError):
            return None
        cuts = cuts_of_pairs(raw, len(lines))
        if cuts is None:
            return None
        _, ends = cuts
        longest = int(np.diff(ends, prepend=-1).argmax())
        start = int(ends[longest - 1]) + 1 if longest else 0
        merged = raw[start : ends[longest]].decode().replace(" ", "")
        return cls(text, len(lines)) if merged in tokens else None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> tuple[str, str]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[str, str]]: ...
    def __getitem__(self, index: int | slice) -> tuple[str, str] | list[tuple[str, str]]:
        return list(self)[index]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return chain.from_iterable(zip(halves[0::2], halves[1::2], strict=True) for halves in self._halves())

    def _halves(self) -> Iterator[list[str]]:
        """Left, right, left, right ..., some merges at a time."""
        start = 0
        while start < len(self._text):
            end = self._text.find(BETWEEN, start + _PIECE)
            end = len(self._text) if end < 0 else end
            yield self._text[start:end].replace(BETWEEN, " ").split(" ")
            start = end + 1


def _merges(lines: Sequence[Any], ids: Mapping[str, int], controls: set[str]) -> list[tuple[str, str]]:
    """The merges in their order, without those into or out of control tokens, each checked."""
    own = {text: text for text in ids}  # halves of merges are tokens: one text in memory serves both
    pairs = []
    for place, line in enumerate(lines):
        # The first letter may itself be a space, so the one that separates is looked for behind it.
        cut = line.find(" ", 1) if isinstance(line, str) else -1
        if cut < 0:
            raise TokenizerError(f"{_MERGES}[{place}] is {shown(line)}: must be two texts and a space between")
        left, right = own.get(line[:cut]), own.get(line[cut + 1 :])
        if left is not None and right is not None and left + right in own:
            pairs.append((left, right))
        else:
            _check_left_out(place, line[:cut], line[cut + 1 :], own, controls)
    return pairs


def _check_left_out(place: int, left: str, right: str, tokens: Mapping[str, str], controls: set[str]) -> None:
    """Raises unless a merge concerns a control token, which is no part of plain text."""
    for text in (left, right, left + right):
        if text not in tokens and text not in controls:
            message = f"joins {shown(left)} and {shown(right)} (number {place}): {shown(text)} must be a token"
            raise TokenizerError(f"{_MERGES} {message}")
