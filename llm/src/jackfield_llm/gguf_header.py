"""What stands in a GGUF file before the tensors' data, written with the package `gguf`."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter

import jackfield as jf

__all__ = ["Entry", "write_header"]

# Value types by the names of jackfield's reader.
_TYPES = {
    "u8": GGUFValueType.UINT8,
    "i8": GGUFValueType.INT8,
    "u16": GGUFValueType.UINT16,
    "i16": GGUFValueType.INT16,
    "u32": GGUFValueType.UINT32,
    "i32": GGUFValueType.INT32,
    "f32": GGUFValueType.FLOAT32,
    "bool": GGUFValueType.BOOL,
    "string": GGUFValueType.STRING,
    "array": GGUFValueType.ARRAY,
    "u64": GGUFValueType.UINT64,
    "i64": GGUFValueType.INT64,
    "f64": GGUFValueType.FLOAT64,
}
_NUMBERS = {
    "u8": "u1",
    "i8": "i1",
    "u16": "<u2",
    "i16": "<i2",
    "u32": "<u4",
    "i32": "<i4",
    "f32": "<f4",
    "bool": "?",
    "u64": "<u8",
    "i64": "<i8",
    "f64": "<f8",
}


@dataclass(frozen=True)
class Entry:
    """A tensor as the header lists it. shape: numpy order. gguf_id: number of its type."""

    name: str
    shape: tuple[int, ...]
    gguf_id: int
    nbytes: int


def write_header(
    path: Path, metadata: Mapping[str, Any], kinds: Mapping[str, str], entries: Iterable[Entry], alignment: int
) -> None:
    """Write header, metadata and the list of tensors, padded to where the data of the first tensor begins.

    metadata, kinds: as jackfield's reader gives them. The tensors' data must follow in order, each padded.
    """
    writer = _Writer(path, arch="")  # without a name the writer adds no key of its own
    writer.data_alignment = alignment
    for key, value in metadata.items():
        writer.add_key_value(key, value, _TYPES[kinds[key]])
    for entry in entries:
        # The package need not know the type: it only writes the number.
        kind = cast("GGMLQuantizationType", entry.gguf_id)
        writer.add_tensor_info(entry.name, entry.shape, np.dtype(np.float32), entry.nbytes, raw_dtype=kind)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
    finally:
        writer.close()
    with path.open("ab") as file:
        file.write(bytes(-file.tell() % alignment))


class _Writer(GGUFWriter):
    """Writes arrays as they were read. The package guesses the types of arrays in arrays, and refuses empty ones."""

    def _pack_val(
        self,
        val: Any,
        vtype: GGUFValueType,
        add_vtype: bool,  # noqa: FBT001 - the package's own signature
        sub_type: GGUFValueType | None = None,
    ) -> bytes:
        if not isinstance(val, jf.gguf.Array):
            return super()._pack_val(val, vtype, add_vtype, sub_type)
        head = struct.pack("<I", GGUFValueType.ARRAY) if add_vtype else b""
        return head + _packed(val)


def _packed(array: jf.gguf.Array) -> bytes:
    """Kind of the elements, their number, and the elements."""
    head = struct.pack("<IQ", _TYPES[array.kind], len(array))
    if array.kind == "string":
        texts = [text.encode() for text in array.to_list()]
        return head + b"".join(part for text in texts for part in (struct.pack("<Q", len(text)), text))
    if array.kind == "array":
        return head + b"".join(_packed(inner) for inner in array)
    return head + np.array(array.to_list(), _NUMBERS[array.kind]).tobytes()
