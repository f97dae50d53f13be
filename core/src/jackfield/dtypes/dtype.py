"""What a dtype is: a name, a block of the last axis, its bytes, and the way there and back.

A plain dtype is a block of one element. A block dtype cuts the last axis into blocks of `block` elements, each stored
in `block_nbytes` bytes; the blocks of a row lie back to back without padding. All bytes are little-endian.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jackfield.errors import AttributeValueError, DTypeError, ShapeError

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]
Bad = NDArray[np.bool_]

# Blocks are coded a piece at a time, so that the working set stays in a core's cache and temporaries stay small.
_PIECE = 1 << 16  # elements
_LOOK = 1 << 14  # blocks whose scales are looked at together


@dataclass(frozen=True)
class Codec:
    """How blocks are coded.

    decode: blocks u8 (n, block_nbytes) into out f32 (n, block).
    encode: finite x f32 (n, block) into blocks u8 (n, block_nbytes).
    bad: which blocks u8 (n, block_nbytes) have a scale that is no finite number: bool (n,).
    weighted: as encode, with the importance of the elements f32 (n, block); None where the encoder weighs nothing.
    """

    decode: Callable[[U8, F32], None]
    encode: Callable[[F32, U8], None]
    bad: Callable[[U8], Bad]
    weighted: Callable[[F32, U8, F32], None] | None = None


def f16_at(*offsets: int) -> Callable[[U8], Bad]:
    """The check of a codec whose scales are f16 at these byte offsets of a block."""

    def bad(blocks: U8) -> Bad:
        found = np.zeros(len(blocks), bool)
        for at in offsets:
            upper = blocks[:, at + 1].copy()  # side by side, which is faster to look at
            upper &= 0x7C
            found |= upper == 0x7C  # all exponent bits of an f16 set: inf or NaN
        return found

    return bad


@dataclass(frozen=True, eq=False, repr=False)
class DType:
    """The type of a tensor's elements. One object a name: `is`, `==` and hashing agree, also after pickling.

    name: the public name, GGUF's for block types.
    block, block_nbytes: elements and bytes of a block; 1 and the size of an element for plain dtypes.
    numpy: the array dtype of the same bytes; None for block types.
    gguf_id: the number of the type in GGUF files; None where the format has none.
    is_activation: made for activations beside a weight in integer products; no type for stored weights or caches.
    """

    name: str
    block: int
    block_nbytes: int
    numpy: np.dtype[Any] | None
    gguf_id: int | None
    is_float: bool = False
    is_integer: bool = False
    is_activation: bool = False
    codec: Codec | None = None

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Callable[[str], DType], tuple[str]]:
        return _restore, (self.name,)

    @property
    def is_block(self) -> bool:
        return self.codec is not None

    @property
    def heeds_importance(self) -> bool:
        """Whether `encode` makes use of an importance."""
        return self.codec is not None and self.codec.weighted is not None

    def row_nbytes(self, elements: int) -> int:
        """Bytes of a row of so many elements. Raises: ShapeError if they don't fill whole blocks."""
        if elements % self.block:
            raise ShapeError(
                f"[{self.name}] the last axis has {elements} elements: it must be a multiple of {self.block}"
            )
        return elements // self.block * self.block_nbytes

    def nbytes(self, shape: Sequence[int]) -> int:
        """Bytes of a dense tensor of this shape (in elements). Raises: ShapeError, also for a block dtype of rank 0."""
        if not shape:
            return self.row_nbytes(1)
        return math.prod(shape[:-1]) * self.row_nbytes(shape[-1])

    def encode(self, x: ArrayLike, importance: ArrayLike | None = None) -> U8:
        """The bytes of real numbers x (..., K): u8 (..., K / block * block_nbytes).

        Block dtypes code f32 (others are converted to it). Plain floats round to nearest even and keep inf and NaN;
        plain integers take only whole numbers in range; bool is x != 0.
        importance: (K,), how much an error in each column counts, finite and >= 0; only ratios matter. Dtypes that fit
        their scales heed it (`heeds_importance`), others code as without.
        Raises: ShapeError, also for rows of unequal length; DTypeError for what is no real numbers;
        AttributeValueError (a ValueError) for what can't be coded.
        """
        array = _real(f"[encode {self.name}] x", x)
        if array.ndim == 0:
            raise ShapeError(f"[encode {self.name}] x has rank 0: it must have a last axis")
        row = self.row_nbytes(array.shape[-1])
        shape = (*array.shape[:-1], row)
        weights = None if importance is None else _importance(self.name, array.shape[-1], importance)
        if self.codec is not None:
            return _encode_blocks(self, self.codec, array, weights).reshape(shape)
        return _plain_bytes(self.name, np.dtype(self.numpy), array).reshape(shape)

    def decode(self, raw: ArrayLike) -> F32:
        """The values of raw u8 (..., row bytes): f32 (..., K). Raises: ShapeError, DTypeError."""
        array = np.asarray(raw)
        if array.dtype != np.uint8:
            raise DTypeError(f"[decode {self.name}] raw is {array.dtype}: it must be u8")
        if array.ndim == 0 or array.shape[-1] % self.block_nbytes:
            raise ShapeError(
                f"[decode {self.name}] raw is {list(array.shape)}: rows must be whole blocks "
                f"of {self.block_nbytes} bytes"
            )
        blocks = np.ascontiguousarray(array).reshape(-1, self.block_nbytes)
        shape = (*array.shape[:-1], array.shape[-1] // self.block_nbytes * self.block)
        if self.codec is not None:
            return _decode_blocks(self, self.codec, blocks).reshape(shape)
        return _plain_values(np.dtype(self.numpy), blocks).reshape(shape)

    def first_bad_block(self, raw: U8) -> int | None:
        """Number of the first block with a scale that is not finite, counted over raw u8 (..., row bytes); or None."""
        if self.codec is None:
            return None
        blocks = raw.reshape(-1, self.block_nbytes)
        for start in range(0, len(blocks), _LOOK):
            bad = self.codec.bad(blocks[start : start + _LOOK])
            if bad.any():
                return start + int(bad.argmax())
        return None


# Filled by the table of dtypes; pickles hold the name only.
REGISTERED: dict[str, DType] = {}


def _restore(name: str) -> DType:
    return REGISTERED[name]


def _real(what: str, given: ArrayLike) -> NDArray[Any]:
    try:
        array = np.asarray(given)
    except (ValueError, OverflowError) as e:  # numpy's own words speak of sequences and inhomogeneous shapes
        raise ShapeError(f"{what} is no array: {e}; it must be rows of equal length") from e
    if array.dtype.kind in "cOSUMm" or array.dtype.type is np.void:  # bf16 and other numbers are of kind V too
        raise DTypeError(f"{what} is {array.dtype}: it must be real numbers")
    return array


def _importance(name: str, columns: int, given: ArrayLike) -> F32:
    """f32 (columns,) within 1e-6 .. 1: no column counts for nothing, so every sub-block can be fitted."""
    weights = _real(f"[encode {name}] importance", given).astype(np.float64)
    if weights.shape != (columns,):
        raise ShapeError(f"[encode {name}] importance is {list(weights.shape)}: it must be [{columns}], one a column")
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise AttributeValueError(f"[encode {name}] importance holds negative numbers, inf or NaN: it must be >= 0")
    top = weights.max(initial=0)
    return np.maximum(weights / top if top > 0 else np.ones(columns), 1e-6).astype(np.float32)


def _encode_blocks(dtype: DType, codec: Codec, array: NDArray[Any], importance: F32 | None) -> U8:
    with np.errstate(over="ignore", invalid="ignore"):  # an overflow to inf is found below and named
        x = np.ascontiguousarray(array, np.float32).reshape(-1, dtype.block)
    out = np.empty((len(x), dtype.block_nbytes), np.uint8)
    step = max(1, _PIECE // dtype.block)
    for start in range(0, len(x), step):
        piece, coded = x[start : start + step], out[start : start + step]
        finite = np.isfinite(piece).all(axis=1)
        if not finite.all():
            block = start + int(finite.argmin())
            raise AttributeValueError(f"[encode {dtype.name}] block {block} holds inf or NaN: x must be finite in f32")
        with np.errstate(all="ignore"):  # what overflows ends in a scale that is not finite
            if importance is None or codec.weighted is None:
                codec.encode(piece, coded)
            else:
                columns = importance.reshape(-1, dtype.block)
                codec.weighted(piece, coded, columns[np.arange(start, start + len(piece)) % len(columns)])
        bad = dtype.first_bad_block(coded)
        if bad is not None:
            raise AttributeValueError(
                f"[encode {dtype.name}] block {start + bad} spans up to {np.abs(piece[bad]).max():g}: "
                "its scale must fit f16 (65504)"
            )
    return out


def _decode_blocks(dtype: DType, codec: Codec, blocks: U8) -> F32:
    out = np.empty((len(blocks), dtype.block), np.float32)
    step = max(1, _PIECE // dtype.block)
    with np.errstate(invalid="ignore", over="ignore"):  # a file may hold inf and NaN scales: they decode as they are
        for start in range(0, len(blocks), step):
            codec.decode(blocks[start : start + step], out[start : start + step])
    return out


def _plain_bytes(name: str, plain: np.dtype[Any], array: NDArray[Any]) -> U8:
    if plain.kind in "iu" and array.size and not _whole_in_range(array, np.iinfo(plain)):
        info = np.iinfo(plain)
        raise AttributeValueError(f"[encode {name}] x must be whole numbers from {info.min} to {info.max}")
    with np.errstate(over="ignore", invalid="ignore"):  # floats round to inf as IEEE says
        return np.ascontiguousarray(array, plain.newbyteorder("<")).view(np.uint8)


def _whole_in_range(array: NDArray[Any], info: np.iinfo[Any]) -> bool:
    if array.dtype.kind in "iub":
        return int(array.min()) >= info.min and int(array.max()) <= info.max
    wide = array.astype(np.float64)
    # float(i64.max) rounds up to 2**63, which is out of range: compare with the open end.
    inside = (wide >= float(info.min)) & (wide < float(info.max + 1))
    return bool((inside & (np.floor(wide) == wide)).all())


def _plain_values(plain: np.dtype[Any], blocks: U8) -> F32:
    if plain == np.bool_:
        return (blocks != 0).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # f64 beyond f32 becomes inf
        return blocks.view(plain.newbyteorder("<")).astype(np.float32)
