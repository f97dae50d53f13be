"""Block dtypes whose elements are rows of a codebook: iq2_xxs iq2_xs iq2_s iq3_xxs iq3_s iq1_s iq1_m.

A block of 256 holds indices of codebook rows (8 elements, in iq3 4), for iq2 and iq3 a sign byte for each 8 elements,
and coded scales for each 16 or 32. Decoding was checked bit for bit against the package `gguf` (0.19).
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from jackfield.dtypes.codebooks import codebook, even_signs, sign_factors
from jackfield.dtypes.dtype import F32, U8, Bad, Codec, f16_at
from jackfield.dtypes.grid_fits import Index, Rows, Search, largest_magnitude, root_mean_square, search
from jackfield.dtypes.small_blocks import read_f16, write_f16

U16 = NDArray[np.uint16]
U32 = NDArray[np.uint32]
Bits = NDArray[np.integer]  # small numbers, of the bits of words

_SEVENS = np.array([0, 7, 14, 21], np.uint32)  # shifts of the sign codes of a word
_TRIPLES = np.array([0, 3, 6, 9], np.uint16)  # shifts of the 3-bit fields of a word
_DELTA = np.float32(0.125)


def _words(blocks: U8, at: int, count: int, kind: str) -> NDArray[np.unsignedinteger]:
    """`count` unsigned words from byte `at` of each block, unaligned there: (n, count)."""
    stop = at + count * np.dtype(kind).itemsize
    return np.ascontiguousarray(blocks[:, at:stop]).view(kind)


def _nibbles(packed: U8) -> U8:
    """Low then high nibble of each byte: (n, m) to (n, 2m)."""
    return np.stack([packed & 15, packed >> 4], axis=2).reshape(len(packed), -1)


def _fields(packed: U8, width: int) -> U16:
    """All fields of `width` bits of each byte, lowest first, as bits 8 and up of an index: u8 (n, m) to u16."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)
    fields = packed[:, :, None] >> shifts & (1 << width) - 1
    return fields.reshape(len(packed), -1).astype(np.uint16) << np.uint16(8)


def _signed_rows(name: str, index: Bits, signs: U8, factor: F32, out: F32) -> None:
    """Write factor * sign * row. index (n, rows), signs (n, 32), factor (n, groups): an equal share of a block each."""
    rows = out.reshape(-1, 32, 8)
    np.take(codebook(name), index, axis=0, out=out.reshape(*index.shape, -1), mode="clip")
    rows *= sign_factors()[signs]
    groups = out.reshape(*factor.shape, -1)
    groups *= factor[:, :, None]


def _scaled(d: F32, n: Bits, share: float) -> F32:
    """d * (0.5 + n) * share."""
    return d * (np.float32(0.5) + n.astype(np.float32)) * np.float32(share)


def _decode_iq2_xxs(blocks: U8, out: F32) -> None:
    pairs = blocks[:, 2:].reshape(-1, 8, 8)  # four indices, then signs and scale in a word
    word = _words(blocks, 2, 16, "<u4")[:, 1::2]
    signs = even_signs()[word[:, :, None] >> _SEVENS & 127].reshape(-1, 32)
    factor = _scaled(read_f16(blocks, 0), word >> 28, 0.25)
    _signed_rows("iq2_xxs", pairs[:, :, :4].reshape(-1, 32), signs, factor, out)


def _decode_iq2_xs(blocks: U8, out: F32) -> None:
    word = _words(blocks, 2, 32, "<u2")
    factor = _scaled(read_f16(blocks, 0), _nibbles(blocks[:, 66:]), 0.25)
    _signed_rows("iq2_xs", word & 511, even_signs()[word >> 9], factor, out)


def _decode_iq2_s(blocks: U8, out: F32) -> None:
    index = blocks[:, 2:34] | _fields(blocks[:, 66:74], 2)
    factor = _scaled(read_f16(blocks, 0), _nibbles(blocks[:, 74:]), 0.25)
    _signed_rows("iq2_s", index, blocks[:, 34:66], factor, out)


def _decode_iq3_xxs(blocks: U8, out: F32) -> None:
    word = _words(blocks, 66, 8, "<u4")
    signs = even_signs()[word[:, :, None] >> _SEVENS & 127].reshape(-1, 32)
    _signed_rows("iq3_xxs", blocks[:, 2:66], signs, _scaled(read_f16(blocks, 0), word >> 28, 0.5), out)


def _decode_iq3_s(blocks: U8, out: F32) -> None:
    index = blocks[:, 2:66] | _fields(blocks[:, 66:74], 1)
    factor = read_f16(blocks, 0) * (1 + 2 * _nibbles(blocks[:, 106:]))
    _signed_rows("iq3_s", index, blocks[:, 74:106], factor, out)


def _shifted_rows(index: Bits, delta: F32, factor: F32, out: F32) -> None:
    """Write factor * (row + delta): index (n, 32); delta and factor (n, groups), an equal share of a block each."""
    np.take(codebook("iq1"), index, axis=0, out=out.reshape(-1, 32, 8), mode="clip")
    for part, operation in ((delta, np.add), (factor, np.multiply)):
        groups = out.reshape(*part.shape, -1)
        operation(groups, part[:, :, None], out=groups)


def _decode_iq1_s(blocks: U8, out: F32) -> None:
    word = _words(blocks, 34, 8, "<u2")
    index = blocks[:, 2:34] | ((word[:, :, None] >> _TRIPLES & 7) << 8).reshape(-1, 32)
    factor = read_f16(blocks, 0) * (2 * (word >> 12 & 7) + 1)
    _shifted_rows(index, np.where(word & 0x8000, -_DELTA, _DELTA), factor, out)


def _spread_scale(word: Bits) -> U16:
    """The bits of the f16 in the upper nibbles of four words, lowest first: (n, 4) to (n, 1)."""
    nibbles = (word >> 12 & 15).astype(np.uint16) << np.array([0, 4, 8, 12], np.uint16)
    return np.bitwise_or.reduce(nibbles, axis=1, keepdims=True)


def _decode_iq1_m(blocks: U8, out: F32) -> None:
    word = _words(blocks, 48, 4, "<u2")
    d = _spread_scale(word).view(np.float16).astype(np.float32)
    n = (word[:, :, None] >> _TRIPLES & 7).reshape(-1, 16)
    high = _nibbles(blocks[:, 32:48])
    index = blocks[:, :32] | (high & 7).astype(np.uint16) << 8
    _shifted_rows(index, np.where(high & 8, -_DELTA, _DELTA), d * (2 * n + 1), out)


def _bad_iq1_m(blocks: U8) -> Bad:
    return (_spread_scale(_words(blocks, 48, 4, "<u2"))[:, 0] & 0x7C00) == 0x7C00


# Trial scales in steps of 0.05 of the largest magnitude over the largest value of a codebook (0.7 .. 1.35), or in steps
# of 0.1 of the root mean square (0.6 .. 1.8).
_OF_LARGEST = np.arange(14, 28, dtype=np.float32)
_OF_RMS = tuple(np.arange(6, 19, dtype=np.float32) / np.float32(10))


@cache
def _rows(name: str, delta: float = 0) -> Rows:
    return Rows(codebook(name) + np.float32(delta))


def _signed_search(name: str, largest: int, sub: int, *, even: bool) -> Search:
    trials = tuple(_OF_LARGEST / np.float32(20 * largest))
    return Search(lambda: (_rows(name),), sub, 15, trials, largest_magnitude, even)


def _ternary_rows() -> tuple[Rows, Rows]:
    return _rows("iq1", 0.125), _rows("iq1", -0.125)


_SEARCH_IQ2_XXS = _signed_search("iq2_xxs", 43, 32, even=True)
_SEARCH_IQ2_XS = _signed_search("iq2_xs", 43, 16, even=True)
_SEARCH_IQ2_S = _signed_search("iq2_s", 43, 16, even=False)
_SEARCH_IQ3_XXS = _signed_search("iq3_xxs", 62, 32, even=True)
_SEARCH_IQ3_S = _signed_search("iq3_s", 15, 32, even=False)
_SEARCH_IQ1_S = Search(_ternary_rows, 32, 7, _OF_RMS, root_mean_square, None)
_SEARCH_IQ1_M = Search(_ternary_rows, 16, 7, _OF_RMS, root_mean_square, None, mixed=True)


def _fit(x: F32, importance: F32 | None, how: Search, share: int) -> tuple[F32, U8, Index, U8]:
    """Scale to store (n, 1), rounded to f16: `share` steps of the coded scales; their codes, rows and sign bytes."""
    found = search(x, importance, how)
    d = (np.float32(share) * found.step()).astype(np.float16).astype(np.float32)
    codes, index = found.coded(d / np.float32(share))
    return d, codes, index, found.signs


def _pack_nibbles(codes: U8) -> U8:
    return codes[:, 0::2] | codes[:, 1::2] << np.uint8(4)


def _pack_fields(index: Index, width: int) -> U8:
    """Bits 8 .. of each index as fields of `width` bits, lowest first: (n, m) to u8 (n, m * width / 8)."""
    fields = (index >> 8).astype(np.uint8).reshape(len(index), -1, 8 // width)
    return np.bitwise_or.reduce(fields << np.arange(0, 8, width, dtype=np.uint8), axis=2)


def _write_words(blocks: U8, at: int, words: Bits) -> None:
    kind = words.dtype.newbyteorder("<")
    blocks[:, at : at + words.shape[1] * kind.itemsize] = np.ascontiguousarray(words, kind).view(np.uint8)


def _sign_words(signs: U8, codes: U8) -> U32:
    """Four 7-bit sign codes and a scale's code in each word: signs (n, 32), codes (n, 8) to u32 (n, 8)."""
    sevens = (signs & 127).astype(np.uint32).reshape(-1, 8, 4) << _SEVENS
    return np.bitwise_or.reduce(sevens, axis=2) | codes.astype(np.uint32) << 28


def _encode_iq2_xxs(x: F32, blocks: U8, importance: F32 | None = None) -> None:
    d, codes, index, signs = _fit(x, importance, _SEARCH_IQ2_XXS, 8)
    write_f16(blocks, 0, d)
    low = np.ascontiguousarray(index.astype(np.uint8)).view("<u4")
    _write_words(blocks, 2, np.stack([low, _sign_words(signs, codes)], axis=2).reshape(-1, 16))


def _encode_iq2_xs(x: F32, blocks: U8, importance: F32 | None = None) -> None:
    d, codes, index, signs = _fit(x, importance, _SEARCH_IQ2_XS, 8)
    write_f16(blocks, 0, d)
    _write_words(blocks, 2, index.astype(np.uint16) | (signs & 127).astype(np.uint16) << 9)
    blocks[:, 66:] = _pack_nibbles(codes)


def _encode_iq2_s(x: F32, blocks: U8, importance: F32 | None = None) -> None:
    d, codes, index, signs = _fit(x, importance, _SEARCH_IQ2_S, 8)
    write_f16(blocks, 0, d)
    blocks[:, 2:34] = index & 255
    blocks[:, 34:66] = signs
    blocks[:, 66:74] = _pack_fields(index, 2)
    blocks[:, 74:] = _pack_nibbles(codes)


def _encode_iq3_xxs(x: F32, blocks: U8, importance: F32 | None = None) -> None:
    d, codes, index, signs = _fit(x, importance, _SEARCH_IQ3_XXS, 4)
    write_f16(blocks, 0, d)
    blocks[:, 2:66] = index
    _write_words(blocks, 66, _sign_words(signs, codes))


def _encode_iq3_s(x: F32, blocks: U8, importance: F32 | None = None) -> None:
    d, codes, index, signs = _fit(x, importance, _SEARCH_IQ3_S, 1)
    write_f16(blocks, 0, d)
    blocks[:, 2:66] = index & 255
    blocks[:, 66:74] = _pack_fields(index, 1)
    blocks[:, 74:106] = signs
    blocks[:, 106:] = _pack_nibbles(codes)


def _encode_iq1_s(x: F32, blocks: U8, importance: F32 | None = None) -> None:
    d, codes, index, _ = _fit(x, importance, _SEARCH_IQ1_S, 1)
    write_f16(blocks, 0, d)
    blocks[:, 2:34] = index & 255
    fields = index.astype(np.uint16).reshape(-1, 8, 4)
    high = np.bitwise_or.reduce((fields >> 8 & 7) << _TRIPLES, axis=2)
    _write_words(blocks, 34, high | codes.astype(np.uint16) << 12 | (fields[:, :, 0] >> 11) << 15)


def _encode_iq1_m(x: F32, blocks: U8, importance: F32 | None = None) -> None:
    d, codes, index, _ = _fit(x, importance, _SEARCH_IQ1_M, 1)
    blocks[:, :32] = index & 255
    blocks[:, 32:48] = _pack_nibbles((index >> 8).astype(np.uint8))  # three bits of the row, then its delta
    fields = np.bitwise_or.reduce(codes.astype(np.uint16).reshape(-1, 4, 4) << _TRIPLES, axis=2)
    spread = d.astype(np.float16).view(np.uint16) >> np.array([0, 4, 8, 12], np.uint16) & 15
    _write_words(blocks, 48, fields | spread << 12)


IQ2_XXS = Codec(_decode_iq2_xxs, _encode_iq2_xxs, f16_at(0), _encode_iq2_xxs)
IQ2_XS = Codec(_decode_iq2_xs, _encode_iq2_xs, f16_at(0), _encode_iq2_xs)
IQ2_S = Codec(_decode_iq2_s, _encode_iq2_s, f16_at(0), _encode_iq2_s)
IQ3_XXS = Codec(_decode_iq3_xxs, _encode_iq3_xxs, f16_at(0), _encode_iq3_xxs)
IQ3_S = Codec(_decode_iq3_s, _encode_iq3_s, f16_at(0), _encode_iq3_s)
IQ1_S = Codec(_decode_iq1_s, _encode_iq1_s, f16_at(0), _encode_iq1_s)
IQ1_M = Codec(_decode_iq1_m, _encode_iq1_m, _bad_iq1_m, _encode_iq1_m)
