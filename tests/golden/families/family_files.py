"""Tiny random models, one a variant of each family, written as GGUF files that are the same on every machine.

The weights come from raw 64-bit outputs of PCG64 and integer sums, so that no version of numpy, its distributions or
the machine's mathematics library changes a byte. Each tensor has a generator of its own, seeded by the names of variant
and tensor: one more tensor moves no other. `bench/make_family_goldens.py` runs llama.cpp on these files once; tests
write them again, check the sha256 and compare their own logits with what was recorded.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

VOCABULARY = 320
LENGTH = 40
EPSILON = 1e-5
Floats = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


@dataclass(frozen=True)
class Family:
    """One file: an architecture, its sizes, and what makes the variant different."""

    name: str
    architecture: str
    hidden: int
    heads: int
    kv_heads: int
    head: int
    """Elements of one head; `heads * head` need not be `hidden`."""
    ffn: int
    layers: int = 2
    rope_base: float = 10000.0
    sharpness: float = 1.4
    """Gain of queries and keys: larger makes attention more decided, and errors of rounding larger."""
    tied: bool = False
    """No `output.weight`: logits come from `token_embd.weight`."""
    type: Type = Type.F32
    types: Mapping[str, Type] = field(default_factory=dict)
    """Types of matrices by the name's last part but one (`attn_q`), over `type`."""
    rope_factors: tuple[float, ...] = ()
    """Divisors of the rotation's frequencies, one a pair: the tensor `rope_freqs.weight`."""
    rope_scale: float = 1.0
    """Linear scaling: positions of layers without a window are divided by it."""
    window: int = 0
    """Keys a windowed layer sees, itself included; 0 is no window."""
    period: int = 0
    """Every `period`-th layer has no window; 0 leaves the key away (then it is 6)."""
    local_base: float = 0.0
    """Rotation base of windowed layers; 0 leaves the key away (then it is 10000)."""


FAMILIES = (
    Family("llama", "llama", hidden=64, heads=4, kv_heads=2, head=16, ffn=160),
    Family(
        "llama_rope_freqs", "llama", hidden=96, heads=6, kv_heads=2, head=16, ffn=224, rope_base=500000.0,
        tied=True, type=Type.F16, rope_factors=(1.0, 1.5, 2.5, 4.0, 8.0, 8.0, 8.0, 8.0),
    ),
    Family(
        "llama_quantised", "llama", hidden=128, heads=4, kv_heads=2, head=32, ffn=288, sharpness=0.8,
        types={
            "token_embd": Type.Q8_0, "output": Type.Q8_0, "attn_q": Type.Q4_0, "attn_k": Type.Q4_1, "attn_v": Type.Q5_0,
            "attn_output": Type.Q5_1, "ffn_gate": Type.Q4_0, "ffn_up": Type.Q4_1, "ffn_down": Type.Q8_0,
        },
    ),
    Family("qwen2", "qwen2", hidden=128, heads=4, kv_heads=1, head=32, ffn=256, rope_base=1000000.0, type=Type.F16),
    Family("qwen3", "qwen3", hidden=64, heads=4, kv_heads=2, head=32, ffn=192, rope_base=1000000.0, tied=True),
    Family(
        "gemma3", "gemma3", hidden=96, heads=4, kv_heads=2, head=32, ffn=192, rope_base=1000000.0, tied=True,
        window=12, period=2, local_base=5000.0,
    ),
    Family(
        "gemma3_defaults", "gemma3", hidden=64, heads=2, kv_heads=1, head=64, ffn=128, layers=7, rope_base=1000000.0,
        tied=True, type=Type.BF16, window=9, rope_scale=8.0,
    ),
)  # fmt: skip


def by_name(name: str) -> Family:
    return next(family for family in FAMILIES if family.name == name)


def gaussian(label: str, shape: tuple[int, ...], scale: float, mean: float = 0.0) -> Floats:
    """Nearly normal float32 numbers of deviation `scale` round `mean`: sums of four uniform 16-bit integers."""
    count = int(np.prod(shape))
    raw = np.random.PCG64(zlib.crc32(label.encode())).random_raw(count).astype("<u8", copy=False)
    sums = raw.view("<u2").reshape(count, 4).sum(axis=1, dtype=np.int64) - 131070
    deviation = 37837.22  # of such a sum: 65536 * sqrt(4 / 12)
    values: Floats = (sums.astype(np.float64) * (scale / deviation) + mean).astype(np.float32)
    return values.reshape(shape)


def token_ids(family: Family) -> list[int]:
    """The sequence evaluated: LENGTH ids over the whole vocabulary, special ones too."""
    raw = np.random.PCG64(zlib.crc32(f"{family.name} ids".encode())).random_raw(LENGTH)
    return [int(value % VOCABULARY) for value in raw]


def tensors(family: Family) -> dict[str, Floats]:
    """Every tensor of the file by name, float32, shapes in numpy order ([out, in] for matrices).

    Matrices keep the size of what passes (deviation 1 / sqrt(in)); queries and keys are larger, so that attention is
    neither flat nor a single peak and each error of rotation, mask or scale shows in the logits.
    """
    made: dict[str, Floats] = {}

    def matrix(name: str, rows: int, columns: int, gain: float = 1.0) -> None:
        made[f"{name}.weight"] = gaussian(f"{family.name} {name}", (rows, columns), gain / float(columns) ** 0.5)

    def vector(name: str, size: int, mean: float, scale: float) -> None:
        made[name] = gaussian(f"{family.name} {name}", (size,), scale, mean)

    hidden, queries, keys = family.hidden, family.heads * family.head, family.kv_heads * family.head
    embedding_gain = 1.0 if family.architecture == "gemma3" else float(hidden) ** 0.5
    matrix("token_embd", VOCABULARY, hidden, embedding_gain)
    vector("output_norm.weight", hidden, 1.0, 0.2)
    if not family.tied:
        matrix("output", VOCABULARY, hidden)
    if family.rope_factors:
        made["rope_freqs.weight"] = np.array(family.rope_factors, dtype=np.float32)
    for layer in range(family.layers):
        block = f"blk.{layer}."
        vector(f"{block}attn_norm.weight", hidden, 1.0, 0.2)
        matrix(f"{block}attn_q", queries, hidden, family.sharpness)
        matrix(f"{block}attn_k", keys, hidden, family.sharpness)
        matrix(f"{block}attn_v", keys, hidden)
        matrix(f"{block}attn_output", hidden, queries)
        vector(f"{block}ffn_norm.weight", hidden, 1.0, 0.2)
        matrix(f"{block}ffn_gate", family.ffn, hidden)
        matrix(f"{block}ffn_up", family.ffn, hidden)
        matrix(f"{block}ffn_down", hidden, family.ffn, 2.0)
        if family.architecture == "qwen2":
            vector(f"{block}attn_q.bias", queries, 0.0, 0.5)
            vector(f"{block}attn_k.bias", keys, 0.0, 0.5)
            vector(f"{block}attn_v.bias", keys, 0.0, 0.5)
        if family.architecture in {"qwen3", "gemma3"}:
            vector(f"{block}attn_q_norm.weight", family.head, 1.4, 0.3)
            vector(f"{block}attn_k_norm.weight", family.head, 1.4, 0.3)
        if family.architecture == "gemma3":
            vector(f"{block}post_attention_norm.weight", hidden, 1.0, 0.2)
            vector(f"{block}post_ffw_norm.weight", hidden, 1.0, 0.2)
    return made


def type_of(family: Family, name: str) -> Type:
    """The type a tensor is stored in: float32 for vectors, what the family says for matrices."""
    stem, _, last = name.rpartition(".")
    if last != "weight" or "norm" in stem or stem == "rope_freqs":
        return Type.F32
    return family.types.get(stem.rpartition(".")[2], family.type)


def write(family: Family, path: Path) -> None:
    """Write the family's GGUF file to `path`."""
    writer = gguf.GGUFWriter(path, family.architecture)
    add_metadata(writer, family)
    TOKENIZERS[family.architecture](writer)
    for name, values in tensors(family).items():
        kind = type_of(family, name)
        data = values if kind == Type.F32 else gguf.quants.quantize(values, kind)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_metadata(writer: gguf.GGUFWriter, family: Family) -> None:
    """The keys of the architecture; a key whose field is unset is left away, as real files leave it."""
    writer.add_name(f"jackfield golden {family.name}")
    writer.add_context_length(128)
    writer.add_embedding_length(family.hidden)
    writer.add_block_count(family.layers)
    writer.add_feed_forward_length(family.ffn)
    writer.add_head_count(family.heads)
    writer.add_head_count_kv(family.kv_heads)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_freq_base(family.rope_base)
    writer.add_vocab_size(VOCABULARY)
    if family.architecture == "llama":
        writer.add_rope_dimension_count(family.head)
    else:
        writer.add_key_length(family.head)
        writer.add_value_length(family.head)
    if family.rope_scale != 1.0:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(family.rope_scale)
    if family.window:
        writer.add_sliding_window(family.window)
    if family.period:
        writer.add_uint32(f"{family.architecture}.attention.sliding_window_pattern", family.period)
    if family.local_base:
        writer.add_float32(f"{family.architecture}.rope.freq_base_swa", family.local_base)


def byte_letters() -> list[str]:
    """The letter of each byte in byte-level BPE (GPT-2's table): itself where printable, else from 256 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def add_byte_pairs(writer: gguf.GGUFWriter) -> None:
    """A byte-level BPE vocabulary: three special tokens, the 256 bytes, and merges up to VOCABULARY tokens."""
    special = ["<|begin|>", "<|end|>", "<|pad|>"]
    letters = byte_letters()
    pairs = [(left, right) for left in "Ġthaeinors" for right in "thaeinorsd"][: VOCABULARY - 256 - len(special)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*special, *letters, *(left + right for left, right in pairs)])
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (VOCABULARY - 3))
    writer.add_token_merges([f"{left} {right}" for left, right in pairs])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)


def add_pieces(writer: gguf.GGUFWriter) -> None:
    """A SentencePiece vocabulary: pad, end, begin and unknown as in gemma, 256 bytes, pieces with falling scores."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    kinds = [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.UNKNOWN]
    singles = ["▁", *"etaoinshrdlucmfwypvbgkqjxz"]
    pairs = [left + right for left in "▁taehi" for right in "taeoinshr"]
    pieces = list(dict.fromkeys(pairs + singles))[-(VOCABULARY - 256 - len(special)) :]
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 260 + [-float(rank) for rank in range(len(pieces))])
    writer.add_token_types(kinds + [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL] * len(pieces))
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(3)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)


TOKENIZERS: Mapping[str, Callable[[gguf.GGUFWriter], None]] = {
    "llama": add_byte_pairs,
    "qwen2": add_byte_pairs,
    "qwen3": add_byte_pairs,
    "gemma3": add_pieces,
}
