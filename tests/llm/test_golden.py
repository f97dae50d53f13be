"""The default model against llama.cpp: tokens, logits beside the float32 run's, greedy texts by teacher forcing.

The figures are those that tests/golden/README.md defines. What a device may differ is what llama.cpp's own run of the
same file differs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jackfield as jf
import jackfield_llm

GOLDEN = Path(__file__).parents[1] / "golden"
TEXTS = json.loads((GOLDEN / "logits.json").read_text("utf-8"))
GREEDY = json.loads((GOLDEN / "greedy.json").read_text("utf-8"))
ROOM = 1.1  # how much larger than llama.cpp's our figures may be
SHORT = 32  # tokens of a prompt that numpy evaluates in seconds; the mean KL of fewer is a matter of chance
CALM = "code"  # the text whose beginning is no harder than all texts are on average


@pytest.fixture(scope="module")
def stored():
    with np.load(GOLDEN / "logits.npz") as file:
        return {name: file[name] for name in file.files}


@pytest.fixture(scope="module")
def cpu(default_model, absent):
    try:
        model = jackfield_llm.load(default_model, "cpu", context=512)
    except (jf.errors.DeviceNameError, jf.errors.BackendError) as e:
        absent("cpu", f"no cpu device here: {e}")
    with model:
        yield model


def logsumexp(logits: np.ndarray) -> np.ndarray:
    highest = logits.max(-1)
    return highest + np.log(np.exp(logits - highest[..., None]).sum(-1))


def distances(logits: np.ndarray, text: str, stored: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """KL(float32 || ours) and mean squared error of the stored ids' logits, at each of our first positions."""
    ours = logits.astype(np.float64)
    ids, theirs = (stored[f"{text}/{key}"][: len(ours)] for key in ("top_ids", "top_logits"))
    a, b = theirs.astype(np.float64), np.take_along_axis(ours, ids.astype(np.int64), 1)
    log_p = a - stored[f"{text}/logsumexp"][: len(ours), None]
    log_q = b - logsumexp(ours)[:, None]
    rest_p, rest_q = (np.maximum(1 - np.exp(x).sum(1), 1e-12) for x in (log_p, log_q))
    kl = (np.exp(log_p) * (log_p - log_q)).sum(1) + rest_p * np.log(rest_p / rest_q)
    return kl, ((a - b) ** 2).mean(1)


def figures(runs: dict[str, np.ndarray], stored: dict[str, np.ndarray]) -> tuple[float, float]:
    """Mean KL and RMS error over all positions of all texts."""
    kl, squares = zip(*(distances(logits, text, stored) for text, logits in runs.items()), strict=True)
    return float(np.concatenate(kl).mean()), float(np.sqrt(np.concatenate(squares).mean()))


def llama_figures() -> tuple[float, float]:
    tokens = np.array([text["tokens"] for text in TEXTS.values()])
    own = [text["llama_cpp_q4_1"] for text in TEXTS.values()]
    kl = np.array([o["mean_kl_512"] for o in own])
    rms = np.array([o["rms_logit_error_512"] for o in own])
    return float((kl * tokens).sum() / tokens.sum()), float(np.sqrt((rms**2 * tokens).sum() / tokens.sum()))


def assert_as_near(runs: dict[str, np.ndarray], stored: dict[str, np.ndarray]) -> None:
    (kl, rms), (their_kl, their_rms) = figures(runs, stored), llama_figures()
    assert kl <= ROOM * their_kl
    assert rms <= ROOM * their_rms


def mean_kl(a: np.ndarray, b: np.ndarray) -> float:
    """Of two runs of ours, over all ids."""
    log_p, log_q = (x.astype(np.float64) - logsumexp(x.astype(np.float64))[:, None] for x in (a, b))
    return float((np.exp(log_p) * (log_p - log_q)).sum(1).mean())


def test_the_figures_are_computed_as_the_readme_says(stored):
    """The stored logits themselves are at distance 0; a shift of all is none; a flat row is far."""
    text = "facts"
    ids, top, total = (stored[f"{text}/{key}"][:2] for key in ("top_ids", "top_logits", "logsumexp"))
    vocabulary, kept = 49152, top.shape[1]
    whole = np.empty((2, vocabulary))
    for row in range(2):
        rest = max(np.exp(total[row]) - np.exp(top[row].astype(np.float64)).sum(), 1e-9)
        whole[row] = np.log(rest / (vocabulary - kept))
        whole[row, ids[row]] = top[row]
    assert np.abs(distances(whole, text, stored)[0]).max() < 1e-6
    assert distances(whole, text, stored)[1].max() == 0
    kl, squares = distances(whole + 3, text, stored)
    assert np.abs(kl).max() < 1e-6
    assert squares == pytest.approx(9)
    assert distances(np.zeros_like(whole), text, stored)[0].min() > 1


def test_tokens_are_llama_cpp_s(default_metadata):
    tokenizer = jackfield_llm.Tokenizer.from_metadata(default_metadata)
    cases = json.loads((GOLDEN / "tokens.json").read_text("utf-8"))
    assert len(cases) > 20
    for case in cases:
        assert tokenizer.encode(case["text"], special=True) == case["ids"]


def test_texts_have_the_ids_they_are_stored_with(default_metadata, stored):
    tokenizer = jackfield_llm.Tokenizer.from_metadata(default_metadata)
    for name, text in TEXTS.items():
        assert tokenizer.encode(text["text"], special=True) == stored[f"{name}/ids"].tolist()


def test_prompts_are_as_near_as_llama_cpp(cpu, stored):
    assert_as_near({text: cpu.logits(stored[f"{text}/ids"]) for text in TEXTS}, stored)


def test_decoding_is_as_near_as_llama_cpp(cpu, stored):
    """Token by token, which other kernels do."""
    runs = {}
    for text in TEXTS:
        cpu.reset()
        runs[text] = np.stack([cpu.decode(token) for token in stored[f"{text}/ids"].tolist()])
    assert_as_near(runs, stored)


@pytest.mark.parametrize(("run", "farthest"), [("float32", 0.5), ("llama_cpp_q4_1", 1.0)])
def test_greedy_texts_by_teacher_forcing(run, farthest, cpu):
    """Where a golden token is not our likeliest, it is nearly so: within what quantisation moves a logit."""
    first = 0
    total = 0
    for case in GREEDY.values():
        tokens = np.array(case[run])
        logits = cpu.logits([*case["prompt_ids"], *case[run]])[len(case["prompt_ids"]) - 1 : -1]
        golden = logits[np.arange(len(tokens)), tokens]
        assert (logits.max(1) - golden).max() <= farthest
        assert (logits > golden[:, None]).sum(1).max() <= 4
        first += int((logits.argmax(1) == tokens).sum())
        total += len(tokens)
    assert first >= 0.9 * total


# ---- the same on other devices


@pytest.fixture(scope="module")
def short(stored):
    return stored[f"{CALM}/ids"][:SHORT].tolist()


@pytest.fixture(scope="module")
def on_cpu(cpu, short):
    return cpu.logits(short)


def assert_agrees(logits: np.ndarray, on_cpu: np.ndarray, stored: dict[str, np.ndarray]) -> None:
    """With the float32 run and with cpu, each within llama.cpp's own distance."""
    assert_as_near({CALM: logits}, stored)
    assert mean_kl(logits, on_cpu) <= ROOM * llama_figures()[0]


def test_reference(default_model, short, on_cpu, stored):
    """numpy in double, cast once: next to nothing away from llama.cpp's float32 run."""
    with jackfield_llm.load(default_model, "reference", context=SHORT, cache_dtype="f32") as model:
        logits = model.logits(short)
        assert model.device_names == "reference:0"
    kl, squares = distances(logits, CALM, stored)
    assert kl.mean() <= 1e-5
    assert np.sqrt(squares.mean()) <= 5e-3
    assert_agrees(logits, on_cpu, stored)


def test_sim_and_reference(default_model, short, on_cpu, stored):
    """Memory of its own, a queue, and crossings in every layer: attention is left to the other device."""
    with (
        jf.sim(refuse="attention"),
        jackfield_llm.load(default_model, "sim+reference", context=SHORT) as model,
    ):
        logits = model.logits(short)
        assert set(model.device_names.split("+")) == {"sim:0", "reference:0"}
        report = model.explain()
    assert report.count("attention") >= 30
    assert_agrees(logits, on_cpu, stored)


PARTS = """
import sys
import numpy as np
import jackfield_llm
first = "([0-9]|1[0-4])"
pins = {rf"(blk\\.{first}\\..*|[kv]{first})": "cpu:0:0", r"(blk\\..*|[kv][0-9]+)": "cpu:0:1"}
path, out, *ids = sys.argv[1:]
with jackfield_llm.load(path, "cpu:0:0+cpu:0:1", context=64, pins=pins) as model:
    names = [f"k{n}" for n in range(30)]
    homes = [model.session.states[name].device for name in names]
    ids = [int(token) for token in ids]
    logits = model.logits(ids)
    model.reset()
    decoded = np.stack([model.decode(token) for token in ids])
    np.savez(out, logits=logits, decoded=decoded, homes=homes, report=model.explain())
"""


def test_two_parts_of_a_cpu(default_model, cpu, short, on_cpu, stored, tmp_path):
    """Half the layers on each: the same kernels, so only the crossing could make a difference, and it must not."""
    cpu.reset()
    decoded_on_cpu = np.stack([cpu.decode(token) for token in short])
    out = tmp_path / "parts.npz"
    command = [sys.executable, "-c", PARTS, str(default_model), str(out), *map(str, short)]
    subprocess.run(command, check=True, env={**os.environ, "JACKFIELD_CPU_PARTS": "2"})
    with np.load(out) as got:
        logits, decoded, homes, report = got["logits"], got["decoded"], got["homes"].tolist(), str(got["report"])
    assert homes == ["cpu:0:0"] * 15 + ["cpu:0:1"] * 15
    assert "on cpu:0:0" in report
    assert "on cpu:0:1" in report
    assert_agrees(logits, on_cpu, stored)
    assert mean_kl(logits, on_cpu) <= 1e-6
    assert mean_kl(decoded, decoded_on_cpu) <= 1e-6
