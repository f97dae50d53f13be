"""Examples that no declaration spells out: one extent of a declared case changed, and operands full of edge values."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from jackfield.conformance.cases import Example, assignments, examples
from jackfield.dtypes import DType, bf16, f16, f32
from jackfield.dtypes.arrays import element
from jackfield.errors import GraphError
from jackfield.op import Array, Case, Draw, Op, values
from jackfield.spec import Spec, View

__all__ = ["Derived", "derived"]

EXTENTS = (0, 1, 2, 7, 17, 33, 65, 129)  # nothing, one, odd, and just beyond the vectors and tiles of most devices
WIDE = (255, 256, 257)  # a power of two that many devices work by, and beside it
MOST_ELEMENTS = 1 << 17
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
    """Every op with other extents, of one element, of none; with -0, NaN, inf, the largest and smallest numbers."""
    drawn = (e for e in examples(op, seed) if e.layout == "dense" and _is_drawn(e))
    plain = next(drawn, None)
    if plain is None:
        return
    yield from _resized(plain)
    yield from _widened(chain([plain], drawn))
    for dtype in (f32, f16, bf16):
        for edge in EDGES:
            changed = _edged(op, plain.case, dtype, edge, seed)
            if changed is not None:
                yield Derived(changed, edge)
    yield from _others_edged(op, plain, seed)
    for extent, what in ((1, "one"), (0, "nothing")):
        changed = _shrunk(plain, extent)
        if changed is not None:
            yield Derived(changed, what)


def _is_drawn(example: Example) -> bool:
    """Its data comes from a generator, so that it can be drawn in another shape."""
    floats = [d for d in example.draws.values() if d.dtype is None]
    return bool(floats) and all(d.fixed is None for d in floats) and example.result.size > 1


def _resized(plain: Example) -> Iterator[Derived]:
    """Each extent of the case in turn replaced in all operands that have it, by each of EXTENTS."""
    for extent in sorted(_extents(plain)):
        yield from _with_extents(plain, extent, EXTENTS)


def _widened(drawn: Iterable[Example]) -> Iterator[Derived]:
    """One extent by each of WIDE: the last that some case lets grow, as rows are what devices cut into vectors."""
    for plain in drawn:
        for extent in _extents(plain):
            wide = [*_with_extents(plain, extent, WIDE)]
            if len(wide) == len({*WIDE} - {extent}):
                yield from wide
                return


def _extents(plain: Example) -> dict[int, None]:
    """All but 1, the last axes of the first operand first."""
    shapes = [view.spec.shape for view in plain.views.values()]
    return dict.fromkeys(n for shape in shapes for n in reversed(shape) if n > 1)


def _with_extents(plain: Example, extent: int, others: Iterable[int]) -> Iterator[Derived]:
    """The case with one extent replaced in all operands that have it, by each of these that the op takes."""
    for other in others:
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


def _shrunk(plain: Example, extent: int) -> Example | None:
    """All axes 1, or 0; indices, and attributes that tell a place or a number of elements, so that they fit."""
    draws = {}
    for name, draw in plain.draws.items():
        shape = (extent,) * len(draw.shape)
        is_index = draw.dtype is not None and draw.dtype.is_integer
        draws[name] = values(np.zeros(shape, np.int64), draw.dtype) if is_index else replace(draw, shape=shape)
    attrs = dict(plain.attrs)
    if isinstance(start := attrs.get("start"), tuple):
        attrs["start"] = (0,) * len(start)
    if "k" in attrs:
        attrs["k"] = extent
    return _of(replace(plain, attrs=plain.op.complete(attrs)), draws)


def _edged(op: Op, case: int, dtype: DType, edge: str, seed: int) -> Example | None:
    """The case with edge values in its operands of this dtype; None where the op does not take the dtype."""
    declared = op.cases[case]
    dtypes = next((d for _, d in assignments(op, declared) if _all_are(declared, d, dtype)), None)
    return None if dtypes is None else _with_edges(op, case, dtypes, _reached(op, declared), dtype, edge, seed)


def _reached(op: Op, case: Case) -> list[str]:
    """The operands that get edge values together: of an op that mixes elements the first alone."""
    names = [name for name, draw in case.operands.items() if draw.dtype is None]
    return names[:1] if op.tolerance in FEW else names


def _others_edged(op: Op, plain: Example, seed: int) -> Iterator[Derived]:
    """Each further float operand, such as a weight or a mask, in turn with one NaN and with one inf."""
    for name in op.operands:
        if name in _reached(op, op.cases[plain.case]):
            continue
        case = next((i for i, c in enumerate(op.cases) if c.raises is None and _draws(c, name)), None)
        if case is None:
            continue
        for dtype in (d for d in (f32, f16, bf16) if d in op.declared.accepts[name]):
            chosen = [d for _, d in assignments(op, op.cases[case]) if d[name] is dtype]
            for edge in ("nan", "inf"):
                tried = (_with_edges(op, case, dtypes, [name], dtype, edge, seed, few=True) for dtypes in chosen)
                changed = next((example for example in tried if example is not None), None)
                if changed is not None:
                    yield Derived(changed, f"{edge}-{name}")


def _draws(case: Case, name: str) -> bool:
    """The case has this operand, drawn and not empty."""
    draw = case.operands.get(name)
    return draw is not None and draw.dtype is None and draw.fixed is None and all(draw.shape)


def _with_edges(
    op: Op,
    case: int,
    dtypes: Mapping[str, DType],
    names: Iterable[str],
    dtype: DType,
    edge: str,
    seed: int,
    *,
    few: bool | None = None,
) -> Example | None:
    """The case in these dtypes with edge values in the operands of these names; None where the op refuses it."""
    declared = op.cases[case]
    draws = dict(declared.operands)
    few = op.tolerance in FEW if few is None else few
    for name in names:
        draws[name] = _edges(draws[name], dtype, edge, f"{op.name} {name} {edge} {seed}", few=few)
    try:
        specs = {name: Spec(dtypes[name], draw.shape) for name, draw in draws.items()}
        attrs = op.complete(declared.attrs)
        op.infer([specs.get(name) for name in op.operands], attrs)
    except GraphError:
        return None
    views = {name: View(spec, 0) for name, spec in specs.items()}
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
