"""A tensor in a GGUF file: what is known about it, and its bytes where they lie."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jackfield.dtypes import DType, GGUFType, by_gguf_id
from jackfield.gguf.faults import quoted
from jackfield.gguf.source import Source


class Tensor:
    """One tensor of a file.

    name: as in the file.
    type: number, name and block of the format.
    shape: numpy order, last axis innermost: the file's list of extents reversed.
    offset, nbytes: where its bytes lie in the file.
    """

    __slots__ = ("_source", "name", "nbytes", "offset", "shape", "type")

    def __init__(self, source: Source, name: str, kind: GGUFType, shape: tuple[int, ...], offset: int) -> None:
        self._source = source
        self.name = name
        self.type = kind
        self.shape = shape
        self.offset = offset
        self.nbytes = math.prod(shape) // kind.block * kind.block_nbytes

    @property
    def dtype(self) -> DType:
        """The dtype of the type's number; every type of the format has one."""
        return by_gguf_id(self.type.id)

    @property
    def data(self) -> memoryview:
        """The bytes, read-only and contiguous, straight from the file; no copy.

        Raises: GGUFError when the file was closed, or has shrunk since it was opened.
        """
        return self._source.view(f"data of tensor {quoted(self.name)}", self.offset, self.nbytes)

    def numpy(self) -> NDArray[Any]:
        """The values: a read-only view of the file for plain dtypes, decoded f32 for block dtypes. Shape as `shape`."""
        dtype, raw = self.dtype, np.frombuffer(self.data, np.uint8)
        if dtype.numpy is not None:
            return raw.view(dtype.numpy.newbyteorder("<")).reshape(self.shape)
        return dtype.decode(raw).reshape(self.shape)

    def release(self) -> None:
        """Tell the kernel that the memory behind `data` can go; reading it again fetches it from the file again."""
        self._source.release(self.offset, self.nbytes)

    def __repr__(self) -> str:
        return f"<tensor {quoted(self.name)} {self.type.name} {list(self.shape)}>"
