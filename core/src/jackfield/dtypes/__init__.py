"""Dtypes: names, blocks of the last axis, bytes, and numpy codecs. Tensors and shapes are left to `spec`."""

from __future__ import annotations

from jackfield.dtypes.activations import quantise_q8_0, quantise_q8_1, quantise_q8_K
from jackfield.dtypes.dtype import DType
from jackfield.dtypes.gguf_types import GGUF_TYPES, REMOVED_GGUF_TYPES, GGUFType
from jackfield.dtypes.table import (
    DTYPES,
    bf16,
    bool_,
    by_gguf_id,
    by_name,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    of_numpy,
    q4_0,
    q4_1,
    q4_K,
    q5_0,
    q5_1,
    q5_K,
    q6_K,
    q8_0,
    u8,
)

__all__ = [
    "DTYPES",
    "GGUF_TYPES",
    "REMOVED_GGUF_TYPES",
    "DType",
    "GGUFType",
    "bf16",
    "bool_",
    "by_gguf_id",
    "by_name",
    "f16",
    "f32",
    "f64",
    "i8",
    "i16",
    "i32",
    "i64",
    "of_numpy",
    "q4_0",
    "q4_1",
    "q4_K",
    "q5_0",
    "q5_1",
    "q5_K",
    "q6_K",
    "q8_0",
    "quantise_q8_0",
    "quantise_q8_1",
    "quantise_q8_K",
    "u8",
]
