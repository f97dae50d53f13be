"""One start of a shader as data: what a kernel makes of a placed step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import jackfield.backend as jb
import numpy as np

from .shading import WIDTHS, Number, Shader

Extents = tuple[int, int, int, int]
LANES = 64  # of a workgroup


@dataclass(frozen=True)
class Dispatch:
    """A shader with its tensors and numbers.

    reads: by the name the shader knows. out: where it writes; it may read there as well, by the name "out".
    groups: workgroups, at least 1. table: f32, for shaders that have one. operands: whose indices may be
    bad. units: as what a tensor is read, where not by its dtype.
    """

    shader: Shader
    reads: Mapping[str, jb.Place]
    out: jb.Place
    numbers: Mapping[str, Number]
    groups: int
    table: np.ndarray[Any, Any] | None = None
    operands: tuple[str, ...] = ()
    units: Mapping[str, str] = field(default_factory=dict)


def each(size: int) -> int:
    """Workgroups for one lane an element."""
    return max(1, -(-size // LANES))


def four(shape: tuple[int, ...]) -> Extents:
    """The shape with ones in front."""
    return (*(1,) * (4 - len(shape)), *shape)  # type: ignore[return-value]


def strides(spec: jb.Spec, width: int | None = None) -> Extents:
    """Strides of four axes in elements (bytes for blocks), or in units of `width` bytes; 0 for an axis of extent 1."""
    unit = width or WIDTHS.get(spec.dtype.name, 1)
    found = [0 if n == 1 else s // unit for n, s in zip(spec.units, spec.byte_strides, strict=True)]
    return (*(0,) * (4 - len(found)), *found)  # type: ignore[return-value]


def spread(spec: jb.Spec, shape: Extents) -> Extents:
    """Strides under numpy's broadcasting to this shape."""
    return tuple(0 if n == 1 < m else s for n, m, s in zip(four(spec.shape), shape, strides(spec), strict=True))  # type: ignore[return-value]


def rows_of(shape: tuple[int, ...]) -> int:
    """How many rows along the last axis there are."""
    return prod(shape[:-1])
