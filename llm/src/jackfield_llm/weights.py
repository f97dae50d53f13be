"""The tensors of a model file by their GGUF names: checked shapes, one constant each."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

import jackfield as jf
from jackfield_llm.errors import ModelError, shown

__all__ = ["Weights"]

_BLOCK = re.compile(r"blk\.([0-9]{1,9})\.(.+)", re.DOTALL)
_PLAIN_NAME = re.compile(r"[\w.-]{1,80}", re.ASCII)


class Weights:
    """Constants of one file, made on first use and shared by every graph built from it."""

    def __init__(self, file: jf.gguf.File) -> None:
        self._file = file
        self._made: dict[str, jf.Tensor] = {}
        self._passed: set[str] = set()

    def shape(self, name: str) -> tuple[int, ...]:
        """Extents of a tensor, outermost first. Raises ModelError when the file lacks it."""
        return tuple(self._tensor(name).shape)

    def get(self, name: str, shape: Sequence[int]) -> jf.Tensor:
        """A constant that must have this shape: matrices as they are stored, vectors as f32.

        Raises: ModelError, by name, when it is missing, has another shape or a type nobody here computes with.
        """
        if name not in self._made:
            self._made[name] = self._make(name)
        constant = self._made[name]
        if constant.shape != tuple(shape):
            raise ModelError(f"tensor {name} is {list(constant.shape)}, the hyperparameters say {list(shape)}")
        return constant

    def exact(self, name: str, shape: Sequence[int]) -> jf.Tensor:
        """The same, of numbers that are used one by one. Raises: ModelError too for a type that rounds them."""
        found = self.get(name, shape)
        if found.dtype != jf.f32:
            raise ModelError(f"tensor {name} is {found.dtype}: must be f32")
        return found

    def maybe(self, name: str, shape: Sequence[int]) -> jf.Tensor | None:
        """The same, or None when the file has no such tensor."""
        return self.get(name, shape) if name in self._file.tensors else None

    def has(self, name: str) -> bool:
        return name in self._file.tensors

    def pass_over(self, name: str, shape: Sequence[int]) -> None:
        """Say that a tensor of this shape belongs to the model and is not needed for the graphs built here."""
        if self.shape(name) != tuple(shape):
            raise ModelError(f"tensor {name} is {list(self.shape(name))}, the hyperparameters say {list(shape)}")
        self._passed.add(name)

    def pass_over_layers(self, first: int, count: int) -> None:
        """Say that layers from that number on predict further tokens: no tensor of theirs is needed, or looked at.

        Raises: ModelError for one that has tensors but not the one that all such layers have: its number is wrong.
        """
        held: dict[str, set[str]] = {f"blk.{number}.": set() for number in range(first, first + count)}
        for name in self._file.tensors if held else ():
            block = name[: name.find(".", 4) + 1]
            if block in held:
                held[block].add(name)
        for block, names in held.items():
            if names and f"{block}nextn.eh_proj.weight" not in names:
                raise ModelError(
                    f"the file lacks the tensor {block}nextn.eh_proj.weight, though nextn_predict_layers says that the "
                    f"last {count} of its layers predict further tokens"
                )
            self._passed |= names

    def check_layers(self, kinds: Sequence[object]) -> None:
        """Every layer must have the tensors that any layer of its kind has: what is optional is so for all of them.

        kinds: one a layer. Raises: ModelError naming a tensor that is missing.
        """
        layers: list[set[str]] = [set() for _ in kinds]
        for name in self._file.tensors:
            match = _BLOCK.fullmatch(name)
            if match and int(match[1]) < len(kinds):
                layers[int(match[1])].add(match[2])
        every: dict[object, set[str]] = {}
        for kind, has in zip(kinds, layers, strict=True):
            every.setdefault(kind, set()).update(has)
        for number, has in enumerate(layers):
            if missing := sorted(every[kinds[number]] - has):
                name = _shown(f"blk.{number}.{missing[0]}")
                raise ModelError(f"the file lacks the tensor {name}, which other layers have")

    def check_all_used(self) -> None:
        """A tensor no graph asked for would be a part of the model that is left out: refused, never ignored.

        Raises: ModelError naming the first.
        """
        unknown = [name for name in self._file.tensors if name not in self._made and name not in self._passed]
        if unknown:
            more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
            raise ModelError(
                f"the file has a tensor {_shown(unknown[0])}{more}, which is no part of this architecture as known here"
            )

    def _make(self, name: str) -> jf.Tensor:
        tensor = self._tensor(name)
        try:
            dtype = tensor.dtype
        except jf.Error as e:
            raise ModelError(f"tensor {name}: {e}") from e
        if len(tensor.shape) == 1 and dtype != jf.f32:
            return jf.constant(tensor.numpy().astype(np.float32), name=name)
        if not (dtype in (jf.f32, jf.f16, jf.bf16) or dtype.is_block):
            raise ModelError(f"tensor {name} is {dtype}: a matrix must be f32, f16, bf16 or quantised")
        return jf.constant(tensor, name=name)

    def _tensor(self, name: str) -> jf.gguf.Tensor:
        try:
            return self._file.tensors[name]
        except KeyError:
            raise ModelError(f"the file lacks the tensor {name}") from None


def _shown(name: str) -> str:
    """A tensor's name as an error repeats it: names are a stranger's text, which a terminal might obey."""
    return name if _PLAIN_NAME.fullmatch(name) else shown(name)
