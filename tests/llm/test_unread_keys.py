"""Keys that change what a model computes: an architecture heeds them, or refuses values that are not neutral by name.

Which architecture heeds which key stands here a second time on purpose: the code learns it from what its readers ask.
"""

from __future__ import annotations

import math

import families
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jackfield as jf
import jackfield_llm
from jackfield_llm import ModelError
from jackfield_llm.config import known_architectures, read_config
from jackfield_llm.config_unread import CHANGING

import embedding_files  # isort: skip # beside family_files, which `families` found

ENCODERS = ("bert", "nomic_bert")
NAMES = (*families.NAMES, *ENCODERS)

OTHER = {
    "activation.situ_beta": 1.5,
    "activation.situ_linear_beta": 0.5,
    "activation_sparsity_scale": [0.0, 1.6],
    "attention.clamp_kqv": 8.0,
    "attention.compress_ratios": [4, 128],
    "attention.indexer.block_size": 128,
    "attention.indexer.head_count": 4,
    "attention.indexer.kpool": 2,
    "attention.indexer.local_blocks": 1,
    "attention.indexer.top_k": 8,
    "attention.key_length_swa": 16,
    "attention.max_alibi_bias": 8.0,
    "attention.output_scale": 0.0884,
    "attention.rope_pattern": [True, False],
    "attention.scale": 0.31,
    "attention.shared_kv_layers": 1,
    "attention.sliding_window": 5,
    "attention.temperature_length": 9,
    "attention.temperature_scale": 0.7,
    "attention.value_length_swa": 8,
    "attention.value_scale": 0.5,
    "attn_logit_softcapping": 3.0,
    "attn_res.block_size": 2,
    "embedding_length_out": 7,
    "embedding_scale": 12.0,
    "expert_gating_func": 2,
    "expert_group_count": 2,
    "expert_group_scale": 0.05,
    "expert_shared_count": 2,
    "expert_weights_norm": False,
    "expert_weights_scale": 2.25,
    "final_logit_softcapping": 20.0,
    "hidden_activation": "relu",
    "hrm.h_cycles": 2,
    "hrm.l_cycles": 2,
    "interleave_moe_layer_step": 2,
    "leading_dense_block_count": 2,
    "logit_scale": 0.0625,
    "moe_every_n_layers": 2,
    "num_loops": 2,
    "rescale_every_n_layers": 3,
    "residual_scale": 0.22,
    "rope.dimension_count_swa": 8,
    "rope.global.freq_base": 123456.0,
    "rope.local.freq_base": 234.5,
    "rope.scaling.alpha": 1000.0,
    "rope.scaling.yarn_attn_factor": 2.5,
    "rope.scaling.yarn_ext_factor": 0.5,
    "rope.scaling.yarn_log_multiplier": 0.25,
    "router_logit_softcapping": 30.0,
    "ssm.dt_b_c_rms": True,
    "swiglu_clamp_exp": [0.0, 7.0],
    "swiglu_clamp_shexp": 7.0,
    "swin_norm": True,
    "use_parallel_residual": True,
}
"""A value of each key that is neutral in no tiny model."""

GROUPED = {"llama", "mistral3", "qwen3moe", "qwen3next", "qwen35moe", "deepseek2"}
HEEDED = {
    "attention.sliding_window": {"gemma2", "gemma3", "gpt-oss"},
    "attention.temperature_scale": {"mistral3"},
    "attn_logit_softcapping": {"gemma2"},
    "expert_gating_func": {"deepseek2"},
    "expert_group_count": GROUPED,
    "expert_shared_count": {"deepseek2"},
    "expert_weights_norm": {"deepseek2"},
    "expert_weights_scale": {"deepseek2"},
    "final_logit_softcapping": {"gemma2", "gemma3"},
    "leading_dense_block_count": {"deepseek2"},
    "rescale_every_n_layers": {"rwkv6"},
    "rope.scaling.yarn_log_multiplier": {"llama", "mistral3", "deepseek2"},
    "ssm.dt_b_c_rms": {"mamba"},
}
PASSED_OVER = {"attention.sliding_window": {"llama", "phi3"}}
REFUSED_ANYWAY = {
    "attention.temperature_scale": {"deepseek2"},
    "moe_every_n_layers": {"bert", "nomic-bert"},
}
"""By the reader itself, which takes no value but 0."""
UNTRIED = {"expert_group_count": {"mistral3"}, "rope.scaling.yarn_log_multiplier": {"llama"}}
"""No tiny model has what these speak of: tests of their own below."""
OF_EXPERTS = {key for key in OTHER if key.startswith(("expert_", "moe_", "leading_", "interleave_", "router_"))}
OF_WINDOWS = {
    "attention.key_length_swa",
    "attention.value_length_swa",
    "rope.dimension_count_swa",
    "rope.local.freq_base",
}
OF_YARN = {key for key in OTHER if ".yarn_" in key}


@pytest.fixture(scope="module")
def plain(metadata, tmp_path_factory):
    """plain[name]: a tiny model's metadata."""
    folder = tmp_path_factory.mktemp("unread")
    for name in ENCODERS:
        embedding_files.write_any(name, folder / name)
    known = {name: dict(jf.gguf.open(folder / name).metadata) for name in ENCODERS}
    return {name: known[name] if name in known else metadata[name] for name in NAMES}


def with_key(metadata, key, value):
    return metadata | {f"{metadata['general.architecture']}.{key}": value}


def without_subject(key, config):
    """Whether the model has nothing that the key speaks of."""
    layers = config.layers
    if key in OF_EXPERTS:
        return not any(layer.experts for layer in layers)
    if key in OF_WINDOWS:
        return not any(layer.window for layer in layers)
    if key in OF_YARN:
        return not any(layer.rope.ext_factor for layer in layers)
    if key == "attention.temperature_length":
        return config.temperature is None
    return key == "hidden_activation" and not config.inner


def test_each_key_has_a_value_here():
    assert set(OTHER) == set(CHANGING)
    assert set(HEEDED) <= set(OTHER)


def test_every_architecture_is_asked(plain):
    assert {metadata["general.architecture"] for metadata in plain.values()} == set(known_architectures())


@pytest.mark.parametrize("key", OTHER)
def test_a_key_is_heeded_or_refused_by_name_and_value(key, plain):
    """A family whose own value it is shows nothing; another of the architecture does."""
    value = OTHER[key]
    refused, heeded = 0, set()
    for name, metadata in plain.items():
        architecture, config = metadata["general.architecture"], read_config(metadata)
        changed = with_key(metadata, key, value)
        if architecture in HEEDED.get(key, ()):
            if key == "expert_group_count":
                changed |= {f"{architecture}.expert_group_used_count": 2}
            if read_config(changed) != config:
                heeded.add(architecture)
        elif architecture in PASSED_OVER.get(key, ()) or (
            without_subject(key, config) and architecture not in REFUSED_ANYWAY.get(key, ())
        ):
            assert read_config(changed) == config, name
        else:
            with pytest.raises(ModelError) as e:
                read_config(changed)
            assert str(e.value).startswith(f"{architecture}.{key} is {value!r}: must be "), name
            refused += 1
    assert refused
    assert heeded == HEEDED.get(key, set()) - UNTRIED.get(key, set())


@pytest.mark.parametrize("key", OTHER)
def test_what_changes_nothing_is_taken(key, plain):
    """All values that the table calls neutral, as a file stores them too: numbers in single precision, in a list."""
    for name, metadata in plain.items():
        architecture, config = metadata["general.architecture"], read_config(metadata)
        if architecture in HEEDED.get(key, set()) | REFUSED_ANYWAY.get(key, set()):
            continue
        for value in CHANGING[key].wanted(config):
            stored = float(np.float32(value)) if isinstance(value, float) else value
            assert read_config(with_key(metadata, key, stored)) == config, (name, value)
            assert read_config(with_key(metadata, key, [stored, stored])) == config, (name, value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, "", "0", [0, 2], [[3]], {}])
def test_nonsense_is_not_neutral(value, plain):
    for key in ("attention.clamp_kqv", "attention.scale", "logit_scale"):
        with pytest.raises(ModelError, match=rf"qwen2\.{key} is "):
            read_config(with_key(plain["qwen2"], key, value))


_VALUES = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.one_of(st.booleans(), st.integers(0, 3), st.floats(width=32)), max_size=3),
)


@given(name=st.sampled_from(NAMES), changes=st.dictionaries(st.sampled_from(sorted(OTHER)), _VALUES, min_size=1))
def test_any_values_are_a_config_or_a_model_error(name, changes, plain):
    """Which names one of the keys, on one line."""
    metadata = plain[name]
    for key, value in changes.items():
        metadata = with_key(metadata, key, value)
    try:
        read_config(metadata)
    except ModelError as e:
        assert any(
            f"{metadata['general.architecture']}.{key}" in str(e) for key in [*changes, "expert_group_used_count"]
        )
        assert "\n" not in str(e)


def test_the_message(config):
    for key, value, told in (
        ("attention__scale", 0.3, "attention.scale is 0.3: must be 0 or 0.25"),
        ("expert_weights_norm", False, "expert_weights_norm is False: must be True"),
        ("attention__sliding_window", 5, "attention.sliding_window is 5: must be 0 or 128 or more"),
        ("rope__dimension_count_swa", 16, "rope.dimension_count_swa is 16: must be 32"),
        ("hidden_activation", "gelu", "hidden_activation is 'gelu': must be absent"),
    ):
        name = {"expert_weights_norm": "mixtral", "rope__dimension_count_swa": "gemma3", "hidden_activation": "gpt_oss"}
        family = name.get(key, "llama" if key == "attention__scale" else "qwen2")
        with pytest.raises(ModelError, match=rf"\.{told}: others in this architecture are not known here$"):
            config(family, **{key: value})


# ---- windows


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "gpt_oss"])
def test_layers_with_a_window_have_heads_like_the_others(name, config):
    found = config(name)
    sizes = {
        "rope__dimension_count_swa": found.layers[0].rope.n_dims,
        "attention__key_length_swa": found.head_size,
        "attention__value_length_swa": found.value_size,
    }
    assert config(name, **sizes) == found
    for key, size in sizes.items():
        with pytest.raises(ModelError, match=rf"\.{key.replace('__', '.')} is {size // 2}: must be {size}:"):
            config(name, **{key: size // 2})


def test_other_names_of_the_bases_must_say_the_same(config):
    """A file of Ollama's, which does not say them under the usual names, would turn by others."""
    assert config("gemma3", rope__global__freq_base=1e6, rope__local__freq_base=5000.0) == config("gemma3")
    with pytest.raises(ModelError, match=r"gemma3\.rope\.global\.freq_base is 1000000\.0: must be 10000\.0:"):
        config("gemma3", rope__freq_base=None, rope__global__freq_base=1e6)


def test_without_a_window_their_sizes_say_nothing(config):
    assert config("gemma3", attention__sliding_window=0, rope__dimension_count_swa=8).layers[0].window == 0


def test_a_window_as_long_as_the_context_hides_nothing(config):
    for window in (128, 4096):
        assert config("qwen2", attention__sliding_window=window) == config("qwen2")
    for window in (1, 127):
        with pytest.raises(ModelError, match=rf"qwen2\.attention\.sliding_window is {window}:"):
            config("qwen2", attention__sliding_window=window)


def test_mistral3_may_group_its_experts(config):
    keys = {"expert_count": 8, "expert_used_count": 2, "expert_group_count": 4, "expert_group_used_count": 2}
    experts = config("mistral3", **keys).layers[0].experts
    assert (experts.groups, experts.groups_used) == (4, 2)


# ---- what llama.cpp's converters write for these architectures, with the values that published models have


YARN = {"type": "yarn", "factor": 4.0, "original_context_length": 32}
ORDINARY = {
    "llama": {"attention.sliding_window": 4096, "rope.scaling.finetuned": False, "tensor_data_layout": "reference"},
    "mixtral": {"expert_gating_func": 1, "expert_group_count": 1, "expert_group_used_count": 1},
    "qwen2": {"rope.dimension_sections": [16, 8, 8, 0], "pooling_type": 3},
    "qwen3moe": {"expert_gating_func": 1, "expert_group_count": 0},
    "phi": {"attention.sliding_window": 262144},
    "gpt_oss": {"rope.scaling.yarn_beta_fast": 32.0, "rope.scaling.yarn_beta_slow": 1.0},
    "bert": {"classifier.output_labels": ["no", "yes"], "attention.causal": False},
    "rwkv6": {"attention.head_count": 0},
    "mamba2": {"attention.head_count": 0, "feed_forward_length": 0},
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_values_are_taken(name, plain):
    metadata = plain[name]
    for key, value in ORDINARY[name].items():
        metadata = with_key(metadata, key, value)
    read_config(metadata)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "qwen3moe"])
def test_yarn_as_converters_write_it(name, config):
    keys = {f"rope__scaling__{key}": value for key, value in YARN.items()}
    plain = config(name, **keys)
    said = {"yarn_ext_factor": 1.0, "yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0, "yarn_attn_factor": 1.1386294}
    assert config(name, **keys, **{f"rope__scaling__{key}": value for key, value in said.items()}) == plain
    rope = config(name, **keys, rope__scaling__yarn_beta_fast=8.0).layers[0].rope
    assert (rope.beta_fast, rope.beta_slow) == (8, 1)


def test_mistrals_own_files_undo_the_magnitude_in_llama_too(config):
    keys = {f"rope__scaling__{key}": value for key, value in YARN.items()}
    for multiplier, attn in ((0.0, 1.0), (1.0, 1 / (1 + 0.1 * math.log(4)))):
        rope = config("llama", **keys, rope__scaling__yarn_log_multiplier=multiplier).layers[0].rope
        assert rope.attn_factor == pytest.approx(attn)


def test_a_deepseek_without_experts_says_how_they_would_be_weighed(config):
    """The converter writes the experts' keys into files of dense models too."""
    found = config(
        "deepseek2", expert_count=None, leading_dense_block_count=2, expert_weights_scale=2.5, expert_shared_count=0
    )
    assert [layer.experts for layer in found.layers] == [None, None]


# ---- parts


@pytest.mark.parametrize("parts", [2, 3, 9999])
def test_a_part_of_a_model_is_refused(parts, opened):
    file = opened("llama")
    file.metadata |= {"split.count": parts, "split.no": 0, "split.tensors.count": 20}
    del file.tensors["output.weight"]
    with pytest.raises(ModelError, match=rf"^the file is one of {parts} parts of a model \(split\.count\); join them"):
        jackfield_llm.load("x", "reference", context=16)


@pytest.mark.parametrize("parts", [0, 1])
def test_a_whole_model_may_say_that_it_is_one(parts, opened):
    opened("llama").metadata["split.count"] = parts
    with jackfield_llm.load("x", "reference", context=16) as model:
        assert model.context == 16
