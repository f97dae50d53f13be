"""One answer being streamed: evaluate the prompt, draw tokens, hold back half characters and half stop strings."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from jackfield_llm.sampling import Sampler, StopStrings
from jackfield_llm.tokenizer import Tokenizer

__all__ = ["Evaluates", "Generation", "Stats"]


class Evaluates(Protocol):
    """What an answer needs of a model."""

    @property
    def context(self) -> int: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    def advance(self, ids: Sequence[int], /) -> tuple[NDArray[np.float32], int]: ...
    def decode(self, token: int, /) -> NDArray[Any]: ...



@dataclass
class Stats:
    """Figures of one answer. Times in seconds; prompt_tokens counts what was evaluated, cached_tokens what was reused.

    finish: why it ended: "end" (the model said so), "stop" (a stop string), "length" (max_tokens), "context" (full).
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    prompt_seconds: float = 0.0
    seconds: float = 0.0
    first_token_seconds: float = 0.0
    finish: Literal["", "end", "stop", "length", "context"] = ""

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens a second."""
        return self.prompt_tokens / self.prompt_seconds if self.prompt_seconds else 0.0

    @property
    def rate(self) -> float:
        """Generated tokens a second, after the first."""
        return (self.tokens - 1) / self.seconds if self.seconds and self.tokens > 1 else 0.0


class Generation(Iterator[str]):
    """An iterator of text pieces. Dropping it half way is fine: the cache holds what was evaluated."""

    def __init__(
        self, model: Evaluates, ids: Sequence[int], *, max_tokens: int | None, stop: Sequence[str], sampler: Sampler
    ) -> None:
        self.stats = Stats()
        self.ids: list[int] = []  # generated tokens, without the end token
        self._pieces = self._stream(model, list(ids), max_tokens, StopStrings(stop), sampler)

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        self._pieces.close()  # type: ignore[attr-defined]

    def _stream(
        self, model: Evaluates, ids: list[int], max_tokens: int | None, stops: StopStrings, sampler: Sampler
    ) -> Iterator[str]:
        began = time.perf_counter()
        room = model.context - len(ids) + 1  # the last token drawn needs no column
        limit = room if max_tokens is None else min(max_tokens, room)
        logits, reused = model.advance(ids)
        self.stats.prompt_tokens, self.stats.cached_tokens = len(ids) - reused, reused
        self.stats.prompt_seconds = time.perf_counter() - began
        text = model.tokenizer.stream()
        first = time.perf_counter()
        while len(self.ids) < limit:
            token = sampler.draw(logits, ids)
            now = time.perf_counter()
            if not self.ids:
                self.stats.first_token_seconds, first = now - began, now
            if token in model.tokenizer.eos_ids:
                self.stats.finish = "end"
                break
            ids.append(token)
            self.ids.append(token)
            self.stats.tokens, self.stats.seconds = len(self.ids), now - first
            if piece := stops.push(text.push(token)):
                yield piece
            if stops.stopped is not None:
                self.stats.finish = "stop"
                return
            if len(self.ids) < limit:
                logits = model.decode(token)
        else:
            self.stats.finish = "length" if limit == max_tokens else "context"
        if rest := stops.push(text.flush()) + stops.flush():
            yield rest
