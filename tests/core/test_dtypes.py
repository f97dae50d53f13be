"""Dtypes as objects, and plain dtypes as bytes."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jackfield import dtypes
from jackfield.dtypes import DTYPES, GGUF_TYPES, REMOVED_GGUF_TYPES, DType, by_gguf_id, by_name, of_numpy
from jackfield.errors import AttributeValueError, DTypeError, ShapeError

NAMES = [
    "f32",
    "f16",
    "bf16",
    "f64",
    "i8",
    "u8",
    "i16",
    "i32",
    "i64",
    "bool",
    "q1_0",
    "q2_0",
    "q4_0",
    "q4_1",
    "q5_0",
    "q5_1",
    "q8_0",
    "q8_1",
    "q2_K",
    "q3_K",
    "q4_K",
    "q5_K",
    "q6_K",
    "q8_K",
    "iq1_s",
    "iq1_m",
    "iq2_xxs",
    "iq2_xs",
    "iq2_s",
    "iq3_xxs",
    "iq3_s",
    "iq4_nl",
    "iq4_xs",
    "tq1_0",
    "tq2_0",
    "mxfp4",
    "nvfp4",
]
PLAIN = [dtype for dtype in DTYPES.values() if not dtype.is_block]


def test_the_table_holds_exactly_the_promised_dtypes():
    assert list(DTYPES) == NAMES
    for name in NAMES:
        assert getattr(dtypes, "bool_" if name == "bool" else name) is by_name(name)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=repr)
def test_a_dtype_is_one_object_that_survives_copies(dtype):
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(dtype, protocol)) is dtype
    assert copy.copy(dtype) is dtype
    assert copy.deepcopy([dtype])[0] is dtype
    assert repr(dtype) == str(dtype) == dtype.name
    assert {dtype: 1}[by_name(dtype.name)] == 1
    with pytest.raises(AttributeError):
        dtype.name = "other"


def test_kinds():
    assert [d.name for d in DTYPES.values() if d.is_float] == ["f32", "f16", "bf16", "f64"]
    assert [d.name for d in DTYPES.values() if d.is_integer] == ["i8", "u8", "i16", "i32", "i64"]
    assert [d.name for d in DTYPES.values() if d.is_block] == NAMES[10:]
    assert [d.name for d in DTYPES.values() if d.is_activation] == ["q8_1", "q8_K"]
    assert all((d.numpy is None) == d.is_block for d in DTYPES.values())
    assert dtypes.bf16.numpy == np.dtype(ml_dtypes.bfloat16)
    assert all(d.block_nbytes == d.numpy.itemsize and d.block == 1 for d in PLAIN)


def test_by_name_suggests_the_nearest_and_lists_all():
    with pytest.raises(DTypeError, match=r"no dtype 'q4_k'; did you mean q4_K\? known: f32 f16 .* nvfp4"):
        by_name("q4_k")
    with pytest.raises(DTypeError, match=r"no dtype 'zzzzzzz' known: f32"):
        by_name("zzzzzzz")


def test_of_numpy():
    for dtype in PLAIN:
        assert of_numpy(dtype.numpy) is dtype
    with pytest.raises(DTypeError, match="complex64"):
        of_numpy(np.dtype(np.complex64))
    with pytest.raises(DTypeError, match="native byte order"):
        of_numpy(np.dtype(np.float32).newbyteorder())


def test_sizes_equal_those_of_the_package_gguf():
    from gguf.constants import GGML_QUANT_SIZES

    wrong_there = {9}  # q8_1: the package says 40; two f16 and 32 quants are 36
    for kind, (block, nbytes) in GGML_QUANT_SIZES.items():
        row = GGUF_TYPES[int(kind)]
        assert row.name.lower() == kind.name.lower()
        assert row.block == block
        assert row.block_nbytes == nbytes or row.id in wrong_there
    assert set(GGUF_TYPES) - {int(kind) for kind in GGML_QUANT_SIZES} <= {42}
    assert not set(GGUF_TYPES) & set(REMOVED_GGUF_TYPES)
    assert set(GGUF_TYPES) | set(REMOVED_GGUF_TYPES) == set(range(43))


def test_by_gguf_id():
    for dtype in DTYPES.values():
        if dtype.gguf_id is not None:
            assert by_gguf_id(dtype.gguf_id) is dtype
            row = GGUF_TYPES[dtype.gguf_id]
            assert (row.name, row.block, row.block_nbytes) == (dtype.name, dtype.block, dtype.block_nbytes)
    with pytest.raises(DTypeError, match=r"type 4 \(q4_2\) was removed .* convert the model again"):
        by_gguf_id(4)
    assert {by_gguf_id(number).name for number in GGUF_TYPES} == {row.name for row in GGUF_TYPES.values()}
    with pytest.raises(DTypeError, match="no GGUF type 99"):
        by_gguf_id(99)


def test_nbytes():
    assert dtypes.f32.nbytes(()) == 4
    assert dtypes.f16.nbytes((3, 5)) == 30
    assert dtypes.q4_1.nbytes((2, 3, 64)) == 2 * 3 * 2 * 20
    assert dtypes.q4_1.nbytes((0, 64)) == 0
    with pytest.raises(ShapeError, match=r"\[q4_K\] the last axis has 128 elements: it must be a multiple of 256"):
        dtypes.q4_K.nbytes((4, 128))
    with pytest.raises(ShapeError):
        dtypes.q8_0.nbytes(())


FLOATS = hnp.arrays(np.float32, hnp.array_shapes(max_dims=4, min_side=0, max_side=5), elements=st.floats(width=32))


@given(FLOATS)
def test_plain_floats_keep_every_bit_numpy_keeps(x):
    for dtype in (dtypes.f32, dtypes.f16, dtypes.bf16, dtypes.f64):
        raw = dtype.encode(x)
        assert raw.dtype == np.uint8
        assert raw.shape == (*x.shape[:-1], x.shape[-1] * dtype.block_nbytes)
        with np.errstate(over="ignore"):
            want = x.astype(dtype.numpy)
        assert raw.tobytes() == want.tobytes()
        np.testing.assert_array_equal(dtype.decode(raw), want.astype(np.float32))


@pytest.mark.parametrize("dtype", [d for d in PLAIN if d.is_integer], ids=repr)
@given(data=st.data())
def test_integers_are_exact_or_refused(dtype, data):
    info = np.iinfo(dtype.numpy)
    x = data.draw(hnp.arrays(dtype.numpy, (3, 4), elements=st.integers(info.min, info.max)))
    assert dtype.encode(x).tobytes() == x.tobytes()
    np.testing.assert_array_equal(dtype.decode(dtype.encode(x)), x.astype(np.float32))
    for bad in (0.5, float(info.max) * 2 + 2, float(info.min) * 2 - 1, np.nan, np.inf):
        with pytest.raises(
            AttributeValueError, match=rf"\[encode {dtype}\] x must be whole numbers from {info.min} to"
        ):
            dtype.encode(np.array([1.0, bad]))
    if dtype is not dtypes.i64:
        with pytest.raises(AttributeValueError):
            dtype.encode(np.array([info.max + 1], np.int64))


def test_the_end_of_i64_is_not_rounded_into_range():
    with pytest.raises(AttributeValueError):
        dtypes.i64.encode(np.array([2.0**63]))
    with pytest.raises(AttributeValueError):
        dtypes.i64.encode(np.array([2**63], np.uint64))
    assert dtypes.i64.encode(np.array([-(2.0**63)])).tobytes() == np.array([-(2**63)], np.int64).tobytes()


def test_bool_is_not_zero():
    assert dtypes.bool_.encode(np.array([0.0, -0.0, 0.5, np.nan])).tolist() == [0, 0, 1, 1]
    assert dtypes.bool_.decode(np.array([0, 1, 2, 255], np.uint8)).tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=repr)
def test_wrong_use_is_named(dtype):
    with pytest.raises(ShapeError, match=rf"\[encode {dtype}\] x has rank 0"):
        dtype.encode(1.0)
    with pytest.raises(DTypeError, match="complex128: it must be real numbers"):
        dtype.encode(np.zeros(256, complex))
    with pytest.raises(DTypeError, match="raw is float32: it must be u8"):
        dtype.decode(np.zeros(dtype.block_nbytes, np.float32))
    if dtype.block_nbytes > 1:
        with pytest.raises(ShapeError, match=rf"whole blocks of {dtype.block_nbytes} bytes"):
            dtype.decode(np.zeros((2, dtype.block_nbytes + 1), np.uint8))
    if dtype.block > 1:
        with pytest.raises(ShapeError, match=f"must be a multiple of {dtype.block}"):
            dtype.encode(np.zeros((2, dtype.block + 1)))
    assert dtype.encode(np.zeros((2, 0))).shape == (2, 0)
    assert dtype.decode(np.zeros((0, dtype.block_nbytes), np.uint8)).shape == (0, dtype.block)


def test_importing_dtypes_brings_no_heavy_module():
    code = (
        "import sys, jackfield.dtypes\n"
        "heavy = {'gguf', 'rich', 'click', 'hypothesis', 'tokenizers', 'jinja2'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_dtype_is_the_public_class():
    assert all(type(dtype) is DType for dtype in DTYPES.values())
