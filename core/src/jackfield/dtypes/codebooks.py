"""Tables that several block dtypes share: codebooks of the iq types, values of 4-bit codes, sign bytes.

The codebooks lie in `codebooks.txt` beside this file and are read when first asked for; nothing is read on import.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jackfield.dtypes.dtype import F32, U8

I8 = NDArray[np.int8]

FILE = Path(__file__).with_name("codebooks.txt")

# Values of a 4-bit code: of iq4_nl and iq4_xs, and of E2M1 doubled (mxfp4, nvfp4; code 8 is +0).
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


@cache
def codebooks() -> dict[str, I8]:
    """All codebooks by name: i8 (rows, 8), for iq3 (rows, 4). iq1_s and iq1_m share `iq1`."""
    lines = [line for line in FILE.read_text(encoding="ascii").splitlines() if not line.startswith("#")]
    found, at = {}, 0
    while at < len(lines):
        name, rows, *values = lines[at].split()
        digits = np.array(lines[at + 1 : at + 1 + int(rows)], "S")
        index = digits.view(np.uint8).reshape(int(rows), -1) - np.uint8(ord("0"))
        found[name] = np.array([int(value) for value in values], np.int8)[index]
        found[name].flags.writeable = False
        at += 1 + int(rows)
    return found


@cache
def codebook(name: str) -> F32:
    """The rows of a codebook as f32."""
    return codebooks()[name].astype(np.float32)


@cache
def even_signs() -> U8:
    """Sign byte of each 7-bit code, u8 (128,): bit 7 makes the number of set bits even."""
    code = np.arange(128, dtype=np.uint8)
    odd = np.unpackbits(code[:, None], axis=1).sum(axis=1, dtype=np.uint8) & 1
    return code | odd << 7


@cache
def sign_factors() -> F32:
    """Factors of 8 elements for each sign byte, f32 (256, 8): -1 where bit j is set, else 1."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return 1 - 2 * bits.astype(np.float32)


@cache
def e4m3_values() -> F32:
    """Value of an unsigned E4M3 byte, f32 (256,); bit 7 does not count, 0x7F is 0 but 0xFF is 480 (as in GGUF)."""
    code = np.arange(256)
    exponent, fraction = code >> 3 & 15, code & 7
    value = np.where(exponent == 0, fraction / 512, 2.0 ** (exponent - 7) * (1 + fraction / 8))
    value[0x7F] = 0
    return value.astype(np.float32)
