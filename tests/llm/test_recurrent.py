"""Checkpoints of recurrent states: random texts that go on, are taken back and go on otherwise."""

from __future__ import annotations

import functools
import math

import numpy as np
import presence
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jackfield as jf
from jackfield import ops
from jackfield_llm.hyperparameters import RecurrentKind
from jackfield_llm.recurrent import Checkpoints, Recurrent, fed, slot_count, snapshot_count

HEADS, SIZE, STATE, TAPS = 2, 3, 4, 3
WIDTH = HEADS * SIZE
BIG = 1e9  # softplus of its negative is zero
STEPS = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 9)), min_size=1, max_size=12)
"""Tokens that are taken back, then tokens that follow."""


# ---- which slot holds what


@given(STEPS, st.integers(0, 5), st.booleans())
def test_a_slot_holds_what_the_table_says(steps, rollback, several):
    """Against a list of slots that each remember the text they were written after."""
    kind = RecurrentKind(TAPS, several)
    table = Checkpoints(slot_count(rollback))
    memory: list[tuple[int, ...]] = [()] * slot_count(rollback)
    text: list[int] = []
    fresh, last = iter(range(10**6)), 0
    for back, tokens in steps:
        kept = max(0, len(text) - back)
        at = table.latest(kept)
        if at is None:
            memory, at = [()] * slot_count(rollback), 0
            table.cleared()
        assert at <= kept
        if several and back <= min(rollback, last):
            assert at == kept  # what was promised not to be evaluated again
        table.forget(at)
        again = text[at:kept]
        text = text[:kept] + [next(fresh) for _ in range(tokens)]
        count = min(len(again) + tokens, snapshot_count(kind, 512, rollback))
        source = table.slot(at)
        assert memory[source] == tuple(text[:at])
        targets = table.targets(at, count)
        assert len(set(targets)) == len(targets) == count
        assert source not in targets
        for j, slot in enumerate(targets):
            memory[slot] = tuple(text[: len(text) - j])
        table.store(at, len(text) - at, targets)
        last = len(text) - at
        assert table.latest(len(text)) == len(text)


def test_the_end_of_a_prompt_outlives_the_tokens_after_it():
    table = Checkpoints(slot_count(0))
    table.store(0, 20, table.targets(0, 1))
    for past in range(20, 60):
        table.store(past, 1, table.targets(past, 1))
    assert table.latest(59) == 59
    assert table.latest(58) == 20
    assert table.latest(19) is None
    table.forget(20)
    table.store(20, 7, table.targets(20, 1))
    assert table.latest(27) == 27


# ---- what the graph does with them


class Layer:
    """A convolution over time and a scan, as Mamba 2 has them; one plan a row count."""

    def __init__(self, device: str, rollback: int, *, snapshots: bool = True) -> None:
        self.kind, self.rollback = RecurrentKind(TAPS, snapshots), rollback
        self.session = jf.Session(device)
        self.table = Checkpoints(slot_count(rollback))
        rng = np.random.default_rng(5)
        self.taps = rng.normal(size=(WIDTH, TAPS + 1)).astype(np.float32)
        self.a = -rng.uniform(0.1, 2, (HEADS, 1 if snapshots else STATE)).astype(np.float32)
        self.plans: dict[int, jf.Plan] = {}

    def clear(self) -> None:
        for state in self.session.states.values():
            state.clear()
        self.table.cleared()

    def plan(self, rows: int) -> jf.Plan:
        if rows not in self.plans:
            y, changes = self.graph(rows)
            self.plans[rows] = self.session.compile(y, changes=changes)
        return self.plans[rows]

    def graph(self, rows: int) -> tuple[jf.Tensor, list[jf.Tensor]]:
        r = Recurrent(self.kind, rows, self.rollback)
        x = jf.input("x", (rows, WIDTH))
        joined = r.shifted("conv", x, TAPS)
        mixed = ops.ssm_conv(
            ops.reshape(ops.transpose(joined, axes=(1, 0)), shape=(1, WIDTH, TAPS + rows)), jf.constant(self.taps)
        )
        heads = ops.reshape(mixed, shape=(1, rows, HEADS, SIZE))
        idle = ops.add(ops.scale(r.live, scale=BIG), jf.constant(np.full(1, -BIG, np.float32)))
        dt = ops.add(mixed[0, :, :HEADS], idle)
        parts = (ops.contiguous(mixed[0, :, at : at + STATE]) for at in (0, WIDTH - STATE))
        b, c = (ops.reshape(part, shape=(1, rows, 1, STATE)) for part in parts)
        packed = ops.ssm_scan(
            r.state("scan", (HEADS, SIZE, STATE)),
            heads,
            ops.reshape(dt, shape=(1, rows, HEADS)),
            jf.constant(self.a),
            b,
            c,
            r.source,
            snapshots=r.snapshots,
        )
        size = rows * WIDTH
        r.keep("scan", ops.reshape(packed[size:], shape=(r.snapshots, HEADS, SIZE, STATE)))
        return ops.reshape(packed[:size], shape=(rows, WIDTH)), r.changes

    def run(self, rows: int, past: int, x: np.ndarray) -> np.ndarray:
        """Results [tokens, WIDTH] of the tokens x, which follow `past` others."""
        count = snapshot_count(self.kind, rows, self.rollback)
        targets = self.table.targets(past, min(count, len(x)))
        feeds = fed(rows, rows - len(x), self.table.slot(past), targets + [-1] * (count - len(targets)), self.kind)
        padded = np.full((rows, WIDTH), 3.0, np.float32)
        padded[rows - len(x) :] = x
        plan = self.plan(rows)
        out = plan(x=padded, **{name: feeds[name] for name in plan.inputs if name != "x"})
        self.table.store(past, len(x), targets)
        return out[rows - len(x) :]


def recomputed(layer: Layer, text: np.ndarray) -> np.ndarray:
    """The same in float64, token by token, from nothing."""
    state = np.zeros((HEADS, SIZE, STATE))
    behind = np.concatenate([np.zeros((TAPS, WIDTH)), text.astype(np.float64)])
    rows = []
    for t in range(len(text)):
        mixed = (behind[t : t + TAPS + 1].T * layer.taps).sum(axis=1)
        step = np.array([math.log1p(math.exp(v)) for v in mixed[:HEADS]])[:, None, None]
        b, c = mixed[:STATE], mixed[WIDTH - STATE :]
        state = state * np.exp(step * layer.a[:, None, :]) + step * mixed.reshape(HEADS, SIZE, 1) * b
        rows.append((state * c).sum(axis=2).reshape(WIDTH))
    return np.array(rows).reshape(-1, WIDTH)


@pytest.fixture(params=["reference", "cpu:0"])
def device(request):
    return presence.opens(request.param)


@pytest.mark.parametrize("snapshots", [True, False], ids=["snapshots", "end-state"])
@pytest.mark.parametrize("rollback", [0, 1, 4])
def test_accepted_and_rejected_tokens(rollback, snapshots, device):
    """Whatever was taken back, the results are those of the text as if it had been read at once."""
    layer = Layer(device, rollback, snapshots=snapshots)
    rng = np.random.default_rng(rollback)
    text, replayed = np.zeros((0, WIDTH), np.float32), 0
    for _ in range(60):
        back = int(rng.integers(0, min(len(text), 8) + 1)) if rng.random() < 0.6 else 0
        kept = len(text) - back
        at = layer.table.latest(kept)
        if at is None:
            at = 0
            layer.clear()
        layer.table.forget(at)
        new = rng.normal(size=(int(rng.integers(1, 7)), WIDTH)).astype(np.float32)
        text = np.concatenate([text[:kept], new])
        replayed += kept - at
        left = text[at:]
        while len(left):  # padded, or in two parts
            rows = int(rng.choice([n for n in (1, 4, 32) if n == 32 or n <= len(left)]))
            part = left[: min(rows, len(left))]
            past = len(text) - len(left)
            got = layer.run(rows, past, part)
            want = recomputed(layer, text[: past + len(part)])[past:]
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)
            left = left[len(part) :]
    assert replayed or (snapshots and rollback > 3)
    layer.session.close()


def test_padding_alone_changes_nothing(device):
    layer = Layer(device, 2)
    x = np.random.default_rng(1).normal(size=(2, WIDTH)).astype(np.float32)
    layer.run(32, 0, x)
    conv, scan = (layer.session.states[name].read() for name in ("conv", "scan"))
    end, before = (layer.table.slot(n) for n in (2, 1))
    assert np.array_equal(conv[end].reshape(TAPS, WIDTH)[1:], x)
    assert not conv[end].reshape(TAPS, WIDTH)[0].any()
    assert np.array_equal(conv[before].reshape(TAPS, WIDTH)[-1], x[0])
    assert scan[before].any()
    assert not scan[({0, 1, 2, 3, 4} - {end, before}).pop()].any()
    layer.session.close()


# ---- several sequences in one call


class Sequences:
    """The same layer for several texts side by side, whose states lie in one pool of slots, in any order.

    slots: a list for each text, of which its states are in some. known: by text, the slot of each length it can go
    back to.
    """

    def __init__(self, device: str, count: int, snapshots: int, dice: np.random.Generator) -> None:
        self.count, self.snapshots = count, snapshots
        self.layer = Layer(device, 0)
        self.slots = dice.permutation(count * (snapshots + 1)).reshape(count, -1)
        self.known = [{0: int(slots[0])} for slots in self.slots]
        self.plans: dict[int, jf.Plan] = {}

    def plan(self, tokens: int) -> jf.Plan:
        if tokens not in self.plans:
            y, changes = self.graph(tokens)
            self.plans[tokens] = self.layer.session.compile(y, changes=changes)
        return self.plans[tokens]

    def graph(self, tokens: int) -> tuple[jf.Tensor, list[jf.Tensor]]:
        count, kept, total = self.count, min(tokens, self.snapshots), self.slots.size
        x, ids = jf.input("x", (count, tokens, WIDTH)), jf.input("ids", (count,), jf.i32)
        targets = jf.input("targets", (kept * count,), jf.i32)
        conv, scan = jf.state("conv", (total, TAPS * WIDTH)), jf.state("scan", (total, HEADS, SIZE, STATE))
        behind = ops.reshape(ops.take_rows(conv, ids), shape=(count, TAPS, WIDTH))
        joined = ops.concatenate(behind, x, axis=1)
        mixed = ops.ssm_conv(ops.contiguous(ops.transpose(joined, axes=(0, 2, 1))), jf.constant(self.layer.taps))
        b, c = (ops.reshape(mixed[:, :, at : at + STATE], shape=(count, tokens, 1, STATE)) for at in (0, WIDTH - STATE))
        packed = ops.ssm_scan(
            scan,
            ops.reshape(mixed, shape=(count, tokens, HEADS, SIZE)),
            ops.contiguous(mixed[:, :, :HEADS]),
            jf.constant(self.layer.a),
            b,
            c,
            ids,
            snapshots=kept,
        )
        size = count * tokens * WIDTH
        states = ops.reshape(packed[size:], shape=(kept * count, HEADS * SIZE * STATE))
        rows = [
            ops.reshape(joined[:, tokens - j : tokens - j + TAPS], shape=(count, TAPS * WIDTH)) for j in range(kept)
        ]
        changes = [
            ops.put_rows(conv, functools.reduce(lambda a, b: ops.concatenate(a, b, axis=0), rows), targets),
            ops.put_rows(ops.reshape(scan, shape=(total, HEADS * SIZE * STATE)), states, targets),
        ]
        return ops.reshape(packed[:size], shape=(count, tokens, WIDTH)), changes

    def run(self, lengths: list[int], x: np.ndarray) -> np.ndarray:
        """Results of tokens that follow the first of each text, of which `lengths` are kept."""
        tokens = x.shape[1]
        ids = [known[length] for known, length in zip(self.known, lengths, strict=True)]
        kept = min(tokens, self.snapshots)
        free = [[s for s in slots if s != at] for slots, at in zip(self.slots, ids, strict=True)]
        targets = np.array([[free[text][j] for text in range(self.count)] for j in range(kept)], np.int32)
        out = self.plan(tokens)(x=x, ids=np.array(ids, np.int32), targets=targets.reshape(-1))
        for text, (known, length) in enumerate(zip(self.known, lengths, strict=True)):
            at = known[length]
            known.clear()
            known.update({length: at, **{length + tokens - j: int(targets[j, text]) for j in range(kept)}})
        return out


@pytest.mark.parametrize(("count", "snapshots"), [(2, 1), (3, 4)])
def test_several_texts_go_back_each_by_itself(count, snapshots, device):
    """More tokens than states are kept of, texts that go back by different numbers, and every slot of the pool."""
    dice = np.random.default_rng(count)
    group = Sequences(device, count, snapshots, dice)
    texts = [np.zeros((0, WIDTH), np.float32)] * count
    used, apart = set(), 0
    for _ in range(40):
        tokens = int(dice.integers(1, 8))
        lengths = [int(dice.choice(list(known))) for known in group.known]
        apart += len({len(text) - length for text, length in zip(texts, lengths, strict=True)}) > 1
        x = dice.normal(size=(count, tokens, WIDTH)).astype(np.float32)
        texts = [np.concatenate([text[:n], new]) for text, n, new in zip(texts, lengths, x, strict=True)]
        got = group.run(lengths, x)
        for text, length, rows in zip(texts, lengths, got, strict=True):
            np.testing.assert_allclose(rows, recomputed(group.layer, text)[length:], rtol=2e-4, atol=2e-4)
        used |= {slot for known in group.known for slot in known.values()}
    assert apart > 10
    assert used == set(range(count * (snapshots + 1)))
    group.layer.session.close()
