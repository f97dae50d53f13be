"""Every family against llama.cpp: tiny random models, their recorded logits, and files that are wrong in one place."""

from __future__ import annotations

import hashlib
import math

import families
import numpy as np
import presence
import pytest
from families import NAMES, RECORDS, copied, golden, nmse
from hypothesis import given
from hypothesis import strategies as st

import jackfield as jf
import jackfield_llm
from jackfield_llm import ModelError
from jackfield_llm.config import known_architectures, read_config
from jackfield_llm.model import CACHE_DTYPES

BOUND = 1e-3  # the project's, for any device
DEVICES = ("reference", "cpu:0")
ODD_HEADS = {"llama", "llama_rope_freqs", "deepseek2", "deepseek2_predicting"}  # no multiple of 32: no q8_0 holds them


def load(path, device="reference", **options):
    return jackfield_llm.load(path, device, **{"context": 64, "cache_dtype": "f32", **options})


@pytest.fixture
def device(request):
    return presence.opens(request.param)


# ---- right


@pytest.mark.parametrize("name", NAMES)
def test_the_file_is_the_one_llama_cpp_saw(name, family_path):
    assert hashlib.sha256(family_path(name).read_bytes()).hexdigest() == RECORDS[name]["sha256"]


@pytest.mark.parametrize("device", [*DEVICES, "sim"], indirect=True)
@pytest.mark.parametrize("name", NAMES)
def test_logits_are_llama_cpp_s(name, device, family_path):
    """What llama.cpp itself rounds away (its distance from a float64 model) is all the distance there is."""
    ids, theirs = golden(name)
    with load(family_path(name), device) as ours:
        distance = nmse(ours.logits(ids), theirs)
    own = RECORDS[name]["float64_nmse"]
    assert distance <= BOUND
    assert distance <= (2.0 if device == "cpu:0" else 1.05) * own + 1e-11
    assert all(distance < 0.3 * fault for fault in RECORDS[name]["fault_nmse"].values())


@pytest.mark.parametrize("device", DEVICES, indirect=True)
@pytest.mark.parametrize("name", NAMES)
def test_a_cache_of_f16_stays_close(name, device, family_path):
    ids, theirs = golden(name)
    with load(family_path(name), device, cache_dtype="f16") as ours:
        assert nmse(ours.logits(ids), theirs) <= 2 * RECORDS[name]["float64_nmse"] + 1e-6


BLOCK_HEADS = ["llama_quantised", "qwen2", "qwen3", "gemma3", "gemma3_defaults", "gpt_oss", "deepseek2_lite"]
CACHE_COSTS = [
    *((name, dtype, bound) for name in BLOCK_HEADS for dtype, bound in (("bf16", 2e-3), ("q8_0", 2e-3), ("q4_0", 0.2))),
    *(
        (name, dtype, bound)
        for name in ("qwen3", "deepseek2_lite")
        for dtype, bound in (("q5_1", 0.05), ("q5_0", 0.05), ("q4_1", 0.1), ("iq4_nl", 0.1))
    ),
]


@pytest.mark.parametrize("device", DEVICES, indirect=True)
@pytest.mark.parametrize(("name", "dtype", "bound"), CACHE_COSTS)
def test_a_smaller_cache_costs_what_its_rounding_costs(dtype, bound, name, device, family_path):
    """And all plans, which write and read it in other portions, mean the same cache."""
    ids, _ = golden(name)
    with (
        load(family_path(name), device, cache_dtype=dtype) as small,
        load(family_path(name), device) as wide,
    ):
        want, got = wide.logits(ids), small.logits(ids)
        assert 1e-9 < nmse(got, want) <= bound
        small.reset()
        one_by_one = [small.decode(token) for token in ids]
        assert nmse(np.stack(one_by_one), want) <= bound
        for cut in (1, 7, 33):
            small.reset()
            small.prefill(ids[:cut])
            assert nmse(small.prefill(ids[cut:]), want[-1]) <= bound


@pytest.mark.parametrize(
    ("dtype", "nbytes"), [("q8_0", 34), ("q5_1", 24), ("q5_0", 22), ("q4_1", 20), ("q4_0", 18), ("iq4_nl", 18)]
)
def test_what_a_cache_of_blocks_takes(dtype, nbytes, family_path):
    """So many bytes for 32 numbers."""
    held = {}
    for kept in ("f16", dtype):
        with load(family_path("qwen3"), cache_dtype=kept) as ours:
            held[kept] = ours._decoder.plan(1, "last").memory()["reference:0"]["states"]
    assert held[dtype] / held["f16"] == pytest.approx(nbytes / 64, rel=0.05)


@pytest.mark.parametrize("dtype", [name for name, dtype in CACHE_DTYPES.items() if dtype.block > 1])
@pytest.mark.parametrize("name", ["llama", "llama_rope_freqs"])
def test_heads_that_are_no_whole_blocks(name, dtype, family_path):
    with pytest.raises(
        ModelError, match=rf"cache_dtype '{dtype}': a head's keys have 16 elements, must be a multiple of 32"
    ):
        load(family_path(name), cache_dtype=dtype)


@pytest.mark.parametrize("device", DEVICES, indirect=True)
@pytest.mark.parametrize("name", NAMES)
def test_however_the_text_is_cut_the_logits_are_the_same(name, device, family_path):
    ids, _ = golden(name)
    with load(family_path(name), device) as ours:
        at_once = ours.logits(ids)
        ours.reset()
        one_by_one = [ours.decode(token) for token in ids]
        assert nmse(np.stack(one_by_one), at_once) <= 1e-5
        for cut in (1, 7, 33):
            ours.reset()
            ours.prefill(ids[:cut])
            assert ours.cached == tuple(ids[:cut])
            assert nmse(ours.prefill(ids[cut:]), at_once[-1]) <= 1e-5


@pytest.mark.parametrize("device", ["cpu:0"], indirect=True)
@pytest.mark.parametrize(("rollback", "cache_dtype"), [(4, "f32"), (0, "f32"), (0, "f16"), (0, "q8_0")])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_copied_to_be_read(name, rollback, cache_dtype, device, family_path):
    """Kernels take the strides that the graphs give them."""
    path = family_path(name)
    options = {"rollback": rollback, "cache_dtype": cache_dtype}
    if cache_dtype == "q8_0" and name in ODD_HEADS:
        with pytest.raises(ModelError, match="must be a multiple of 32"):
            load(path, device, **options)
        return
    with load(path, device, **options) as ours:
        for rows, logits in ((1, "last"), (4, "last"), (32, "all"), (1, "none"), (32, "none")):
            plan = ours._decoder.plan(rows, logits)
            assert copied(plan) == []
            summary = plan.explain().to_dict()["summary"]
            assert summary["by_device"] == {"cpu:0": summary["nodes"]}


@pytest.mark.parametrize("device", ["cpu:0"], indirect=True)
def test_copies_are_seen(device):
    """By `copied`, on which the test above relies."""
    x = jf.input("x", (2, 3, 4), jf.f32)
    columns = jf.ops.transpose(x, axes=(0, 2, 1))
    assert copied(jf.compile(jf.ops.add(x, x), device=device)) == []
    reshaped = jf.ops.reshape(columns, shape=(2, 12))
    assert copied(jf.compile(jf.ops.add(reshaped, reshaped), device=device)) == ["contiguous.0"]
    assert copied(jf.compile(jf.ops.argsort(columns), device=device)) == ["argsort reads its operand 0 dense"]


@pytest.mark.parametrize("name", ["llama", "gemma3", "mistral3", "deepseek2"])
def test_the_whole_context_is_usable(name, family_path):
    """The last column too, with padding in front and a window that has left the beginning."""
    ids, _ = golden(name)
    with load(family_path(name), context=len(ids)) as tight, load(family_path(name), context=128) as wide:
        assert np.array_equal(tight.logits(ids), wide.logits(ids))


# ---- wrong: the architecture


@pytest.mark.parametrize("name", ["falcon", "llama4", "", "LLAMA"])
def test_an_unknown_architecture_is_refused_by_name(name, opened):
    opened("llama").metadata["general.architecture"] = name
    with pytest.raises(ModelError, match="architecture") as e:
        load("x")
    assert repr(name) in str(e.value)
    assert ", ".join(known_architectures()) in str(e.value)


@pytest.mark.parametrize("value", [None, 3, ["llama"]])
def test_a_file_without_architecture_is_no_model(value, opened):
    opened("llama").metadata["general.architecture"] = value
    with pytest.raises(ModelError, match=r"general\.architecture"):
        load("x")


def test_the_known_ones_are_all_tested():
    tested = {families.family_files.by_name(name).architecture for name in NAMES}
    assert tested | {"bert", "nomic-bert"} == set(known_architectures())  # those two by test_embeddings


# ---- wrong: tensors

OPTIONAL = {
    "output.weight",
    "rope_freqs.weight",
    "blk.1.exp_probs_b.bias",
}  # a file without them is another, whole model


@pytest.mark.parametrize("name", NAMES)
def test_each_tensor_is_needed(name, opened):
    file = opened(name)
    for tensor in list(file.tensors):
        kept = file.tensors.pop(tensor)
        if tensor not in OPTIONAL and (not families.predicts(name, tensor) or tensor.endswith("nextn.eh_proj.weight")):
            with pytest.raises(ModelError, match=rf"lacks the tensor {tensor}\b"):
                load("x")
        file.tensors[tensor] = kept


@pytest.mark.parametrize("name", NAMES)
def test_each_tensor_has_its_shape(name, opened):
    file = opened(name)
    for tensor, kept in list(file.tensors.items()):
        if families.predicts(name, tensor):
            continue
        for shape in ((*kept.shape[:-1], kept.shape[-1] * 2), (*kept.shape, 32), (3, *kept.shape[1:])):
            file.tensors[tensor] = families.Tensor(shape, kept.dtype)
            with pytest.raises(ModelError, match=tensor):
                load("x")
        file.tensors[tensor] = kept


def test_a_tensor_that_is_no_part_of_the_model_is_refused(opened):
    """It would be a part somebody trained and we leave out."""
    file = opened("llama")
    file.tensors["blk.0.attn_q_norm.weight"] = file.tensors["output_norm.weight"]
    with pytest.raises(ModelError, match=r"blk\.1\.attn_q_norm\.weight, which other layers have"):
        load("x")
    file.tensors["blk.1.attn_q_norm.weight"] = file.tensors["output_norm.weight"]
    with pytest.raises(ModelError, match=r"blk\.0\.attn_q_norm\.weight and 1 more, which is no part"):
        load("x")


def test_layers_beyond_the_last_are_refused(opened):
    file = opened("qwen3")
    file.metadata["qwen3.block_count"] = 1
    with pytest.raises(ModelError, match=r"blk\.1\."):
        load("x")


def test_a_type_nobody_computes_with_names_the_tensor(opened):
    file = opened("llama")
    file.tensors["blk.1.ffn_up.weight"] = families.Tensor((160, 64), jf.errors.DTypeError("IQ2_XXS is not known"))
    with pytest.raises(ModelError, match=r"blk\.1\.ffn_up\.weight.*IQ2_XXS"):
        load("x")


def test_vectors_of_any_type_are_read_as_f32(opened):
    """Norms and biases stored in f16 are the same numbers."""
    file = opened("qwen2")
    ids, theirs = golden("qwen2")
    for name, tensor in list(file.tensors.items()):
        if len(tensor.shape) == 1:
            half = tensor.numpy().astype(np.float16)
            file.tensors[name] = families.Tensor(tensor.shape, jf.f16, memoryview(half.tobytes()))
            file.tensors[name].numpy = lambda half=half: half
    with load("x") as ours:
        assert nmse(ours.logits(ids), theirs) <= 1e-5


def test_the_vocabulary_and_the_embeddings_agree(opened):
    file = opened("llama")
    tensor = file.tensors["token_embd.weight"]
    file.tensors["token_embd.weight"] = families.Tensor((321, tensor.shape[1]), tensor.dtype)
    with pytest.raises(ModelError, match="321 rows, the vocabulary 320 tokens"):
        load("x")


# ---- wrong: hyperparameters

NEEDED = (
    "embedding_length",
    "attention.head_count",
    "block_count",
    "feed_forward_length",
    "context_length",
    "attention.layer_norm_rms_epsilon",
    "attention.layer_norm_epsilon",
    "attention.decay_lora_rank",
    "attention.iclr_lora_rank",
    "attention.value_residual_mix_lora_rank",
    "attention.gate_lora_rank",
    "time_mix_extra_dim",
    "time_decay_extra_dim",
    "wkv.head_size",
    "ssm.conv_kernel",
    "ssm.inner_size",
    "ssm.state_size",
    "ssm.time_step_rank",
    "ssm.group_count",
)
READ = (
    *NEEDED,
    "rescale_every_n_layers",
    "token_shift_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scale_linear",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "final_logit_softcapping",
    "expert_count",
    "nextn_predict_layers",
)


@pytest.fixture(scope="module")
def metadata(family_path):
    return {name: dict(jf.gguf.open(family_path(name)).metadata) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_each_needed_key_is_missed_by_name(name, metadata):
    architecture = metadata[name]["general.architecture"]
    for key in NEEDED:
        if architecture not in READ_BY.get(key, {architecture}):
            continue
        without = {k: v for k, v in metadata[name].items() if k != f"{architecture}.{key}"}
        with pytest.raises(ModelError, match=f"lacks {architecture}.{key},"):
            read_config(without)


FLOATS = {
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scaling.factor",
    "rope.scale_linear",
    "final_logit_softcapping",
}
WINDOWED = {"gemma2", "gemma3", "gpt-oss"}
RWKV = {"rwkv6", "rwkv7", "rwkv6qwen2", "arwkv7"}
STATE_SPACES = {"mamba", "mamba2"}
ATTENDING = set(known_architectures()) - STATE_SPACES - RWKV
READ_BY = {  # and by no other
    **dict.fromkeys((key for key in READ if key.startswith(("rope.", "attention."))), ATTENDING),
    **dict.fromkeys((key for key in READ if key.startswith("ssm.")), STATE_SPACES),
    "ssm.group_count": {"mamba2"},
    **dict.fromkeys(("feed_forward_length", "expert_count"), ATTENDING | RWKV),
    **{key: {"rwkv7", "arwkv7"} for key in NEEDED if key.endswith("_lora_rank")},
    **{key: {"rwkv6", "rwkv6qwen2"} for key in ("time_mix_extra_dim", "time_decay_extra_dim")},
    **dict.fromkeys(("wkv.head_size", "token_shift_count"), RWKV),
    "attention.gate_lora_rank": {"rwkv7"},
    "attention.layer_norm_epsilon": {"rwkv6", "rwkv7"},
    "attention.layer_norm_rms_epsilon": set(known_architectures()) - {"rwkv6", "rwkv7"},
    "rescale_every_n_layers": {"rwkv6"},
    "rope.freq_base_swa": WINDOWED,
    "attention.sliding_window": WINDOWED,
    "attention.sliding_window_pattern": WINDOWED,
    "final_logit_softcapping": {"gemma2", "gemma3"},
}


@pytest.mark.parametrize("name", NAMES)
def test_nonsense_in_a_key_is_told_by_name(name, metadata):
    architecture = metadata[name]["general.architecture"]
    for key in READ:
        if architecture not in READ_BY.get(key, {architecture}):
            continue
        for value in (-3, math.nan, math.inf, "many", True, [1.5], 2**40):
            if value == 2**40 and key in FLOATS:
                continue
            full = f"{architecture}.{key}"
            with pytest.raises(ModelError, match=full):
                read_config({**metadata[name], full: value})


_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-10, 200),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(0, 1)),
)


@given(name=st.sampled_from(NAMES), changes=st.dictionaries(st.sampled_from(READ), _VALUES, min_size=1, max_size=4))
def test_any_metadata_is_a_config_or_a_model_error(name, changes, metadata):
    architecture = metadata[name]["general.architecture"]
    try:
        config = read_config({**metadata[name], **{f"{architecture}.{k}": v for k, v in changes.items()}})
    except ModelError as e:
        assert architecture in str(e)
        assert "\n" not in str(e)
    else:
        assert config.heads % config.kv_heads == 0
        assert 1 <= len(config.layers) <= 1024
        assert all(layer.rope.n_dims % 2 == 0 and math.isfinite(layer.rope.scale) for layer in config.layers)


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "gemma2", "gemma3", "phi"])
def test_experts_are_refused_where_the_architecture_has_none(name, metadata):
    architecture = metadata[name]["general.architecture"]
    with pytest.raises(ModelError, match=rf"{architecture}\.expert_count is 8.*experts"):
        read_config({**metadata[name], f"{architecture}.expert_count": 8})


def test_heads_must_share_evenly(metadata):
    with pytest.raises(ModelError, match=r"head_count_kv is 3: must be a divisor of the 4 heads"):
        read_config({**metadata["llama"], "llama.attention.head_count_kv": 3})
    with pytest.raises(ModelError, match=r"embedding_length is 66: must be a multiple of 4 heads"):
        read_config({**metadata["llama"], "llama.embedding_length": 66})


# ---- settings no golden file has


def test_a_softcap_bends_the_logits(opened):
    """y becomes c tanh(y / c)."""
    file = opened("gemma3")
    ids, _ = golden("gemma3")
    with load("x") as model:
        plain = model.logits(ids[:8]).astype(np.float64)
    file.metadata["gemma3.final_logit_softcapping"] = 2.5
    with load("x") as model:
        bent = model.logits(ids[:8])
    assert np.abs(plain).max() > 2.5
    assert nmse(bent, 2.5 * np.tanh(plain / 2.5)) < 1e-10


@pytest.mark.parametrize("stem", ["attn_output", "ffn_gate", "ffn_up", "ffn_down"])
def test_biases_are_added_where_a_file_has_them(stem, opened):
    """What a bias adds at the end of a layer is what the norm of the next sees; zeros add nothing."""
    file = opened("llama")
    ids, theirs = golden("llama")
    outputs = file.tensors[f"blk.0.{stem}.weight"].shape[0]
    distances = []
    for value in (0.0, 0.5):
        raw = memoryview(np.full(outputs, value, np.float32)).cast("B")
        for layer in (0, 1):
            file.tensors[f"blk.{layer}.{stem}.bias"] = families.Tensor((outputs,), jf.f32, raw)
        with load("x") as model:
            distances.append(nmse(model.logits(ids), theirs))
    assert distances[0] < 1e-9
    assert distances[1] > 1e-3


def rope_of(metadata, **keys):
    named = {f"llama.rope.{k}": v for k, v in keys.items()}
    return read_config({**metadata["llama"], **named}).layers[0].rope


def test_rope_scaling(metadata):
    """As llama.cpp reads it: a factor alone is linear, the old key is the second choice, "none" wins over both."""
    assert rope_of(metadata).scale == 1.0
    assert rope_of(metadata, **{"scaling.factor": 4.0}).scale == 0.25
    assert rope_of(metadata, scale_linear=2.0).scale == 0.5
    assert rope_of(metadata, scale_linear=2.0, **{"scaling.factor": 4.0}).scale == 0.25
    assert rope_of(metadata, **{"scaling.factor": 0.0}).scale == 1.0
    assert rope_of(metadata, **{"scaling.type": "none", "scaling.factor": 4.0}).scale == 1.0
    with pytest.raises(ModelError, match=r"rope\.scaling\.type is 'dynamic': must be none, linear, yarn or longrope"):
        rope_of(metadata, **{"scaling.type": "dynamic"})


def test_yarn(metadata):
    yarn = {"scaling.type": "yarn", "scaling.factor": 4.0}
    rope = rope_of(metadata, **yarn, **{"scaling.original_context_length": 77})
    assert (rope.scale, rope.ext_factor, rope.attn_factor, rope.beta_fast, rope.beta_slow) == (
        0.25,
        1.0,
        1.0,
        32.0,
        1.0,
    )
    assert rope.original_context == 77
    assert rope_of(metadata, **yarn).original_context == metadata["llama"]["llama.context_length"]


def test_windows_of_gemma3(metadata):
    def windows(**keys):
        named = {f"gemma3.attention.{k}": v for k, v in keys.items()}
        return [layer.window for layer in read_config({**metadata["gemma3_defaults"], **named}).layers]

    assert windows() == [9] * 5 + [0, 9]
    assert windows(sliding_window_pattern=2) == [9, 0, 9, 0, 9, 0, 9]
    assert windows(sliding_window_pattern=[True, False, True, True, True, True, False]) == [9, 0, 9, 9, 9, 9, 0]
    assert windows(sliding_window=0) == [0] * 7
    with pytest.raises(ModelError, match=r"sliding_window_pattern is .* 7 flags, one a layer"):
        windows(sliding_window_pattern=[True, False])


def test_gemma3_27b_scales_by_another_width(metadata):
    changed = {**metadata["gemma3"], "gemma3.block_count": 62}
    assert read_config(changed).attention_scale == pytest.approx(1 / math.sqrt(96 / 4))
    assert read_config(metadata["gemma3"]).attention_scale == pytest.approx(1 / math.sqrt(32))
