"""A GGUF file, open for reading."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import Any, Self

from jackfield.gguf.parse import Parser
from jackfield.gguf.source import MappedSource, Source
from jackfield.gguf.tensor import Tensor


class File:
    """Metadata and tensors of a GGUF file; a context manager.

    version: 2 or 3. alignment: of the tensors' data, in bytes.
    metadata: keys in the file's order; numbers, bools and strings as Python's, arrays as lazy sequences (`Array`).
    kinds: value type of each key: "u8" .. "f64", "bool", "string" or "array"; what writes the file again needs them.
    tensors: by name, in the file's order.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        parsed = Parser(source)
        self.name = source.name
        self.version = parsed.version
        self.alignment = parsed.alignment
        self.metadata: Mapping[str, Any] = MappingProxyType(parsed.metadata)
        self.kinds: Mapping[str, str] = MappingProxyType(parsed.kinds)
        self.tensors: Mapping[str, Tensor] = MappingProxyType(parsed.tensors)

    def close(self) -> None:
        """Give the mapping back. Arrays made of it before stay valid; reading more raises GGUFError."""
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<GGUF {self.name}: version {self.version}, {len(self.metadata)} keys, {len(self.tensors)} tensors>"


def open(path: str | os.PathLike[str]) -> File:  # noqa: A001 - read as gguf.open
    """Open a GGUF file (version 2 or 3, little-endian) by mapping it; tensor data is not read, let alone copied.

    Raises: GGUFError for whatever the format does not allow, naming field and byte offset; OSError if the file can't
    be opened.
    """
    source = MappedSource(path)
    try:
        return File(source)
    except BaseException:
        source.close()
        raise
