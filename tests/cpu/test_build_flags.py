"""No level's instructions get into another's code: the commands that built the plugin, and what they made.

Objects of all levels are linked into one module. A flag that leaks into a lesser level, or a function that two levels
define under one name so that the linker keeps the richer one, would only show on a CPU that lacks the instructions.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sysconfig
from functools import cache
from pathlib import Path

import pytest

from jackfield_cpu import _native

PLUGIN = Path(__file__).parents[2] / "plugins" / "cpu"
AVX2 = {"-mavx2", "-mfma", "-mf16c", "-mbmi2"}
AVX512 = AVX2 | {f"-mavx512{part}" for part in ("f", "bw", "vl", "dq", "cd")} | {"-mprefer-vector-width=512"}
FLAGS = {
    "base": set(),
    "avx2": AVX2,
    "avx512": AVX512,
    "vnni": AVX512 | {"-mavx512vnni"},
    "dotprod": {"-march=armv8.2-a+dotprod+fp16"},
    "i8mm": {"-march=armv8.2-a+dotprod+fp16+i8mm"},
}
LEVELS = [name for name, _ in _native.levels()]
PORTABLE = "every level"  # what is built once

# x86: what instructions of a level may not be, as objdump writes them. Not `tzcnt`: to an old CPU it is `rep bsf`.
BEYOND_SSE2 = re.compile(
    r"v\w+|k(mov|or|and|x|not|test|unpck|shift|add)\w*|pshufb|palignr|pabs[bwd]|ph(add|sub)\w+|pmaddubsw|pmulhrsw"
    r"|psign[bwd]|p?blend\w+|dpp[sd]|extractps|insertps|mpsadbw|packusdw|pcmp(eqq|gtq|[ei]str\w)|p(extr|insr)[bdq]"
    r"|p(min|max)(sb|sd|uw|ud)|pmov[sz]x\w+|pmul(dq|ld)|ptest|round[ps][sd]|movntdqa|popcnt|lzcnt|crc32\w?|movbe|lddqu"
    r"|mov(s[hl]|d)dup|h(add|sub)p[sd]|addsubp[sd]|andn|bextr|bls\w+|bzhi|mulx|pdep|pext|rorx|s(ar|hl|hr)x"
)
BEYOND_AVX2 = re.compile(
    r"k(mov|or|and|x|not|test|unpck|shift|add)\w*|v\w+ .*(%zmm|%[xy]mm(1[6-9]|2\d|3[01])|\{%k|\{1to).*"
)
BEYOND_AVX512 = re.compile(r"vpdp\w+|vdpbf16ps|vcvtne\w+|vp(multishift|compress[bw]|expand[bw]|sh[lr]d|opcnt)\w*")
# VNNI alone: not the bits, bytes and words of later sets, nor AVX's own VNNI, AMX, f16 arithmetic, GFNI and VAES.
BEYOND_VNNI = re.compile(
    r"vp(multishift\w+|compress[bw]|expand[bw]|sh[lr]d[vwdq]\w*|opcnt\w+|shufbitqmb|erm(i2|t2)?b|madd52\w+|2intersect\w+)"
    r"|\{vex\} vpdp.*|vpdp(b(ss|su|uu)|w(us|su|uu))ds?|vdpbf16ps|vcvtne\w+|v?gf2p8\w+|vaes\w+"
    r"|v(add|sub|mul|div|max|min|sqrt|rcp|rsqrt|fn?m(add|sub|addsub|subadd)(132|213|231))(ph|sh)|tdp\w+|tile\w+"
)
BEYOND = {
    PORTABLE: BEYOND_SSE2,
    "base": BEYOND_SSE2,
    "avx2": BEYOND_AVX2,
    "avx512": BEYOND_AVX512,
    "vnni": BEYOND_VNNI,
}
# What is asked for when it runs, and the part of the name of every function that may have it: ADR 0010.
CHOSEN = {"vnni": ("vdpbf16ps", "PairInstruction")}


@pytest.fixture(scope="module")
def commands(absent):
    """By level: (source, words of its command, object)."""
    module = f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    folders = [made.parent for made in PLUGIN.glob(f"build/*/{module}")]
    lists = [folder / "compile_commands.json" for folder in folders]
    if not lists or not lists[0].exists():
        absent("cpu", "the plugin was not built in this tree")
    found = {name: [] for name in (*LEVELS, PORTABLE)}
    for entry in json.loads(lists[0].read_text()):
        words = shlex.split(entry["command"])
        made = Path(entry["directory"]) / words[words.index("-o") + 1]
        level = re.search(r"kernels_(\w+)\.dir", made.as_posix())
        found[level[1] if level else PORTABLE].append((Path(entry["file"]), words, made))
    return found


def machine_flags(words):
    """Of the machine; -mmacosx-version-min is of the system."""
    words = [word for word in words if not word.startswith("-mmacosx")]
    return {word for word in words if word.startswith("-m") or "native" in word.partition("=")[2]}


def test_every_level_is_built_of_every_kernel(commands):
    files = sorted([*PLUGIN.glob("kernels/*.cpp"), *PLUGIN.glob("fused/*.cpp")])
    for level in LEVELS:
        assert sorted(source for source, *_ in commands[level]) == files
        assert all(f"-DJF_LEVEL={level}" in words for _, words, _ in commands[level])
    assert {"pool.cpp", "rows16.cpp", "decode.cpp", "table.cpp"} <= {source.name for source, *_ in commands[PORTABLE]}


def test_flags_of_a_level_stay_with_it(commands):
    for level, entries in commands.items():
        wrong = {
            source.name: flags
            for source, words, _ in entries
            if (flags := machine_flags(words)) != FLAGS.get(level, set())
        }
        assert not wrong, (level, wrong)
        assert level == PORTABLE or all(
            f"-DJF_LEVEL_{name}=1" not in words for _, words, _ in entries for name in LEVELS if name != level
        )


def output_of(tool, options, entries, absent):
    path = shutil.which(tool)
    if path is None:
        absent("cpu", f"{tool} is not on PATH (Debian: binutils)")
    objects = [made for *_, made in entries]
    return subprocess.run([path, *options, *objects], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("level", LEVELS)
def test_symbols_of_a_level_have_names_of_their_own(level, commands, absent):
    """What the linker sees from other objects: functions, and tables of them. Constants may be shared."""
    lines = output_of("nm", ["-C", "--defined-only"], commands[level], absent).splitlines()
    names = [name for _, kind, name in (line.split(" ", 2) for line in lines if line.count(" ") > 1) if kind in "TWiDB"]
    assert names
    assert [name for name in names if f"jackfield::{level}::" not in name] == []


# What ends the process or prints, as the objects of C and C++ sources import it.
LAST_WORDS = re.compile(
    r"abort|_?exit|_Exit|quick_exit|__assert(_fail|_rtn|_perror_fail)?|(__)?v?f?printf(_chk)?|f?puts|f?putc(har)?|std(out|err)|_ZSt[45]c(out|err|log)"
)


@pytest.mark.parametrize("level", [PORTABLE, *LEVELS])
def test_no_object_ends_the_process_or_prints(level, commands, absent):
    """Nor does what a header brings: a fault is an exception, which arrives as an error of jackfield's."""
    lines = output_of("nm", ["-u"], commands[level], absent).splitlines()
    names = {words[-1].partition("@")[0] for line in lines if len(words := line.split()) == 2}
    assert len(names) > 5
    assert sorted(name for name in names if LAST_WORDS.fullmatch(name)) == []


@pytest.mark.parametrize("name", ["abort", "__assert_fail", "__printf_chk", "fprintf", "puts", "stderr", "_ZSt4cout"])
def test_the_pattern_of_imports_finds(name):
    assert LAST_WORDS.fullmatch(name)
    assert not LAST_WORDS.fullmatch(f"{name}_of_mine")


@cache
def mnemonics(text):
    """Instructions as objdump writes them, each once."""
    return sorted({line.split("\t", 1)[1].strip() for line in text.splitlines() if "\t" in line})


def functions_with(text, instruction):
    """Names of functions that have it."""
    found, name = set(), ""
    for line in text.splitlines():
        if line.endswith(">:"):
            name = line.partition("<")[2]
        elif f"\t{instruction} " in line:
            found.add(name)
    return found


def test_functions_are_found_by_an_instruction():
    text = "00 <f<One>()>:\n 0:\tret\n00 <g()>:\n 0:\tvdpbf16ps %zmm1,%zmm2,%zmm3\n 4:\tret"
    assert functions_with(text, "vdpbf16ps") == {"g()>:"}


@pytest.mark.parametrize("level", [level for level in (PORTABLE, *LEVELS) if level in BEYOND])
@pytest.mark.skipif("vnni" not in LEVELS, reason="another machine's instructions")
def test_no_instruction_is_beyond_its_level(level, commands, absent):
    text = output_of("objdump", ["-d", "-C", "--no-show-raw-insn"], commands[level], absent)
    if level in CHOSEN:
        instruction, owner = CHOSEN[level]
        having = functions_with(text, instruction)
        assert [name for name in having if owner not in name] == []
        assert having  # else nothing is chosen, and the exception is a hole
        text = "\n".join(line for line in text.splitlines() if f"\t{instruction} " not in line)
    instructions = mnemonics(text)
    assert len(instructions) > 1000
    law = BEYOND[level]
    assert [each for each in instructions if law.fullmatch(each) or law.fullmatch(each.split()[0])][:20] == []


@pytest.mark.parametrize(
    ("law", "beyond", "within"),
    [
        (
            BEYOND_SSE2,
            ["vaddps", "pshufb", "popcnt", "kmovw", "pmulld", "blendvps"],
            ["addps", "pshufd", "pmaddwd", "jmp"],
        ),
        (BEYOND_AVX2, ["vaddps %zmm1,%zmm2,%zmm3", "kmovw", "vaddps %ymm17,%ymm1,%ymm1"], ["vaddps %ymm1,%ymm2,%ymm3"]),
        (
            BEYOND_VNNI,
            [
                "vpermb",
                "vpdpbssd",
                "vpopcntd",
                "vpshldvd",
                "vaddph",
                "vfmadd231sh",
                "vpmadd52luq",
                "tdpbssd",
                "vdpbf16ps",
            ],
            [
                "vpdpbusd",
                "vpdpwssd",
                "vcvtph2ps",
                "vpermd",
                "vpermi2d",
                "vpermt2w",
                "vpcompressd",
                "vpshufb",
                "vfmadd231ps",
            ],
        ),
        (BEYOND_AVX512, ["vpdpbusd"], ["vpmaddubsw", "vaddps %zmm1,%zmm2,%zmm3"]),
    ],
)
def test_instructions_beyond_a_level_are_known(law, beyond, within):
    assert [bool(law.fullmatch(each)) for each in (*beyond, *within)] == [True] * len(beyond) + [False] * len(within)
