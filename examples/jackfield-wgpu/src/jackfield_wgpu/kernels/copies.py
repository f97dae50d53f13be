"""Copies: dense, into another dtype, side by side, and into a region."""

from __future__ import annotations

from collections.abc import Iterator

import jackfield.backend as jb

from ..dispatch import Dispatch, Extents, each, four, strides
from ..shading import WIDTHS, Number, Shader
from .entry import BLOCKS, FLOATS, I32, Entry, attrs_of, place_of

EVERY = frozenset(jb.DTYPES)
UNITS = {4: "i32", 2: "i16", 1: "u8"}  # by bytes: as what a copy reads any dtype
NUMBERS = FLOATS | I32
HOLDS = FLOATS | {"i32", "i8", "i16", "i64"}


def copied(x: jb.Place, out: jb.Place, shape: Extents, start: int = 0) -> Iterator[Dispatch]:
    """x, repeated to this shape (in units: blocks are one), to the place `start` bytes behind the first of out."""
    nbytes = x.spec.dtype.block_nbytes
    width = next(w for w in UNITS if nbytes % w == 0)
    parts = nbytes // width
    size = shape[0] * shape[1] * shape[2] * shape[3] * parts
    if not size:
        return
    numbers: dict[str, Number] = {
        "size": size,
        "parts": parts,
        "shape": shape,
        "x_shape": four(x.spec.units),
        "x_strides": strides(x.spec, width),
        "out_strides": strides(out.spec, width),
        "start": start // width,
    }
    units = dict.fromkeys(("x", "out"), UNITS[width])
    yield Dispatch(Shader("copy"), {"x": x}, out, numbers, each(size), units=units)


def contiguous(placed: jb.PlacedStep) -> Iterator[Dispatch]:
    """contiguous, and tile: the result's shape is a multiple of x's."""
    yield from copied(place_of(placed, 0), placed.result, four(placed.result.spec.units))


def concatenate(placed: jb.PlacedStep) -> Iterator[Dispatch]:
    a, b, out = place_of(placed, 0), place_of(placed, 1), placed.result
    axis = attrs_of(placed.step)["axis"] % a.spec.rank
    behind = a.spec.units[axis] * out.spec.byte_strides[axis]
    yield from copied(a, out, four(a.spec.units))
    yield from copied(b, out, four(b.spec.units), behind)


def converted(x: jb.Place, out: jb.Place, start: int = 0) -> Iterator[Dispatch]:
    """x in the dtype of out, to the place `start` bytes behind the first of out."""
    size, names = x.spec.size, (x.spec.dtype.name, out.spec.dtype.name)
    if not size:
        return
    numbers: dict[str, Number] = {
        "size": size,
        "shape": four(x.spec.shape),
        "x_strides": strides(x.spec),
        "out_strides": strides(out.spec),
        "start": start // WIDTHS[names[1]],
    }
    shader, name = _conversion(*names), "w" if names[0] in BLOCKS else "x"
    yield Dispatch(shader, {name: x}, out, numbers, each(size))


def _conversion(old: str, new: str) -> Shader:
    at = "at_strides(place, p.x_strides)"
    if old in BLOCKS:
        row = "at_strides(vec4(place.xyz, 0u), p.x_strides)"
        return Shader("cast", (("convert", f"out_put(into, number_of({row}, place.w));"),), uses=(old, "block"))
    if new == "i32":
        return Shader("cast", (("convert", f"out_put_bits(into, whole_of(x_at({at})));"),))
    value = f"float_of(x_bits({at}))" if old == "i32" else f"x_at({at})"
    return Shader("cast", (("convert", f"out_put(into, {value});"),))


def cast(placed: jb.PlacedStep) -> Iterator[Dispatch]:
    x, out = place_of(placed, 0), placed.result
    if x.spec.dtype is out.spec.dtype:
        yield from copied(x, out, four(x.spec.units))
    else:
        yield from converted(x, out)


def write(placed: jb.PlacedStep) -> Iterator[Dispatch]:
    target, x, out = place_of(placed, 0), place_of(placed, 1), placed.result
    yield from kept(target, out)
    start = attrs_of(placed.step)["start"]
    block = out.spec.dtype.block
    first = [*start[:-1], start[-1] // block] if start else []
    at = sum(n * s for n, s in zip(first, out.spec.byte_strides, strict=True))
    if x.spec.dtype is out.spec.dtype:
        yield from copied(x, out, four(x.spec.units), at)
    else:
        yield from converted(x, out, at)


def kept(target: jb.Place, out: jb.Place) -> Iterator[Dispatch]:
    """An update whose result lies elsewhere than its target starts with the target's value."""
    if (target.buffer, target.offset, target.spec.byte_strides) != (out.buffer, out.offset, out.spec.byte_strides):
        yield from copied(target, out, four(target.spec.units))


def convertible(old: str, new: str) -> bool:
    """There is a conversion: between floats, f32 and f16 from i32, i32 from floats, f32 from blocks."""
    if old == new:
        return True
    if new == "i32":
        return old in FLOATS
    if old == "i32":
        return new in ("f32", "f16")
    return (new in FLOATS and old in FLOATS) or (new == "f32" and old in BLOCKS)


def _pair(step: jb.Step) -> jb.Reason | None:
    """Encoding into blocks needs division to the last bit, which WGSL does not promise; the others are P1."""
    x = step.operands[1 if step.op == "write" else 0]
    assert x is not None
    old, new = x.dtype.name, step.result.dtype.name
    if convertible(old, new):
        return None
    why = ": WGSL promises no division to the last bit" if step.result.dtype.is_block else ""
    return jb.Reason(f"{step.op}: no conversion from {old} to {new}{why}", "dtype")


ENTRIES = {
    "contiguous": Entry(jb.Kernel({"x": EVERY}, EVERY), contiguous),
    "cast": Entry(jb.Kernel({"x": EVERY}, EVERY, frozenset({"dtype"})), cast, _pair),
    "tile": Entry(jb.Kernel({"x": HOLDS}, HOLDS, frozenset({"repeats"})), contiguous),
    "concatenate": Entry(jb.Kernel({"a": EVERY, "b": EVERY}, EVERY, frozenset({"axis"})), concatenate),
    "write": Entry(jb.Kernel({"target": EVERY, "x": EVERY}, EVERY, frozenset({"start"})), write, _pair),
}
