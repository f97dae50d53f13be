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
