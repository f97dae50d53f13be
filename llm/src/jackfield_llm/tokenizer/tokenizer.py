"""The tokenizer of a model: finds special tokens, has the text between them cut, and turns ids back to text."""

from __future__ import annotations

import logging
import operator
import pickle
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from tokenizers import Tokenizer as Library

from jackfield_llm.errors import TokenizerError
from jackfield_llm.tokenizer.bpe import ByteBPE, TextBPE, pre_tokenizer
from jackfield_llm.tokenizer.byte_strings import ByteStrings
from jackfield_llm.tokenizer.lookup import LISTS, Lookup
from jackfield_llm.tokenizer.sentencepiece import SentencePiece
from jackfield_llm.tokenizer.stream import Stream
from jackfield_llm.tokenizer.vocabulary import Role, Special, Vocabulary
from jackfield_llm.tokenizer.wordpiece import WordPiece

__all__ = ["Tokenizer"]

_log = logging.getLogger("jackfield")
_SURROGATES = re.compile("[\ud800-\udfff]")


class Segmenter(Protocol):
    """What a kind of vocabulary does with text that holds no special tokens."""

    @property
    def texts(self) -> Sequence[str]:
        """The tokens by id."""
        ...

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        """Ids of a text; `after_special`: it is the first, or follows a special token."""
        ...

    def piece(self, text: str) -> bytes:
        """Bytes that an ordinary token's text stands for."""
        ...


_BPE: dict[str, type[ByteBPE | TextBPE]] = {"gpt2": ByteBPE, "gemma4": TextBPE}
_OTHERS: dict[str, type[SentencePiece | WordPiece | ByteStrings]] = {
    "llama": SentencePiece,
    "bert": WordPiece,
    "rwkv": ByteStrings,
}
_KINDS = (*_BPE, *_OTHERS)
"""Values of `tokenizer.ggml.model`."""


class Tokenizer:
    """Text to ids and back, as the model's file says."""

    def __init__(self, vocabulary: Vocabulary, segmenter: Segmenter) -> None:
        self._vocabulary = vocabulary
        self._segmenter = segmenter

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """From the metadata of a GGUF file.

        Raises: TokenizerError where the kind of vocabulary or its pre-tokenizer is unknown, or the lists contradict
        each other.
        """
        kind = metadata.get("tokenizer.ggml.model")
        lookup = Lookup.of(*map(metadata.get, LISTS)) if kind == "gpt2" else None
        if lookup is not None:
            known = Vocabulary.from_metadata(metadata, _KINDS, add_bos=_adds_bos(metadata), known=lookup)
            return cls.of(known, ByteBPE(known, lookup))
        if isinstance(kind, str) and kind in _BPE:
            pickled, library = _tables(_BPE[kind], metadata)
            small: Vocabulary = pickle.loads(pickled)  # noqa: S301 - its own pickle
            return cls.of(small, _BPE[kind](small, library))
        vocabulary = Vocabulary.from_metadata(metadata, _KINDS)
        return cls.of(vocabulary, _OTHERS[vocabulary.kind](vocabulary, metadata))

    @classmethod
    def of(cls, vocabulary: Vocabulary, segmenter: Segmenter) -> Tokenizer:
        """The segmenter keeps the texts, in its own way."""
        return cls(replace(vocabulary, tokens=segmenter.texts, ids={}), segmenter)

    @property
    def vocab_size(self) -> int:
        return len(self._vocabulary)

    @property
    def bos_id(self) -> int | None:
        """The token a text begins with, or None."""
        return self._vocabulary.bos

    @property
    def eos_id(self) -> int | None:
        """The token a text ends with, or None; `eos_ids` are all that end an answer."""
        return self._vocabulary.eos

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every token that ends an answer."""
        return self._vocabulary.ends

    @property
    def adds_bos(self) -> bool:
        """Whether the file wants `bos_id` in front of a text."""
        return self._vocabulary.add_bos

    @property
    def control_texts(self) -> tuple[str, ...]:
        """Texts that become one special token when `encode` is told to look for them."""
        return tuple(special.text for special in self._vocabulary.specials if special.on_request)

    def encode(self, text: str, *, special: bool = False, add_special: bool = False) -> list[int]:
        """Ids of a text.

        special: texts of special tokens become these tokens; otherwise they are text like any other.
        add_special: puts the tokens for begin and end round it that the file asks for.
        """
        ids = self.join(self.split(text, special=special))
        return self._framed(ids) if add_special else ids

    def split(self, text: str, *, special: bool) -> list[int | str]:
        """The text, with the special tokens found in it as ids and what lies between as texts, none of them empty.

        Longer tokens are looked for first, in the whole text, so that none is found inside another.
        """
        text = _SURROGATES.sub("\ufffd", text)
        parts: list[int | str] = [text] if text else []
        for token in self._vocabulary.specials:
            if token.text in text and (special or not token.on_request):
                parts = [part for whole in parts for part in _cut(whole, token)]
        return parts

    def join(self, parts: Iterable[int | str]) -> list[int]:
        """Ids of what `split` gave, or of parts put together otherwise; texts in it are never special."""
        ids: list[int] = []
        after_special = True
        for part in parts:
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._segmenter.encode(part, after_special=after_special)
            after_special = isinstance(part, int)
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Text of ids; bytes that are no UTF-8 give U+FFFD.

        skip_special: leaves special tokens out instead of writing their names.
        Raises: TokenizerError for an id outside the vocabulary.
        """
        try:
            whole = [operator.index(token) for token in ids]
        except TypeError:
            raise TokenizerError(f"ids are {ids!r:.60}: must be a list of whole numbers") from None
        kept = [token for token in whole if not (skip_special and self._is_special(token))]
        text = b"".join(self.token_bytes(token) for token in kept).decode("utf-8", "replace")
        added = self._vocabulary.add_space_prefix and kept and self._vocabulary.roles[kept[0]] == Role.NORMAL
        return text.removeprefix(" ") if added else text

    def stream(self, *, skip_special: bool = True) -> Stream:
        """A decoder for tokens that come one by one; unlike `decode` it keeps a space in front."""
        if not skip_special:
            return Stream(self.token_bytes)
        return Stream(lambda token: b"" if self._is_special(token) else self.token_bytes(token))

    def token_bytes(self, token: int) -> bytes:
        """Bytes a token stands for: a special one for its name, an unused one for nothing.

        Raises: TokenizerError for an id outside the vocabulary.
        """
        text, role = self._text(token), self._vocabulary.roles[token]
        if role == Role.NORMAL:
            return self._segmenter.piece(text)
        if role == Role.BYTE:
            return _byte(text)
        return text.encode() if role in (Role.CONTROL, Role.UNKNOWN, Role.USER_DEFINED) else b""

    def _is_special(self, token: int) -> bool:
        self._text(token)
        return self._vocabulary.is_special(token)

    def _text(self, token: int) -> str:
        if not 0 <= token < len(self._vocabulary):
            raise TokenizerError(f"[decode] token {token}: must be an id below {len(self._vocabulary)}")
        return self._vocabulary.tokens[token]

    def _framed(self, ids: Sequence[int]) -> list[int]:
        words = self._vocabulary
        if words.kind == "bert":  # both, whatever the file's flags say: no such model was made without them
            return [_known(words.bos, "bos"), *ids, _known(words.separator, "seperator")]
        first = [_known(words.bos, "bos")] if words.add_bos else []
        last = [_known(words.eos, "eos")] if words.add_eos else []
        return [*first, *ids, *last]


def _tables(kind: type[ByteBPE | TextBPE], metadata: Mapping[str, Any]) -> tuple[bytes, Library]:
    """A vocabulary without its texts, pickled, and the library's tables of them.

    When this returns nothing is left that was made between 50,000 texts: Python gives memory back by the megabyte, and
    one small object in it keeps all of that.
    """
    vocabulary = Vocabulary.from_metadata(metadata, _KINDS, add_bos=kind is ByteBPE and _adds_bos(metadata))
    library = kind.tables(vocabulary, metadata)
    return pickle.dumps(replace(vocabulary, tokens=(), ids={})), library


def _adds_bos(metadata: Mapping[str, Any]) -> bool:
    """What the pre-tokenizer wants where the file does not say."""
    pre = metadata.get("tokenizer.ggml.pre")
    if pre is None:
        _log.warning("tokenizer.ggml.pre is absent: the default is used, the tokens may not be those of the model")
    return pre_tokenizer(pre).add_bos


def _cut(part: int | str, token: Special) -> list[int | str]:
    """The part, with each occurrence of the token's text replaced by its id."""
    if isinstance(part, int) or token.text not in part:
        return [part]
    between = part.split(token.text)
    found: list[int | str] = []
    for place, text in enumerate(between):
        if token.strip_right and place > 0:
            text = text.lstrip(_WHITE)  # noqa: PLW2901 - the same text, trimmed
        if token.strip_left and place < len(between) - 1:
            text = text.rstrip(_WHITE)  # noqa: PLW2901
        found += [token.id] if place else []
        found += [text] if text else []
    return found


_WHITE = " \t\n\v\f\r"


def _known(token: int | None, name: str) -> int:
    if token is None:
        raise TokenizerError(f"tokenizer.ggml.{name}_token_id: absent, and the file asks to add this token")
    return token


def _byte(text: str) -> bytes:
    """The byte that a token such as <0x0A> names."""
    found = re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", text)
    return bytes([int(found[1], 16)]) if found else text.encode()
