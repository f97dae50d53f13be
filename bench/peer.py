"""The peers, llama.cpp and its fork ik_llama.cpp, built natively outside the source tree.

    uv run python bench/peer.py build [--dir DIR] [--jobs N]  both, and our small programs on their libraries
    uv run python bench/peer.py vocab [--dest DIR]            the vocabularies that tests/golden/vocab needs

Everything lands in the user's cache folder, or in the folder `--dir` or the variable JACKFIELD_PEER_DIR names.
What is there already is kept, so each command may be run again at no cost. `build` prints versions, flags and where
the programs are.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from machine import cpu_name
from peer_sources import IK, LLAMA, RECIPES, PeerError, Recipe, cache_dir, peer_dir, run, unpack, vocabularies

BENCH = Path(__file__).resolve().parent
RECORDERS = ("llama_logits.cpp", "llama_embeddings.cpp")
"""Programs that make golden data, on llama.cpp alone."""


@dataclass(frozen=True)
class Peer:
    """Where a built peer is and what it was built from.

    native: whether it was built for the CPU it is to run on. programs: paths by name.
    """

    name: str
    version: str
    package: str
    flags: tuple[str, ...]
    compiler: str
    native: bool
    programs: dict[str, str]

    @property
    def llama_bench(self) -> str:
        return self.programs["llama-bench"]

    @property
    def llama_logits(self) -> str:
        return self.programs["llama-logits"]

    @property
    def llama_embeddings(self) -> str:
        return self.programs["llama-embeddings"]

    @property
    def origin(self) -> dict[str, object]:
        """All but the paths: what results tell of a peer."""
        return {key: value for key, value in asdict(self).items() if key != "programs"}


def tool(name: str) -> str:
    """The path of a build tool: on PATH, or beside this interpreter (the packages cmake and ninja put it there)."""
    path = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if path is None:
        raise PeerError(f"peer: {name} is needed and not found; `pip install {name}` or your system's package")
    return path


def build(folder: Path, jobs: int, recipe: Recipe = LLAMA) -> Peer:
    """A peer built in `folder`; at once where it is there and newer than the source of our programs."""
    source, out = unpack(folder, recipe), folder / recipe.out
    bench, mark = out / "bin" / "llama-bench", out / "built-on.txt"
    if not bench.exists():
        ninja = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}"] if has_ninja() else []
        run([tool("cmake"), "-S", source, "-B", out, *ninja, *recipe.flags], folder)
        run([tool("cmake"), "--build", out, "-j", str(jobs), "--target", "llama-bench"], folder)
        mark.write_text(cpu_name() + "\n")
    programs = {"llama-bench": str(bench)}
    for program in (*RECORDERS, "peer_probe.cpp", "peer_matmul.cpp"):
        if recipe is LLAMA or program not in RECORDERS:
            path = small_program(source, out, recipe, BENCH / program, folder)
            programs[path.name] = str(path)
    native = mark.exists() and mark.read_text().strip() == cpu_name() and "-DGGML_NATIVE=ON" in recipe.flags
    package = f"{recipe.package} {recipe.version}"
    return Peer(recipe.name, version(bench, recipe), package, recipe.flags, compiler(), native, programs)


def build_all(folder: Path, jobs: int) -> list[Peer]:
    """Every peer, in the order of RECIPES; what they are is left in `folder`/peer.json as well."""
    peers = [build(folder, jobs, recipe) for recipe in RECIPES]
    (folder / "peer.json").write_text(json.dumps([asdict(peer) for peer in peers], indent=1) + "\n")
    return peers


def read_peers(path: Path) -> list[Peer]:
    """Peers that somebody else built, as `build` prints them. Raises: PeerError for a file that is not like that."""
    try:
        found = [Peer(**{**fields, "flags": tuple(fields["flags"])}) for fields in json.loads(path.read_text())]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PeerError(f"peer: {path}: {error}; it must be what `peer.py build` prints") from error
    if not found:
        raise PeerError(f"peer: {path} names no peer")
    return found


def has_ninja() -> bool:
    try:
        tool("ninja")
    except PeerError:
        return False
    return True


def small_program(source: Path, out: Path, recipe: Recipe, program: Path, folder: Path) -> Path:
    """A program of one file on the peer's static libraries, built again where its source is newer."""
    path = out / "bin" / program.stem.replace("_", "-")
    if not path.exists() or path.stat().st_mtime < program.stat().st_mtime:
        run([*link_command(source, out, recipe, program), "-o", path], folder)
    return path


def link_command(source: Path, out: Path, recipe: Recipe, program: Path) -> list[str | Path]:
    """The compiler's command for it."""
    found = {name: next(out.rglob(f"lib{name}.a"), None) for name in recipe.libraries}
    if missing := [name for name, path in found.items() if path is None]:
        raise PeerError(f"peer: {out} holds no lib{missing[0]}.a; remove the folder and run again")
    includes = [f"-I{source / part}" for part in ("include", "ggml/include", "ggml/src")]
    libraries = ["-Wl,--start-group", *map(str, found.values()), "-Wl,--end-group"]
    define = [recipe.define] if recipe.define else []
    return [tool("c++"), "-std=c++17", "-O2", *define, *includes, program, *libraries, "-fopenmp", "-pthread", "-ldl"]


def version(bench: Path, recipe: Recipe = LLAMA) -> str:
    """What `llama-bench --version` says in its first line; the fork has no such option, its package tells all."""
    if recipe is IK:
        return f"{recipe.name} of {recipe.package} {recipe.version}"
    done = subprocess.run([bench, "--version"], check=True, capture_output=True, text=True)
    return (done.stdout + done.stderr).strip().splitlines()[0]


def compiler() -> str:
    done = subprocess.run([tool("c++"), "--version"], check=True, capture_output=True, text=True)
    return done.stdout.splitlines()[0]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("build", "vocab"):
        command = commands.add_parser(name)
        command.add_argument("--dir", help="where the peers' files are kept")
        if name == "build":
            command.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes of the build")
        else:
            command.add_argument("--dest", type=Path, help="where the vocabularies go")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "build":
            print(json.dumps([asdict(peer) for peer in build_all(peer_dir(chosen.dir), chosen.jobs)], indent=1))
        else:
            dest = chosen.dest or cache_dir() / "vocab"
            print(f"{len(vocabularies(peer_dir(chosen.dir), dest))} vocabularies in {dest}")
    except PeerError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
