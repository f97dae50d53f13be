"""What quantize does with weights that a type can't hold, and with damaged ones: it says so."""

from __future__ import annotations

import tempfile
from pathlib import Path

import gguf_files
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jackfield as jf
from jackfield_llm import quantized_file
from jackfield_llm.errors import QuantizationError
from jackfield_llm.quantization import FILE_TYPES
from jackfield_llm.quantized_file import quantize

DTYPES = jf.dtypes.DTYPES
BLOCKS = [d.name for d in DTYPES.values() if d.is_block and not d.is_activation]
SHAPE = (8, 256)
LARGEST = {"F16": 65504.0, "BF16": float(ml_dtypes.finfo(ml_dtypes.bfloat16).max), "F32": float(np.finfo("f4").max)}
STORED = {"f64": "<f8", "f32": "<f4", "f16": "<f2"}


def made(folder, kind, raw, shape=SHAPE):
    path = Path(folder) / "in.gguf"
    path.write_bytes(
        gguf_files.file(
            {"general.architecture": ("string", "llama")}, [("a.weight", shape, DTYPES[kind].gguf_id, raw)], 32
        )
    )
    return path


def written(folder):
    with jf.gguf.open(Path(folder) / "out.gguf") as file:
        return np.array(file.tensors["a.weight"].numpy(), np.float64)


def left(folder):
    return sorted(path.name for path in Path(folder).iterdir())


SPECIAL = st.sampled_from([np.nan, np.inf, -np.inf, 7e4, -7e4, 65504.0, 65520.0, 3.3e38, 3.4e38, -3.4e38, 1e39, 1e300])


@given(
    st.sampled_from(list(STORED)),
    st.sampled_from(list(LARGEST)),
    st.lists(st.tuples(st.integers(0, SHAPE[0] * SHAPE[1] - 1), SPECIAL), max_size=4),
)
def test_finite_weights_never_become_infinite(stored, kind, places):
    """Whatever else is in the piece. What a plain type holds is what IEEE rounds the stored value to."""
    array = np.random.default_rng(1).normal(size=SHAPE)
    for at, value in places:
        array.flat[at] = value
    with np.errstate(over="ignore"):
        array = array.astype(STORED[stored])
    wide = array.astype(np.float64)
    new = {"F16": np.float16, "BF16": ml_dtypes.bfloat16, "F32": np.float32}[kind]
    with np.errstate(over="ignore", invalid="ignore"):
        expected = (array if kind != "BF16" else array.astype(np.float32)).astype(new).astype(np.float64)
    lost = np.isfinite(wide) & ~np.isfinite(expected)
    with tempfile.TemporaryDirectory() as folder:
        source = made(folder, stored, array.tobytes())
        if lost.any():
            with pytest.raises(QuantizationError, match=r"tensor 'a.weight', rows from 0: holds .*, more than"):
                quantize(source, Path(folder) / "out.gguf", kind)
            assert left(folder) == ["in.gguf"]
        else:
            quantize(source, Path(folder) / "out.gguf", kind)
            np.testing.assert_array_equal(written(folder), expected)


@pytest.mark.parametrize("kind", [name for name, t in FILE_TYPES.items() if DTYPES[t.main].is_block])
def test_weights_beyond_f32_are_refused_by_block_types(kind, tmp_path):
    source = made(tmp_path, "f64", np.full(SHAPE, 1e100).tobytes())
    with pytest.raises(QuantizationError, match=r"tensor 'a.weight', rows from 0: "):
        quantize(source, tmp_path / "out.gguf", kind, pure=True)
    assert left(tmp_path) == ["in.gguf"]


@pytest.mark.parametrize(
    "kind",
    # Q1_0 has one bit a weight and the mean of a block: it is not meant to hold a large one
    [name for name, t in FILE_TYPES.items() if DTYPES[t.main].is_block and name != "Q1_0"],
)
@pytest.mark.parametrize("exponent", [2, 3.43, 4, 5.5, 20, 38])
def test_a_large_weight_is_near_what_it_was_or_refused(kind, exponent, tmp_path):
    """No type clips: a weight far larger than all others loses at most what its few bits can't say."""
    array = np.ones(SHAPE, np.float32)
    array[5, 77] = 10.0**exponent
    try:
        quantize(made(tmp_path, "f32", array.tobytes()), tmp_path / "out.gguf", kind, pure=True)
    except QuantizationError as e:
        assert "must fit f16" in str(e) or "more than" in str(e)
        return
    assert 1 / 4 <= written(tmp_path)[5, 77] / float(array[5, 77]) <= 4


def test_nvfp4_takes_what_its_scale_reaches_and_no_more(tmp_path):
    array = np.ones(SHAPE, np.float32)
    array[3, 7] = -2688
    quantize(made(tmp_path, "f32", array.tobytes()), tmp_path / "out.gguf", "NVFP4")
    assert written(tmp_path)[3, 7] == -2688
    array[3, 7] = -2690
    with pytest.raises(QuantizationError, match="holds 2690, more than nvfp4 can; take bf16 or f32"):
        quantize(made(tmp_path, "f32", array.tobytes()), tmp_path / "out.gguf", "NVFP4", force=True)
    array[3, 7] = np.inf
    with pytest.raises(QuantizationError, match="inf or NaN"):
        quantize(made(tmp_path, "f32", array.tobytes()), tmp_path / "out.gguf", "NVFP4", force=True)


# ---- damaged blocks


def damaged(kind):
    """Bytes of a row block whose scale is no finite number."""
    dtype = DTYPES[kind]
    for fill in (0xFF, 0x7F):
        raw = np.full(dtype.block_nbytes, fill, np.uint8)
        if dtype.first_bad_block(raw) is not None:
            return raw
    raise AssertionError(f"no damage is known of {kind}")


@pytest.mark.parametrize("piece", [1 << 18, 512])
@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("target", ["kept", "F32", "F16", "Q8_0", "Q4_K_M"])
def test_a_damaged_block_is_told_whatever_it_becomes(kind, target, piece, tmp_path, monkeypatch):
    monkeypatch.setattr(quantized_file, "_PIECE", piece)
    dtype = DTYPES[kind]
    raw = dtype.encode(np.random.default_rng(2).normal(size=(2, *SHAPE))).reshape(-1, dtype.block_nbytes)
    number = len(raw) * 3 // 4
    raw[number] = damaged(kind)
    if target == "kept":
        target = next(name for name, t in FILE_TYPES.items() if t.main == kind)
    with pytest.raises(QuantizationError) as caught:
        quantize(made(tmp_path, kind, raw.tobytes(), (2, *SHAPE)), tmp_path / "out.gguf", target)
    assert f"tensor 'a.weight': the scale of block {number} is no finite number; the data is damaged" in str(
        caught.value
    )
    assert left(tmp_path) == ["in.gguf"]


@pytest.mark.parametrize("target", ["F32", "BF16", "Q8_0"])
def test_a_block_that_decodes_to_infinity_is_damaged(target, tmp_path):
    """mxfp4 with the largest exponent is formally right, and beyond f32."""
    raw = np.full((SHAPE[0] * SHAPE[1] // 32, 17), 0x77, np.uint8)
    raw[:, 0] = 254
    source = made(tmp_path, "mxfp4", raw.tobytes())
    with pytest.raises(QuantizationError, match=r"rows from 0: mxfp4 holds a weight beyond f32; the data is damaged"):
        quantize(source, tmp_path / "out.gguf", target)
