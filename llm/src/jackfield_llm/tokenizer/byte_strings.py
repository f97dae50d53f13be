r"""Vocabularies of byte strings (RWKV): from the left, always the longest token.

Tokens may be any bytes, also parts of a character. A GGUF file, whose texts are UTF-8, writes them as Python writes
bytes: "\n", "\xe4\xb8".
Source: escapes and the choice of tokens as in llama.cpp (build 11434). It also lets the names of control and unused
tokens come out of plain text; here they don't.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from jackfield_llm.errors import TokenizerError, shown
from jackfield_llm.tokenizer.vocabulary import Role, Vocabulary

__all__ = ["ByteStrings"]

_USUAL = re.compile(r"""(?:[ -\[\]-~]|\\(?:x[0-9a-f]{2}|[tnr\\'"]))*""")
_ESCAPE = re.compile(rb"\\(?:x([0-9A-Fa-f]{2})|(.?))", re.DOTALL)
_LETTERS = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


class ByteStrings:
    """The longest token from the left, again and again; a byte that begins none is the unknown token."""

    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> None:
        self.texts = vocabulary.tokens
        self._unknown = vocabulary.unknown
        hidden = set(vocabulary.controls())
        hidden.update(vocabulary.tokens[token] for token in (vocabulary.roles == Role.UNUSED).nonzero()[0])
        self._ids = {_bytes_of(text): token for text, token in vocabulary.ids.items() if text not in hidden}
        self._lengths = _lengths(self._ids)

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        data = text.encode()
        ids, at = [], 0
        while at < len(data):
            token, length = self._longest(data, at)
            ids.append(token)
            at += length
        return ids

    def piece(self, text: str) -> bytes:
        return _bytes_of(text)

    def _longest(self, data: bytes, at: int) -> tuple[int, int]:
        """A token and its bytes."""
        for length in self._lengths.get(data[at : at + 2], ()):
            token = self._ids.get(data[at : at + length])
            if token is not None:
                return token, length
        token = self._ids.get(data[at : at + 1], self._unknown)
        if token is None:
            raise TokenizerError(
                f"[encode] byte 0x{data[at]:02x} begins no token: the vocabulary must have it or an unknown token"
            )
        return token, 1


def _lengths(strings: Mapping[bytes, int]) -> dict[bytes, list[int]]:
    """By the first two bytes, the lengths that strings beginning so have: the longest first."""
    found: dict[bytes, set[int]] = defaultdict(set)
    for string in strings:
        if len(string) > 1:
            found[string[:2]].add(len(string))
    return {start: sorted(lengths, reverse=True) for start, lengths in found.items()}


def _bytes_of(text: str) -> bytes:
    """What a token's text stands for."""
    if "\\" not in text:
        return text.encode()
    if _USUAL.fullmatch(text):  # as Python writes them, and five times as fast as one by one
        return text.encode().decode("unicode_escape").encode("latin-1")

    def byte(found: re.Match[bytes]) -> bytes:
        if found[1]:
            return bytes([int(found[1], 16)])
        if found[2] in {b"", b"x"}:
            raise TokenizerError(
                f"tokenizer.ggml.tokens holds {shown(text)}: a backslash must come before a letter, a sign or xHH"
            )
        return _LETTERS.get(found[2], found[2])

    return _ESCAPE.sub(byte, text.encode())
