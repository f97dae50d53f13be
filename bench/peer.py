"""The peers, llama.cpp and its fork ik_llama.cpp, built natively outside the source tree.

    uv run python bench/peer.py build [--dir DIR] [--jobs N]  both, and our small programs on their libraries
    uv run python bench/peer.py stamp [--dir DIR]             whether builds of older scripts are for this CPU
    uv run python bench/peer.py vocab [--dest DIR]            the vocabularies that tests/golden/vocab needs

Everything lands in the user's cache folder, or in the folder `--dir` or the variable JACKFIELD_PEER_DIR names;
vocabularies in the one that `--dest` or JACKFIELD_VOCABS names.
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
from typing import Any

from machine import cpu_mark, cpu_name
from peer_sources import IK, LLAMA, RECIPES, PeerError, Recipe, peer_dir, run, unpack, vocab_dir, vocabularies

BENCH = Path(__file__).resolve().parent
RECORDERS = ("llama_logits.cpp", "llama_embeddings.cpp")
"""Programs that make golden data, on llama.cpp alone."""
NATIVE = "-DGGML_NATIVE=ON"
MARK = "built-for.txt"
"""In a build folder: `cpu_mark` of the CPU it was built on."""
OLD_MARK = "built-on.txt"
"""What older scripts left there: `cpu_name`, without the CPU's flags."""


@dataclass(frozen=True)
class Peer:
    """Where a built peer is and what it was built from.

    built_on: `machine.cpu_mark` of the CPU it was built on. programs: paths by name.
    """

    name: str
    version: str
    package: str
    flags: tuple[str, ...]
    compiler: str
    built_on: str
    programs: dict[str, str]

    @property
    def native(self) -> bool:
        """Whether it was built for the CPU this is; asked anew on every machine."""
        return NATIVE in self.flags and self.built_on == cpu_mark()

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
        return {key: value for key, value in asdict(self).items() if key != "programs"} | {"native": self.native}


def tool(name: str) -> str:
    """The path of a build tool: on PATH, or beside this interpreter (the packages cmake and ninja put it there)."""
    path = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if path is None:
        raise PeerError(f"peer: {name} is needed and not found; `pip install {name}` or your system's package")
    return path


def build(folder: Path, jobs: int, recipe: Recipe = LLAMA) -> Peer:
    """A peer built in `folder`; at once where it is there and newer than the source of our programs.

    Raises: PeerError also for a build that does not tell on which CPU it was made.
    """
    source, out = unpack(folder, recipe), folder / recipe.out
    bench, mark = out / "bin" / "llama-bench", out / MARK
    fresh, mended = not bench.exists(), max((one.stat().st_mtime for one in mended_files(source, recipe)), default=0.0)
    if fresh:
        ninja = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}"] if has_ninja() else []
        run([tool("cmake"), "-S", source, "-B", out, *ninja, *recipe.flags], folder)
    if fresh or bench.stat().st_mtime < mended:
        run([tool("cmake"), "--build", out, "-j", str(jobs), "--target", "llama-bench"], folder)
    if fresh:
        mark.write_text(cpu_mark() + "\n")
    if not mark.exists():
        raise PeerError(
            f"peer: {out} does not tell on which CPU it was built; `peer.py stamp` looks whether on this one"
        )
    programs = {"llama-bench": str(bench)}
    for program in (*RECORDERS, "peer_probe.cpp", "peer_matmul.cpp"):
        if recipe is LLAMA or program not in RECORDERS:
            path = small_program(source, out, recipe, BENCH / program, folder)
            programs[path.name] = str(path)
    built_on = mark.read_text().strip()
    package = f"{recipe.package} {recipe.version}" + (", mended by peer_sources.py" if recipe.mends else "")
    return Peer(recipe.name, version(bench, recipe), package, recipe.flags, compiler(), built_on, programs)


def build_all(folder: Path, jobs: int) -> list[Peer]:
    """Every peer, in the order of RECIPES; what they are is left in `folder`/peer.json as well."""
    peers = [build(folder, jobs, recipe) for recipe in RECIPES]
    (folder / "peer.json").write_text(json.dumps([asdict(peer) for peer in peers], indent=1) + "\n")
    return peers


def read_peers(path: Path) -> list[Peer]:
    """Peers that somebody else built, as `build` prints them.

    Raises: PeerError for a file that is not like that, and for peers built on another CPU than this or nobody knows
    which.
    """
    try:
        found = [peer_of(fields, path) for fields in json.loads(path.read_text())]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PeerError(f"peer: {path}: {error}; it must be what `peer.py build` prints") from error
    if not found:
        raise PeerError(f"peer: {path} names no peer")
    for one in found:
        if one.built_on != cpu_mark():
            raise PeerError(
                f"peer: {path}: {one.name} was built on {one.built_on!r}, this is {cpu_mark()!r}; build it here"
            )
    return found


def peer_of(fields: dict[str, Any], path: Path) -> Peer:
    """One peer of a file. `native`, which older scripts wrote, says nothing: it is asked here."""
    if "native" in fields and "built_on" not in fields:
        raise PeerError(
            f"peer: {path}: built by an older script, which kept no CPU flags; run `peer.py stamp`, or build again"
        )
    return Peer(**{**{key: value for key, value in fields.items() if key != "native"}, "flags": tuple(fields["flags"])})


def stamp(folder: Path, recipe: Recipe) -> None:
    """Mark a build of an older script as made for this CPU, after looking whether it was.

    Looked at: the CPU's name it was marked with, what cmake was told, the compiler, the flags of every file's command,
    and whether its kernels run here and multiply right. Raises: PeerError for a build that fails one of these.
    """
    out = folder / recipe.out
    if (out / MARK).exists():
        return
    if why := why_not_native(out):
        raise PeerError(f"peer: {out} can't be stamped: {why}; remove it and run `peer.py build`")
    (out / MARK).write_text(cpu_mark() + "\n")


def why_not_native(out: Path) -> str | None:
    """What speaks against this build being for this CPU, in words; None where nothing does."""
    old, cache, commands = out / OLD_MARK, out / "CMakeCache.txt", out / "compile_commands.json"
    if missing := [path.name for path in (old, cache, commands) if not path.exists()]:
        return f"it has no {missing[0]}"
    if old.read_text().strip() != cpu_name():
        return f"it was built on {old.read_text().strip()!r}, this is {cpu_name()!r}"
    if "GGML_NATIVE:BOOL=ON" not in cache.read_text():
        return "cmake was not told GGML_NATIVE=ON"
    if f"CMAKE_CXX_COMPILER:FILEPATH={tool('c++')}\n" not in cache.read_text():
        return f"its compiler is not {tool('c++')}"
    files = json.loads(commands.read_text())
    kernels = [one["command"] for one in files if "/ggml-cpu/" in one["file"] or "/iqk/" in one["file"]]
    if not kernels or not all("-march=native" in command for command in kernels):
        return "its kernels were compiled without -march=native"
    words = [out / "bin" / "peer-matmul", "q8_0", "1", "0", "1", "256", "256", "4"]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    figures = done.stdout.split()
    right = done.returncode == 0 and figures[:1] == ["4"] and "wrong" not in figures
    return None if right else "its kernels do not run here, or multiply wrong"


def mended_files(source: Path, recipe: Recipe) -> list[Path]:
    return [source / one.path for one in recipe.mends]


def has_ninja() -> bool:
    try:
        tool("ninja")
    except PeerError:
        return False
    return True


def small_program(source: Path, out: Path, recipe: Recipe, program: Path, folder: Path) -> Path:
    """A program of ours on the peer's static libraries, built again where its source or a header is newer."""
    path = out / "bin" / program.stem.replace("_", "-")
    ours = (program, *BENCH.glob("*.h"))
    newest = max(one.stat().st_mtime for one in (*ours, out / "bin" / "llama-bench"))
    if not path.exists() or path.stat().st_mtime < newest:
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
    for name in ("build", "stamp", "vocab"):
        command = commands.add_parser(name)
        command.add_argument("--dir", help="where the peers' files are kept")
        if name != "vocab":
            command.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes of the build")
        else:
            command.add_argument("--dest", type=Path, help="where the vocabularies go")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "stamp":
            for recipe in RECIPES:
                stamp(peer_dir(chosen.dir), recipe)
        if chosen.command != "vocab":
            print(json.dumps([asdict(peer) for peer in build_all(peer_dir(chosen.dir), chosen.jobs)], indent=1))
        else:
            dest = chosen.dest or vocab_dir()
            print(f"{len(vocabularies(peer_dir(chosen.dir), dest))} vocabularies in {dest}")
    except PeerError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
