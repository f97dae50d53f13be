"""What nobody asked for does not run: imports, hooks, devices, and libraries of backends that are not used."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from environments import Environment
from fake_dists import good, install
from wheels import build, source

import jackfield as jf
from jackfield import registry as module

TWENTY = [f"many{n:02}" for n in range(20)]


@pytest.fixture(scope="module")
def twenty(tmp_path_factory):
    """Twenty backends; the one in the middle ends the process that imports it."""
    made = Environment(tmp_path_factory.mktemp("twenty"))
    wheels = [
        build(
            made.folder,
            name,
            source(name, *(("abort", "import") if name == "many10" else ())),
            kinds=[{"kind": name, "class": "gpu"}, {"kind": name, "variant": "emu", "simulated": True}],
            contract={"min": "0.1", "max": f"0.{1 + n % 3}"},
            platforms=["linux/x86_64", "linux/aarch64", "macos/arm64"],
        )
        for n, name in enumerate(TWENTY)
    ]
    made.install(*wheels)
    return made


STATIC = """
import json, sys
from click.testing import CliRunner
from jackfield.cli.app import app
done = CliRunner().invoke(app, ["doctor", "--static", "--json"])
print(json.dumps([json.loads(done.stdout), sorted(m for m in sys.modules if m.startswith("jackfield_"))]))
"""


def test_doctor_lists_twenty_without_running_one(twenty):
    code, out, err = twenty.run(STATIC)
    assert code == 0, err
    document, modules = json.loads(out)
    assert modules == []
    assert not any(twenty.log(name) for name in TWENTY)
    listed = {b["name"]: b for b in document["backends"] if b["name"] in TWENTY}
    assert list(listed) == TWENTY
    for n, name in enumerate(TWENTY):
        manifest = listed[name]["manifest"]
        assert manifest["contract"] == [[0, 1], [0, 1 + n % 3]]
        assert [(k["kind"], k["device_class"], k["variant"]) for k in manifest["kinds"]] == [
            (name, "gpu", ""),
            (name, "", "emu"),
        ]
        assert manifest["platforms"] == ["linux/x86_64", "linux/aarch64", "macos/arm64"]


IMPORT = """
import json, os, signal, sys, threading, warnings
import numpy, ml_dtypes, pluggy
before = dict(os.environ), {s: signal.getsignal(s) for s in signal.valid_signals()}, numpy.geterr(), list(sys.path)
files, events = set(sys.modules), []
WATCHED = "open subprocess.Popen os.putenv os.unsetenv os.system os.exec os.fork os.posix_spawn os.mkdir os.remove"
def watch(event, args):
    if event in WATCHED.split() or event.startswith("socket."):
        events.append((event, str(args[0])))
sys.addaudithook(watch)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    import jackfield
after = dict(os.environ), {s: signal.getsignal(s) for s in signal.valid_signals()}, numpy.geterr(), list(sys.path)
print(json.dumps({
    "same": before == after,
    "told": [str(w.message) for w in told],
    "threads": threading.active_count(),
    "handlers": "logging" in sys.modules and bool(sys.modules["logging"].getLogger("jackfield").handlers),
    "events": events,
    "own": [jackfield.__path__[0]],
    "modules": sorted(m for m in set(sys.modules) - files if m.partition(".")[0] == "jackfield"),
    "stdlib": [sys.prefix, sys.base_prefix],
}))
"""


def test_the_import_touches_nothing_with_twenty_plugins(twenty):
    code, out, err = twenty.run(IMPORT)
    assert (code, err) == (0, "")
    seen = json.loads(out)
    assert (seen["same"], seen["told"], seen["threads"], seen["handlers"]) == (True, [], 1, False)
    assert {event for event, _ in seen["events"]} <= {"open"}
    core = seen["own"][0]
    numpy = str(Path(np.__file__).parent)  # a few more of its modules
    standard = [str(Path(json.__file__).parents[1]), *seen["stdlib"]]
    for _, path in seen["events"]:
        assert path.endswith((".py", ".pyc", ".so"))
        of_python = any(path.startswith(p) for p in standard) and "site-packages" not in path
        assert path.startswith((core, numpy)) or of_python, path
        assert "jackfield_" not in path
    assert not any(twenty.log(name) for name in TWENTY)


MAPPED = """
import json
import numpy as np
import jackfield as jf
x = jf.input("x", (3,))
for device in {devices!r}:
    plan = jf.compile(jf.ops.abs(x), device=device)
    assert plan(x=-np.ones(3, np.float32)).tolist() == [1, 1, 1]
maps = open("/proc/self/maps").read()
print(json.dumps({{name: f"_{{name}}_native.so" in maps for name in ("one", "two")}}))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the process map of Linux")
def test_only_what_is_used_is_mapped(tmp_path):
    """Two backends with native libraries beside; a plan on another device maps neither, one on theirs maps it."""
    environment = Environment(tmp_path)
    library = min(Path(np.__file__).parent.rglob("*.so"), key=lambda path: path.stat().st_size).read_bytes()
    wheels = []
    for name in ("one", "two"):
        load = f"import ctypes\nctypes.CDLL(str(Path(__file__).with_name('_{name}_native.so')))\n"
        text = source(name) + load
        wheels.append(build(tmp_path, name, text, {f"_{name}_native.so": library}))
    environment.install(*wheels)
    usual = ["reference"] + (
        ["cpu"] if any(s.name == "cpu" and s.state in ("ok", "pending") for s in jf.status()) else []
    )
    for devices, mapped in ((usual, []), (["two"], ["two"])):
        code, out, err = environment.run(MAPPED.format(devices=devices))
        assert code == 0, err
        assert [name for name, is_there in json.loads(out).items() if is_there] == mapped


COUNTED = """
import json, sys
from pathlib import Path
import jackfield as jf
x = jf.input("x", (3,))
log = {log!r}

def lines():
    path = Path(log)
    found = path.read_text().splitlines() if path.exists() else []
    return [sum(line == f"here {{what}}" for line in found) for what in ("import", "hook", "devices")]

counts = [lines()]
jf.status()
counts.append(lines())
for _ in range(10):
    jf.compile(jf.ops.add(x, x), device="counted")
counts.append(lines())
print(json.dumps(counts))
"""


def test_no_stage_runs_early_or_twice(tmp_path):
    environment = Environment(tmp_path)
    environment.install(build(tmp_path, "counted", source("counted")))
    log = environment.site / "jackfield_counted" / "counted.log"
    code, out, err = environment.run(COUNTED.format(log=str(log)))
    assert code == 0, err
    assert json.loads(out) == [[0, 0, 0], [0, 0, 0], [1, 1, 1]]


@pytest.fixture
def here(folder):
    """The process's own registry sees the folder while a test runs."""
    module.refresh()
    yield folder
    module.refresh()


def test_no_hook_is_called_by_a_plan(here):
    """A thousand steps, a hundred calls."""
    install(here, "quick", source("quick"))
    plugin = next(p for p in module._registry.plugins() if p.found.name == "quick")
    x = jf.input("x", (2,))
    with jf.Session("quick", policy="strict") as session:
        y, calls = x, []
        plugin.hooks.add_hookcall_monitoring(lambda name, *_: calls.append(name), lambda *_: None)
        for _ in range(1000):
            y = jf.ops.add(y, x)
        plan = session.compile(y)
        assert plan.devices == ("quick:0",)
        for _ in range(100):
            out = plan(x=np.ones(2, np.float32))
        assert out.tolist() == [1001, 1001]
        assert calls == []
        plugin.findings(deep=False)
        assert calls == ["jackfield_diagnose"], "the count would have shown one"


def test_half_a_registration_stays_nowhere(folder, registry):
    """The hooks of the module before, right and wrong ones, are unknown to the next plugin's."""
    half = good("half") + "\n\n@hookimpl\ndef jackfield_diagnose(backend):\n    return ['of half']\n"
    install(folder, "half", half + "\n\n@hookimpl\ndef jackfield_wrong():\n    return 1\n")
    install(folder, "next", good("next") + "\n\n@hookimpl\ndef jackfield_hardware():\n    return []\n")
    registry.devices()
    plugins = {p.found.name: p for p in registry.plugins()}
    assert plugins["half"].status.code == "hook-unknown"
    assert plugins["half"].hooks is None
    manager = plugins["next"].hooks
    assert [plugin.__name__ for plugin in manager.get_plugins()] == ["jackfield_next"]
    assert not hasattr(manager.hook, "jackfield_wrong")
    assert manager.hook.jackfield_diagnose.get_hookimpls() == []
    assert len(manager.hook.jackfield_hardware.get_hookimpls()) == 1
