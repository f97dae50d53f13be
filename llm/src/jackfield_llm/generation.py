"""One answer being streamed: evaluate the prompt, draw tokens, hold back half characters and half stop strings."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

import jackfield as jf
from jackfield_llm.sampling import Sampler, StopStrings
from jackfield_llm.tokenizer import Tokenizer

__all__ = ["Evaluates", "Generation", "Stats"]


class Evaluates(Protocol):
    """What an answer needs of a model.

    context: tokens its cache holds. advance: logits after the last of these tokens, and how many were in the cache.
    """

    context: int
    tokenizer: Tokenizer

    def advance(self, ids: Sequence[int], /, *, checked: int = 0) -> tuple[NDArray[np.float32], int]: ...


@dataclass
class Stats:
    """Figures of one answer. Times in seconds; prompt_tokens counts what was evaluated, cached_tokens what was reused.

    seconds: from the first token to the last. first_token_seconds: from the beginning to the first.
    finish: why it ended: "end" (the model said so), "stop" (a stop string), "length" (max_tokens), "context" (full);
        "" while it goes on, or was left off.
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
    """An iterator of text pieces. Dropping it half way is fine, and so is another answer of the model in between.

    ids: tokens drawn so far, without the end token. text: all pieces given so far.
    """

    def __init__(
        self, model: Evaluates, ids: Sequence[int], *, max_tokens: int | None, stop: Sequence[str], sampler: Sampler
    ) -> None:
        self.stats = Stats()
        self.ids: list[int] = []
        self.text = ""
        self._lock = threading.Lock()
        self._pieces = self._stream(model, list(ids), max_tokens, StopStrings(stop), sampler)

    def __next__(self) -> str:
        if self._lock.locked():
            raise jf.errors.Busy("another thread waits for the next piece of this answer")
        with self._lock:
            piece = next(self._pieces)
            self.text += piece
            return piece

    def close(self) -> None:
        """End the answer here."""
        self._pieces.close()

    def _stream(
        self, model: Evaluates, ids: list[int], max_tokens: int | None, stops: StopStrings, sampler: Sampler
    ) -> Generator[str, None, None]:
        stats, began = self.stats, time.perf_counter()
        room = model.context - len(ids) + 1  # the last token drawn needs no column
        limit = room if max_tokens is None else min(max_tokens, room)
        logits, stats.cached_tokens = model.advance(ids, checked=len(ids))
        stats.prompt_tokens = len(ids) - stats.cached_tokens
        stats.prompt_seconds = time.perf_counter() - began
        text = model.tokenizer.stream()
        while len(self.ids) < limit:
            token = sampler.draw(logits, ids)
            now = time.perf_counter() - began
            stats.first_token_seconds = stats.first_token_seconds or now
            if token in model.tokenizer.eos_ids:
                stats.finish = "end"
                break
            ids.append(token)
            self.ids.append(token)
            stats.tokens, stats.seconds = len(self.ids), now - stats.first_token_seconds
            if piece := stops.push(text.push(token)):
                yield piece
            if stops.stopped is not None:
                stats.finish = "stop"
                return
            if len(self.ids) < limit:
                # All tokens, not the last one: what another answer left in the cache is noticed and replaced.
                logits, _ = model.advance(ids, checked=len(ids))
        else:
            stats.finish = "length" if limit == max_tokens else "context"
        if rest := stops.push(text.flush()):
            yield rest
        if stops.stopped is not None:
            stats.finish = "stop"
        elif rest := stops.flush():
            yield rest
