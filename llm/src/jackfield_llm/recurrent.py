"""States of layers that sum up what they read: in a graph, and which of them a model still has.

A cache of keys forgets a token when its column is left out; a sum can't. So a state has slots, which are checkpoints: a
call reads one slot and writes what it ends with to others, and going back means to read an older one. Slot 0 is never
written, so it is zero: the state before the first token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import jackfield as jf
from jackfield import ops
from jackfield_llm.hyperparameters import RecurrentKind

__all__ = ["Checkpoints", "Recurrent", "fed", "slot_count", "snapshot_count"]

_LEAST_SLOTS = 4  # zero, what is read, what is written, and the end of the last prompt


def slot_count(rollback: int) -> int:
    """Slots of each state of a model that takes back `rollback` tokens."""
    return _LEAST_SLOTS + rollback


def snapshot_count(kind: RecurrentKind, rows: int, rollback: int) -> int:
    """States that a call of `rows` tokens stores: the last one, and those before it that are wanted."""
    return min(rows, rollback + 1) if kind.snapshots else 1


class Recurrent:
    """The states of one graph that evaluates `rows` tokens, padding first.

    source: i32 [1], the slot that is read. targets: i32 [snapshots], entry j is the slot that takes the state j tokens
    before the end, -1 for none. live: f32 [rows, 1], 1 for a token and 0 for padding, which must leave states alone.
    changes: the new values of all states, as `jackfield.compile` takes them.
    """

    def __init__(self, kind: RecurrentKind, rows: int, rollback: int) -> None:
        self.rows, self.taps, self.slots = rows, kind.taps, slot_count(rollback)
        self.snapshots = snapshot_count(kind, rows, rollback)
        self.source = jf.input("source", (1,), jf.i32)
        self.targets = jf.input("targets", (self.snapshots,), jf.i32)
        self.live = jf.input("live", (rows, 1), jf.f32)
        self.changes: list[jf.Tensor] = []
        self._states: dict[str, jf.Tensor] = {}
        self._end_rows: jf.Tensor | None = None
        self._before = jf.input("before", (kind.taps,), jf.i32)

    def state(self, name: str, shape: tuple[int, ...]) -> jf.Tensor:
        """All slots, f32 [slots, *shape], for ops that choose theirs by `source`."""
        if name not in self._states:
            self._states[name] = jf.state(name, (self.slots, *shape), jf.f32)
        return self._states[name]

    def taken(self, name: str, shape: tuple[int, ...]) -> jf.Tensor:
        """The slot that is read, [1, *shape]."""
        return ops.reshape(ops.take_rows(self._flat(name, shape), self.source), shape=(1, *shape))

    def keep(self, name: str, newest_first: jf.Tensor) -> None:
        """Store states, [snapshots, ...], the one after the last token first."""
        count, *shape = newest_first.shape
        rows = ops.reshape(newest_first, shape=(count, math.prod(shape)))
        self.changes.append(ops.put_rows(self._flat(name, tuple(shape)), rows, self.targets))

    def _flat(self, name: str, shape: tuple[int, ...]) -> jf.Tensor:
        return ops.reshape(self.state(name, shape), shape=(self.slots, math.prod(shape)))

    def shifted(self, name: str, x: jf.Tensor, taps: int) -> jf.Tensor:
        """x [rows, width] behind the `taps` rows before it, [taps + rows, width]; the last ones are stored.

        Row t + taps is row t of x, and the taps rows before a token's row are those of the tokens before it. Rows that
        only padding reads hold anything finite.
        """
        rows, width = x.shape
        before = ops.reshape(self.taken(name, (taps * width,)), shape=(taps, width))
        joined = ops.concatenate(before, x, axis=0)
        if rows > 1:  # with padding in front, what came before lies right before the first token
            joined = ops.put_rows(joined, before, self._before)
        ends = joined[rows:] if self.snapshots == 1 else ops.take_rows(joined, self._ends(rows, taps))
        self.keep(name, ops.reshape(ends, shape=(self.snapshots, taps * width)))
        return joined

    def _ends(self, rows: int, taps: int) -> jf.Tensor:
        """Row numbers of the taps that each stored state holds, newest first."""
        if self._end_rows is None:
            numbers = rows - np.arange(self.snapshots)[:, None] + np.arange(taps)
            self._end_rows = jf.constant(numbers.astype(np.int32).reshape(-1), name="ends")
        return self._end_rows


def fed(rows: int, padding: int, source: int, targets: Sequence[int], kind: RecurrentKind) -> dict[str, NDArray[Any]]:
    """What a call is fed, by the names of `Recurrent`'s inputs; targets: a slot or -1 for each snapshot."""
    return {
        "source": np.array([source], np.int32),
        "targets": np.array(targets, np.int32),
        "live": (np.arange(rows) >= padding).astype(np.float32)[:, None],
        "before": np.arange(padding, padding + kind.taps, dtype=np.int32),
    }


class Checkpoints:
    """Which slot holds the state after how many tokens of the text; the state before the first is always there."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._at: dict[int, int] = {}
        self._prompt = 0  # tokens at the end of the last call of several

    def latest(self, tokens: int) -> int:
        """The most tokens, of at most so many, whose state is known."""
        return max((at for at in self._at if at <= tokens), default=0)

    def slot(self, tokens: int) -> int:
        """Where the state after so many tokens lies, which must be known."""
        return self._at[tokens] if tokens else 0

    def forget(self, tokens: int) -> None:
        """The text has changed after its first `tokens`."""
        self._at = {at: slot for at, slot in self._at.items() if at <= tokens}

    def targets(self, past: int, count: int) -> list[int]:
        """Slots for `count` new states of a call that reads the state after `past` tokens.

        What is read stays, and the end of the last prompt as long as others are left; of these the oldest go first.
        """
        self.forget(past)
        used = set(self._at.values())
        free = [slot for slot in range(1, self._slots) if slot not in used]
        old = sorted((at for at in self._at if at != past), key=lambda at: (at == self._prompt, at))
        return (free + [self._at[at] for at in old])[:count]

    def store(self, past: int, tokens: int, targets: list[int]) -> None:
        """A call went well: entry j of the targets holds the state j tokens before its end."""
        taken = set(targets)
        self._at = {at: slot for at, slot in self._at.items() if slot not in taken}
        self._at.update({past + tokens - j: slot for j, slot in enumerate(targets)})
        if tokens > 1:
            self._prompt = past + tokens
