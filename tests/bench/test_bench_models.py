"""The models of the comparisons, and our side of them."""

from __future__ import annotations

import json

import compare_llama
import families_llama
import family_models
import gguf
import models
import numpy as np
import pytest
from bench_runs import TINY, run

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
        ["moe-Q4_0.gguf", "mamba-Q8_0.gguf", "--depths", "0", "--generate", "64", "--goal", "1.0", "--threads", "2"],
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
