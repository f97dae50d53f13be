"""Suite `block-dtypes`: every block dtype decoded, multiplied by and encoded, with random and with edge blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from jackfield.backend import Attr, Reason
from jackfield.conformance.cases import Example, examples, made, raw_blocks, valid
from jackfield.dtypes import DTYPES, DType, f32, i32
from jackfield.dtypes.arrays import element
from jackfield.op import OPS, Array, Draw, values
from jackfield.spec import Spec, View
from jackfield_conformance.direct import refused, step_of
from jackfield_conformance.trials import Refused, Subject, Trial, Verdict
from jackfield_conformance.verdicts import judged

from .claims import RUNNING
from .packed import inputs_for, is_weight

__all__ = ["trials"]

# (rows of x, rows of weight, blocks of a row): one, odd, and around the tiles and vectors of most kernels
PRODUCTS = ((1, 1, 1), (1, 5, 2), (1, 33, 3), (3, 7, 1), (7, 9, 2), (33, 31, 2), (2, 64, 5))
SCALES = (0.0, 1e-30, 1e-7, 6e-5, 1.0, 100.0)
LARGE = float(np.finfo(np.float32).max) / (1 << 16)  # the largest of products, whose sums then stay finite in f32
OPTIONS = {"take_rows": "x", "cast": "x", "linear": "weight", "linear_experts": "weight"}


def trials(seed: int) -> Iterator[Trial]:
    for dtype in DTYPES.values():
        if not dtype.is_block:
            continue
        for edge in ("random", "constant", "zero", "small", "large"):
            for op in ("take_rows", "cast"):
                yield Trial(f"block-dtypes/decode/{dtype}/{op}-{edge}", partial(decodes, dtype.name, op, edge, seed))
            if is_weight(dtype):
                yield Trial(f"block-dtypes/linear/{dtype}/{edge}", partial(multiplies, dtype.name, edge, seed))
        for m, n, blocks in PRODUCTS if is_weight(dtype) else ():
            name = f"block-dtypes/linear/{dtype}/{m}x{n}x{blocks * dtype.block}"
            yield Trial(name, partial(multiplies_shape, dtype.name, (m, n, blocks), seed))
        for scale in SCALES:
            yield Trial(f"block-dtypes/encode/{dtype}/scale-{scale:g}", partial(encodes, dtype.name, scale, seed))
        yield Trial(f"block-dtypes/encode/{dtype}/put_rows", partial(puts, dtype.name, seed))
        yield Trial(f"block-dtypes/encode/{dtype}/not-finite", partial(bad_blocks, dtype.name, seed))
    for name in RUNNING:
        yield Trial(f"block-dtypes/reserved/{name}", partial(reserves_what_it_may, name, seed))


def blocks_of(
    dtype: DType, edge: str, count: tuple[int, int], rng: np.random.Generator, largest: float = np.inf
) -> Array:
    """Blocks (rows, blocks a row) that decode to finite numbers, none larger than this. edge: what they hold."""
    total = count[0] * count[1]
    if edge == "random":
        return raw_blocks(dtype, count, rng, largest=64.0)
    if edge == "zero":
        raw = np.zeros((total, dtype.block_nbytes), np.uint8)
    elif edge == "constant":
        raw = np.repeat(np.arange(256, dtype=np.uint8)[:, None], dtype.block_nbytes, 1)
    else:
        raw = rng.integers(0, 256, (256 * total, dtype.block_nbytes), np.uint8)
    with np.errstate(all="ignore"):
        size = np.abs(dtype.decode(raw)).max(-1)
    usable = np.flatnonzero(valid(dtype, raw) & (size <= largest))
    order = usable[np.argsort(size[usable], kind="stable")]
    order = order if edge in ("constant", "zero") else order[:total] if edge == "small" else order[-total:]
    return np.ascontiguousarray(np.resize(raw[order], (total, dtype.block_nbytes))).view(element(dtype)).reshape(count)


def with_blocks(
    op: str, blocks: Array, dtype: DType, others: dict[str, Array], attrs: Mapping[str, Attr] | None = None
) -> Example:
    """An example of an op whose coded operand holds these very blocks."""
    name = OPTIONS[op]
    spec = Spec(dtype, (*blocks.shape[:-1], blocks.shape[-1] * dtype.block))
    specs = {name: spec} | {n: Spec.of(a) for n, a in others.items()}
    draws: dict[str, Draw] = {name: Draw(spec.shape)} | {n: values(a) for n, a in others.items()}
    views = {n: View(s, 0) for n, s in specs.items()}
    order = [n for n in OPS[op].operands if n in specs]
    ordered = {n: views[n] for n in order}
    given = {name: blocks, **others}
    return Example(OPS[op], -1, dtype, "dense", draws, ordered, specs, OPS[op].complete(attrs or {}), given=given)


def _verdict(example: Example, subject: Subject) -> Verdict:
    return judged(example, subject.backend, subject.device)


def decodes(dtype: str, op: str, edge: str, seed: int, subject: Subject) -> Verdict:
    """The very numbers that the format defines."""
    blocks = blocks_of(DTYPES[dtype], edge, (37, 3), np.random.default_rng(seed))
    if op == "cast":
        return _verdict(with_blocks("cast", blocks, DTYPES[dtype], {}, {"dtype": "f32"}), subject)
    rows = np.array([36, 0, 17, 17, 1], np.int32)
    return _verdict(with_blocks("take_rows", blocks, DTYPES[dtype], {"rows": rows}), subject)


def multiplies(dtype: str, edge: str, seed: int, subject: Subject) -> Verdict:
    rng = np.random.default_rng(seed)
    blocks = blocks_of(DTYPES[dtype], edge, (9, 3), rng, LARGE)
    return _product(blocks, inputs_for(blocks, 3, rng), DTYPES[dtype], subject)


def multiplies_shape(dtype: str, shape: tuple[int, int, int], seed: int, subject: Subject) -> Verdict:
    m, n, count = shape
    rng = np.random.default_rng((seed, *shape))
    blocks = raw_blocks(DTYPES[dtype], (n, count), rng)
    return _product(blocks, inputs_for(blocks, m, rng), DTYPES[dtype], subject)


def _product(blocks: Array, x: Array, dtype: DType, subject: Subject) -> Verdict:
    """As a plain operand and as a constant, which a device may pack."""
    plain = with_blocks("linear", blocks, dtype, {"x": x})
    held = plain.views["weight"].spec.with_role("constant")
    constant = replace(plain, layout="constant", views={**plain.views, "weight": View(held, 0)})
    found = [_verdict(example, subject) for example in (plain, constant)]
    worst = max((v.max_ulp for v in found if v.max_ulp is not None), default=None)
    return Verdict(tuple(text for verdict in found for text in verdict.mistakes), worst)


def encodes(dtype: str, scale: float, seed: int, subject: Subject) -> Verdict:
    """The core's bytes: of random numbers, of ties, of equal numbers and of zeros of either sign."""
    target = DTYPES[dtype]
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (6, 2 * target.block))
    x[1] = np.round(x[1] * 8) / 8  # ties
    x[2], x[3], x[4, ::2] = 0.5, -0.0, 0.0
    x[5] = np.linspace(-1, 1, 2 * target.block)
    if not scale:
        x = np.abs(x)  # the least of zeros of both signs may be either
    example = made(OPS["cast"], {"x": (x * scale).astype(np.float32)}, dtype=dtype)
    return _verdict(example, subject)


def puts(dtype: str, seed: int, subject: Subject) -> Verdict:
    """Rows written into a table of blocks; the others stay."""
    target = DTYPES[dtype]
    rng = np.random.default_rng(seed)
    blocks = raw_blocks(target, (5, 2), rng)
    spec = Spec(target, (5, 2 * target.block))
    arrays = {
        "x": rng.uniform(-1, 1, (3, 2 * target.block)).astype(np.float32),
        "rows": np.array([4, -1, 0], np.int32),
    }
    names = OPS["put_rows"].operands
    given = dict(zip(names, (blocks, arrays["x"], arrays["rows"]), strict=False))
    specs = dict(zip(names, (spec, Spec(f32, (3, 2 * target.block)), Spec(i32, (3,))), strict=False))
    draws = {n: Draw(s.shape) for n, s in specs.items()}
    views = {n: View(s, 0) for n, s in specs.items()}
    op = OPS["put_rows"]
    return _verdict(Example(op, -1, target, "dense", draws, views, specs, op.complete({}), given=given), subject)


def bad_blocks(dtype: str, seed: int, subject: Subject) -> list[str]:
    """A block that can't hold its numbers is a KernelError and becomes zeros; its neighbours are coded."""
    target = DTYPES[dtype]
    x = np.random.default_rng(seed).uniform(-1, 1, (3, 2 * target.block)).astype(np.float32)
    mistakes = []
    for value in (np.nan, np.inf, -np.inf):
        wrong = x.copy()
        wrong[1, target.block // 2] = value
        example = made(OPS["cast"], {"x": wrong}, dtype=dtype)
        mistakes += [f"cast of {value} to {dtype}: {text}" for text in _verdict(example, subject).mistakes]
    return mistakes


def reserves_what_it_may(name: str, seed: int, subject: Subject) -> list[str]:
    """Room for a result: never less than its bytes, and more only as row padding of a block dtype."""
    reason: Reason | str | None = Reason(f"{name} has no dense case", "other")
    tried = False
    for example in examples(OPS[name], seed):
        step = step_of(example)
        if example.layout != "dense" or (reason := refused(step, subject.backend, subject.device)) is not None:
            continue
        tried = True
        reserved, needed = subject.device.result_nbytes(step), step.result.nbytes
        if reserved < needed or (reserved > needed and not step.result.dtype.is_block):
            return [f"{step} reserves {reserved} bytes, the result has {needed}"]
    if not tried:
        raise Refused(reason)
    return []
