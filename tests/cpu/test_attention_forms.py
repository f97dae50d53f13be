"""Every form of attention at every level, over caches of floats and of blocks: each is what softmax by hand makes of
it, and forms that say the same agree.

Drawn are few and many query rows, so that both ways of the kernel are taken, and numbers of workers. What no query sees
of a cache is NaN.
"""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
from attention_caches import CODED, channels, coded, plain, run, spoil
from attention_oracle import add_optional, cache, kept_columns, nmse, oracle
from hypothesis import given, settings
from hypothesis import strategies as st
from one_step import LEVELS

FLOATS = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
KINDS = (*FLOATS, "q8_0", "q4_0", "mixed")  # mixed: keys and values of any dtypes, with whole blocks
pytestmark = [pytest.mark.parametrize("kind", KINDS), pytest.mark.parametrize("level", LEVELS)]
EXACT = 1e-8  # of the oracle over what the cache holds: all sums are f32
ALIKE = 1e-10  # of another form, whose sums are in another order
INF = np.inf


class Draw:
    """One example: extents, operands and attributes of a step, drawn one by one."""

    def __init__(self, data, kind):
        self.data, self.kind, self.blocks = data, kind, kind not in FLOATS
        self.rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
        self.S, self.groups = self.pick(1, 2), self.pick(1, 2, 3)
        self.H = self.groups * self.pick(1, 2, 3, 5)
        self.T, self.N = self.pick(1, 1, 2, 4, 7, 33), self.pick(1, 5, 31, 65, 130, 300, 520)
        self.dk, self.dv = (32 * self.pick(1, 2, 3), 32 * self.pick(1, 2, 5)) if self.blocks else self.sizes()
        self.threads = self.pick(1, 2, 3, 5)

    def pick(self, *options):
        return self.data.draw(st.sampled_from(options))

    def sizes(self):
        return self.pick(1, 8, 20, 48, 64), self.pick(1, 16, 33, 64)

    def rows(self, streams, count, size, dtype):
        """A cache of this dtype: (streams, groups, count, size)."""
        floats = cache(self.rng, streams, self.groups, count, size, FLOATS.get(dtype, np.float32))
        return coded(floats, dtype) if dtype in CODED else floats

    def dtypes(self):
        """Of keys and values. Of blocks are both or one, the other f32."""
        if self.kind == "mixed":
            return self.pick(*FLOATS, *CODED), self.pick(*FLOATS, *CODED)
        both = (self.kind, self.kind)
        return self.pick(both, both, (self.kind, "f32"), ("f32", self.kind)) if self.blocks else both

    def queries(self):
        made = self.rng.standard_normal((self.S, self.T, self.H, self.dk)).astype(np.float32)
        return made.transpose(0, 2, 1, 3)

    def operands(self, streams=None, count=None):
        """q, k and v; the cache of other extents where they are told."""
        streams, count = self.S if streams is None else streams, self.N if count is None else count
        sizes = zip((self.dk, self.dv), self.dtypes(), strict=True)
        k, v = (self.rows(streams, count, size, dtype) for size, dtype in sizes)
        return {"q": self.queries(), "k": k, "v": v}

    def viewed(self, streams, count):
        """q, k and a v that is a view of k: its first channels or later ones."""
        unit = 32 if self.blocks else 1
        size = unit * self.data.draw(st.integers(1, self.dk // unit))
        first = unit * self.data.draw(st.integers(0, (self.dk - size) // unit))
        k = self.rows(streams, count, self.dk, self.pick(*CODED) if self.kind == "mixed" else self.kind)
        return {"q": self.queries(), "k": k, "v": channels(k, first, size)}

    def list(self, count):
        """kv_rows i32 (S, N) over a cache of so many rows: any order, some twice, some padding."""
        return self.rng.integers(-1, count, (self.S, self.N)).astype(np.int32)

    def lengths(self):
        return self.rng.integers(0, self.N + 1, self.S).astype(np.int32)

    def mask(self, open_part=0.6):
        """Of every stream and every query, so that it goes with lists; sometimes with more rows than there are."""
        shape = (self.S, self.pick(1, self.H), self.T + self.pick(0, 2), self.N)
        mask = self.rng.standard_normal(shape).astype(self.pick(np.float16, np.float32))
        mask[self.rng.random(shape) > open_part] = -INF
        return mask

    def narrowed(self):
        """Attributes that hide columns."""
        return {"causal": self.pick(False, True), "window": self.pick(0, 0, 1, 3, 40)}

    def attrs(self):
        return {"scale": 0.15, "logit_softcap": self.pick(0.0, 0.0, 2.5), **self.narrowed()}

    def run(self, arrays, **attrs):
        return run(arrays, self.level, self.threads, **attrs)


@pytest.fixture
def example(kind, level):
    """What draws an example for this level."""

    def drawn(data):
        made = Draw(data, kind)
        made.level = level
        return made

    return drawn


def most_open(mask):
    """The largest number of columns that one row of a mask opens."""
    return int((mask != -INF).sum(-1).max(initial=0))


def unseen_rows(arrays, *, causal, window):
    """Indices (stream, group, row) of the cache that no query sees, from the words of the declaration."""
    q, k, mask, rows = arrays["q"], arrays["k"], arrays.get("mask"), arrays.get("kv_rows")
    S, H, T, _ = q.shape
    N = k.shape[2] if rows is None else rows.shape[1]
    lengths = arrays.get("kv_len", np.full(S, N))
    unseen = np.ones(k.shape[:3], np.bool_)
    for s, h, t in itertools.product(range(S), range(H), range(T)):
        kept = kept_columns(lengths[s], N, lengths[s] - T + t, causal=causal, window=window)
        if mask is not None:
            kept = kept[mask[s % mask.shape[0], h % mask.shape[1], t, kept] != -INF]
        found = kept if rows is None else rows[s, kept]
        unseen[0 if rows is not None else s, h // (H // k.shape[1]), found[found >= 0]] = False
    return np.nonzero(unseen)


@settings(max_examples=60)
@given(st.data())
def test_every_form_is_what_the_oracle_makes(example, data):
    """All operands and attributes, alone and together, with a list or without, and a value of its own or of the key."""
    it = example(data)
    listed, viewed = it.pick(False, True), it.pick(False, True)
    streams, count = (1, it.pick(1, 40, 200)) if listed else (it.S, it.N)
    arrays = (it.viewed if viewed else it.operands)(streams, count)
    attrs = it.attrs() | add_optional(arrays, it.pick, it.rng, (it.S, it.H, it.T, it.N))
    if listed:
        arrays["kv_rows"] = it.list(count)
        if "mask" in arrays and arrays["mask"].shape[0] != it.S:
            arrays["mask"] = arrays["mask"].repeat(it.S, 0)
        if "mask" not in arrays and "kv_len" not in arrays:
            arrays["kv_len"] = it.lengths()
    hint = {}
    if "mask" in arrays and not listed and it.pick(False, True):
        hint = {"kv_limit": max(1, most_open(arrays["mask"]))}
    unseen = unseen_rows(arrays, causal=attrs["causal"], window=attrs["window"])
    spoil(arrays["k"], *unseen)
    spoil(arrays["v"], *unseen)
    assert nmse(it.run(arrays, **attrs, **hint), oracle(**plain(arrays), **attrs)) <= EXACT


# ---- kv_rows


def with_validity(it, arrays):
    """A list needs a length or a mask, which say which columns count."""
    which = it.pick("kv_len", "mask", "both")
    more = {} if which == "mask" else {"kv_len": it.lengths()}
    return arrays | more | ({} if which == "kv_len" else {"mask": it.mask()})


@settings(max_examples=25)
@given(st.data())
def test_the_list_of_all_rows_is_no_list(example, data):
    """Streams one behind the other in a cache that all share, each with the list of its own rows."""
    it = example(data)
    arrays, attrs = with_validity(it, it.operands()), it.attrs()
    rows = np.arange(it.S * it.N, dtype=np.int32).reshape(it.S, it.N)
    joined = {name: np.concatenate(list(arrays[name]), 1)[None] for name in "kv"}
    got = it.run(arrays | joined | {"kv_rows": rows}, **attrs)
    assert nmse(got, it.run(arrays, **attrs)) <= ALIKE


@settings(max_examples=25)
@given(st.data())
def test_a_cache_in_any_order_with_its_list_has_the_same_bits(example, data):
    """Rows are moved to any place of a larger cache, which is NaN elsewhere."""
    it = example(data)
    arrays, attrs = with_validity(it, it.operands(1, it.N)), it.attrs()
    arrays["kv_rows"] = it.list(it.N)
    moved, count = dict(arrays), it.N + it.pick(0, 1, 50)
    place = it.rng.permutation(count)[: it.N]
    for name in "kv":
        moved[name] = np.zeros((1, it.groups, count, *arrays[name].shape[3:]), arrays[name].dtype)
        spoil(moved[name], *np.s_[:, :, :])
        moved[name][:, :, place] = arrays[name]
    moved["kv_rows"] = np.where(arrays["kv_rows"] < 0, arrays["kv_rows"], place[arrays["kv_rows"]]).astype(np.int32)
    np.testing.assert_array_equal(it.run(moved, **attrs), it.run(arrays, **attrs))


@settings(max_examples=25)
@given(st.data())
def test_a_list_reads_what_gathering_its_rows_gives(example, data):
    it = example(data)
    count = it.pick(1, 40, 200)
    arrays, attrs = with_validity(it, it.operands(1, count)), it.attrs()
    rows = it.list(count)
    gathered = {name: arrays[name][0][:, rows].swapaxes(0, 1).copy() for name in "kv"}
    hidden = np.where(rows < 0, -INF, 0.0).astype(np.float16)[:, None, None]
    mask = hidden.repeat(it.T, 2) if "mask" not in arrays else arrays["mask"] + hidden.astype(arrays["mask"].dtype)
    got = it.run(arrays | {"kv_rows": rows}, **attrs)
    assert nmse(got, it.run(arrays | gathered | {"mask": mask}, **attrs)) <= ALIKE


# ---- lengths and what narrows them


def hiding(it, lengths, *, causal, window):
    """The mask that stands for lengths, causal and window: f32 (S, 1, T, N)."""
    mask = np.full((it.S, 1, it.T, it.N), -INF, np.float32)
    for s, t in itertools.product(range(it.S), range(it.T)):
        kept = kept_columns(lengths[s], it.N, lengths[s] - it.T + t, causal=causal, window=window)
        mask[s, 0, t, kept] = 0
    return mask


@pytest.mark.parametrize("form", ["causal", "window", "kv_len", "all"])
@settings(max_examples=15)
@given(st.data())
def test_what_hides_columns_is_its_mask(example, form, data):
    """Alone, and all together beside a mask with slopes."""
    it = example(data)
    arrays = it.operands()
    lengths = it.lengths() if form in ("kv_len", "all") else np.full(it.S, it.N)
    attrs = {"scale": 0.15}
    narrowed = {
        "causal": form in ("causal", "all"),
        "window": it.pick(1, 3, 32, 40) if form in ("window", "all") else 0,
    }
    hidden = hiding(it, lengths, **narrowed)
    more = {"kv_len": lengths.astype(np.int32)} if form in ("kv_len", "all") else {}
    if form == "all":
        more["mask"], attrs["max_bias"] = it.mask().astype(np.float32), it.pick(0.0, 8.0)
        hidden = np.where(hidden == 0, more["mask"][:, :, : it.T], np.float32(-INF))
    want = it.run(arrays | {"mask": hidden}, **attrs)
    assert nmse(it.run(arrays | more, **attrs, **narrowed), want) <= ALIKE


@settings(max_examples=25)
@given(st.data())
def test_a_length_is_a_shorter_cache(example, data):
    it = example(data)
    arrays, attrs = it.operands(), it.attrs()
    length = it.data.draw(st.integers(1, it.N))
    if it.pick(False, True):
        arrays["mask"] = it.mask()
    shorter = arrays | {name: arrays[name][:, :, :length] for name in "kv"}
    shorter |= {"mask": arrays["mask"][..., :length]} if "mask" in arrays else {}
    got = it.run(arrays | {"kv_len": np.full(it.S, length, np.int32)}, **attrs)
    assert nmse(got, it.run(shorter, **attrs)) <= ALIKE


@settings(max_examples=20)
@given(st.data())
def test_a_prompt_is_its_rows_one_by_one(example, data):
    """Many rows by tiles are each row alone by the pieces of its columns."""
    it = example(data)
    arrays, attrs = it.operands(), it.attrs() | {"causal": True}
    lengths = it.lengths()
    together = it.run(arrays | {"kv_len": lengths}, **attrs)
    for t in range(it.T):
        alone = arrays | {"q": arrays["q"][:, :, t : t + 1], "kv_len": np.maximum(lengths - it.T + t + 1, 0)}
        assert nmse(together[:, t : t + 1], it.run(alone, **attrs)) <= ALIKE


@settings(max_examples=20)
@given(st.data())
def test_a_promise_changes_no_bit(example, data):
    """kv_limit beside everything it may stand beside; and alone, of the first columns, it is their number."""
    it = example(data)
    arrays, attrs = it.operands(), it.attrs()
    mask = it.mask(it.pick(0.02, 0.5))
    promised = arrays | {"mask": mask} | ({"kv_len": it.lengths()} if it.pick(False, True) else {})
    got = it.run(promised, **attrs, kv_limit=max(1, most_open(mask)))
    np.testing.assert_array_equal(got, it.run(promised, **attrs))
    first = it.data.draw(st.integers(1, it.N))
    opened = np.where(np.arange(it.N) < first, np.float16(0), np.float16(-INF))
    as_mask = arrays | {"mask": np.broadcast_to(opened, (1, 1, it.T, it.N)).copy()}
    shown = it.run(as_mask, scale=0.15, kv_limit=first)
    assert nmse(shown, it.run(arrays | {"kv_len": np.full(it.S, first, np.int32)}, scale=0.15)) <= ALIKE


# ---- a value that is a view of the key


@settings(max_examples=30)
@given(st.data())
def test_a_value_of_the_key_has_the_bits_of_its_copy(example, data):
    it = example(data)
    listed = it.pick(False, True)
    count = it.pick(1, 40, 200) if listed else it.N
    arrays, attrs = it.viewed(1 if listed else it.S, count), it.attrs()
    more = with_validity(it, {"kv_rows": it.list(count)}) if listed or it.pick(False, True) else {}
    if not listed:
        more.pop("kv_rows", None)
    apart = arrays | {"v": arrays["v"].copy()}
    assert np.shares_memory(arrays["k"], arrays["v"])
    np.testing.assert_array_equal(it.run(arrays | more, **attrs), it.run(apart | more, **attrs))
