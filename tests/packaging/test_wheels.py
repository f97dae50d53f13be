"""Wheels: rules that each keeps, no file of two, any order of installing, a removal that leaves nothing.

The pure ones are built here: those of the core, the kit and the language models from the tree, two of vendors from the
template. `.ci/full wheels` does the same with those that hold native code.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import presence
import pytest
from click.testing import CliRunner
from environments import Environment, Plain

from jackfield.cli.app import app

ROOT = Path(__file__).parents[2]
PURE = ("core", "conformance", "llm")
VENDORS = ("acme", "beta")


def script():
    spec = importlib.util.spec_from_file_location("ci_wheels", ROOT / ".ci" / "wheels.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


rules = script()


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """By distribution's name: the wheel."""
    uv = shutil.which("uv")
    if uv is None:
        presence.absent("uv", "uv is not installed")
    folder = tmp_path_factory.mktemp("wheels")
    sources = [ROOT / part for part in PURE]
    for name in VENDORS:
        done = CliRunner().invoke(app, ["new-backend", name, "--into", str(folder / name)])
        assert done.exit_code == 0, done.output
        sources.append(folder / name)
    build = [uv, "build", "-q", "--wheel", "--python", sys.executable, "--out-dir", folder / "dist"]
    for source in sources:
        done = subprocess.run([*build, source], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    found = [rules.Wheel.read(path) for path in (folder / "dist").glob("*.whl")]
    return {wheel.name: wheel for wheel in found}


def test_every_distribution_of_the_tree_is_built_and_looked_at():
    folders = {str(folder.relative_to(ROOT)): name for name, folder in rules.dists().items()}
    assert folders.items() >= {("core", "jackfield"), ("plugins/cpu", "jackfield-cpu"), ("llm", "jackfield-llm")}
    assert folders["conformance"] == "jackfield-conformance"
    there = {path.parent.relative_to(ROOT) for path in ROOT.glob("*/pyproject.toml")}
    there |= {path.parent.relative_to(ROOT) for path in ROOT.glob("*/*/pyproject.toml")}
    assert set(map(str, there)) == set(folders)


def test_wheels_keep_the_rules(wheels):
    ours = {"jackfield", "jackfield-conformance", "jackfield-llm"}
    assert set(wheels) == {*ours, *(f"jackfield-{name}" for name in VENDORS)}
    assert [text for wheel in wheels.values() for text in rules.faults(wheel)] == []
    assert list(rules.overlaps(wheels.values())) == []


def test_the_core_is_as_small_as_promised(wheels):
    assert 0 < wheels["jackfield"].path.stat().st_size == wheels["jackfield"].nbytes < 400_000


SPOILT = {
    "is pure Python, and its wheel is tagged": ("jackfield", {"tags": ("cp311-cp311-manylinux_2_28_x86_64",)}),
    "is tagged as pure Python and holds": ("jackfield-acme", {"files": {"jackfield_acme/_native.so"}}),
    "which no index takes": ("jackfield-acme", {"tags": ("cp311-cp311-linux_x86_64",)}),
    "bytes, must be below 400000": ("jackfield", {"nbytes": 400_000}),
    "has the top-level names jackfield_acme, other_name": ("jackfield-acme", {"files": {"other_name/__init__.py"}}),
    "has the top-level names bin, jackfield_acme": ("jackfield-acme", {"files": {"bin/tool"}}),
    "does not hold the text of its licence": ("jackfield-acme", {"licences": ()}),
    "is a backend without backend.json": ("jackfield-acme", {"without": "backend.json"}),
    "must require jackfield from some version on": ("jackfield-acme", {"needs": ("numpy>=1.26", "jackfield")}),
    "must require jackfield from some version on, and says jackfield; python": (
        "jackfield-acme",
        {"needs": ("jackfield>=0.1", 'jackfield; python_version >= "3.8"')},
    ),
    "and says nothing": ("jackfield-acme", {"needs": ("jackfield-cpu>=0.1",)}),
    "pins jackfield==0.1.0": ("jackfield-acme", {"needs": ("jackfield==0.1.0",)}),
    "0.2 is no next major version": ("jackfield-acme", {"needs": ("jackfield>=0.1,<0.2",)}),
    "must require jackfield==0.1.0, and says jackfield>=0.1": ("jackfield-conformance", {"needs": ("jackfield>=0.1",)}),
    "must require jackfield==0.2.0, and says jackfield==0.1.0": ("jackfield-conformance", {"version": "0.2.0"}),
}


@pytest.mark.parametrize("says", SPOILT)
def test_a_wheel_that_breaks_a_rule_is_told(says, wheels):
    name, fields = SPOILT[says]
    wheel, fields = wheels[name], dict(fields)
    more, gone = fields.pop("files", set()), fields.pop("without", None)
    files = frozenset(f for f in wheel.files | more if gone is None or not f.endswith(gone))
    assert any(says in text for text in rules.faults(dataclasses.replace(wheel, files=files, **fields)))


def test_a_file_of_two_wheels_is_told(wheels):
    one, other = wheels["jackfield-acme"], wheels["jackfield-beta"]
    other = dataclasses.replace(other, files=other.files | {"jackfield_acme/__init__.py"})
    assert list(rules.overlaps([one, other])) == [
        "jackfield-acme and jackfield-beta both bring jackfield_acme/__init__.py"
    ]


@pytest.mark.parametrize(
    ("plain", "is_native"), [("x-1-py3-none-any.whl", False), ("x-1-cp311-cp311-linux_x86_64.whl", True)]
)
def test_a_native_wheel_gets_the_tag_that_it_can_have(plain, is_native, tmp_path, monkeypatch):
    asked = []

    def call(*words):
        asked.append(words)
        folder = Path(words[words.index("--wheel-dir" if "repair" in words else "--out-dir") + 1])
        folder.mkdir(exist_ok=True)
        (folder / (plain.replace("linux", "manylinux_2_36") if "repair" in words else plain)).touch()

    monkeypatch.setattr(rules, "call", call)
    wheel = rules.built(tmp_path / "source", tmp_path)
    assert wheel == tmp_path / plain.replace("linux", "manylinux_2_36")
    assert wheel.exists()
    assert [words[2] for words in asked] == ["-q", "auditwheel"][: 1 + is_native]


COMPUTES = """
import sys, numpy as np, jackfield as jf
x = jf.input("x", (4,))
plan = jf.compile(jf.ops.relu(jf.ops.add(x, x)), device=sys.argv[1])
print("ready", flush=True)
if sys.argv[2:]:
    input()
assert (plan(x=np.float32([-1, 0, 1, 2])) == [0, 0, 2, 4]).all()
print(*plan.devices, jf.__file__, flush=True)
"""
LISTS = "import jackfield as jf\nprint(*sorted(s.name for s in jf.status()))"


def start(environment, *words):
    """A process of the environment that computes on words[0], where there is a second when it gets a line."""
    code = COMPUTES.replace("sys.argv[1]", repr(words[0])).replace("sys.argv[2:]", repr(words[1:]))
    settings = {k: v for k, v in os.environ.items() if not k.startswith(("JACKFIELD_", "PYTHONPATH"))}
    settings |= {"JACKFIELD_CACHE": str(environment.cache)}
    pipe = subprocess.PIPE
    run = [environment.python, "-c", code]
    return subprocess.Popen(run, env=settings, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def computed(environment, device):
    host = start(environment, device)
    out, err = host.communicate()
    assert host.returncode == 0, err
    ready, devices_and_file = out.splitlines()
    devices, file = devices_and_file.split()
    assert (ready, devices) == ("ready", f"{device}:0")
    return Path(file)


def uninstall(environment, name):
    run = [shutil.which("uv"), "pip", "uninstall", "-q", "--python", environment.python]
    subprocess.run([*run, f"jackfield-{name}" if name else "jackfield"], check=True, capture_output=True)


def files_of(environment):
    return {path for path in environment.site.rglob("*") if "__pycache__" not in path.parts}


def listed(environment):
    code, out, err = environment.run(LISTS, PYTHONPATH="")
    assert code == 0, err
    return set(out.split())


@pytest.mark.parametrize("order", [VENDORS, VENDORS[::-1]], ids="-".join)
def test_any_order_of_installing_and_one_removed(order, wheels, tmp_path):
    first, second = order
    environment = Environment(tmp_path)
    environment.install(wheels["jackfield"].path, wheels["jackfield-llm"].path)
    assert computed(environment, "reference").is_relative_to(environment.site)  # the wheel, and it alone computes
    before = files_of(environment)
    environment.install(wheels[f"jackfield-{first}"].path)
    one = files_of(environment)
    environment.install(wheels[f"jackfield-{second}"].path)
    assert listed(environment) >= {first, second}
    uninstall(environment, first)
    assert computed(environment, second).is_relative_to(environment.site)
    assert first not in listed(environment)
    assert not files_of(environment) & (one - before), "files of the removed one are left"
    uninstall(environment, second)
    assert files_of(environment) == before


def test_a_process_started_before_goes_on(wheels, tmp_path):
    environment = Environment(tmp_path)
    environment.install(wheels["jackfield"].path, wheels["jackfield-acme"].path)
    host = start(environment, "acme", "waits")
    assert host.stdout.readline() == "ready\n"
    uninstall(environment, "acme")
    assert "acme" not in listed(environment)
    out, err = host.communicate("\n")
    assert host.returncode == 0, err
    assert out.split()[0] == "acme:0"


# ---- the kit ---------------------------------------------------------------------------------------------------------

BRINGS = "`pip install 'jackfield[conformance]'` brings it"
THERE = "from importlib.util import find_spec as f; print(*[m for m in ('pytest', 'jackfield_conformance') if f(m)])"


def command(environment, *words):
    """`jackfield WORDS` in an empty folder of the environment's."""
    (environment.folder / "work").mkdir(exist_ok=True)
    settings = {k: v for k, v in os.environ.items() if not k.startswith(("JACKFIELD_", "PYTHON"))}
    settings |= {"JACKFIELD_CACHE": str(environment.cache)}
    run = [environment.python, "-m", "jackfield", *words]
    return subprocess.run(
        run, cwd=environment.folder / "work", env=settings, capture_output=True, text=True, check=False
    )


def test_an_app_has_no_kit_and_is_told_how_to_get_one(wheels, tmp_path):
    environment = Plain(tmp_path)
    environment.install(wheels["jackfield"].path)
    assert environment.run(THERE, PYTHONPATH="") == (0, "\n", "")
    done = command(environment, "conform", "reference", "--suite", "buffers")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == f"Error: conform is not installed; {BRINGS}"
    assert "pip install 'jackfield[conformance]'" in command(environment, "--help").stdout
    # What stays says what is right all the same.
    assert command(environment, "new-backend", "acme").returncode == 0
    assert command(environment, "why", "reference", "softmax").returncode == 0
    save = "import jackfield as jf; jf.save(jf.ops.tanh(jf.input('x', (2, 3))), 'work/g.npz')"
    subprocess.run([environment.python, "-c", save], cwd=tmp_path, env={"JACKFIELD_CACHE": "off"}, check=True)
    done = command(environment, "diff", "reference", "sim", "g.npz")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("order", [("", "-conformance"), ("-conformance", "")], ids=["core-kit", "kit-core"])
def test_the_kit_works_from_wheels_alone_and_goes_without_a_trace(order, wheels, tmp_path):
    """Beside numpy and what else the core asks for: no pytest, no file of the tree."""
    environment = Plain(tmp_path)
    environment.install(wheels["jackfield-acme"].path)
    before = files_of(environment)
    for name in order:
        environment.install(wheels[f"jackfield{name}"].path)
    assert environment.run(THERE, PYTHONPATH="") == (0, "jackfield_conformance\n", "")
    asked = ("--suite", "ops", "--suite", "packaging", "--sample", "1", "--report", "out.json")
    done = command(environment, "conform", "acme:0", *asked)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "work" / "out.json").read_text("utf-8"))
    assert report["schema"] == "jackfield.conformance/1"
    assert report["suites"]["ops"]["passed"] and report["suites"]["packaging"]["passed"]
    uninstall(environment, "conformance")
    assert f"conform is not installed; {BRINGS}" in command(environment, "conform", "acme:0").stderr
    done = command(environment, "devices", "acme")
    assert done.returncode == 0, done.stderr
    uninstall(environment, "")
    assert files_of(environment) == before


# ---- extras ---------------------------------------------------------------------------------------------------------


def extras():
    return tomllib.loads((ROOT / "core/pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]


def test_an_extra_adds_one_distribution_of_its_name():
    for name, needs in extras().items():
        assert needs[0] == f"jackfield-{name}"
        assert needs[0] in rules.dists()
        more = {re.split(r"[><=]", need)[0] for need in needs[1:]}
        assert more == ({"pytest", "hypothesis"} if name == "conformance" else set()), name


def test_every_extra_that_is_named_exists(wheels):
    """In texts and in hints, as `jackfield[cpu]` or `./core[cpu]`, in either spelling of the name."""
    texts = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("*/README.md"),
        *ROOT.glob("plugins/*/README.md"),
    ]
    texts += [
        path
        for part in ("core/src", "conformance/src")
        for path in (ROOT / part).rglob("*")
        if path.suffix in (".py", ".json", ".in")
    ]
    named = {
        rules.plain(name)
        for path in texts
        for found in re.findall(r"(?:jackfield|\./core)\[([\w,. -]+)\]", path.read_text("utf-8"))
        for name in found.split(",")
    }
    assert named >= {"cpu", "conformance"}
    assert named <= set(map(rules.plain, extras()))
    with_extras = [text for text in wheels["jackfield"].needs if "extra ==" in text]
    assert {re.findall(r"extra == '([\w-]+)'", text)[0] for text in with_extras} == set(extras())


# ---- imports --------------------------------------------------------------------------------------------------------

MAPPED = """
import sys
from pathlib import Path
import numpy, jackfield.backend
mapped = lambda: {line.split(maxsplit=5)[5].strip() for line in open("/proc/self/maps") if "/" in line}
before = mapped()
module = __import__(sys.argv[1])
own = getattr(sys.modules.get(module.__name__ + "._native"), "__file__", "")
print(*sorted(p for p in mapped() - before if ".so" in p and p != own and "/lib-dynload/" not in p))
"""


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="this system does not tell what is mapped")
@pytest.mark.parametrize("name", [p.name for p in (ROOT / "plugins").iterdir() if (p / "pyproject.toml").exists()])
def test_a_backend_is_imported_without_its_driver(name):
    """No library but its own and Python's is mapped by the import: drivers are opened by `devices()`."""
    (entry,) = [e for e in entry_points(group="jackfield.backends") if e.name == name] or [None]
    if entry is None:
        presence.absent(name, f"the wheel of {name} is not installed")
    run = [sys.executable, "-c", MAPPED.replace("sys.argv[1]", repr(entry.value))]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
