"""Reads a wheel for another machine and says whether that machine could import it.

Usage: python plugins/cpu/cross/check.py WHEEL...
Exit status 1, with the reason, for a wheel whose name, machine, system library or symbols are not what its tag says,
and for one that is larger than the CPU's wheel may be on any machine.
"""

from __future__ import annotations

import re
import struct
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

MODULE = re.compile(r"jackfield_cpu/_native\.cpython-(\d+)-(aarch64-linux-gnu|darwin)\.so")
SYSTEM_LIBRARIES = {
    "aarch64-linux-gnu": {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-aarch64.so.1"},
    "darwin": {"/usr/lib/libSystem.B.dylib"},
}
LARGEST = 6_000_000  # bytes of the wheel, as .ci/wheels.py asks of the one that this machine builds
AARCH64 = 183  # e_machine of ELF
ARM64 = 0x0100000C  # cputype of Mach-O
LOADABLE = {6, 8}  # filetypes of Mach-O: Python loads either
BUILD_VERSION, MACOS = 0x32, 1  # a load command of Mach-O, and the platform it names
UNDEFINED_MASK = 0x0E  # Mach-O: type bits of a symbol, none set: undefined
BY_LOOK_UP = -2  # Mach-O: a symbol of whatever has been loaded, so of Python


class Wrong(Exception):
    """What is not as the wheel's tag says."""


def check(wheel: Path) -> str:
    """What was found, in words. Raises: Wrong."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        modules = [m for name in names if (m := MODULE.fullmatch(name))]
        others = [n for n in names if n.endswith((".so", ".dylib")) and not MODULE.fullmatch(n)]
        if len(modules) != 1 or others:
            raise Wrong(f"{wheel.name} holds the modules {[m[0] for m in modules]} and {others}, must be one _native")
        (metadata,) = [name for name in names if name.endswith(".dist-info/WHEEL")]
        tags = re.findall(r"^Tag: (.*)$", archive.read(metadata).decode(), re.MULTILINE)
        data = archive.read(modules[0][0])
    python, system = modules[0].groups()
    tag = wheel.name.removesuffix(".whl").split("-", 2)[2]
    if tags != [tag] or not tag.startswith(f"cp{python}-cp{python}-"):
        raise Wrong(f"{wheel.name} says {tags} inside, and its module is for Python {python}")
    libraries, symbols = elf(data, tag) if system == "aarch64-linux-gnu" else mach_o(data, tag)
    if strange := sorted(set(libraries) - SYSTEM_LIBRARIES[system]):
        raise Wrong(f"{wheel.name} needs {', '.join(strange)}, which that system does not have")
    nbytes = wheel.stat().st_size
    if nbytes >= LARGEST:
        raise Wrong(f"{wheel.name} takes {nbytes} bytes, must be below {LARGEST}")
    return f"{wheel.name}: {nbytes} bytes, its module {len(data)}, needs {', '.join(libraries)} and {symbols}"


# ---- ELF ------------------------------------------------------------------------------------------------------------


def elf(data: bytes, tag: str) -> tuple[list[str], str]:
    """Libraries it needs, and the newest version of glibc's symbols."""
    machine = struct.unpack_from("<H", data, 18)[0]
    if data[:5] != b"\x7fELF\x02" or machine != AARCH64:
        raise Wrong(f"the module is {data[:5]!r} for machine {machine}, must be 64-bit ELF for {AARCH64}")
    newest = max((int(n) for n in re.findall(rb"GLIBC_2\.(\d+)\0", data)), default=0)
    oldest = int(re.findall(r"manylinux_2_(\d+)_", tag)[0])
    if newest > oldest:
        raise Wrong(f"the module asks for glibc 2.{newest}, the tag {tag} for no more than 2.{oldest}")
    return _needed(data), f"glibc 2.{newest}"


def _needed(data: bytes) -> list[str]:
    """DT_NEEDED of the dynamic section."""
    at, size, count = *struct.unpack_from("<Q", data, 32), *struct.unpack_from("<HH", data, 54)
    headers = [struct.unpack_from("<IIQQQQ", data, at + i * size) for i in range(count)]
    (dynamic,) = [h for h in headers if h[0] == 2]
    entries = list(struct.iter_unpack("<QQ", data[dynamic[2] : dynamic[2] + dynamic[5]]))
    table = next(value for kind, value in entries if kind == 5)
    table = next(table - h[3] + h[2] for h in headers if h[0] == 1 and h[3] <= table < h[3] + h[5])
    return [_text(data, table + value) for kind, value in entries if kind == 1]


# ---- Mach-O ---------------------------------------------------------------------------------------------------------


def mach_o(data: bytes, tag: str) -> tuple[list[str], str]:
    """Libraries it needs, the oldest system that loads it, and how many symbols Python must have."""
    magic, machine, _, kind = struct.unpack_from("<IIII", data)
    if (magic, machine) != (0xFEEDFACF, ARM64):
        raise Wrong(f"the module starts with {magic:#x}, {machine:#x}, must be 64-bit Mach-O for {ARM64:#x}")
    if kind not in LOADABLE:
        raise Wrong(f"the module is a Mach-O file of kind {kind}, which is neither a library (6) nor a bundle (8)")
    commands = list(_commands(data))
    oldest = _oldest_system(data, commands, tag)
    if not any(kind == 0x1D for kind, _ in commands):
        raise Wrong("the module has no code signature: such a machine would not load it")
    libraries = [_text(data, at + struct.unpack_from("<I", data, at + 8)[0]) for kind, at in commands if kind == 0xC]
    (table,) = [at for kind, at in commands if kind == 2]
    if "_PyInit__native" not in {name for name, kind in _symbols(data, table) if kind & UNDEFINED_MASK}:
        raise Wrong("the module does not define PyInit__native")
    (bindings,) = [at for kind, at in commands if kind & 0x7FFFFFFF == 0x22]
    looked_up = {name for name, library in _bound(data, bindings) if library == BY_LOOK_UP}
    if strange := sorted(name for name in looked_up if not name.startswith(("_Py", "__Py"))):
        raise Wrong(f"the module expects Python to have {', '.join(strange[:5])}")
    return libraries, f"macOS {oldest}, {len(looked_up)} symbols of Python"


def _oldest_system(data: bytes, commands: Sequence[tuple[int, int]], tag: str) -> str:
    """The version that the module says it needs. Raises: Wrong for another system or a version after the tag's."""
    said = [struct.unpack_from("<II", data, at + 8) for kind, at in commands if kind == BUILD_VERSION]
    if [platform for platform, _ in said] != [MACOS]:
        raise Wrong(f"the module is built for the platforms {[platform for platform, _ in said]}, must be [{MACOS}]")
    major, minor = said[0][1] >> 16, said[0][1] >> 8 & 0xFF
    allowed = re.findall(r"macosx_(\d+)_(\d+)_arm64", tag)
    if not allowed or (major, minor) > tuple(map(int, allowed[0])):
        raise Wrong(f"the module needs macOS {major}.{minor}, which is more than the tag {tag} says")
    return f"{major}.{minor}"


def _commands(data: bytes) -> Iterator[tuple[int, int]]:
    """Kind and place of each load command."""
    at, (count,) = 32, struct.unpack_from("<I", data, 16)
    for _ in range(count):
        kind, size = struct.unpack_from("<II", data, at)
        yield kind, at
        at += size


def _symbols(data: bytes, command: int) -> Iterator[tuple[str, int]]:
    """Name and type bits of each symbol."""
    at, count, texts = struct.unpack_from("<III", data, command + 8)
    for name, kind, _, _, _ in struct.iter_unpack("<IBBHQ", data[at : at + 16 * count]):
        yield _text(data, texts + name), kind


def _bound(data: bytes, command: int) -> Iterator[tuple[str, int]]:
    """Each symbol that is bound when the module is loaded, and the number of its library; from the two programs that
    do it, of which only the parts that name symbols and libraries are followed. Either may be named first.
    """
    for field in (16, 32):  # those bound at once, and those at their first call
        at, size = struct.unpack_from("<II", data, command + field)
        end, library, name = at + size, 0, ""
        while at < end:
            code, low = data[at] & 0xF0, data[at] & 0x0F
            at += 1
            if code == 0x10:
                library = low
            elif code == 0x20:
                library = data[at]  # less than 128 libraries
            elif code == 0x30:
                library = low - 16 if low else 0
            elif code == 0x40:
                name = _text(data, at)
                at += len(name) + 1
            elif 0x90 <= code <= 0xC0:
                yield name, library
            for _ in range({0x20: 1, 0x60: 1, 0x70: 1, 0x80: 1, 0xA0: 1, 0xC0: 2}.get(code, 0)):
                while data[at] & 0x80:
                    at += 1
                at += 1


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def main() -> None:
    for name in sys.argv[1:]:
        try:
            sys.stdout.write(check(Path(name)) + "\n")
        except Wrong as e:
            sys.exit(f"{name}: {e}")


if __name__ == "__main__":
    main()
