"""Embeddings: how texts are evaluated together, and how one vector is made of what a model makes of each token."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import jackfield as jf
from jackfield_llm.encoder import EncoderGraphs
from jackfield_llm.errors import ModelError
from jackfield_llm.hyperparameters import Config
from jackfield_llm.tokenizer import Tokenizer

__all__ = ["POOLINGS", "EncoderPlans", "batches", "chosen_pooling", "id_lists", "pooled", "row_counts", "vectors"]

POOLINGS = ("mean", "cls", "last")
FIRST_ROWS = 32  # of the plan that load makes

Rows = NDArray[np.float32]


def chosen_pooling(pooling: str | None, config: Config) -> str:
    """The pooling that was asked for, else the file's, else what is usual: the mean, and for a decoder the last token.

    Raises: ModelError for one we lack.
    """
    if pooling is None and config.pooling == "rank":
        raise ModelError(
            f"{config.architecture}.pooling_type is 4 (rank): rankers are not known here; for a vector all the same, "
            f"choose the pooling: {', '.join(POOLINGS)}"
        )
    found = pooling or config.pooling or ("last" if config.encoder is None else "mean")
    if pooling == "" or found not in POOLINGS:
        raise ModelError(f"pooling {pooling!r}: must be one of {', '.join(POOLINGS)}, or None for what the file says")
    return found


def id_lists(texts: object, tokenizer: Tokenizer) -> list[Any]:
    """The ids of each text, framed as the file says; of what is no text as they are, and not looked at.

    Raises: ModelError for a single text, whose letters would be taken for texts, and for one without a token.
    """
    if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
        raise ModelError(f"texts is a {type(texts).__name__}: must be a list of texts")
    return [_ids_of(text, number, tokenizer) for number, text in enumerate(texts)]


def _ids_of(text: object, number: int, tokenizer: Tokenizer) -> Any:
    ids = tokenizer.encode(text, add_special=True) if isinstance(text, str) else text
    if not isinstance(ids, (Sequence, np.ndarray)) or isinstance(ids, (bytes, bytearray, memoryview)):
        raise ModelError(f"texts[{number}] is a {type(text).__name__}: must be a text or a list of ids")
    if not len(ids):
        raise ModelError(f"texts[{number}] has no tokens, and the file adds none: must have at least one")
    return ids


def pooled(rows: Rows, pooling: str) -> Rows:
    """One vector [width] of what was made of each token, [tokens, width]; sums in f64."""
    if pooling == "mean":
        return rows.mean(axis=0, dtype=np.float64).astype(np.float32)
    return rows[0 if pooling == "cls" else -1]


def vectors(made: Iterable[tuple[int, Rows]], shape: tuple[int, int], pooling: str, *, normalize: bool) -> Rows:
    """f32 [texts, width] of shape, in the order of the texts.

    made: the number of a text and what was made of its tokens. normalize: to the length 1; zeros stay zeros.
    """
    found = np.zeros(shape, np.float32)
    for number, rows in made:
        found[number] = pooled(rows, pooling)
    if not normalize:
        return found
    wide = found.astype(np.float64)
    length = np.sqrt((wide * wide).sum(axis=1, keepdims=True))
    return (wide / np.where(length == 0, 1.0, length)).astype(np.float32)


def row_counts(context: int) -> list[int]:
    """Row counts of plans, up to the context: 8, 16, 24, 32, 48, 64, 96 and so on."""
    counts, step = [8, 16, 24, 32], 32
    while counts[-1] < context:
        counts += [step + step // 2, 2 * step]
        step *= 2
    return [count for count in counts if count < context] + [context]


def batches(lengths: Sequence[int], counts: Sequence[int], most: int) -> Iterator[tuple[int, int, list[int]]]:
    """What is evaluated together: rows, streams, and the numbers of the texts, at most as many as streams.

    lengths: tokens of each text, at most the last of the counts. most: rows of all streams, where a text is not longer
        by itself. Streams are a power of two, so that few plans serve all.
    """
    alike: dict[int, list[int]] = {}
    for number, length in enumerate(lengths):
        rows = next(count for count in counts if count >= length)
        alike.setdefault(rows, []).append(number)
    for rows, numbers in sorted(alike.items()):
        widest = 1 << (max(1, most // rows).bit_length() - 1)
        for first in range(0, len(numbers), widest):
            part = numbers[first : first + widest]
            yield rows, 1 << (len(part) - 1).bit_length(), part


class EncoderPlans:
    """An encoder's plans in one Session, made as texts of their size come.

    batch: rows of texts that are evaluated together.
    """

    def __init__(
        self, graphs: EncoderGraphs, session: jf.Session, *, batch: int, pins: Mapping[str, str] | None
    ) -> None:
        self._graphs, self._session, self._batch, self._pins = graphs, session, batch, pins
        self._counts = row_counts(graphs.context)
        self._plans: dict[tuple[int, int], jf.Plan] = {}
        self.first = self._plan(1, next((n for n in self._counts if n >= FIRST_ROWS), self._counts[-1]))

    def rows(self, texts: Sequence[Sequence[int]]) -> Iterator[tuple[int, Rows]]:
        """The number of each text and what is made of its tokens, f32 [tokens, width]; not in the order of the texts.

        texts: ids, at least one and at most `context` each.
        """
        for rows, streams, numbers in batches([len(ids) for ids in texts], self._counts, self._batch):
            tokens, kv_len = np.zeros((streams, rows), np.int32), np.zeros(streams, np.int32)
            for stream, number in enumerate(numbers):
                kv_len[stream] = len(texts[number])
                tokens[stream, : kv_len[stream]] = texts[number]
            plan = self._plan(streams, rows)
            positions = np.arange(rows, dtype=np.int32)
            out: Rows = plan(tokens=tokens.reshape(-1), positions=positions, kv_len=kv_len)
            for stream, number in enumerate(numbers):
                yield number, out[stream, : kv_len[stream]]

    def _plan(self, streams: int, rows: int) -> jf.Plan:
        if (streams, rows) not in self._plans:
            graph = self._graphs.graph(streams, rows)
            self._plans[streams, rows] = self._session.compile(graph, pins=self._pins)
        return self._plans[streams, rows]
