"""Virtual environments into which tests install wheels, and processes that run there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path


def needed(name: str, found: dict[str, Distribution]) -> dict[str, Distribution]:
    """By name: every distribution that one here needs, without extras, whatever needs it."""
    for text in distribution(name).requires or ():
        if need := re.match(r"[\w.-]+(?![^;]*;.*extra)", text):
            try:
                one = distribution(need.group())
            except PackageNotFoundError:  # for another system
                continue
            if one.name not in found:
                found[one.name] = one
                needed(one.name, found)
    return found


class Environment:
    """A virtual environment that sees what this one has, with a cache of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder / "venv", symlinks=True)
        self.python = folder / "venv" / "bin" / "python"
        words = [self.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        self.site = Path(subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip())
        self._see()
        self.cache = folder / "cache"

    def _see(self) -> None:
        parent = sysconfig.get_path("purelib")
        (self.site / "_parent.pth").write_text(f"import site; site.addsitedir({parent!r})\n")

    def install(self, *wheels: Path, into: Path | None = None) -> None:
        """into: a folder that is not the environment's own."""
        uv = shutil.which("uv")
        if uv:
            words = [uv, "pip", "install", "-q", "--offline", "--no-deps", "--reinstall", "--python", self.python]
        else:
            words = [sys.executable, "-m", "pip", "--python", self.python, "install", "-q", "--no-index", "--no-deps"]
        target = [] if into is None else ["--target", into]
        subprocess.run([*words, *target, *wheels], check=True, capture_output=True)

    def start(self, code: str, *options: str, **settings: str) -> subprocess.Popen[str]:
        """options: of the interpreter. settings: of the environment."""
        plain = {k: v for k, v in os.environ.items() if not k.startswith("JACKFIELD_")}
        given = {**plain, "JACKFIELD_CACHE": str(self.cache), **settings}
        words = [self.python, *options, "-c", code]
        return subprocess.Popen(words, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, code: str, *options: str, **settings: str) -> tuple[int, str, str]:
        """Exit code, stdout, stderr of a host."""
        host = self.start(code, *options, **settings)
        out, err = host.communicate()
        return host.returncode, out, err

    def log(self, name: str) -> list[str]:
        """Who did what in a plugin so far, such as "child import"."""
        path = self.site / f"jackfield_{name}" / f"{name}.log"
        return path.read_text().splitlines() if path.exists() else []


class Plain(Environment):
    """One that sees what the core needs, and nothing else: no distribution of the tree, no pytest."""

    def _see(self) -> None:
        for one in needed("jackfield", {}).values():
            for top in {path.parts[0] for path in one.files or () if path.parts[0] not in ("..", "__pycache__")}:
                (self.site / top).symlink_to(one.locate_file(top))
