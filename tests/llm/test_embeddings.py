"""Embeddings: encoders and decoders against llama.cpp, texts side by side, and what is refused."""

from __future__ import annotations

import json
import math
import threading
from itertools import pairwise

import families
import numpy as np
import presence
import pytest
from families import nmse
from hypothesis import given, settings
from hypothesis import strategies as st

import jackfield as jf
import jackfield_llm
from jackfield_llm import ContextOverflow, ModelError, TokenizerError
from jackfield_llm.config import known_architectures, read_config
from jackfield_llm.embedding import batches, pooled, row_counts, vectors

import embedding_files  # isort: skip # beside family_files, which `families` found

ENCODERS = tuple(encoder.name for encoder in embedding_files.ENCODERS)
NAMES = (*ENCODERS, *embedding_files.DECODERS)
POOLINGS = embedding_files.POOLINGS
RECORDS = json.loads((families.FOLDER / "embeddings.json").read_text())
BOUND = 1e-3
DEVICES = ("reference", "cpu:0")
CLS, SEP = 2, 3


@pytest.fixture(scope="module")
def family_path(tmp_path_factory):
    """family_path(name): the tiny model's file, written once."""
    folder = tmp_path_factory.mktemp("embedders")

    def written(name):
        found = folder / f"{name}.gguf"
        if not found.exists():
            embedding_files.write_any(name, found)
        return found

    return written


@pytest.fixture
def device(request):
    return presence.opens(request.param)


@pytest.fixture(scope="module")
def metadata(family_path):
    return {name: dict(jf.gguf.open(family_path(name)).metadata) for name in NAMES}


@pytest.fixture(scope="module")
def loaded(family_path):
    """loaded(name): the model on the reference device, opened once."""
    found = {}

    def open_(name):
        if name not in found:
            found[name] = load(family_path(name))
        return found[name]

    yield open_
    for each in found.values():
        each.close()


def load(file, device="reference", **options):
    return jackfield_llm.load(file, device, **{"cache_dtype": "f32", **options})


def golden(name):
    with np.load(families.FOLDER / f"embeddings_{name}.npz") as stored:
        return {key: stored[key] for key in stored.files}


# ---- right


@pytest.mark.parametrize("device", [*DEVICES, "sim"], indirect=True)
@pytest.mark.parametrize("name", NAMES)
def test_vectors_are_llama_cpp_s(name, device, family_path):
    """What llama.cpp itself rounds away (its distance from a float64 model) is all the distance there is."""
    theirs = golden(name)
    with load(family_path(name), device) as ours:
        for pooling in POOLINGS:
            (found,) = ours.embed([theirs["ids"].tolist()], pooling=pooling, normalize=False)
            assert nmse(found, theirs[pooling]) <= min(BOUND, 3 * RECORDS[name]["float64_nmse"] + 1e-11), pooling


@pytest.mark.parametrize("device", DEVICES, indirect=True)
@pytest.mark.parametrize("name", ENCODERS)
def test_what_is_made_of_each_token_is_llama_cpp_s(name, device, family_path):
    """Nearer than any fault would leave it."""
    theirs = golden(name)
    with load(family_path(name), device) as ours:
        ((_, rows),) = ours._encoder.rows([theirs["ids"].tolist()])
        distance = nmse(rows, theirs["tokens"])
    assert distance <= 2 * RECORDS[name]["float64_nmse"] + 1e-11
    assert all(distance < 0.01 * fault for fault in RECORDS[name]["fault_nmse"].values())


@pytest.mark.parametrize("name", NAMES)
def test_the_pooling_is_the_file_s(name, loaded):
    """Else the mean, and of a decoder the last."""
    said = {"bert": "cls", "bert_bare": "last", "qwen3": "last", "gemma3": "last"}.get(name, "mean")
    ids, ours = golden(name)["ids"].tolist(), loaded(name)
    assert np.array_equal(ours.embed([ids]), ours.embed([ids], pooling=said))


@pytest.mark.parametrize("name", NAMES)
def test_vectors_have_the_length_one(name, loaded):
    ids, ours = golden(name)["ids"].tolist(), loaded(name)
    texts = [ids, ids[:1], ids[5:22]]
    bare, found = ours.embed(texts, normalize=False), ours.embed(texts)
    assert found.dtype == np.float32
    assert found.shape == bare.shape == (3, ours.config.width)
    lengths = np.linalg.norm(bare.astype(np.float64), axis=1, keepdims=True)
    assert lengths.min() > 1.5
    assert np.allclose(found, bare / lengths, rtol=1e-6)


@pytest.mark.parametrize("device", [*DEVICES, "sim+reference"], indirect=True)
@pytest.mark.parametrize("name", ["bert", "bert_fused", "nomic_bert", "qwen3"])
def test_texts_do_not_see_each_other(name, device, family_path):
    """However many there are and however long: each has the vector it has alone."""
    ids = golden(name)["ids"].tolist()
    texts = [
        ids[first : first + length]
        for first, length in zip(range(17), [1, 2, 5, 8, 9, 7, 40, 23, 24] * 2, strict=False)
    ]
    with load(family_path(name), device, batch=128) as ours:
        for pooling in POOLINGS:
            together = ours.embed(texts, pooling=pooling)
            alone = np.concatenate([ours.embed([text], pooling=pooling) for text in texts])
            assert nmse(together, alone) <= 1e-9
            assert nmse(ours.embed(texts[::-1], pooling=pooling)[::-1], alone) <= 1e-9


@settings(max_examples=15)
@given(
    lengths=st.lists(st.integers(1, 64), max_size=9),
    seed=st.integers(0, 99),
    name=st.sampled_from(["bert", "nomic_bert"]),
)
def test_any_texts_together_are_each_alone(lengths, seed, name, loaded):
    random = np.random.default_rng(seed)
    texts = [random.integers(0, 90, n).tolist() for n in lengths]
    ours = loaded(name)
    found = ours.embed(texts)
    assert found.shape == (len(texts), ours.config.width)
    for text, vector in zip(texts, found, strict=True):
        assert np.allclose(vector, ours.embed([text])[0], atol=1e-6)


@pytest.mark.parametrize("device", DEVICES, indirect=True)
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_copied_to_be_read(name, device, family_path):
    ids = golden(name)["ids"].tolist()
    with load(family_path(name), device) as ours:
        ours.embed([ids, ids[:3], ids[:4], ids[:1]])
        plans = ours._decoder.plans if ours._encoder is None else ours._encoder._plans
        assert len(plans) > 1
        assert {key: families.copied(plan) for key, plan in plans.items()} == {key: [] for key in plans}


@pytest.mark.parametrize("name", ["bert", "nomic_bert"])
def test_the_whole_context_is_usable(name, family_path):
    ids = (golden(name)["ids"].tolist() * 2)[:64]
    with load(family_path(name)) as wide, load(family_path(name), context=50) as tight:
        assert (wide.context, tight.context) == (64, 50)
        assert wide.embed([ids]).shape == (1, wide.config.width)
        assert np.allclose(wide.embed([ids[:50]]), tight.embed([ids[:50]]), atol=1e-6)


def test_the_parts_of_a_long_text_are_one(family_path):
    """A decoder evaluates it in parts."""
    ids = golden("qwen3")["ids"].tolist() * 3
    found = []
    for batch in (1, 32, 128):
        with load(family_path("qwen3"), batch=batch) as ours:
            found.append([ours.embed([ids], pooling=pooling) for pooling in POOLINGS])
    assert np.allclose(found[0], found[1], atol=1e-5)
    assert np.allclose(found[0], found[2], atol=1e-5)


def test_a_decoder_answers_as_before(family_path):
    """And its cache says what it holds."""
    ids = golden("qwen3")["ids"].tolist()
    with load(family_path("qwen3")) as ours:
        before = ours.logits(ids)
        ours.embed([ids[:7], ids[9:14]])
        assert ours.cached == tuple(ids[9:14])
        assert np.array_equal(ours.prefill(ids[14:20]), ours.logits(ids[9:20])[-1])
        assert np.array_equal(ours.logits(ids), before)
        assert ours.embed([]).shape == (0, 64)
        assert ours.cached == tuple(ids)


def test_a_decoder_s_vectors_are_what_its_logits_are_made_of(family_path):
    ids = golden("qwen3")["ids"].tolist()
    table = jf.gguf.open(family_path("qwen3")).tensors["token_embd.weight"].numpy()
    with load(family_path("qwen3")) as ours:
        (vector,) = ours.embed([ids], normalize=False)
        assert nmse(table @ vector, ours.logits(ids)[-1]) <= 1e-10


# ---- texts


def test_texts_are_framed_as_the_model_was_made_with(loaded):
    ours = loaded("bert")
    ids = ours.tokenize("see the sea.")
    framed = [CLS, *ids, SEP]
    assert np.array_equal(ours.embed(["See the sea."]), ours.embed([framed]))
    assert np.array_equal(ours.embed(["", "See the sea."]), ours.embed([[CLS, SEP], np.array(framed)]))


def test_a_special_token_in_a_text_is_text(loaded):
    """A stranger's text can't end itself."""
    ours = loaded("bert")
    ids = ours.tokenize("a[SEP]b")
    assert SEP not in ids
    assert np.array_equal(ours.embed(["a[SEP]b"]), ours.embed([[CLS, *ids, SEP]]))


def test_a_decoder_s_text_ends_as_the_file_says(opened):
    file = opened("qwen3")
    file.metadata |= {
        "tokenizer.ggml.add_eos_token": True,
        "tokenizer.ggml.add_bos_token": True,
        "qwen3.pooling_type": 1,
    }
    with load("x") as ours:
        ids = ours.tokenize("the")
        assert np.array_equal(ours.embed(["the", ""]), ours.embed([[0, *ids, 1], [0, 1]], pooling="mean"))


@pytest.mark.parametrize("name", NAMES)
def test_no_texts_no_vectors(name, loaded):
    found = loaded(name).embed([])
    assert (found.shape, found.dtype) == ((0, loaded(name).config.width), np.float32)
    assert loaded(name).embed(iter(())).shape == found.shape


@pytest.mark.parametrize("name", ["bert", "qwen3"])
def test_wrong_texts(name, loaded):
    ours = loaded(name)
    for texts, what in (("one", "str"), (b"one", "bytes"), (None, "NoneType"), (3, "int")):
        with pytest.raises(ModelError, match=rf"^texts is a {what}: must be a list of texts$"):
            ours.embed(texts)
    for text, what in ((3, "int"), (b"one", "bytes"), (None, "NoneType"), ({1: 2}, "dict")):
        with pytest.raises(ModelError, match=rf"^texts\[1\] is a {what}: must be a text or a list of ids$"):
            ours.embed(["a", text])
    with pytest.raises(ModelError, match=r"^texts\[1\] has no tokens, and the file adds none: must have at least one$"):
        ours.embed([[1], []])
    with pytest.raises(ModelError, match=r"^tokens are \[1\.5\]: must be a list of whole numbers$"):
        ours.embed([[1.5]])
    for token in (-1, ours._vocabulary):
        with pytest.raises(ModelError, match=rf"^token {token} lies outside the vocabulary of"):
            ours.embed([[1], [token]])


def test_a_decoder_s_empty_text_has_no_token(loaded):
    with pytest.raises(ModelError, match=r"^texts\[0\] has no tokens"):
        loaded("qwen3").embed([""])


@pytest.mark.parametrize("name", ["bert", "nomic_bert", "qwen3"])
def test_a_text_that_is_too_long(name, loaded):
    ours = loaded(name)
    with pytest.raises(
        ContextOverflow, match=rf"^{ours.context + 1} tokens do not fit the context of {ours.context}"
    ) as e:
        ours.embed([[1], [1] * (ours.context + 1)])
    assert (e.value.needed, e.value.limit) == (ours.context + 1, ours.context)


@pytest.mark.parametrize("pooling", ["", "rank", "none", "MEAN", 1])
def test_an_unknown_pooling(pooling, loaded):
    with pytest.raises(
        ModelError, match=r"^pooling .*: must be one of mean, cls, last, or None for what the file says$"
    ):
        loaded("bert").embed(["a"], pooling=pooling)


def test_one_call_at_a_time(loaded):
    ours, seen = loaded("bert"), []

    def other():
        try:
            ours.embed(["a"])
        except jf.errors.Busy as e:
            seen.append(e)

    with ours._alone():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(seen) == 1


# ---- an encoder writes nothing


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.logits([1]),
        lambda m: m.logits([]),
        lambda m: m.prefill([1]),
        lambda m: m.decode(1),
        lambda m: m.advance([1]),
        lambda m: m.answer([1]),
        lambda m: m.generate("a", raw=True),
        lambda m: m.generate("a"),
        lambda m: m.chat_ids([{"role": "user", "content": "a"}]),
    ],
)
def test_an_encoder_makes_no_logits(call, loaded):
    with pytest.raises(ModelError, match=r"^a bert model makes no logits and writes no text: call embed$"):
        call(loaded("bert"))


def test_an_encoder_is_a_model(loaded):
    ours = loaded("nomic_bert")
    assert ours.device_names == "reference:0"
    assert "attention" in ours.explain()
    assert ours.cached == ()
    assert ours.detokenize(ours.tokenize("a sea")) == " a sea"


def test_learned_positions_end(family_path, caplog):
    with pytest.raises(ModelError, match=r"^context 65: must be at most 64, for which the file has positions"):
        load(family_path("bert"), context=65)
    with load(family_path("nomic_bert"), context=65) as ours:
        assert ours.embed([[1] * 65]).shape == (1, 64)
    assert "a context of 65 is longer than the 64 tokens it was made for" in caplog.text


# ---- wrong: files


@pytest.mark.parametrize("name", ENCODERS)
def test_each_tensor_is_needed(name, opened):
    file = opened(name)
    optional = {"token_types.weight"}
    for tensor in list(file.tensors):
        kept = file.tensors.pop(tensor)
        if tensor not in optional:
            with pytest.raises(ModelError, match=rf"lacks the tensor {tensor.replace('qkv', '(qkv|q)')}\b"):
                load("x")
        file.tensors[tensor] = kept


@pytest.mark.parametrize("name", ENCODERS)
def test_each_tensor_has_its_shape(name, opened):
    file = opened(name)
    for tensor, kept in list(file.tensors.items()):
        for shape in ((*kept.shape[:-1], kept.shape[-1] * 2), (*kept.shape, 32), (5, *kept.shape[1:])):
            file.tensors[tensor] = families.Tensor(shape, kept.dtype)
            with pytest.raises(ModelError, match=tensor):
                load("x")
        file.tensors[tensor] = kept


@pytest.mark.parametrize("extra", ["cls.weight", "cls.output.weight", "blk.1.attn_q_norm.weight", "output.weight"])
def test_a_tensor_that_is_no_part_of_the_model_is_refused(extra, opened):
    file = opened("bert")
    file.tensors[extra] = file.tensors["token_embd_norm.weight"]
    with pytest.raises(ModelError, match=extra.replace("blk.1", "blk.0")):
        load("x")


NEEDED = (
    "embedding_length",
    "attention.head_count",
    "block_count",
    "feed_forward_length",
    "context_length",
    "attention.layer_norm_epsilon",
)
READ = (
    *NEEDED,
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.causal",
    "expert_count",
    "moe_every_n_layers",
    "pooling_type",
)
ROTATION = ("rope.freq_base", "rope.dimension_count", "rope.scaling.type", "rope.scaling.factor")


@pytest.mark.parametrize("name", ENCODERS)
def test_each_needed_key_is_missed_by_name(name, metadata):
    architecture = metadata[name]["general.architecture"]
    for key in NEEDED:
        without = {k: v for k, v in metadata[name].items() if k != f"{architecture}.{key}"}
        with pytest.raises(ModelError, match=f"lacks {architecture}.{key},"):
            read_config(without)


@pytest.mark.parametrize("name", ENCODERS)
def test_nonsense_in_a_key_is_told_by_name(name, metadata):
    architecture = metadata[name]["general.architecture"]
    for key in READ + (ROTATION if architecture == "nomic-bert" else ()):
        for value in (-3, math.nan, math.inf, "many", [1.5]):
            full = f"{architecture}.{key}"
            with pytest.raises(ModelError, match=full):
                read_config({**metadata[name], full: value})


_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-10, 200), st.integers(), st.floats(), st.text(max_size=5), st.just([1])
)


@given(
    name=st.sampled_from(ENCODERS),
    changes=st.dictionaries(st.sampled_from(READ + ROTATION), _VALUES, min_size=1, max_size=4),
)
def test_any_metadata_is_a_config_or_a_model_error(name, changes, metadata):
    architecture = metadata[name]["general.architecture"]
    try:
        config = read_config({**metadata[name], **{f"{architecture}.{k}": v for k, v in changes.items()}})
    except ModelError as e:
        assert architecture in str(e)
        assert "\n" not in str(e)
    else:
        assert config.heads * config.head_size == config.width
        assert 1 <= config.encoder.layers <= 1024


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("expert_count", 8, "is 8: must be 0: layers of experts in this architecture are not known here"),
        ("moe_every_n_layers", 2, "is 2: must be 0: layers of experts in this architecture are not known here"),
        ("attention.head_count_kv", 2, "is 2: must be 4: encoders with other keys than queries are not known here"),
        ("attention.key_length", 32, "is 32: must be 24: encoders with other keys than queries are not known here"),
        (
            "attention.causal",
            True,
            "is True: must be false: encoders that see only what came before are not known here",
        ),
        ("pooling_type", 4, r"is 4: must be 1 \(mean\), 2 \(cls\) or 3 \(last\): rankers are not known here"),
        ("pooling_type", 5, r"is 5: must be 0 \(none\), 1 \(mean\), 2 \(cls\), 3 \(last\) or 4 \(rank\)"),
        ("embedding_length", 95, "is 95: must be a multiple of the 4 heads"),
    ],
)
def test_what_is_lacking_is_refused_by_name(key, value, told, metadata):
    with pytest.raises(ModelError, match=rf"^bert\.{key} {told}$"):
        read_config({**metadata["bert"], f"bert.{key}": value})


def test_token_types_must_be_as_many_as_the_file_says(opened):
    file = opened("bert")
    file.metadata["tokenizer.ggml.token_type_count"] = 3
    with pytest.raises(ModelError, match=r"tensor token_types\.weight is \[2, 96\], the hyperparameters say \[3, 96\]"):
        load("x")
    file.metadata["tokenizer.ggml.token_type_count"] = 0
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.token_type_count is 0"):
        load("x")


def test_what_decoders_may_say_of_embeddings(opened):
    file = opened("qwen3")
    file.metadata["qwen3.pooling_type"] = 4
    with load("x") as ours:
        with pytest.raises(
            ModelError, match=r"^qwen3\.pooling_type is 4 \(rank\): rankers are not known here; .*choose"
        ):
            ours.embed([[1]])
        assert ours.embed([[1]], pooling="mean").shape == (1, 64)
        assert ours.logits([1]).shape == (1, 320)
    file.metadata |= {"qwen3.pooling_type": 2, "qwen3.attention.causal": True}
    with load("x") as ours:
        assert np.array_equal(ours.embed([[1, 2]]), ours.embed([[1, 2]], pooling="cls"))
    file.metadata["qwen3.attention.causal"] = False
    with pytest.raises(
        ModelError, match=r"^qwen3\.attention\.causal is False: must be true: decoders that see what follows"
    ):
        load("x")


@pytest.mark.parametrize(
    "name", ["nomic-bert-moe", "jina-bert-v2", "jina-bert-v3", "modern-bert", "neo-bert", "eurobert"]
)
def test_other_encoders_are_refused_by_name(name, opened):
    opened("bert").metadata["general.architecture"] = name
    with pytest.raises(ModelError, match=f"architecture '{name}' is not known here; known: ") as e:
        load("x")
    assert ", ".join(known_architectures()) in str(e.value)


def test_a_vocabulary_without_the_first_token(opened):
    file = opened("bert")
    del file.metadata["tokenizer.ggml.bos_token_id"]  # then 101 is meant, which this one has not
    file.metadata["tokenizer.ggml.tokens"] = file.metadata["tokenizer.ggml.tokens"][:90]
    file.metadata["tokenizer.ggml.token_type"] = file.metadata["tokenizer.ggml.token_type"][:90]
    tensor = file.tensors["token_embd.weight"]
    file.tensors["token_embd.weight"] = families.Tensor((90, 96), jf.f32, tensor.data[: 90 * 96 * 4])
    with load("x") as ours, pytest.raises(TokenizerError, match=r"bos_token_id: absent, and the file asks to add"):
        ours.embed(["a"])


# ---- pure parts


@given(context=st.integers(1, 9000))
def test_row_counts(context):
    counts = row_counts(context)
    assert counts == sorted(set(counts))
    assert counts[-1] == context
    assert all(b <= 2 * a for a, b in pairwise(counts))


@given(lengths=st.lists(st.integers(1, 300), max_size=40), most=st.sampled_from([1, 4, 32, 128, 512]))
def test_batches_hold_every_text_once(lengths, most):
    found = list(batches(lengths, row_counts(300), most))
    assert sorted(n for _, _, numbers in found for n in numbers) == list(range(len(lengths)))
    for rows, streams, numbers in found:
        assert len(numbers) <= streams < 2 * len(numbers)
        assert streams & (streams - 1) == 0
        assert rows * streams <= max(most, rows)
        assert all(lengths[n] <= rows for n in numbers)
        assert rows <= max(8, 2 * min(lengths[n] for n in numbers))


def test_pooling_and_length():
    rows = np.array([[3, 4], [0, 0], [0, 8]], np.float32)
    assert [pooled(rows, pooling).tolist() for pooling in ("mean", "cls", "last")] == [[1, 4], [3, 4], [0, 8]]
    made = [(2, rows[:1]), (0, rows)]
    assert np.allclose(vectors(made, (3, 2), "cls", normalize=True), [[0.6, 0.8], [0, 0], [0.6, 0.8]])
    assert vectors(made, (3, 2), "last", normalize=False).tolist() == [[0, 8], [0, 0], [3, 4]]
    huge = [(0, np.array([[3e30, 4e30]], np.float32))]
    assert np.allclose(vectors(huge, (1, 2), "mean", normalize=True), [[0.6, 0.8]])
