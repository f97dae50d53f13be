"""The scripts that build the CPU's wheel for other machines; .ci/full builds and runs those wheels."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import stat
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PLUGIN = Path(__file__).parents[2] / "plugins" / "cpu"
CROSS = PLUGIN / "cross"


def script(name):
    spec = importlib.util.spec_from_file_location(f"cross_{name}", CROSS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


build, check = script("build"), script("check")


def compiler_called_with(arguments, tmp_path):
    """What the compiler's script hands to zig."""
    fake = tmp_path / "python"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    env = os.environ | {"ZIG_PYTHON": str(fake), "ZIG_TARGET": "some-target"}
    return subprocess.run(
        [CROSS / "zig-c++", *arguments], env=env, capture_output=True, text=True, check=True
    ).stdout.splitlines()


def test_the_compiler_gets_its_target_and_every_argument_as_it_was(tmp_path):
    arguments = ["-O3", '-DX="a b"', "-I/with a space", "-march=armv8-a", "x.cpp"]
    assert compiler_called_with(arguments, tmp_path) == ["-m", "ziglang", "c++", "-target", "some-target", *arguments]


def test_the_compiler_is_told_each_level_by_zigs_names(tmp_path):
    """A level whose flags zig does not know would be built for another one, or not at all."""
    flags = re.findall(r"set\(FLAGS_\w+ (-march=\S+)\)", (PLUGIN / "CMakeLists.txt").read_text())
    assert len(flags) == 2
    for flag in flags:
        (told,) = compiler_called_with([flag], tmp_path)[5:]
        features = {"fullfp16" if f == "fp16" else f for f in flag.split("+")[1:]}
        assert told.startswith("-mcpu=generic+v8_2a+") and set(told.split("+")[2:]) == features


@pytest.mark.parametrize("name", build.PLATFORMS)
def test_a_platform_has_a_toolchain_file_and_the_manifest_names_it(name):
    assert (CROSS / f"{name}.cmake").exists()
    (backend,) = json.loads((PLUGIN / "backend.json").read_text())["backends"]
    assert name.replace("-", "/") in backend["platforms"]
    assert Path(build.environment(name)["CMAKE_TOOLCHAIN_FILE"]).stem == name


FAKE_UV = """#!{python}
import os, subprocess, sys
from pathlib import Path
assert not os.environ.keys() & {changed}, "uv would take this machine for another"
arguments = sys.argv[1:]
if arguments[0] == "run":  # the build: by a backend that is not one
    at = arguments.index("-c")
    os.environ["PYTHONPATH"] = {backend!r}
    sys.exit(subprocess.run([sys.executable, *arguments[at:]]).returncode)
wheel = Path(arguments[-1])
wheel.rename(wheel.with_name(wheel.name.replace("any", arguments[-2])))
"""
FAKE_BACKEND = """
import os
from pathlib import Path
def build_wheel(out, settings):
    seen = [os.environ["_PYTHON_HOST_PLATFORM"], os.environ["ZIG_TARGET"], *settings.values()]
    assert Path(seen.pop()).parent == Path(out), "a build folder that other builds know"
    assert Path("CMakeLists.txt").exists() and Path(os.environ["CMAKE_TOOLCHAIN_FILE"]).exists()
    (Path(out) / "it-1-cp3-cp3-any.whl").write_text(" ".join(seen))
"""


@pytest.mark.parametrize("name", build.PLATFORMS)
def test_the_platform_is_told_to_the_build_backend_and_to_nothing_before_it(name, tmp_path, monkeypatch):
    """uv asks an interpreter where it runs: with the platform in its environment it refuses this one, or takes build
    tools of that platform.
    """
    changed = set(build.environment(name))
    package = tmp_path / "scikit_build_core"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "build.py").write_text(FAKE_BACKEND)
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text(FAKE_UV.format(python=sys.executable, changed=changed, backend=str(tmp_path)))
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{uv.parent}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "out").mkdir()
    wheel = build.build(name, tmp_path / "out")
    platform = build.PLATFORMS[name]
    assert wheel == tmp_path / "out" / f"it-1-cp3-cp3-{platform.tag}.whl"
    version = f"{sys.version_info.major}{sys.version_info.minor}"
    assert wheel.read_text() == f"{platform.host} {platform.target} .cpython-{version}-{platform.module} ON"


def test_wrong_use_is_told(tmp_path):
    done = subprocess.run(
        [sys.executable, CROSS / "build.py", "toaster", tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "usage: build.py linux-aarch64|macos-arm64 FOLDER" in done.stderr


# ---- what a wheel holds ---------------------------------------------------------------------------------------------


def wheel(folder, module, data, *, tag="cp311-cp311-manylinux_2_28_aarch64", inside=None):
    path = folder / f"jackfield_cpu-0.1.0-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"jackfield_cpu/{module}", data)
        archive.writestr("jackfield_cpu-0.1.0.dist-info/WHEEL", f"Wheel-Version: 1.0\nTag: {inside or tag}\n")
    return path


LINUX, MACOS = "_native.cpython-311-aarch64-linux-gnu.so", "_native.cpython-311-darwin.so"
MAC_TAG = "cp311-cp311-macosx_13_0_arm64"


def elf(*, machine=183, needed=("libc.so.6",), glibc=17):
    """The least that has a dynamic section: one loaded segment at 0x1000, one list, one table of texts."""
    texts = b"\0" + b"".join(name.encode() + b"\0" for name in needed) + f"GLIBC_2.{glibc}\0".encode()
    at, offsets = 1, []
    for name in needed:
        offsets.append(at)
        at += len(name) + 1
    dynamic = b"".join(struct.pack("<QQ", 1, o) for o in offsets) + struct.pack("<QQ", 5, 0x1000 + 64 + 112)
    whole = 64 + 112 + len(texts) + len(dynamic)
    header = struct.pack(
        "<4sBBBB8xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 0, 3, machine, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0
    )
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0x1000, 0x1000, whole, whole, 4096)
    place = 64 + 112 + len(texts)
    return (
        header
        + load
        + struct.pack("<IIQQQQQQ", 2, 4, place, place, place, len(dynamic), len(dynamic), 8)
        + texts
        + dynamic
    )


def mach_o(
    *,
    machine=0x0100000C,
    library="/usr/lib/libSystem.B.dylib",
    defined="_PyInit__native",
    wanted="_PyErr_Format",
    signed=True,
    kind=8,
    system=(1, 13, 0),
    name_first=True,
):
    texts = b"\0" + defined.encode() + b"\0" + wanted.encode() + b"\0"
    symbols = struct.pack("<IBBHQ", 1, 0x0F, 1, 0, 0x100) + struct.pack("<IBBHQ", 2 + len(defined), 1, 0, 0, 0)
    # a symbol of the first library, then one by look-up; addresses of several bytes in between
    looked_up = b"\x40" + wanted.encode() + b"\0"
    looked_up = looked_up + b"\x51\x3e" if name_first else b"\x3e" + looked_up
    bound = b"\x11\x40_free\0\x51\x72\x80\x81\x01\x90" + looked_up + b"\xa0\x81\x01\x40_exp\0\x11\x90"
    name = library.encode() + b"\0" * (8 - len(library) % 8)
    commands = [struct.pack("<6I", 0xC, 24 + len(name), 24, 0, 0, 0) + name]
    if signed:
        commands.append(struct.pack("<4I", 0x1D, 16, 0, 0))
    if system:
        commands.append(struct.pack("<6I", 0x32, 24, system[0], system[1] << 16 | system[2] << 8, 0, 0))
    size = sum(map(len, commands)) + 24 + 48
    end = 32 + size + len(symbols) + len(texts)
    commands.append(struct.pack("<6I", 2, 24, 32 + size, 2, 32 + size + len(symbols), len(texts)))
    commands.append(struct.pack("<12I", 0x80000022, 48, 0, 0, end, len(bound), 0, 0, 0, 0, 0, 0))
    header = struct.pack("<8I", 0xFEEDFACF, machine, 0, kind, len(commands), size, 0, 0)
    return header + b"".join(commands) + symbols + texts + bound


def test_a_right_wheel_is_described(tmp_path):
    text = check.check(wheel(tmp_path, LINUX, elf(needed=("libm.so.6", "libc.so.6"))))
    assert text.endswith("needs libm.so.6, libc.so.6 and glibc 2.17")
    assert check.check(wheel(tmp_path, MACOS, mach_o(), tag=MAC_TAG)).endswith("and macOS 13.0, 1 symbols of Python")
    whole = wheel(tmp_path, LINUX, elf())
    assert f": {whole.stat().st_size} bytes, its module {len(elf())}, " in check.check(
        whole
    )  # what is loaded, unpacked
    older = mach_o(kind=6, system=(1, 11, 5))
    assert "and macOS 11.5," in check.check(wheel(tmp_path, MACOS, older, tag=MAC_TAG))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (elf(machine=62), "for machine 62, must be 64-bit ELF for 183"),
        (elf(glibc=34), "asks for glibc 2.34, the tag cp311-cp311-manylinux_2_28_aarch64 for no more than 2.28"),
        (elf(needed=("libc.so.6", "libstdc++.so.6")), "needs libstdc++.so.6, which that system does not have"),
        (mach_o(), "must be 64-bit ELF"),
    ],
)
def test_a_module_that_linux_could_not_load_is_refused(tmp_path, data, text):
    with pytest.raises(check.Wrong, match=re.escape(text)):
        check.check(wheel(tmp_path, LINUX, data))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (mach_o(machine=0x01000007), "must be 64-bit Mach-O for 0x100000c"),
        (mach_o(signed=False), "has no code signature"),
        (mach_o(kind=2), "is a Mach-O file of kind 2"),
        (mach_o(system=(1, 14, 0)), "needs macOS 14.0, which is more than the tag cp311-cp311-macosx_13_0_arm64 says"),
        (mach_o(system=(1, 13, 1)), "needs macOS 13.1"),
        (mach_o(system=(2, 13, 0)), "is built for the platforms [2], must be [1]"),
        (mach_o(system=None), "is built for the platforms []"),
        (mach_o(library="/usr/lib/libc++.1.dylib"), "needs /usr/lib/libc++.1.dylib, which that system does not have"),
        (mach_o(defined="_PyInit_other"), "does not define PyInit__native"),
        (mach_o(wanted="_getauxval"), "expects Python to have _getauxval"),
        (mach_o(wanted="_getauxval", name_first=False), "expects Python to have _getauxval"),
    ],
)
def test_a_module_that_macos_could_not_load_is_refused(tmp_path, data, text):
    with pytest.raises(check.Wrong, match=re.escape(text)):
        check.check(wheel(tmp_path, MACOS, data, tag=MAC_TAG))


def test_a_module_of_another_machine_or_a_tag_inside_that_differs_is_refused(tmp_path):
    with pytest.raises(check.Wrong, match="must be one _native"):
        check.check(wheel(tmp_path, "_native.cpython-311-x86_64-linux-gnu.so", elf()))
    with pytest.raises(check.Wrong, match=r"says .*linux_x86_64.* inside"):
        check.check(wheel(tmp_path, LINUX, elf(), inside="cp311-cp311-linux_x86_64"))
    with pytest.raises(check.Wrong, match="its module is for Python 311"):
        check.check(wheel(tmp_path, LINUX, elf(), tag="cp312-cp312-manylinux_2_28_aarch64"))


def test_a_wheel_for_another_machine_may_be_no_larger_than_the_one_for_this(tmp_path, monkeypatch):
    """The size of the wheel counts, not that of the module in it."""
    text = (PLUGIN.parents[1] / ".ci/wheels.py").read_text()
    assert f'"jackfield-cpu": {check.LARGEST:_}' in text
    for module, data, tag in ((LINUX, elf(), "cp311-cp311-manylinux_2_28_aarch64"), (MACOS, mach_o(), MAC_TAG)):
        path = wheel(tmp_path, module, data, tag=tag)
        nbytes = path.stat().st_size
        monkeypatch.setattr(check, "LARGEST", nbytes + 1)
        check.check(path)
        monkeypatch.setattr(check, "LARGEST", nbytes)
        with pytest.raises(check.Wrong, match=f"takes {nbytes} bytes, must be below {nbytes}"):
            check.check(path)


def test_check_ends_with_the_reason(tmp_path):
    bad = wheel(tmp_path, LINUX, elf(machine=62))
    done = subprocess.run([sys.executable, CROSS / "check.py", bad], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and f"{bad}: the module is " in done.stderr
