"""The packed layout rows16, and how packed constants come to lie in memory: its bytes by numpy, pages by Linux."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from block_bits import random_blocks
from hypothesis import given, settings
from hypothesis import strategies as st

import jackfield as jf
from jackfield import ops
from jackfield.backend import Spec, Step
from jackfield.dtypes import DTYPES
from jackfield.errors import ForkedError, GraphError
from jackfield.graph import ArraySource
from jackfield_cpu import CpuBackend, _native

GROUP = 16
HUGE = 2 << 20
WAKES = 1 << 20  # plain bytes that are worth a worker

# Where the parts of a plain block go, after the table of the layout: (first byte, bytes, bytes a lane), scales before
# quants. What is turned round on the way is in `TURNS`.
QUARTER = 4
LAYOUT = {
    "q4_0": [(0, 2, 2), (2, 16, QUARTER)],
    "iq4_nl": [(0, 2, 2), (2, 16, QUARTER)],
    "q2_K": [(80, 2, 2), (82, 2, 2), (0, 80, QUARTER)],
    "q3_K": [(108, 2, 2), (0, 108, QUARTER)],
    "iq4_xs": [(0, 2, 2), (2, 6, 1), (8, 128, QUARTER)],
    "q4_1": [(0, 2, 2), (2, 2, 2), (4, 16, QUARTER)],
    "q5_0": [(0, 2, 2), (2, 20, QUARTER)],
    "q5_1": [(0, 2, 2), (2, 2, 2), (4, 20, QUARTER)],
    "q8_0": [(0, 2, 2), (2, 32, QUARTER)],
    "q4_K": [
        (0, 2, 2),
        (2, 2, 2),
        *(f for p in range(4) for f in ((4 + 2 * p, 2, 1), (12 + p, 1, 1), (16 + 32 * p, 32, QUARTER))),
    ],
    "q5_K": [(0, 2, 2), (2, 2, 2), (4, 12, 1), (16, 160, QUARTER)],
    "q6_K": [(208, 2, 2), *(part for u in range(8) for part in ((192 + 2 * u, 2, 1), (24 * u, 24, QUARTER)))],
    "mxfp4": [(0, 1, 1), (1, 16, QUARTER)],
    "f32": [(0, 4, QUARTER)],
    "f16": [(0, 2, 2)],
    "bf16": [(0, 4, QUARTER)],  # of two columns
}
FLOATS = ("f32", "f16", "bf16")
PACKED = sorted(
    name for name, dtype in DTYPES.items() if name in FLOATS or (dtype.is_block and not dtype.is_activation)
)


def turned_scales(raw):
    """Twelve bytes of six-bit scales and minima: lower halves of eight pairs, then upper two bits, four at a time."""
    low, high = raw[:, 0:4].astype(int), raw[:, 4:8].astype(int)
    last = raw[:, 8:12].astype(int)
    scale = np.concatenate([low & 63, (last & 15) | low >> 6 << 4], 1)
    least = np.concatenate([high & 63, last >> 4 | high >> 6 << 4], 1)
    upper = [scale[:, ::2] >> 4, least[:, ::2] >> 4, scale[:, 1::2] >> 4, least[:, 1::2] >> 4]
    fourth = sum(part << 2 * i for i, part in enumerate(upper))
    return np.concatenate([(scale & 15) | (least & 15) << 4, fourth], 1).astype(np.uint8)


def turned_bits(raw):
    """Four bytes with a bit an element, as a matrix of eight rows of four elements, transposed."""
    bits = np.unpackbits(raw, axis=1, bitorder="little").reshape(-1, 8, 4)
    return np.packbits(bits.transpose(0, 2, 1).reshape(-1, 32), axis=1, bitorder="little")


def turned_sixes(raw):
    """Elements of six bits, 32 side by side: the lower four of 0..15 and 16..31, then the upper two of each eight."""
    lower, upper = raw[:, :128].reshape(-1, 2, 1, 2, 32), raw[:, 128:].reshape(-1, 2, 1, 32)
    fours = (lower >> np.array([0, 4], np.uint8)[:, None, None]) & 15
    twos = (upper >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3
    fours, twos = fours.reshape(-1, 8, 2, 16), twos.reshape(-1, 8, 4, 8)
    low = fours[:, :, 0] | fours[:, :, 1] << 4
    high = sum(twos[:, :, i] << 2 * i for i in range(4))
    return np.concatenate([low, high], 2).reshape(-1, 192).astype(np.uint8)


TURNS = {
    "q5_0": (2, 4, turned_bits),
    "q5_1": (4, 4, turned_bits),
    "q8_0": (2, 32, lambda raw: raw ^ 0x80),
    "q4_K": (4, 12, turned_scales),
    "q5_K": (4, 12, turned_scales),
    "q6_K": (0, 192, turned_sixes),
}


def by_hand(name, raw):
    """Packed bytes of plain blocks u8 (rows, blocks, block_nbytes), rows whole groups."""
    if name == "bf16":
        raw = raw.reshape(len(raw), -1, 4)
    rows, blocks, size = raw.shape
    flat = raw.reshape(-1, size).copy()
    if name in TURNS:
        at, length, turn = TURNS[name]
        flat[:, at : at + length] = turn(flat[:, at : at + length])
    groups = flat.reshape(rows // GROUP, GROUP, blocks, size).transpose(0, 2, 1, 3)  # group, block, row, byte
    parts = []
    for at, length, chunk in LAYOUT[name]:
        part = groups[..., at : at + length].reshape(*groups.shape[:3], length // chunk, chunk)
        parts.append(part.transpose(0, 1, 3, 2, 4).reshape(rows // GROUP, blocks, -1))
    laid = np.concatenate(parts, 2).reshape(rows // GROUP, -1)
    return np.pad(laid, ((0, 0), (0, -laid.shape[1] % 64))).reshape(-1)


@cache
def backend():
    return CpuBackend()


def packing_of(dtype, shape):
    spec = Spec(DTYPES[dtype], shape, role="constant")
    made = backend().pack(spec, [Step("linear", (None, spec), spec)], backend().targets()[0])
    assert made is not None
    return spec, made


def packed(made, raw):
    out = np.full(made.nbytes, 0xAA, np.uint8)  # what is left over shows
    made.pack(np.ascontiguousarray(raw).reshape(-1).data, out.data)
    return out


def random_bytes(shape, seed):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


@pytest.mark.parametrize("name", sorted(LAYOUT))
@settings(max_examples=15, deadline=None)
@given(groups=st.integers(1, 5), blocks=st.integers(1, 9), seed=st.integers(0, 999))
def test_the_layout_is_the_one_written_down(name, groups, blocks, seed):
    dtype = DTYPES[name]
    blocks *= 8 if name in FLOATS else 1  # whole vectors, and a rest of them
    raw = random_bytes((groups * GROUP, blocks, dtype.block_nbytes), seed)
    _, made = packing_of(name, (groups * GROUP, blocks * dtype.block))
    np.testing.assert_array_equal(packed(made, raw), by_hand(name, raw))


@pytest.mark.parametrize("name", PACKED)
@settings(max_examples=15, deadline=None)
@given(rows=st.integers(1, 70), blocks=st.integers(1, 9), matrices=st.integers(1, 3), seed=st.integers(0, 999))
def test_what_is_packed_comes_back_bit_for_bit(name, rows, blocks, matrices, seed):
    dtype = DTYPES[name]
    blocks *= 7 if name in FLOATS else 1
    raw = random_bytes((matrices, rows, blocks, dtype.block_nbytes), seed)
    _, made = packing_of(name, (matrices, rows, blocks * dtype.block))
    image, back = packed(made, raw), np.full(raw.nbytes, 0xAA, np.uint8)
    made.unpack(image.data, back.data)
    np.testing.assert_array_equal(back, raw.reshape(-1))
    # Rows that fill up a group are zeros, or what stands for zero.
    whole = np.zeros((matrices, -(-rows // GROUP) * GROUP, blocks, dtype.block_nbytes), np.uint8)
    whole[:, :rows] = raw
    _, filled = packing_of(name, (matrices, whole.shape[1], blocks * dtype.block))
    np.testing.assert_array_equal(image, packed(filled, whole))


@pytest.mark.parametrize("name", PACKED)
@settings(max_examples=15, deadline=None)
@given(
    rows=st.integers(1, 70),
    blocks=st.integers(1, 5),
    matrices=st.integers(1, 4),
    cuts=st.sets(st.integers(1, 19), max_size=4),
    seed=st.integers(0, 999),
)
def test_parts_that_are_packed_by_themselves_make_the_whole(name, rows, blocks, matrices, cuts, seed):
    dtype = DTYPES[name]
    raw = random_bytes((matrices, rows, blocks * 8, dtype.block_nbytes), seed)
    _, made = packing_of(name, (matrices, rows, blocks * 8 * dtype.block))
    unit, size = made.part
    plain, out = raw.reshape(-1), np.full(made.nbytes, 0xAA, np.uint8)
    parts = -(-plain.nbytes // unit)
    assert parts * size == made.nbytes
    assert parts == (matrices if matrices > 1 and rows % GROUP else -(-matrices * rows // GROUP))
    ends = [0, *sorted(cut for cut in cuts if cut < parts), parts]
    for first, end in np.random.default_rng(seed).permutation(list(pairwise(ends))).tolist():
        made.pack(plain[first * unit : end * unit].data, out[first * size : end * size].data)
    np.testing.assert_array_equal(out, packed(made, raw))


def test_what_is_no_part_is_refused():
    """Two groups of rows, and five rows more."""
    spec, made = packing_of("q4_0", (37, 64))
    unit, size = made.part
    plain, out = np.zeros(spec.nbytes, np.uint8), np.zeros(made.nbytes + size, np.uint8)
    rest = spec.nbytes - 2 * unit
    made.pack(plain[:rest].data, out[:size].data)  # the last, alone
    for nbytes, into in (
        (rest + 36, size),
        (rest - 36, size),
        (unit - 1, size),
        (unit, size + 1),
        (unit, 2 * size),
        (2 * unit, size),
        (spec.nbytes, made.nbytes + size),
    ):
        with pytest.raises(ValueError, match=f"pack: {nbytes} plain and {into} packed bytes do not belong together"):
            made.pack(plain[:nbytes].data, out[:into].data)
    longer = np.zeros(spec.nbytes + unit, np.uint8)
    with pytest.raises(ValueError, match="do not belong together"):
        made.pack(longer.data, out.data)
    with pytest.raises(ValueError, match=r"unpack: .* do not belong together"):
        made.unpack(out.data, plain.data)


@settings(max_examples=60, deadline=None)
@given(
    names=st.lists(st.sampled_from([None, *PACKED]), min_size=1, max_size=6),
    damage=st.one_of(st.none(), st.integers(0, 5)),
    seed=st.integers(0, 999),
)
def test_many_pieces_in_one_call_are_what_each_is_by_itself(names, damage, seed):
    """None: copied as it is. damage: a piece with a scale that is no number; those before it are there."""
    rng = np.random.default_rng(seed)
    device = CpuBackend().devices()[0]
    pieces, wanted, first = [], [], None
    for n, name in enumerate(names):
        if name is None:
            raw = rng.integers(0, 256, int(rng.integers(0, 300)), np.uint8)
            pieces.append((None, raw.data, np.empty(raw.nbytes, np.uint8).data))
            wanted.append(raw)
            continue
        dtype = DTYPES[name]
        shape = int(rng.integers(1, 40)), 64 * dtype.block
        _, made = packing_of(name, shape)
        raw = np.zeros((shape[0] * 64, dtype.block_nbytes), np.uint8)
        if n == damage:
            raw[int(rng.integers(len(raw)))] = 0xFF
        bad = dtype.first_bad_block(raw)
        if first is None and bad is not None:
            first = n, bad
        pieces.append((made, raw.reshape(-1).data, np.full(made.nbytes, 0xAA, np.uint8).data))
        wanted.append(packed(made, raw))
    assert device.fill(pieces) == first
    for (_, _, out), want in list(zip(pieces, wanted, strict=True))[: None if first is None else first[0]]:
        np.testing.assert_array_equal(np.frombuffer(out, np.uint8), want)


def test_one_call_refuses_pieces_that_do_not_fit():
    device = CpuBackend().devices()[0]
    _, made = packing_of("q4_0", (16, 64))
    for how, plain, into in ((made, 5, made.nbytes), (None, 5, 6)):
        with pytest.raises(ValueError, match=f"{plain} plain and {into} packed bytes do not belong together"):
            device.fill([(how, bytes(plain), bytearray(into))])
    with pytest.raises(BufferError):
        device.fill([(None, bytes(5), bytes(5))])


@pytest.mark.parametrize("name", PACKED)
@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 40),
    blocks=st.integers(1, 5),
    matrices=st.integers(1, 3),
    odd=st.lists(st.integers(0, 599), max_size=4),
    seed=st.integers(0, 999),
)
def test_packing_finds_the_same_damaged_block_as_the_core(name, rows, blocks, matrices, odd, seed):
    """Among blocks of zeros, which are good ones, a few whose bytes are anything."""
    dtype = DTYPES[name]
    blocks *= 1 if dtype.is_block else 64
    raw = np.zeros((matrices * rows * blocks, dtype.block_nbytes), np.uint8)
    odd = [at % len(raw) for at in odd]
    rng = np.random.default_rng(seed)
    raw[odd] = rng.choice(np.array([0, 0x0C, 0x70, 0x7B, 0x7C, 0x7E, 0x7F, 0xC0, 0xFC, 0xFF], np.uint8), raw[odd].shape)
    _, made = packing_of(name, (matrices, rows, blocks * dtype.block))
    assert made.looks
    assert made.pack(raw.reshape(-1).data, np.empty(made.nbytes, np.uint8).data) == dtype.first_bad_block(raw)


@settings(max_examples=20, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 3 * HUGE // 2), min_size=1, max_size=24),
    threads=st.integers(1, 4),
    seed=st.integers(0, 999),
)
def test_threads_that_fill_one_memory_do_not_spoil_each_others_bytes(sizes, threads, seed):
    """Written, or filled where they lie; what nobody filled is zero."""
    ends = np.cumsum(sizes).tolist()
    memory = _native.Memory(ends[-1] + 5 * HUGE, huge=True)
    parts = [random_bytes(n, seed + i) for i, n in enumerate(sizes)]
    order = np.random.default_rng(seed).permutation(len(sizes)).tolist()

    def work(mine):
        for i in mine:
            if i % 2:
                memory.write(ends[i] - sizes[i], parts[i].data)
            else:
                np.copyto(np.frombuffer(memory.host_bytes(ends[i] - sizes[i], sizes[i]), np.uint8), parts[i])

    running = [threading.Thread(target=work, args=(order[n::threads],)) for n in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    out = np.full(memory.nbytes, 0xAA, np.uint8)
    memory.read(0, out.data)
    np.testing.assert_array_equal(out[: ends[-1]], np.concatenate(parts))
    assert not out[ends[-1] :].any()


def test_bytes_outside_a_memory_are_refused():
    memory = _native.Memory(HUGE, huge=True)
    for offset, nbytes in ((-1, 1), (HUGE, 1), (HUGE - 1, 2), (0, HUGE + 1)):
        with pytest.raises(ValueError, match="of a buffer of 2097152"):
            memory.write(offset, bytes(nbytes))
        with pytest.raises(ValueError, match="of a buffer of 2097152"):
            memory.host_bytes(offset, nbytes)
    memory.write(HUGE, b"")
    memory.free()
    with pytest.raises(ValueError, match="buffer of 0"):
        memory.write(0, b"a")
    with pytest.raises(ValueError, match="buffer of 0"):
        memory.host_bytes(0, 0)


def huge_pages(address):
    """Bytes of huge pages in the mapping that holds this address; None where Linux does not tell, or gives none."""
    wish = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not wish.exists() or "[never]" in wish.read_text():
        return None
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if not head.endswith(":"):
            first, end = (int(part, 16) for part in head.split("-"))
            inside = first <= address < end
        elif inside and head == "AnonHugePages:":
            return int(line.split()[1]) * 1024
    return 0


def test_many_small_constants_lie_in_huge_pages_together():
    """Each is far smaller than a page; the Session puts all of a device into one block."""
    x = jf.input("x", (1, 576))
    weights = [
        jf.constant(np.random.default_rng(n).standard_normal((192, 576), np.float32), name=f"w{n}") for n in range(40)
    ]
    total = sum(w.spec.nbytes for w in weights)
    assert weights[0].spec.nbytes < HUGE / 4 < 8 * HUGE < total
    plan = jf.compile(tuple(ops.linear(x, w) for w in weights), device="cpu")
    held = [h for layouts in plan.session._store.constants["cpu:0"].values() for h in layouts.values()]
    assert {id(h.buffer) for h in held} == {id(held[0].buffer)}
    found = huge_pages(held[0].buffer.address)
    if found is None:
        pytest.skip("no huge pages on this system")
    assert found >= total // HUGE * HUGE
    ones = np.ones((1, 576), np.float32)
    for got, w in zip(plan(x=ones), weights, strict=True):
        np.testing.assert_allclose(got, ones @ w.source.array.T, rtol=2e-4, atol=2e-3)


@pytest.mark.parametrize("block", [0, 17, 1 << 15, (1 << 16) - 1])
@pytest.mark.parametrize("threads", ["1", "3"])
def test_a_damaged_block_is_named_wherever_it_stands(block, threads, monkeypatch):
    monkeypatch.setenv("JACKFIELD_CPU_THREADS", threads)
    dtype, shape = DTYPES["q4_1"], (1 << 10, 1 << 11)
    good = np.zeros((1 << 16, dtype.block_nbytes), np.uint8)
    bad = good.copy()
    bad[block, 3] = 0xFC  # the minimum is -inf
    x = jf.input("x", (1, 1 << 11))
    weights = [jf.constant(File(dtype, shape, raw), name=f"w{n}") for n, raw in enumerate([good] * 5 + [bad] + [good])]
    row, place = divmod(block, 64)
    with jf.Session("cpu") as session:
        with pytest.raises(GraphError, match=rf"'w5' .* block {place} of row {row} has a scale that is no finite"):
            session.compile(tuple(ops.linear(x, w) for w in weights))
        plan = session.compile(tuple(ops.linear(x, w) for w in weights[:5]))  # the Session goes on
        assert not any(y.any() for y in plan(x=np.ones((1, 1 << 11), np.float32)))


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("forks", [False, True])
def test_weights_are_packed_beside_the_callers_work(threads, forks, monkeypatch):
    """Two Sessions at once, each with its own; a child that is forked then has no such threads, and is told."""
    monkeypatch.setenv("JACKFIELD_CPU_THREADS", threads)
    dtype, shape = DTYPES["q4_1"], (1 << 10, 1 << 11)
    raw = np.zeros((1 << 16, dtype.block_nbytes), np.uint8)
    raw[:, 2:4] = np.frombuffer(np.float16(1.0).tobytes(), np.uint8)  # every weight is its block's minimum, 1
    child, told = -1, []

    def graph():
        x = jf.input("x", (1, 1 << 11))
        return tuple(ops.linear(x, jf.constant(File(dtype, shape, raw.copy()), name=f"w{n}")) for n in range(6))

    def work():
        nonlocal child
        if forks:
            child = os.fork()
        else:
            with jf.Session("cpu") as other:
                check(other.compile(graph()))

    def check(plan):
        for y in plan(x=np.ones((1, 1 << 11), np.float32)):
            np.testing.assert_array_equal(y, np.full((1, 1 << 10), 1 << 11, np.float32))

    with jf.Session("cpu") as session:
        try:
            plan = session.compile(graph(), meanwhile=work)
        except ForkedError:
            told.append(True)
        finally:
            if child == 0:
                os._exit(0 if told else 1)
        assert not forks or os.waitpid(child, 0)[1] == 0
        check(plan)


class File:
    """A source of plain bytes that lie in memory."""

    def __init__(self, dtype, shape, raw):
        self.dtype, self.shape, self.data = dtype, shape, memoryview(raw.reshape(-1))

    def release(self):
        pass


def run_python(code):
    """What a process of its own prints."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells the peak of a part of a run")
def test_the_file_behind_packed_weights_does_not_stay_in_memory(tmp_path):
    """96 MB of weights cost their packed size and little more, at the worst moment too; the file can be read again."""
    text = run_python(
        f"""
        import resource, sys
        import gguf, numpy as np
        import jackfield as jf
        from jackfield import ops

        path, count = {str(tmp_path / "w.gguf")!r}, 24
        writer = gguf.GGUFWriter(path, "none")
        rng = np.random.default_rng(0)
        raws = [rng.integers(0, 256, (1024, 128, 34), np.uint8) for _ in range(count)]
        for n, raw in enumerate(raws):
            raw[:, :, 1] = 0x20  # a small scale
            writer.add_tensor(f"w{{n}}", raw.reshape(1024, -1), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        writer.write_header_to_file(); writer.write_kv_data_to_file(); writer.write_tensors_to_file(); writer.close()
        sums = [int(raw.sum()) for raw in raws]
        del raws, writer

        def status(name):
            return int(open("/proc/self/status").read().split(name + ":")[1].split()[0]) / 1024

        jf.Session("cpu").close()
        open("/proc/self/clear_refs", "w").write("5")  # the peak starts here
        before, files = status("VmHWM"), status("RssFile")
        file = jf.gguf.open(path)
        x = jf.input("x", (1, 4096))
        weights = [jf.constant(file.tensors[f"w{{n}}"], name=f"w{{n}}") for n in range(count)]
        plan = jf.compile(tuple(ops.linear(x, w) for w in weights), device="cpu")
        print(before, status("VmHWM"), files, status("RssFile"), sum(w.spec.nbytes for w in weights) / 2**20)
        again = [int(np.frombuffer(file.tensors[f"w{{n}}"].data, np.uint8).sum()) for n in range(count)]
        print(again == sums, all(np.isfinite(y).all() for y in plan(x=np.ones((1, 4096), np.float32))))
        """
    )
    figures, right = text.splitlines()
    before, peak, files_before, files, weights = map(float, figures.split())
    assert weights > 90
    assert files - files_before < 4
    assert peak - before < weights + 48  # up to eight threads with one weight of 4.3 MB each
    assert right == "True True"


@pytest.mark.parametrize(
    "name", [n for n, d in DTYPES.items() if d.is_block and not d.is_activation] + ["f16", "bf16", "f32"]
)
def test_a_weight_of_rows_and_products_lies_there_once(name):
    """One that is embedding and output at a time, as many models have it."""
    dtype, rng = DTYPES[name], np.random.default_rng(0)
    weight = (
        jf.constant(ArraySource(random_blocks(dtype, (512, 512), rng), dtype, (512, 512)))
        if dtype.is_block
        else jf.constant(rng.standard_normal((512, 512)).astype(dtype.numpy))
    )
    x, ids = jf.input("x", (4, 512)), jf.input("ids", (3,), jf.i32)
    with jf.Session("cpu", policy="strict") as session:
        memory = session.compile([ops.take_rows(weight, ids), ops.linear(x, weight)]).memory()
        assert memory["cpu:0"]["constants"] == session.compile(ops.linear(x, weight)).memory()["cpu:0"]["constants"]
        assert memory["cpu:0"]["constants"] < 1.1 * weight.spec.nbytes
