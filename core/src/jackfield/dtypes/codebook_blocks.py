"""Block dtypes of 4-bit codes for 16 unevenly spaced values: iq4_nl, and iq4_xs with coded scales for each 32.

Decoding was checked bit for bit against the package `gguf` (0.19). The encoders are our own fits: the error is
promised, not the bytes.
"""

from __future__ import annotations

import numpy as np

from jackfield.dtypes.codebooks import IQ4_VALUES
from jackfield.dtypes.dtype import F32, U8, Codec, f16_at
from jackfield.dtypes.small_blocks import read_f16

_VALUES = np.array(IQ4_VALUES, np.float32)


def _decode_iq4_nl(blocks: U8, out: F32) -> None:
    d, qs = read_f16(blocks, 0), blocks[:, 2:]
    np.multiply(d, _VALUES[qs & 15], out=out[:, :16])
    np.multiply(d, _VALUES[qs >> 4], out=out[:, 16:])


def _scales(blocks: U8) -> F32:
    """Factors of the 8 sub-blocks: f32 (n, 8)."""
    low = np.stack([blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4], axis=2).reshape(-1, 8)
    high = (blocks[:, 2:4, None] >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(-1, 8)
    return read_f16(blocks, 0) * ((low | high << 4).view(np.int8) - np.int8(32))


def _decode_iq4_xs(blocks: U8, out: F32) -> None:
    factor = _scales(blocks)[:, :, None]
    qs, rows = blocks[:, 8:].reshape(-1, 8, 16), out.reshape(-1, 8, 32)
    np.multiply(factor, _VALUES[qs & 15], out=rows[:, :, :16])
    np.multiply(factor, _VALUES[qs >> 4], out=rows[:, :, 16:])


IQ4_NL = Codec(_decode_iq4_nl, None, f16_at(0))
IQ4_XS = Codec(_decode_iq4_xs, None, f16_at(0))
