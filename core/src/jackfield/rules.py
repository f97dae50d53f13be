"""Rules that ops share: sets of dtypes, shapes, checks and work; and the indexing that several bodies have in common.

Rules look at a Call (Specs and attributes), bodies at arrays. All of them are pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .dtypes import DTYPES, DType, bf16, f16, f32, i8, i16, i32, i64
from .op import Array, Call, Check, DTypeRule, ShapeRule, Work, WorkRule, bad_index
from .spec import Shape, Spec

F = (f32, f16, bf16)
I = (i32, i8, i16, i64)
Q = tuple(dtype for dtype in DTYPES.values() if dtype.is_block)
STORED = (*F, *(dtype for dtype in Q if not dtype.is_activation))  # of weights and caches
ANY = (f32, *(dtype for dtype in DTYPES.values() if dtype is not f32))
ROWS = (i32, i64)
MAX_COUNT = 2**31 - 1


# shape and dtype rules


def same_as(name: str) -> ShapeRule:
    """The shape of this operand."""
    return lambda call: call[name].shape


def like(name: str) -> DTypeRule:
    """The dtype of this operand."""
    return lambda call: call[name].dtype


def always(dtype: DType) -> DTypeRule:
    return lambda _: dtype


def broadcast(*names: str) -> ShapeRule:
    """numpy's broadcasting of these operands."""

    def shape(call: Call) -> Shape:
        shapes = [call[name].shape for name in names]
        try:
            return np.broadcast_shapes(*shapes)
        except ValueError:
            texts = " and ".join(f"{n} {list(s)}" for n, s in zip(names, shapes, strict=True))
            raise call.shape_error(f"{texts} do not broadcast: extents must be equal or 1") from None

    return shape


def padded(shape: Shape, rank: int = 4) -> Shape:
    """Missing leading axes as extents of 1."""
    return (*[1] * (rank - len(shape)), *shape)


# checks


def all_of(*checks: Check) -> Check:
    def check(call: Call) -> None:
        for one in checks:
            one(call)

    return check


def rank_of(call: Call, name: str, low: int, high: int = 4) -> None:
    spec = call[name]
    if not low <= spec.rank <= high:
        many = f"{low}" if low == high else f"{low} to {high}"
        raise call.shape_error(f"{name} is {list(spec.shape)}, must have {many} axes")


def not_negative(attr: str) -> Check:
    def check(call: Call) -> None:
        if not call.attr(attr) >= 0:
            raise call.attr_error(f"{attr} is {call.attr(attr)}, must be at least 0")

    return check


def one_of(call: Call, attr: str, choices: Sequence[str]) -> None:
    if call.attr(attr) not in choices:
        raise call.attr_error(f"{attr} is {call.attr(attr)!r}, must be one of {', '.join(choices)}")


def precision(call: Call) -> None:
    one_of(call, "precision", ("default", "f32"))


def has_last_axis(name: str) -> Check:
    return lambda call: rank_of(call, name, 1)


def axis_of(call: Call, rank: int) -> int:
    """The attribute `axis` counted from the front."""
    axis = int(call.attr("axis"))
    if not -rank <= axis < rank:
        raise call.attr_error(f"axis is {axis}, must be within -{rank} to {rank - 1}")
    return axis % rank


def countable(call: Call, what: str, count: int) -> None:
    """There is an i32 for the index of each of these."""
    if count > MAX_COUNT:
        raise call.shape_error(f"{count} {what}, at most {MAX_COUNT}: they are numbered in i32")


def multiple(call: Call, big: str, axis: int, small: str, small_axis: int) -> None:
    """A batch extent of `big` must be a multiple of that of `small`; a missing axis counts as 1."""
    B, b = _extent(call[big].shape, axis), _extent(call[small].shape, small_axis)
    if b != B and (b == 0 or B % b):
        raise call.shape_error(
            f"{big} has {B} on axis {axis} and {small} {b} on axis {small_axis}: "
            "the first must be a multiple of the second"
        )


def _extent(shape: Shape, axis: int) -> int:
    return shape[axis] if -axis <= len(shape) else 1


def extents(call: Call, **axes: str) -> dict[str, int]:
    """The extent of each letter, of operands whose axes are written as words: `x="S T H D", state="S HDD"`.

    A letter is one extent wherever it stands; several are the product of letters met before; a number is itself.
    Absent operands are passed over.
    """
    found: dict[str, int] = {}
    for name, text in axes.items():
        spec, words = call.get(name), text.split()
        if spec is None:
            continue
        if spec.rank == len(words):
            found = {w: n for w, n in zip(words, spec.shape, strict=True) if len(w) == 1 and w.isalpha()} | found
        wanted = [_meaning(word, found) for word in words]
        if list(spec.shape) != wanted:
            raise call.shape_error(f"{name} is {list(spec.shape)}, must be [{', '.join(map(str, wanted))}]")
    return found


def _meaning(word: str, found: Mapping[str, int]) -> int | str:
    """The extent that a word stands for, or the word itself while a letter of it is not known."""
    if word.isdigit():
        return int(word)
    return math.prod(found[letter] for letter in word) if all(letter in found for letter in word) else word


# work


def per_element(multiply_adds: int) -> WorkRule:
    """So many multiply-adds an element of the result; operands are read once, the result written once."""
    return lambda call, result: Work(multiply_adds * result.size, touched(call, result))


def per_operand_element(name: str, multiply_adds: int) -> WorkRule:
    """So many multiply-adds an element of this operand."""
    return lambda call, result: Work(multiply_adds * call[name].size, touched(call, result))


def nothing(_: Call, __: Spec) -> Work:
    """A view: no arithmetic, no bytes."""
    return Work(0, 0)


def touched(call: Call, result: Spec) -> int:
    """Bytes of all operands in their stored form, and of the result."""
    return sum(spec.nbytes for _, spec in call.present()) + result.nbytes


# what promises share


def row_named(at: Sequence[int], operand: str) -> str:
    """The row at these indices, for a text."""
    return f"row {list(map(int, at))} of {operand}" if len(at) else f"the row of {operand}"


def uneven_row(rows: Array, operand: str, least: float) -> str | None:
    """The first row (last axis) that holds no shares, in words: none is below 0, together they are `least` to 1.

    Half a thousandth is rounding, and NaN tells nothing.
    """
    low, total = rows.min(-1, initial=0), rows.sum(-1)
    wrong = (low < 0) | (total < least - 5e-4) | (total > 1 + 5e-4)
    if not wrong.any():
        return None
    at = tuple(np.argwhere(wrong)[0])
    found = f"holds {low[at]:g}" if low[at] < 0 else f"sums to {total[at]:g}"
    return f"{row_named(at, operand)} {found}"


# what bodies share


def grouped(array: Array, batch: Shape) -> Array:
    """Stretch the leading axes to `batch`: index i of an extent B reads i // (B // b). Two last axes stay."""
    lead = padded(array.shape[:-2], len(batch))
    array = array.reshape(*lead, *array.shape[-2:])
    for axis, (b, B) in enumerate(zip(lead, batch, strict=True)):
        if b not in (1, B):
            array = np.repeat(array, B // b, axis)
    return array


def newest_first(states: Iterable[Array], count: int) -> Array:
    """(count, ...): the last states of a recurrence, the newest first; where there are fewer, the oldest repeats."""
    found = [*states][::-1][:count]
    return np.stack(found + [found[-1]] * (count - len(found)))


def four(array: Array) -> Array:
    """Missing leading axes as extents of 1."""
    return array.reshape(padded(array.shape))


def known(operand: str, indices: Array, extent: int, skip: Callable[[Array], Any] | None = None) -> Array:
    """Which indices lie in 0 .. extent - 1: a bool array. The first other one becomes a Fault, unless `skip` holds."""
    inside = (indices >= 0) & (indices < extent)
    wrong = ~inside if skip is None else ~inside & ~skip(indices)
    if wrong.any():
        bad_index(operand, int(indices.reshape(-1)[int(wrong.reshape(-1).argmax())]))
    return np.asarray(inside)


def slopes(heads: int, max_bias: float) -> Array:
    """f64 (heads,): how much of the mask each head sees; 1 for max_bias <= 0.

    Source: Press et al. 2021, "Train short, test long", section 3, and its rule for counts that are no power of two.
    """
    if max_bias <= 0 or heads == 0:
        return np.ones(heads)
    power = 2 ** int(math.log2(heads))
    h = np.arange(heads)
    first, second = 2.0 ** (-max_bias / power), 2.0 ** (-max_bias / (2 * power))
    return np.where(h < power, first ** (h + 1), second ** (2.0 * (h - power) + 1))
