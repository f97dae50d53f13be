"""`jackfield new-backend`: a repository of a vendor's own, whose wheel builds and passes the kit as it stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

import click

from jackfield.backend import API, Backend, Device, Kernel, Target
from jackfield.conformance.claims import claims
from jackfield.discovery import CORE_VERSION
from jackfield.manifest import WORD
from jackfield.names import CLASSES

__all__ = ["new_backend"]

TAKEN = {"auto", "sim", "reference", *CLASSES}
SUFFIX = ".in"  # so that no tool takes a template for what it becomes


@click.command("new-backend")
@click.argument("name")
@click.option("--native", is_flag=True, help="Kernels in C++, by pybind11 and scikit-build-core; else numpy alone.")
@click.option(
    "--into", type=click.Path(file_okay=False, path_type=Path), help="The new folder; default jackfield-NAME, here."
)
@click.pass_context
def new_backend(ctx: click.Context, name: str, *, native: bool, into: Path | None) -> None:
    """Write a repository for the backend NAME: package, manifest, kernels, tests, CI file."""
    if not WORD.fullmatch(name):
        raise click.UsageError(
            f"{name!r}: a backend is called by a lower-case word of 2 to 32 letters, digits and _", ctx
        )
    if name in TAKEN:
        raise click.UsageError(f"{name!r} means something else in a device string; choose another name", ctx)
    folder = into if into is not None else Path(f"jackfield-{name}")
    if folder.exists() and any(folder.iterdir()):
        raise click.ClickException(f"{folder} is there and not empty; choose another folder with --into")
    files = filled(name, "native" if native else "pure")
    for path, text in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, "utf-8")
    click.echo(f"{len(files)} files in {folder}; next:\n  cd {folder}")
    click.echo("  python -m pip install . 'jackfield[conformance]'\n  python -m pytest")


def filled(name: str, kind: str) -> dict[str, str]:
    """Path and text of every file of a new repository. kind: "pure" or "native"."""
    words = {
        "name": name,
        "Name": "".join(part.capitalize() for part in name.split("_")),
        "api": f"({API[0]}, {API[1]})",
        "contract": f"{API[0]}.{API[1]}",
        "version": CORE_VERSION,
    }
    root = resources.files("jackfield") / "templates"
    found = {}
    for folder in ("both", kind):
        for path, text in _texts(root / folder):
            found[path.replace("NAME", name)] = Template(text).substitute(words)
    found["claims.txt"] = claims(_Claimed(), Target(kind=name, arch=""))
    return found


class _Claimed(Backend):
    """What the templates' kernels take, so that claims.txt is right for the ops of this very core."""

    name, api = "", API

    def devices(self) -> Sequence[Device]:
        return ()

    def kernels(self) -> Mapping[str, Kernel]:
        f32 = frozenset({"f32"})
        return {"add": Kernel({"a": f32, "b": f32}, f32), "relu": Kernel({"x": f32}, f32)}


def _texts(folder: Traversable, before: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for entry in sorted(folder.iterdir(), key=lambda e: e.name):
        if entry.is_dir():
            found += _texts(entry, f"{before}{entry.name}/")
        elif entry.name.endswith(SUFFIX):
            found.append((before + entry.name.removesuffix(SUFFIX), entry.read_text("utf-8")))
    return found
