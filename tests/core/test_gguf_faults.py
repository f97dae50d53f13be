"""Broken files: one small case for each text of the reader, and 20,000 mutants that must end in values or GGUFError."""

from __future__ import annotations

import os
import random
import re
import struct
import subprocess
import sys
import tracemalloc
from collections import Counter

import gguf
import numpy as np
import pytest

from jackfield import gguf as jf_gguf
from jackfield.dtypes import DTYPES, GGUF_TYPES
from jackfield.errors import GGUFError
from jackfield.gguf.faults import FAULTS, quoted
from jackfield.gguf.file import File
from jackfield.gguf.source import Source

U8, BOOL, U32, STRING, ARRAY, F64 = 0, 7, 4, 8, 9, 12
OF_FILES = {"irregular", "shrunk", "closed"}  # no bytes cause these; they have their own tests
MUTANTS = 20_000


class Draft:
    """A file under construction that remembers where its numbers stand."""

    def __init__(self, tensors=0, keys=0, magic=b"GGUF", version=3):
        self.raw = bytearray(magic)
        self.marks = []  # (offset, size)
        self.number(version, 4)
        self.number(tensors, 8)
        self.number(keys, 8)

    def number(self, value, size):
        self.marks.append((len(self.raw), size))
        self.raw += value.to_bytes(size, "little")
        return self

    def text(self, value):
        data = value if isinstance(value, bytes) else value.encode()
        self.number(len(data), 8)
        self.raw += data
        return self

    def key(self, name, kind, value=b""):
        self.text(name).number(kind, 4)
        self.raw += value
        return self

    def array(self, kind, count, body=b""):
        self.number(kind, 4).number(count, 8)
        self.raw += body
        return self

    def tensor(self, name, extents, kind, offset):
        self.text(name).number(len(extents), 4)
        for extent in extents:
            self.number(extent, 8)
        return self.number(kind, 4).number(offset, 8)

    def pad(self, to=32):
        self.raw += bytes(-len(self.raw) % to)
        return self

    def data(self, nbytes):
        self.pad()
        self.raw += bytes(i % 251 for i in range(nbytes))
        return self


def strings(*words):
    return b"".join(struct.pack("<Q", len(w)) + w for w in words)


def read(raw):
    """Open bytes as a file and read everything in it."""
    source = Source("mutant", memoryview(raw))
    file = File(source)
    for value in file.metadata.values():
        if isinstance(value, jf_gguf.Array):
            assert len(value.to_list()) == len(value)
    ends = [file.alignment]
    for tensor in sorted(file.tensors.values(), key=lambda t: t.offset):
        assert ends[-1] <= tensor.offset
        assert tensor.offset % file.alignment == 0
        assert len(tensor.data) == tensor.nbytes > 0
        ends.append(tensor.offset + tensor.nbytes)
        row = GGUF_TYPES[tensor.type.id]
        if row.name in DTYPES:
            assert tensor.numpy().shape == tensor.shape
    assert ends[-1] <= max(len(raw), file.alignment)
    return file


def one_key(name, kind, value=b""):
    return Draft(keys=1).key(name, kind, value)


def one_tensor(extents=(8,), kind=0, offset=0, data=32, name="w"):
    return Draft(tensors=1).tensor(name, extents, kind, offset).data(data)


def two_tensors(second, name="b"):
    return Draft(tensors=2).tensor("a", (8,), 0, 0).tensor(name, (8,), 0, second).data(96)


def nest(depth, draft):
    for _ in range(depth - 1):
        draft.array(ARRAY, 1)
    return draft.array(U8, 1, b"\1")


def aligned(kind, value):
    return one_key("general.alignment", kind, value)


# (code, draft, what the whole text must say)
CASES = [
    ("short", Draft().raw[:23], "header at byte 0: the file has 23 bytes"),
    ("magic", Draft(magic=b"GGML"), r"magic at byte 0: b'GGML' is not the magic"),
    ("big-endian", Draft(version=3 << 24), "version at byte 4: the file is big-endian"),
    ("version-1", Draft(version=1), "version at byte 4: version 1 has another layout"),
    ("version", Draft(version=4), "version at byte 4: version 4 is unknown"),
    ("version", Draft(version=0), "version at byte 4: version 0 is unknown"),
    ("count", Draft(tensors=1), "number of tensors at byte 8: 1 entries take at least 24 bytes and 8 are left"),
    ("count", Draft(keys=2**64 - 1), "number of keys at byte 16: 18446744073709551615 entries"),
    ("count", one_key("a", ARRAY).array(STRING, 2**61), "value of 'a' at byte 41: 2305843009213693952 entries"),
    ("count", one_key("a", ARRAY).array(F64, 2**61), "value of 'a' at byte 41"),
    ("count", one_key("a", ARRAY).array(ARRAY, 2**64 - 1), "value of 'a' at byte 41"),
    ("end", one_key("a", U32, b"abc"), "value of 'a' at byte 37: 4 bytes are needed and 3 are left"),
    ("end", one_key("a", STRING, struct.pack("<Q", 2**64 - 1)), "value of 'a' at byte 45: 18446744073709551615 bytes"),
    ("end", one_key("a", STRING, b"1234567"), "value of 'a' at byte 37: 8 bytes are needed and 7"),
    ("end", one_key("a", ARRAY).array(STRING, 1, struct.pack("<Q", 9)), "string 0 of value of 'a' at byte 57: 9 bytes"),
    ("end", one_key("a", ARRAY).array(STRING, 2, strings(b"xxxxxxxx")), "string 1 of value of 'a' at byte 65: 8 bytes"),
    ("end", Draft(tensors=1).text("w").number(4, 4).number(1, 8).pad(4), "extent 1 of tensor 'w' at byte 45: 8 bytes"),
    ("key-length", one_key("", U8, b"\0\0"), "key 0 at byte 24: the key has 0 bytes: it must have 1 to 65535"),
    ("key-length", one_key("a" * 65536, U8, b"\0"), "key 0 at byte 24: the key has 65536 bytes"),
    ("utf-8", one_key(b"ab\xff", U8, b"\0"), "key 0 at byte 32: the text is not UTF-8 from its byte 2"),
    ("utf-8", one_key("a", STRING, strings(b"\xc3")), "value of 'a' at byte 45: the text is not UTF-8 from its byte 0"),
    ("utf-8", one_key("a", ARRAY).array(STRING, 2, strings(b"x", b"y\x80")), "string 1 of value of 'a' at byte 66"),
    ("utf-8", one_tensor(name=b"\xed\xa0\x80"), "name of tensor 0 at byte 32"),
    ("duplicate-key", Draft(keys=2).key("a", U8, b"\0").key("a", U8, b"\0"), "key 1 at byte 38: the key 'a' appears"),
    ("value-type", one_key("a", 13, b"\0"), "value of 'a' at byte 33: value type 13 is unknown"),
    ("value-type", one_key("a", ARRAY).array(13, 0), "value of 'a' at byte 37: value type 13"),
    ("bool", one_key("a", BOOL, b"\2"), "value of 'a' at byte 37: a bool is 2"),
    ("bool", one_key("a", ARRAY).array(BOOL, 3, b"\1\0\7"), "value of 'a' at byte 51: a bool is 7"),
    ("depth", nest(9, one_key("a", ARRAY)), "array 0 of .* at byte 133: arrays lie more than 8 deep"),
    ("arrays", one_key("a", ARRAY).array(ARRAY, 65537, bytes(12 * 65537)), "'a' at byte 41: more than 65536 arrays"),
    (
        "alignment-type",
        aligned(U8, b"\x20"),
        "general.alignment at byte 53: the alignment is of type u8: it must be u32",
    ),
    ("alignment", aligned(U32, struct.pack("<I", 0)), "general.alignment at byte 53: the alignment is 0"),
    ("alignment", aligned(U32, struct.pack("<I", 48)), "the alignment is 48: it must be a power of two"),
    ("duplicate-tensor", two_tensors(32, "a"), "name 'a' of tensor 1 at byte 57: a tensor of this name"),
    ("rank", one_tensor((1, 1, 1, 1, 1)), "rank of tensor 'w' at byte 33: the tensor has 5 axes"),
    ("extent", one_tensor((4, 0)), "extent 1 of tensor 'w' at byte 45: an axis has 0 elements"),
    ("extent", one_tensor((2**64 - 4,)), "extent 0 of tensor 'w' at byte 37: an axis has 18446744073709551612"),
    ("elements", one_tensor((2**40, 2**40)), r"extents of tensor 'w' at byte 37: the shape \[1099511627776, 10995"),
    ("removed-type", one_tensor(kind=31), r"type of tensor 'w' at byte 45: type 31 \(q4_0_4_4\) was removed"),
    ("type", one_tensor(kind=43), "type of tensor 'w' at byte 45: tensor type 43 is unknown"),
    ("row", one_tensor((33, 2), kind=3), "type of tensor 'w' at byte 53: rows have 33 elements: type q4_1 needs"),
    ("row", one_tensor((), kind=3), "type of tensor 'w' at byte 37: rows have 1 elements"),
    ("misaligned", one_tensor(offset=8, data=64), "offset of tensor 'w' at byte 49: the offset 8 must be a multiple"),
    ("outside", one_tensor(data=31), "offset of tensor 'w' at byte 49: its data would end at byte 96 of the file's 95"),
    ("outside", one_tensor((2**60,)), "its data would end at byte 4611686018427387968 of"),
    ("outside", one_tensor(offset=2**64 - 32), "its data would end at byte 18446744073709551680"),
    ("overlap", two_tensors(0), "offset of tensor 'b' at byte 82: its data overlaps that of tensor 'a'"),
    ("overlap", Draft(tensors=2).tensor("b", (4,), 24, 32).tensor("a", (33,), 24, 0).data(64), "offset of tensor 'b'"),
]


def bytes_of(draft):
    return bytes(draft.raw if isinstance(draft, Draft) else draft)


def code_of(text):
    """Which fault a text belongs to; the file, the field and an offset must stand before it."""
    found = re.fullmatch(r"mutant: [ -~]+? at byte (\d+): (.*)", text)
    assert found, text
    codes = [code for code, pattern in PATTERNS.items() if pattern.fullmatch(found[2])]
    assert len(codes) == 1, (text, codes)
    return codes[0], int(found[1])


PATTERNS = {
    code: re.compile("".join(part if part == ".*" else re.escape(part) for part in re.split(r"(\.\*)", text)))
    for code, text in ((code, re.sub(r"\{\w+\}", ".*", text)) for code, text in FAULTS.items())
}


@pytest.mark.parametrize(("code", "draft", "says"), CASES, ids=[f"{i}-{case[0]}" for i, case in enumerate(CASES)])
def test_each_fault_says_what_and_where(code, draft, says):
    with pytest.raises(GGUFError, match=rf"^mutant: (.* )?{says}") as caught:
        read(bytes_of(draft))
    assert code_of(str(caught.value))[0] == code


def test_every_fault_of_bytes_has_a_case():
    assert {code for code, *_ in CASES} == set(FAULTS) - OF_FILES


def test_the_limits_themselves_are_allowed():
    assert read(bytes_of(nest(8, one_key("a", ARRAY)))).metadata["a"].to_list() == [[[[[[[[1]]]]]]]]
    assert len(read(bytes_of(one_key("a", ARRAY).array(ARRAY, 65536, bytes(12 * 65536)))).metadata["a"]) == 65536
    assert read(bytes_of(one_key("a" * 65535, U8, b"\5"))).metadata["a" * 65535] == 5
    assert read(bytes_of(one_key("a", ARRAY).array(STRING, 0))).metadata["a"] == []
    assert read(bytes_of(one_tensor(()))).tensors["w"].shape == ()
    assert read(bytes_of(one_tensor((2, 1, 2, 2)))).tensors["w"].shape == (2, 2, 1, 2)
    assert list(read(bytes_of(two_tensors(64))).tensors) == ["a", "b"]
    assert read(bytes_of(Draft())).metadata == {}
    for version in (2, 3):
        assert read(bytes_of(Draft(version=version))).version == version


def test_tensors_may_lie_in_any_order():
    draft = Draft(tensors=2).tensor("late", (8,), 0, 32).tensor("early", (8,), 0, 0).data(64)
    assert list(read(bytes_of(draft)).tensors) == ["late", "early"]


def test_names_from_files_are_safe_to_print():
    evil = "\x1b[31m" + "ü" * 500
    with pytest.raises(GGUFError) as caught:
        read(bytes_of(one_tensor(kind=43, name=evil)))
    assert str(caught.value).isascii()
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 250
    assert quoted("a'b") == '"a\'b"'


def test_absurd_sizes_allocate_nothing():
    drafts = [draft for code, draft, _ in CASES if code in ("count", "end", "outside", "elements", "extent")]
    raws = [bytes_of(draft) for draft in drafts]
    for raw in raws:  # once before measuring, for what Python caches
        with pytest.raises(GGUFError):
            read(raw)
    tracemalloc.start()
    try:
        for raw in raws:
            with pytest.raises(GGUFError):
                read(raw)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_what_is_no_file(tmp_path):
    with pytest.raises(GGUFError, match=r"file at byte 0: this is no regular file: give the path of a GGUF file"):
        jf_gguf.open(tmp_path)
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(GGUFError, match=r"empty\.gguf: header at byte 0: the file has 0 bytes"):
        jf_gguf.open(tmp_path / "empty.gguf")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(GGUFError, match=r"bad\.gguf: version at byte 4: version 0 is unknown"):
        jf_gguf.open(tmp_path / "bad.gguf")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    code = f"import jackfield.gguf as g; g.open({str(tmp_path / 'pipe')!r})"
    # In a child: a reader that opened the pipe would wait for ever, and the deadline is there to notice.
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120)
    assert "this is no regular file" in done.stderr


# The fuzz: mutants of small valid files.


def written_by_the_package(path):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(32)
    writer.add_uint32("llama.block_count", 2)
    writer.add_float32("llama.rope.freq_base", 10000.0)
    writer.add_bool("tokenizer.ggml.add_bos_token", True)
    writer.add_array("tokenizer.ggml.tokens", ["a", "bc", "ü", ""])
    writer.add_array("tokenizer.ggml.scores", [0.5, 1.5])
    writer.add_array("flags", [True, False])
    writer.add_tensor("norm", np.ones(8, np.float32))
    writer.add_tensor("w", np.zeros((2, 40), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.add_tensor("half", np.ones((3, 5), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def marks_of(raw):
    """Where the numbers of a file stand that somebody else wrote: every place where a short u32 could be."""
    return [(i, 4) for i in range(4, len(raw) - 4) if int.from_bytes(raw[i : i + 4], "little") < 256] + [
        (8, 8),
        (16, 8),
    ]


def seeds(tmp_path):
    everything = Draft(tensors=3, keys=6, version=2)
    everything.key("general.alignment", U32, struct.pack("<I", 16))
    everything.key("name", STRING, strings(b"some text"))
    everything.key("flag", BOOL, b"\1").key("flags", ARRAY).array(BOOL, 3, b"\0\1\0")
    everything.key("words", ARRAY).array(STRING, 3, strings(b"one", b"", b"three"))
    nest(7, everything.key("deep", ARRAY))
    everything.tensor("a", (8, 2), 0, 0).tensor("b", (256,), 14, 64).tensor("c", (1, 1, 1, 3), 28, 288).data(320)
    packaged = written_by_the_package(tmp_path / "seed.gguf")
    read(packaged)
    read(bytes_of(everything))
    two = two_tensors(32)
    return [
        (packaged, marks_of(packaged)),
        (bytes_of(everything), everything.marks),
        (bytes_of(two), two.marks),
    ]


NUMBERS = [0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 12, 13, 16, 31, 32, 33, 38, 42, 43, 48, 64, 255, 256, 65535, 65536, 65537]
NUMBERS += [2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**60, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1]


def set_number(rng, raw, marks):
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at, size = rng.choice(marks)
        old = int.from_bytes(raw[at : at + size], "little")
        new = rng.choice(
            (rng.choice(NUMBERS), old + 1, old - 1, 2 * old, old ^ (1 << rng.randrange(8 * size)), len(raw))
        )
        raw[at : at + size] = (new % (1 << 8 * size)).to_bytes(size, "little")


def flip_bytes(rng, raw, _marks):
    for _ in range(rng.randint(1, 6)):
        raw[rng.randrange(24, len(raw))] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def hurt_header(rng, raw, _marks):
    raw[rng.randrange(8)] ^= 1 << rng.randrange(8)
    if rng.random() < 0.3:
        raw[4:8] = rng.choice((0, 1, 4, 3 << 24, 2 << 24, 1 << 24)).to_bytes(4, "little")


def cut(rng, raw, _marks):
    del raw[rng.choice((rng.randrange(len(raw)), rng.randrange(24, len(raw)))) :]


def insert_or_delete(rng, raw, _marks):
    at = rng.randrange(24, len(raw))
    if rng.random() < 0.5:
        raw[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice((1, 4, 8, 12))))
    else:
        del raw[at : at + rng.choice((1, 4, 8, 12))]


def copy_span(rng, raw, _marks):
    size = rng.choice((1, 4, 8, 12, 24, 40))
    a, b = (rng.randrange(24, len(raw) - size) for _ in range(2))
    raw[b : b + size] = raw[a : a + size]


def swap_in_case(rng, raw, _marks):
    """Start from a file that is wrong in a known way, so that no text depends on luck."""
    draft = rng.choice(CASES)[1]
    if len(bytes_of(draft)) < 1000:
        raw[:] = bytes_of(draft)


MUTATORS = [set_number, set_number, set_number, flip_bytes, hurt_header, cut, insert_or_delete, copy_span, swap_in_case]


def mutants(files):
    """MUTANTS byte strings; the few large cases come once each."""
    large = [raw for raw in (bytes_of(draft) for _, draft, _ in CASES) if len(raw) >= 1000]
    yield from large
    rng = random.Random(174)
    for _ in range(MUTANTS - len(large)):
        start, marks = rng.choice(files)
        raw = bytearray(start)
        rng.choice(MUTATORS)(rng, raw, marks)
        yield bytes(raw)


def test_fuzz(tmp_path):
    seen, valid_header, total = Counter(), 0, 0
    for raw in mutants(seeds(tmp_path)):
        total += 1
        valid_header += raw[:4] == b"GGUF" and raw[4:8] in (b"\2\0\0\0", b"\3\0\0\0")
        try:
            read(raw)
            seen["fine"] += 1
        except GGUFError as error:
            code, at = code_of(str(error))
            assert at <= len(raw)
            seen[code] += 1
    assert total == MUTANTS
    assert valid_header >= MUTANTS / 2
    assert set(seen) == set(FAULTS) - OF_FILES | {"fine"}
    assert seen["fine"] >= MUTANTS / 50  # mutants that hurt nothing the format forbids are read through to the end
