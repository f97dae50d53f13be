"""Builds the wheel of jackfield-cpu for another machine, with nothing but Python packages (`ziglang`, `uv`).

Usage: uv run --with ziglang python plugins/cpu/cross/build.py PLATFORM FOLDER
PLATFORM: linux-aarch64 or macos-arm64. The wheel, for the Python that runs this, goes into FOLDER; its path is printed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Platform:
    """target: as zig calls it, with the oldest system library or system that will do; host: as Python calls it; tag: of
    the wheel; module: what the import system of that platform calls an extension module, after the version of Python.
    """

    target: str
    host: str
    tag: str
    module: str


PLATFORMS = {
    "linux-aarch64": Platform(
        "aarch64-linux-gnu.2.28", "linux-aarch64", "manylinux_2_28_aarch64", "aarch64-linux-gnu.so"
    ),
    "macos-arm64": Platform("aarch64-macos.13.0", "macosx-13.0-arm64", "macosx_13_0_arm64", "darwin.so"),
}


PLUGIN = HERE.parent
# The environment is changed here and not before: uv, which starts this, would take itself to be on that platform.
BACKEND = """
import json, os, sys
out, changes, settings = sys.argv[1], *map(json.loads, sys.argv[2:])
os.environ.update(changes)
from scikit_build_core.build import build_wheel
build_wheel(out, settings)
"""


def command(name: str, out: Path) -> list[str]:
    """Runs the build backend of the plugin's pyproject.toml in an environment of its own; the wheel goes into `out`."""
    version = f"{sys.version_info.major}{sys.version_info.minor}"
    # Without this setting the module is named for the machine that builds it.
    settings = {
        "cmake.define.PYTHON_MODULE_EXTENSION": f".cpython-{version}-{PLATFORMS[name].module}",
        "cmake.define.CMAKE_COMPILE_WARNING_AS_ERROR": "ON",  # another compiler's warnings would be seen by nobody
        "build-dir": str(out.resolve() / "build"),  # a second build in one folder would forget that name
    }
    needed = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["build-system"]["requires"]
    packages = [word for package in (*needed, "cmake", "ninja") for word in ("--with", package)]
    start = ["uv", "run", "--quiet", "--no-project", "--python", sys.executable, *packages, "python", "-c", BACKEND]
    return [*start, str(out.resolve()), json.dumps(environment(name)), json.dumps(settings)]


def environment(name: str) -> dict[str, str]:
    """What tells Python's build tools the platform, cmake its compiler, and that compiler its target."""
    platform = PLATFORMS[name]
    return {
        "_PYTHON_HOST_PLATFORM": platform.host,
        "CMAKE_TOOLCHAIN_FILE": str(HERE / f"{name}.cmake"),
        "ZIG_TARGET": platform.target,
        "ZIG_PYTHON": sys.executable,
    }


def build(name: str, folder: Path) -> Path:
    """The new wheel. Build tools know no manylinux: what the compiler was bound to is said afterwards."""
    with tempfile.TemporaryDirectory(dir=folder) as empty:
        subprocess.run(command(name, Path(empty)), cwd=PLUGIN, check=True)
        (plain,) = Path(empty).glob("*.whl")
        retag = ("uv", "tool", "run", "wheel", "tags", "--remove", "--platform-tag", PLATFORMS[name].tag, str(plain))
        subprocess.run(retag, check=True)
        (wheel,) = Path(empty).glob("*.whl")
        return wheel.replace(folder / wheel.name)


def main() -> None:
    if len(sys.argv) != 3 or sys.argv[1] not in PLATFORMS:
        sys.exit(f"usage: build.py {'|'.join(PLATFORMS)} FOLDER")
    folder = Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    sys.stdout.write(f"{build(sys.argv[1], folder)}\n")


if __name__ == "__main__":
    main()
