"""Evaluating a text token by token: the plans of a decoder, and what its cache and its states hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import jackfield as jf
from jackfield_llm.errors import ModelError
from jackfield_llm.recurrent import Checkpoints, fed, slot_count, snapshot_count
from jackfield_llm.transformer import Transformer

__all__ = ["LOGIT_ROWS", "PASS_ROWS", "ROWS", "Decoder", "chunk_rows"]

ROWS = (1, 4, 32, 128, 512)  # row counts of plans; a prompt is cut into these
LOGIT_ROWS = (1, 4, 32, 128)  # row counts of plans that return logits of every row, which are long
FIRST_ROWS = 32  # of the plan that load makes: few prompts are shorter, and longer ones mostly end in such a part
PASS_ROWS = 20  # a plan more costs about as much as so many rows: a pass over the weights, and once its making

Logits = Literal["last", "all", "none"]
Rows = NDArray[np.float32]


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


class Feeds:
    """What a plan of so many rows reads beside its states: rows that are not used come first, and write nowhere.

    The arrays are the same ones for every call; a plan has taken their bytes when it returns.
    """

    def __init__(self, rows: int) -> None:
        self._tokens, self._positions, self._slots = np.zeros((3, rows), np.int32)
        self._length = np.zeros(1, np.int32)

    def filled(self, ids: Sequence[int], past: int) -> dict[str, NDArray[Any]]:
        """Of these tokens behind `past` others, by input."""
        pad = len(self._tokens) - len(ids)
        if pad:
            self._tokens[:pad], self._positions[:pad], self._slots[:pad] = 0, 0, -1
        columns = range(past, past + len(ids))
        self._tokens[pad:], self._positions[pad:], self._slots[pad:] = ids, columns, columns
        self._length[0] = columns.stop
        return {"tokens": self._tokens, "positions": self._positions, "slots": self._slots, "kv_len": self._length}


class Decoder:
    """A decoder's plans in one Session, and the text that its cache holds.

    batch: the most rows that are evaluated together, one of ROWS. Calls are not serial here: who calls takes care.
    ids: the tokens in the cache. A call that ends early leaves that unknown, until `mend`.
    """

    def __init__(self, graphs: Transformer, session: jf.Session, *, batch: int, pins: Mapping[str, str] | None) -> None:
        self._graphs, self._session, self._pins = graphs, session, pins
        self._rows = tuple(rows for rows in ROWS if rows <= batch)
        self._logit_rows = tuple(rows for rows in LOGIT_ROWS if rows <= batch)
        self.plans: dict[tuple[int, Logits], jf.Plan] = {}
        self.ids: list[int] = []
        self._again: list[int] = []  # what follows in the text, and must be evaluated again: a state was gone back to
        self._kind = graphs.config.recurrent
        self.checkpoints = Checkpoints(slot_count(graphs.rollback)) if self._kind else None
        self._torn = False
        self._feeds: dict[int, Feeds] = {}  # by row count

    # ---- plans

    def first(self, drawn: Callable[[], object], *, meanwhile: Callable[[], object]) -> None:
        """Make the plan that loading makes. drawn: called when its graph has asked for every weight. meanwhile: as
        jackfield.Session.compile takes it.
        """
        rows = _first_rows(self._session.devices, self._rows)
        graph = self._graphs.graph(rows, "last")
        drawn()
        self.plans[rows, "last"] = self._session.compile(
            graph.logits, changes=graph.changes, pins=self._pins, meanwhile=meanwhile
        )

    def plan(self, rows: int, logits: Logits) -> jf.Plan:
        """The plan of so many rows; see `Transformer.graph`."""
        key: tuple[int, Logits] = (rows, "last" if rows == 1 and logits == "all" else logits)
        if key not in self.plans:
            graph = self._graphs.graph(rows, logits)
            self.plans[key] = self._session.compile(graph.logits, changes=graph.changes, pins=self._pins)
        return self.plans[key]

    def plan_of_one(self) -> jf.Plan:
        """The plan of one token, or the first one as long as that is not made."""
        return self.plans.get((1, "last")) or next(iter(self.plans.values()))

    # ---- the text in the cache

    @property
    def cached(self) -> tuple[int, ...]:
        """The tokens in the cache, also those that a state makes evaluate again."""
        return () if self._torn else (*self.ids, *self._again)

    @property
    def length(self) -> int:
        """How many `cached` are, unless a call has ended early."""
        return len(self.ids) + len(self._again)

    def rewind(self, keep: int) -> None:
        """The cache holds the first `keep` tokens. Recurrent states go back to a checkpoint, from which on the tokens
        up to there are evaluated again, in front of the next call's.
        """
        if self.checkpoints is None:
            del self.ids[keep:]
            return
        text = [*self.ids, *self._again][:keep]
        at = self.checkpoints.latest(min(len(text), len(self.ids)))
        self._torn = True  # until both, checkpoints and ids, say the same
        if at is None:
            at = 0
            self._clear(self._graphs.recurrent_states)
        self.checkpoints.forget(at)
        self.ids, self._again = text[:at], text[at:]
        self._torn = False

    def mend(self) -> None:
        """After a call that ended early: the cache holds nothing."""
        if self._torn:
            self.ids, self._again = [], []
            self._clear(self._session.states)
            self._torn = False

    def _clear(self, states: Iterable[str]) -> None:
        """Zeros in these, among which are all recurrent ones."""
        for name in states:
            self._session.states[name].clear()
        if self.checkpoints is not None:
            self.checkpoints.cleared()

    # ---- evaluation

    def advance(self, ids: list[int]) -> tuple[Rows, int]:
        """Make the cache hold exactly these: logits after the last, f32 [vocabulary], and how many were reused."""
        same = _common([*self.ids, *self._again] if self._again else self.ids, ids[:-1])
        self.rewind(same)
        reused = len(self.ids)
        return self.append(ids[same:]), reused

    def append(self, ids: list[int]) -> Rows:
        """Logits after the last of these, f32 [vocabulary]. Raises ModelError where there are none."""
        if not ids:
            raise ModelError("no tokens to evaluate: the prompt is empty")
        if len(ids) == 1 and not self._again:  # straight on: between two tokens nothing is in the caches any more
            last = self._run(self.plans.get((1, "last")) or self.plan(1, "last"), 1, ids)
        else:
            *_, last = self.evaluate([*self._again, *ids], "last")
        row: Rows = last[0]
        return row

    def rows(self, texts: Sequence[list[int]]) -> Iterator[tuple[int, Rows]]:
        """The number of each text and what the last norm makes of its tokens, f32 [tokens, width]."""
        for number, ids in enumerate(texts):
            self.rewind(0)
            yield number, np.concatenate(list(self.evaluate(ids, "none")))

    def evaluate(self, ids: list[int], logits: Logits) -> Iterator[Rows]:
        """Run the plans over `ids`; logits of the last row, or of all real rows, of each. "none": see `Transformer`."""
        at = 0
        for rows in chunk_rows(len(ids), self._logit_rows if logits == "all" else self._rows):
            part = ids[at : at + rows]
            out = self._run(self.plan(rows, logits), rows, part)
            yield out if logits == "last" else out[rows - len(part) :]
            at += len(part)

    def _run(self, plan: jf.Plan, rows: int, ids: list[int]) -> Rows:
        past = len(self.ids)
        if rows not in self._feeds:
            self._feeds[rows] = Feeds(rows)
        feeds = self._feeds[rows].filled(ids, past)
        targets = self._recurrent_feeds(feeds, rows, len(ids))
        if targets:
            feeds = {name: feeds[name] for name in plan.inputs}
        self._torn = True  # set before, so that no interrupt can come between the writing and the knowing
        out: Rows = plan(**feeds)
        self.ids += ids
        del self._again[: len(ids)]
        if self.checkpoints is not None:
            self.checkpoints.store(past, len(ids), targets)
        self._torn = False
        return out

    def _recurrent_feeds(self, feeds: dict[str, NDArray[Any]], rows: int, tokens: int) -> list[int]:
        """Add what recurrent layers read of a call of so many tokens; the slots that take its states, newest first."""
        kind, checkpoints = self._kind, self.checkpoints
        if kind is None or checkpoints is None:
            return []
        snapshots = snapshot_count(kind, rows, self._graphs.rollback)
        targets = checkpoints.targets(len(self.ids), min(snapshots, tokens))
        source = checkpoints.slot(len(self.ids))
        feeds |= fed(rows, rows - tokens, source, targets + [-1] * (snapshots - len(targets)), kind)
        return targets


def _first_rows(devices: Sequence[str], sizes: Sequence[int]) -> int:
    """Rows of the first plan. Of several devices the steps of one token choose, since most of the time goes there; the
    reference, a last resort, does not count.
    """
    several = sum(not name.startswith("reference") for name in devices) > 1
    return 1 if several else max(rows for rows in sizes if rows <= FIRST_ROWS)


def _common(have: list[int], want: list[int]) -> int:
    """Length of the common beginning."""
    shorter = min(len(have), len(want))
    if have[:shorter] == want[:shorter]:  # the usual case, a hundred times as fast as the loop
        return shorter
    return next(i for i, (a, b) in enumerate(zip(have, want, strict=False)) if a != b)
