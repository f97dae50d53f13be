"""Rows by number: from a table, and into a cache."""

from __future__ import annotations

from collections.abc import Iterator

import jackfield.backend as jb

from ..dispatch import Dispatch, Extents, each, four, strides
from ..shading import Number, Shader
from .copies import kept
from .entry import BLOCKS, F32, FLOATS, I32, ROWS, Entry, place_of


def _rows(spec: jb.Spec) -> tuple[Extents, Extents]:
    """Shape and strides of row numbers with the axes of a table: two of batches, the numbers, 1."""
    shape, found = four(spec.shape), strides(spec)
    return (*shape[1:], 1), (*found[1:], 0)


def take_rows(placed: jb.PlacedStep) -> Iterator[Dispatch]:
    x, rows, out = place_of(placed, 0), place_of(placed, 1), placed.result
    coded = x.spec.dtype.name in BLOCKS
    rows_shape, rows_strides = _rows(rows.spec)
    take = "out_put(i, x_at(start + place.w * p.x_strides.w));"
    if coded:
        take = "out_put(i, number_of(start, place.w));"
    elif x.spec.dtype is out.spec.dtype:
        take = "out_put_bits(i, x_bits(start + place.w * p.x_strides.w));"
    numbers: dict[str, Number] = {
        "size": out.spec.size,
        "shape": four(out.spec.shape),
        "rows_shape": rows_shape,
        "rows_strides": rows_strides,
        "indices": rows.spec.size,
        "x_strides": strides(x.spec),
        "extent": x.spec.shape[-2],
    }
    uses = (x.spec.dtype.name, "block") if coded else ()
    shader = Shader("take_rows", (("take", take),), faulty=True, uses=uses)
    reads = {"w" if coded else "x": x, "rows": rows}
    yield Dispatch(shader, reads, out, numbers, each(out.spec.size), operands=("rows",))


def put_rows(placed: jb.PlacedStep) -> Iterator[Dispatch]:
    target, x, rows = (place_of(placed, i) for i in range(3))
    out = placed.result
    yield from kept(target, out)
    shape = four(x.spec.shape)
    groups = shape[0] * shape[1] * shape[2]
    if not groups:
        return
    rows_shape, rows_strides = _rows(rows.spec)
    same = x.spec.dtype is out.spec.dtype
    put = "out_put_bits(to, x_bits(from_x));" if same else "out_put(to, x_at(from_x));"
    numbers: dict[str, Number] = {
        "shape": (*shape[:3], 1),
        "rows_shape": rows_shape,
        "rows_strides": rows_strides,
        "indices": rows.spec.size,
        "x_strides": strides(x.spec),
        "out_strides": strides(out.spec),
        "extent": out.spec.shape[-2],
        "count": shape[3],
    }
    shader = Shader("put_rows", (("put", put),), faulty=True)
    yield Dispatch(shader, {"x": x, "rows": rows}, out, numbers, groups, operands=("rows",))


ENTRIES = {
    "take_rows": Entry(jb.Kernel({"x": FLOATS | I32 | BLOCKS, "rows": ROWS}, F32 | I32), take_rows),
    "put_rows": Entry(jb.Kernel({"target": FLOATS, "x": frozenset({"f32", "f16"}), "rows": ROWS}, FLOATS), put_rows),
}
