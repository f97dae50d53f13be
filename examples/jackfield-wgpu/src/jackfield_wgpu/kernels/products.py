"""Products of matrices: by a stored weight, of two activations, and by experts chosen per token."""

from __future__ import annotations

from collections.abc import Iterator

import jackfield.backend as jb

from ..dispatch import LANES, Dispatch, Extents, four, strides
from ..shading import Number, Shader
from .entry import BLOCKS, F32, FLOATS, I32, Entry, place_of

COLUMNS = 8  # of a workgroup
ROWS = (1, 4, 8)  # that a workgroup may make together: a weight that is read once is used for each
LINEAR = """let outer = batch / p.inner_batch;
    let inner = batch % p.inner_batch;
    let x_batch = outer * p.x_strides.x + inner * p.x_strides.y;
    let w_batch = outer / p.outer_group * p.w_strides.x + inner / p.inner_group * p.w_strides.y;"""
EXPERTS = """look_for_fault(group, lane);
    let t = batch / p.slots;
    let e = batch % p.slots;
    let at = t * p.ids_strides.z + e * p.ids_strides.w;
    var expert = ids_low(at);
    if (expert >= p.extent) {
        expert = 0u;
        chunks = 0u;
    }
    let x_batch = t * p.x_strides.y + e % p.given * p.x_strides.z;
    let w_batch = expert * p.w_strides.y;"""


def _words(rows: int, place: str, dtype: str) -> tuple[tuple[str, str], ...]:
    """The text of a shader that makes so many rows together."""
    every = range(rows)
    if dtype in BLOCKS:
        adds = "\n".join(f"sum{r} += dot(x_four(row{r}, k), w);" for r in every)
        step = f"""let block = w_start + c * NBYTES;
        let scale = scale_of(block);
        for (var j = 0u; j < 8u; j++) {{
            let w = four_of(block, j, scale);
            let k = c * 32u + 4u * j;
            {adds}
        }}"""
    else:
        adds = "\n".join(f"sum{r} += x_at(row{r} + c * p.x_strides.w) * w;" for r in every)
        step = f"let w = w_at(w_start + c * p.w_strides.w);\n{adds}"
    begin = "\n".join(
        f"let row{r} = x_batch + min(row + {r}u, p.rows - 1u) * p.x_strides.z;\nvar sum{r} = 0.0;" for r in every
    )
    end = "\n".join(f"sums[{r * LANES}u + lane] = sum{r};" for r in every)
    return (
        ("rows", f"{rows}u"),
        ("room", f"{rows * LANES}u"),
        ("place", place),
        ("begin", begin),
        ("step", step),
        ("end", end),
    )


def _shader(rows: int, place: str, weight: jb.Spec, *, faulty: bool = False) -> Shader:
    dtype = weight.dtype.name
    uses = ((dtype, "four") if dtype in BLOCKS else ()) + (("expert_ids",) if faulty else ())
    return Shader("product", _words(rows, place, dtype), faulty=faulty, uses=uses)


def _tiles(rows: int, columns: int, inner: int, weight: jb.Spec) -> tuple[int, dict[str, Number]]:
    """How many rows a workgroup makes, and the numbers of the grid."""
    together = next((r for r in ROWS if r >= rows), ROWS[-1])
    numbers: dict[str, Number] = {
        "rows": rows,
        "columns": columns,
        "row_tiles": -(-rows // together),
        "column_tiles": -(-columns // COLUMNS),
        "chunks": inner // weight.dtype.block,
    }
    return together, numbers


def _groups(numbers: dict[str, Number], batches: int) -> int:
    tiles, columns = numbers["row_tiles"], numbers["column_tiles"]
    assert isinstance(tiles, int)
    assert isinstance(columns, int)
    return tiles * columns * batches


def _product(placed: jb.PlacedStep, x: jb.Place, w: jb.Place, w_shape: Extents, w_strides: Extents) -> Dispatch:
    """w_shape, w_strides: of the weight as [batch, batch, out, in]."""
    shape = four(x.spec.shape)
    together, numbers = _tiles(shape[2], w_shape[2], shape[3], w.spec)
    numbers |= {
        "x_strides": strides(x.spec),
        "w_strides": w_strides,
        "inner_batch": shape[1],
        "outer_group": shape[0] // w_shape[0],
        "inner_group": shape[1] // w_shape[1],
    }
    groups = _groups(numbers, shape[0] * shape[1])
    return Dispatch(_shader(together, LINEAR, w.spec), {"x": x, "w": w}, placed.result, numbers, groups)


def linear(placed: jb.PlacedStep) -> Iterator[Dispatch]:
    x, w = place_of(placed, 0), place_of(placed, 1)
    yield _product(placed, x, w, four(w.spec.shape), strides(w.spec))


def matmul(placed: jb.PlacedStep) -> Iterator[Dispatch]:
    a, b = place_of(placed, 0), place_of(placed, 1)
    (o, i, k, n), (so, si, sk, sn) = four(b.spec.shape), strides(b.spec)
    yield _product(placed, a, b, (o, i, n, k), (so, si, sn, sk))


def linear_experts(placed: jb.PlacedStep) -> Iterator[Dispatch]:
    x, w, ids = (place_of(placed, i) for i in range(3))
    tokens, slots = ids.spec.shape
    experts, columns, inner = w.spec.shape
    _, numbers = _tiles(1, columns, inner, w.spec)
    numbers |= {
        "x_strides": strides(x.spec),
        "w_strides": strides(w.spec),
        "ids_strides": strides(ids.spec),
        "slots": slots,
        "ids_shape": four(ids.spec.shape),
        "indices": tokens * slots,
        "extent": experts,
        "given": x.spec.shape[1],
    }
    shader = _shader(1, EXPERTS, w.spec, faulty=True)
    reads = {"x": x, "w": w, "ids": ids}
    yield Dispatch(shader, reads, placed.result, numbers, _groups(numbers, tokens * slots), operands=("ids",))


PRECISION = frozenset({"precision"})  # sums are f32 either way
WEIGHTS = FLOATS | BLOCKS
ENTRIES = {
    "linear": Entry(jb.Kernel({"x": FLOATS, "weight": WEIGHTS}, F32, PRECISION), linear),
    "matmul": Entry(jb.Kernel({"a": FLOATS, "b": FLOATS}, F32), matmul),
    "linear_experts": Entry(jb.Kernel({"x": FLOATS, "weight": WEIGHTS, "ids": I32}, F32, PRECISION), linear_experts),
}
