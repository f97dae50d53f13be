"""Constants on their way to a device: several threads, one order, damage named wherever it stands."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from fakes import Minimal
from hypothesis import given, settings
from hypothesis import strategies as st

import jackfield as jf
from jackfield import upload
from jackfield.backend import Packing, Target
from jackfield.dtypes import DTYPES
from jackfield.errors import DeviceError, GraphError, OutOfMemory
from jackfield.packing import Constant
from jackfield.upload import Held, fill

MANY = 1 << 22  # bytes that are worth threads
LARGE = 1 << 23  # bytes of a constant that comes alone
HANG = 60  # seconds


@pytest.fixture(autouse=True)
def four_cores(monkeypatch):
    """The machine of the test may have one."""
    monkeypatch.setattr(upload, "_cores", lambda: 4)


class Raw:
    """A source of bytes that knows whether it was let go after it was read."""

    def __init__(self, dtype, shape, raw):
        self.dtype, self.shape, self.raw, self.asked = DTYPES[dtype], shape, raw, []

    @property
    def data(self):
        self.asked.append("data")
        return memoryview(self.raw).toreadonly()

    def release(self):
        self.asked.append("release")


class Host(Minimal):
    """Memory of this process: who writes, and how many at once. inside: it shows its bytes to be filled in place."""

    def __init__(self, name="host:0", *, visible=True, inside=False):
        super().__init__(name)
        self.target = Target("host", "numpy", frozenset({"host_visible"} if visible else ()))
        self.inside = inside
        self.lock, self.writing, self.most = threading.Lock(), 0, 0
        self.writers = set()

    def write(self, buffer, offset, data):
        with self.lock:
            self.writing += 1
            self.most = max(self.most, self.writing)
            self.writers.add(threading.current_thread())
        time.sleep(0.001)
        super().write(buffer, offset, data)
        with self.lock:
            self.writing -= 1

    def host_bytes(self, buffer, offset, nbytes):
        return buffer.bytes[offset : offset + nbytes].data if self.inside else None


class Together(Host):
    """Brings many pieces in one call. before: what it does first."""

    def __init__(self, *, before=lambda: None):
        super().__init__(inside=True)
        self.before, self.batches = before, []

    def fill(self, pieces):
        self.before()
        with self.lock:
            self.writers.add(threading.current_thread())
            self.batches.append([packed.nbytes for _, _, packed in pieces])
        return super().fill(pieces)


def turned(nbytes, before=lambda: None, part=None, *, looks=False):
    """part: bytes of one; the last may be shorter, and is filled up with 0xA5."""

    def pack(plain, packed):
        before()
        out = np.frombuffer(packed, np.uint8)
        assert len(out) == (len(plain) if part is None else -(-len(plain) // part) * part)
        out[: len(plain)] = ~np.frombuffer(plain, np.uint8)
        out[len(plain) :] = 0xA5

    return Packing("turned", nbytes, pack, pack, None if part is None else (part, part), looks)


def constant(raw, dtype="u8", name="w", packing=None):
    kind = DTYPES[dtype]
    tensor = jf.constant(Raw(dtype, (raw.nbytes // kind.block_nbytes * kind.block,), raw), name=name)
    tensor.source.asked.clear()  # what the graph looked at when it was built
    layout, nbytes = (packing.name, packing.nbytes) if packing else ("", raw.nbytes)
    return Constant(SimpleNamespace(tensor=tensor, window=None, device=0), (name,), layout, nbytes, packing)


def placed(device, constants):
    """Places one after the other in one buffer."""
    buffer = device.alloc(sum(c.nbytes for c in constants), None)
    at = np.cumsum([0, *(c.nbytes for c in constants)]).tolist()
    return buffer, [(c, Held(buffer, offset, c.nbytes)) for c, offset in zip(constants, at[:-1], strict=True)]


@settings(max_examples=20, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 1 << 21), min_size=1, max_size=12),
    packs=st.lists(st.booleans(), min_size=12, max_size=12),
    visible=st.booleans(),
)
def test_every_byte_arrives_in_order_and_every_source_is_let_go(sizes, packs, visible):
    rng = np.random.default_rng(len(sizes))
    raws = [rng.integers(0, 256, n, np.uint8) for n in sizes]
    constants = [
        constant(raw, packing=turned(raw.nbytes) if packed else None)
        for raw, packed in zip(raws, packs, strict=False)
        if raw.nbytes
    ]
    device = Host(visible=visible)
    buffer, places = placed(device, constants)
    assert list(fill(device, places)) == places
    want = [~raw if packed else raw for raw, packed in zip(raws, packs, strict=False)]
    np.testing.assert_array_equal(buffer.bytes, np.concatenate(want) if constants else buffer.bytes)
    for one in constants:
        asked = one.value.tensor.source.asked
        assert asked.count("data") == 1  # u8: nothing to look at before
        assert asked[-1] == "release"
    if not visible:
        assert device.most <= 1


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 70_000), min_size=1, max_size=9),
    parts=st.lists(st.sampled_from([None, 1, 100, 4096, 50_000]), min_size=9, max_size=9),
    inside=st.booleans(),
    together=st.booleans(),
    cores=st.integers(1, 4),
)
def test_constants_that_come_in_pieces_are_whole(sizes, parts, inside, together, cores):
    """None: plain; else the packing takes parts of so many bytes, and the last one is shorter."""
    rng = np.random.default_rng(len(sizes))
    raws = [rng.integers(0, 256, n, np.uint8) for n in sizes]
    packings = [
        None if part is None else turned(-(-raw.nbytes // part) * part, part=part, looks=together)
        for raw, part in zip(raws, parts, strict=False)
    ]
    constants = [constant(raw, packing=packing) for raw, packing in zip(raws, packings, strict=True)]
    device = Together() if together else Host(inside=inside)
    buffer, places = placed(device, constants)
    with pytest.MonkeyPatch.context() as patched:
        for name, nbytes in (("_PIECE", 3000), ("_LEAST", 10_000), ("_WORTH_THREADS", 0)):
            patched.setattr(upload, name, nbytes)
        patched.setattr(upload, "_cores", lambda: cores)
        assert list(fill(device, places)) == places
    for raw, (one, held) in zip(raws, places, strict=True):
        got = buffer.bytes[held.offset : held.offset + held.nbytes]
        np.testing.assert_array_equal(got[: raw.nbytes], ~raw if one.packing else raw)
        assert (got[raw.nbytes :] == 0xA5).all()
        assert one.value.tensor.source.asked == ["data", "release"]
    if together:
        assert not device.counts["write"]
        assert sum(map(sum, device.batches)) == buffer.bytes.nbytes
        return
    packed = sum(c.packing is not None for c in constants)
    assert not inside or device.log == [entry for entry in device.log if entry[1] <= 3000]
    assert packed < len(constants) or not inside or not device.counts["write"]


class Meeting:
    """Who comes waits until another thread has come too: however the work is shared out, a lone one never gets on."""

    def __init__(self):
        self.came, self.met = set(), threading.Event()

    def wait(self):
        self.came.add(threading.get_ident())
        if len(self.came) > 1:
            self.met.set()
        assert self.met.wait(HANG), "no second thread came"


def test_several_are_packed_at_once():
    packing = turned(MANY, Meeting().wait)
    device = Host()
    buffer, places = placed(device, [constant(np.full(MANY, n, np.uint8), packing=packing) for n in range(4)])
    assert len(list(fill(device, places))) == 4
    assert buffer.bytes.tobytes() == b"".join(bytes([255 - n]) * MANY for n in range(4))
    assert len(device.writers) > 1


@pytest.mark.parametrize("inside", [True, False])
def test_one_that_is_packed_in_parts_is_shared_by_threads(inside):
    device = Host(inside=inside)
    raw = np.arange(LARGE, dtype=np.uint32).view(np.uint8)[:LARGE]
    packing = turned(LARGE, Meeting().wait, part=1 << 16)
    buffer, places = placed(device, [constant(raw, packing=packing)])
    assert list(fill(device, places)) == places
    np.testing.assert_array_equal(buffer.bytes, ~raw)


@pytest.mark.parametrize(("inside", "at_once"), [(False, 1), (True, 3)])
def test_a_large_one_packed_as_a_whole_comes_alone_unless_it_is_packed_in_place(inside, at_once):
    """Else a plain and a packed copy of it would be in memory for every thread."""
    within, most, meeting = 0, 0, threading.Barrier(at_once)

    def look():
        nonlocal within, most
        with device.lock:
            within += 1
            most = max(most, within)
        meeting.wait(HANG)
        time.sleep(0.01)
        with device.lock:
            within -= 1

    device = Host(inside=inside)
    raws = [np.full(LARGE, n, np.uint8) for n in range(3)]
    buffer, places = placed(device, [constant(raw, packing=turned(LARGE, look)) for raw in raws])
    assert list(fill(device, places)) == places
    assert most == at_once
    assert buffer.bytes.tobytes() == b"".join(bytes([255 - n]) * LARGE for n in range(3))


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        (lambda raw: raw[:-1].data, "gives 99 bytes: it must give the 100 asked for"),
        (lambda raw: raw.data.toreadonly(), "gives 100 bytes to be read only"),
        (lambda raw: np.repeat(raw, 2)[::2].data, "without gaps"),
    ],
)
def test_a_device_that_shows_the_wrong_bytes_is_found(shown, told):
    device = Host(inside=True)
    device.host_bytes = lambda buffer, offset, nbytes: shown(buffer.bytes[offset : offset + nbytes])
    _, places = placed(device, [constant(np.zeros(100, np.uint8), packing=turned(100))])
    with pytest.raises(DeviceError, match=f"host:0: host_bytes .*{told}"):
        list(fill(device, places))


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("looks", [True, False])
def test_a_packing_that_looks_for_damage_is_believed(looks, inside, monkeypatch):
    """The core does not look again; what it tells is a block of the piece, which is one of a row of the constant."""
    q8, asked = DTYPES["q8_0"], []
    monkeypatch.setattr(upload, "_PIECE", 64 * q8.block_nbytes)
    monkeypatch.setattr(type(q8), "first_bad_block", lambda self, raw: asked.append(len(raw)))

    def pack(plain, packed):
        packed[:] = plain
        blocks = np.frombuffer(plain, np.uint8).reshape(-1, q8.block_nbytes)[:, 2]
        return int(np.argmax(blocks)) if blocks.any() else None

    raw = np.zeros((1 << 8, q8.block_nbytes), np.uint8)
    raw[200, 2] = raw[77, 2] = 1  # what this packing takes for damage
    packing = Packing("own", raw.nbytes, pack, None, (q8.block_nbytes, q8.block_nbytes), looks)
    device = Host(inside=inside)
    _, places = placed(device, [constant(raw.reshape(-1), "q8_0", packing=packing)])
    if looks:
        with pytest.raises(GraphError, match=r"'w' .* block 77 of row 0 has a scale"):
            list(fill(device, places))
        assert not asked
    else:
        assert list(fill(device, places)) == places
        assert sum(asked) == raw.nbytes


@settings(max_examples=10, deadline=None)
@given(block=st.integers(0, (1 << 18) - 1), later=st.integers(0, (1 << 18) - 1))
def test_damage_in_a_large_one_is_named_by_its_first_block(block, later):
    """Several threads look at a part each."""
    raw = np.zeros((1 << 18, 34), np.uint8)
    assert raw.nbytes > LARGE
    raw[[block, later], 1] = 0xFC
    device = Host()
    small = [constant(np.zeros(34, np.uint8), "q8_0")]
    _, places = placed(device, [constant(raw.reshape(-1), "q8_0"), *small])
    with pytest.raises(GraphError, match=rf"'w' .* block {min(block, later)} of row 0 has a scale"):
        list(fill(device, places))


@pytest.mark.parametrize("most", [0, 1, 3])
def test_where_fewer_threads_can_be_had_those_there_are_do_it(most, monkeypatch):
    begun, start = [], threading.Thread.start

    def limited(thread):
        if len(begun) >= most:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    device = Host()
    parts = [constant(np.full(MANY // 2, value, np.uint8)) for value in range(9)]
    buffer, places = placed(device, parts)
    assert list(fill(device, places)) == places
    assert buffer.bytes.tobytes() == b"".join(bytes([n]) * (MANY // 2) for n in range(9))
    assert device.writers <= {threading.current_thread(), *begun}
    assert len(begun) == most
    assert not any(thread.is_alive() for thread in begun)


def test_no_thread_writes_on_after_the_caller_has_gone(monkeypatch):
    """A Session frees its buffers then."""
    device = Host()
    _, places = placed(device, [constant(np.full(MANY // 4, value, np.uint8)) for value in range(9)])
    before = set(threading.enumerate())
    filled = fill(device, places)
    next(filled)
    filled.close()
    assert set(threading.enumerate()) <= before


def test_a_few_bytes_are_not_worth_a_thread():
    device = Host()
    _, places = placed(device, [constant(np.zeros(1000, np.uint8)) for _ in range(5)])
    assert len(list(fill(device, places))) == 5
    assert device.writers == {threading.current_thread()}


def test_a_device_with_memory_of_its_own_is_written_to_by_one_at_a_time():
    device = Host(visible=False)
    _, places = placed(device, [constant(np.zeros(MANY // 8, np.uint8)) for _ in range(32)])
    assert len(list(fill(device, places))) == 32
    assert device.most == 1
    assert len(device.writers) > 1


@settings(max_examples=20, deadline=None)
@given(damaged=st.sets(st.integers(0, 7), min_size=1, max_size=3), block=st.integers(0, 65_535))
def test_the_first_damaged_one_is_named_whichever_thread_finds_it(damaged, block):
    q8 = DTYPES["q8_0"]
    good = np.zeros((1 << 16, q8.block_nbytes), np.uint8)
    bad = good.copy()
    bad[block, 1] = 0x7C
    raws = [bad if n in damaged else good for n in range(8)]
    constants = [constant(raw.reshape(-1), "q8_0", f"w{n}") for n, raw in enumerate(raws)]
    device = Host()
    _, places = placed(device, constants)
    done = []
    with pytest.raises(GraphError, match=rf"'w{min(damaged)}' .* block {block} of row 0 has a scale"):
        done.extend(place for place in fill(device, places))
    assert done == places[: min(damaged)]


def test_what_a_device_raises_in_a_thread_is_contained_and_ends_the_rest():
    first = threading.Event()

    class Full(Host):
        def write(self, buffer, offset, data):
            if offset:  # those beside the first wait for it
                assert first.wait(HANG)
            first.set()
            raise ValueError("no")

    device = Full()
    _, places = placed(device, [constant(np.zeros(MANY // 4, np.uint8)) for _ in range(32)])
    with pytest.raises(DeviceError, match="host:0: write raised ValueError: no"):
        list(fill(device, places))
    assert sum("data" in c.value.tensor.source.asked for c, _ in places) <= 4  # one a thread
    assert not [t for t in threading.enumerate() if t.name.startswith("jackfield-crew")]


def test_no_memory_for_a_packed_form_is_told_as_that(monkeypatch):
    def refused(*_a, **_k):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(upload.mmap, "mmap", refused)
    device = Host(inside=False)
    raw = np.zeros(1 << 12, np.uint8)
    _, places = placed(device, [constant(raw, packing=turned(raw.nbytes))])
    with pytest.raises(OutOfMemory, match="packing: no 4096 bytes of host memory"):
        list(fill(device, places))


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q6_K", "mxfp4", "iq1_m"])
@settings(max_examples=10, deadline=None)
@given(block=st.integers(0, 40_000), later=st.integers(0, 40_000))
def test_a_bad_block_is_found_in_every_piece(name, block, later):
    dtype = DTYPES[name]
    raw = np.zeros((40_001, dtype.block_nbytes), np.uint8)
    assert dtype.first_bad_block(raw) is None
    raw[[block, later]] = 255
    assert dtype.first_bad_block(raw) == min(block, later)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 200), max_size=80), st.integers(1, 50), st.integers(50, 400))
def test_batches_grow_small_and_hold_every_piece_in_its_order(sizes, least, most):
    """One is a share of what is left, so that at the end nobody waits long, or has much of a file in memory."""
    pieces = [SimpleNamespace(packed=n) for n in sizes]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(upload, "_LEAST", least)
        patched.setattr(upload, "_MOST", most)
        batches = list(upload._batches(pieces))
    assert [id(piece) for batch in batches for piece in batch] == [id(piece) for piece in pieces]
    left = sum(sizes)
    for batch in batches[:-1]:
        *others, last = [piece.packed for piece in batch]
        wanted = min(max(left // upload._SHARE, least), most)
        assert sum(others) < wanted <= sum(others) + last
        left -= sum(others) + last


@settings(max_examples=20, deadline=None)
@given(
    damaged=st.sets(st.integers(0, 7), min_size=1, max_size=3), block=st.integers(0, 65_535), unread=st.integers(0, 9)
)
def test_damage_found_in_one_call_for_many_is_named_by_its_first_block(damaged, block, unread):
    """unread: one whose bytes can't be had; what is damaged before it is named first."""
    q8 = DTYPES["q8_0"]
    good = np.zeros((1 << 16, q8.block_nbytes), np.uint8)
    bad = good.copy()
    bad[block, 1] = 0x7C

    def pack(plain, packed):
        packed[:] = plain
        return q8.first_bad_block(np.frombuffer(plain, np.uint8))

    packing = Packing("own", good.nbytes, pack, None, (q8.block_nbytes, q8.block_nbytes), looks=True)
    raws = [bad if n in damaged else good for n in range(8)]
    constants = [constant(raw.reshape(-1), "q8_0", f"w{n}", packing) for n, raw in enumerate(raws)]
    if unread < 8:
        constants[unread].value.tensor.source.raw = None  # no buffer
    _, places = placed(Together(), constants)
    done, first = [], min(damaged)
    told = "has no bytes as its data" if unread <= first else rf"'w{first}' .* block {block} of row 0 has a scale"
    with pytest.raises(GraphError, match=told):
        done.extend(place for place in fill(Together(), places))
    assert done == places[: min(first, unread)]


def test_what_a_device_raises_for_many_is_contained():
    def fails():
        raise ValueError("no")

    device = Together(before=fails)
    _, places = placed(device, [constant(np.zeros(MANY, np.uint8)) for _ in range(4)])
    with pytest.raises(DeviceError, match="host:0: fill"):
        list(fill(device, places))


def test_a_call_for_many_takes_no_window_and_no_packing_that_leaves_the_look_to_the_core():
    device = Together()
    raw = np.arange(100, dtype=np.uint8)
    _, places = placed(device, [constant(raw, packing=turned(100)), constant(raw)])
    assert list(fill(device, places)) == places
    assert not device.batches  # one piece that it can't take: all of the batch goes piece by piece


@pytest.mark.parametrize("make", [Host, Together])
def test_constants_come_while_the_caller_does_something_else(make):
    """It is called once, in the caller's thread, and others bring the first constants before it has ended."""
    device = make()
    called, arrived = [], threading.Event()
    packing = turned(MANY, arrived.set, looks=True)
    buffer, places = placed(device, [constant(np.full(MANY, n, np.uint8), packing=packing) for n in range(6)])

    def meanwhile():
        called.append(threading.current_thread())
        assert arrived.wait(HANG)

    assert list(fill(device, places, meanwhile)) == places
    assert called == [threading.current_thread()]
    assert buffer.bytes.tobytes() == b"".join(bytes([255 - n]) * MANY for n in range(6))


@pytest.mark.parametrize("cores", [1, 2])
def test_what_the_caller_does_may_fail_and_no_thread_goes_on(cores, monkeypatch):
    monkeypatch.setattr(upload, "_cores", lambda: cores)
    device = Together()
    _, places = placed(device, [constant(np.zeros(MANY, np.uint8)) for _ in range(6)])
    before = set(threading.enumerate())

    def meanwhile():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        list(fill(device, places, meanwhile))
    assert set(threading.enumerate()) <= before


def test_with_one_core_or_little_to_bring_no_thread_is_started_for_it(monkeypatch):
    for cores, nbytes in ((1, MANY), (4, 1000)):
        monkeypatch.setattr(upload, "_cores", lambda cores=cores: cores)
        device, called = Together(), []
        _, places = placed(device, [constant(np.zeros(nbytes, np.uint8)) for _ in range(3)])
        assert list(fill(device, places, lambda called=called: called.append(1))) == places
        assert called == [1]
        assert device.writers == {threading.current_thread()}
