"""Suite `packed`: a constant in the device's own layout is as long as told, comes back whole, and computes the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from jackfield.backend import Packing, Reason, Spec, Step, Usage
from jackfield.conformance.cases import Example, raw_blocks
from jackfield.conformance.check import compare, expected
from jackfield.dtypes import DTYPES, DType, f32
from jackfield.dtypes.arrays import as_bytes, convert, decoded
from jackfield.graph import ArraySource, constant
from jackfield.graph import input as graph_input
from jackfield.op import OPS, Array, Draw
from jackfield.spec import View
from jackfield_conformance.direct import refused
from jackfield_conformance.plans import strict_session
from jackfield_conformance.trials import Refused, Subject, Trial, Verdict
from jackfield_conformance.verdicts import judged

__all__ = ["trials"]

EXTENTS = ((1, 1), (2, 3), (5, 2), (7, 1), (8, 2), (9, 3), (31, 1), (32, 2), (33, 5), (64, 4), (65, 1))  # rows, blocks
MATRICES = ((3, 33, 256), (2, 32, 512))  # of several
EXTREMES = np.array(
    [0x00, 0x0C, 0x70, 0x7B, 0x7C, 0x7E, 0x7F, 0xC0, 0xFC, 0xFF], np.uint8
)  # round the bounds of scales
GUARD = 0xA5


def trials(seed: int) -> Iterator[Trial]:
    for dtype in DTYPES.values():
        if not is_weight(dtype):
            continue
        for rows, blocks in EXTENTS:
            shape = rows, blocks * max(dtype.block, 32)
            at = f"{dtype}/{rows}x{shape[1]}"
            yield Trial(f"packed/identity/{at}", partial(there_and_back, dtype.name, shape, seed))
            yield Trial(f"packed/product/{at}", partial(same_product, dtype.name, shape, seed))
        for matrices in MATRICES:
            at = "x".join(map(str, matrices))
            yield Trial(f"packed/identity/{dtype}/{at}", partial(there_and_back, dtype.name, matrices, seed))
        if dtype.is_block:
            yield Trial(f"packed/damage/{dtype}", partial(damage_is_told, dtype.name, seed))
        yield Trial(f"packed/product/{dtype}/batched", partial(same_product, dtype.name, (3, 33, 256), seed))
        yield Trial(f"packed/slice/{dtype}", partial(row_slices, dtype.name, seed))


def is_weight(dtype: DType) -> bool:
    """True: linear takes it as weight. Types for rounded activations are none."""
    return dtype in OPS["linear"].declared.accepts["weight"]


def weights(dtype: DType, shape: tuple[int, ...], seed: int) -> Array:
    rng = np.random.default_rng((seed, *shape))
    if dtype.is_block:
        return raw_blocks(dtype, Spec(dtype, shape).units, rng)
    return convert(rng.uniform(-1, 1, shape).astype(np.float32), dtype)[0]


def product_of(dtype: DType, shape: tuple[int, ...], seed: int) -> Example:
    """linear by a constant weight of this shape."""
    weight = weights(dtype, shape, seed)
    x = inputs_for(weight, 3, np.random.default_rng((seed, 1)))
    specs = {"x": Spec.of(x), "weight": Spec(dtype, shape, role="constant")}
    draws = {n: Draw(s.shape) for n, s in specs.items()}
    views = {n: View(s, 0) for n, s in specs.items()}
    given = {"x": x, "weight": weight}
    op = OPS["linear"]
    return Example(op, -1, dtype, "constant", draws, views, specs, op.complete({}), given=given)


def inputs_for(weight: Array, rows: int, rng: np.random.Generator) -> Array:
    """Rows of x for linear; the first has the signs of the weight's first row.

    So the result holds a large number: of sums that all cancel out, an error relative to the result says nothing.
    """
    plain = decoded(weight).astype(np.float32)
    x = rng.uniform(-1, 1, (*plain.shape[:-2], rows, plain.shape[-1]))
    x[..., 0, :] = np.abs(x[..., 0, :]) * np.where(plain[..., 0, :] < 0, -1, 1)
    return x.astype(np.float32)


def packing_of(example: Example, subject: Subject) -> tuple[Packing, Step]:
    """Raises: Refused where the device takes the constant plain, or not at all."""
    step = Step("linear", example.specs, example.result, example.attrs)
    reason = refused(step, subject.backend, subject.device)
    if reason is not None:
        raise Refused(reason)
    packing = subject.backend.pack(example.views["weight"].spec, [step], subject.device.target)
    if packing is None:
        raise Refused(Reason(f"a {example.dtype} weight is not packed", "layout"))
    return packing, step


def there_and_back(dtype: str, shape: tuple[int, ...], seed: int, subject: Subject) -> list[str]:
    """`pack` fills just the bytes it told, twice the same, part by part as well; `unpack` gives the plain ones back."""
    example = product_of(DTYPES[dtype], shape, seed)
    packing, _ = packing_of(example, subject)
    found = _layout_is_listed(packing, subject)
    plain = np.ascontiguousarray(as_bytes(example.given["weight"]).reshape(-1))
    first, second = _packed(packing, plain, 0x00), _packed(packing, plain, 0xFF)
    for packed in (first, second):
        if (packed[:64] != GUARD).any() or (packed[64 + packing.nbytes :] != GUARD).any():
            found.append(f"pack writes outside the {packing.nbytes} bytes it told")
    inside = first[64 : 64 + packing.nbytes]
    if (inside != second[64 : 64 + packing.nbytes]).any():
        found.append("pack leaves bytes unwritten, or gives other bytes the second time")
    if packing.part is not None:
        found += _packs_in_parts(packing, packing.part, plain, inside)
    if packing.looks:
        found += _fills(packing, plain, inside, subject)
    if packing.unpack is not None:
        back = np.full(plain.nbytes + 128, GUARD, np.uint8)
        packing.unpack(inside.data, back[64 : 64 + plain.nbytes].data)
        if (back[64 : 64 + plain.nbytes] != plain).any():
            found.append("unpack does not give the plain bytes back")
        if (back[:64] != GUARD).any() or (back[64 + plain.nbytes :] != GUARD).any():
            found.append("unpack writes outside the plain bytes")
    return found


def _packs_in_parts(packing: Packing, part: tuple[int, int], plain: Array, whole: Array) -> list[str]:
    """The parts one by one, the last first, and two at a time."""
    unit, size = part
    count = -(-plain.nbytes // unit)
    if count * size != packing.nbytes:
        return [f"{count} parts of {size} bytes each are not the {packing.nbytes} of the packed form"]
    found = []
    for step in (1, 2):
        out = np.full(packing.nbytes, GUARD, np.uint8)
        for first in reversed(range(0, count, step)):
            some = slice(first * size, (first + step) * size)
            packing.pack(plain[first * unit : (first + step) * unit].data, out[some].data)
        if (out != whole).any():
            found.append(f"pack gives other bytes where it is given {step} of {count} parts at a time")
    return found


def _fills(packing: Packing, plain: Array, whole: Array, subject: Subject) -> list[str]:
    """`Device.fill` makes in memory of the device what `pack` makes, and copies what comes without a packing."""
    device, at = subject.device, -(-packing.nbytes // 64) * 64
    buffer = device.alloc(at + plain.nbytes, Usage.CONSTANT)
    try:
        places = [device.host_bytes(buffer, *place) for place in ((0, packing.nbytes), (at, plain.nbytes))]
        if places[0] is None or places[1] is None:
            return []
        device.fill([(packing, plain.data, places[0].cast("B")), (None, plain.data, places[1].cast("B"))])
        if bytes(places[0]) != whole.tobytes():
            return ["fill does not make what pack makes"]
        return [] if bytes(places[1]) == plain.tobytes() else ["fill does not copy what has no packing"]
    finally:
        device.free(buffer)


def damage_is_told(dtype: str, seed: int, subject: Subject) -> list[str]:
    """Where the packing looks for scales that are no finite numbers, it finds the block that the core would find."""
    target = DTYPES[dtype]
    shape = 37, 3 * max(target.block, 32)
    packing, _ = packing_of(product_of(target, shape, seed), subject)
    if not packing.looks:
        raise Refused(Reason("the core looks for damage", "other"))
    rng = np.random.default_rng(seed)
    for number in range(40):
        blocks = np.zeros((Spec(target, shape).nbytes // target.block_nbytes, target.block_nbytes), np.uint8)
        odd = rng.integers(0, len(blocks), number % 4)
        blocks[odd] = rng.choice(EXTREMES, (len(odd), target.block_nbytes))
        told = packing.pack(blocks.reshape(-1).data, np.empty(packing.nbytes, np.uint8).data)
        want = target.first_bad_block(blocks)
        if told != want:
            return [f"pack tells of a bad scale in block {told}, must be {want}"]
        rooms = [np.empty(packing.nbytes, np.uint8) for _ in range(2)]
        good = np.zeros_like(blocks)
        pieces = [(packing, raw.reshape(-1).data, room.data) for raw, room in zip((good, blocks), rooms, strict=True)]
        filled = subject.device.fill(pieces)
        if filled != (None if want is None else (1, want)):
            return [f"fill tells of a bad scale at {filled}, must be block {want} of piece 1"]
    return []


def _packed(packing: Packing, plain: Array, before: int) -> Array:
    """The packed bytes between two guards of 64."""
    room = np.full(packing.nbytes + 128, GUARD, np.uint8)
    room[64 : 64 + packing.nbytes] = before
    packing.pack(plain.data, room[64 : 64 + packing.nbytes].data)
    return room


def _layout_is_listed(packing: Packing, subject: Subject) -> list[str]:
    if not packing.name:
        return ["a packing without a name: the empty name means plain bytes"]
    layouts = subject.backend.kernels()["linear"].layouts.get("weight", ())
    return [] if packing.name in layouts else [f"linear is to read {packing.name}, which its kernel does not list"]


def same_product(dtype: str, shape: tuple[int, ...], seed: int, subject: Subject) -> Verdict:
    """linear by the packed constant, between guards."""
    example = product_of(DTYPES[dtype], shape, seed)
    packing_of(example, subject)
    return judged(example, subject.backend, subject.device)


def row_slices(dtype: str, seed: int, subject: Subject) -> list[str]:
    """The whole constant, rows of it as another weight, and single rows, in one plan: each is right."""
    target = DTYPES[dtype]
    shape = 33, 2 * max(target.block, 32)
    stored = weights(target, shape, seed)
    x = inputs_for(stored, 3, np.random.default_rng(seed))
    with strict_session(subject) as session:
        tensor = constant(ArraySource(as_bytes(stored), target, shape))
        given = graph_input("x", x.shape, f32)
        plan = session.compile((OPS["linear"](given, tensor), OPS["linear"](given, tensor[7:20])))
        results = plan(x=x)
    found = []
    for what, got, rows in zip(("the whole", "rows 7 to 20"), results, (slice(None), slice(7, 20)), strict=True):
        plain = product_of(target, (len(stored[rows]), shape[1]), seed)
        example = replace(plain, given={"x": x, "weight": np.ascontiguousarray(stored[rows])})
        text = compare(example, got, expected(example)[0])
        found += [f"{what} of a {dtype} constant: {text}"] if text else []
    return found
