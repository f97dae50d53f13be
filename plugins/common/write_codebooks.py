"""Write `jackfield/codebooks.h`, the C tables of the block dtypes, from the tables of the core.

Run it after a change of the core's tables: `python plugins/common/write_codebooks.py`. A test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from jackfield.dtypes import codebooks

HEADER = Path(__file__).with_name("jackfield") / "codebooks.h"

_TOP = """\
// Tables of the block dtypes. Generated from the core's tables by write_codebooks.py: do not edit.
// A row of a codebook is one unsigned word: byte j, counted from the lowest, is element j as int8.
// Data only, so one copy serves all levels of a library. A compiler that needs other words before a table defines
// JF_TABLE.
// clang-format off
#pragma once
#include <stdint.h>

#ifndef JF_TABLE
#define JF_TABLE inline constexpr
#endif

namespace jackfield::codebook {
"""
_END = """
}  // namespace jackfield::codebook
// clang-format on
"""


def _table(comment: str, kind: str, name: str, values: Iterable[str]) -> str:
    words = list(values)
    lines, line = [], ""
    for word in words:
        if line and len(line) + len(word) + 2 > 118:
            lines.append(line)
            line = ""
        line += f"{' ' if line else ''}{word},"
    body = "\n".join(f"  {text}" for text in [*lines, line])
    return f"\n// {comment}\nJF_TABLE {kind} {name}[{len(words)}] = {{\n{body}\n}};\n"


def _rows(table: codebooks.I8) -> Iterable[str]:
    width = table.shape[1]
    return (f"0x{word:0{2 * width}x}u" + "ll" * (width == 8) for word in table.view(f"<u{width}")[:, 0].tolist())


def _floats(values: Iterable[float]) -> Iterable[str]:
    return (f"{value!r}f" for value in values)  # few digits: all are short sums of powers of two


def header() -> str:
    """The text of the header."""
    parts = [_TOP]
    for name, table in codebooks.codebooks().items():
        kind = f"uint{8 * table.shape[1]}_t"
        values = ", ".join(str(value) for value in np.unique(table).tolist())
        parts.append(_table(f"{name}: values {values}", kind, f"{name.upper()}_ROWS", _rows(table)))
    masks = np.where(codebooks.sign_factors() < 0, np.int8(-1), np.int8(0))
    signs = (f"0x{code:02x}" for code in codebooks.even_signs().tolist())
    parts += [
        _table("sign byte of a 7-bit code: bit j set, element j is negative", "uint8_t", "EVEN_SIGNS", signs),
        _table("bytes of 0xff where the element is negative, by sign byte", "uint64_t", "SIGN_MASKS", _rows(masks)),
        _table("iq4_nl, iq4_xs", "int8_t", "IQ4_VALUES", map(str, codebooks.IQ4_VALUES)),
        _table("mxfp4, nvfp4: E2M1, doubled", "int8_t", "E2M1_VALUES", map(str, codebooks.E2M1_VALUES)),
        _table("nvfp4: unsigned E4M3", "float", "E4M3_VALUES", _floats(codebooks.e4m3_values().tolist())),
        _END,
    ]
    return "".join(parts)


if __name__ == "__main__":
    HEADER.write_text(header(), encoding="ascii")
