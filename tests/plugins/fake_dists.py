"""Fake installed distributions: a folder with a module and its dist-info, as an installer would leave it."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

GOOD = """
from pathlib import Path

from jackfield.backend import Backend, Device, Kernel, Program, Target, Unavailable, hookimpl

LOG = Path(__file__).with_name("{module}.log")


def count(what):
    with LOG.open("a") as file:
        file.write(what + "\\n")


count("import")


class ToyProgram(Program):
    def run(self):
        pass


class Toy(Device):
    target = Target(kind="{name}", arch="toy")

    def __init__(self, name):
        self.name = name

    def alloc(self, nbytes, usage):
        return bytearray(nbytes)

    def free(self, buffer):
        pass

    def write(self, buffer, offset, data):
        buffer[offset : offset + data.nbytes] = data

    def read(self, buffer, offset, out):
        out[:] = memoryview(buffer)[offset : offset + out.nbytes]

    def compile(self, run, scratch):
        return ToyProgram()


class Acme(Backend):
    name, api = "{name}", (0, 1)

    def devices(self):
        count("devices")
        return [Toy(name) for name in {devices}]

    def kernels(self):
        f32 = frozenset({{"f32"}})
        return {{"add": Kernel({{"a": f32, "b": f32}}, f32)}}


@hookimpl
def jackfield_backend():
    count("hook")
    return Acme()
"""


def manifest(name, device_class="npu", **fields):
    entry = {"name": name, "contract": {"min": "0.1", "max": "0.1"}, "kinds": [{"kind": name, "class": device_class}]}
    return {"schema": "jackfield.backend/1", "backends": [entry | fields]}


def good(name, devices=None):
    """Source of a working plugin."""
    return GOOD.format(name=name, module=f"jackfield_{name}", devices=devices or [f"{name}:0"])


def install(folder: Path, name: str, source: str | None, document="default", **given):
    """Write module jackfield_<name> and its dist-info into a folder of the search path.

    document: the manifest; None for none, text as it stands. given: dist, version, value, group, editable.
    """
    dist = given.get("dist", f"jackfield-{name}")
    version = given.get("version", "1.0")
    module = given.get("module", f"jackfield_{name}")
    info = folder / f"{dist.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n")
    group = given.get("group", "jackfield.backends")
    info.joinpath("entry_points.txt").write_text(f"[{group}]\n{name} = {given.get('value', module)}\n")
    if document == "default":
        document = manifest(name)
    if document is not None:
        place = info / given.get("manifest_file", "backend.json")
        place.parent.mkdir(exist_ok=True)
        place.write_text(document if isinstance(document, str) else json.dumps(document))
    if "direct_url" in given:
        info.joinpath("direct_url.json").write_text(json.dumps(given["direct_url"]))
    if source is not None:
        place = given.get("sources", folder) / f"{module}.py"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(dedent(source))
    return info


def log_of(folder: Path, name: str) -> list[str]:
    """What a good plugin did so far: import, hook, devices."""
    path = folder / f"jackfield_{name}.log"
    return path.read_text().split() if path.exists() else []
