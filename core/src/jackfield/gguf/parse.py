"""From bytes to metadata and tensors, with every number checked against the file before it is used.

Format: versions 2 and 3 of GGUF, little-endian. A header (magic, version, number of tensors, number of keys), then
the keys with their values, then one entry a tensor, then padding and the data of the tensors. Checked by reading what
the package `gguf` (0.19) writes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from jackfield.dtypes import GGUF_TYPES, REMOVED_GGUF_TYPES, GGUFType
from jackfield.gguf.arrays import NUMBERS, Array, Arrays, Numbers, Strings, walk_strings
from jackfield.gguf.faults import fault, quoted
from jackfield.gguf.source import Cursor, Source
from jackfield.gguf.tensor import Tensor

_LONGEST_KEY = 65535  # the format's own limit
_MOST_AXES = 4
_DEEPEST_ARRAY = 8  # the format has no limit; files in use stop at 1
_MOST_INNER_ARRAYS = 1 << 16
_MOST_ELEMENTS = 2**63 - 1
_LEAST_KEY_NBYTES = 8 + 1 + 4 + 1  # length, one letter, value type, one byte
_LEAST_TENSOR_NBYTES = 8 + 4 + 4 + 8  # length of the name, axes, type, offset

# Value types by number.
_KINDS = ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64")


class Parser:
    """One pass over a source; afterwards `version`, `alignment`, `metadata`, `kinds` and `tensors` are there."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.cursor = Cursor(source)
        self.inner_arrays = 0
        self.version, tensor_count, key_count = self._header()
        self.metadata: dict[str, Any] = {}
        self.kinds: dict[str, str] = {}
        self.alignment = 32  # the format's default
        for index in range(key_count):
            self._key(index)
        entries = self._entries(tensor_count)
        self.data_offset = -(-self.cursor.pos // self.alignment) * self.alignment
        self.tensors = self._place(entries)

    def _header(self) -> tuple[int, int, int]:
        cursor, name = self.cursor, self.source.name
        if self.source.size < 24:
            raise fault("short", name, "header", 0, size=self.source.size)
        magic = bytes(cursor.raw[:4])
        if magic != b"GGUF":
            raise fault("magic", name, "magic", 0, found=magic)
        cursor.pos = 4
        version = cursor.u32("version")
        if version == 1:
            raise fault("version-1", name, "version", 4)
        if version not in (2, 3):
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in (1, 2, 3)
            raise fault("big-endian" if swapped else "version", name, "version", 4, found=version)
        tensors = cursor.count("number of tensors", _LEAST_TENSOR_NBYTES)
        return version, tensors, cursor.count("number of keys", _LEAST_KEY_NBYTES)

    def _key(self, index: int) -> None:
        cursor, name = self.cursor, self.source.name
        at = cursor.pos
        length = cursor.u64(f"key {index}")
        if not 1 <= length <= _LONGEST_KEY:
            raise fault("key-length", name, f"key {index}", at, found=length, limit=_LONGEST_KEY)
        cursor.pos = at
        key = cursor.text(f"key {index}")
        if key in self.metadata:
            raise fault("duplicate-key", name, f"key {index}", at, name=quoted(key))
        field = f"value of {quoted(key)}"
        kind = self._kind(field)
        value_at = cursor.pos
        self.metadata[key] = value = self._value(kind, field)
        self.kinds[key] = kind
        if key == "general.alignment":
            self._align(kind, value, value_at)

    def _kind(self, field: str) -> str:
        at = self.cursor.pos
        number = self.cursor.u32(field)
        if number >= len(_KINDS):
            raise fault("value-type", self.source.name, field, at, found=number)
        return _KINDS[number]

    def _value(self, kind: str, field: str) -> Any:
        if kind == "string":
            return self.cursor.text(field)
        if kind == "array":
            return self._array(field, 1)
        return self._numbers(kind, field, 1)[0]

    def _array(self, field: str, depth: int) -> Array:
        cursor = self.cursor
        if depth > _DEEPEST_ARRAY:
            raise fault("depth", self.source.name, field, cursor.pos, limit=_DEEPEST_ARRAY)
        kind = self._kind(field)
        if kind == "string":
            count = cursor.count(field, 8)
            first = cursor.pos
            return Strings(self.source, field, first, walk_strings(cursor, count, field))
        if kind == "array":
            at = cursor.pos
            count = cursor.count(field, 12)
            self.inner_arrays += count
            if self.inner_arrays > _MOST_INNER_ARRAYS:
                raise fault("arrays", self.source.name, field, at, limit=_MOST_INNER_ARRAYS)
            return Arrays([self._array(f"array {i} of {field}", depth + 1) for i in range(count)])
        return self._numbers(kind, field, cursor.count(field, NUMBERS[kind].itemsize))

    def _numbers(self, kind: str, field: str, count: int) -> Numbers:
        cursor, start = self.cursor, self.cursor.pos
        nbytes = count * NUMBERS[kind].itemsize
        cursor.need(nbytes, field)
        cursor.pos += nbytes
        if kind == "bool":
            wrong = np.frombuffer(cursor.raw[start : cursor.pos], np.uint8) > 1
            if wrong.any():
                at = start + int(wrong.argmax())
                raise fault("bool", self.source.name, field, at, found=cursor.raw[at])
        return Numbers(self.source, field, kind, start, count)

    def _align(self, kind: str, value: Any, at: int) -> None:
        name = self.source.name
        if kind != "u32":
            raise fault("alignment-type", name, "general.alignment", at, found=kind)
        if value.bit_count() != 1:
            raise fault("alignment", name, "general.alignment", at, found=value)
        self.alignment = value

    def _entries(self, count: int) -> dict[str, tuple[GGUFType, tuple[int, ...], int, int]]:
        """Name to type, shape (numpy order), offset in the data, and where that offset stands in the file."""
        entries: dict[str, tuple[GGUFType, tuple[int, ...], int, int]] = {}
        for index in range(count):
            at = self.cursor.pos
            name = self.cursor.text(f"name of tensor {index}")
            if name in entries:
                raise fault("duplicate-tensor", self.source.name, f"name {quoted(name)} of tensor {index}", at)
            tensor = f"tensor {quoted(name)}"
            shape = self._shape(tensor)
            kind = self._tensor_type(tensor, shape)
            at = self.cursor.pos
            entries[name] = kind, shape, self.cursor.u64(f"offset of {tensor}"), at
        return entries

    def _shape(self, tensor: str) -> tuple[int, ...]:
        cursor, name = self.cursor, self.source.name
        at = cursor.pos
        rank = cursor.u32(f"rank of {tensor}")
        if rank > _MOST_AXES:
            raise fault("rank", name, f"rank of {tensor}", at, found=rank, limit=_MOST_AXES)
        extents = []
        for axis in range(rank):
            extent = cursor.u64(f"extent {axis} of {tensor}")
            if not 1 <= extent <= _MOST_ELEMENTS:
                raise fault("extent", name, f"extent {axis} of {tensor}", cursor.pos - 8, found=extent)
            extents.append(extent)
        shape = tuple(reversed(extents))
        if math.prod(shape) > _MOST_ELEMENTS:
            raise fault("elements", name, f"extents of {tensor}", at + 4, shape=list(shape))
        return shape

    def _tensor_type(self, tensor: str, shape: tuple[int, ...]) -> GGUFType:
        name, field, at = self.source.name, f"type of {tensor}", self.cursor.pos
        number = self.cursor.u32(field)
        if number in REMOVED_GGUF_TYPES:
            raise fault("removed-type", name, field, at, found=number, name=REMOVED_GGUF_TYPES[number])
        if number not in GGUF_TYPES:
            raise fault("type", name, field, at, found=number)
        kind = GGUF_TYPES[number]
        elements = shape[-1] if shape else 1
        if elements % kind.block:
            raise fault("row", name, field, at, found=elements, name=kind.name, block=kind.block)
        return kind

    def _place(self, entries: Mapping[str, tuple[GGUFType, tuple[int, ...], int, int]]) -> dict[str, Tensor]:
        tensors = {}
        stands = {}
        for name, (kind, shape, offset, at) in entries.items():
            field = f"offset of tensor {quoted(name)}"
            if offset % self.alignment:
                raise fault("misaligned", self.source.name, field, at, found=offset, alignment=self.alignment)
            tensor = Tensor(self.source, name, kind, shape, self.data_offset + offset)
            end = tensor.offset + tensor.nbytes
            if end > self.source.size:
                raise fault("outside", self.source.name, field, at, end=end, size=self.source.size)
            tensors[name], stands[name] = tensor, at
        previous: Tensor | None = None
        for tensor in sorted(tensors.values(), key=lambda t: t.offset):
            if previous is not None and previous.offset + previous.nbytes > tensor.offset:
                field, at = f"offset of tensor {quoted(tensor.name)}", stands[tensor.name]
                raise fault("overlap", self.source.name, field, at, other=quoted(previous.name))
            previous = tensor
        return tensors
