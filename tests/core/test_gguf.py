"""The GGUF reader against files of the package `gguf`, read back by that package too."""

from __future__ import annotations

import gc
import math
import mmap
import os
import pickle
import struct
import tempfile
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFValueType
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jackfield import gguf as jf_gguf
from jackfield.dtypes import DTYPES, by_name
from jackfield.errors import GGUFError
from jackfield.gguf import arrays
from jackfield.gguf.source import Cursor, Source

V = GGUFValueType
RANGES = {
    V.UINT8: (0, 2**8 - 1),
    V.INT8: (-(2**7), 2**7 - 1),
    V.UINT16: (0, 2**16 - 1),
    V.INT16: (-(2**15), 2**15 - 1),
    V.UINT32: (0, 2**32 - 1),
    V.INT32: (-(2**31), 2**31 - 1),
    V.UINT64: (0, 2**64 - 1),
    V.INT64: (-(2**63), 2**63 - 1),
}
NAMES = {
    V.UINT8: "u8",
    V.INT8: "i8",
    V.UINT16: "u16",
    V.INT16: "i16",
    V.UINT32: "u32",
    V.INT32: "i32",
    V.UINT64: "u64",
    V.INT64: "i64",
    V.FLOAT32: "f32",
    V.FLOAT64: "f64",
    V.BOOL: "bool",
    V.STRING: "string",
}


def values_of(kind):
    if kind in RANGES:
        return st.integers(*RANGES[kind])
    if kind == V.FLOAT32:
        return st.floats(width=32, allow_nan=False)
    if kind == V.FLOAT64:
        return st.floats(allow_nan=False)
    return st.booleans() if kind == V.BOOL else st.text(max_size=300)


KINDS = st.sampled_from(list(NAMES))
SCALARS = KINDS.flatmap(lambda kind: st.tuples(st.just(kind), st.none(), values_of(kind)))
ARRAYS = KINDS.flatmap(
    lambda kind: st.tuples(st.just(V.ARRAY), st.just(kind), st.lists(values_of(kind), min_size=1, max_size=20))
)
KEYS = st.text(min_size=1, max_size=20).filter(lambda key: not key.startswith(("general.", "GGUF.")))
PLAIN = [d for d in DTYPES.values() if d.numpy is not None and d.gguf_id is not None and d.name != "bf16"]
UNKNOWN_THERE = {"q8_1", "q2_0"}  # the package has a wrong size of the one and not the other
SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, max_side=4)


@st.composite
def plain_tensors(draw):
    dtype = draw(st.sampled_from(PLAIN))
    count = math.prod(shape := draw(SHAPES))
    raw = draw(st.binary(min_size=count * dtype.block_nbytes, max_size=count * dtype.block_nbytes))
    return dtype, np.frombuffer(raw, dtype.numpy).reshape(shape)


@st.composite
def block_tensors(draw):
    dtype = draw(st.sampled_from([d for d in DTYPES.values() if d.is_block and d.name not in UNKNOWN_THERE]))
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, max_side=3))
    raw = np.random.default_rng(draw(st.integers(0, 99))).integers(
        0, 256, (*shape[:-1], shape[-1] * dtype.block_nbytes)
    )
    return dtype, raw.astype(np.uint8)


TENSORS = st.dictionaries(st.text(min_size=1, max_size=20), plain_tensors() | block_tensors(), max_size=4)


def write(path, metadata=(), tensors=(), alignment=None):
    writer = gguf.GGUFWriter(path, "llama")
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    for key, (kind, sub, value) in dict(metadata).items():
        writer.add_key_value(key, value, kind, sub)
    for name, (dtype, array) in dict(tensors).items():
        writer.add_tensor(name, array, raw_dtype=GGMLQuantizationType(dtype.gguf_id) if dtype.is_block else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def same(a, b):
    return len(a) == len(b) and all(x == y and type(x) is type(y) for x, y in zip(a, b, strict=True))


@settings(max_examples=150)
@given(
    metadata=st.dictionaries(KEYS, SCALARS | ARRAYS, max_size=6),
    tensors=TENSORS,
    alignment=st.sampled_from([None, 8, 32, 64, 4096]),
)
def test_round_trip_agrees_with_the_package(metadata, tensors, alignment):
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "a.gguf", metadata, tensors, alignment)
        theirs = gguf.GGUFReader(path)
        with jf_gguf.open(path) as ours:
            compare(ours, theirs)
            assert ours.alignment == (alignment or 32)
            for key, (kind, sub, value) in metadata.items():
                got = ours.metadata[key]
                if kind == V.ARRAY:
                    assert got.kind == NAMES[sub]
                    assert same(got.to_list(), value)
                    assert got == value
                else:
                    assert same([got], [value])
            for name, (dtype, array) in tensors.items():
                assert ours.tensors[name].dtype is dtype
                assert bytes(ours.tensors[name].data) == array.tobytes()


def compare(ours, theirs):
    """Every field and every tensor of the two readers, the order included."""
    fields = {key: field for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert list(ours.metadata) == list(fields)
    assert list(ours.kinds) == list(ours.metadata)
    for key, field in fields.items():
        assert ours.metadata[key] == field.contents(), key
        assert ours.kinds[key] == ("array" if field.types[0] == V.ARRAY else NAMES[field.types[0]]), key
    assert list(ours.tensors) == [t.name for t in theirs.tensors]
    assert ours.version == theirs.fields["GGUF.version"].parts[0][0]
    for tensor, their in zip(ours.tensors.values(), theirs.tensors, strict=True):
        assert tensor.type.id == their.tensor_type
        assert tensor.shape == tuple(their.shape.tolist()[::-1])
        assert tensor.offset == their.data_offset
        assert tensor.nbytes == their.n_bytes == tensor.data.nbytes
        assert tensor.data == their.data.reshape(-1).view(np.uint8).data


ARRAY_F32 = (by_name("f32"), np.arange(12, dtype=np.float32).reshape(3, 4))


@pytest.fixture
def small(tmp_path):
    """A file with one of everything, open."""
    rng = np.random.default_rng(0)
    tensors = {"plain": ARRAY_F32}
    for name in ("q4_1", "q6_K", "q8_0"):
        dtype = by_name(name)
        tensors[name] = dtype, dtype.encode(rng.standard_normal((2, 512)))
    metadata = {
        "text": (V.STRING, None, "häuser\0"),
        "tokens": (V.ARRAY, V.STRING, ["a", "", "ü", "x" * 300, "Ġend"]),
        "scores": (V.ARRAY, V.FLOAT32, [0.5, -1.25, 3.0]),
        "nested": (V.ARRAY, None, [[1, 2], [3]]),
    }
    with jf_gguf.open(write(tmp_path / "small.gguf", metadata, tensors)) as file:
        yield file


def test_arrays_are_sequences(small):
    tokens = small.metadata["tokens"]
    words = ["a", "", "ü", "x" * 300, "Ġend"]
    assert (len(tokens), tokens[2], tokens[-1], tokens[1:4]) == (5, "ü", "Ġend", words[1:4])
    assert tokens[::-1] == words[::-1]
    assert list(tokens) == list(iter(tokens)) == tokens.to_list() == words
    assert list(reversed(tokens)) == words[::-1]
    assert "Ġend" in tokens
    assert tokens.index("ü") == 2
    assert tokens == words
    assert tokens == tuple(words)
    assert tokens != words[:-1]
    assert tokens != "a"
    assert repr(tokens) == "<5 string>"
    with pytest.raises(IndexError):
        tokens[5]
    with pytest.raises(TypeError, match="unhashable"):
        hash(tokens)
    scores = small.metadata["scores"]
    assert (scores[1], scores[-1], scores[:2], scores.to_list()) == (-1.25, 3.0, [0.5, -1.25], [0.5, -1.25, 3.0])
    assert (scores.numpy().dtype, scores.numpy().flags.writeable) == (np.float32, True)
    nested = small.metadata["nested"]
    assert (nested.kind, nested.to_list(), nested[1].to_list(), len(nested)) == ("array", [[1, 2], [3]], [3], 2)
    assert nested == [[1, 2], [3]]
    assert [inner.kind for inner in nested] == ["i32", "i32"]


def test_tensors(small):
    plain = small.tensors["plain"]
    np.testing.assert_array_equal(plain.numpy(), ARRAY_F32[1])
    assert plain.shape == (3, 4)
    assert repr(plain) == "<tensor 'plain' f32 [3, 4]>"
    assert small.tensors["q6_K"].numpy().shape == (2, 512)
    for name in ("q4_1", "q6_K", "q8_0"):
        tensor = small.tensors[name]
        want = gguf.quants.dequantize(np.frombuffer(tensor.data, np.uint8), GGMLQuantizationType(tensor.type.id))
        np.testing.assert_array_equal(tensor.numpy().reshape(-1), want)
    assert repr(small) == "<GGUF small.gguf: version 3, 5 keys, 4 tensors>"


def test_data_is_the_mapping_itself(small):
    tensor = small.tensors["plain"]
    assert tensor.data.readonly
    assert tensor.data.contiguous
    assert (tensor.data.format, tensor.data.ndim) == ("B", 1)
    first, second = (np.frombuffer(tensor.data, np.uint8) for _ in range(2))
    assert first.ctypes.data == second.ctypes.data
    assert np.shares_memory(tensor.numpy(), first)
    assert not tensor.numpy().flags.writeable
    with pytest.raises(TypeError):
        small.tensors["x"] = tensor
    with pytest.raises(TypeError):
        small.metadata["x"] = 1


def test_closing_keeps_what_was_taken_and_refuses_the_rest(small):
    tensor, tokens = small.tensors["plain"], small.metadata["tokens"]
    taken = tensor.numpy()
    small.close()
    small.close()
    gc.collect()
    np.testing.assert_array_equal(taken, ARRAY_F32[1])
    with pytest.raises(GGUFError, match=r"data of tensor 'plain' at byte .*: the file is closed: open it again"):
        tensor.data
    with pytest.raises(GGUFError, match=r"value of 'tokens' at byte .* closed"):
        tokens.to_list()
    with pytest.raises(GGUFError, match=r"string 1 of value of 'tokens' at byte .* closed"):
        tokens[1]
    tensor.release()
    assert small.metadata["text"] == "häuser\0"


def test_released_pages_are_read_again(tmp_path):
    array = np.random.default_rng(0).integers(0, 99, (64, 4096), dtype=np.int32)
    path = write(tmp_path / "big.gguf", tensors={"a": (by_name("i32"), array), "b": ARRAY_F32})
    with jf_gguf.open(path) as file:
        tensor = file.tensors["a"]
        seen = tensor.numpy()
        assert seen.sum() == array.sum()
        before = resident(tensor)
        tensor.release()
        after = resident(tensor)
        if before is not None:
            assert after <= before - tensor.nbytes + 2 * mmap.PAGESIZE
        np.testing.assert_array_equal(seen, array)
        file.tensors["b"].release()
        np.testing.assert_array_equal(file.tensors["b"].numpy(), ARRAY_F32[1])


def test_a_vocabulary_lets_go_of_its_pages_and_can_be_read_again(tmp_path):
    words = [f"word {i}" for i in range(20_000)]
    with jf_gguf.open(write(tmp_path / "v.gguf", metadata={"tokens": (V.ARRAY, V.STRING, words)})) as file:
        tokens, given_back = file.metadata["tokens"], []
        usual = file._source.release
        file._source.release = lambda offset, nbytes: (given_back.append((offset, nbytes)), usual(offset, nbytes))
        assert tokens.to_list() == words == tokens.to_list()
        assert given_back == [(tokens._first, sum(8 + len(w) for w in words))] * 2
        assert tokens[19_999] == words[-1]


def test_every_page_that_is_touched_is_released(tmp_path, monkeypatch):
    page, array = mmap.PAGESIZE, np.zeros(4 * mmap.PAGESIZE, np.int8)
    with jf_gguf.open(write(tmp_path / "a.gguf", tensors={"a": (by_name("i8"), array)})) as file:
        given_back = []
        tensor, source = file.tensors["a"], file._source
        recorder = type("Recorder", (), {"madvise": lambda _, *range_: given_back.append(range_)})()
        monkeypatch.setattr(source, "_map", recorder)
        tensor.release()
        assert 0 < tensor.offset < page  # behind the header
        assert given_back == [(mmap.MADV_DONTNEED, 0, tensor.offset + 4 * page)]
        monkeypatch.undo()


def resident(tensor):
    """Bytes of the file's mapping in memory, from Linux's own account; None elsewhere."""
    smaps = Path("/proc/self/smaps")
    if not smaps.exists():
        return None
    address = np.frombuffer(tensor.data, np.uint8).ctypes.data
    inside = False
    for line in smaps.read_text().splitlines():
        head = line.split()[0]
        if "-" in head and not head.endswith(":"):
            first, end = (int(part, 16) for part in head.split("-"))
            inside = first <= address < end
        elif inside and head == "Rss:":
            return int(line.split()[1]) * 1024
    return None


def test_a_file_cut_after_opening_is_an_error_and_no_signal(tmp_path):
    array = np.zeros((64, 4096), np.int32)
    path = write(tmp_path / "cut.gguf", {"tokens": (V.ARRAY, V.STRING, ["a", "b"])}, {"a": (by_name("i32"), array)})
    with jf_gguf.open(path) as file:
        size = path.stat().st_size
        os.truncate(path, 100)
        text = f"the file has 100 bytes now and had {size} when it was opened: open it again"
        for read in (lambda: file.tensors["a"].data, file.tensors["a"].numpy, file.metadata["tokens"].to_list):
            with pytest.raises(GGUFError, match=rf"cut\.gguf: .* at byte \d+: {text}"):
                read()


@pytest.mark.parametrize("dtype", [d for d in DTYPES.values() if d.gguf_id is not None], ids=repr)
def test_every_type_of_the_format_opens_and_reads(tmp_path, dtype):
    # By hand: a header, one tensor of two rows, its data at byte 96.
    row = dtype.encode(np.arange(2 * dtype.block).reshape(2, -1) % 3)
    entry = struct.pack("<Q1sI2QIQ", 1, b"w", 2, dtype.block, 2, dtype.gguf_id, 0)
    raw = (struct.pack("<4sIQQ", b"GGUF", 3, 1, 0) + entry).ljust(96, b"\0") + row.tobytes()
    (tmp_path / "one.gguf").write_bytes(raw)
    with jf_gguf.open(tmp_path / "one.gguf") as file:
        tensor = file.tensors["w"]
        assert (tensor.type.name, tensor.shape, tensor.nbytes) == (dtype.name, (2, dtype.block), row.size)
        assert tensor.dtype is dtype
        assert repr(tensor) == f"<tensor 'w' {dtype.name} [2, {dtype.block}]>"
        np.testing.assert_array_equal(tensor.numpy().astype(np.float32), dtype.decode(row))


def test_version_2_reads_alike(tmp_path):
    path = write(tmp_path / "v3.gguf", {"n": (V.UINT8, None, 7)}, {"plain": ARRAY_F32})
    raw = bytearray(path.read_bytes())
    raw[4:8] = struct.pack("<I", 2)
    (tmp_path / "v2.gguf").write_bytes(raw)
    with jf_gguf.open(tmp_path / "v2.gguf") as file:
        assert (file.version, file.metadata["n"]) == (2, 7)
        np.testing.assert_array_equal(file.tensors["plain"].numpy(), ARRAY_F32[1])


def test_many_strings_of_all_lengths(tmp_path):
    # Around the lengths where the fast walk must hand over to the careful one, over several of its pieces.
    rng = np.random.default_rng(0)
    lengths = np.concatenate([rng.integers(0, 30, 9000), [255, 256, 257, 511, 512, 65536, 0], rng.integers(0, 9, 5000)])
    words = ["é" * (n // 2) + "x" * (n % 2) for n in lengths.tolist()]
    path = write(tmp_path / "a.gguf", {"words": (V.ARRAY, V.STRING, words), "after": (V.UINT8, None, 5)})
    with jf_gguf.open(path) as file:
        assert file.metadata["words"].to_list() == words
        assert file.metadata["words"][9005] == words[9005]
        assert file.metadata["after"] == 5


ODD = [b"", b"\0", b"\5" + bytes(7), bytes(9), b"a\0", b"\x1f\n\x7f\1", "Ġé🦙".encode(), b"\xff", b"\xc3", b"\xa9"]
WORDS = st.one_of(st.binary(max_size=6), st.sampled_from(ODD), st.integers(250, 260).map(lambda n: b"x" * n))


@settings(max_examples=300)
@given(
    words=st.lists(WORDS, max_size=12).map(lambda words: words * 5),
    lead=st.integers(0, 9),
    lost=st.integers(0, 40),
    window=st.sampled_from([1, 9, 40, 1 << 15]),
    few=st.sampled_from([1, 4, 64]),
)
@example(words=[b"x" * 257, b"\0"], lead=0, lost=0, window=40, few=4)  # as many zeros as two short strings have
def test_strings_are_found_as_one_by_one(words, lead, lost, window, few):
    body = b"".join(struct.pack("<Q", len(word)) + word for word in words)
    raw = bytes(lead) + body[: max(0, len(body) - lost)]
    whole = [word for word, end in zip(words, ends_of(words, lead), strict=True) if end <= len(raw)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "_WINDOW", window)
        patch.setattr(arrays, "_FEW", few)
        patch.setattr(arrays, "_STRIDE", 3)
        cursor = Cursor(Source("words", memoryview(raw)))
        cursor.pos = lead
        if len(whole) < len(words):
            with pytest.raises(GGUFError, match=rf"^words: string {len(whole)} of x at byte"):
                arrays.walk_strings(cursor, len(words), "x")
            return
        ends = arrays.walk_strings(cursor, len(words), "x")
        assert ends.tolist() == [0, *ends_of(words, 0)]
        assert cursor.pos == lead + ends[-1]
        found = arrays.Strings(cursor.source, "x", lead, ends)
        check_decoded(found, words)


def ends_of(words, start):
    return [start := start + 8 + len(word) for word in words]


def check_decoded(found, words):
    texts = [word.decode("utf-8", "replace") for word in words]
    wrong = [i for i, word in enumerate(words) if texts[i].encode() != word]
    if wrong:
        with pytest.raises(GGUFError, match=rf"string {wrong[0]} of x at byte \d+: the text is not UTF-8"):
            found.to_list()
    else:
        assert found.to_list() == texts
        for separator in ("\n", "x", "", "\0", "é", ", "):
            assert found.joined(separator) == separator.join(texts)


def test_usual_vocabularies_are_decoded_at_once(monkeypatch):
    words = ["Ġa", "b", "ü", "🦙", "\n"] * 1000
    body = b"".join(struct.pack("<Q", len(word.encode())) + word.encode() for word in words)
    cursor = Cursor(Source("words", memoryview(body)))
    monkeypatch.setattr(Cursor, "text_end", None)
    found = arrays.Strings(cursor.source, "x", 0, arrays.walk_strings(cursor, len(words), "x"))
    monkeypatch.setattr(arrays, "pairwise", None)
    assert found.joined("|") == "|".join(words)
    assert found.to_list() == words


def test_numbers_become_arrays_without_a_list(small):
    scores = small.metadata["scores"]
    assert np.asarray(scores).dtype == np.float32
    assert np.array(scores, np.float64).tolist() == [0.5, -1.25, 3.0]
    with pytest.raises(ValueError, match="without a copy"):
        scores.__array__(copy=False)


def test_paths(tmp_path):
    path = write(tmp_path / "a.gguf", tensors={"plain": ARRAY_F32})
    with jf_gguf.open(str(path)) as file:
        assert list(file.tensors) == ["plain"]
    with pytest.raises(FileNotFoundError):
        jf_gguf.open(tmp_path / "none.gguf")
    with pytest.raises(TypeError):
        pickle.dumps(jf_gguf.open(path))


def test_the_default_model_reads_as_in_the_package(default_model):
    with jf_gguf.open(default_model) as file:
        compare(file, gguf.GGUFReader(default_model))
        assert len(file.metadata["tokenizer.ggml.tokens"]) == 49152
        assert file.tensors["token_embd.weight"].numpy().shape == (49152, 576)
