"""The NEON code of the kernels against plain loops, at each aarch64 level on an emulated CPU that has no more."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

PLUGIN = Path(__file__).parents[2] / "plugins" / "cpu"
CHECK = Path(__file__).with_name("neon_check.cpp")
SOURCES = [CHECK, PLUGIN / "blocks" / "decode.cpp", PLUGIN / "packing" / "rows16.cpp"]
CPUS = {"base": "cortex-a72", "dotprod": "cortex-a76", "i8mm": "max"}
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"


def flags_of(level):
    """What CMakeLists.txt compiles a level with."""
    text = (PLUGIN / "CMakeLists.txt").read_text()
    march = re.search(rf"set\(FLAGS_{level} (-march=\S+)\)", text)
    return [march.group(1)] if march else []


def tool(name, absent):
    path = shutil.which(name)
    if path is None:
        absent("aarch64", f"{name} is not on PATH (Debian: g++-aarch64-linux-gnu, qemu-user)")
    return path


def test_the_levels_have_flags_of_their_own():
    assert [bool(flags_of(level)) for level in CPUS] == [False, True, True]


@pytest.mark.parametrize("level", CPUS)
def test_neon_gives_what_plain_loops_give(level, absent, tmp_path):
    compiler, emulator = tool(COMPILER, absent), tool(EMULATOR, absent)
    program = tmp_path / "check"
    options = ["-std=c++17", "-O1", "-static", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
    folders = [f"-I{PLUGIN / 'kernels'}", f"-I{PLUGIN / 'include'}"]
    subprocess.run([compiler, *options, *flags_of(level), *folders, *SOURCES, "-o", program], check=True)
    done = subprocess.run([emulator, "-cpu", CPUS[level], program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "0 failures\n"), done.stdout[:2000] + done.stderr


def test_code_of_a_richer_level_does_not_run_on_a_lesser_cpu(absent, tmp_path):
    """Else the runs above would not show that a level holds to its instructions."""
    compiler, emulator = tool(COMPILER, absent), tool(EMULATOR, absent)
    source = tmp_path / "usdot.c"
    source.write_text('int main(void) { __asm__ volatile("usdot v0.4s, v1.16b, v2.16b"); return 0; }\n')
    program = tmp_path / "usdot"
    subprocess.run([compiler, "-static", *flags_of("i8mm"), source, "-o", program], check=True)
    runs = [subprocess.run([emulator, "-cpu", c, program], capture_output=True, check=False) for c in CPUS.values()]
    assert [run.returncode == 0 for run in runs] == [False, False, True]


X86 = re.compile(r"\b(_mm\w*|__m\d+\w*|_MM_\w+|immintrin\.h|__builtin_ia32\w*|__builtin_shuffle)\b")
DEFINED = {"__ARM_NEON", "__aarch64__", "__linux__"}


def lines_for_aarch64(text):
    """What the conditions of a C++ file leave on that machine, without comments."""
    text = re.sub(r"/\*.*?\*/", "", re.sub(r"\\\n", " ", text), flags=re.DOTALL)
    taken = []  # of each open condition: is its present branch on, was one before
    for line in (re.sub(r"//.*", "", line).strip() for line in text.splitlines()):
        word, _, rest = line.removeprefix("#").strip().partition(" ")
        if not line.startswith("#") or word not in {"if", "ifdef", "ifndef", "elif", "else", "endif"}:
            if all(on for on, _ in taken):
                yield line
        elif word == "endif":
            taken.pop()
        elif word in {"elif", "else"}:
            before = any(taken.pop())
            taken.append(((word == "else" or holds(rest)) and not before, before))
        else:
            taken.append((holds(f"defined({rest})") == (word == "ifdef") if word != "if" else holds(rest), False))


def holds(condition):
    """Of defined(...), !, && and ||; any other word counts as not defined."""
    words = re.sub(r"defined\s*\(?\s*(\w+)\s*\)?", lambda m: str(m.group(1) in DEFINED), condition)
    words = re.sub(r"\b(?!True\b|False\b)\w+", "False", words)
    return bool(eval(words.replace("&&", " and ").replace("||", " or ").replace("!", " not ")))


@pytest.mark.parametrize("file", sorted(PLUGIN.glob("*/*.h")) + sorted(PLUGIN.glob("*/*.cpp")), ids=lambda f: f.name)
def test_no_x86_instruction_is_left_on_aarch64(file):
    """Found without a compiler for that machine: each use of x86's instructions has a branch for NEON beside it."""
    assert [line for line in lines_for_aarch64(file.read_text()) if X86.search(line)] == []


def test_conditions_are_followed():
    text = "a\n#if defined(__AVX2__)\nb\n#elif defined(__ARM_NEON)\nc\n#else\nd\n#endif\n"
    text += "#ifndef __ARM_NEON\ne // f\n#endif\ng // h"
    assert list(lines_for_aarch64(text)) == ["a", "c", "g"]
    assert list(lines_for_aarch64("#if !defined(__ARM_NEON) || defined(__AVX2__)\n_mm_x\n#else\ny\n#endif")) == ["y"]
