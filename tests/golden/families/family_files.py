"""Tiny random models, one a variant of each family, written as GGUF files that are the same on every machine.

`bench/make_family_goldens.py` runs llama.cpp on these files once; tests write them again, check the sha256 and compare
their own logits with what was recorded. Sizes, metadata, weights and vocabularies stand in the files beside this one.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import gguf
import numpy as np
from family_metadata import add_metadata
from family_rwkv import RWKV, add_rwkv_metadata, rwkv_tensors
from family_sizes import LENGTH, VOCABULARY, Delta, Experts, Family, Latent, StateSpace
from family_tensors import Floats, tensors, type_of
from family_vocabularies import TOKENIZERS
from gguf import ExpertGatingFuncType
from gguf import GGMLQuantizationType as Type

__all__ = ["FAMILIES", "LENGTH", "TOKENIZERS", "VOCABULARY", "Family", "Floats", "by_name", "token_ids", "write"]

FAMILIES = (
    Family("llama", "llama", hidden=64, heads=4, kv_heads=2, head=16, ffn=160, rope_dims=16),
    Family(
        "llama_rope_freqs", "llama", hidden=96, heads=6, kv_heads=2, head=16, ffn=224, rope_base=500000.0,
        rope_dims=16, tied=True, type=Type.F16, rope_factors=(1.0, 1.5, 2.5, 4.0, 8.0, 8.0, 8.0, 8.0),
    ),
    Family(
        "llama_quantised", "llama", hidden=128, heads=4, kv_heads=2, head=32, ffn=288, sharpness=0.8, rope_dims=32,
        types={
            "token_embd": Type.Q8_0, "output": Type.Q8_0, "attn_q": Type.Q4_0, "attn_k": Type.Q4_1, "attn_v": Type.Q5_0,
            "attn_output": Type.Q5_1, "ffn_gate": Type.Q4_0, "ffn_up": Type.Q4_1, "ffn_down": Type.Q8_0,
        },
    ),
    Family("qwen2", "qwen2", hidden=128, heads=4, kv_heads=1, head=32, ffn=256, rope_base=1000000.0, type=Type.F16),
    Family("qwen3", "qwen3", hidden=64, heads=4, kv_heads=2, head=32, ffn=192, rope_base=1000000.0, tied=True),
    Family(
        "gemma3", "gemma3", hidden=96, heads=4, kv_heads=2, head=32, ffn=192, rope_base=1000000.0, tied=True,
        tokenizer="pieces", window=12, period=2, local_base=5000.0,
    ),
    Family(
        "gemma3_defaults", "gemma3", hidden=64, heads=2, kv_heads=1, head=64, ffn=128, layers=7, rope_base=1000000.0,
        tied=True, tokenizer="pieces", type=Type.BF16, window=9, rope_scale=8.0,
    ),
    Family(
        "mistral", "llama", hidden=128, heads=4, kv_heads=2, head=32, ffn=224, rope_base=1000000.0, rope_dims=32,
        tokenizer="pieces", window=8,
    ),
    Family(
        "mistral3", "mistral3", hidden=64, heads=4, kv_heads=2, head=32, ffn=192, rope_base=1000000.0, rope_dims=32,
        tokenizer="pairs", yarn=16.0, log_multiplier=1.0, original_context=16, temperature=0.4, sharpness=1.6,
    ),
    Family(
        "phi", "phi3", hidden=128, heads=4, kv_heads=4, head=32, ffn=192, rope_dims=32, tokenizer="pieces", window=8,
        original_context=128,
    ),
    Family(
        "phi_long", "phi3", hidden=128, heads=4, kv_heads=2, head=32, ffn=160, rope_dims=24, tied=True, window=0,
        original_context=32, attn_factor=1.19, sharpness=1.6,
        long_factors=(1.0, 1.1, 1.4, 2.0, 3.0, 4.0, 6.0, 9.0, 14.0, 20.0, 30.0, 40.0),
        short_factors=(1.0, 1.0, 1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.6, 1.8, 2.0),
    ),
    Family(
        "phi_short", "phi3", hidden=96, heads=3, kv_heads=1, head=32, ffn=160, rope_dims=32, tokenizer="pieces",
        context=4096, original_context=1024, attn_factor=1.0954451, sharpness=1.6,
        long_factors=(1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0, 9.0, 12.0, 16.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0),
        short_factors=(1.3, 1.6, 2.0, 2.2, 2.4, 2.6, 2.8, 3.0, 3.2, 3.4, 3.6, 3.8, 4.0, 4.2, 4.4, 4.6),
    ),
    Family(
        "gemma2", "gemma2", hidden=96, heads=4, kv_heads=2, head=32, ffn=192, tied=True, tokenizer="pieces", window=12,
        attention_cap=2.5, logit_cap=1.5, sharpness=1.8,
    ),
    *RWKV,
    Family(
        "mixtral", "llama", hidden=64, heads=4, kv_heads=2, head=32, ffn=96, rope_base=1000000.0, rope_dims=32,
        tokenizer="pieces", experts=Experts(count=6, used=2, width=96, width_key=False),
    ),
    Family(
        "qwen3moe", "qwen3moe", hidden=64, heads=4, kv_heads=2, head=32, ffn=128, rope_base=1000000.0,
        types={"ffn_gate_exps": Type.Q8_0, "ffn_up_exps": Type.Q8_0, "ffn_down_exps": Type.Q8_0},
        experts=Experts(count=8, used=3, width=64),
    ),
    Family(
        "gpt_oss", "gpt-oss", hidden=64, heads=4, kv_heads=2, head=32, ffn=96, rope_base=150000.0, window=10,
        yarn=32.0, original_context=32, type=Type.BF16, sharpness=1.2,
        types={"ffn_gate_exps": Type.MXFP4, "ffn_up_exps": Type.MXFP4, "ffn_down_exps": Type.MXFP4},
        experts=Experts(count=6, used=3, width=96, gate_gain=3.0),
    ),
    Family(
        "deepseek2", "deepseek2", hidden=64, heads=4, kv_heads=1, head=0, ffn=160, yarn=40.0, log_multiplier=0.1,
        original_context=16, sharpness=1.2, latent=Latent(queries=48, rank=64, plain=32, turned=16, value=32),
        experts=Experts(
            count=12, used=3, width=32, dense=1, shared=1, gating=ExpertGatingFuncType.SIGMOID, norm=True, scale=2.5,
            groups=4, groups_used=2, selection_bias=True, router_gain=1.0,
        ),
    ),
    Family(
        "deepseek2_lite", "deepseek2", hidden=64, heads=2, kv_heads=1, head=0, ffn=128, yarn=40.0,
        log_multiplier=0.0707, original_context=16, sharpness=1.2,
        latent=Latent(queries=0, rank=64, plain=32, turned=32, value=32),
        experts=Experts(count=8, used=2, width=64, dense=1, shared=2, scale=1.0, router_gain=1.0),
    ),
    Family(
        "mamba", "mamba", hidden=48, heads=0, kv_heads=0, head=0, ffn=0,
        state_space=StateSpace(inner=96, state=8, rank=5, taps=4),
    ),
    Family(
        "falcon_mamba", "mamba", hidden=32, heads=0, kv_heads=0, head=0, ffn=0, tied=True, type=Type.BF16,
        state_space=StateSpace(inner=64, state=16, rank=4, taps=3, normed=True),
    ),
    Family(
        "mamba2", "mamba2", hidden=48, heads=0, kv_heads=0, head=0, ffn=0,
        state_space=StateSpace(inner=96, state=16, rank=6, taps=4, groups=2),
    ),
    Family(
        "mamba2_one_group", "mamba2", hidden=64, heads=0, kv_heads=0, head=0, ffn=0, tied=True, type=Type.F16,
        types={"ssm_out": Type.Q8_0},
        state_space=StateSpace(inner=128, state=24, rank=4, taps=5, groups=1),
    ),
    Family(
        "qwen3next", "qwen3next", hidden=64, heads=4, kv_heads=2, head=32, ffn=128, rope_base=1000000.0, rope_dims=16,
        experts=Experts(count=8, used=3, width=64, shared_width=96),
        delta=Delta(taps=4, key_heads=2, heads=4, size=32, period=2),
    ),
    Family(
        "qwen3next_joined", "qwen3next", hidden=96, heads=3, kv_heads=1, head=64, ffn=96, rope_base=10000.0,
        rope_dims=32, tied=True, type=Type.F16,
        experts=Experts(count=6, used=2, width=48, width_key=False),
        delta=Delta(taps=3, key_heads=2, heads=6, size=16, recurrent=(False, True), joined=True),
    ),
    Family(
        "qwen35", "qwen35", hidden=64, heads=4, kv_heads=2, head=32, ffn=160, rope_base=1000000.0, rope_dims=16,
        rope_sections=(3, 3, 2, 0), delta=Delta(taps=4, key_heads=2, heads=6, size=16, period=2, in_turn=True),
    ),
    Family(
        "qwen35moe", "qwen35moe", hidden=64, heads=2, kv_heads=1, head=64, ffn=128, rope_dims=32, tied=True,
        rope_sections=(6, 5, 5, 0), experts=Experts(count=8, used=3, width=64, shared_width=96),
        delta=Delta(taps=4, key_heads=3, heads=6, size=32, recurrent=(False, True), in_turn=True),
    ),
    Family(
        "qwen3next_predicting", "qwen3next", hidden=64, heads=2, kv_heads=1, head=32, ffn=96, predicting=2,
        rope_dims=16, experts=Experts(count=6, used=2, width=32, shared_width=48),
        delta=Delta(taps=4, key_heads=2, heads=4, size=16, recurrent=(True, False, False, False)),
    ),
    Family(
        "qwen35_predicting", "qwen35", hidden=64, heads=2, kv_heads=1, head=32, ffn=96, predicting=1, rope_dims=16,
        rope_sections=(3, 3, 2, 0), types={"eh_proj": Type.Q8_0},
        delta=Delta(taps=3, key_heads=2, heads=4, size=16, period=2, in_turn=True),
    ),
    Family(
        "qwen35moe_predicting", "qwen35moe", hidden=64, heads=2, kv_heads=1, head=32, ffn=96, predicting=1, tied=True,
        rope_dims=16, rope_sections=(3, 3, 2, 0), experts=Experts(count=6, used=2, width=32, shared_width=48),
        delta=Delta(taps=4, key_heads=2, heads=4, size=16, period=2, in_turn=True),
    ),
    Family(
        "deepseek2_predicting", "deepseek2", hidden=64, heads=2, kv_heads=1, head=0, ffn=96, predicting=1,
        latent=Latent(queries=48, rank=32, plain=16, turned=16, value=32),
        experts=Experts(
            count=6, used=2, width=32, dense=1, shared=1, gating=ExpertGatingFuncType.SIGMOID, norm=True, scale=1.8,
            selection_bias=True, router_gain=1.0,
        ),
    ),
)  # fmt: skip


def by_name(name: str) -> Family:
    return next(family for family in FAMILIES if family.name == name)


def token_ids(family: Family) -> list[int]:
    """The sequence evaluated: LENGTH ids over the whole vocabulary, special ones too."""
    raw = np.random.PCG64(zlib.crc32(f"{family.name} ids".encode())).random_raw(LENGTH)
    return [int(value % VOCABULARY) for value in raw]


def write(family: Family, path: Path) -> None:
    """Write the family's GGUF file to `path`."""
    writer = gguf.GGUFWriter(path, family.architecture)
    (add_rwkv_metadata if family.rwkv else add_metadata)(writer, family)
    TOKENIZERS[family.tokenizer](writer)
    for name, values in (rwkv_tensors if family.rwkv else tensors)(family).items():
        add_tensor(writer, name, values, type_of(family, name, values))
    finish(writer)


def add_tensor(writer: gguf.GGUFWriter, name: str, values: Floats, kind: Type) -> None:
    """float32 values, stored as the kind says."""
    data = values if kind == Type.F32 else gguf.quants.quantize(values, kind)
    writer.add_tensor(name, data, raw_dtype=kind)


def finish(writer: gguf.GGUFWriter) -> None:
    """Write the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
