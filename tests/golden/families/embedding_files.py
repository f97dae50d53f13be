"""Tiny random encoders, written as GGUF files that are the same on every machine; and which decoders embed as well.

`bench/make_embedding_goldens.py` runs llama.cpp on these files once, as `family_files.py` tells of the others.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import family_files
import gguf
import numpy as np
from family_tensors import Floats, gaussian
from gguf import GGMLQuantizationType as Type
from gguf import PoolingType

__all__ = ["DECODERS", "ENCODERS", "LENGTH", "POOLINGS", "Encoder", "by_name", "token_ids", "write_any"]

LENGTH = 40
POOLINGS = ("mean", "cls", "last")


@dataclass(frozen=True)
class Encoder:
    """One file: an architecture, its sizes, and what makes the variant different."""

    name: str
    architecture: str
    hidden: int
    heads: int
    ffn: int
    layers: int = 2
    context: int = 64
    epsilon: float = 0.5
    """Large, so that a model which takes another shows it."""
    sharpness: float = 1.6
    """Gain of queries and keys."""
    token_types: int = 2
    """Rows of `token_types.weight`; with 0 the file has no such tensor and says 1."""
    fused: bool = False
    """One matrix makes queries, keys and values."""
    biases: bool = True
    """Of the matrices."""
    rope_base: float = 0.0
    """0: no rotation, but `position_embd.weight`."""
    gated: bool = False
    pooling: PoolingType | None = None
    types: Mapping[str, Type] = field(default_factory=dict)
    """Types of matrices by the name's last part but one, where they are not float32."""


ENCODERS = (
    Encoder("bert", "bert", hidden=96, heads=4, ffn=160, pooling=PoolingType.CLS),
    Encoder(
        "bert_fused", "bert", hidden=96, heads=3, ffn=192, token_types=0, fused=True, pooling=PoolingType.MEAN,
        types={
            "token_embd": Type.Q8_0, "attn_qkv": Type.Q8_0, "attn_output": Type.F16, "ffn_up": Type.Q8_0,
            "ffn_down": Type.F16,
        },
    ),
    Encoder(
        "bert_bare", "bert", hidden=64, heads=2, ffn=96, layers=3, biases=False, sharpness=2.2, pooling=PoolingType.LAST
    ),
    Encoder(
        "nomic_bert", "nomic-bert", hidden=64, heads=4, ffn=96, fused=True, biases=False, rope_base=1000.0, gated=True,
        pooling=PoolingType.MEAN,
    ),
    Encoder(
        "nomic_bert_half", "nomic-bert", hidden=96, heads=2, ffn=128, biases=False, rope_base=500.0, gated=True,
        token_types=1, types={"attn_q": Type.F16, "attn_k": Type.F16, "ffn_gate": Type.F16, "token_embd": Type.F16},
    ),
)  # fmt: skip
DECODERS = ("qwen3", "gemma3")
"""Of `family_files.FAMILIES`."""


def by_name(name: str) -> Encoder:
    return next(encoder for encoder in ENCODERS if encoder.name == name)


def vocabulary() -> list[str]:
    """WordPiece as GGUF keeps it: "▁" where a word begins."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    pairs = [a + b for a in "etaoin" for b in "nrstl"]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return [*special, *(f"▁{sign}" for sign in ".,!?"), *(f"▁{s}" for s in letters), *letters, *pairs]


def token_ids(name: str) -> list[int]:
    """The sequence evaluated: LENGTH ids over the whole vocabulary, special ones too."""
    if name in DECODERS:
        return family_files.token_ids(family_files.by_name(name))
    raw = np.random.PCG64(zlib.crc32(f"{name} ids".encode())).random_raw(LENGTH)
    return [int(value % len(vocabulary())) for value in raw]


def write_any(name: str, path: Path) -> None:
    """Write the GGUF file of an encoder or decoder to `path`."""
    if name in DECODERS:
        family_files.write(family_files.by_name(name), path)
    else:
        write(by_name(name), path)


def write(encoder: Encoder, path: Path) -> None:
    writer = gguf.GGUFWriter(path, encoder.architecture)
    add_metadata(writer, encoder)
    add_vocabulary(writer)
    for name, values in tensors(encoder).items():
        stem = name.split(".")[-2]
        kind = encoder.types.get(stem, Type.F32) if values.ndim > 1 else Type.F32
        family_files.add_tensor(writer, name, values, kind)
    family_files.finish(writer)


def add_metadata(writer: gguf.GGUFWriter, encoder: Encoder) -> None:
    writer.add_name(f"jackfield golden {encoder.name}")
    writer.add_context_length(encoder.context)
    writer.add_embedding_length(encoder.hidden)
    writer.add_block_count(encoder.layers)
    writer.add_feed_forward_length(encoder.ffn)
    writer.add_head_count(encoder.heads)
    writer.add_layer_norm_eps(encoder.epsilon)
    writer.add_causal_attention(False)
    writer.add_token_type_count(encoder.token_types or 1)
    if encoder.rope_base:
        writer.add_rope_freq_base(encoder.rope_base)
    if encoder.pooling is not None:
        writer.add_pooling_type(encoder.pooling)


def add_vocabulary(writer: gguf.GGUFWriter) -> None:
    tokens = vocabulary()
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("bert-bge")
    writer.add_token_list(tokens)
    kinds = [gguf.TokenType.CONTROL, gguf.TokenType.UNKNOWN] + [gguf.TokenType.CONTROL] * 3
    writer.add_token_types(kinds + [gguf.TokenType.NORMAL] * (len(tokens) - len(kinds)))
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_sep_token_id(3)
    writer.add_mask_token_id(4)


def tensors(encoder: Encoder) -> dict[str, Floats]:
    """Every tensor of the file by name, float32; as in `family_tensors.tensors` each part of the model matters."""
    hidden, made = encoder.hidden, Maker(encoder)
    root = float(hidden) ** 0.5
    made.matrix("token_embd", len(vocabulary()), hidden, gain=root)
    if encoder.token_types:
        made.matrix("token_types", encoder.token_types, hidden, gain=0.7 * root)
    if not encoder.rope_base:
        made.matrix("position_embd", encoder.context, hidden, gain=0.8 * root)
    made.norm("token_embd_norm")
    for layer in range(encoder.layers):
        made.layer(f"blk.{layer}.")
    return made.tensors


class Maker:
    """Makes one encoder's tensors, in the order of the file."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.tensors: dict[str, Floats] = {}

    def vector(self, name: str, size: int, *, mean: float, scale: float) -> None:
        self.tensors[name] = gaussian(f"{self.encoder.name} {name}", (size,), scale, mean)

    def matrix(self, name: str, outputs: int, inputs: int, *, gain: float = 1.0) -> None:
        full = f"{name}.weight"
        self.tensors[full] = gaussian(f"{self.encoder.name} {full}", (outputs, inputs), gain / float(inputs) ** 0.5)

    def linear(self, name: str, outputs: int, inputs: int, *, gain: float = 1.0) -> None:
        self.matrix(name, outputs, inputs, gain=gain)
        if self.encoder.biases:
            self.vector(f"{name}.bias", outputs, mean=0.0, scale=0.5)

    def norm(self, name: str) -> None:
        self.vector(f"{name}.weight", self.encoder.hidden, mean=1.0, scale=0.3)
        self.vector(f"{name}.bias", self.encoder.hidden, mean=0.2, scale=0.4)

    def layer(self, block: str) -> None:
        encoder, hidden = self.encoder, self.encoder.hidden
        if encoder.fused:
            self.linear(f"{block}attn_qkv", 3 * hidden, hidden, gain=encoder.sharpness)
        else:
            self.linear(f"{block}attn_q", hidden, hidden, gain=encoder.sharpness)
            self.linear(f"{block}attn_k", hidden, hidden, gain=encoder.sharpness)
            self.linear(f"{block}attn_v", hidden, hidden, gain=1.5)
        self.linear(f"{block}attn_output", hidden, hidden)
        self.norm(f"{block}attn_output_norm")
        if encoder.gated:
            self.matrix(f"{block}ffn_gate", encoder.ffn, hidden, gain=1.2)
        self.linear(f"{block}ffn_up", encoder.ffn, hidden, gain=1.2)
        self.linear(f"{block}ffn_down", hidden, encoder.ffn, gain=2.0)
        self.norm(f"{block}layer_output_norm")
