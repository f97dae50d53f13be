"""Where a plugin lies, and the user's lists."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import pytest
from environments import Environment
from fake_dists import good, install, log_of, manifest

from jackfield.errors import TrustError
from jackfield.registry import Registry
from jackfield.trust import Wishes


def status_of(registry, name, dist=None):
    (status,) = (s for s in registry.status() if s.name == name and dist in (None, s.dist))
    return status


@pytest.mark.parametrize(
    ("text", "name", "code"),
    [
        (None, "cpu", None),
        ("", "cpu", None),
        ("cpu", "cpu", None),
        ("cpu", "acme", "not-listed"),
        ("c*", "cuda", None),
        ("c*, !cuda", "cuda", "denied"),
        ("!cuda", "acme", None),
        ("!*", "acme", "denied"),
        ("acme=acme-fork", "cpu", None),
    ],
)
def test_lists(text, name, code):
    refusal = Wishes.parse(text).refusal(name)
    assert (refusal.code if refusal else None) == code
    if refusal:
        assert text in refusal.error


def test_the_variable_keeps_a_backend_out(folder, registry, monkeypatch):
    install(folder, "acme", good("acme"))
    monkeypatch.setenv("JACKFIELD_BACKENDS", "!acme")
    assert (status_of(registry, "acme").state, status_of(registry, "acme").code) == ("off", "denied")
    with pytest.raises(TrustError, match="JACKFIELD_BACKENDS=!acme forbids acme"):
        registry.select("acme")
    assert log_of(folder, "acme") == []
    monkeypatch.setenv("JACKFIELD_BACKENDS", "acme")
    assert registry.select("acme").devices[0].name == "acme:0"


def test_the_list_holds_for_a_plugin_without_manifest(folder, registry, monkeypatch):
    install(folder, "bare", good("bare"), None)
    monkeypatch.setenv("JACKFIELD_BACKENDS", "!bare")
    with pytest.raises(TrustError, match="forbids bare"):
        registry.select("bare")
    assert log_of(folder, "bare") == []


def test_the_current_folder_is_refused(folder, registry, monkeypatch):
    install(folder, "planted", good("planted"))
    monkeypatch.chdir(folder)
    assert status_of(registry, "planted").code == "outside-site"
    with pytest.raises(TrustError, match="install it"):
        registry.select("planted")
    assert log_of(folder, "planted") == []


PROGRAM = """
import sys
{first}
import jackfield as jf
from jackfield import registry
print([s.code for s in jf.status() if s.name == "planted"], "jackfield_planted" in sys.modules)
"""


@pytest.mark.parametrize("start", ["-c", "-m", "script"])
def test_planted_code_is_not_run_however_python_starts(tmp_path, start):
    """Nothing has moved: the current folder is that of the start."""
    install(tmp_path, "planted", good("planted"))
    tmp_path.joinpath("program.py").write_text(PROGRAM.format(first=""))
    arguments = {
        "-c": ["-c", PROGRAM.format(first="")],
        "-m": ["-m", "program"],
        "script": [str(tmp_path / "program.py")],
    }
    result = subprocess.run(
        [sys.executable, *arguments[start]], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=300
    )
    assert result.stdout.strip() == "['outside-site'] False"
    assert log_of(tmp_path, "planted") == []


def told_by(*words, cwd, path=(), python=sys.executable):
    """What a program prints. path: folders in front of those that PYTHONPATH has here."""
    folders = [*map(str, path), *filter(None, [os.environ.get("PYTHONPATH")])]
    result = subprocess.run(
        [python, *words],
        cwd=cwd,
        env={"PYTHONPATH": os.pathsep.join(folders), "JACKFIELD_CACHE": "off"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return result.stdout


# What the programs below do first. They may not name where they were started: a tool that becomes a service goes away.
MOVES = "import os; os.chdir('/')"
MOVES_AND_ADDS = "import os, sys; os.chdir('/'); sys.path.insert(0, {folder!r}); sys.path.insert(2, {folder!r} + 'x')"


@pytest.mark.parametrize(
    ("start", "first"),
    [
        *((start, MOVES) for start in ("-m", "-m package", "-m of a package", "-m installed", "link", "folder")),
        *((start, MOVES_AND_ADDS) for start in ("-m", "-m installed", "script")),
    ],
    ids=lambda word: {MOVES: "moves", MOVES_AND_ADDS: "adds"}.get(word, word),
)
def test_planted_code_is_not_run_when_the_program_has_gone_elsewhere(tmp_path, start, first):
    here, tools, added = tmp_path / "here", tmp_path / "tools", tmp_path / "added"
    for folder in (here / "package", tools / "tool", added):
        folder.mkdir(parents=True)
    install(here, "planted", good("planted"))
    install(added, "added", good("added"))
    text = PROGRAM.format(first=first.format(folder=str(added)))
    text += "print([s.code for s in jf.status() if s.name == 'added'])\n"
    for place in ("program.py", "package/__init__.py", "package/__main__.py", "package/tool.py", "__main__.py"):
        (here / place).write_text("" if place.endswith("__init__.py") else text)
    (tools / "tool" / "__init__.py").write_text("")
    (tools / "tool" / "__main__.py").write_text(text)
    (tools / "link.py").symlink_to(here / "program.py")
    words = {
        "-m": ["-m", "program"],
        "-m package": ["-m", "package"],
        "-m of a package": ["-m", "package.tool"],
        "-m installed": ["-m", "tool"],
        "script": ["program.py"],
        "link": [str(tools / "link.py")],
        "folder": ["."],
    }
    trusted = "['']" if first == MOVES_AND_ADDS else "[]"
    assert told_by(*words[start], cwd=here, path=[tools]).split("\n")[:2] == ["['outside-site'] False", trusted]
    assert log_of(here, "planted") == []


SPAWNED = """
import os, sys
import multiprocessing

def told():
    import jackfield as jf
    print([s.code for s in jf.status() if s.name == "planted"], "jackfield_planted" in sys.modules)

if __name__ == "__main__":
    os.chdir("/")
    child = multiprocessing.get_context("spawn").Process(target=told)
    child.start()
    child.join()
"""


@pytest.mark.parametrize("start", ["-m", "-m installed"])
def test_planted_code_is_not_run_in_a_spawned_process(tmp_path, start):
    here, tools = tmp_path / "here", tmp_path / "tools"
    here.mkdir()
    tools.mkdir()
    install(here, "planted", good("planted"))
    for folder in (here, tools):
        (folder / f"{folder.name}_program.py").write_text(SPAWNED)
    program = "here_program" if start == "-m" else "tools_program"
    assert told_by("-m", program, cwd=here, path=[tools]).strip() == "['outside-site'] False"


def test_a_tool_in_a_folder_of_a_pth_file_is_trusted_with_all_that_lies_there(tmp_path):
    """As the sources of an editable install are: what `-m` runs from there is no folder of the start."""
    environment, tools, here = Environment(tmp_path), tmp_path / "tools", tmp_path / "here"
    here.mkdir()
    install(tools, "planted", good("planted"))
    (tools / "tool").mkdir()
    (tools / "tool" / "__main__.py").write_text(PROGRAM.format(first=MOVES) + "print(jf.Session('planted').devices)\n")
    (environment.site / "tools.pth").write_text(f"{tools}\n")
    told = told_by("-m", "tool", cwd=here, python=environment.python)
    assert told.split("\n")[:2] == ["[''] False", "('planted:0',)"]


def test_a_safe_path_leaves_the_rest_as_it_is(tmp_path):
    """With -P Python puts nothing in front: the folder of a tool on PYTHONPATH, and one it adds, are trusted."""
    tools, added = tmp_path / "tools", tmp_path / "added"
    install(tools, "acme", good("acme"))
    install(added, "planted", good("planted"))
    (tools / "tool.py").write_text(PROGRAM.format(first=MOVES_AND_ADDS.format(folder=str(added))))
    assert told_by("-P", "-m", "tool", cwd=added, path=[tools]).strip() == "[''] False"


SHADOWED = """
import sys
import jackfield as jf
try:
    jf.Session("acme")
except jf.errors.TrustError as e:
    print(e.status.code, "jackfield_acme" in sys.modules)
"""


@pytest.mark.parametrize("start", ["-c", "-m", "script"])
def test_a_file_beside_the_program_takes_no_place_of_a_plugin(tmp_path, start):
    """`jackfield_acme.py` in the current or the script's folder, in front of the installed package."""
    site, here = tmp_path / "site", tmp_path / "here"
    install(site, "acme", good("acme"))
    here.mkdir()
    (here / "jackfield_acme.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (here / "program.py").write_text(SHADOWED)
    arguments = {"-c": ["-c", SHADOWED], "-m": ["-m", "program"], "script": [str(here / "program.py")]}
    told = told_by(*arguments[start], cwd=tmp_path if start == "script" else here, path=[site])
    assert told.strip() == "shadowed False"
    assert log_of(site, "acme") == []
    assert not (tmp_path / "ran").exists()


def test_a_folder_of_pythonpath_is_trusted_even_when_current(tmp_path):
    install(tmp_path, "planted", good("planted"))
    program = PROGRAM.format(first="") + "print(registry.select('planted').devices[0].name)"
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "JACKFIELD_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert result.stdout.split("\n")[-2] == "planted:0"


def test_a_module_from_elsewhere_shadows(folder, registry, tmp_path, monkeypatch):
    install(folder, "acme", good("acme"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    elsewhere.joinpath("jackfield_acme.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(str(elsewhere))
    importlib.invalidate_caches()
    assert status_of(registry, "acme").code == "shadowed"
    with pytest.raises(TrustError, match=r"rename jackfield_acme\.py"):
        registry.select("acme")


def test_an_editable_install_is_trusted_with_a_note(folder, registry, tmp_path, monkeypatch):
    project = tmp_path / "project"
    url = {"url": project.as_uri(), "dir_info": {"editable": True}}
    install(folder, "acme", good("acme"), sources=project / "src", direct_url=url)
    monkeypatch.syspath_prepend(str(project / "src"))  # what an editable install's .pth does
    importlib.invalidate_caches()
    assert registry.select("acme").devices[0].name == "acme:0"
    status = status_of(registry, "acme")
    assert (status.state, status.notes) == ("ok", ("editable install",))


@pytest.mark.parametrize(
    "url",
    [{"url": "https://example.com", "dir_info": {}}, {"dir_info": {"editable": True}}, [], {"url": "x", "dir_info": 3}],
)
def test_an_odd_record_of_origin_is_no_editable_install(folder, registry, url):
    install(folder, "acme", good("acme"), direct_url=url)
    assert status_of(registry, "acme").notes == ()


@pytest.mark.parametrize("order", [("acme", "fork"), ("fork", "acme")])
@pytest.mark.parametrize(
    ("versions", "winner"),
    [
        (("1.10", "1.9"), "jackfield-acme"),
        (("1.9", "1.10"), "acme-fork"),
        (("1.0", "1.0"), "acme-fork"),
        (("1.0", "1.0rc1"), "jackfield-acme"),
        (("1.0.post1", "1.0"), "jackfield-acme"),
        (("1!0.5", "9.0"), "jackfield-acme"),
        (("1.0.dev3", "1.0a1"), "acme-fork"),
        (("1.0", "newest"), "jackfield-acme"),
    ],
)
def test_one_owner_of_a_name(folder, monkeypatch, order, versions, winner):
    given = {"acme": ("jackfield-acme", versions[0]), "fork": ("acme-fork", versions[1])}
    for which in order:
        dist, version = given[which]
        install(folder, "acme", good("acme") if which == order[0] else None, dist=dist, version=version)
    (loser,) = {"jackfield-acme", "acme-fork"} - {winner}
    registry = Registry()
    assert status_of(registry, "acme", winner).state == "pending"
    lost = status_of(registry, "acme", loser)
    assert (lost.state, lost.code) == ("off", "duplicate")
    assert f"also in {winner} {dict(given.values())[winner]}, which was chosen" in lost.error
    assert registry.select("acme").devices[0].name == "acme:0"
    monkeypatch.setenv("JACKFIELD_BACKENDS", f"acme={loser.replace('-', '_')}")
    assert status_of(Registry(), "acme", winner).code == "duplicate"


def test_priority_orders_a_class(folder, registry):
    for name, priority in [("low", 10), ("high", 90), ("mid", 50)]:
        install(folder, name, good(name), manifest(name, "cpu", priority=priority))
    names = [d.name for d in registry.fallbacks() if d.backend.name in ("low", "mid", "high")]
    assert names == ["high:0", "mid:0", "low:0"]


def test_one_owner_of_a_kind(folder, registry):
    install(folder, "acme", good("acme"), version="2.0")
    shared = manifest("zeta", kinds=[{"kind": "acme", "class": "npu"}])
    install(folder, "zeta", good("zeta", ["acme:0"]), shared)
    assert status_of(registry, "zeta").code == "duplicate"
    assert registry.select("acme").devices[0].backend.name == "acme"


def test_a_refused_copy_does_not_win(folder, registry):
    install(folder, "acme", good("acme"))
    install(
        folder, "acme", None, manifest("acme", contract={"min": "9.0", "max": "9.0"}), dist="acme-fork", version="9.0"
    )
    assert status_of(registry, "acme", "jackfield-acme").state == "pending"
    assert status_of(registry, "acme", "acme-fork").code == "too-new"
    assert registry.select("acme").devices[0].name == "acme:0"
