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
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

import jackfield as jf

__all__ = ["BETWEEN", "LISTS", "Lookup", "cuts_of_pairs"]

LISTS = ("tokenizer.ggml.tokens", "tokenizer.ggml.merges")

Hashes = NDArray[np.uint64]
Places = NDArray[np.int64]

BETWEEN = "\x1f"  # two texts: a letter that is in none, where a line break may be
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

    def __init__(self, texts: _Texts, merges: _Merges) -> None:
        self.texts, self.merges = texts, merges
        self._table = _Table(_hashes(texts.raw, texts.starts, texts.ends))

    @classmethod
    def of(cls, tokens: object, merges: object) -> Lookup | None:
        """None unless both are lists of a file, no token is empty, long or there twice, every merge is two tokens with
        the only space of the line between, which make a third, and none is there twice.
        """
        if not (isinstance(tokens, jf.gguf.Strings) and isinstance(merges, jf.gguf.Strings) and len(merges)):
            return None
        texts, lines = _Texts.of(tokens), _Merges.of(merges)
        if texts is None or lines is None:
            return None
        found = cls(texts, lines[0])
        return found if found._is_clean(lines[1]) else None

    def _is_clean(self, needed: Hashes) -> bool:
        """Whether nothing is there twice, and each of these is a token."""
        return self._table.is_unique and self.merges.table.is_unique and self._table.has_all(needed)

    def __reduce__(self) -> tuple[type[Lookup], tuple[_Texts, _Merges]]:
        """The hash is another in another process."""
        return Lookup, (self.texts, self.merges)

    def __getitem__(self, text: str) -> int:
        ids = self._ids([text], [_hash(text)])
        if text not in ids:
            raise KeyError(text)
        return ids[text]

    def __contains__(self, text: object) -> bool:
        return isinstance(text, str) and text in self._ids([text], [_hash(text)])

    def _ids(self, texts: Sequence[str], hashes: Sequence[int]) -> dict[str, int]:
        """Those of the texts that are tokens."""
        return {texts[i]: token for i, token in self._table.find(hashes) if self.texts[token] == texts[i]}

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


class _Table:
    """Places in a list by hash."""

    def __init__(self, hashes: Hashes) -> None:
        self._order = np.argsort(hashes).astype(np.int32)
        self._sorted = hashes[self._order]

    @property
    def is_unique(self) -> bool:
        return not (self._sorted[1:] == self._sorted[:-1]).any()

    def has_all(self, wanted: Hashes) -> bool:
        wanted = np.sort(wanted)  # in their order the search stays in the cache
        return bool((self._sorted[self._near(wanted)] == wanted).all())

    def find(self, hashes: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Of those that are there: which of `hashes` it is, and its place."""
        wanted = np.array(hashes, np.uint64)
        near = self._near(wanted)
        found = np.flatnonzero(self._sorted[near] == wanted)
        return zip(found.tolist(), self._order[near[found]].tolist(), strict=True)

    def _near(self, wanted: Hashes) -> Places:
        return np.minimum(np.searchsorted(self._sorted, wanted), len(self._sorted) - 1)


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
        ends = np.append(np.flatnonzero(np.frombuffer(raw, np.uint8) == ord(BETWEEN)), len(raw))
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

    def __init__(self, raw: bytes, spaces: NDArray[Any], ends: NDArray[Any], pairs: Hashes | None = None) -> None:
        """pairs: of `_pair_hashes`, where somebody has them."""
        self._raw, self._spaces, self._ends = raw, spaces.astype(np.int32), ends.astype(np.int32)
        self._starts = np.append(np.int32(0), self._ends[:-1] + 1).astype(np.int32)
        self.table = _Table(_pair_hashes(raw, spaces, ends)[0] if pairs is None else pairs)

    @classmethod
    def of(cls, strings: jf.gguf.Strings) -> tuple[_Merges, Hashes] | None:
        """With the hashes of all that must be tokens: halves, and what they make.

        None where a line has no space, more than one, or one at an end, or is long or no UTF-8.
        """
        raw = _joined(strings)
        cuts = None if raw is None else cuts_of_pairs(raw, len(strings))
        if raw is None or cuts is None:
            return None
        spaces, ends = cuts
        starts = np.append(0, ends[:-1] + 1)
        sizes = np.stack([spaces - starts, ends - spaces - 1])
        if sizes.min() < 1 or sizes.max() > _LONGEST:
            return None
        pairs, needed = _pair_hashes(raw, spaces, ends)
        return cls(raw, spaces, ends, pairs), needed

    def __reduce__(self) -> tuple[type[_Merges], tuple[bytes, NDArray[Any], NDArray[Any]]]:
        return _Merges, (self._raw, self._spaces, self._ends)

    def among(self, pairs: Sequence[tuple[str, str]], hashes: Mapping[str, int]) -> list[tuple[str, str]]:
        """Those of the pairs that are merges, first to last."""
        wanted = [(hashes[left] * _PAIR + hashes[right]) & _MASK for left, right in pairs]
        known = sorted((place, pairs[i]) for i, place in self.table.find(wanted))
        return [pair for place, pair in known if self._line(place) == " ".join(pair)]

    @property
    def joined(self) -> str:
        """All of them, with what goes between."""
        return self._raw.decode()

    def __len__(self) -> int:
        return len(self._ends)

    def _line(self, place: int) -> str:
        return self._raw[self._starts[place] : self._ends[place]].decode()


def cuts_of_pairs(raw: bytes, count: int) -> tuple[Places, Places] | None:
    """Of so many lines with BETWEEN between: where each has its space, and where it ends. None unless each has one."""
    letters = np.frombuffer(raw, np.uint8)
    marks = np.flatnonzero((letters == ord(" ")) | (letters == ord(BETWEEN)))
    if len(marks) != 2 * count - 1:
        return None
    if (letters[marks[0::2]] != ord(" ")).any() or (letters[marks[1::2]] != ord(BETWEEN)).any():
        return None
    return marks[0::2], np.append(marks[1::2], len(raw))


def _pair_hashes(raw: bytes, spaces: NDArray[Any], ends: NDArray[Any]) -> tuple[Hashes, Hashes]:
    """Of each pair, u64 [pairs]; of left halves, right halves and what each pair makes, u64 [3 * pairs]."""
    starts = np.append(0, ends[:-1] + 1)
    halves = _hashes(raw, np.concatenate([starts, spaces + 1]), np.concatenate([spaces, ends]))
    left, right = halves.reshape(2, -1)
    made = left * _powers(_LONGEST)[ends - spaces - 1] + right
    return left * np.uint64(_PAIR) + right, np.concatenate([halves, made])


def _joined(strings: jf.gguf.Strings) -> bytes | None:
    try:
        return strings.joined(BETWEEN).encode()
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
