"""Settings of single families that no recorded file has, and what files may ask that is lacking here."""

from __future__ import annotations

import math

import pytest
from families import Changed, golden, nmse

import jackfield as jf
import jackfield_llm
from jackfield_llm import ModelError
from jackfield_llm.config import read_config

# ---- rotation


def test_the_context_decides_which_factors_turn(family_path):
    """Of one file: the same logits for every context on one side of the original one, others on the other side."""
    for name, original in (("phi_long", 32), ("phi_short", 1024)):
        ids, _ = golden(name)
        logits = {}
        for context in (original - 1, original, original + 1, 2 * original):
            with jackfield_llm.load(family_path(name), "reference", context=context, cache_dtype="f32") as model:
                logits[context] = model.logits(ids[:20])
        assert nmse(logits[original - 1], logits[original]) < 1e-10
        assert nmse(logits[2 * original], logits[original + 1]) < 1e-10
        assert nmse(logits[original + 1], logits[original]) > 1e-3


def test_a_list_of_factors_alone_is_not_enough(family_path, monkeypatch):
    for taken in ("long", "short"):
        file = jf.gguf.open(family_path("phi_long"))
        tensors = {k: v for k, v in file.tensors.items() if k != f"rope_factors_{taken}.weight"}
        changed = Changed(file.metadata, tensors)
        monkeypatch.setattr(jackfield_llm.model, "_opened", lambda _path, changed=changed: changed)
        with pytest.raises(ModelError, match=rf"lacks the tensor rope_factors_{taken}\.weight"):
            jackfield_llm.load("x", "reference", context=64)


def test_the_magnitude_of_yarn(config):
    """`jf.ops.rope` makes 1 + 0.1 log(factor); attn_factor is what is left to do."""
    made = 1 + 0.1 * math.log(16)
    attn = {
        name: config("mistral3", **keys).layers[0].rope.attn_factor
        for name, keys in {
            "all undone": {},
            "none": {"rope__scaling__yarn_log_multiplier": None},
            "zero": {"rope__scaling__yarn_log_multiplier": 0.0},
            "half": {"rope__scaling__yarn_log_multiplier": 0.5},
            "given": {"rope__scaling__attn_factor": 3.0},
        }.items()
    }
    assert attn == pytest.approx(
        {"all undone": 1 / made, "none": 1, "zero": 1, "half": 1 / (1 + 0.05 * math.log(16)), "given": 3 / made}
    )
    assert config("mistral3", rope__scaling__factor=1.0).layers[0].rope.attn_factor == 1
    with pytest.raises(ModelError, match=r"rope\.scaling\.factor is 0\.5: must be at least 1"):
        config("mistral3", rope__scaling__factor=0.5)
    for name in ("rope__scaling__factor", "rope__scaling__attn_factor", "rope__scaling__yarn_log_multiplier"):
        for value in (1e-9, 1e9):
            with pytest.raises(ModelError, match=rf"{name.replace('__', '.')} is .*: must be from 1e-6 to 1e6"):
                config("mistral3", **{name: value})


def test_latent_attention_scales_products_for_yarn(config):
    size = 1 / math.sqrt(48)
    log = math.log(40)
    assert config("deepseek2").attention_scale == pytest.approx(size * (1 + 0.1 * log) ** 2)
    bare = config("deepseek2", rope__scaling__yarn_log_multiplier=None)
    assert bare.attention_scale == pytest.approx(size * (1 + 0.1 * log) ** 2)
    assert bare.layers[0].rope.attn_factor == pytest.approx(1)
    plain = config("deepseek2", rope__scaling__type="none")
    assert plain.attention_scale == pytest.approx(size)
    assert (plain.layers[0].rope.scale, plain.layers[0].rope.attn_factor) == (1, 1)


def test_queries_without_temperature(config):
    assert config("mistral3", attention__temperature_scale=None).temperature is None
    assert config("mistral3", attention__temperature_scale=0.0).temperature is None
    assert config("mistral3", rope__scaling__original_context_length=None).temperature.length == 128


# ---- windows and caps


def test_windows_of_gemma2(config):
    assert [layer.window for layer in config("gemma2").layers] == [12, 0]
    assert [layer.window for layer in config("gemma2", attention__sliding_window=None).layers] == [4096, 0]
    assert [layer.window for layer in config("gemma2", attention__sliding_window=0).layers] == [0, 0]
    local, plain = config("gemma2", rope__freq_base_swa=500.0).layers
    assert (local.rope.base, plain.rope.base) == (500, 10000)


def test_caps_of_gemma2(config):
    keys = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    usual = config("gemma2", **keys)
    assert (usual.attention_softcap, usual.softcap) == (50, 30)
    none = config("gemma2", **dict.fromkeys(keys, 0.0))
    assert (none.attention_softcap, none.softcap) == (0, 0)


def test_gemma2_27b_scales_by_another_width(config):
    assert config("gemma2", block_count=46).attention_scale == pytest.approx(1 / math.sqrt(96 / 4))
    assert config("gemma2").attention_scale == pytest.approx(1 / math.sqrt(32))


def test_windows_of_gpt_oss(config):
    layers = config("gpt_oss", block_count=4, attention__sliding_window_pattern=None).layers
    assert [layer.window for layer in layers] == [10, 0, 10, 0]
    assert {layer.rope for layer in layers} == {layers[0].rope}
    with pytest.raises(ModelError, match=r"lacks gpt-oss\.attention\.sliding_window,"):
        config("gpt_oss", attention__sliding_window=None)


# ---- experts


@pytest.mark.parametrize("name", ["mixtral", "qwen3moe", "gpt_oss", "deepseek2_lite"])
def test_how_many_experts_a_token_takes(name, config):
    count = config(name).layers[1].experts.count
    with pytest.raises(ModelError, match=r"lacks .*\.expert_used_count,"):
        config(name, expert_used_count=None)
    for used in (0, count + 1, [2, 2]):
        with pytest.raises(ModelError, match=rf"expert_used_count is .*: must be a whole number from 1 to {count}"):
            config(name, expert_used_count=used)
    assert config(name, expert_used_count=count).layers[1].experts.used == count


def test_architectures_of_experts_must_have_some(config):
    for name in ("qwen3moe", "gpt_oss"):
        for key in ("expert_count", "expert_feed_forward_length"):
            with pytest.raises(ModelError, match=rf"lacks .*\.{key},"):
                config(name, **{key: None})
        with pytest.raises(ModelError, match="expert_count is 0"):
            config(name, expert_count=0)
    assert [layer.experts for layer in config("deepseek2", expert_count=None).layers] == [None, None]


def test_gating(config):
    assert config("deepseek2").layers[1].experts.gating == "sigmoid"
    for value in (None, 0, 1):
        assert config("deepseek2", expert_gating_func=value).layers[1].experts.gating == "softmax"
    with pytest.raises(ModelError, match=r"deepseek2\.expert_gating_func is 3: must be 1 \(softmax\) or 2 \(sigmoid\)"):
        config("deepseek2", expert_gating_func=3)


@pytest.mark.parametrize(
    ("layers", "words", "gating"),
    [(47, 154880, "sigmoid"), (48, 154880, "sigmoid"), (46, 154880, "softmax"), (47, 154879, "softmax")],
)
def test_glm_lite_has_sigmoids_without_saying_so(layers, words, gating, metadata):
    found = metadata["deepseek2"] | {"deepseek2.block_count": layers, "tokenizer.ggml.tokens": ["x"] * words}
    del found["deepseek2.expert_gating_func"]
    assert read_config(found).layers[1].experts.gating == gating
    assert read_config(found | {"deepseek2.expert_gating_func": 1}).layers[1].experts.gating == "softmax"


def test_weights_of_experts(config):
    assert config("deepseek2").layers[1].experts.normed
    assert not config("deepseek2", expert_weights_norm=None).layers[1].experts.normed
    assert config("deepseek2", expert_weights_scale=0.0).layers[1].experts.scale == 1
    with pytest.raises(ModelError, match=r"expert_weights_norm is 1: must be true or false"):
        config("deepseek2", expert_weights_norm=1)


def test_groups_of_experts(config):
    for groups in (0, 1, None):
        assert config("deepseek2", expert_group_count=groups).layers[1].experts.groups == 1
    for groups in (5, 12):
        with pytest.raises(
            ModelError, match=rf"expert_group_count is {groups}: must be so that the 12 experts make gr"
        ):
            config("deepseek2", expert_group_count=groups)
    with pytest.raises(ModelError, match=r"expert_group_used_count is 1: must be enough groups of 3 for 4 experts"):
        config("deepseek2", expert_group_used_count=1, expert_used_count=4)
    with pytest.raises(ModelError, match=r"expert_group_used_count is 5: must be a whole number from 1 to 4"):
        config("deepseek2", expert_group_used_count=5)


def test_leading_layers_are_dense(config):
    for dense in (None, 0, 1, 2, 9):
        layers = config("deepseek2", leading_dense_block_count=dense).layers
        assert [layer.experts is None for layer in layers] == [i < (dense or 0) for i in range(2)]


# ---- latent attention


def test_a_query_rank_of_zero_is_none(config):
    assert config("deepseek2_lite").latent == config("deepseek2_lite", attention__q_lora_rank=None).latent
    assert config("deepseek2").latent.query_rank == 48


def test_latent_sizes_agree(config):
    with pytest.raises(ModelError, match=r"attention\.key_length is 79: must be 80, what the cache holds"):
        config("deepseek2", attention__key_length=79)
    with pytest.raises(ModelError, match=r"attention\.value_length is 65: must be 64, what the cache holds"):
        config("deepseek2", attention__value_length=65)
    with pytest.raises(ModelError, match=r"key_length_mla is 16: must be a whole number from 17"):
        config("deepseek2", attention__key_length_mla=16)


def test_what_is_lacking_is_refused_by_name(config):
    with pytest.raises(ModelError, match=r"lacks deepseek2\.attention\.key_length_mla,"):
        config("deepseek2", attention__key_length_mla=None)  # the old form: one matrix for keys and values
    with pytest.raises(ModelError, match=r"attention\.temperature_scale is 0\.5: must be 0: queries that grow"):
        config("deepseek2", attention__temperature_scale=0.5)


def test_the_cache_of_latent_attention_is_one_vector_a_token(family_path):
    """rank + turned numbers a token and layer, however many heads."""
    with jackfield_llm.load(family_path("deepseek2"), "reference", context=100, cache_dtype="f32") as model:
        model.prefill([1, 2, 3])
        states = {name: state.read().shape for name, state in model.session.states.items()}
    assert states == {"k0": (1, 100, 80), "k1": (1, 100, 80)}


def test_a_file_may_have_no_bias_for_the_choice(family_path, monkeypatch):
    """Then other experts are chosen; the recorded logits tell."""
    file = jf.gguf.open(family_path("deepseek2"))
    ids, theirs = golden("deepseek2")
    tensors = {name: tensor for name, tensor in file.tensors.items() if name != "blk.1.exp_probs_b.bias"}
    monkeypatch.setattr(jackfield_llm.model, "_opened", lambda _path: Changed(file.metadata, tensors))
    with jackfield_llm.load("x", "reference", context=64, cache_dtype="f32") as model:
        assert 1e-2 < nmse(model.logits(ids), theirs) < 1
