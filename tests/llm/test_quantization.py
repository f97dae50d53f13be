"""Which tensor gets which type: against what llama.cpp decided for made models, and against the core's own blocks."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jackfield as jf
from jackfield_llm import quantization
from jackfield_llm.errors import QuantizationError
from jackfield_llm.mixes import Model, model_facts
from jackfield_llm.quantization import FILE_TYPES, Tensor, assign, fallback, file_type

FOLDER = Path(__file__).parents[1] / "golden" / "quantize"
RECORDED = json.loads((FOLDER / "mixes.json").read_text())


def _mix_models():
    spec = importlib.util.spec_from_file_location("mix_models", FOLDER / "mix_models.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


mix_models = _mix_models()
DTYPES = jf.dtypes.DTYPES
OPTIONS = {"--token-embedding-type": "token_embedding_type", "--output-tensor-type": "output_type"}


def ours(model, kind):
    """Type names as llama.cpp writes them, in the tensors' order."""
    metadata = {"general.architecture": model.architecture}
    metadata |= {f"{model.architecture}.{key}": value for key, value in model.metadata().items()}
    words = list(model.options)
    options = {"pure": True} if words == ["--pure"] else {OPTIONS[k]: v for k, v in zip(words[::2], words[1::2])}
    tensors = [Tensor(name, shape, "f32") for name, shape in model.tensors().items()]
    facts = model_facts(metadata, importance=model.importance)
    chosen = assign(reversed(tensors), file_type(kind), facts, **options)
    return [chosen[t.name].dtype.lower() for t in tensors]


@pytest.mark.parametrize("kind", mix_models.FILE_TYPES)
@pytest.mark.parametrize("name", [model.name for model in mix_models.MODELS])
def test_the_mix_is_llama_cpps(name, kind):
    model = mix_models.by_name(name)
    theirs = [RECORDED["types"][ord(letter) - ord("A")] for letter in RECORDED["models"][name][kind]]
    assert len(theirs) == len(model.tensors())
    assert dict(zip(model.tensors(), ours(model, kind))) == dict(zip(model.tensors(), theirs))


def test_the_recording_tells_file_types_apart():
    """A table that held the same types everywhere would prove nothing."""
    answers = RECORDED["models"]["eight_experts"]
    assert len(set(answers.values())) == len(answers) == len(mix_models.FILE_TYPES)
    assert set(FILE_TYPES) - set(mix_models.FILE_TYPES) == {"MXFP4", "NVFP4", "Q1_0"}


def test_blocks_are_the_cores():
    for name, dtype in DTYPES.items():
        if dtype.gguf_id is not None:
            assert quantization.block(name) == dtype.block
    of_weights = {d.name for d in DTYPES.values() if d.is_block} - {"q8_1", "q8_K"}
    assert {file.main for file in FILE_TYPES.values()} == of_weights | {"f32", "f16", "bf16"}


@pytest.mark.parametrize(
    ("dtype", "columns", "got"),
    [
        *[(d, 288, "iq4_nl") for d in ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs")],
        *[(d, 288, "q4_0") for d in ("q2_K", "q3_K", "tq1_0", "tq2_0", "q1_0", "q2_0")],
        ("q4_K", 288, "q5_0"),
        ("q5_K", 288, "q5_1"),
        ("q6_K", 288, "q8_0"),
        ("nvfp4", 288, "mxfp4"),
        ("q4_K", 512, "q4_K"),
        ("nvfp4", 320, "nvfp4"),
        *[(d, 40, "f16") for d in ("q4_0", "q8_0", "iq4_nl", "mxfp4", "q2_K", "q4_K", "q6_K", "iq1_m", "nvfp4")],
        *[(d, 7, d) for d in ("f32", "f16", "bf16")],
    ],
)
def test_fallbacks(dtype, columns, got):
    assert fallback(dtype, columns) == got


@given(st.sampled_from(sorted({file.main for file in FILE_TYPES.values()})), st.integers(1, 5000))
def test_a_fallback_always_fits(dtype, columns):
    got = fallback(dtype, columns)
    assert columns % quantization.block(got) == 0
    assert (got == dtype) == (columns % quantization.block(dtype) == 0)


@pytest.mark.parametrize(
    ("name", "shape", "quantised"),
    [
        ("blk.0.attn_q.weight", (8, 256), True),
        ("blk.0.ffn_up_exps.weight", (4, 8, 256), True),
        ("token_embd.weight", (8, 256), True),
        ("blk.0.attn_q.bias", (8, 256), False),
        ("blk.0.attn_q.weight", (256,), False),
        ("blk.0.attn_q.weight", (1, 256), False),
        ("blk.0.attn_q.weight", (1, 1, 256), False),
        ("blk.0.attn_q.weight", (1, 8, 256), True),
        ("blk.0.attn_q_norm.weight", (8, 256), False),
        ("blk.0.ffn_gate_inp.weight", (8, 256), False),
        ("blk.0.ssm_conv1d.weight", (8, 256), False),
        ("blk.0.time_mix_w1.weight", (8, 256), False),
        ("position_embd.weight", (8, 256), False),
        ("token_types.weight", (2, 256), False),
    ],
)
def test_what_stays_as_it_is(name, shape, quantised):
    chosen = assign([Tensor(name, shape, "f16")], file_type("q8_0"), Model())[name]
    assert chosen.dtype == ("q8_0" if quantised else "f16")


def test_names_of_file_types():
    assert file_type("q4_k").name == file_type("Q4_K_m").name == "Q4_K_M"
    assert file_type("iq4_nl").main == "iq4_nl"
    numbers = [file.number for file in FILE_TYPES.values() if file.name != "MXFP4"]
    assert len(set(numbers)) == len(numbers)
    with pytest.raises(QuantizationError, match=r"^there is no file type 'Q4_KS'; did you mean Q4_K_S\?; known: F32 "):
        file_type("Q4_KS")
    with pytest.raises(QuantizationError, match=r"^there is no file type 'x'; known: F32 "):
        file_type("x")


def test_numbers_of_file_types_are_the_packages():
    gguf = pytest.importorskip("gguf")
    theirs = {member.name.removeprefix("MOSTLY_").removeprefix("ALL_"): member.value for member in gguf.LlamaFileType}
    common = set(theirs) & set(FILE_TYPES)
    assert len(common) > 25
    assert {name: theirs[name] for name in common} == {name: FILE_TYPES[name].number for name in common}


@given(
    st.dictionaries(
        st.sampled_from(["head_count", "head_count_kv"]).map("attention.{}".format)
        | st.sampled_from(["block_count", "expert_count"]),
        st.one_of(st.integers(-5, 100), st.text(), st.floats(), st.booleans(), st.lists(st.integers(0, 9))),
    )
)
def test_odd_metadata_gives_facts_and_no_error(values):
    facts = model_facts({"general.architecture": "a"} | {f"a.{key}": value for key, value in values.items()})
    assert min(facts.layers, facts.heads, facts.kv_heads, facts.experts, facts.shared) >= 0


def test_facts_of_metadata():
    metadata = {"general.architecture": "a", "a.block_count": 3, "a.attention.head_count": [8, 4]}
    assert model_facts(metadata).shared == 1
    assert model_facts(metadata | {"a.attention.head_count_kv": [2, 4]}).shared == 4
    assert model_facts({}) == Model()
