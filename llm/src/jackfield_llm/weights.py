"""The tensors of a model file by their GGUF names: checked shapes, one constant each."""

from __future__ import annotations

from collections.abc import Sequence

import jackfield as jf
from jackfield_llm.errors import ModelError

__all__ = ["Weights"]


class Weights:
    """Constants of one file, made on first use and shared by every graph built from it."""

    def __init__(self, file: jf.gguf.File) -> None:
        self._file = file
        self._made: dict[str, jf.Tensor] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._file.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """Extents of a tensor, outermost first. Raises ModelError when the file lacks it."""
        return tuple(self._tensor(name).shape)

    def get(self, name: str, shape: Sequence[int]) -> jf.Tensor:
        """A constant that must have this shape. Raises ModelError, by name, when it is missing or has another."""
        if name not in self._made:
            self._made[name] = jf.constant(self._tensor(name), name=name)
        constant = self._made[name]
        if constant.shape != tuple(shape):
            raise ModelError(f"tensor {name} is {list(constant.shape)}, the hyperparameters say {list(shape)}")
        return constant

    def maybe(self, name: str, shape: Sequence[int]) -> jf.Tensor | None:
        """The same, or None when the file has no such tensor."""
        return self.get(name, shape) if name in self else None

    def _tensor(self, name: str) -> jf.gguf.Tensor:
        try:
            return self._file.tensors[name]
        except KeyError:
            raise ModelError(f"the file lacks the tensor {name}") from None
