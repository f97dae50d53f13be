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
from jackfield.errors import DeviceError, GraphError
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
    """Memory of this process: who writes, and how many at once."""

    def __init__(self, name="host:0", *, visible=True):
        super().__init__(name)
        self.target = Target("host", "numpy", frozenset({"host_visible"} if visible else ()))
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


def turned(nbytes, before=lambda: None):
    def pack(plain, packed):
        before()
        np.frombuffer(packed, np.uint8)[:] = ~np.frombuffer(plain, np.uint8)

    return Packing("turned", nbytes, pack, pack)


def constant(raw, dtype="u8", name="w", packing=None):
    kind = DTYPES[dtype]
    tensor = jf.constant(Raw(dtype, (raw.nbytes // kind.block_nbytes * kind.block,), raw), name=name)
    tensor.source.asked.clear()  # what the graph looked at when it was built
    layout = packing.name if packing else ""
    return Constant(SimpleNamespace(tensor=tensor, window=None, device=0), (name,), layout, raw.nbytes, packing)


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


def test_several_are_packed_at_once():
    """Two wait for each other: alone, neither would get on."""
    meeting = threading.Barrier(2)
    packing = turned(MANY, lambda: meeting.wait(HANG))
    device = Host()
    buffer, places = placed(device, [constant(np.full(MANY, n, np.uint8), packing=packing) for n in range(4)])
    assert len(list(fill(device, places))) == 4
    assert buffer.bytes.tobytes() == b"".join(bytes([255 - n]) * MANY for n in range(4))
    assert threading.current_thread() not in device.writers


def test_a_large_one_comes_alone():
    """A plain and a packed copy of it are in memory meanwhile."""
    inside, most = 0, 0

    def look():
        nonlocal inside, most
        with device.lock:
            inside += 1
            most = max(most, inside)
        time.sleep(0.01)
        with device.lock:
            inside -= 1

    device = Host()
    raws = [np.full(LARGE, n, np.uint8) for n in range(3)]
    buffer, places = placed(device, [constant(raw, packing=turned(LARGE, look)) for raw in raws])
    assert list(fill(device, places)) == places
    assert most == 1
    assert buffer.bytes.tobytes() == b"".join(bytes([255 - n]) * LARGE for n in range(3))


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
def test_where_no_thread_can_be_had_the_caller_does_it_alone(most, monkeypatch):
    begun, start = [], threading.Thread.start

    def limited(thread):
        if len(begun) >= most:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    device = Host()
    parts = [constant(np.full(MANY // 4, value, np.uint8)) for value in range(5)]
    _, places = placed(device, parts)
    assert list(fill(device, places)) == places
    assert device.writers == {threading.current_thread()}
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


def test_what_a_device_raises_in_a_thread_is_contained_and_ends_the_rest(monkeypatch):
    ended = threading.Event()

    class Watched(upload.ThreadPoolExecutor):
        def shutdown(self, wait=True, **options):
            super().shutdown(wait=False, **options)
            ended.set()
            super().shutdown(wait=wait)

    class Full(Host):
        def write(self, buffer, offset, data):
            if offset:  # those beside the first wait until nothing new can begin
                assert ended.wait(HANG)
            raise ValueError("no")

    monkeypatch.setattr(upload, "ThreadPoolExecutor", Watched)
    device = Full()
    _, places = placed(device, [constant(np.zeros(MANY // 4, np.uint8)) for _ in range(16)])
    with pytest.raises(DeviceError, match="host:0: write raised ValueError: no"):
        list(fill(device, places))
    assert sum("data" in c.value.tensor.source.asked for c, _ in places) <= 5  # the first, and one a thread
    assert not [t for t in threading.enumerate() if t.name.startswith("jackfield-upload")]


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q6_K", "mxfp4", "iq1_m"])
@settings(max_examples=10, deadline=None)
@given(block=st.integers(0, 40_000), later=st.integers(0, 40_000))
def test_a_bad_block_is_found_in_every_piece(name, block, later):
    dtype = DTYPES[name]
    raw = np.zeros((40_001, dtype.block_nbytes), np.uint8)
    assert dtype.first_bad_block(raw) is None
    raw[[block, later]] = 255
    assert dtype.first_bad_block(raw) == min(block, later)
