"""Layers with a gated delta net (qwen3next, qwen35): what files say, what a model keeps, and the two forms of file."""

from __future__ import annotations

import math

import families
import numpy as np
import presence
import pytest
from families import golden, nmse
from hypothesis import given
from hypothesis import strategies as st

import jackfield as jf
import jackfield_llm
from jackfield_llm import ModelError
from jackfield_llm.config import read_config
from jackfield_llm.hyperparameters import Delta

NAMES = ("qwen3next", "qwen3next_joined", "qwen35", "qwen35moe")


def load(path="x", device="reference", **options):
    return jackfield_llm.load(path, device, **{"context": 64, "cache_dtype": "f32", **options})


# ---- which layers


def without_attention(config):
    return [layer.mixer is not None for layer in config.layers]


def test_every_fourth_layer_has_attention_where_the_file_does_not_say(config):
    layers = without_attention(config("qwen3next", block_count=9, full_attention_interval=None))
    assert layers == [True, True, True, False] * 2 + [True]


def test_a_list_of_layers_wins_over_the_interval(config):
    for listed in ([False, True], [0, 1], (True, True), [False, False]):
        found = without_attention(config("qwen3next", attention__recurrent_layers=listed))
        assert found == [bool(entry) for entry in listed]


def test_a_model_with_attention_everywhere_has_no_states(config):
    assert config("qwen3next", full_attention_interval=1).recurrent is None
    assert config("qwen3next").recurrent.taps == 3


@pytest.mark.parametrize("listed", [[True], [True, False, True], [], ["a", "b"], "ab", 3, True, [0.5, 1.0]])
def test_a_list_that_is_none_is_told(listed, config):
    with pytest.raises(ModelError, match=r"qwen3next\.attention\.recurrent_layers is .*: must be 2 flags, one a layer"):
        config("qwen3next", attention__recurrent_layers=listed)


# ---- sizes

KEYS = ("ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank", "ssm.inner_size")


@pytest.mark.parametrize("key", KEYS)
def test_each_size_is_needed_and_a_count(key, config):
    name = key.replace(".", "__")
    with pytest.raises(ModelError, match=rf"lacks qwen3next\.{key},"):
        config("qwen3next", **{name: None})
    for value in (-3, 0, 1.5, "many", True, 2**31, [2]):
        with pytest.raises(ModelError, match=rf"qwen3next\.{key} is"):
            config("qwen3next", **{name: value})


def test_sizes_agree(config):
    assert config("qwen3next").layers[0].mixer == Delta(taps=4, key_heads=2, heads=4, size=32)
    with pytest.raises(ModelError, match=r"ssm\.group_count is 3: must be a divisor of the 4 heads"):
        config("qwen3next", ssm__group_count=3)
    with pytest.raises(ModelError, match=r"ssm\.inner_size is 64: must be 128, 4 heads of 32"):
        config("qwen3next", ssm__inner_size=64)
    for taps in (1, 65):
        with pytest.raises(ModelError, match=rf"ssm\.conv_kernel is {taps}: must be a whole number from 2 to 64"):
            config("qwen3next", ssm__conv_kernel=taps)
    with pytest.raises(ModelError, match=r"attention\.value_length is 16: must be 32, the attention\.key_length"):
        config("qwen3next", attention__value_length=16)


def test_widths_of_experts(config):
    """As llama.cpp has them: without its key an expert has its part of `feed_forward_length`, the shared one all."""
    own = config("qwen3next").layers[0].experts
    assert (own.inner, own.shared_inner, own.shared_gate) == (64, 96, True)
    bare = config("qwen3next", expert_feed_forward_length=None, expert_shared_feed_forward_length=None)
    assert (bare.layers[1].experts.inner, bare.layers[1].experts.shared_inner) == (128 // 3, 128)
    zero = config("qwen3next", expert_shared_feed_forward_length=0, expert_shared_count=1)
    assert zero.layers[0].experts.shared_inner == 128
    with pytest.raises(ModelError, match=r"qwen3next\.expert_shared_count is 7: must be 0 or 1:"):
        config("qwen3next", expert_shared_count=7)


def test_what_is_lacking_is_refused_by_name(config):
    for count in (None, 0):
        with pytest.raises(ModelError, match=r"qwen3next\.expert_count"):
            config("qwen3next", expert_count=count)


def test_sections_of_pictures_cover_a_text(config):
    for sections in ([3, 3, 2, 0], [11, 11, 10, 0], (1, 0, 0, 0)):
        config("qwen35", rope__dimension_sections=sections)
    with pytest.raises(ModelError, match=r"lacks qwen35\.rope\.dimension_sections,"):
        config("qwen35", rope__dimension_sections=None)
    for sections in ([2, 3, 3, 0], [3, 3, 1, 1], [8, 0, 0, 0]):
        with pytest.raises(ModelError, match=r"must be so that each pair turns by time, row or column"):
            config("qwen35moe", rope__dimension_sections=sections)
    for sections in ([0, 0, 0, 0], [3, 3, 2], [3, 3, 2, -1], [3, 3, 2, True], "3320", 8, [2**40, 0, 0, 0], [3.0] * 4):
        with pytest.raises(ModelError, match=r"must be 4 counts of pairs that are not all 0"):
            config("qwen35", rope__dimension_sections=sections)


def test_dense_and_with_experts(config):
    assert config("qwen35").layers[0].experts is None
    with pytest.raises(ModelError, match=r"qwen35\.expert_count is 8.*experts"):
        config("qwen35", expert_count=8)
    with pytest.raises(ModelError, match=r"lacks qwen35moe\.expert_count,"):
        config("qwen35moe", expert_count=None)
    assert [layer.mixer.in_turn for layer in config("qwen35moe").layers if layer.mixer] == [True]


_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 140),
    st.integers(),
    st.floats(),
    st.lists(st.booleans(), max_size=3),
    st.lists(st.integers(-1, 9), max_size=5),
)
_READ = (
    *KEYS,
    "full_attention_interval",
    "attention.recurrent_layers",
    "nextn_predict_layers",
    "expert_shared_feed_forward_length",
    "rope.dimension_sections",
)


@given(st.sampled_from(NAMES), st.dictionaries(st.sampled_from(_READ), _VALUES, min_size=1, max_size=4))
def test_any_metadata_is_a_config_or_a_model_error(metadata, name, changes):
    try:
        architecture = metadata[name]["general.architecture"]
        found = read_config(metadata[name] | {f"{architecture}.{key}": value for key, value in changes.items()})
    except ModelError as e:
        assert f"{architecture}." in str(e)
        assert "\n" not in str(e)
    else:
        for layer in found.layers:
            if layer.mixer is not None:
                assert layer.mixer.each * layer.mixer.key_heads == layer.mixer.heads
                assert found.recurrent.taps == layer.mixer.taps - 1


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", [3, 7, 2**31 - 1])
def test_absurd_sizes_take_no_memory(key, value, opened):
    """Sizes that contradict nothing in the metadata contradict the tensors."""
    file = opened("qwen3next")
    file.metadata[f"qwen3next.{key}"] = value
    for heads, size in ((value, 32), (4, value)):
        if key in {"ssm.time_step_rank", "ssm.state_size"}:
            file.metadata["qwen3next.ssm.inner_size"] = min(heads * size, 2**31 - 1)
        with pytest.raises(ModelError, match=r"must be|hyperparameters say"):
            load()


# ---- tensors


def test_tensors_of_attention_are_no_part_of_a_delta_net(opened):
    file = opened("qwen3next")
    file.tensors["blk.0.attn_k.weight"] = file.tensors["blk.1.attn_k.weight"]
    with pytest.raises(ModelError, match=r"blk\.0\.attn_k\.weight, which is no part"):
        load()


def test_a_layer_has_the_tensors_of_its_kind(opened):
    file = opened("qwen3next")
    file.metadata["qwen3next.attention.recurrent_layers"] = [False, True]
    with pytest.raises(ModelError, match=r"lacks the tensor blk\.0\.attn_q\.weight"):
        load()


def test_both_forms_at_once_are_refused(opened):
    file = opened("qwen3next_joined")
    file.tensors["blk.1.attn_gate.weight"] = file.tensors["blk.1.ssm_out.weight"]
    with pytest.raises(ModelError, match=r"blk\.1\.attn_gate\.weight, which is no part"):
        load()


def test_taps_of_another_type_are_named(opened):
    file = opened("qwen3next")
    taps = file.tensors["blk.0.ssm_conv1d.weight"]
    raw = memoryview(np.zeros(taps.shape, np.float16)).cast("B")
    file.tensors["blk.0.ssm_conv1d.weight"] = families.Tensor(taps.shape, jf.f16, raw)
    with pytest.raises(ModelError, match=r"blk\.0\.ssm_conv1d\.weight is f16: must be f32"):
        load()


def tensor_of(array):
    raw = np.ascontiguousarray(array)
    return families.Tensor(raw.shape, {"f": jf.f32, "e": jf.f16}[raw.dtype.char], memoryview(raw).cast("B"))


def test_the_forms_of_file_are_the_same_model(opened):
    """One matrix in the order of key heads, or two in the order of queries, keys, values and gates."""
    file, (ids, _) = opened("qwen3next_joined"), golden("qwen3next_joined")
    with load() as joined:
        want = joined.logits(ids)
    keys, each, size = 2, 3, 16
    by_head = file.tensors.pop("blk.1.ssm_in.weight").numpy().reshape(keys, -1, 96)
    parts = np.split(by_head, np.cumsum([size, size, each * size]), axis=1)
    q, k, v, gates = (part.reshape(-1, 96) for part in parts)
    file.tensors["blk.1.attn_qkv.weight"] = tensor_of(np.concatenate([q, k, v]))
    file.tensors["blk.1.attn_gate.weight"] = tensor_of(gates)
    with load() as separate:
        assert nmse(separate.logits(ids), want) < 1e-12


# ---- what a model keeps


def test_a_delta_net_keeps_a_matrix_a_head_and_no_cache(family_path):
    with load(family_path("qwen3next"), context=100) as ours:
        ours.prefill([1, 2, 3])
        shapes = {name: state.read().shape[1:] for name, state in ours.session.states.items()}
    assert shapes == {"k1": (100, 32), "v1": (100, 32), "conv0": (3 * 256,), "scan0": (4, 32, 32)}


def states_of(ours, tokens):
    slot = ours._decoder.checkpoints.slot(tokens)
    return [ours.session.states[name].read()[slot] for name in ("conv0", "scan0")]


@pytest.mark.parametrize("device", ["reference", "cpu:0"])
@pytest.mark.parametrize("tokens", [2, 3, 4, 7, 31])
def test_padding_leaves_the_states_alone(tokens, device, family_path):
    """A plan of 4 or 32 rows with padding in front, and tokens one by one, end in the same states.

    Four tokens come before, so that there is something that could fade.
    """
    presence.opens(device)
    ids, _ = golden("qwen3next")
    with load(family_path("qwen3next"), device) as at_once, load(family_path("qwen3next"), device) as one_by_one:
        at_once.prefill(ids[:4])
        at_once.prefill(ids[4 : 4 + tokens])
        for token in ids[: 4 + tokens]:
            one_by_one.decode(token)
        for got, want in zip(states_of(at_once, 4 + tokens), states_of(one_by_one, 4 + tokens), strict=True):
            assert nmse(got, want) < 1e-10


def test_a_long_text(family_path):
    """Over several plans, where what was forgotten must be forgotten alike."""
    ids = np.random.default_rng(3).integers(0, 320, 150).tolist()
    with load(family_path("qwen3next"), context=256) as ours:
        want = ours.logits(ids)
        assert np.isfinite(want).all()
        ours.reset()
        got = [ours.prefill(ids[:100])] + [ours.decode(token) for token in ids[100:]]
        assert nmse(np.stack(got), want[99:]) < 1e-8


def test_a_state_that_never_fades_and_one_that_forgets_at_once(opened):
    """A slope of zero keeps everything, a steep one forgets at once: both are whole models of their own."""
    file, (ids, theirs) = opened("qwen3next"), golden("qwen3next")
    for slope in (0.0, -1e30):
        file.tensors["blk.0.ssm_a"] = tensor_of(np.full(4, slope, np.float32))
        with load() as ours:
            got = ours.logits(ids)
        assert np.isfinite(got).all()
        assert math.isfinite(nmse(got, theirs))
        assert nmse(got, theirs) > 1e-3
