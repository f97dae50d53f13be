"""RWKV: settings no recorded file has, states that do not grow, padding, tensors nobody reads."""

from __future__ import annotations

import families
import numpy as np
import presence
import pytest
from families import golden, nmse

import jackfield as jf
import jackfield_llm
from jackfield_llm import ModelError
from jackfield_llm.quantized_file import quantize

NAMES = ("rwkv6", "rwkv6_split", "rwkv7", "rwkv7_f16", "rwkv6qwen2", "rwkv6qwen2_f16", "arwkv7", "arwkv7_f16")


def load(path="x", device="reference", **options):
    return jackfield_llm.load(path, device, context=64, **options)


def holding(values, dtype=jf.f32):
    """A tensor of a file with these values."""
    tensor = families.Tensor(values.shape, dtype, memoryview(np.ascontiguousarray(values).tobytes()))
    tensor.numpy = lambda: values
    return tensor


# ---- what files ask


@pytest.mark.parametrize(
    ("name", "key", "value", "text"),
    [
        ("rwkv6", "wkv.head_size", 48, r"wkv\.head_size is 48: must be a divisor of 160, the width of the model"),
        ("rwkv7", "wkv.head_size", 128, r"wkv\.head_size is 128: must be a divisor of 192, the width of the model"),
        ("rwkv7", "token_shift_count", 1, r"token_shift_count is 1: must be 2, as the layers of this"),
        ("arwkv7", "token_shift_count", 2, r"token_shift_count is 2: must be 1, as the layers of this"),
        ("rwkv6qwen2", "attention.head_count_kv", 3, r"head_count_kv is 3: must be 0, or a divisor of the 8 heads"),
        ("rwkv6qwen2", "attention.head_count_kv", 4, r"blk\.0\.time_mix_key\.weight is \[32, 128\], the hyperpar"),
        ("rwkv6", "expert_count", 4, r"expert_count is 4: must be 0: layers of experts in this architecture are not"),
        ("rwkv6", "rescale_every_n_layers", -1, r"rescale_every_n_layers is -1: must be a whole number from 0"),
        ("rwkv7", "attention.gate_lora_rank", 0, r"attention\.gate_lora_rank is 0: must be a whole number from 1"),
        ("rwkv6", "time_mix_extra_dim", 8, r"tensor blk\.0\.time_mix_w1\.weight is \[80, 160\], the hyperpar"),
    ],
)
def test_what_does_not_fit_is_told_by_name(name, key, value, text, opened):
    opened(name).metadata[f"{name}.{key}"] = value
    with pytest.raises(ModelError, match=text):
        load()


def test_in_qwen_s_layers_a_second_shift_must_be_denied(opened):
    del opened("arwkv7").metadata["arwkv7.token_shift_count"]
    with pytest.raises(ModelError, match=r"arwkv7\.token_shift_count is 2: must be 1"):
        load()


@pytest.mark.parametrize("shared", [None, 0, 2])
def test_heads_of_keys_are_as_many_as_all_where_the_file_names_none(shared, opened):
    metadata = opened("rwkv6qwen2_f16").metadata
    metadata.update({} if shared is None else {"rwkv6qwen2.attention.head_count_kv": shared})
    ids, theirs = golden("rwkv6qwen2_f16")
    with load() as ours:
        assert nmse(ours.logits(ids), theirs) < 1e-5


@pytest.mark.parametrize("name", ["rwkv6", "rwkv6_split", "rwkv7", "rwkv7_f16"])
def test_a_whole_model_has_a_norm_of_heads(name, opened):
    file = opened(name)
    for tensor in [tensor for tensor in file.tensors if "time_mix_ln" in tensor]:
        del file.tensors[tensor]
    with pytest.raises(ModelError, match=r"lacks the tensor blk\.0\.time_mix_ln\.(weight|bias)"):
        load()


def test_a_gate_the_file_does_not_name_is_refused(opened):
    """Its mix is one too many."""
    del opened("arwkv7_f16").metadata["arwkv7.attention.gate_lora_rank"]
    with pytest.raises(
        ModelError, match=r"time_mix_lerp_fused\.weight is \[6, 1, 1, 128\], the hyper.*\[5, 1, 1, 128\]"
    ):
        load()


def test_two_shifts_may_be_said(opened):
    opened("rwkv7").metadata["rwkv7.token_shift_count"] = 2
    with load() as ours:
        ids, theirs = golden("rwkv7")
        assert nmse(ours.logits(ids[:5]), theirs[:5]) < 1e-9


@pytest.mark.parametrize(("every", "lowest", "highest"), [(0, 1e-2, 1), (2, 1e-2, 1), (1, 0, 1e-9)])
def test_the_stream_is_halved_where_the_file_says(every, lowest, highest, opened):
    """Behind the last layer it changes nothing, as the norm is next."""
    opened("rwkv6").metadata["rwkv6.rescale_every_n_layers"] = every
    ids, theirs = golden("rwkv6")
    with load() as ours:
        assert lowest <= nmse(ours.logits(ids), theirs) < highest


# ---- tensors


def test_five_mixes_in_one_tensor_are_those_in_five(opened):
    file = opened("rwkv6_split")
    ids, theirs = golden("rwkv6_split")
    with load() as ours:
        apart = ours.logits(ids)
    for layer in range(2):
        at = f"blk.{layer}.time_mix_lerp_"
        rows = [file.tensors.pop(f"{at}{letter}.weight").numpy() for letter in "wkvrg"]
        file.tensors[f"{at}fused.weight"] = holding(np.stack(rows)[:, None, None])
    with load() as ours:
        assert np.array_equal(ours.logits(ids), apart)
    assert nmse(apart, theirs) < 1e-6


def test_layers_whose_mixes_are_stored_in_both_ways_are_refused(opened):
    file = opened("rwkv6_split")
    file.tensors["blk.0.time_mix_lerp_fused.weight"] = holding(np.zeros((5, 1, 1, 64), np.float32))
    with pytest.raises(ModelError, match=r"lacks the tensor blk\.1\.time_mix_lerp_fused\.weight, which other layers"):
        load()
    file.tensors["blk.1.time_mix_lerp_fused.weight"] = file.tensors["blk.0.time_mix_lerp_fused.weight"]
    with pytest.raises(ModelError, match=r"a tensor blk\.0\.time_mix_lerp_w\.weight and 9 more, which is no part"):
        load()


@pytest.mark.parametrize(
    ("name", "tensor"),
    [("rwkv6", "time_mix_lerp_fused"), ("rwkv6", "time_mix_first"), ("rwkv7", "time_mix_lerp_fused")],
)
def test_tables_of_a_smaller_type_are_refused_by_name(name, tensor, opened):
    file = opened(name)
    full = f"blk.1.{tensor}.weight"
    file.tensors[full] = holding(file.tensors[full].numpy().astype(np.float16), jf.f16)
    with pytest.raises(ModelError, match=rf"tensor blk\.1\.{tensor}\.weight is f16: must be f32"):
        load()


def test_layer_0_does_not_read_what_it_has_for_the_first_values(opened):
    file = opened("rwkv7")
    ids, theirs = golden("rwkv7")
    for place in range(3):
        name = f"blk.0.time_mix_v{place}.weight"
        file.tensors[name] = holding(np.full(file.tensors[name].shape, np.nan, np.float32))
    with load() as ours:
        assert nmse(ours.logits(ids), theirs) < 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_a_quantised_file_is_close(name, family_path, tmp_path):
    """What is small and counts much stays as it was."""
    out = tmp_path / "small.gguf"
    quantize(family_path(name), out, "Q8_0")
    ids, theirs = golden(name)
    with load(out) as ours:
        assert 1e-7 < nmse(ours.logits(ids), theirs) < 2e-2
    types = {tensor: str(found.dtype) for tensor, found in jf.gguf.open(out).tensors.items()}
    assert types["blk.1.time_mix_key.weight"] == types["blk.0.time_mix_output.weight"] == "q8_0"
    before = {tensor: str(found.dtype) for tensor, found in jf.gguf.open(family_path(name)).tensors.items()}
    kept = [tensor for tensor in types if "lerp" in tensor or tensor.endswith(("w1.weight", "w2.weight"))]
    assert len(kept) > 4
    assert all(types[tensor] == before[tensor] for tensor in kept)


# ---- states


@pytest.mark.parametrize("context", [64, 4096])
@pytest.mark.parametrize(("name", "width", "head"), [("rwkv6", 160, 32), ("rwkv7", 192, 64)])
def test_states_do_not_grow_with_the_context(name, width, head, context, family_path):
    with jackfield_llm.load(family_path(name), "reference", context=context, cache_dtype="q8_0") as ours:
        ours.prefill([1, 2, 3])
        shapes = {state: found.read().shape for state, found in ours.session.states.items()}
    assert shapes == {
        f"{state}{layer}": (3, *shape)
        for layer in range(2)
        for state, shape in {"shift": (width,), "mix_shift": (width,), "wkv": (width // head, head, head)}.items()
    }


@pytest.mark.parametrize("name", NAMES)
def test_padding_leaves_states_alone_whatever_it_is(name, opened):
    """It is token 0, as far as a layer sees."""
    file = opened(name)
    ids = [token for token in golden(name)[0] if token][:7]
    with load() as ours:
        before = ours.prefill(ids)
    embeddings = file.tensors["token_embd.weight"].numpy().copy()
    embeddings[0] = 3 - embeddings[0][::-1] ** 2
    file.tensors["token_embd.weight"] = holding(embeddings, file.tensors["token_embd.weight"].dtype)
    with load() as ours:
        assert nmse(ours.prefill(ids), before) < 1e-9


@pytest.mark.parametrize("device", ["reference", "cpu:0"])
def test_a_decay_beyond_all_numbers_forgets_what_is_read_and_not_what_is_kept(device, opened):
    """The power of e that it is made of is infinite, also for padding."""
    presence.opens(device)
    file = opened("rwkv6")
    for layer in range(2):
        name = f"blk.{layer}.time_mix_decay.weight"
        decays = file.tensors[name].numpy().copy()
        decays[::3] = 200
        file.tensors[name] = holding(decays)
    ids, _ = golden("rwkv6")
    with load("x", device) as ours:
        one_by_one = [ours.decode(token) for token in ids[:14]]
        ours.reset()
        ours.prefill(ids[:7])
        assert nmse(ours.prefill(ids[7:14]), one_by_one[-1]) < 1e-9


# ---- text


def test_text_goes_in_and_comes_out(family_path):
    with load(family_path("rwkv6")) as ours:
        ids = ours.tokenize("the end 中文\n\n")
        assert ours.tokenizer.decode(ids) == "the end 中文\n\n"
        assert ours.tokenizer.eos_ids == {0, 257}
        answer = "".join(ours.generate("the end 中文", raw=True, max_tokens=6))
        greedy = []
        ours.reset()
        logits = ours.prefill(ours.tokenize("the end 中文"))
        while len(greedy) < 6 and (best := int(logits.argmax())) not in ours.tokenizer.eos_ids:
            greedy.append(best)
            logits = ours.decode(best)
        assert answer == ours.tokenizer.decode(greedy)


def test_a_chat_begins_with_the_token_that_a_user_can_not_write(tmp_path):
    template = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}"
    with load(families.write("rwkv7", tmp_path / "chat.gguf", template=template)) as ours:
        ids = ours.chat_ids([{"role": "user", "content": "<s>"}])
        assert ids[0] == 0
        assert 0 not in ids[1:]
        assert ours.tokenizer.decode(ids) == "<s>user: <s>\n\n"
        assert ids[-1] == 257
