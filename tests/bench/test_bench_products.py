"""Accuracy, products and memory-bound kernels."""

from __future__ import annotations

import json
import shutil

import aarch64_counts
import accuracy
import numpy as np
import presence
import pytest
import targets
from bench_runs import SIDES, program, run, written

# ---- accuracy


def divergences(llama: list[float], ours: list[float]) -> dict[str, np.ndarray]:
    return {"llama.cpp": np.array(llama), "jackfield": np.array(ours)}


def test_accuracy_by_hand():
    row = accuracy.judged(divergences([1.0, 2.0, 3.0], [1.3, 2.0, 2.9]))
    assert (row["llama.cpp"], row["jackfield"]) == (pytest.approx(2), pytest.approx(6.2 / 3))
    assert row["difference"] == pytest.approx(0.2 / 3)
    # differences 0.3, 0, -0.1: their variance is (0.2333^2 + 0.0667^2 + 0.1667^2) / 2 = 0.043333
    assert row["standard_error"] == pytest.approx((0.13 / 3 / 3) ** 0.5)
    assert (row["ratio"], row["positions"], row["verdict"]) == (pytest.approx(3.1 / 3), 3, "met (at most 1.1 times)")


def test_verdicts_of_accuracy():
    def verdict(*words):
        return accuracy.judged(divergences(*words))["verdict"]

    assert verdict([1.0, 1.0, 1.0], [1.09, 1.1, 1.1]) == "met (at most 1.1 times)"
    assert verdict([1.0, 1.0, 1.0], [1.3, 1.31, 1.3]) == "missed (at most 1.1 times)"
    assert verdict([1.0, 1.0, 1.0], [0.5, 1.0, 2.2]) == "missed (at most 1.1 times, by less than two standard errors)"
    assert verdict([1e-9, 0.0], [9e-7, 1e-8]) == "met (both exact)"
    assert verdict([0.0, 0.0], [2e-3, 2e-3]) == "missed (at most 1.1 times)"


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
    document = json.loads(out.read_text())
    assert all(len(line["samples"]) == 1 and line["goal"] is None for line in document["products"])  # of 4096 alone
    assert "peer-matmul q4_0 1 1 1 64 64 1 4" in document["commands"]
    assert document["command"].startswith("matmul.py --size 64 --rows 1,4")
    assert [one["native"] for one in document["peers"]] == [True, True]
    assert str(tmp_path) not in out.read_text()


def test_lines_of_products_carry_samples_and_verdicts():
    presence.opens("cpu:0")
    import matmul

    chosen = matmul.parsed(["--rows", "512", "--dtypes", "q4_0"])
    peaks = {"read": {1: 16e9}, "read_huge": {1: 16e9}, "f32": {1: 1e11}, "int8": {1: 470e9}}
    ops = 2 * 512 * 4096**2
    found = {"jackfield": {512: [ops / 250e9, ops / 400e9, ops / 310e9]}, "llama.cpp": {512: [ops / 100e9]}}
    ours, theirs = matmul.lines("q4_0", "hot", found, peaks, chosen, "")
    assert ours["samples"] == found["jackfield"][512]
    assert ours["goal"]["figure"] == pytest.approx(310e9)
    assert ours["goal"]["verdict"].startswith("met (at least 300 GOPS")
    assert theirs["goal"] is None
    ours, _ = matmul.lines("q4_0", "hot", found, peaks, chosen, "ik_llama.cpp: not built for this CPU")
    assert ours["goal"]["verdict"] == "void: ik_llama.cpp: not built for this CPU"


def test_products_beside_a_peer_for_another_cpu_are_void(tmp_path, capsys):
    presence.opens("cpu:0")
    import matmul

    options = written(tmp_path)
    known = json.loads((tmp_path / "peers.json").read_text())
    (tmp_path / "peers.json").write_text(json.dumps([{**one, "flags": []} for one in known]))
    words = ["--size", "32", "--rows", "1", "--dtypes", "q4_0", "--rounds", "1", "--hot-only", *options]
    assert matmul.main(words) == 0
    assert "VOID: llama.cpp: not built for this CPU; ik_llama.cpp: not built" in capsys.readouterr().out


def test_what_a_call_and_a_step_cost_is_judged(tmp_path):
    out = tmp_path / "o.json"
    done = run("overhead.py", "reference", "--rounds", "1", "--threads", "1", "--json", str(out))
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())["figures"]
    assert figures["a call with one tiny op"]["goal_here"] == targets.CALL_S == 10e-6
    assert figures["a step of 1,000, 1 threads"]["goal_here"] == targets.STEP_S[1] == 0.05e-6
    for figure in figures.values():
        met = figure["figure"] <= figure["goal_here"]
        assert figure["verdict"].startswith("met (at most " if met else "missed (at most ")


def test_memory_bound_kernels_are_compared_with_copying(tmp_path):
    from presence import absent

    try:
        import jackfield_cpu  # noqa: F401
    except ImportError:
        absent("cpu", "the plugin jackfield-cpu is not installed")
    out = tmp_path / "k.json"
    tool = program(tmp_path / "x", "roofline")
    asked = ["add", "rms_norm", "rope, normal", "contiguous of columns f4", "cast to f16"]
    done = run("memory_ops.py", *asked, "--threads", "1", "--mib", "1", "--roofline", tool, "--json", str(out))
    assert done.returncode == 0, done.stderr
    found = {row["kernel"]: row for row in json.loads(out.read_text())["kernels"]}
    assert set(found) == set(asked)
    wrong = run("memory_ops.py", "ad", "--roofline", tool)
    assert wrong.returncode == 2
    assert "no kernel 'ad'; known: add" in wrong.stderr
    add = found["add"]
    assert add["bytes_per_s"] == pytest.approx(1.5 * (1 << 20) / add["seconds"])
    assert add["share_of_copy"] == pytest.approx(add["bytes_per_s"] / add["copy_bytes_per_s"])
    assert add["goal"] == ""  # the goal is of 16 MiB


def test_memory_bound_kernels_reach_half_of_copying_or_miss():
    presence.opens("cpu:0")
    import memory_ops

    kernel = memory_ops.Kernel("x", None, {}, {}, 2000, 0)
    for took, verdict in ((1.9, "met"), (2.1, "missed")):
        found = memory_ops.row(kernel, [took, took, 9.0], 1000.0, 1, goal=True)
        assert (found["goal"], found["samples"]) == (f"{verdict} (at least 50% of copying)", [took, took, 9.0])


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
