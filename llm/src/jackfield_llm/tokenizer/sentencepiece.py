"""SentencePiece vocabularies of the merging kind: the two neighbours whose joint token scores highest are joined first.

The library `tokenizers` knows such vocabularies only as lists of merges. That is not the same where one token can be
made in two ways (of three spaces the left or the right two first), and the list, every way to cut every token in two,
would have to be made at each start. So the few lines stand here.

Source: the order of joins, ties included, as in llama.cpp (build 11434), checked by its vocabulary tests.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from jackfield_llm.errors import TokenizerError, shown
from jackfield_llm.tokenizer.vocabulary import Role, Vocabulary

__all__ = ["SentencePiece"]

_SPACE = "▁"
_REMEMBERED_WORDS = 8192


class SentencePiece:
    """Joins by score; what is no token in the end is written as bytes, or as the unknown token."""

    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> None:
        if vocabulary.scores is None:
            raise TokenizerError("tokenizer.ggml.scores: absent; this kind of vocabulary needs a number for each token")
        self.texts = vocabulary.tokens
        self._ids = vocabulary.ids
        for text in vocabulary.controls():
            del self._ids[text]
        self._scores = vocabulary.scores
        self._add_space = vocabulary.add_space_prefix
        self._bytes = _byte_tokens(vocabulary)
        self._unknown = vocabulary.unknown
        # Where no token has a space behind a letter, no join crosses from a word to the next: words can be remembered.
        crossing = re.search(f"[^{_SPACE}\0]{_SPACE}", "\0".join(self._ids))
        self._words = None if crossing else re.compile(f"{_SPACE}*[^{_SPACE}]+|{_SPACE}+")
        self._remembered = lru_cache(_REMEMBERED_WORDS)(self._joined)

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        if self._add_space and after_special:
            text = " " + text
        text = text.replace(" ", _SPACE)
        if self._words is None:
            return list(self._joined(text))
        return [token for word in self._words.findall(text) for token in self._remembered(word)]

    def piece(self, text: str) -> bytes:
        return text.replace(_SPACE, " ").encode()

    def _joined(self, text: str) -> tuple[int, ...]:
        """Ids of the text after all joins.

        A symbol is a stretch of the text; `ends[i]` is where the one that starts at i ends, 0 where none starts any
        more. The best candidate lies on top of a heap: highest score, then leftmost. One whose stretch has changed
        since is stale.
        """
        size = len(text)
        ends = list(range(1, size + 1))
        before = list(range(-1, size - 1))
        heap: list[tuple[float, int, int, int]] = []

        def consider(left: int, right: int) -> None:
            token = self._ids.get(text[left : ends[right]])
            if token is not None:
                heapq.heappush(heap, (-self._scores[token], left, right, ends[right]))

        for right in range(1, size):
            consider(right - 1, right)
        while heap:
            _, left, right, end = heapq.heappop(heap)
            if ends[left] != right or ends[right] != end:
                continue
            ends[left], ends[right] = end, 0
            if end < size:
                before[end] = left
                consider(left, end)
            if before[left] >= 0:
                consider(before[left], left)
        return tuple(token for symbol in _stretches(text, ends) for token in self._tokens_of(symbol))

    def _tokens_of(self, symbol: str) -> list[int]:
        token = self._ids.get(symbol)
        if token is not None:
            return [token]
        if self._bytes is not None:
            return [self._bytes[byte] for byte in symbol.encode()]
        if self._unknown is None:
            raise TokenizerError(
                f"[encode] {shown(symbol)} is no token: the vocabulary must have bytes or an unknown token"
            )
        return [self._unknown]


def _stretches(text: str, ends: list[int]) -> list[str]:
    found, start = [], 0
    while start < len(text):
        found.append(text[start : ends[start]])
        start = ends[start]
    return found


def _byte_tokens(vocabulary: Vocabulary) -> list[int] | None:
    """Ids of <0x00> to <0xFF>, or None where one of them is missing."""
    found = {}
    for token in (vocabulary.roles == Role.BYTE).nonzero()[0].tolist():
        found[vocabulary.tokens[token]] = token
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    return [found[name] for name in names] if found.keys() >= set(names) else None
