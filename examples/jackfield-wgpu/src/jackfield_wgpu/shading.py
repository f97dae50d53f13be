"""WGSL from files: which buffers a shader sees, how it reads elements of any dtype there, and its numbers.

A shader file has a function `work(group, lane)`. What stands before it is made here: the struct `p` of numbers, one
variable a binding, and for each tensor `x` functions such as `x_at(i)`, the element i places behind its first one.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from string import Template
from typing import Literal

import jackfield.backend as jb

Number = int | float | tuple[int, int, int, int]
Access = Literal["read", "write", "atomic"]  # of a binding: `write` may be read as well
WIDTHS = {"f32": 4, "i32": 4, "f16": 2, "bf16": 2, "i16": 2, "i8": 1, "u8": 1, "bool": 1, "i64": 8}


@dataclass(frozen=True)
class Shader:
    """A file of `shaders/`, and what is put into it."""

    stem: str
    words: tuple[tuple[str, str], ...] = ()
    faulty: bool = False  # it may meet a bad index
    table: bool = False  # it reads numbers that were computed on the host
    uses: tuple[str, ...] = ()  # files whose functions it calls, besides common and floats


@dataclass(frozen=True)
class Tensor:
    """How a shader sees a tensor. unit: as what its bytes are read, a name of WIDTHS or "bytes". slot: its binding."""

    name: str
    unit: str
    slot: int


def unit_of(dtype: jb.DType) -> str:
    """Elements by name; blocks as bytes."""
    return dtype.name if dtype.name in WIDTHS else "bytes"


def source(shader: Shader, tensors: Sequence[Tensor], accesses: Sequence[Access], fields: Sequence[str]) -> str:
    """The whole WGSL text. fields: the lines of the struct of numbers, as `layout` gives them."""
    lines = ["struct Numbers {", *fields, "}", "@group(0) @binding(0) var<uniform> p: Numbers;"]
    for slot, access in enumerate(accesses):
        lines.append(f"@group(0) @binding({slot + 1}) var<storage, {_MODES[access]}> b{slot}: array<{_KINDS[access]}>;")
    beside = len(accesses) + 1
    if shader.table:
        lines.append(f"@group(0) @binding({beside}) var<storage, read> table: array<f32>;")
        beside += 1
    if shader.faulty:
        lines.append(f"@group(0) @binding({beside}) var<storage, read_write> fault: array<atomic<u32>, 4>;")
    lines += [_accessors(tensor, accesses[tensor.slot]) for tensor in tensors]
    stems = ["common", "floats", *(["fault"] if shader.faulty else []), *shader.uses]
    return "\n".join([*lines, *map(_text, stems), Template(_text(shader.stem)).substitute(dict(shader.words))])


_MODES = {"read": "read", "write": "read_write", "atomic": "read_write"}
_KINDS = {"read": "u32", "write": "u32", "atomic": "atomic<u32>"}


@cache
def _text(stem: str) -> str:
    return files(__package__).joinpath("shaders", f"{stem}.wgsl").read_text(encoding="utf-8")


def _accessors(tensor: Tensor, access: Access) -> str:
    words = {"n": tensor.name, "load": _load(tensor.slot, access), "b": f"b{tensor.slot}"}
    text = _READS[tensor.unit]
    if tensor.name == "out":
        text += _WHOLE_WRITES[access] if WIDTHS.get(tensor.unit, 1) >= 4 else _PART_WRITES
        text += _PUTS.get(tensor.unit, "")
    return Template(text).substitute(words)


def _load(slot: int, access: Access) -> str:
    """A function of WGSL that reads a word of the binding."""
    read = f"atomicLoad(&b{slot}[i])" if access == "atomic" else f"b{slot}[i]"
    return f"(i: u32) -> u32 {{ return {read}; }}"


_WORD = "fn ${n}_word${load}\n"
_FLOAT = _WORD + "fn ${n}_bits(i: u32) -> u32 { return ${n}_word(p.${n}_base + i); }\n"
_PART = (
    _WORD
    + """fn ${n}_bits(i: u32) -> u32 {
    let at = p.${n}_base + i;
    return extractBits(${n}_word(at / %dU), at %% %dU * %dU, %dU);
}
"""
)
_HALF = (_PART % (2, 2, 16, 16)).replace("U", "u")
_BYTE = (_PART % (4, 4, 8, 8)).replace("U", "u")
_READS = {
    "f32": _FLOAT + "fn ${n}_at(i: u32) -> f32 { return bitcast<f32>(${n}_bits(i)); }\n",
    "f16": _HALF + "fn ${n}_at(i: u32) -> f32 { return bitcast<f32>(half_wide(${n}_bits(i))); }\n",
    "bf16": _HALF + "fn ${n}_at(i: u32) -> f32 { return bitcast<f32>(${n}_bits(i) << 16u); }\n",
    "i32": _FLOAT
    + """fn ${n}_low(i: u32) -> u32 { return ${n}_bits(i); }
fn ${n}_high(i: u32) -> u32 { return 0u - (${n}_bits(i) >> 31u); }
""",
    "i64": _WORD
    + """fn ${n}_low(i: u32) -> u32 { return ${n}_word((p.${n}_base + i) * 2u); }
fn ${n}_high(i: u32) -> u32 { return ${n}_word((p.${n}_base + i) * 2u + 1u); }
""",
    "i16": _HALF,
    "i8": _BYTE,
    "u8": _BYTE,
    "bool": _BYTE,
    "bytes": _BYTE
    + """fn ${n}_half(byte: u32) -> u32 { return ${n}_quad(byte) & 0xffffu; }
fn ${n}_quad(byte: u32) -> u32 {
    let at = p.${n}_base + byte;
    let shift = at % 4u * 8u;
    let low = ${n}_word(at / 4u) >> shift;
    if (shift == 0u) {
        return low;
    }
    return low | (${n}_word(at / 4u + 1u) << (32u - shift));
}
""",
}
_WHOLE_WRITES = {
    "write": "fn out_put_bits(i: u32, bits: u32) { $b[p.out_base + i] = bits; }\n",
    "atomic": "fn out_put_bits(i: u32, bits: u32) { atomicStore(&$b[p.out_base + i], bits); }\n",
}
# Two tensors, or two lanes, may share a word: only the element's own bits change.
_PART_WRITES = """fn out_put_bits(i: u32, bits: u32) {
    let at = p.out_base + i;
    let shift = at % OUT_PER_WORD * OUT_WIDTH;
    atomicAnd(&$b[at / OUT_PER_WORD], ~(OUT_MASK << shift));
    atomicOr(&$b[at / OUT_PER_WORD], (bits & OUT_MASK) << shift);
}
"""
_HALF_OUT = "const OUT_PER_WORD = 2u;\nconst OUT_WIDTH = 16u;\nconst OUT_MASK = 0xffffu;\n"
_BYTE_OUT = "const OUT_PER_WORD = 4u;\nconst OUT_WIDTH = 8u;\nconst OUT_MASK = 0xffu;\n"
_PUTS = {
    "f32": "fn out_put(i: u32, x: f32) { out_put_bits(i, bitcast<u32>(x)); }\n",
    "f16": _HALF_OUT + "fn out_put(i: u32, x: f32) { out_put_bits(i, half_narrow(bitcast<u32>(x))); }\n",
    "bf16": _HALF_OUT + "fn out_put(i: u32, x: f32) { out_put_bits(i, brain_narrow(bitcast<u32>(x))); }\n",
    "i16": _HALF_OUT,
    "i8": _BYTE_OUT,
    "u8": _BYTE_OUT,
    "bool": _BYTE_OUT,
    "bytes": _BYTE_OUT,
}


def layout(numbers: Mapping[str, Number]) -> tuple[tuple[str, ...], bytes]:
    """The lines of a WGSL struct with these fields, and its bytes. Tuples are vec4<u32>, and come first."""
    wide = [name for name, value in numbers.items() if isinstance(value, tuple)]
    order = [*wide, *(name for name in numbers if name not in wide)]
    lines, raw = [], b""
    for name in order:
        value = numbers[name]
        kind, code = _FORMS[type(value)]
        lines.append(f"    {name}: {kind},")
        parts = value if isinstance(value, tuple) else (value,)
        raw += struct.pack(f"<{code}", *(v & 0xFFFFFFFF if isinstance(v, int) else v for v in parts))
    return tuple(lines), raw + bytes(-len(raw) % 16)


_FORMS = {tuple: ("vec4<u32>", "4I"), int: ("u32", "I"), bool: ("u32", "I"), float: ("f32", "f")}
