"""Chat templates: messages to the ids of a prompt, without letting a message speak for the template.

A template comes with the model's file, so it is a stranger's program: it runs in a sandbox, with bounds on time and
sizes. A message is a stranger's text: what in it reads like a special token stays text. For that the first
letter of every such place is replaced, before rendering, by a character that occurs nowhere, and put back after the
special tokens of the template itself have been found. So templates may trim, cut and compare messages as they like.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError
from jinja2.exceptions import SecurityError

from jackfield_llm.errors import ChatError, shown
from jackfield_llm.sandbox import LETTERS, Sandbox
from jackfield_llm.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "Shield"]

Message = Mapping[str, Any]
"""`role` and `content`, and whatever else the template reads."""

_TRUSTED = frozenset(("role", "type"))


class ChatTemplate:
    """The template of a file, ready to render.

    source: jinja2, in the dialect of Hugging Face's `apply_chat_template`.
    names: what the template may read besides the messages, `bos_token` for instance.
    Raises: ChatError where the source is no template.
    """

    def __init__(self, source: str, names: Mapping[str, str] | None = None) -> None:
        self.source = source
        self._names = dict(names or {})
        self._sandbox = _Templates()
        try:
            self._template = self._sandbox.from_string(source)
        except (TemplateError, RecursionError) as e:
            line = getattr(e, "lineno", None)
            raise ChatError(f"the chat template is wrong{f' in line {line}' if line else ''}: {e}") from e

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> ChatTemplate:
        """From `tokenizer.chat_template` of a GGUF file. Raises ChatError where it is absent or wrong."""
        source = metadata.get("tokenizer.chat_template")
        if not isinstance(source, str) or not source:
            raise ChatError("the file has no tokenizer.chat_template; write the whole prompt and have it taken raw")
        if "{" not in source:  # a name, as "rwkv-world" in older files, would be all that the model reads
            raise ChatError(
                f"tokenizer.chat_template is {shown(source)}: must be a template that reads the messages; "
                "write the whole prompt and have it taken raw"
            )
        tokens = metadata.get("tokenizer.ggml.tokens", ())
        names = {}
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
            token = metadata.get(f"tokenizer.ggml.{key}_token_id")
            known = isinstance(token, int) and 0 <= token < len(tokens)
            names[f"{name}_token"] = str(tokens[token]) if known else ""
        return cls(source, names)

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **variables: Any) -> str:
        """The prompt as text, to be looked at; `encode` is what a model should be given.

        add_generation_prompt: ends with the beginning of the assistant's answer.
        variables: more names the template may read, `tools` for instance; they are trusted.
        Raises: ChatError where the messages or the template are wrong, or the template refuses the messages.
        """
        return self._rendered(messages, None, add_generation_prompt=add_generation_prompt, variables=variables)

    def encode(
        self, messages: Sequence[Message], tokenizer: Tokenizer, *, add_generation_prompt: bool = True, **variables: Any
    ) -> list[int]:
        """The prompt as ids: the template's special tokens are special, those in messages are plain text.

        The token that begins a text stands in front where the file asks for it, once.
        Raises: ChatError as `render`.
        """
        texts = [self.source, *_texts(messages)]
        shield = Shield(tokenizer.control_texts, avoid="".join(texts))
        prompt = self._rendered(messages, shield, add_generation_prompt=add_generation_prompt, variables=variables)
        parts = tokenizer.split(prompt, special=True)
        ids = tokenizer.join(shield.lift(part) if isinstance(part, str) else part for part in parts)
        first = [tokenizer.bos_id] if tokenizer.adds_bos and tokenizer.bos_id is not None else []
        return ids if ids[:1] == first else first + ids

    def _rendered(
        self,
        messages: Sequence[Message],
        shield: Shield | None,
        *,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> str:
        _check(messages)
        shown = messages if shield is None else [_shielded(message, shield) for message in messages]
        self._sandbox.shielded(shield)
        names = self._names | dict(variables) | {"messages": shown, "add_generation_prompt": add_generation_prompt}
        limit = LETTERS + sum(len(text) for text in _texts(messages))
        try:
            return _gathered(self._template.generate(names), limit)
        except _RefusedError as e:
            raise ChatError(f"the chat template refuses these messages: {e}") from e
        except Exception as e:  # a template can make any operation of Python fail
            raise ChatError(f"the chat template failed: {type(e).__name__}: {e}") from e


class Shield:
    """Makes texts unreadable as special tokens, reversibly and without changing their length.

    specials: texts that must not be read in what is shielded, nor arise where it meets the template's own text.
    avoid: all texts in play; the characters put in stand in none of them.
    """

    def __init__(self, specials: Sequence[str], *, avoid: str) -> None:
        self._specials = [text for text in specials if text]
        self._longest = max(map(len, self._specials), default=0)
        self._heads = {text[:cut] for text in self._specials for cut in range(1, len(text))}
        self._tails = {text[cut:] for text in self._specials for cut in range(1, len(text))}
        self._free = _unused(set(avoid))
        self._put: dict[str, str] = {}
        self._back: dict[int, str] = {}

    def cover(self, text: str) -> str:
        """The text with the first letter of each dangerous place replaced."""
        places = self._places(text)
        if not places:
            return text
        letters = list(text)
        for place in places:
            letters[place] = self._instead_of(letters[place])
        return "".join(letters)

    def lift(self, text: str) -> str:
        """The text with every replaced letter put back."""
        return text.translate(self._back)

    def _places(self, text: str) -> set[int]:
        found = set()
        for special in self._specials:
            at = text.find(special)
            while at >= 0:
                found.add(at)
                at = text.find(special, at + 1)
        # What a template trims must not bring an end into play that was hidden by white space.
        start, end = len(text) - len(text.lstrip()), len(text.rstrip())
        for near, far in {(0, len(text)), (start, len(text)), (0, end), (start, end)}:
            found |= self._edges(text[near:far], near)
        return found

    def _edges(self, text: str, offset: int) -> set[int]:
        """Places where the end of a text may begin a special token, its beginning end one, or all of it lie inside."""
        sizes = range(1, min(self._longest, len(text) + 1))
        found = {offset + len(text) - size for size in sizes if text[-size:] in self._heads}
        inside = 0 < len(text) < self._longest and any(text in special for special in self._specials)
        if inside or any(text[:size] in self._tails for size in sizes):
            found.add(offset)
        return found

    def _instead_of(self, letter: str) -> str:
        if letter not in self._put:
            spare = next(self._free, None)
            if spare is None:
                raise ChatError("the messages use every private character of Unicode: one must be left to mark with")
            self._put[letter] = spare
            self._back[ord(spare)] = letter
        return self._put[letter]


def _gathered(pieces: Iterable[str], limit: int) -> str:
    kept, length = [], 0
    for piece in pieces:
        length += len(piece)
        if length > limit:
            raise SecurityError(f"it writes more than {limit:,} letters")
        kept.append(piece)
    return "".join(kept)


class _RefusedError(Exception):
    """The template called raise_exception."""


class _Templates(Sandbox):
    """The sandbox with Hugging Face's additions."""

    def __init__(self) -> None:
        super().__init__()
        self._shield: Shield | None = None
        self.filters["tojson"] = self._measured("tojson", self._to_json)
        self.globals["raise_exception"] = _refuse
        self.globals["strftime_now"] = _now

    def shielded(self, shield: Shield | None) -> None:
        """A rendering begins; JSON is made of what the shield covers."""
        self.begin()
        self._shield = shield

    def _to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - the order of Hugging Face's filter
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,  # noqa: FBT001, FBT002
    ) -> str:
        shield = self._shield
        plain = value if shield is None else _mapped(value, shield.lift)
        text = json.dumps(plain, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        return text if shield is None else shield.cover(text)


def _refuse(message: str) -> None:
    raise _RefusedError(message)


def _now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


def _check(messages: Sequence[Message]) -> None:
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise ChatError(f"messages are {type(messages).__name__}: must be a list of mappings with role and content")
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ChatError(f"message {place} is {message!r}: must be a mapping with a role, which is a text")


def _shielded(message: Message, shield: Shield) -> dict[str, Any]:
    return {key: value if key in _TRUSTED else _mapped(value, shield.cover) for key, value in message.items()}


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of nested lists and mappings with every text changed, save what names the kind of a part."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: inner if key in _TRUSTED else _mapped(inner, change) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_mapped(inner, change) for inner in value]
    return value


def _texts(value: Any) -> Iterator[str]:
    """Every text in nested lists and mappings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from (*_texts(key), *_texts(inner))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(inner)


def _unused(taken: set[str]) -> Iterator[str]:
    """Characters that are never assigned, then private ones; those not taken."""
    for reach in (range(0xFDD0, 0xFDF0), range(0xE000, 0xF900), range(0xF0000, 0xFFFFE)):
        yield from (chr(code) for code in reach if chr(code) not in taken)
