"""How much each column of each matrix matters, as llama.cpp's `llama-imatrix` measures it.

Its GGUF files hold two tensors a matrix: `NAME.in_sum2`, f32 [matrices, columns], sums of squares of what the columns
were multiplied with, and `NAME.counts`, f32 [matrices, 1], how many were summed. Source: read from llama.cpp (build
11434), which divides the one by the other and takes 1 throughout where nothing was counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import jackfield as jf
from jackfield_llm.errors import QuantizationError, shown

__all__ = ["Importance", "read_importance"]

_SUMS, _COUNTS = ".in_sum2", ".counts"


class Importance:
    """Weights of columns by the name of the matrix: f32 [matrices, columns]."""

    def __init__(self, name: str, weights: Mapping[str, NDArray[np.float32]]) -> None:
        self.name = name  # of the file
        self._weights = weights

    def __contains__(self, name: object) -> bool:
        """Whether anything is known of the tensor of this name."""
        return name in self._weights

    def columns(self, name: str, matrix: int) -> NDArray[np.float32] | None:
        """Weights f32 [columns] of one matrix of a tensor, or None where nothing is known of it."""
        found = self._weights.get(name)
        return None if found is None else found[matrix]

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raises QuantizationError when what is known of a tensor of this shape is not of its shape."""
        found = self._weights.get(name)
        matrices = int(np.prod(shape[:-2], dtype=np.int64))
        if found is not None and found.shape != (matrices, shape[-1]):
            raise QuantizationError(
                f"tensor {shown(name)} is {list(shape)}, its importance {list(found.shape)}: "
                "must be a row a matrix and as long as its rows"
            )


def read_importance(path: Path) -> Importance:
    """Read a GGUF file of llama-imatrix. Raises: QuantizationError, jackfield.errors.GGUFError."""
    if not path.is_file():
        raise QuantizationError(f"{path}: no such file; importance is a GGUF file that llama-imatrix writes")
    with jf.gguf.open(path) as file:
        names = [name.removesuffix(_SUMS) for name in file.tensors if name.endswith(_SUMS)]
        if not names:
            raise QuantizationError(f"{path}: holds no importance; it must be a GGUF file that llama-imatrix writes")
        return Importance(file.name, {name: _weights(file, name) for name in names})


def _weights(file: jf.gguf.File, name: str) -> NDArray[np.float32]:
    if name + _COUNTS not in file.tensors:
        raise QuantizationError(f"{file.name}: lacks {shown(name + _COUNTS)}, which belongs to {shown(name + _SUMS)}")
    sums = np.atleast_2d(file.tensors[name + _SUMS].numpy().astype(np.float32))
    counts = file.tensors[name + _COUNTS].numpy().astype(np.float32).reshape(-1, 1)
    sums = sums.reshape(-1, sums.shape[-1])
    if len(counts) != len(sums):
        raise QuantizationError(f"{file.name}: {shown(name)} has {len(sums)} rows of sums and {len(counts)} counts")
    if not np.isfinite(counts).all() or (counts < 0).any():
        raise QuantizationError(f"{file.name}: counts of {shown(name)} must be finite and not below 0")
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # what is not finite is told below
        weights = np.where(counts > 0, sums / counts, np.float32(1))
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise QuantizationError(f"{file.name}: importance of {shown(name)} must be finite and not below 0")
    return weights
