"""One broken wheel for each code of a status, and what an app and its user meet."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from wheels import build, source

HOOKS = "\n\n@hookimpl\ndef {name}({arguments}):\n    return []\n"


@dataclass(frozen=True)
class Broken:
    """text: of the module. wheel: what is odd about it. error: raised when it is named, None where it loads then.
    cause: type of the plugin's own exception. named: the device string. place: prepares the folder it is installed in,
    and gives more variables. directory: the host's current folder lies there.
    """

    text: str
    error: str | None
    cause: str | None = None
    wheel: dict = field(default_factory=dict)
    named: str = ""
    settings: dict = field(default_factory=dict)
    place: Callable[[Path], dict] = lambda folder: {}
    more: tuple[tuple[str, dict], ...] = ()
    is_installed: bool = True


def changed(name, old, new):
    text = source(name)
    assert text.count(old) == 1, old
    return text.replace(old, new)


def window(low, high):
    return {"contract": {"min": low, "max": high}}


def loop(folder):
    """A manifest that no process can read, whoever runs it."""
    (path,) = folder.glob("jackfield_unreadable-1.0.dist-info/backend.json")
    path.unlink()
    path.symlink_to(path.name)
    return {}


def shadow(folder):
    (folder.parent / "here" / "jackfield_shadowed.py").write_text("raise SystemExit('this file must not run')")
    return {}


def pins(name, *files):
    def write(folder):
        path = folder.parent / "pins.json"
        pin = {"name": f"jackfield-{name}", "version": "1.0", "files": dict.fromkeys(files, f"sha256:{'0' * 64}")}
        path.write_text(json.dumps({"schema": "jackfield.pins/1", "pins": [pin] if files else []}))
        return {"JACKFIELD_PINS": str(path)}

    return write


BROKEN = {
    "manifest-missing": Broken(source("manifest_missing"), None, wheel={"has_manifest": False}),
    "manifest-invalid": Broken(
        source("manifest_invalid"),
        "ManifestError",
        wheel={"kinds": [{"kind": "manifest_invalid", "class": "gpus"}]},
    ),
    "schema-unknown": Broken(
        source("schema_unknown"),
        "ManifestError",
        wheel={"document": {"schema": "jackfield.backend/2", "backends": []}},
    ),
    "unreadable": Broken(source("unreadable"), "ManifestError", place=loop),
    "platform": Broken(source("platform"), "Unavailable", wheel={"platforms": ["mars/z80"]}),
    "duplicate": Broken(
        source("fork")
        .replace('"fork:0"', '"duplicate:0"')
        .replace('= "fork", (', '= "duplicate", (')
        .replace('kind="fork"', 'kind="duplicate"'),
        None,
        wheel={"backend": "duplicate"},
        named="jackfield-fork/duplicate:0",
        more=(("duplicate", {}),),
    ),
    "denied": Broken(source("denied"), "TrustError", settings={"JACKFIELD_BACKENDS": "!denied"}),
    "not-listed": Broken(source("not_listed"), "TrustError", settings={"JACKFIELD_BACKENDS": "cpu"}),
    "outside-site": Broken(source("outside_site"), "TrustError", is_installed=False),
    "shadowed": Broken(source("shadowed"), "TrustError", place=shadow),
    "unpinned": Broken(source("unpinned"), "TrustError", place=pins("unpinned")),
    "tampered": Broken(source("tampered"), "TrustError", place=pins("tampered", "jackfield_tampered/__init__.py")),
    "import-error": Broken(
        source("import_error", "lib", "import"),
        "ImportFailed",
        "ImportError",
        wheel={"needs": [{"lib": "libacme.so.3", "from": "the Acme driver 3.1"}]},
    ),
    "gil": Broken(source("gil", "gil", "import"), None, settings={"WITHOUT_GIL": "1"}),
    "hook-unknown": Broken(source("hook_unknown") + HOOKS.format(name="jackfield_diagnsoe", arguments=""), "HookError"),
    "hook-signature": Broken(
        source("hook_signature") + HOOKS.format(name="jackfield_diagnose", arguments="backend, wrong"),
        "HookError",
        "PluginValidationError",
    ),
    "no-backend": Broken(source("no_backend", "raises", "hook"), "HookError", "RuntimeError"),
    "too-old": Broken(source("too_old"), "ContractError", wheel=window("0.0", "0.0")),
    "too-new": Broken(source("too_new"), "ContractError", wheel=window("0.4", "0.6")),
    "disagrees": Broken(changed("disagrees", '"disagrees", (0, 1)', '"disagrees", (0, 2)'), "ContractError"),
    "crashed": Broken(
        source("crashed", "segfault", "import"),
        "ProbeFailed",
        wheel={"issues": "https://example.com/acme/issues"},
    ),
    "hung": Broken(source("hung", "hang", "open"), "ProbeFailed", wheel={"probe": {"timeout_s": 1.5}}),
    "quit": Broken(source("quit", "quit", "hook"), "ProbeFailed"),
    "no-device": Broken(source("no_device", "absent", "open"), "Unavailable", "Unavailable"),
    "open-error": Broken(source("open_error", "raises", "open"), "DeviceError", "RuntimeError"),
}


def name_of(code):
    """Of the package; its backend's too, but for `duplicate`."""
    return "fork" if code == "duplicate" else code.replace("-", "_")


def wheels_of(code, folder):
    """The broken wheel, and those it needs beside it."""
    broken = BROKEN[code]
    made = [build(folder, name, source(name), **wheel) for name, wheel in broken.more]
    return [build(folder, name_of(code), broken.text, **broken.wheel), *made]


def laid_out(code, environment, folder):
    """Its wheels in a folder of their own, as an installer unpacks them; gives the variables of a host, which starts in
    the folder `here` beside it.
    """
    site, here = folder / "site", folder / "here"
    here.mkdir(parents=True)
    broken = BROKEN[code]
    wheels = wheels_of(code, folder)
    if broken.is_installed:
        environment.install(*wheels, into=site)
    else:
        for wheel in wheels:
            zipfile.ZipFile(wheel).extractall(here)
    shutil.rmtree(site / "bin", ignore_errors=True)
    return {"PYTHONPATH": str(site), **broken.settings, **broken.place(site)}
