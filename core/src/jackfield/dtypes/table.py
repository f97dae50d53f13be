"""The dtypes of jackfield, one object each, and the ways to find one."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from jackfield.dtypes import (
    activation_blocks,
    codebook_blocks,
    float4_blocks,
    grid_blocks,
    k_blocks,
    low_k_blocks,
    small_blocks,
    ternary_blocks,
)
from jackfield.dtypes.dtype import REGISTERED, Codec, DType
from jackfield.dtypes.gguf_types import GGUF_TYPES, REMOVED_GGUF_TYPES
from jackfield.errors import DTypeError

DTYPES = REGISTERED


def _add(dtype: DType) -> DType:
    DTYPES[dtype.name] = dtype
    return dtype


def _float(name: str, of: type[np.generic], gguf_id: int) -> DType:
    plain = np.dtype(of)
    return _add(DType(name, 1, plain.itemsize, plain, gguf_id, is_float=True))


def _integer(name: str, of: type[np.generic], gguf_id: int | None) -> DType:
    plain = np.dtype(of)
    return _add(DType(name, 1, plain.itemsize, plain, gguf_id, is_integer=True))


def _block(gguf_id: int, codec: Codec, *, is_activation: bool = False) -> DType:
    row = GGUF_TYPES[gguf_id]
    return _add(DType(row.name, row.block, row.block_nbytes, None, gguf_id, is_activation=is_activation, codec=codec))


f32 = _float("f32", np.float32, 0)
f16 = _float("f16", np.float16, 1)
bf16 = _float("bf16", ml_dtypes.bfloat16, 30)
f64 = _float("f64", np.float64, 28)
i8 = _integer("i8", np.int8, 24)
u8 = _integer("u8", np.uint8, None)
i16 = _integer("i16", np.int16, 25)
i32 = _integer("i32", np.int32, 26)
i64 = _integer("i64", np.int64, 27)
bool_ = _add(DType("bool", 1, 1, np.dtype(np.bool_), None))
q1_0 = _block(41, ternary_blocks.Q1_0)
q2_0 = _block(42, ternary_blocks.Q2_0)
q4_0 = _block(2, small_blocks.Q4_0)
q4_1 = _block(3, small_blocks.Q4_1)
q5_0 = _block(6, small_blocks.Q5_0)
q5_1 = _block(7, small_blocks.Q5_1)
q8_0 = _block(8, small_blocks.Q8_0)
q8_1 = _block(9, activation_blocks.Q8_1, is_activation=True)
q2_K = _block(10, low_k_blocks.Q2_K)  # noqa: N816 - the format's spelling
q3_K = _block(11, low_k_blocks.Q3_K)  # noqa: N816 - the format's spelling
q4_K = _block(12, k_blocks.Q4_K)  # noqa: N816 - the format's spelling
q5_K = _block(13, k_blocks.Q5_K)  # noqa: N816 - the format's spelling
q6_K = _block(14, k_blocks.Q6_K)  # noqa: N816 - the format's spelling
q8_K = _block(15, activation_blocks.Q8_K, is_activation=True)  # noqa: N816 - the format's spelling
iq1_s = _block(19, grid_blocks.IQ1_S)
iq1_m = _block(29, grid_blocks.IQ1_M)
iq2_xxs = _block(16, grid_blocks.IQ2_XXS)
iq2_xs = _block(17, grid_blocks.IQ2_XS)
iq2_s = _block(22, grid_blocks.IQ2_S)
iq3_xxs = _block(18, grid_blocks.IQ3_XXS)
iq3_s = _block(21, grid_blocks.IQ3_S)
iq4_nl = _block(20, codebook_blocks.IQ4_NL)
iq4_xs = _block(23, codebook_blocks.IQ4_XS)
tq1_0 = _block(34, ternary_blocks.TQ1_0)
tq2_0 = _block(35, ternary_blocks.TQ2_0)
mxfp4 = _block(39, float4_blocks.MXFP4)
nvfp4 = _block(40, float4_blocks.NVFP4)

_BY_NUMPY = {dtype.numpy: dtype for dtype in DTYPES.values() if dtype.numpy is not None}
_BY_GGUF = {dtype.gguf_id: dtype for dtype in DTYPES.values() if dtype.gguf_id is not None}


def by_name(name: str) -> DType:
    """The dtype of this name. Raises: DTypeError with the nearest name and all names."""
    found = DTYPES.get(name)
    if found is not None:
        return found
    import difflib  # noqa: PLC0415 - needed for this text only

    by_lower = {known.lower(): known for known in DTYPES}
    near = difflib.get_close_matches(str(name).lower(), by_lower, n=1, cutoff=0.5)
    hint = f"; did you mean {by_lower[near[0]]}?" if near else ""
    raise DTypeError(f"[dtype] there is no dtype {name!r}{hint} known: {' '.join(DTYPES)}")


def of_numpy(dtype: np.dtype[Any]) -> DType:
    """The dtype with the same bytes as this array dtype. Raises: DTypeError, also for foreign byte order."""
    found = _BY_NUMPY.get(np.dtype(dtype))
    if found is None:
        raise DTypeError(
            f"[dtype] arrays of {dtype} have no dtype here: convert to one of "
            f"{' '.join(known.name for known in _BY_NUMPY.values())} (native byte order) first"
        )
    return found


def by_gguf_id(gguf_id: int) -> DType:
    """The dtype of a tensor type number of GGUF. Raises: DTypeError, for a removed type with its name."""
    found = _BY_GGUF.get(gguf_id)
    if found is not None:
        return found
    if gguf_id in REMOVED_GGUF_TYPES:
        raise DTypeError(
            f"[dtype] GGUF type {gguf_id} ({REMOVED_GGUF_TYPES[gguf_id]}) was removed from the format: "
            "convert the model again from its source"
        )
    raise DTypeError(f"[dtype] there is no GGUF type {gguf_id}: the known ones end at {max(GGUF_TYPES)}")
