"""A language model: a file's weights, a tokenizer, a cache on a device, and the plans that evaluate tokens."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import jackfield as jf
from jackfield_llm.chat import ChatTemplate
from jackfield_llm.config import Config, read_config
from jackfield_llm.errors import ContextOverflow, ModelError
from jackfield_llm.generation import Generation
from jackfield_llm.sampling import Sampler
from jackfield_llm.tokenizer import Tokenizer
from jackfield_llm.transformer import Transformer
from jackfield_llm.weights import Weights

__all__ = ["Model", "chunk_rows", "load"]

ROWS = (1, 4, 32, 128, 512)  # row counts of plans; a prompt is cut into these
LOGIT_ROWS = (1, 4, 32, 128)  # row counts of plans that return logits of every row, which are long
DEFAULT_CONTEXT = 4096
CACHE_DTYPES = {"f16": jf.f16, "f32": jf.f32}


def load(
    path: str | os.PathLike[str],
    device: str | None = None,
    *,
    context: int | None = None,
    cache_dtype: str = "f16",
    policy: str | None = None,
) -> Model:
    """Open a GGUF file as a model.

    device: a selection such as "cpu" or "sim+reference"; None: the best there is, or JACKFIELD_DEVICE.
    context: tokens the cache holds; default what the model knows, at most 4,096.
    cache_dtype: "f16" or "f32".
    Raises: ModelError for a model we can't run, jackfield.GGUFError for a malformed file, jackfield's device errors.
    """
    return Model(Path(path), device, context=context, cache_dtype=cache_dtype, policy=policy)


def chunk_rows(tokens: int, sizes: Sequence[int] = ROWS) -> list[int]:
    """How to cut a prompt into plans: row counts, of which only the last may be larger than what is left for it.

    A plan that would be less than half full is passed over for smaller ones.
    """
    chunks, left = [], tokens
    while left > 0:
        fitting = next((n for n in sizes if n >= left), sizes[-1])
        if fitting > left and fitting >= 2 * left:
            fitting = max(n for n in sizes if n <= left)
        chunks.append(fitting)
        left -= fitting
    return chunks


class Model:
    """One model on one device selection. Calls are serial: a second one at the same time raises jackfield's Busy."""

    def __init__(
        self, path: Path, device: str | None, *, context: int | None, cache_dtype: str, policy: str | None
    ) -> None:
        if cache_dtype not in CACHE_DTYPES:
            raise ModelError(f"cache_dtype {cache_dtype!r}: must be one of {', '.join(CACHE_DTYPES)}")
        self._file = jf.gguf.open(path)
        self.config: Config = read_config(self._file.metadata)
        self.context = min(self.config.context, DEFAULT_CONTEXT) if context is None else context
        if self.context < 1:
            raise ModelError(f"context {self.context}: must be at least 1")
        self.tokenizer = Tokenizer.from_metadata(self._file.metadata)
        self.session = jf.Session(device=device, policy=policy)
        weights = Weights(self._file)
        self._graphs = Transformer(self.config, weights, context=self.context, cache_dtype=CACHE_DTYPES[cache_dtype])
        self._plans: dict[tuple[int, str], jf.Plan] = {}
        self._template: ChatTemplate | None = None
        self._ids: list[int] = []  # what the cache holds
        self._decode = self._plan(1, "last")

    # ---- text

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids; special tokens are parsed on request only."""
        return self.tokenizer.encode(text, special=special)

    def detokenize(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        return self.tokenizer.decode(list(ids), skip_special=skip_special)

    @property
    def template(self) -> ChatTemplate:
        """The file's chat template. Raises ChatError when it has none."""
        if self._template is None:
            self._template = ChatTemplate.from_metadata(self._file.metadata)
        return self._template

    def chat_ids(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Ids of a dialogue up to where the model answers. Special tokens inside a message stay plain text."""
        return self.template.encode(messages, self.tokenizer)

    # ---- evaluation

    @property
    def device_names(self) -> str:
        """The devices that evaluate a token, such as "cpu:0"."""
        return "+".join(self._decode.devices)

    @property
    def cached(self) -> tuple[int, ...]:
        """The tokens in the cache."""
        return tuple(self._ids)

    def reset(self, keep: int = 0) -> None:
        """Forget all but the first `keep` tokens of the cache."""
        del self._ids[max(0, keep) :]

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits after each token of a text that starts afresh: f32 [tokens, vocabulary]."""
        self.reset()
        parts = self._evaluate(ids, "all")
        return np.concatenate(parts) if parts else np.empty((0, self._graphs.vocabulary), np.float32)

    def prefill(self, ids: Sequence[int]) -> NDArray[np.float32] | None:
        """Append tokens to the cache; logits after the last one, f32 [vocabulary], or None for no tokens."""
        parts = self._evaluate(ids, "last")
        return parts[-1][0] if parts else None

    def decode(self, token: int) -> NDArray[np.float32]:
        """Append one token; logits after it, f32 [vocabulary]."""
        self._check_ids([token])
        at = len(self._ids)
        ints = np.array([[token], [at], [at], [at + 1]], np.int32)
        out = self._decode(tokens=ints[0], positions=ints[1], slots=ints[2], kv_len=ints[3])
        self._ids.append(token)
        return out[0]

    def advance(self, ids: Sequence[int]) -> tuple[NDArray[np.float32], int]:
        """Make the cache hold exactly `ids`, reusing its common beginning.

        Returns: logits after the last token, f32 [vocabulary], and how many tokens were reused.
        """
        if not ids:
            raise ModelError("no tokens to evaluate: the prompt is empty")
        same = 0
        for have, want in zip(self._ids, ids[:-1], strict=False):
            if have != want:
                break
            same += 1
        self.reset(same)
        last = self.prefill(ids[same:])
        assert last is not None
        return last, same

    def _evaluate(self, ids: Sequence[int], logits: Literal["last", "all"]) -> list[NDArray[np.float32]]:
        """Run the plans over `ids`; logits of the last row, or of all real rows, of each."""
        self._check_ids(ids)
        results, at = [], 0
        for rows in chunk_rows(len(ids), ROWS if logits == "last" else LOGIT_ROWS):
            part = ids[at : at + rows]
            out = self._run(self._plan(rows, logits), rows, part)
            results.append(out if logits == "last" else out[rows - len(part) :])
            at += len(part)
        return results

    def _run(self, plan: jf.Plan, rows: int, ids: Sequence[int]) -> NDArray[np.float32]:
        past, pad = len(self._ids), rows - len(ids)
        columns = np.arange(past, past + len(ids), dtype=np.int32)
        tokens, positions, slots = np.zeros(rows, np.int32), np.zeros(rows, np.int32), np.full(rows, -1, np.int32)
        tokens[pad:], positions[pad:], slots[pad:] = ids, columns, columns
        kv_len = np.array([past + len(ids)], np.int32)
        out: NDArray[np.float32] = plan(tokens=tokens, positions=positions, slots=slots, kv_len=kv_len)
        self._ids += ids
        return out

    def _check_ids(self, ids: Sequence[int]) -> None:
        needed = len(self._ids) + len(ids)
        if needed > self.context:
            text = f"{needed} tokens do not fit the context of {self.context}; load the model with a larger context"
            if self.context >= self.config.context:
                text = f"{needed} tokens do not fit the context of {self.context}, the longest this model knows"
            raise ContextOverflow(text, needed=needed, limit=self.context)
        for token in ids:
            if not 0 <= token < self._graphs.vocabulary:
                raise ModelError(f"token {token} lies outside the vocabulary of {self._graphs.vocabulary}")

    def _plan(self, rows: int, logits: Literal["last", "all"]) -> jf.Plan:
        key = (rows, "last" if rows == 1 else logits)
        if key not in self._plans:
            self._plans[key] = self.session.compile(self._graphs.graph(rows, logits))
        return self._plans[key]

    # ---- generation

    def generate(
        self,
        prompt: str,
        *,
        max_tokens: int | None = None,
        raw: bool = False,
        system: str | None = None,
        stop: Sequence[str] = (),
        sampler: Sampler | None = None,
        **sampling: Any,
    ) -> Generation:
        """Stream an answer: an iterator of str, with the figures of the run in `.stats`.

        raw: take the prompt as it is; otherwise as a user's message in the file's chat template.
        max_tokens: at most so many; default until the model ends or the context is full.
        stop: texts that end the answer and are not part of it.
        sampling: fields of Sampler (temperature, top_k, ...), when no sampler is given. Default: greedy.
        Raises: ContextOverflow, SamplingError, ChatError, before anything is evaluated.
        """
        if raw:
            ids = self.tokenizer.encode(prompt, special=True, add_special=True)
        else:
            ids = self.chat_ids(_dialogue(prompt, system))
        return self.answer(ids, max_tokens=max_tokens, stop=stop, sampler=sampler or Sampler(**sampling))

    def answer(
        self, ids: Sequence[int], *, max_tokens: int | None = None, stop: Sequence[str] = (), sampler: Sampler | None = None
    ) -> Generation:
        """Stream what follows these tokens."""
        if not ids:
            raise ModelError("no tokens to evaluate: the prompt is empty")
        if max_tokens is not None and max_tokens < 0:
            raise ModelError(f"max_tokens {max_tokens}: must be 0 or more")
        if len(ids) > self.context:
            raise ContextOverflow(
                f"a prompt of {len(ids)} tokens does not fit the context of {self.context}",
                needed=len(ids),
                limit=self.context,
            )
        return Generation(self, list(ids), max_tokens=max_tokens, stop=stop, sampler=sampler or Sampler())

    def close(self) -> None:
        """Give device memory and the file back. Twice is fine."""
        self._plans.clear()
        self.session.close()
        self._file.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _dialogue(prompt: str, system: str | None) -> list[dict[str, str]]:
    messages = [{"role": "system", "content": system}] if system is not None else []
    return [*messages, {"role": "user", "content": prompt}]
