"""Quantised files: their bytes, their metadata, and that a file is whole or not there."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from pathlib import Path

import families
import gguf
import gguf_files
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import jackfield as jf
import jackfield_llm
from jackfield.cli.app import app
from jackfield_llm import quantized_file, whole_file
from jackfield_llm.errors import QuantizationError
from jackfield_llm.importance import read_importance
from jackfield_llm.quantization import FILE_TYPES
from jackfield_llm.quantized_file import quantize

try:
    import fcntl
except ImportError:
    fcntl = None

RECORDED = json.loads((families.FOLDER.parent / "quantize" / "mixes.json").read_text())
DTYPES = jf.dtypes.DTYPES
TEXT = {"general.architecture": ("string", "llama")}
FINAL = {"general.quantization_version": ("u32", 2), "general.file_type": ("u32", 0)}  # of F32


def made(folder, tensors, metadata=None, name="in.gguf", alignment=32):
    """A file of these arrays, f32 where no other type is named: {name: array or (type name, bytes, shape)}."""
    rows = []
    for key, content in tensors.items():
        if isinstance(content, tuple):
            kind, raw, shape = content
        else:
            kind, raw, shape = "f32", np.ascontiguousarray(content, "<f4").tobytes(), content.shape
        rows.append((key, shape, DTYPES[kind].gguf_id, raw))
    path = folder / name
    path.write_bytes(gguf_files.file({**TEXT, **(metadata or {})}, rows, alignment))
    return path


def matrix(rows=4, columns=512, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)


def decoded(path):
    """Values f32 by name, as the package gguf reads them."""
    return {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors}


# ---- bytes


@pytest.mark.parametrize("kind", RECORDED["bytes"]["llama"])
@pytest.mark.parametrize("name", RECORDED["bytes"])
def test_the_bytes_are_llama_cpps(name, kind, family_path, tmp_path):
    """Of the types whose rounding is fixed; a source of f32, one of f16, one of bf16."""
    quantize(family_path(name), tmp_path / "out.gguf", kind, pure=True)
    found = hashlib.sha256()
    for tensor in sorted(gguf.GGUFReader(tmp_path / "out.gguf").tensors, key=lambda t: t.name):
        found.update(tensor.data.tobytes())
    assert found.hexdigest() == RECORDED["bytes"][name][kind]


@pytest.mark.parametrize("kind", FILE_TYPES)
def test_every_file_type_is_what_the_core_encodes(kind, tmp_path):
    """Names, order, shapes and bytes as the package gguf reads them, for a model that has a tensor of each kind."""
    arrays = {
        "output_norm.weight": matrix(1)[0],
        "blk.0.ffn_down.weight": matrix(seed=1),
        "token_embd.weight": matrix(seed=2),
        "output.weight": matrix(seed=3),
        "blk.0.attn_v.weight": matrix(3, seed=4),
        "blk.0.ffn_up_exps.weight": matrix(6, seed=5).reshape(3, 2, 512),
        "blk.0.attn_q.weight": matrix(2, 288, seed=6),
        "blk.0.attn_k.weight": matrix(2, 40, seed=7),
    }
    source = made(tmp_path, arrays, {"llama.block_count": ("u32", 8)})
    summary = quantize(source, tmp_path / "out.gguf", kind, threads=2)
    with jf.gguf.open(tmp_path / "out.gguf") as file:
        assert list(file.tensors) == list(arrays)
        for name, array in arrays.items():
            tensor = file.tensors[name]
            assert tensor.shape == array.shape
            assert bytes(tensor.data) == tensor.dtype.encode(array).tobytes(), name
        types = {name: tensor.type.name for name, tensor in file.tensors.items()}
    main = FILE_TYPES[kind].main
    assert types["output_norm.weight"] == "f32"
    assert types["blk.0.ffn_up_exps.weight"] == main
    assert types["blk.0.attn_k.weight"] == (main if DTYPES[main].block == 1 else "f16")
    assert summary.nbytes == sum(DTYPES[types[name]].nbytes(array.shape) for name, array in arrays.items())
    assert summary.elements == sum(array.size for array in arrays.values())
    assert summary.bits_per_weight == summary.nbytes * 8 / summary.elements
    assert dict(summary.types) == {name: list(types.values()).count(name) for name in types.values()}
    with jf.gguf.open(tmp_path / "out.gguf") as file:
        assert file.metadata["general.file_type"] == FILE_TYPES[kind].number
    if main not in ("q1_0", "q2_0"):  # which the package does not know
        for tensor in gguf.GGUFReader(tmp_path / "out.gguf").tensors:
            assert tensor.tensor_type.name.lower() == types[tensor.name].lower()


@pytest.mark.parametrize("name", [d.name for d in DTYPES.values() if d.is_block and d.name not in ("q8_1", "q8_K")])
def test_every_block_type_is_a_source(name, tmp_path):
    """Decoded by the core, piece by piece, with more than one piece a tensor."""
    columns = 512
    raw = DTYPES[name].encode(matrix(700, columns))
    source = made(tmp_path, {"blk.0.ffn_up.weight": (name, raw.tobytes(), (700, columns))})
    summary = quantize(source, tmp_path / "out.gguf", "q8_0" if name != "q8_0" else "q4_0", threads=3)
    assert summary.requantised == {name: 1}
    with jf.gguf.open(tmp_path / "out.gguf") as file:
        tensor = file.tensors["blk.0.ffn_up.weight"]
        assert bytes(tensor.data) == tensor.dtype.encode(DTYPES[name].decode(raw)).tobytes()


def test_the_decoding_is_the_packages(family_path, tmp_path):
    """A source of q4_0 .. q8_0 written as f32 holds what the package gguf decodes."""
    source = family_path("llama_quantised")
    quantize(source, tmp_path / "out.gguf", "F32")
    theirs, ours = decoded(source), decoded(tmp_path / "out.gguf")
    assert list(ours) == list(theirs)
    for name, values in theirs.items():
        assert np.array_equal(ours[name], values), name


@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 4), st.sampled_from(["q4_0", "q8_0", "bf16"]))
def test_threads_and_pieces_change_nothing(matrices, rows, threads, kind):
    array = matrix(matrices * rows, 64, seed=rows).reshape(matrices, rows, 64)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantized_file, "_PIECE", 128)  # elements: two rows
        source = made(Path(folder), {"a.weight": array, "b.weight": array[0]})
        quantize(source, Path(folder) / "out.gguf", kind, threads=threads)
        with jf.gguf.open(Path(folder) / "out.gguf") as file:
            for name, values in (("a.weight", array), ("b.weight", array[0])):
                if values.shape[0] > 1 or (values.ndim > 2 and values.size > 64):
                    assert bytes(file.tensors[name].data) == DTYPES[kind].encode(values).tobytes()


def test_memory_does_not_grow_with_a_tensor(tmp_path):
    """A matrix of 64 MiB passes through in pieces."""
    source = made(tmp_path, {"token_embd.weight": ("f16", bytes(64 << 20), (1 << 16, 512))})
    tracemalloc.start()
    try:
        quantize(source, tmp_path / "out.gguf", "q8_0", threads=2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 24 << 20
    assert (tmp_path / "out.gguf").stat().st_size > 32 << 20


# ---- models


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_K_M", "IQ4_XS", "Q2_K", "MXFP4"])
@pytest.mark.parametrize("name", ["llama", "llama_rope_freqs", "qwen2", "qwen3", "gemma3", "llama_quantised"])
def test_the_result_is_a_model(name, kind, family_path, tmp_path):
    quantize(family_path(name), tmp_path / "out.gguf", kind)
    ids, _ = families.golden(name)
    with jackfield_llm.load(family_path(name), "reference") as model:
        before = model.logits(ids)
    with jackfield_llm.load(tmp_path / "out.gguf", "reference") as model:
        after = model.logits(ids)
    bound = {"F16": 1e-4, "Q8_0": 1e-2}.get(kind, 0.9)  # tiny random models forgive little
    assert families.nmse(after, before) < bound


# ---- metadata


def values(kind):
    if kind == "string":
        return st.text(max_size=40)
    if kind == "bool":
        return st.booleans()
    if kind in ("f32", "f64"):
        return st.floats(width=32 if kind == "f32" else 64, allow_nan=False)
    bits, signed = int(kind[1:]), kind[0] == "i"
    low = -(2 ** (bits - 1)) if signed else 0
    return st.integers(low, low + 2**bits - 1)


def arrays(depth):
    kinds = [kind for kind in gguf_files.KINDS if kind != "array" or depth]
    return st.sampled_from(kinds).flatmap(
        lambda kind: st.tuples(
            st.just(kind), st.lists(arrays(depth - 1) if kind == "array" else values(kind), max_size=4)
        )
    )


ENTRIES = st.sampled_from(gguf_files.KINDS).flatmap(
    lambda kind: st.tuples(st.just(kind), arrays(2) if kind == "array" else values(kind))
)
KEYS = st.text(min_size=1, max_size=20).filter(lambda key: not key.startswith(("general.", "split.")))
METADATA = st.dictionaries(KEYS, ENTRIES, max_size=6)


@given(METADATA, METADATA, st.sampled_from([8, 32, 64, 256]), st.lists(st.integers(1, 70), max_size=3))
def test_what_needs_no_change_is_the_same_file_byte_for_byte(before, after, alignment, sizes):
    """Keys of all types in their order, arrays in arrays, empty ones, alignment, order and padding of tensors."""
    align = {} if alignment == 32 else {"general.alignment": ("u32", alignment)}
    metadata = {**TEXT, **before, **FINAL, **align, **after}
    tensors = [(f"t{i}", (size,), 24, bytes(range(size))) for i, size in enumerate(sizes)]
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "in.gguf", Path(folder) / "out.gguf"
        source.write_bytes(gguf_files.file(metadata, tensors, alignment))
        quantize(source, target, "F32")
        assert target.read_bytes() == source.read_bytes()


@given(METADATA, st.sampled_from(["u32", "i32", "u64", "string"]))
def test_two_keys_are_set_and_all_others_kept(metadata, kind):
    """File type and quantization version, where they stand already or at the end, and u32 whatever they were."""
    old = {"general.file_type": (kind, "x" if kind == "string" else 1)}
    source_metadata = {**TEXT, **old, **metadata}
    with tempfile.TemporaryDirectory() as folder:
        source = made(Path(folder), {"a.weight": matrix(2)}, {**old, **metadata})
        quantize(source, Path(folder) / "out.gguf", "Q5_1")
        with jf.gguf.open(source) as one, jf.gguf.open(Path(folder) / "out.gguf") as two:
            assert list(two.metadata) == [*source_metadata, "general.quantization_version"]
            assert two.metadata["general.file_type"] == FILE_TYPES["Q5_1"].number
            assert two.metadata["general.quantization_version"] == 2
            assert two.kinds["general.file_type"] == two.kinds["general.quantization_version"] == "u32"
            for key in metadata:
                assert two.kinds[key] == one.kinds[key]
                same = two.metadata[key] == one.metadata[key]
                assert same, key


def test_metadata_of_a_model_as_the_package_reads_it(family_path, tmp_path):
    quantize(family_path("gemma3"), tmp_path / "out.gguf", "Q4_K_M")
    one, two = gguf.GGUFReader(family_path("gemma3")), gguf.GGUFReader(tmp_path / "out.gguf")
    changed = {"general.file_type", "general.quantization_version", "GGUF.kv_count"}
    assert set(two.fields) == set(one.fields) | changed
    for name, field in one.fields.items():
        if name not in changed:
            assert two.fields[name].types == field.types
            assert two.fields[name].contents() == field.contents()


# ---- options


def test_options_reach_the_decision(tmp_path):
    arrays = {"token_embd.weight": matrix(), "output.weight": matrix(), "blk.0.attn_v.weight": matrix()}
    source = made(tmp_path, arrays, {"llama.block_count": ("u32", 8)})

    def types(**options):
        quantize(source, tmp_path / "out.gguf", "q4_k_m", force=True, **options)
        with jf.gguf.open(tmp_path / "out.gguf") as file:
            return [tensor.type.name for tensor in file.tensors.values()]

    assert types() == ["q4_K", "q6_K", "q6_K"]
    assert types(pure=True) == ["q4_K"] * 3
    assert types(token_embedding_type="Q8_0", output_type="f16") == ["q8_0", "f16", "q6_K"]
    with pytest.raises(QuantizationError, match=r"no type 'q9' to write; known: f32 .*q4_K"):
        types(output_type="q9")
    with pytest.raises(QuantizationError, match="no type 'q8_K'"):
        types(output_type="q8_K")


def test_integers_are_no_weights(tmp_path):
    raw = np.arange(64, dtype="<i4").tobytes()
    source = made(tmp_path, {"blk.0.ids.weight": ("i32", raw, (2, 32)), "a.weight": matrix()})
    quantize(source, tmp_path / "out.gguf", "q4_0")
    with jf.gguf.open(tmp_path / "out.gguf") as file:
        assert bytes(file.tensors["blk.0.ids.weight"].data) == raw


# ---- importance


def importance_file(folder, entries):
    """entries: name to (sums [matrices, columns], counts [matrices])."""
    tensors = {}
    for name, (sums, counts) in entries.items():
        tensors[f"{name}.in_sum2"] = np.asarray(sums, np.float32)
        tensors[f"{name}.counts"] = np.asarray(counts, np.float32).reshape(-1, 1)
    return made(folder, tensors, name="importance.gguf")


def test_importance_goes_to_each_matrix_of_a_stack(tmp_path):
    array = matrix(12, 512).reshape(3, 4, 512)
    sums = np.random.default_rng(5).uniform(0, 9, size=(3, 512)).astype(np.float32)
    source = made(tmp_path, {"blk.0.ffn_up_exps.weight": array, "blk.0.attn_q.weight": matrix()})
    path = importance_file(tmp_path, {"blk.0.ffn_up_exps.weight": (sums, [4, 0, 2])})
    summary = quantize(source, tmp_path / "out.gguf", "iq2_xs", importance=path)
    assert summary.unguided == ("iq2_xs",)
    assert summary.uncovered == ("blk.0.attn_q.weight",)
    q2 = DTYPES["iq2_xs"]
    weights = [sums[0] / 4, np.ones(512, np.float32), sums[2] / 2]
    with jf.gguf.open(tmp_path / "out.gguf") as file:
        raw = np.frombuffer(file.tensors["blk.0.ffn_up_exps.weight"].data, np.uint8).reshape(3, 4, -1)
        plain = np.frombuffer(file.tensors["blk.0.attn_q.weight"].data, np.uint8)
    for values, coded, weight in zip(array, raw, weights, strict=True):
        assert np.array_equal(coded, q2.encode(values, importance=weight))
    assert not np.array_equal(raw[0], q2.encode(array[0]))
    assert np.array_equal(plain, q2.encode(matrix()).ravel())


def test_importance_changes_the_mix(tmp_path):
    arrays = {"blk.0.ffn_down.weight": matrix(), "o.weight": matrix()}
    source = made(tmp_path, arrays, {"llama.block_count": ("u32", 8)})
    path = importance_file(tmp_path, {"o.weight": (np.ones((1, 512)), [1])})
    quantize(source, tmp_path / "out.gguf", "q4_0", importance=path)
    with jf.gguf.open(tmp_path / "out.gguf") as file:
        assert [t.type.name for t in file.tensors.values()] == ["q4_1", "q4_0"]


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ({}, "holds no importance"),
        ({"a.weight": (np.ones((1, 512)), [1, 1])}, "1 rows of sums and 2 counts"),
        ({"a.weight": (np.full((1, 512), np.nan), [1])}, "must be finite"),
        ({"a.weight": (np.full((1, 512), -1), [1])}, "not below 0"),
        ({"a.weight": (np.ones((1, 256)), [1])}, "its importance"),
        ({"a.weight": (np.ones((2, 512)), [1, 1])}, "its importance"),
        ({"a.weight": (np.ones((1, 512)), [np.nan])}, "counts of 'a.weight' must be finite"),
        ({"a.weight": (np.ones((1, 512)), [np.inf])}, "counts of 'a.weight' must be finite"),
        ({"a.weight": (np.ones((1, 512)), [-1])}, "counts of 'a.weight' must be finite and not below 0"),
        ({"a.weight": (np.full((1, 512), 3e38), [5e-3])}, "importance of 'a.weight' must be finite"),
        ({"other.weight": (np.ones((1, 512)), [1])}, "knows no tensor of .*in.gguf"),
    ],
)
def test_wrong_importance_is_refused(entries, text, tmp_path):
    source, path = made(tmp_path, {"a.weight": matrix()}), importance_file(tmp_path, entries)
    with pytest.raises(QuantizationError, match=text):
        quantize(source, tmp_path / "out.gguf", "q4_k", importance=path)


@given(st.sets(st.sampled_from(["a", "b", "c", "d"]), min_size=1), st.sampled_from(["iq2_xs", "q4_k", "q8_0", "f16"]))
def test_what_an_importance_does_not_cover_is_told(covered, kind):
    """Where it makes a difference, and only of matrices that such files cover."""
    names = [f"{letter}.weight" for letter in "abcd"]
    kept = {"token_embd.weight": matrix(2, 256), "n.weight": matrix(1, 256)[0]}
    entries = {f"{letter}.weight": (np.ones((1, 256)), [1]) for letter in covered}
    with tempfile.TemporaryDirectory() as folder:
        source = made(Path(folder), {**{name: matrix(2, 256) for name in names}, **kept})
        importance = importance_file(Path(folder), entries)
        summary = quantize(source, Path(folder) / "out.gguf", kind, pure=True, importance=importance)
        missing = tuple(name for name in names if name[0] not in covered)
        assert summary.uncovered == (missing if kind in ("iq2_xs", "q4_k") else ())
        assert summary.unguided == (("iq2_xs",) if kind == "iq2_xs" else ())  # the token embeddings at least
        embeddings = quantize(
            source, Path(folder) / "2.gguf", kind, pure=True, importance=importance, token_embedding_type="f16"
        )
        assert embeddings.unguided == (("iq2_xs",) if kind == "iq2_xs" and missing else ())


def test_importance_without_counts_or_file(tmp_path):
    path = made(tmp_path, {"a.weight.in_sum2": matrix(1)})
    with pytest.raises(QuantizationError, match=r"lacks 'a.weight.counts'"):
        read_importance(path)
    with pytest.raises(QuantizationError, match="no such file"):
        read_importance(tmp_path / "none")


# ---- whole or not there


def left(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_target_that_is_there_is_replaced_on_request_only(tmp_path):
    source = made(tmp_path, {"a.weight": matrix()})
    target = tmp_path / "out.gguf"
    target.write_text("mine")
    with pytest.raises(QuantizationError, match="--force"):
        quantize(source, target, "q4_0")
    assert target.read_text() == "mine"
    quantize(source, target, "q4_0", force=True)
    assert left(tmp_path) == ["in.gguf", "out.gguf"]
    assert target.read_bytes()[:4] == b"GGUF"


def test_a_target_that_appears_meanwhile_is_kept(tmp_path):
    source, target = made(tmp_path, {"a.weight": matrix()}), tmp_path / "out.gguf"
    with pytest.raises(QuantizationError, match="is there already"):
        quantize(source, target, "q4_0", progress=lambda *_: target.write_text("mine"))
    assert target.read_text() == "mine"
    assert left(tmp_path) == ["in.gguf", "out.gguf"]


@pytest.mark.parametrize("how", ["same", "symlink", "hardlink"])
def test_the_source_is_never_the_target(how, tmp_path):
    source = made(tmp_path, {"a.weight": matrix()})
    before, target = source.read_bytes(), source
    if how != "same":
        target = tmp_path / "other.gguf"
        (os.symlink if how == "symlink" else os.link)(source, target)
    with pytest.raises(QuantizationError, match="is the source itself"):
        quantize(source, target, "q4_0", force=True)
    assert source.read_bytes() == before


def test_odd_places(tmp_path):
    source = made(tmp_path, {"a.weight": matrix()})
    with pytest.raises(QuantizationError, match="no folder"):
        quantize(source, tmp_path / "none" / "out.gguf", "q4_0")
    with pytest.raises(QuantizationError, match="no plain file"):
        quantize(source, tmp_path, "q4_0", force=True)
    with pytest.raises(QuantizationError, match="no such file"):
        quantize(tmp_path / "none", tmp_path / "out.gguf", "q4_0")
    with pytest.raises(QuantizationError, match="is a folder"):
        quantize(tmp_path, tmp_path / "out.gguf", "q4_0")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(QuantizationError, match="no plain file"):
        quantize(source, tmp_path / "dangling", "q4_0", force=True)


def test_a_disk_too_small_is_told_before_anything_is_written(tmp_path, monkeypatch):
    source = made(tmp_path, {"a.weight": matrix()})
    monkeypatch.setattr(quantized_file.shutil, "disk_usage", lambda _: type("U", (), {"free": 100}))
    with pytest.raises(QuantizationError, match=r"needs 1,152 bytes, .* has 100 left"):
        quantize(source, tmp_path / "out.gguf", "q4_0")
    assert left(tmp_path) == ["in.gguf"]


def test_padding_takes_room_too(tmp_path, monkeypatch):
    source = made(
        tmp_path, {f"{i}.weight": matrix() for i in range(3)}, {"general.alignment": ("u32", 4096)}, "a", 4096
    )
    free = 3 * 4096 - 1
    monkeypatch.setattr(quantized_file.shutil, "disk_usage", lambda _: type("U", (), {"free": free}))
    with pytest.raises(QuantizationError, match=r"needs 12,288 bytes, .* has 12,287 left"):
        quantize(source, tmp_path / "out.gguf", "q4_0")
    free += 1
    quantize(source, tmp_path / "out.gguf", "q4_0")


@pytest.mark.parametrize("bits", [22, 28, 31])
def test_a_few_bytes_do_not_become_gigabytes(bits, tmp_path):
    """A header without a tensor that asks for a huge alignment."""
    head = gguf_files.file({**TEXT, "general.alignment": ("u32", 1 << bits)}, [], 1)
    (tmp_path / "in.gguf").write_bytes(head)
    with pytest.raises(QuantizationError, match=f"aligned to {1 << bits:,} bytes; must be at most 2,097,152"):
        quantize(tmp_path / "in.gguf", tmp_path / "out.gguf", "q4_0")
    assert left(tmp_path) == ["in.gguf"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO])
def test_errors_of_the_disk_say_which_file_and_what_to_do(number, tmp_path):
    source, target = made(tmp_path, {"a.weight": matrix()}), tmp_path / "out.gguf"

    def fail(*_):
        raise OSError(number, os.strerror(number))

    with pytest.raises(OSError, match=r"; .*write elsewhere") as caught:
        quantize(source, target, "q4_0", progress=fail)
    assert (caught.value.errno, caught.value.filename) == (number, str(target))


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt(), QuantizationError("x")])
def test_nothing_half_done_is_left(error, tmp_path):
    source = made(tmp_path, {"a.weight": matrix(), "b.weight": matrix()})
    before = set(threading.enumerate())

    def fail(label, done, total):
        if done > total / 2:
            raise error

    with pytest.raises(type(error)):
        quantize(source, tmp_path / "out.gguf", "q4_0", progress=fail)
    assert left(tmp_path) == ["in.gguf"]
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (np.nan, "q4_0", "inf or NaN"),
        (np.inf, "q8_0", "inf or NaN"),
        (1e30, "q4_0", "must fit f16"),
        (7e4, "f16", "holds 70000, more than f16 can"),
    ],
)
def test_values_that_cannot_be_coded_name_the_tensor(value, kind, text, tmp_path):
    array = matrix()
    array[2, 3] = value
    source = made(tmp_path, {"blk.0.ffn_up.weight": array})
    with pytest.raises(QuantizationError, match=f"tensor 'blk.0.ffn_up.weight', rows from 0: .*{text}"):
        quantize(source, tmp_path / "out.gguf", kind)
    assert left(tmp_path) == ["in.gguf"]


def test_what_is_infinite_stays_so_in_floats(tmp_path):
    array = matrix()
    array[0, :2] = np.inf, np.nan
    quantize(made(tmp_path, {"a.weight": array}), tmp_path / "out.gguf", "bf16")
    (values,) = decoded(tmp_path / "out.gguf").values()
    assert values[0, 0] == math.inf
    assert math.isnan(values[0, 1])


def test_a_part_of_a_model_is_refused(tmp_path):
    source = made(tmp_path, {"a.weight": matrix()}, {"split.count": ("u16", 3)})
    with pytest.raises(QuantizationError, match="one of 3 parts"):
        quantize(source, tmp_path / "out.gguf", "q4_0")
    whole = made(tmp_path, {"a.weight": matrix()}, {"split.count": ("u16", 1)}, name="whole.gguf")
    quantize(whole, tmp_path / "out.gguf", "q4_0")


def test_a_file_that_is_none(tmp_path):
    (tmp_path / "in.gguf").write_bytes(b"no model at all, but long enough for a header")
    with pytest.raises(jf.errors.GGUFError):
        quantize(tmp_path / "in.gguf", tmp_path / "out.gguf", "q4_0")


# ---- the command


def run(*arguments):
    return CliRunner().invoke(app, ["quantize", *map(str, arguments)])


def test_the_command(family_path, tmp_path):
    result = run(family_path("llama_quantised"), tmp_path / "out.gguf", "Q4_K_M")
    assert result.exit_code == 0
    line = result.stdout.strip()
    assert line.startswith(f"{tmp_path / 'out.gguf'}: Q4_K_M, ")
    for part in ("M weights", "MB ->", "bits per weight", "f32", "q5_0"):
        assert part in line
    assert "note: quantised before, so that both losses add up: " in result.stderr
    assert "another type stands in: " in result.stderr
    again = run(family_path("llama_quantised"), tmp_path / "out.gguf", "Q4_K_M")
    assert (again.exit_code, again.stdout) == (1, "")
    assert "is there already" in again.stderr
    forced = run(family_path("llama_quantised"), tmp_path / "out.gguf", "Q4_K_M", "--force", "--threads", 1)
    assert forced.exit_code == 0


def test_notes(tmp_path):
    source = made(tmp_path, {"a.weight": matrix()})
    assert run(source, tmp_path / "one.gguf", "q4_0").stderr == ""
    result = run(source, tmp_path / "two.gguf", "iq2_xs")
    assert result.stderr == "note: iq2_xs lose much without --importance\n"
    many = made(tmp_path, {f"{i}.weight": matrix() for i in range(6)}, name="many.gguf")
    path = importance_file(tmp_path, {"0.weight": (np.ones((1, 512)), [1])})
    result = run(many, tmp_path / "three.gguf", "q4_K_S", "--importance", path)
    told = "'1.weight', '2.weight', '3.weight' and 2 more"
    assert result.stderr == f"note: --importance knows nothing of {told}; these were written without\n"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["no/such.gguf", "out.gguf", "q4_0"], 1, "no/such.gguf: no such file"),
        (["IN", "out.gguf", "q4_q"], 1, "did you mean"),
        (["IN", "out.gguf", "q4_0", "--output-type", "q9"], 1, "no type 'q9'"),
        (["IN", "out.gguf", "q4_0", "--importance", "no"], 1, "no: no such file"),
        (["IN", "out.gguf", "q4_0", "--threads", "0"], 2, "threads"),
        (["IN", "out.gguf"], 2, "TYPE"),
    ],
)
def test_errors_are_one_line(arguments, code, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = made(tmp_path, {"a.weight": matrix()})
    result = run(*[source if a == "IN" else a for a in arguments])
    assert result.exit_code == code
    assert text in result.stderr
    assert "Traceback" not in result.stderr
    if code == 1:
        assert result.stderr.count("\n") == 1
    assert left(tmp_path) == ["in.gguf"]


def test_help():
    result = CliRunner().invoke(app, ["quantize", "--help"], terminal_width=300)
    for name in (*FILE_TYPES, "--importance", "--force", "--pure", "Q3_K, Q4_K and Q5_K"):
        assert name in " ".join(result.stdout.split())


PROGRAM = """
import resource, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if int(sys.argv[1]):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
from jackfield.cli import main
del sys.argv[1]
main()
"""


def start(limit, *arguments):
    command = [sys.executable, "-c", PROGRAM, str(limit), "quantize", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.skipif(os.name != "posix", reason="limits of processes are POSIX's")
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path):
    """A limit on the size of files is as a disk that fills while the file is written."""
    source = made(tmp_path, {"a.weight": matrix(4096)})
    process = start(100_000, source, tmp_path / "out.gguf", "q8_0")
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (1, "")
    assert err == (
        f"Error: [Errno {errno.EFBIG}] {os.strerror(errno.EFBIG)}; raise the limit on the size of files, or write "
        f"elsewhere: {str(tmp_path / 'out.gguf')!r}\n"
    )
    assert left(tmp_path) == ["in.gguf"]


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_signals_that_end_programs_leave_nothing(name, code, tmp_path):
    source = made(tmp_path, {"a.weight": matrix(1 << 14)})
    process = start(0, source, tmp_path / "out.gguf", "iq2_s", "--threads", "1")
    while not parts(tmp_path):
        assert process.poll() is None
    process.send_signal(getattr(signal, name))
    _, err = process.communicate(timeout=120)
    assert process.returncode == code
    assert "Traceback" not in err
    assert left(tmp_path) == ["in.gguf"]


def parts(folder):
    return [name for name in left(folder) if name.endswith(".part")]


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
def test_the_next_run_removes_what_a_killed_one_left(tmp_path):
    """And neither what another process is writing, nor the hidden file of another target."""
    source = made(tmp_path, {"a.weight": matrix(1 << 14)})
    process = start(0, source, tmp_path / "out.gguf", "iq2_s", "--threads", "1")
    while not parts(tmp_path):
        assert process.poll() is None
    (tmp_path / ".out.gguf.2.77.part").touch()
    (tmp_path / ".out.gguf.mine.part").touch()
    kept = [".out.gguf.2.77.part", ".out.gguf.mine.part"]
    (written,) = set(parts(tmp_path)) - set(kept)
    quantize(source, tmp_path / "out.gguf", "q8_0")
    assert parts(tmp_path) == sorted([written, *kept])
    process.kill()
    process.communicate(timeout=120)
    assert parts(tmp_path) == sorted([written, *kept])
    quantize(source, tmp_path / "out.gguf", "q8_0", force=True)
    assert left(tmp_path) == sorted([*kept, "in.gguf", "out.gguf"])


@pytest.mark.parametrize("length", [30, 200, 201, 255])
@pytest.mark.parametrize("letter", ["x", "é", "["])
def test_a_name_may_be_as_long_as_the_file_system_takes(length, letter, tmp_path):
    name = letter * (length // len(letter.encode()))
    quantize(made(tmp_path, {"a.weight": matrix()}), tmp_path / name, "q8_0")
    assert left(tmp_path) == sorted(["in.gguf", name])


@pytest.mark.skipif(fcntl is None, reason="a file that is open can be removed on POSIX alone")
@pytest.mark.parametrize("moment", ["made", "locked"])
def test_a_hidden_file_that_another_writer_removes_is_made_again(moment, tmp_path, monkeypatch):
    """Between its making and its lock it looks abandoned; later, under its lock, it does not."""
    lock, seen = whole_file._lock, []

    def while_another_looks(handle):
        moments = {"made": lambda: None, "locked": lambda: lock(handle)}
        moments[moment]()
        for part in parts(tmp_path):
            seen.append(part)
            whole_file._remove_abandoned(tmp_path / part)
        lock(handle)
        monkeypatch.setattr(whole_file, "_lock", lock)

    monkeypatch.setattr(whole_file, "_lock", while_another_looks)
    with whole_file.whole_file(tmp_path / "out") as part:
        assert seen
        assert (part.name in seen) == (moment == "locked")
        part.write_bytes(b"head")
        whole_file._remove_abandoned(part)
        with part.open("ab") as out:
            out.write(b" and body")
    assert (tmp_path / "out").read_bytes() == b"head and body"
    assert left(tmp_path) == ["out"]


@pytest.mark.skipif(fcntl is None, reason="a file that is open can be removed on POSIX alone")
def test_a_remover_that_comes_late_leaves_the_new_file_of_that_name(tmp_path, monkeypatch):
    """It opened a file that is gone by the time it has the lock."""
    old = tmp_path / ".out.1.part"
    old.touch()
    flock = fcntl.flock

    def swapped(handle, flags):
        old.unlink()
        old.write_bytes(b"another's")
        flock(handle, flags)

    monkeypatch.setattr(fcntl, "flock", swapped)
    whole_file._remove_abandoned(old)
    assert old.read_bytes() == b"another's"


def test_threads_that_write_the_same_file_do_not_mix(tmp_path):
    source = made(tmp_path, {"a.weight": matrix(64)})
    threads = [
        threading.Thread(target=quantize, args=(source, tmp_path / "out.gguf", "q8_0"), kwargs={"force": True})
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    quantize(source, tmp_path / "alone.gguf", "q8_0")
    assert (tmp_path / "out.gguf").read_bytes() == (tmp_path / "alone.gguf").read_bytes()
    assert left(tmp_path) == ["alone.gguf", "in.gguf", "out.gguf"]
