"""Every wheel of the tree by one command, each looked at: `uv run nox -s wheels`.

Usage: uv run --group wheels python .ci/wheels.py [FOLDER]

The wheels go into FOLDER, default dist/. A native one for Linux gets the manylinux tag that it can honestly have here,
by auditwheel, and must bring no library of others along. check-wheel-contents and the rules below look at each. Exit
status 1, with the reasons, where something is wrong.
"""

from __future__ import annotations

import email
import itertools
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("core", "conformance", "plugins/*", "llm", "examples/*")
LARGEST = {"jackfield": 400_000, "jackfield-cpu": 6_000_000}  # bytes
BESIDE = {"jackfield": {"_jackfield"}}  # top-level names besides the package: the core's start of the command line
PAIRED = {"jackfield-conformance"}  # looks into the core, so each is for the core of its own version


@dataclass(frozen=True)
class Wheel:
    """What is in a wheel. files: paths in it. name: of the distribution, in its plain spelling."""

    path: Path
    name: str
    tags: tuple[str, ...]
    files: frozenset[str]
    needs: tuple[str, ...]
    licences: tuple[str, ...]
    is_backend: bool = False
    nbytes: int = field(default=0)
    version: str = ""

    @classmethod
    def read(cls, path: Path) -> Wheel:
        with zipfile.ZipFile(path) as archive:
            files = frozenset(name for name in archive.namelist() if not name.endswith("/"))
            (info,) = {name.partition("/")[0] for name in files if ".dist-info/" in name}
            about = email.message_from_bytes(archive.read(f"{info}/METADATA"))
            tags = email.message_from_bytes(archive.read(f"{info}/WHEEL")).get_all("Tag") or []
            entries = archive.read(f"{info}/entry_points.txt").decode() if f"{info}/entry_points.txt" in files else ""
        return cls(
            path,
            plain(about["Name"]),
            tuple(tags),
            files,
            tuple(about.get_all("Requires-Dist") or ()),
            tuple(f"{info}/licenses/{name}" for name in about.get_all("License-File") or ()),
            "[jackfield.backends]" in entries,
            path.stat().st_size,
            about["Version"],
        )

    @property
    def is_pure(self) -> bool:
        return all(tag.endswith("-none-any") for tag in self.tags)

    @property
    def package(self) -> frozenset[str]:
        return frozenset(name for name in self.files if ".dist-info/" not in name)


def plain(name: str) -> str:
    """A distribution's name in the one spelling that compares equal."""
    return re.sub(r"[-_.]+", "-", name).lower()


def dists(root: Path = ROOT) -> dict[str, Path]:
    """Name to folder of every distribution of the tree, the core first."""
    found = [p for pattern in FOLDERS for p in sorted(root.glob(pattern)) if (p / "pyproject.toml").exists()]
    projects = [(p, tomllib.loads((p / "pyproject.toml").read_text("utf-8"))) for p in found]
    return {plain(fields["project"]["name"]): p for p, fields in projects if "build-system" in fields}


# ---- rules ----------------------------------------------------------------------------------------------------------


def faults(wheel: Wheel) -> Iterator[str]:
    """What is wrong with one wheel, in words."""
    name = wheel.name
    if name == "jackfield" and not wheel.is_pure:
        yield f"{name} is pure Python, and its wheel is tagged {', '.join(wheel.tags)}"
    if wheel.is_pure and (native := [f for f in wheel.files if f.endswith((".so", ".pyd", ".dylib"))]):
        yield f"{name} is tagged as pure Python and holds {native[0]}"
    if any("-linux_" in tag for tag in wheel.tags):
        yield f"{name} has the tag {wheel.tags[0]}, which no index takes: it was not repaired"
    if wheel.nbytes >= LARGEST.get(name, sys.maxsize):
        yield f"{name} takes {wheel.nbytes} bytes, must be below {LARGEST[name]}"
    expected = {name.replace("-", "_")} | BESIDE.get(name, set())
    tops = {path.partition("/")[0].removesuffix(".py") for path in wheel.package}
    if tops != expected:
        yield f"{name} has the top-level names {', '.join(sorted(tops))}, must have {', '.join(sorted(expected))}"
    if not wheel.licences or not set(wheel.licences) <= wheel.files:
        yield f"{name} does not hold the text of its licence"
    if wheel.is_backend and not any(re.search(r"\.dist-info/(extra_metadata/)?backend\.json$", f) for f in wheel.files):
        yield f"{name} is a backend without backend.json"
    yield from bounds(wheel)


def bounds(wheel: Wheel) -> Iterator[str]:
    """How it asks for the core: from some version on, and at most below a major one; the kit for its own alone."""
    if wheel.name == "jackfield":
        return
    asked = [text for text in wheel.needs if re.match(r"jackfield\b(?![-_.])", text) and "extra ==" not in text]
    if wheel.name in PAIRED:
        if asked != [own := f"jackfield=={wheel.version}"]:
            yield f"{wheel.name} must require {own}, and says {', '.join(asked) or 'nothing'}"
        return
    if loose := [text for text in asked or ("nothing",) if ">" not in text.partition(";")[0]]:
        yield f"{wheel.name} must require jackfield from some version on, and says {loose[0]}"
    for text in (text.partition(";")[0] for text in asked):  # what follows is a condition
        if "==" in text or "~=" in text:
            yield f"{wheel.name} pins {text}"
        if caps := [cap for cap in re.findall(r"<=?\s*([\d.]+)", text) if not re.fullmatch(r"\d+(\.0)*", cap)]:
            yield f"{wheel.name} requires {text}: {caps[0]} is no next major version"


def overlaps(wheels: Iterable[Wheel]) -> Iterator[str]:
    """Files that two wheels bring: the one that is removed takes them from the other."""
    for one, other in itertools.combinations(wheels, 2):
        if both := sorted(one.files & other.files):
            yield f"{one.name} and {other.name} both bring {both[0]}"


# ---- building -------------------------------------------------------------------------------------------------------


def call(*words: str | Path) -> None:
    """Raises: SystemExit with the last lines of what was printed."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stdout + done.stderr).splitlines()
        raise SystemExit(f"{' '.join(map(str, words[:4]))} ended with {done.returncode}\n" + "\n".join(lines[-30:]))


def built(folder: Path, out: Path) -> Path:
    """The wheel of one distribution in `out`, with the tag that it can have."""
    with tempfile.TemporaryDirectory(dir=out) as empty:
        call("uv", "build", "-q", "--wheel", "--python", sys.executable, "--out-dir", empty, folder)
        (wheel,) = Path(empty).glob("*.whl")
        if "-linux_" in wheel.name:
            call(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", f"{empty}/repaired", wheel)
            (wheel,) = Path(empty).glob("repaired/*.whl")
        return wheel.replace(out / wheel.name)


def main(arguments: list[str]) -> int:
    out = Path(arguments[0]) if arguments else ROOT / "dist"
    out.mkdir(parents=True, exist_ok=True)
    wheels = []
    for name, folder in dists().items():
        for old in out.glob(f"{name.replace('-', '_')}-*.whl"):
            old.unlink()
        wheels.append(Wheel.read(built(folder, out)))
        sys.stdout.write(f"{wheels[-1].nbytes:>9} bytes  {wheels[-1].path}\n")
        sys.stdout.flush()
    wrong = [text for wheel in wheels for text in faults(wheel)] + list(overlaps(wheels))
    for text in wrong:
        sys.stderr.write(f"{text}\n")
    call(sys.executable, "-m", "check_wheel_contents", *(wheel.path for wheel in wheels))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
