"""What is known of a tensor before it has data: dtype, shape, strides, layout, role.

Pure arithmetic on extents and strides. Shapes are in numpy order and count elements; strides are bytes. On the last
axis of a block dtype a stride is the bytes of one block, because blocks can't be taken apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from operator import index
from typing import Literal

import numpy as np

from .dtypes import DType, by_name, of_numpy
from .errors import DTypeError, ShapeError

__all__ = [
    "MAX_NBYTES",
    "MAX_RANK",
    "Pairs",
    "Role",
    "Shape",
    "Spec",
    "View",
    "broadcast_view",
    "extents_of",
    "reshape_view",
    "slice_view",
    "transpose_view",
    "window_view",
]

Shape = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]  # two numbers for each axis
Role = Literal["constant", "state", "input", "temporary"]

MAX_RANK = 32  # of numpy arrays, by its oldest version that we take
MAX_NBYTES = 2**62  # larger products are a mistake, and would overflow 64-bit index arithmetic in native code


@dataclass(frozen=True)
class Spec:
    """Everything a device may ask about a tensor.

    dtype: the element, or block, type.
    shape: extents in elements, outermost first; `()` is one element.
    strides: bytes from one index to the next on each axis; `()` means dense. Strides equal to the dense ones, or that
        differ only on axes of extent 1, are stored as `()`, so equal tensors have equal Specs.
    layout: "" for plain bytes, else the name of a device's packing of a constant.
    role: what kind of tensor it is to a plan.
    Raises: DTypeError for what is no DType; ShapeError for an extent that is negative or no whole number (bools are
        none), more than 32 axes, a row that is no multiple of the block, or a size beyond 2**62 bytes, extents of 0 not
        counted.
    """

    dtype: DType
    shape: Shape
    strides: Shape = ()
    layout: str = ""
    role: Role = "temporary"

    def __post_init__(self) -> None:
        if not isinstance(self.dtype, DType):
            raise DTypeError(f"a dtype is one of jackfield's, {_meant(self.dtype)}, not {self.dtype!r}")
        shape = self.shape
        if type(shape) is not tuple or any(type(n) is not int for n in shape):
            shape = extents_of(shape)
            object.__setattr__(self, "shape", shape)
        if any(type(n) is not int for n in self.strides):
            raise ShapeError(f"strides are a tuple of whole numbers, not {self.strides!r}")
        if shape and min(shape) < 0:
            raise ShapeError(f"shape {list(shape)} has a negative extent")
        if len(shape) > MAX_RANK:
            raise ShapeError(f"a shape of {len(shape)} axes: at most {MAX_RANK}")
        if self.dtype.block > 1 and (not shape or shape[-1] % self.dtype.block):
            last = shape[-1] if shape else "none"
            raise ShapeError(f"{self.dtype} needs a last extent that is a multiple of {self.dtype.block}, it is {last}")
        # An extent of 0 hides the others from the size, but not from the strides.
        nbytes = self.nbytes or prod(n or 1 for n in self.units) * self.dtype.block_nbytes
        if nbytes > MAX_NBYTES:
            zeros = "" if self.size else ", the extents of 0 left out"
            raise ShapeError(f"{self.dtype}{list(shape)} takes {nbytes} bytes{zeros}, the limit is {MAX_NBYTES}")
        if self.strides and self._strides_are_dense():
            object.__setattr__(self, "strides", ())

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.dtype, self.shape, self.strides, self.layout, self.role))

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        """Without what was computed: hashes of text differ between processes."""
        return Spec, (self.dtype, self.shape, self.strides, self.layout, self.role)

    def _strides_are_dense(self) -> bool:
        if len(self.strides) != len(self.shape):
            raise ShapeError(f"{len(self.strides)} strides for {len(self.shape)} axes")
        if self.size == 0:
            return True
        dense = dense_strides(self.dtype, self.shape)
        return all(n == 1 or s == d for n, s, d in zip(self.units, self.strides, dense, strict=True))

    @property
    def rank(self) -> int:
        return len(self.shape)

    @cached_property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @cached_property
    def units(self) -> Shape:
        """The shape with the last axis counted in blocks; equal to the shape for plain dtypes."""
        return units_of(self.dtype, self.shape)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all elements, stored densely."""
        return prod(self.units) * self.dtype.block_nbytes

    @property
    def row_nbytes(self) -> int:
        """Bytes of one dense row along the last axis."""
        return (self.units[-1] if self.shape else 1) * self.dtype.block_nbytes

    @cached_property
    def byte_strides(self) -> Shape:
        """The strides written out, also when the tensor is dense."""
        return self.strides or dense_strides(self.dtype, self.shape)

    @property
    def is_dense(self) -> bool:
        return not self.strides

    @property
    def rows_are_dense(self) -> bool:
        """The last axis has no gaps; outer axes may be strided."""
        return self.rank == 0 or self.units[-1] <= 1 or self.byte_strides[-1] == self.dtype.block_nbytes

    @cached_property
    def extent_nbytes(self) -> int:
        """Bytes from the first byte to behind the last one that a view with these strides touches; 0 if empty."""
        if self.size == 0:
            return 0
        spread = sum((n - 1) * s for n, s in zip(self.units, self.byte_strides, strict=True))
        return spread + self.dtype.block_nbytes

    @property
    def overlaps_itself(self) -> bool:
        """Two indices may share a byte: stride 0 or an inner extent larger than an outer stride (sufficient test)."""
        if self.is_dense:
            return False
        covered = self.dtype.block_nbytes
        for stride, n in sorted((s, n) for n, s in zip(self.units, self.byte_strides, strict=True) if n > 1):
            if stride < covered:
                return True
            covered += (n - 1) * stride
        return False

    def dense(self) -> Spec:
        """The same tensor without strides."""
        return self if self.is_dense else replace(self, strides=())

    def with_role(self, role: Role) -> Spec:
        return self if self.role == role else replace(self, role=role)

    @classmethod
    def of(cls, array: np.ndarray, role: Role = "temporary") -> Spec:
        """The dense Spec of a numpy array's shape and dtype. Raises DTypeError for a dtype jackfield does not know."""
        return cls(of_numpy(array.dtype), array.shape, role=role)

    def __str__(self) -> str:
        text = f"{self.dtype}{list(self.shape)}"
        if self.strides:
            text += f" strides {list(self.strides)}"
        return text + (f" layout {self.layout}" if self.layout else "")


def extents_of(shape: Iterable[object]) -> Shape:
    """What somebody gave for a shape, as a tuple of Python's own integers; numpy's are taken.

    Raises: ShapeError for bools, fractions, and what is no sequence.
    """
    try:
        extents = tuple(shape)
        if not any(isinstance(n, (bool, np.bool_)) for n in extents) and not isinstance(shape, (str, bytes)):
            return tuple(map(index, extents))  # type: ignore[arg-type]  # what is no number raises TypeError
    except TypeError:
        pass
    one = f"; for one axis write ({shape!r},)" if isinstance(shape, int) and not isinstance(shape, bool) else ""
    raise ShapeError(f"a shape is a tuple of whole numbers, not {shape!r}{one}")


def _meant(dtype: object) -> str:
    """The public name of the dtype that somebody wrote as numpy's or as text; else an example."""
    try:
        known = by_name(dtype) if isinstance(dtype, str) else of_numpy(np.dtype(dtype or ""))  # type: ignore[call-overload]
    except (DTypeError, TypeError):
        return "such as jf.f32"
    return f"here jf.{known.name if known.name != 'bool' else 'bool_'}"


def units_of(dtype: DType, shape: Shape) -> Shape:
    """Extents with the last one counted in blocks."""
    return shape if dtype.block == 1 or not shape else (*shape[:-1], shape[-1] // dtype.block)


def dense_strides(dtype: DType, shape: Shape) -> Shape:
    """Row-major byte strides without gaps."""
    strides, step = [], dtype.block_nbytes
    for n in reversed(units_of(dtype, shape)):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


@dataclass(frozen=True)
class View:
    """A window on another tensor's bytes: its Spec, and where it starts in bytes from that tensor's first byte."""

    spec: Spec
    offset: int


def reshape_view(x: Spec, shape: Shape) -> View | None:
    """The reshaped window, or None when no strides can express it (then a copy comes first).

    shape: extents without -1; the product must equal x.size. Axes of x are merged or split where strides allow it.
    """
    if x.is_dense or x.size == 0:
        return View(replace(x, shape=shape, strides=()), 0)
    strides = _reshaped_strides(x.units, x.byte_strides, units_of(x.dtype, shape))
    return None if strides is None else View(replace(x, shape=shape, strides=strides), 0)


def _reshaped_strides(old: Shape, old_strides: Shape, new: Shape) -> Shape | None:
    """Walk both shapes from the outside; groups of axes with equal products must be evenly strided in the old one."""
    axes = [(n, s) for n, s in zip(old, old_strides, strict=True) if n != 1]
    result: list[int] = []
    i = j = 0
    while j < len(new):
        if new[j] == 1:
            result.append(0)
            j += 1
            continue
        if i == len(axes):
            return None
        first, last, have, want = i, j, axes[i][0], new[j]
        while have != want:
            if have < want:
                i += 1
                if i == len(axes):
                    return None
                have *= axes[i][0]
            else:
                last += 1
                if last == len(new):
                    return None
                want *= new[last]
        if any(axes[a][1] != axes[a + 1][1] * axes[a + 1][0] for a in range(first, i)):
            return None
        step, part = axes[i][1], []
        for n in reversed(new[j : last + 1]):
            part.append(step)
            step *= n
        result += reversed(part)
        i, j = i + 1, last + 1
    return tuple(result)


def transpose_view(x: Spec, axes: Sequence[int]) -> View:
    """Axes in another order. axes: a permutation of range(rank)."""
    shape = tuple(x.shape[a] for a in axes)
    return View(replace(x, shape=shape, strides=tuple(x.byte_strides[a] for a in axes)), 0)


def slice_view(x: Spec, bounds: Iterable[tuple[int, int, int]]) -> View:
    """One (start, stop, step) an axis, inside the extents, step >= 1; on the last axis of a block dtype in elements,
    whole blocks only.
    """
    shape, strides, offset = [], [], 0
    last = x.rank - 1
    for axis, ((start, stop, step), stride) in enumerate(zip(bounds, x.byte_strides, strict=True)):
        n = max(0, -(-(stop - start) // step))
        per = x.dtype.block if axis == last else 1
        shape.append(n)
        strides.append(stride * step)
        offset += (start // per) * stride
    window = replace(x, shape=tuple(shape), strides=tuple(strides))
    return View(window, offset if window.size else 0)


def broadcast_view(x: Spec, shape: Shape) -> View:
    """Extents of 1 stretched, axes added in front, with stride 0. shape must be one x broadcasts to."""
    added = len(shape) - x.rank
    strides = [0] * added
    for n, m, s in zip(x.shape, shape[added:], x.byte_strides, strict=True):
        strides.append(s if n == m else 0)
    return View(replace(x, shape=shape, strides=tuple(strides)), 0)


def window_view(x: Spec, shape: Shape, strides: Shape, offset: int) -> View:
    """Any window on a dense tensor. strides, offset: in units of x, which are blocks for a block dtype.

    Raises: ShapeError for a shape that is none of x's dtype, and for a window that reaches beyond x.
    """
    window = replace(x, shape=shape, strides=())
    if not window.size:
        return View(window, 0)
    # no step is taken along an axis of extent 1: its stride may be anything, and is stored as 0
    steps = tuple(s if n > 1 else 0 for n, s in zip(window.units, strides, strict=True))
    last, held = offset + sum((n - 1) * s for n, s in zip(window.units, steps, strict=True)), prod(x.units)
    if last >= held:
        unit = "block" if x.dtype.is_block else "element"
        raise ShapeError(f"the window reaches {unit} {last} of x, which has {held}")
    nbytes = x.dtype.block_nbytes
    return View(replace(window, strides=tuple(s * nbytes for s in steps)), offset * nbytes)
