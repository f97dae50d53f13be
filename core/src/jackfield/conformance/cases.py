"""From declared cases to examples: dtypes assigned, optional operands dropped, operands laid out in memory, data drawn.

An Example is a description until its arrays are asked for; the same description always draws the same numbers.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import prod
from typing import Any, Literal

import numpy as np

from jackfield import ops
from jackfield.dtypes import DType, bool_, of_numpy
from jackfield.dtypes.arrays import convert, element
from jackfield.errors import DTypeError, GraphError, ShapeError
from jackfield.graph import Attrs
from jackfield.op import OPS, Array, Case, Draw, Op
from jackfield.spec import Shape, Spec, View, broadcast_view, slice_view, transpose_view

__all__ = [
    "HELD",
    "Example",
    "Layout",
    "assignments",
    "drawn",
    "examples",
    "made",
    "raw_blocks",
    "relaid",
    "valid",
    "wrong_uses",
]

Layout = Literal[
    "dense",
    "rows",
    "sliced",
    "transposed",
    "broadcast",
    "constant",
    "inplace",
    "pitched",
    "swapped",
    "stepped",
    "windows",
]

# Operands that models keep as constants, so that a device may want them packed.
HELD = {("linear", "weight"), ("linear_experts", "weight"), ("take_rows", "x")}


@dataclass(frozen=True)
class Example:
    """One use of an op that can be run.

    case: its number in the declaration. dtype: the one under test. draws: what to put into each operand that is there.
    views: how each operand lies: the Spec with its strides, and its offset in the dense tensor `bases` it is cut from.
    seed: other numbers for the same description. given: operands that are not drawn but are these very arrays.
    """

    op: Op
    case: int
    dtype: DType
    layout: Layout
    draws: Mapping[str, Draw]
    views: Mapping[str, View]
    bases: Mapping[str, Spec]
    attrs: Attrs
    seed: int = 0
    given: Mapping[str, Array] = field(default_factory=dict)

    def __str__(self) -> str:
        shapes = ", ".join(f"{name} {view.spec}" for name, view in self.views.items())
        attrs = "".join(f", {k}={v}" for k, v in self.attrs.items() if v != self.op.defaults.get(k, object()))
        return f"{self.op.name} case {self.case} {self.layout}: {shapes}{attrs}"

    @property
    def id(self) -> str:
        """Op, dtypes, shapes with attributes, and layout, as `sum/f32/2x3-axis=0/sliced`.

        Numbers that a case spells out are told apart by a checksum: `argmax/f32/3x5-data=1f3c/dense`.
        """
        names = [view.spec.dtype.name for name, view in self.views.items() if self.draws[name].dtype is None]
        dtypes = names[:1] if len(set(names)) == 1 else names or [self.dtype.name]
        shapes = [
            f"{name}={_extents(view.spec.shape)}" if name in self.op.optional else _extents(view.spec.shape)
            for name, view in self.views.items()
        ]
        attrs = [f"{k}={v}".replace(" ", "") for k, v in self.attrs.items() if v != self.op.defaults.get(k, object())]
        parts = [*shapes, *attrs, *self._told()]
        return f"{self.op.name}/{'+'.join(dtypes)}/{'-'.join(parts)}/{self.layout}"

    def _told(self) -> list[str]:
        """The checksum of the numbers that the case spells out; nothing where it draws all of them."""
        draws = self.op.cases[self.case].operands if self.case >= 0 else {}
        told = [f"{name} {draws[name].fixed}" for name in self.views if name in draws and draws[name].fixed is not None]
        return [f"data={zlib.crc32(' '.join(told).encode()) & 0xFFFF:04x}"] if told else []

    @property
    def specs(self) -> tuple[Spec | None, ...]:
        """One an operand, in declaration order."""
        return tuple(self.views[name].spec if name in self.views else None for name in self.op.operands)

    @cached_property
    def result(self) -> Spec:
        """The result; for an updating op with the strides of its target."""
        spec = self.op.infer(self.specs, self.attrs)
        target = self.specs[0] if self.op.updates else None
        return replace(spec, strides=target.strides) if target is not None else spec

    def arrays(self) -> list[Array | None]:
        """The operands' data, one array an operand; block dtypes as arrays of blocks."""
        return [self._array(name) if name in self.views else None for name in self.op.operands]

    def _array(self, name: str) -> Array:
        if name in self.given:
            return self.given[name]
        draw, spec = self.draws[name], self.views[name].spec
        text = f"{self.op.name} {self.case} {name}" + (f" {self.seed}" if self.seed else "")
        seed = zlib.crc32(text.encode())
        array = _drawn_blocks(draw, spec.dtype, seed).copy() if spec.dtype.is_block else _drawn(draw, spec.dtype, seed)
        if self.layout == "broadcast" and not spec.is_dense:
            at = tuple(slice(0, 1) if s == 0 else slice(None) for s in spec.byte_strides)
            array = np.broadcast_to(array[at], array.shape)
        if self.layout == "windows" and spec.overlaps_itself:
            array = np.lib.stride_tricks.as_strided(array.reshape(-1).copy(), array.shape, spec.byte_strides)
        return array


def _drawn(draw: Draw, dtype: DType, seed: int) -> Array:
    return drawn(draw, dtype, np.random.default_rng(seed))


_drawn_blocks = lru_cache(maxsize=256)(_drawn)  # some encoders are slow, and a case is laid out in many ways
_ENCODED = 4096  # numbers, whole blocks of every dtype; larger operands are of these blocks in another order


def _extents(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "scalar"


def drawn(draw: Draw, dtype: DType, rng: np.random.Generator) -> Array:
    """Data of a draw in this dtype; whole numbers for integers."""
    if draw.fixed is None and dtype.is_integer and draw.dtype is None:
        low = 0 if dtype.name == "u8" else -100
        return convert(rng.integers(low, 101, draw.shape), dtype)[0]
    if draw.fixed is None and dtype is bool_:
        return np.asarray(rng.random(draw.shape) < 0.5)
    numbers, stored = np.asarray(draw.draw(rng)), _stored_shape(draw.shape, dtype)
    if draw.fixed is None and dtype.is_block and numbers.size > _ENCODED:
        few = convert(numbers.reshape(-1)[:_ENCODED], dtype)[0]
        return few[rng.integers(0, len(few), stored)]
    return convert(numbers, dtype)[0].reshape(stored)


def raw_blocks(dtype: DType, count: Shape, rng: np.random.Generator, largest: float = 4.0) -> Array:
    """So many valid blocks of random bytes, whose numbers are finite and none larger than this."""
    found: list[Array] = []
    need = prod(count)
    while sum(map(len, found)) < need:
        raw = rng.integers(0, 256, (64 + 4 * need, dtype.block_nbytes), np.uint8)
        with np.errstate(all="ignore"):
            size = np.abs(dtype.decode(raw)).max(-1)
        found.append(raw[valid(dtype, raw) & (size <= largest)])
    raw = np.ascontiguousarray(np.concatenate([*found, np.zeros((0, dtype.block_nbytes), np.uint8)])[:need])
    return raw.view(element(dtype)).reshape(count)


def valid(dtype: DType, raw: Array) -> Array:
    """Which of blocks u8 (n, block_nbytes) a file may hold: bool (n,). Their numbers are finite."""
    assert dtype.codec is not None
    with np.errstate(all="ignore"):
        finite = np.isfinite(dtype.decode(raw)).all(-1)
    return np.asarray(finite & ~dtype.codec.bad(raw))


def _stored_shape(shape: Shape, dtype: DType) -> Shape:
    return Spec(dtype, shape).units


def examples(op: Op, seed: int = 0) -> Iterator[Example]:
    """Every example of an op: each case in each dtype; then other layouts; then without optional operands."""
    for example in _examples(op):
        yield replace(example, seed=seed) if seed else example


def _examples(op: Op) -> Iterator[Example]:
    for number, case in enumerate(op.cases):
        if case.raises is not None:
            continue
        first = True
        for dtype, dtypes in assignments(op, case):
            plain = _example(op, number, case, dtype, dtypes)
            if plain is None:
                continue
            yield plain
            yield from _laid_out(plain, every=first)
            if first:
                yield from _without_optional(plain, dtypes, case)
            first = False


def made(op: Op, arrays: Mapping[str, Array], **attrs: Any) -> Example:
    """An example of these very arrays by operand name (plain dtypes). Raises what building the node would raise."""
    draws = {name: Draw(array.shape, dtype=of_numpy(array.dtype)) for name, array in arrays.items()}
    specs = {name: Spec.of(array) for name, array in arrays.items()}
    views = {name: View(spec, 0) for name, spec in specs.items()}
    full = op.complete(attrs)
    result = op.infer([specs.get(name) for name in op.operands], full)
    first = next(iter(specs.values()), result).dtype
    example = Example(op, -1, first, "dense", draws, views, specs, full, given=dict(arrays))
    _ = example.result
    return example


def _laid_out(plain: Example, *, every: bool) -> Iterator[Example]:
    layouts: tuple[Layout, ...] = ("rows", "sliced", "transposed", "broadcast", "inplace") if every else ("rows",)
    if any((plain.op.name, name) in HELD for name in plain.views):
        layouts = (*layouts, "constant")
    for layout in layouts:
        changed = relaid(plain, layout)
        if changed is not None:
            yield changed


def _without_optional(plain: Example, dtypes: Mapping[str, DType], case: Case) -> Iterator[Example]:
    given = [name for name in case.operands if name in plain.op.optional]
    subsets = [{name} for name in given] + ([set(given)] if len(given) > 1 else [])
    for dropped in subsets:
        rest = replace(case, operands={k: v for k, v in case.operands.items() if k not in dropped})
        smaller = _example(plain.op, plain.case, rest, plain.dtype, dtypes)
        if smaller is not None:
            yield smaller


def wrong_uses() -> Iterator[tuple[Op, int, Case]]:
    """The declared cases that must raise."""
    for name in ops.__all__:
        for number, case in enumerate(OPS[name].cases):
            if case.raises is not None:
                yield OPS[name], number, case


def assignments(op: Op, case: Case) -> Iterator[tuple[DType, dict[str, DType]]]:
    """(dtype under test, dtype of each operand): everywhere it is accepted, and in each operand alone.

    Without operands the dtype under test is the result's.
    """
    if not case.operands:
        yield op.infer([None] * len(op.operands), case.attrs).dtype, {}
        return
    accepts = op.declared.accepts
    free = [name for name, draw in case.operands.items() if draw.dtype is None]
    usual = {name: draw.dtype or accepts[name][0] for name, draw in case.operands.items()}
    first = accepts[free[0]][0] if free else next(iter(usual.values()))
    seen = [usual]
    yield first, usual
    for dtype in dict.fromkeys(d for name in free for d in accepts[name]):
        takers = [name for name in free if dtype in accepts[name]]
        for changed in ([name] for name in takers) if len(takers) < len(free) else (takers, *([n] for n in takers)):
            dtypes = usual | dict.fromkeys(changed, dtype)
            if dtypes not in seen:
                seen.append(dtypes)
                yield dtype, dtypes
        if len(takers) > 1 and (dtypes := usual | dict.fromkeys(takers, dtype)) not in seen:
            seen.append(dtypes)
            yield dtype, dtypes


def _example(op: Op, number: int, case: Case, dtype: DType, dtypes: Mapping[str, DType]) -> Example | None:
    """The dense example, or None where these dtypes don't fit the case."""
    for name, draw in case.operands.items():
        if dtypes[name].is_block and (draw.fixed is not None and not np.isfinite(draw.fixed).all()):
            return None
    try:
        specs = {name: Spec(dtypes[name], draw.shape) for name, draw in case.operands.items()}
        attrs = op.complete(case.attrs)
        op.infer([specs.get(name) for name in op.operands], attrs)
    except (DTypeError, ShapeError):
        return None  # a block does not divide the row, or the op wants equal dtypes
    except GraphError:
        if case is op.cases[number]:
            raise
        return None  # an operand was dropped that an attribute needs
    views = {name: View(spec, 0) for name, spec in specs.items()}
    return Example(op, number, dtype, "dense", case.operands, views, specs, attrs)


def relaid(plain: Example, layout: Layout) -> Example | None:
    """The same dense example in another layout, or None where that changes nothing or the op refuses it."""
    if layout == "inplace":
        fits = not plain.op.updates and any(
            name in plain.views and plain.views[name].spec == plain.result for name in plain.op.inplace
        )
        return replace(plain, layout=layout) if fits and plain.result.size else None
    if layout == "constant":
        roles = {
            name: View(view.spec.with_role("constant"), 0) if (plain.op.name, name) in HELD else view
            for name, view in plain.views.items()
        }
        return replace(plain, layout=layout, views=roles)
    cut = {name: _cut(plain, name, layout) for name in plain.views}
    for names in ((), *((name,) for name in plain.views)):  # an operand that must have dense rows gets them
        tried = cut | {name: _cut(plain, name, "rows") for name in names}
        changed = replace(
            plain,
            layout=layout,
            bases={name: base for name, (base, _) in tried.items()},
            views={name: view for name, (_, view) in tried.items()},
        )
        try:
            _ = changed.result
        except ShapeError:
            continue
        return changed if any(not view.spec.is_dense for view in changed.views.values()) else None
    return None


def _cut(plain: Example, name: str, layout: Layout) -> tuple[Spec, View]:
    """A dense base and the window on it that is the operand."""
    spec = plain.views[name].spec
    target = name in [plain.op.operands[i] for i in plain.op.targets]
    if spec.rank == 0 or spec.size == 0:
        return spec, View(spec, 0)
    if layout == "transposed":
        movable = spec.rank - (1 if spec.dtype.is_block else 0)
        axes = (*reversed(range(movable)), *range(movable, spec.rank))
        base = Spec(spec.dtype, tuple(spec.shape[a] for a in axes))
        return base, transpose_view(base, axes)
    if layout == "broadcast":
        axis = next((a for a, n in enumerate(spec.units) if n > 1), None)
        if axis is None or target or not (spec.dtype.is_float or spec.dtype.is_block) or _last_block(spec, axis):
            return spec, View(spec, 0)
        base = Spec(spec.dtype, (*spec.shape[:axis], 1, *spec.shape[axis + 1 :]))
        return base, broadcast_view(base, spec.shape)
    if layout in _OTHER_CUTS:
        return _OTHER_CUTS["pitched" if target and layout == "windows" else layout](spec)
    return _spread(spec, gaps=layout == "sliced")


def _pitched(spec: Spec) -> tuple[Spec, View]:
    """Rows without gaps, at an odd pitch: most start at no multiple of a vector."""
    unit = spec.dtype.block
    base = Spec(spec.dtype, (*spec.shape[:-1], spec.shape[-1] + 3 * unit))
    bounds = [(0, n, 1) for n in spec.shape[:-1]] + [(unit, unit + spec.shape[-1], 1)]
    return base, slice_view(base, bounds)


def _swapped(spec: Spec) -> tuple[Spec, View]:
    """The last two axes swapped, or of a block dtype the two before its last."""
    last = spec.rank - (1 if spec.dtype.is_block else 0)
    if last < 2:
        return spec, View(spec, 0)
    axes = [*range(spec.rank)]
    axes[last - 2], axes[last - 1] = axes[last - 1], axes[last - 2]
    base = Spec(spec.dtype, tuple(spec.shape[a] for a in axes))
    return base, transpose_view(base, axes)


def _stepped(spec: Spec) -> tuple[Spec, View]:
    """Every third element of every axis."""
    steps = [1 if _last_block(spec, axis) else 3 for axis in range(spec.rank)]
    base = Spec(spec.dtype, tuple(n * step for n, step in zip(spec.shape, steps, strict=True)))
    return base, slice_view(base, [(step // 2, n, step) for n, step in zip(base.shape, steps, strict=True)])


def _windows(spec: Spec) -> tuple[Spec, View]:
    """Rows that overlap: each starts one element, or block, after the one before. No target can lie so."""
    if spec.rank < 2 or spec.units[-1] < 2 or spec.shape[-2] < 2:
        return spec, View(spec, 0)
    unit, row = spec.dtype.block_nbytes, spec.shape[-2] + spec.units[-1] - 1
    strides, step = [unit, unit], row * unit
    for n in reversed(spec.shape[:-2]):
        strides.insert(0, step)
        step *= n
    base = Spec(spec.dtype, (step // unit * spec.dtype.block,))
    return base, View(replace(spec, strides=tuple(strides)), 0)


_OTHER_CUTS: dict[str, Callable[[Spec], tuple[Spec, View]]] = {
    "pitched": _pitched,
    "swapped": _swapped,
    "stepped": _stepped,
    "windows": _windows,
}


def _last_block(spec: Spec, axis: int) -> bool:
    return spec.dtype.is_block and axis == spec.rank - 1


def _spread(spec: Spec, *, gaps: bool) -> tuple[Spec, View]:
    """A window that starts behind the base's start and ends before its end; with gaps, also between elements."""
    shape, bounds = [], []
    for axis, n in enumerate(spec.shape):
        last = axis == spec.rank - 1
        unit = spec.dtype.block if last else 1
        step = 2 if gaps and (axis == 0 or last) and not _last_block(spec, axis) else 1
        shape.append(n * step + 2 * unit)
        bounds.append((unit, unit + n * step, step))
    base = Spec(spec.dtype, tuple(shape))
    return base, slice_view(base, bounds)
