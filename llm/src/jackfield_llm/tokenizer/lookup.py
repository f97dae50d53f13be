"""Tokens and merges found by hash in the texts of a file, for words that are few.

The library's tables of 50,000 tokens and as many merges take longer to fill than all else that loading a model asks of
Python. A short text needs few of them: a word's tokens are parts of it, and so are the halves of its merges. Here the
file's texts stay as they are, each with a hash; `part` picks what some words can be made of, which the library then
serves as if it were the whole vocabulary.

The hash is a polynomial of the bytes modulo 2^64 (Karp and Rabin 1987) at a random odd place, so no file can be
made to collide; what is found by it is compared as text all the same.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

import jackfield as jf

__all__ = ["LISTS", "Lookup"]

LISTS = ("tokenizer.ggml.tokens", "tokenizer.ggml.merges")

Hashes = NDArray[np.uint64]
Places = NDArray[np.int64]

_BETWEEN = b"\x1f"  # two texts: a letter that is in none
_LONGEST = 255  # bytes of a text: far below where a polynomial modulo a power of two is weak
_MASK = (1 << 64) - 1
_BASE, _PAIR = (secrets.randbits(64) | 1 for _ in range(2))


@dataclass(frozen=True)
class Part:
    """What some words can be made of: tokens, and merges in their order. parts: how many were looked up."""

    ids: dict[str, int]
    merges: list[tuple[str, str]]
    parts: int


class Lookup:
    """Ids by text; `texts` by id; `merges` in their order."""

    def __init__(self, texts: _Texts, hashes: Hashes, merges: _Merges) -> None:
        self.texts, self.merges = texts, merges
        self._order = np.argsort(hashes).astype(np.int32)
        self._sorted = hashes[self._order]

    @classmethod
    def of(cls, tokens: object, merges: object) -> Lookup | None:
        """None unless both are lists of a file, no token is empty, long or there twice, every merge is two tokens with
        the only space of the line between, which make a third, and none is there twice.
        """
        if not (isinstance(tokens, jf.gguf.Strings) and isinstance(merges, jf.gguf.Strings) and len(merges)):
            return None
        texts = _Texts.of(tokens)
        lines = _Merges.of(merges)
        if texts is None or lines is None:
            return None
        halves, made = lines.hashed()
        found = cls(texts, _hashes(texts.raw, texts.starts, texts.ends), lines)
        clean = found._is_clean(np.concatenate([halves.reshape(-1), made])) and lines.are_unique()
        return found if clean else None

    def _is_clean(self, needed: Hashes) -> bool:
        """Whether no token is there twice, and each of these is one."""
        needed = np.sort(needed)
        near = np.minimum(np.searchsorted(self._sorted, needed), len(self.texts) - 1)
        return not (self._sorted[1:] == self._sorted[:-1]).any() and bool((self._sorted[near] == needed).all())

    def __reduce__(self) -> tuple[Callable[..., Lookup], tuple[_Texts, _Merges]]:
        """The hash is another in another process."""
        return _hashed, (self.texts, self.merges)

    def __getitem__(self, text: str) -> int:
        ids = self._ids([text], [_hash(text)])
        if text not in ids:
            raise KeyError(text)
        return ids[text]

    def __contains__(self, text: object) -> bool:
        return isinstance(text, str) and text in self._ids([text], [_hash(text)])

    def _ids(self, texts: Sequence[str], hashes: Sequence[int]) -> dict[str, int]:
        """Those of the texts that are tokens."""
        wanted = np.array(hashes, np.uint64)
        near = np.minimum(np.searchsorted(self._sorted, wanted), len(self._sorted) - 1)
        found = np.flatnonzero(self._sorted[near] == wanted)
        ids = zip(found.tolist(), self._order[near[found]].tolist(), strict=True)
        return {texts[i]: token for i, token in ids if self.texts[token] == texts[i]}

    def part(self, words: Collection[str], hidden: Container[str], *, most: int) -> Part | None:
        """Of these words, in the letters of the vocabulary. hidden: tokens that no word is cut into.

        None where they have more than `most` parts, and where a letter is no token: what lies on both sides of it may
        be joined then, and that is no part of a word.
        """
        hashes: dict[str, int] = {}
        parts = 0
        for word in words:
            letters = [letter.encode() for letter in word]
            for start in range(len(letters)):
                value, end = 0, start
                for letter in letters[start : start + self.texts.longest]:
                    for byte in letter:
                        value = (value * _BASE + byte + 1) & _MASK
                    end += 1
                    hashes[word[start:end]] = value
                parts += end - start
                if parts > most:
                    return None
        ids = self._ids(list(hashes), list(hashes.values()))
        ids = {text: token for text, token in ids.items() if text not in hidden}
        if any(letter not in ids for word in words for letter in word):
            return None
        pairs = [
            (text[:cut], text[cut:])
            for text in ids
            for cut in range(1, len(text))
            if text[:cut] in ids and text[cut:] in ids
        ]
        return Part(ids, self.merges.among(pairs, hashes), parts)


class _Texts(Sequence[str]):
    """Texts behind each other, in UTF-8. longest: of one, in bytes."""

    def __init__(self, raw: bytes, ends: Places) -> None:
        self.raw, self.ends = raw, ends.astype(np.int32)
        self.starts = np.append(np.int32(0), self.ends[:-1] + 1).astype(np.int32)
        self.longest = int((self.ends - self.starts).max())

    @classmethod
    def of(cls, strings: jf.gguf.Strings) -> _Texts | None:
        """None where a text is empty, long or no UTF-8, or holds what goes between two."""
        raw = _joined(strings)
        if raw is None:
            return None
        ends = np.append(np.flatnonzero(np.frombuffer(raw, np.uint8) == _BETWEEN[0]), len(raw))
        lengths = np.diff(ends, prepend=-1) - 1
        if len(ends) != len(strings) or lengths.min() < 1 or lengths.max() > _LONGEST:
            return None
        return cls(raw, ends)

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[place] for place in range(len(self))[index]]
        return self.raw[self.starts[index] : self.ends[index]].decode()


class _Merges:
    """Pairs of texts with a space between, behind each other."""

    def __init__(self, raw: bytes, spaces: Places, ends: Places) -> None:
        self._raw, self._spaces, self._ends = raw, spaces.astype(np.int32), ends.astype(np.int32)
        self._starts = np.append(np.int32(0), self._ends[:-1] + 1).astype(np.int32)
        self._order = np.zeros(0, np.int32)
        self._sorted: Hashes = np.zeros(0, np.uint64)

    @classmethod
    def of(cls, strings: jf.gguf.Strings) -> _Merges | None:
        """None where a line has no space, more than one, or one at an end, or is long or no UTF-8."""
        raw = _joined(strings)
        if raw is None:
            return None
        letters = np.frombuffer(raw, np.uint8)
        marks = np.flatnonzero((letters == ord(" ")) | (letters == _BETWEEN[0]))
        if len(marks) != 2 * len(strings) - 1:
            return None
        spaces, ends = marks[0::2], np.append(marks[1::2], len(raw))
        alternate = (letters[spaces] == ord(" ")).all() and (letters[ends[:-1]] == _BETWEEN[0]).all()
        starts = np.append(0, ends[:-1] + 1)
        sizes = np.stack([spaces - starts, ends - spaces - 1])
        if not alternate or sizes.min() < 1 or sizes.max() > _LONGEST:
            return None
        return cls(raw, spaces, ends)

    def hashed(self) -> tuple[Hashes, Hashes]:
        """Hashes of left and right halves, u64 [2, merges], and of what each pair makes, u64 [merges]."""
        starts = np.concatenate([self._starts, self._spaces + 1])
        left, right = _hashes(self._raw, starts, np.concatenate([self._spaces, self._ends])).reshape(2, -1)
        powers = _powers(_LONGEST)
        pairs = left * np.uint64(_PAIR) + right
        self._order = np.argsort(pairs).astype(np.int32)
        self._sorted = pairs[self._order]
        return np.stack([left, right]), left * powers[self._ends - self._spaces - 1] + right

    def are_unique(self) -> bool:
        return not (self._sorted[1:] == self._sorted[:-1]).any()

    def among(self, pairs: Sequence[tuple[str, str]], hashes: Mapping[str, int]) -> list[tuple[str, str]]:
        """Those of the pairs that are merges, first to last."""
        wanted = np.array([(hashes[left] * _PAIR + hashes[right]) & _MASK for left, right in pairs], np.uint64)
        near = np.minimum(np.searchsorted(self._sorted, wanted), len(self._sorted) - 1)
        found = np.flatnonzero(self._sorted[near] == wanted)
        places = self._order[near[found]].tolist()
        known = [(place, pairs[i]) for place, i in zip(places, found.tolist(), strict=True)]
        return [pair for place, pair in sorted(known) if self._line(place) == " ".join(pair)]

    @property
    def joined(self) -> str:
        """All of them, with what goes between."""
        return self._raw.decode()

    def __len__(self) -> int:
        return len(self._ends)

    def _line(self, place: int) -> str:
        return self._raw[self._starts[place] : self._ends[place]].decode()


def _hashed(texts: _Texts, merges: _Merges) -> Lookup:
    merges.hashed()
    return Lookup(texts, _hashes(texts.raw, texts.starts, texts.ends), merges)


def _joined(strings: jf.gguf.Strings) -> bytes | None:
    try:
        return strings.joined(_BETWEEN.decode()).encode()
    except (jf.errors.GGUFError, UnicodeEncodeError):
        return None  # who reads them one by one tells which it is


def _hash(text: str) -> int:
    value = 0
    for byte in text.encode(errors="surrogatepass"):
        value = (value * _BASE + byte + 1) & _MASK
    return value


def _hashes(raw: bytes, starts: NDArray[Any], ends: NDArray[Any]) -> Hashes:
    """Of each text raw[start:end], u64: a letter of all of them after the other, the longest first."""
    letters = np.frombuffer(raw, np.uint8)
    sizes = (ends - starts).astype(np.uint8)
    order = np.argsort(_LONGEST - sizes, kind="stable")  # of bytes: by counting
    counts = np.cumsum(np.bincount(sizes)[::-1])[::-1]  # of texts with at least so many bytes
    found, at = np.zeros(len(starts), np.uint64), starts[order]
    base = np.uint64(_BASE)
    for count in counts[1:].tolist():
        found[:count] *= base
        found[:count] += letters[at[:count]] + np.uint64(1)
        at[:count] += 1
    hashes = np.empty_like(found)
    hashes[order] = found
    return hashes


def _powers(most: int) -> Hashes:
    """The base to the power of 0 to `most`."""
    return np.append(np.uint64(1), np.cumprod(np.full(most, _BASE, np.uint64)))
