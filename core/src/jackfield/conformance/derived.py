"""Examples that no declaration spells out: one extent of a declared case changed, and operands full of edge values."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from jackfield.dtypes import DType, bf16, f16, f32
from jackfield.dtypes.arrays import element
from jackfield.errors import GraphError
from jackfield.op import Array, Case, Draw, Op, values
from jackfield.spec import Spec, View

from .cases import Example, assignments, examples

__all__ = ["Derived", "derived"]

EXTENTS = (0, 1, 2, 7, 17, 33, 65, 129)  # nothing, one, odd, and just beyond the vectors and tiles of most devices
MOST_ELEMENTS = 1 << 16
EDGES = ("zeros", "nan", "inf", "large", "tiny")
FEW = ("M", "N", "R")  # classes of ops that mix elements: one edge value is enough to reach a row


@dataclass(frozen=True)
class Derived:
    """An example and what was done to it, for its id."""

    example: Example
    what: str = ""

    @property
    def id(self) -> str:
        return self.example.id + (f"-{self.what}" if self.what else "")


def derived(op: Op, seed: int = 0) -> Iterator[Derived]:
    """Every op with other extents, and with -0, NaN, inf, the largest and the smallest numbers in its operands."""
    plain = next((e for e in examples(op, seed) if e.layout == "dense" and _is_drawn(e)), None)
    if plain is None:
        return
    yield from _resized(plain)
    for dtype in (f32, f16, bf16):
        for edge in EDGES:
            changed = _edged(op, plain.case, dtype, edge, seed)
            if changed is not None:
                yield Derived(changed, edge)


def _is_drawn(example: Example) -> bool:
    """Its data comes from a generator, so that it can be drawn in another shape."""
    floats = [d for d in example.draws.values() if d.dtype is None]
    return bool(floats) and all(d.fixed is None for d in floats) and example.result.size > 1


def _resized(plain: Example) -> Iterator[Derived]:
    """Each extent of the case in turn replaced in all operands that have it, by each of EXTENTS."""
    shapes = [view.spec.shape for view in plain.views.values()]
    for extent in sorted({n for shape in shapes for n in shape if n > 1}):
        for other in EXTENTS:
            changed = _with_extent(plain, extent, other)
            if changed is not None:
                yield Derived(changed)


def _with_extent(plain: Example, extent: int, other: int) -> Example | None:
    if other == extent:
        return None
    draws: dict[str, Draw] = {}
    for name, draw in plain.draws.items():
        shape = tuple(other if n == extent else n for n in draw.shape)
        if shape != draw.shape and draw.fixed is not None:
            return None
        draws[name] = replace(draw, shape=shape)
    return _of(plain, draws)


def _of(plain: Example, draws: Mapping[str, Draw]) -> Example | None:
    """The dense example of other draws, or None where the op does not take their shapes."""
    try:
        specs = {name: Spec(view.spec.dtype, draws[name].shape) for name, view in plain.views.items()}
        result = plain.op.infer([specs.get(name) for name in plain.op.operands], plain.attrs)
    except GraphError:
        return None
    if max(result.size, *(s.size for s in specs.values())) > MOST_ELEMENTS:
        return None
    views = {name: View(spec, 0) for name, spec in specs.items()}
    return replace(plain, layout="dense", draws=draws, views=views, bases=specs)


def _edged(op: Op, case: int, dtype: DType, edge: str, seed: int) -> Example | None:
    """The case with edge values in its operands of this dtype; None where the op does not take the dtype."""
    declared = op.cases[case]
    dtypes = next((d for _, d in assignments(op, declared) if _all_are(declared, d, dtype)), None)
    if dtypes is None:
        return None
    draws = dict(declared.operands)
    names = [name for name, draw in draws.items() if draw.dtype is None]
    for name in names[:1] if op.tolerance in FEW else names:
        draws[name] = _edges(draws[name], dtype, edge, f"{op.name} {name} {edge} {seed}", few=op.tolerance in FEW)
    specs = {name: Spec(dtypes[name], draw.shape) for name, draw in draws.items()}
    views = {name: View(spec, 0) for name, spec in specs.items()}
    try:
        attrs = op.complete(declared.attrs)
        op.infer([specs.get(name) for name in op.operands], attrs)
    except GraphError:
        return None
    return Example(op, case, dtype, "dense", draws, views, specs, attrs, seed)


def _all_are(case: Case, dtypes: Mapping[str, DType], dtype: DType) -> bool:
    return all(dtypes[name] is dtype for name, draw in case.operands.items() if draw.dtype is None)


def _edges(draw: Draw, dtype: DType, edge: str, mark: str, *, few: bool) -> Draw:
    """The numbers of a draw with edge values among them: one of them, or in every third place."""
    rng = np.random.default_rng(zlib.crc32(mark.encode()))
    array: Array = np.asarray(draw.draw(rng), np.float64)
    flat = array.reshape(-1)
    put = _edge_values(edge, dtype)
    at = rng.integers(flat.size, size=1) if few else np.arange(0, flat.size, 3)
    flat[at] = np.resize(rng.permutation(put), at.size)
    return values(flat.reshape(draw.shape))


def _largest(dtype: DType) -> float:
    bits = {f32: 0x7F7FFFFF, f16: 0x7BFF, bf16: 0x7F7F}[dtype]
    return float(np.array(bits, f"u{dtype.block_nbytes}").view(element(dtype)).astype(np.float64))


def _smallest(dtype: DType) -> float:
    return float(np.array(1, f"u{dtype.block_nbytes}").view(element(dtype)).astype(np.float64))


def _edge_values(edge: str, dtype: DType) -> Array:
    few: dict[str, list[float]] = {
        "zeros": [0.0, -0.0],
        "nan": [np.nan],
        "inf": [np.inf, -np.inf],
        "large": [_largest(dtype), -_largest(dtype)],
        "tiny": [_smallest(dtype), -_smallest(dtype), 3 * _smallest(dtype)],
    }
    return np.array(few[edge])
