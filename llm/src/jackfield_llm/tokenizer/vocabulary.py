"""The vocabulary of a GGUF file: its tokens, what each is for, the ids with a meaning; checked before anything uses it.

Source: keys and token types as in the GGUF specification of ggml; the rules for end tokens and for tokens that only
look special were read in llama.cpp (build 11434) and checked by its vocabulary tests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from jackfield_llm.errors import TokenizerError, shown

__all__ = ["Role", "Vocabulary"]


class Role(IntEnum):
    """What a token is for; the numbers are those of `tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class _Defaults:
    """Ids and habits of a kind of vocabulary where the file is silent."""

    bos: int | None
    eos: int | None
    unknown: int | None = None
    separator: int | None = None
    add_bos: bool = False
    add_space_prefix: bool = False


_DEFAULTS = {
    "gpt2": _Defaults(bos=None, eos=None),  # llama.cpp says 11, which is a Falcon's; in other files 11 is a comma
    "gemma4": _Defaults(bos=None, eos=None, add_bos=True),
    "llama": _Defaults(bos=1, eos=2, unknown=0, add_bos=True, add_space_prefix=True),
    "bert": _Defaults(bos=101, eos=None, unknown=100, separator=102, add_bos=True),
    "rwkv": _Defaults(bos=None, eos=None),
}

_PREFIX = "tokenizer.ggml."
# U+FF5C and U+2581 are what DeepSeek writes for "|" and "_", U+2581 is SentencePiece's space.
_ENDS = frozenset(
    """
    <|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> </s> <|eom_id|>
    <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response> [e~[
    <\uff5cend\u2581of\u2581sentence\uff5c>
    """.split()  # noqa: SIM905 - a table is easier to compare with its source
)
"""Texts of tokens that end an answer, whatever the file says of them."""

_FILL_ENDS = {
    "fim_pad_token_id": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep_token_id": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep_token_id": ("<|file_sep|>",),
}
"""Tokens of fill-in-the-middle models that end an answer: the key of the id, else the texts it may have."""

_FILL = frozenset(
    """
    <|fim_prefix|> <fim-prefix> <fim_prefix> <PRE> \u2581<PRE> <|code_prefix|> <|prefix|> <\uff5cfim\u2581begin\uff5c>
    <|fim_suffix|> <fim-suffix> <fim_suffix> <SUF> \u2581<SUF> <|code_suffix|> <|suffix|> <\uff5cfim\u2581hole\uff5c>
    <|fim_middle|> <fim-middle> <fim_middle> <MID> \u2581<MID> <|code_middle|> <|middle|> <\uff5cfim\u2581end\uff5c>
    """.split()  # noqa: SIM905 - a table is easier to compare with its source
)
"""Texts of tokens that are control tokens, whatever the file says of them."""

# A converter that forgot to mark these as control would let a user's text speak for the template.
_LOOKS_SPECIAL = re.compile("<[|\uff5c].*[|\uff5c]>")


@dataclass(frozen=True)
class Special:
    """A token that is found in text as a whole, before anything is split.

    on_request: only where special tokens are asked for; the others (user-defined ones) are always found.
    ordinary: the file calls it ordinary text, so it may come out of plain text too (</s> is an HTML tag in Qwen's).
    strip_left, strip_right: white space beside it belongs to it.
    """

    id: int
    text: str
    on_request: bool
    ordinary: bool = False
    strip_left: bool = False
    strip_right: bool = False


class Known(Protocol):
    """Tokens by text, and `texts` by id."""

    @property
    def texts(self) -> Sequence[str]: ...
    def __contains__(self, text: object, /) -> bool: ...
    def __getitem__(self, text: str, /) -> int: ...


@dataclass(frozen=True)
class Vocabulary:
    """What a file says of its tokens.

    tokens: texts by id. ids: by text, for the segmenter to change and keep; empty afterwards.
    roles: [vocabulary] of `Role`. scores: [vocabulary] f32, or None.
    specials: longest first, the order in which they are looked for. ends: ids that end an answer.
    """

    kind: str
    pre: str | None
    tokens: Sequence[str]
    ids: dict[str, int]
    roles: NDArray[np.int8]
    scores: NDArray[np.float32] | None
    specials: tuple[Special, ...]
    bos: int | None
    eos: int | None
    unknown: int | None
    separator: int | None
    ends: frozenset[int]
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    lowercase: bool
    strip_accents: bool

    @classmethod
    def from_metadata(
        cls,
        metadata: Mapping[str, Any],
        kinds: Sequence[str],
        *,
        add_bos: bool = False,
        known: Known | None = None,
    ) -> Vocabulary:
        """Reads and checks; `kinds` are the values of `tokenizer.ggml.model` that somebody can serve.

        add_bos: what the pre-tokenizer wants where the file does not say. known: the tokens by id and by text, where
        somebody has read and checked them.
        Raises: TokenizerError.
        """
        kind = _text(metadata, "model")
        if kind not in kinds:
            raise TokenizerError(f"tokenizer.ggml.model is {shown(kind)}: known ones are {', '.join(sorted(kinds))}")
        defaults = _DEFAULTS[kind]
        tokens, ids = (known.texts, {}) if known is not None else _tokens(metadata)
        roles = _numbers(metadata, "token_type", len(tokens), np.int8)
        roles = np.full(len(tokens), Role.NORMAL, np.int8) if roles is None else roles
        index = _Index(metadata, len(tokens))
        declared = roles.copy()
        by_role = _special_ids(tokens, ids if known is None else known, roles)
        lowercase = _flag(metadata, "normalizer.lowercase", default=True)
        bos, eos = index.get("bos_token_id", defaults.bos), index.get("eos_token_id", defaults.eos)
        ends = _ends(tokens, by_role, roles, index, eos)
        return cls(
            kind=kind,
            pre=_pre(metadata),
            tokens=tokens,
            ids=ids,
            roles=roles,
            scores=_numbers(metadata, "scores", len(tokens), np.float32),
            specials=_specials(metadata, by_role, roles, declared),
            bos=bos,
            eos=eos,
            unknown=index.get("unknown_token_id", defaults.unknown),
            separator=index.get("seperator_token_id", defaults.separator),
            ends=ends,
            add_bos=_flag(metadata, "add_bos_token", default=defaults.add_bos or add_bos),
            add_eos=_flag(metadata, "add_eos_token", default=False),
            add_space_prefix=_flag(metadata, "add_space_prefix", default=defaults.add_space_prefix),
            lowercase=lowercase,
            strip_accents=_flag(metadata, "normalizer.strip_accents", default=lowercase),
        )

    def __len__(self) -> int:
        return len(self.roles)

    def controls(self) -> list[str]:
        """Texts of tokens that must not come out of plain text."""
        return [special.text for special in self.specials if special.on_request and not special.ordinary]

    def is_special(self, token: int) -> bool:
        """Whether the token never stands for text that somebody wrote."""
        return self.roles[token] in (Role.CONTROL, Role.UNKNOWN)


class _Index:
    """Ids that the metadata names."""

    def __init__(self, metadata: Mapping[str, Any], size: int) -> None:
        self._metadata = metadata
        self._size = size

    def get(self, key: str, default: int | None = None) -> int | None:
        found = self._metadata.get(_PREFIX + key)
        if found is None:
            return default if default is not None and default < self._size else None
        if isinstance(found, bool) or not isinstance(found, (int, np.integer)) or not 0 <= found < self._size:
            raise TokenizerError(f"{_PREFIX}{key} is {shown(found)}: must be an id below {self._size}")
        return int(found)


def _text(metadata: Mapping[str, Any], key: str) -> str:
    found = metadata.get(_PREFIX + key)
    if not isinstance(found, str):
        raise TokenizerError(f"{_PREFIX}{key} is {'absent' if found is None else shown(found)}: must be a text")
    return found


def _pre(metadata: Mapping[str, Any]) -> str | None:
    return None if metadata.get(_PREFIX + "pre") is None else _text(metadata, "pre")


def _flag(metadata: Mapping[str, Any], key: str, *, default: bool) -> bool:
    found = metadata.get(_PREFIX + key, default)
    if not isinstance(found, (bool, np.bool_)):
        raise TokenizerError(f"{_PREFIX}{key} is {shown(found)}: must be true or false")
    return bool(found)


def _tokens(metadata: Mapping[str, Any]) -> tuple[list[str], dict[str, int]]:
    """Texts by id, and ids by text."""
    found = metadata.get(_PREFIX + "tokens")
    if not isinstance(found, Sequence) or isinstance(found, (str, bytes)) or not len(found):
        raise TokenizerError("tokenizer.ggml.tokens: must be a list of texts that is not empty")
    tokens = list(found)
    if set(map(type, tokens)) == {str}:
        ids = _numbered(tokens)
        if len(ids) == len(tokens) and "" not in ids:
            return tokens, ids
    tokens = _repaired(tokens)
    return tokens, _numbered(tokens)


def _numbered(tokens: Sequence[str]) -> dict[str, int]:
    return dict(zip(tokens, range(len(tokens)), strict=True))


def _repaired(tokens: list[Any]) -> list[str]:
    """Gives empty tokens the name llama.cpp gives them; refuses what stands twice or is no text."""
    seen: dict[str, int] = {}
    for place, token in enumerate(tokens):
        if not isinstance(token, str):
            raise TokenizerError(f"tokenizer.ggml.tokens[{place}] is {shown(token)}: must be a text")
        text = token or f"[EMPTY_{place}]"
        if text in seen:
            places = f"{seen[text]} and {place}"
            raise TokenizerError(f"tokenizer.ggml.tokens holds {shown(text)} twice, at {places}: must be unique")
        seen[text] = place
    return list(seen)


def _numbers(metadata: Mapping[str, Any], key: str, size: int, dtype: type[np.generic]) -> NDArray[Any] | None:
    found = metadata.get(_PREFIX + key)
    if found is None:
        return None
    if not isinstance(found, Sequence) or isinstance(found, (str, bytes)):
        raise TokenizerError(f"{_PREFIX}{key}: must be a list of numbers")
    try:
        numbers = np.asarray(found)
    except (TypeError, ValueError) as e:
        raise TokenizerError(f"{_PREFIX}{key}: must be a list of numbers") from e
    kinds = "iu" if dtype is np.int8 else "iuf"
    if numbers.ndim != 1 or numbers.dtype.kind not in kinds or len(numbers) < size:
        raise TokenizerError(f"{_PREFIX}{key} holds {len(found)} entries: must be {size} numbers, one a token")
    numbers = numbers[:size]
    if dtype is np.int8:
        known = (numbers >= 0) & (numbers <= max(Role))
        return np.where(known, numbers, Role.UNDEFINED).astype(np.int8)
    if np.isnan(numbers).any():
        raise TokenizerError(f"{_PREFIX}{key}[{int(np.isnan(numbers).argmax())}] is nan: must be a number")
    return numbers.astype(dtype)


def _special_ids(tokens: Sequence[str], ids: Known | dict[str, int], roles: NDArray[np.int8]) -> dict[str, int]:
    """Texts and ids of tokens that are not ordinary text; marks those that look or are known to be control tokens."""
    found = {}
    wanted = _ENDS | _FILL | {text for texts in _FILL_ENDS.values() for text in texts}
    for token in np.flatnonzero(np.isin(roles, (Role.CONTROL, Role.UNKNOWN, Role.USER_DEFINED))).tolist():
        found[tokens[token]] = token
        if roles[token] == Role.USER_DEFINED and _LOOKS_SPECIAL.fullmatch(tokens[token]):
            roles[token] = Role.CONTROL
    for token in sorted(ids[text] for text in wanted if text in ids):
        found[tokens[token]] = token
        roles[token] = Role.CONTROL
    return found


def _ends(
    tokens: Sequence[str], by_role: Mapping[str, int], roles: NDArray[np.int8], index: _Index, eos: int | None
) -> frozenset[int]:
    ends = {by_role[text] for text in _ENDS if text in by_role}
    for key, texts in _FILL_ENDS.items():
        named = index.get(key, next((by_role[text] for text in texts if text in by_role), None))
        ends.add(-1 if named is None else named)
    ends.update(-1 if token is None else token for token in (eos, index.get("eot_token_id"), index.get("eom_token_id")))
    ends.discard(-1)
    found = {tokens[token]: token for token in ends}
    # Two dialects use a text of the list for something else: there it ends a part of an answer, or is plain text.
    calls = "<|call|>" in found or "<|calls|>" in found
    if calls and "<|end|>" in found and ("<|return|>" in found or "<|flush|>" in found):
        ends.discard(found["<|end|>"])
    if "</s>" in found and ("<|tool_response>" in found or "<|plamo:eos|>" in found):
        ends.discard(found["</s>"])
        roles[found["</s>"]] = Role.NORMAL
    return frozenset(ends)


def _specials(
    metadata: Mapping[str, Any], by_role: Mapping[str, int], roles: NDArray[np.int8], declared: NDArray[np.int8]
) -> tuple[Special, ...]:
    """Longest first; so is the order in llama.cpp, which measures in bytes."""
    name, pre = str(metadata.get("general.name", "")).lower(), str(metadata.get(_PREFIX + "pre", ""))
    phi3 = "phi-3" in name or "phi3" in name
    lefts = {"<mask>"} if any(jina in pre for jina in ("jina-v2-de", "jina-v2-es", "jina-v2-code")) else set()
    if "modern-bert" in name:
        lefts = {"[MASK]"}
    found = [
        Special(
            id=token,
            text=text,
            on_request=roles[token] != Role.USER_DEFINED,
            ordinary=declared[token] == Role.NORMAL,
            strip_left=text in lefts,
            strip_right=phi3 and text not in ("<unk>", "<s>", "<|endoftext|>"),
        )
        for text, token in by_role.items()
        if roles[token] in (Role.CONTROL, Role.UNKNOWN, Role.USER_DEFINED)
    ]
    return tuple(sorted(found, key=lambda special: len(special.text.encode()), reverse=True))
