"""Makes a Python of Linux aarch64 that runs here under qemu, with wheels of that machine installed.

Usage: python plugins/cpu/cross/emulated.py FOLDER PACKAGE...
FOLDER: new; becomes a Debian system of a hundred megabytes. PACKAGE: wheels, or what `uv pip install` takes besides.
Prints the interpreter's path. It starts itself again as any Python does (sys.executable is a script that calls qemu),
so workers and probes run too. The variable QEMU_CPU says which CPU it has; without it, `max` without SVE.
Needs mmdebstrap and qemu-aarch64, and Debian's own package sources.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
# numpy's sums give false warnings on qemu's SVE.
SCRIPT = """#!/bin/sh
QEMU_CPU=${{QEMU_CPU:-max,sve=off}} exec qemu-aarch64 -0 "$0" -L "{root}" "{root}/usr/bin/python{version}" "$@"
"""


def source() -> str:
    """The first source of packages of this system, for aarch64."""
    ask = ("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages")
    first = subprocess.run(ask, check=True, capture_output=True, text=True).stdout.split()[0]
    return f"deb [signed-by={KEYS}] {first} {suite()} main"


def suite() -> str:
    return platform.freedesktop_os_release()["VERSION_CODENAME"]


def make_root(root: Path) -> Path:
    """A Debian system with Python and nothing set up; the interpreter's path. Raises: SystemExit for another Python."""
    include = "--include=python3,libpython3-stdlib,libstdc++6"
    options = ("--quiet", "--variant=extract", "--architectures=arm64", "--mode=root", include)
    subprocess.run(("mmdebstrap", *options, suite(), str(root), source()), check=True)
    if not (root / f"usr/bin/python{VERSION}").exists():
        raise SystemExit(f"{suite()} has no Python {VERSION}, which runs this: take its own Python for wheels and root")
    python = root / "usr/bin/emulated-python"
    python.write_text(SCRIPT.format(root=root, version=VERSION))
    python.chmod(0o755)
    return python


def install(root: Path, packages: list[str]) -> None:
    """Wheels of that machine only: nothing is built here."""
    where = ("--target", str(root / "usr/lib/python3/dist-packages"))
    which = ("--python-version", VERSION, "--python-platform", "aarch64-manylinux_2_28", "--only-binary", ":all:")
    subprocess.run(("uv", "pip", "install", "--quiet", *where, *which, *packages), check=True)


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit("usage: emulated.py FOLDER PACKAGE...")
    root = Path(sys.argv[1]).resolve()
    python = make_root(root)
    install(root, sys.argv[2:])
    sys.stdout.write(f"{python}\n")


if __name__ == "__main__":
    main()
