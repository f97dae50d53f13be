"""Reading GGUF files: mapped, lazy, and distrustful of every number in them."""

from __future__ import annotations

from jackfield.gguf.arrays import Array, Strings
from jackfield.gguf.file import File, open  # noqa: A004 - read as gguf.open
from jackfield.gguf.tensor import Tensor

__all__ = ["Array", "File", "Strings", "Tensor", "open"]
