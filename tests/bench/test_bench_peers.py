"""How peers and the machine are known, and how they are asked."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import machine
import peer
import pytest
import roofline
import sides
from bench_runs import SIDES, fake_peers, program
from peer_sources import LLAMA, Mend, PeerError

# ---- sides and peers


def test_llama_bench_answers_with_its_last_sample():
    assert sides.tokens_per_s([{"avg_ts": 4.0, "samples_ts": [3.0, 5.0]}]) == 5.0
    assert sides.tokens_per_s([{"avg_ts": 1.0}, {"avg_ts": 4.0}]) == 4.0
    assert sides.tokens_per_s({"tokens_per_s": 7}) == 7.0


def test_the_fork_warms_up_with_a_whole_prompt(tmp_path):
    *_, fork = sides.sides_of(fake_peers(tmp_path))
    command = fork.speed(Path("m.gguf"), sides.Task("prompt", 512), 2)
    assert command[-4:] == ["-r", "2", "-o", "json"]
    assert [side.name for side in sides.sides_of(fake_peers(tmp_path))] == SIDES


def test_a_peer_of_a_file_is_native_where_it_was_built_on_this_cpu(tmp_path):
    path = tmp_path / "peers.json"
    known = [vars(one) for one in fake_peers(tmp_path)]
    path.write_text(json.dumps([{**one, "native": False} for one in known]))  # what a file says of it is not heard
    assert all(one.native for one in peer.read_peers(path))
    path.write_text(json.dumps([{**known[0], "flags": []}]))
    assert not peer.read_peers(path)[0].native
    path.write_text(json.dumps([{**known[0], "built_on": "another CPU", "native": True}]))
    with pytest.raises(PeerError, match=r"llama\.cpp was built on 'another CPU', this is .*; build it here"):
        peer.read_peers(path)
    old = {key: value for key, value in known[0].items() if key != "built_on"}
    path.write_text(json.dumps([{**old, "native": True}]))
    with pytest.raises(PeerError, match=r"built by an older script.*peer.py stamp"):
        peer.read_peers(path)


def test_the_mark_of_a_cpu_changes_with_its_flags(monkeypatch):
    def mark(flags):
        monkeypatch.setattr(machine, "this_cpu", lambda: {"model name": "x", "flags": flags})
        return machine.cpu_mark()

    assert mark("avx2 avx512f") == mark("avx512f avx2") != mark("avx2")


def older_build(folder: Path) -> Path:
    """A build folder as older scripts left it."""
    out = folder / LLAMA.out
    out.mkdir(exist_ok=True)
    (out / "bin").mkdir(exist_ok=True)
    (out / peer.OLD_MARK).write_text(machine.cpu_name())
    (out / "CMakeCache.txt").write_text(f"GGML_NATIVE:BOOL=ON\nCMAKE_CXX_COMPILER:FILEPATH={peer.tool('c++')}\n")
    kernel = {"file": "/x/ggml-cpu/quants.c", "command": "cc -march=native"}
    (out / "compile_commands.json").write_text(json.dumps([kernel]))
    (out / "bin" / "peer-matmul").write_text("#!/bin/sh\necho 4 1e-3\n")
    (out / "bin" / "peer-matmul").chmod(0o755)
    return out


def test_an_older_build_is_stamped_after_a_look(tmp_path, monkeypatch):
    monkeypatch.setattr(peer, "tool", lambda name: f"/usr/bin/{name}")
    out = older_build(tmp_path)
    peer.stamp(tmp_path, LLAMA)
    assert (out / peer.MARK).read_text().strip() == machine.cpu_mark()
    for name, text, why in (
        (peer.OLD_MARK, "another", "it was built on 'another'"),
        ("CMakeCache.txt", "GGML_NATIVE:BOOL=OFF", "was not told GGML_NATIVE=ON"),
        ("CMakeCache.txt", "GGML_NATIVE:BOOL=ON", "its compiler is not /usr/bin/c"),
        ("compile_commands.json", '[{"file": "/x/iqk/a.cpp", "command": "cc"}]', "without -march=native"),
        ("compile_commands.json", "[]", "without -march=native"),
        ("bin/peer-matmul", "#!/bin/sh\necho 4 wrong\n", "do not run here"),
        ("bin/peer-matmul", "#!/bin/sh\nkill -4 $$\n", "do not run here"),
    ):
        (older_build(tmp_path) / peer.MARK).unlink(missing_ok=True)
        (out / name).write_text(text)
        with pytest.raises(PeerError, match=why):
            peer.stamp(tmp_path, LLAMA)
        assert not (out / peer.MARK).exists()


def test_a_mend_is_put_before_its_place_once():
    one = Mend("x.cpp", ("void g(", "for", "store"), "  tail;\n")
    source = "void f() {\n  for;\n  store;\n}\nvoid g() {\n  for;\n  store;\n}\n"
    mended = one.applied(source)
    assert mended == "void f() {\n  for;\n  store;\n}\nvoid g() {\n  for;\n  tail;\n  store;\n}\n"
    assert one.applied(mended) == mended
    with pytest.raises(PeerError, match=r"x\.cpp: no 'store' where a mend belongs"):
        one.applied("void g() {\n  for;\n}\n")


def test_peers_of_a_file_are_read_or_refused(tmp_path):
    known = fake_peers(tmp_path)
    path = tmp_path / "peers.json"
    path.write_text(json.dumps([vars(one) for one in known]))
    assert peer.read_peers(path) == known
    for text, why in (("[]", "names no peer"), ("{", "must be what"), ('[{"name": "x"}]', "must be what")):
        path.write_text(text)
        with pytest.raises(PeerError, match=why):
            peer.read_peers(path)


# ---- machine and roofline

ZEN4 = """processor : 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
flags\t\t: avx2 avx512f avx512_vnni

processor : 1
vendor_id\t: other
"""


def test_the_reference_machine_is_known_by_its_cpu():
    cpu = machine.facts(ZEN4)
    assert machine.is_reference(cpu, cores=2)
    assert not machine.is_reference(cpu, cores=8)
    assert not machine.is_reference({**cpu, "flags": "avx2"}, cores=2)
    assert not machine.is_reference({**cpu, "vendor_id": "GenuineIntel"}, cores=2)
    assert not machine.is_reference({}, cores=2)
    assert machine.last_cache_nbytes() > 1 << 10


def test_the_roofline_of_a_run_is_the_median(tmp_path):
    tool = program(tmp_path / "x", "roofline")
    found = roofline.measure(tool, 2, quick=True)
    assert found["int8"] == {1: 1e9, 2: 2e9}
    other = {name: {n: 10 * value for n, value in rates.items()} for name, rates in found.items()}
    assert roofline.medians([found, other, other])["read"] == {1: 1e10, 2: 2e10}
    told = roofline.table(found)
    assert "int8              GOPS      1.0      2.0   470 / 936" in told


def test_a_roofline_that_fails_says_so(tmp_path):
    bad = tmp_path / "bad"
    bad.write_text("#!/bin/sh\necho no such instruction >&2\nexit 4\n")
    bad.chmod(0o755)
    with pytest.raises(PeerError, match="ended with 4: no such instruction"):
        roofline.measure(bad, 1)


def test_the_roofline_builds_and_measures(tmp_path, absent):
    if not shutil.which("c++") or "flags" not in machine.this_cpu():
        absent("cpu", "no C++ compiler, or no x86")
    tool = roofline.build(tmp_path)
    found = roofline.measure(tool, 2, quick=True)
    assert {"read", "read_huge", "copy_16MiB", "f32"} <= set(found)
    assert all(value > 1e6 for rates in found.values() for value in rates.values())
    assert all(sorted(rates) == [1, 2] for rates in found.values())
    before = tool.stat().st_mtime_ns
    assert roofline.build(tmp_path).stat().st_mtime_ns == before
