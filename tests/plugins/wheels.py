"""Wheels of fake backends, built here, for environments of their own."""

from __future__ import annotations

import base64
import hashlib
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path

from fake_dists import manifest

LOG = """
import os, sys
from pathlib import Path


def count(what):
    who = "child" if sys.flags.isolated else "here"
    with Path(__file__).with_name("{name}.log").open("a") as file:
        file.write(f"{{who}} {{what}}\\n")


count("import")
"""

TOY = """
import numpy as np

from jackfield.backend import Backend, Device, Kernel, OutOfMemory, Program, Target, hookimpl


class ToyProgram(Program):
    def __init__(self, device, groups):
        self.device, self.groups = device, groups

    def run(self):
        fault("call")
        for group in self.groups:
            for placed in group.steps:
                a, b = (self.device.array(place) for place in placed.operands)
                self.device.array(placed.result)[...] = a + b


class Toy(Device):
    target = Target(kind="{name}", arch="toy")

    def __init__(self):
        self.name = "{name}:0"

    def array(self, place):
        spec = place.spec
        return np.ndarray(spec.shape, np.float32, place.buffer, place.offset, spec.byte_strides)

    def alloc(self, nbytes, usage):
        fault("alloc")
        try:
            return np.zeros(nbytes, np.uint8)
        except MemoryError as e:
            raise OutOfMemory(f"{{self.name}}: no {{nbytes}} bytes") from e

    def free(self, buffer):
        pass

    def write(self, buffer, offset, data):
        buffer[offset : offset + data.nbytes] = data

    def read(self, buffer, offset, out):
        out[:] = buffer[offset : offset + out.nbytes].data

    def compile(self, run, scratch):
        fault("compile")
        return ToyProgram(self, run)


class Acme(Backend):
    name, api = "{name}", (0, 1)

    def devices(self):
        count("devices")
        fault("open")
        return [Toy()]

    def kernels(self):
        f32 = frozenset({{"f32"}})
        return {{"add": Kernel({{"a": f32, "b": f32}}, f32)}}


@hookimpl
def jackfield_backend():
    count("hook")
    fault("hook")
    return Acme()


fault("import")
"""

# The instruction that each architecture keeps undefined: ud2 of x86, udf of ARM. It is run, not only its signal sent.
ILLEGAL = (
    "import ctypes, mmap, platform; rwx = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC; "
    "page = mmap.mmap(-1, 4096, prot=rwx); "
    "page.write(bytes.fromhex('0f0b' if platform.machine() == 'x86_64' else '00000000')); "
    "ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()"
)
FAULTS = {
    "segfault": "import ctypes; ctypes.string_at(0)",
    "abort": "os.abort()",
    "illegal": ILLEGAL,
    "quit": "os._exit(0)",
    "hang": "import time; time.sleep(3600)",
    "noise": "os.write(1, b'x' * (1 << 20)); os.write(2, b'y' * (1 << 20)); print('z' * (1 << 20))",
    "killed": "import signal; os.kill(os.getpid(), signal.SIGKILL)",
    "raises": "raise RuntimeError('boom')",
    "absent": "from jackfield.backend import Unavailable; raise Unavailable('no driver: libacme.so.3')",
    "lib": "raise ImportError('libacme.so.3: cannot open shared object file')",
    "gil": "sys._gil_on = True",
}


def source(name: str, fault: str = "", at: str = "", *, only_here: bool = False) -> str:
    """A backend that does what FAULTS says when it comes to `at`. only_here: in no rehearsal."""
    condition = "not sys.flags.isolated and " if only_here else ""
    body = f"    if {condition}at == {at!r}:\n        {FAULTS[fault]}\n" if fault else "    pass\n"
    return LOG.format(name=name) + f"\n\ndef fault(at):\n{body}\n" + TOY.format(name=name)


def build(folder: Path, name: str, text: str, files: dict[str, bytes] | None = None, **fields) -> Path:
    """The wheel of a package jackfield_<name>; files: more of them in it, by their path there. fields: of the manifest,
    but `needs_core` (a text, or several) and `licence` of METADATA, `outside`, more files beside the package, `beside`,
    more files beside the manifest, `dist`, another name of package and distribution, `backend`, its name where that is
    not `name`, `document`, a manifest as it stands, `module`, the path of the source where that is not the package's
    own, `value`, the entry point where that is not the package, and `more_entries`, lines below it.
    """
    known_as = fields["dist"].replace("_", "-") if "dist" in fields else f"jackfield-{name}"
    dist, backend = fields.pop("dist", f"jackfield_{name}"), fields.pop("backend", name)
    info = f"{dist}-1.0.dist-info"
    lines = [f"{backend} = {fields.pop('value', dist)}", *fields.pop("more_entries", ())]
    content = {
        fields.pop("module", f"{dist}/__init__.py"): text.encode(),
        **{f"{dist}/{path}": data for path, data in (files or {}).items()},
        **fields.pop("outside", {}),
        **{f"{info}/{path}": data for path, data in fields.pop("beside", {}).items()},
        **metadata(
            info,
            known_as,
            fields.pop("needs_core", "jackfield>=0.1,<1"),
            licence=fields.pop("licence", True),
        ),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "\n".join(["[jackfield.backends]", *lines, ""]).encode(),
    }
    if fields.pop("has_manifest", True):
        document = fields.pop("document", None) or manifest(backend, **fields)
        content[f"{info}/backend.json"] = json.dumps(document).encode()
    lines = [f'"{path}",sha256={digest(data)},{len(data)}' for path, data in content.items()]
    content[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""]).encode()
    wheel = folder / f"{dist}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in content.items():
            archive.writestr(path, data)
    return wheel


def metadata(info: str, name: str, needs: str | Sequence[str], *, licence: bool) -> dict[str, bytes]:
    """METADATA, and the licence that it names."""
    text = f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n"
    text += "".join(f"Requires-Dist: {need}\n" for need in ([needs] if isinstance(needs, str) else needs) if need)
    if not licence:
        return {f"{info}/METADATA": text.encode()}
    text += "License-Expression: 0BSD\nLicense-File: LICENSE\n"
    return {f"{info}/METADATA": text.encode(), f"{info}/licenses/LICENSE": b"do as you like\n"}


def digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
