"""Python imports a plugin from its own distribution, or not at all: portions of a namespace that lie elsewhere, an
entry point into code of others, a program that goes to another folder.
"""

from __future__ import annotations

import json
import os
import py_compile
import subprocess
from pathlib import Path

import pytest
from environments import Environment
from fake_dists import good, install, log_of
from wheels import build, source

from jackfield.errors import TrustError

PART = 2  # see thorough.py

# One file on every way a program starts; the spawned process runs `told` alone.
PROGRAM = """
import json, multiprocessing, os, sys
{first}
def told():
    import jackfield as jf
    found = {{s.name: [s.state, s.code, s.error, s.hint] for s in jf.status() if s.dist.startswith("jackfield-")}}
    for name in {names!r}:
        try:
            jf.Session(name).close()
        except jf.Error as e:
            found[name] = [e.status.state, e.status.code, e.status.error, e.status.hint]
        else:
            found[name] = ["ok", "", None, None]
    print(json.dumps([found, sorted(m for m in sys.modules if m.split(".")[0] in {modules!r})]))

if __name__ == "__main__":
    if {spawned}:
        child = multiprocessing.get_context("spawn").Process(target=told)
        child.start()
        child.join()
    else:
        told()
"""
PLANTED = "open({place!r}, 'w').close()\n"


def program(*names, first="", modules=(), spawned=False):
    return PROGRAM.format(first=first, names=names, modules=modules, spawned=spawned)


def asked(environment, here, text, start="-c", path=(), **settings):
    """Status and error of each backend, and modules that were imported. here: the folder of the start."""
    (here / "program.py").write_text(text)
    words = {"-c": ["-c", text], "script": ["program.py"]}.get(start, ["-m", "program"])
    plain = {k: v for k, v in os.environ.items() if not k.startswith("JACKFIELD_")}
    folders = [*map(str, path), *filter(None, [os.environ.get("PYTHONPATH")])]
    given = {**plain, "JACKFIELD_CACHE": "off", "JACKFIELD_PROBE": "never", "PYTHONPATH": os.pathsep.join(folders)}
    done = subprocess.run(
        [environment.python, *words], cwd=here, env={**given, **settings}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# name: what is wrong with the wheel, whose entry point then names code of others, and where that lies
FOREIGN = {
    "thief": ({"value": "jackfield_victim"}, "jackfield_victim/__init__.py"),
    "guest": (
        {"value": "jackfield_victim", "outside": {"jackfield_victim/guest.py": b""}},
        "jackfield_victim/__init__",
    ),
    "neighbour": ({"value": "acme_ns.plug", "outside": {"acme_ns/mine.py": b""}}, "acme_ns/plug.py"),
    "stray": ({"value": "stray_module"}, "stray_module.py"),
    "library": ({"value": "json.tool"}, "json/__init__.py"),
    "builtin": ({"value": "sys"}, "Python itself"),
    "frozen": ({"value": "os"}, "Python itself"),
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Good wheels: a package, a portion of a namespace, one without sources; and those of FOREIGN."""
    folder = tmp_path_factory.mktemp("own")
    made = Environment(folder)
    plain = folder / "compiled.py"
    plain.write_text(source("compiled"))
    compiled = py_compile.compile(str(plain), str(folder / "compiled.pyc"))
    bare = build(
        folder, "compiled", "", {"__init__.pyc": Path(compiled).read_bytes()}, module="jackfield_compiled/x.txt"
    )
    ported = build(folder, "ported", source("ported"), module="acme_ns/plug.py", value="acme_ns.plug")
    foreign = [build(folder, name, source(name), **given) for name, (given, _) in FOREIGN.items()]
    made.install(build(folder, "victim", source("victim")), ported, bare, *foreign)
    (made.site / "stray_module.py").write_text(source("stray"))
    return made


def test_code_that_is_not_its_own_does_not_load(environment, tmp_path):
    """Once read from the files, once from what is kept of them."""
    text = program(*FOREIGN, modules=("jackfield_victim", "acme_ns", "stray_module"))
    for _ in range(2):
        found, imported = asked(environment, tmp_path, text, JACKFIELD_CACHE=str(tmp_path / "cache"))
        for name, (_, place) in FOREIGN.items():
            state, code, error, hint = found[name]
            assert (state, code) == ("refused", "shadowed"), name
            assert place in error
            assert error.endswith(f"not from jackfield-{name} 1.0")
            assert hint == "report it to the vendor: an entry point must name a module of its own distribution"
        assert imported == []


def test_own_code_loads_as_package_portion_and_bytecode(environment, tmp_path):
    found, _ = asked(environment, tmp_path, program("victim", "ported", "compiled"))
    assert {name: found[name][0] for name in ("victim", "ported", "compiled")} == dict.fromkeys(
        ("victim", "ported", "compiled"), "ok"
    ), found


@pytest.mark.parametrize("planted", ["plug.py", "plug/__init__.py", "more.py"])
@pytest.mark.parametrize("start", ["-c", "-m", "script", "spawn"])
def test_a_portion_planted_beside_the_program_stops_it(environment, tmp_path, start, planted):
    """`./acme_ns` joins the namespace of the wheel, and comes first."""
    here, ran = tmp_path / "here", tmp_path / "ran"
    place = here / "acme_ns" / planted
    place.parent.mkdir(parents=True)
    place.write_text(PLANTED.format(place=str(ran)) + source("ported"))
    text = program("ported", modules=("acme_ns",), spawned=start == "spawn")
    found, imported = asked(environment, here, text, start)
    state, code, error, hint = found["ported"]
    assert (state, code, imported) == ("refused", "shadowed", [])
    assert error == f"acme_ns would come from {here / 'acme_ns'}, not from jackfield-ported 1.0"
    assert hint == "rename acme_ns"
    assert not ran.exists()


def test_a_portion_in_a_folder_of_the_user_is_welcome_unless_it_holds_the_module(environment, tmp_path):
    here, more = tmp_path / "here", tmp_path / "more"
    here.mkdir()
    (more / "acme_ns").mkdir(parents=True)
    (more / "acme_ns" / "friend.py").write_text("")
    assert asked(environment, here, program("ported"), path=[more])[0]["ported"][0] == "ok"
    (more / "acme_ns" / "plug.py").write_text(PLANTED.format(place=str(tmp_path / "ran")))
    state, code, error, hint = asked(environment, here, program("ported"), path=[more])[0]["ported"]
    assert (state, code, hint) == ("refused", "shadowed", "rename plug.py")
    assert error == f"acme_ns.plug would come from {more / 'acme_ns' / 'plug.py'}, not from jackfield-ported 1.0"
    assert not (tmp_path / "ran").exists()


GOES = "import jackfield as jf; before = [s.state for s in jf.status() if s.name == 'victim']; os.chdir({folder!r})"


@pytest.mark.parametrize("names", ["jackfield_victim.py", "jackfield_victim/__init__.py"])
def test_a_folder_that_the_program_goes_to_after_the_listing_holds_no_plugin(environment, tmp_path, names):
    """What was right when it was listed is looked at again before Python imports it."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    place = there / names
    place.parent.mkdir(parents=True)
    place.write_text(PLANTED.format(place=str(tmp_path / "ran")) + source("victim"))
    text = program("victim", first=GOES.format(folder=str(there)), modules=("jackfield_victim",))
    found, imported = asked(environment, here, text)
    assert found["victim"][:2] == ["refused", "shadowed"]
    assert imported == []
    assert not (tmp_path / "ran").exists()


def test_a_folder_of_links_is_where_its_links_are(environment, tmp_path):
    """As some installers fill it: what is in their store is reached by the folder of packages alone."""
    store, union = tmp_path / "store", tmp_path / "union"
    environment.install(build(tmp_path, "linked", source("linked")), into=store)
    (union / "jackfield_linked").mkdir(parents=True)
    for path in (store / "jackfield_linked").iterdir():
        (union / "jackfield_linked" / path.name).symlink_to(path)
    (union / "jackfield_linked-1.0.dist-info").symlink_to(store / "jackfield_linked-1.0.dist-info")
    found, _ = asked(environment, tmp_path, program("linked"), path=[union])
    assert found["linked"][0] == "ok", found["linked"]


def test_a_planted_wheel_that_calls_itself_editable_is_not_trusted(folder, registry, monkeypatch):
    url = {"url": folder.as_uri(), "dir_info": {"editable": True}}
    install(folder, "planted", good("planted"), direct_url=url)
    monkeypatch.chdir(folder)
    assert [s.code for s in registry.status() if s.name == "planted"] == ["outside-site"]
    with pytest.raises(TrustError, match="install it"):
        registry.select("planted")
    assert log_of(folder, "planted") == []


def test_without_a_record_a_folder_below_is_not_the_one_it_lies_in(folder, registry, monkeypatch):
    """A program in a folder below that of the packages brings no module of theirs."""
    install(folder, "acme", good("acme"))
    below = folder / "project"
    below.mkdir()
    (below / "jackfield_acme.py").write_text("raise SystemExit")
    monkeypatch.chdir(below)
    monkeypatch.syspath_prepend(str(below))
    assert [s.code for s in registry.status() if s.name == "acme"] == ["shadowed"]
