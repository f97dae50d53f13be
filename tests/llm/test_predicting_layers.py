"""Layers that predict further tokens: nothing of them is needed, looked at or kept, and no other layer is left out."""

from __future__ import annotations

import families
import numpy as np
import pytest
from families import golden, nmse
from hypothesis import given
from hypothesis import strategies as st

import jackfield_llm
from jackfield_llm import ModelError
from jackfield_llm.config import read_config

PREDICTING = {
    "deepseek2": "deepseek2_predicting",
    "qwen3next": "qwen3next_predicting",
    "qwen35": "qwen35_predicting",
    "qwen35moe": "qwen35moe_predicting",
}
"""Architecture to variant: those for which llama.cpp (build 11434) looks for such layers."""
NAMES = tuple(PREDICTING.values())


def load(path="x", device="reference"):
    return jackfield_llm.load(path, device, context=64, cache_dtype="f32")


class Unseen:
    """A tensor that must be left alone."""

    def __getattribute__(self, name):
        raise AssertionError(f"{name} of a tensor that predicts further tokens is looked at")


# ---- how many


@pytest.mark.parametrize("name", NAMES)
def test_they_are_counted_and_are_no_layers(name, config):
    family = families.family_files.by_name(name)
    found = config(name)
    assert (len(found.layers), found.predicting) == (family.layers, family.predicting)
    for none in (0, None):
        changed = config(name, nextn_predict_layers=none, attention__recurrent_layers=None)
        assert (len(changed.layers), changed.predicting) == (family.layers + family.predicting, 0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("count", "must"),
    [
        *((count, r"fewer than the [34] of block_count") for count in (4, 5, 1024, 2**31 - 1)),
        *((count, r"a whole number from 0 to") for count in (-1, 1.0, float("nan"), True, False, "1", [1], 2**31)),
    ],
)
def test_a_count_that_is_none_is_told(name, count, must, config):
    key = rf"{families.family_files.by_name(name).architecture}\.nextn_predict_layers"
    with pytest.raises(ModelError, match=rf"{key} is .*: must be {must}"):
        config(name, nextn_predict_layers=count)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_nothing_else_is_no_model(name, config):
    family = families.family_files.by_name(name)
    blocks = family.layers + family.predicting
    with pytest.raises(
        ModelError, match=rf"predict_layers is {blocks}: must be fewer than the {blocks} of block_count"
    ):
        config(name, nextn_predict_layers=blocks)


@given(st.sampled_from(NAMES), st.integers(1, 80), st.integers(0, 80))
def test_what_is_left_gives_logits(metadata, name, blocks, count):
    architecture = metadata[name]["general.architecture"]
    keys = {"block_count": blocks, "nextn_predict_layers": count, "attention.recurrent_layers": [True] * blocks}
    changed = metadata[name] | {f"{architecture}.{key}": value for key, value in keys.items()}
    try:
        found = read_config(changed)
    except ModelError as e:
        assert count >= blocks
        assert "nextn_predict_layers" in str(e)
    else:
        assert (len(found.layers), found.predicting) == (blocks - count, count)


def test_a_list_of_layers_has_those_that_predict_too(config):
    def without_attention(listed):
        found = config("qwen3next_predicting", attention__recurrent_layers=listed)
        return [layer.mixer is not None for layer in found.layers]

    assert without_attention([True, False, False, False]) == [True, False]
    assert without_attention([False, True, True, True]) == [False, True]
    for listed in ([True, False], [True, False, False], [True] * 5):
        with pytest.raises(ModelError, match=r"recurrent_layers is .*: must be 4 flags, one a layer"):
            without_attention(listed)


def test_models_that_are_known_by_their_layers_are_known_without_them(metadata):
    """GLM 4.7 Lite: 47 layers and one behind, where the router need not say that it has sigmoids."""
    found = metadata["deepseek2_predicting"] | {"deepseek2.block_count": 48, "tokenizer.ggml.tokens": ["x"] * 154880}
    del found["deepseek2.expert_gating_func"]
    assert read_config(found).layers[-1].experts.gating == "sigmoid"
    assert read_config(found | {"deepseek2.block_count": 47}).layers[-1].experts.gating == "softmax"


# ---- other architectures


@pytest.mark.parametrize("name", sorted(set(families.NAMES) - set(NAMES)))
def test_other_architectures_have_none(name, config):
    architecture = families.family_files.by_name(name).architecture
    assert config(name, nextn_predict_layers=0) == config(name)
    if architecture in PREDICTING:
        return
    with pytest.raises(
        ModelError,
        match=rf"{architecture}\.nextn_predict_layers is 1: must be 0: layers that predict further tokens in this arch",
    ):
        config(name, nextn_predict_layers=1)


def test_encoders_have_none():
    for architecture in ("bert", "nomic-bert"):
        with pytest.raises(ModelError, match=rf"{architecture}\.nextn_predict_layers is 2: must be 0"):
            read_config({"general.architecture": architecture, f"{architecture}.nextn_predict_layers": 2})


# ---- tensors


@pytest.mark.parametrize("name", NAMES)
def test_their_tensors_are_left_alone(name, opened):
    """Also one of a type that nobody here computes with."""
    file = opened(name)
    behind = [tensor for tensor in file.tensors if families.predicts(name, tensor)]
    assert len(behind) > 10
    for tensor in behind:
        file.tensors[tensor] = Unseen()
    ids, theirs = golden(name)
    with load() as ours:
        assert nmse(ours.logits(ids), theirs) < 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_a_file_need_not_have_them(name, opened):
    """They cost nothing: memory is that of a file without them, and so are the logits."""
    ids, _ = golden(name)
    held, made = [], []
    for whole in (True, False):
        file = opened(name)
        if not whole:
            for tensor in [tensor for tensor in file.tensors if families.predicts(name, tensor)]:
                del file.tensors[tensor]
        with load() as ours:
            made.append(ours.logits(ids))
            held.append(ours._decoder.plan(1, "last").memory()["reference:0"])
            assert {state[1:] for state in ours.session.states if state[:1] in "kv"} <= {"0", "1"}
    assert np.array_equal(*made)
    assert held[0]["constants"] > 100_000
    assert held[0] == held[1]


def test_each_of_several_counts(opened):
    """One may be missing, but not the part that says what it is."""
    file = opened("qwen3next_predicting")
    for tensor in [tensor for tensor in file.tensors if tensor.startswith("blk.3.")]:
        del file.tensors[tensor]
    load().close()
    file.tensors["blk.3.attn_norm.weight"] = file.tensors["blk.2.attn_norm.weight"]
    with pytest.raises(
        ModelError, match=r"lacks the tensor blk\.3\.nextn\.eh_proj\.weight, .*the last 2 of its layers"
    ):
        load()


@pytest.mark.parametrize("name", ["qwen3next", "qwen35", "qwen35moe", "deepseek2"])
def test_a_layer_that_gives_logits_is_not_left_out(name, opened):
    """A count that is wrong would drop it without a word."""
    file = opened(name)
    file.metadata[f"{name}.nextn_predict_layers"] = 1
    with pytest.raises(
        ModelError, match=r"lacks the tensor blk\.1\.nextn\.eh_proj\.weight, though nextn_predict_layers"
    ):
        load()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "tensor", ["blk.1.nextn.enorm.weight", "blk.4.attn_norm.weight", "blk.02.attn_norm.weight", "nextn.enorm.weight"]
)
def test_a_tensor_elsewhere_is_no_part_of_the_model(name, tensor, opened):
    file = opened(name)
    file.tensors[tensor] = file.tensors["output_norm.weight"]
    with pytest.raises(ModelError, match=tensor.replace(".", r"\.") + "|which other layers have"):
        load()
