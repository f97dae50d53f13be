"""The tiny RWKV models: which there are, their metadata, and their weights."""

from __future__ import annotations

import gguf
from family_sizes import EPSILON, VOCABULARY, Family, Rwkv
from family_tensors import Floats, Maker
from gguf import GGMLQuantizationType as Type

__all__ = ["RWKV", "add_rwkv_metadata", "rwkv_tensors"]

_PLAIN = {"time_mix_lerp_fused": Type.F32, "time_mix_first": Type.F32}  # tables, not matrices
_MIXES = "wkvrg"
"""The order of the five mixes of version 6."""

RWKV = (
    Family(
        "rwkv6", "rwkv6", hidden=160, heads=0, kv_heads=0, head=0, ffn=224, tokenizer="world",
        rwkv=Rwkv(head=32, decay=24, mix=16, rescale=1),
    ),
    Family(
        "rwkv6_split", "rwkv6", hidden=64, heads=0, kv_heads=0, head=0, ffn=224, type=Type.F16,
        types={**_PLAIN, "time_mix_w1": Type.F32, "time_mix_w2": Type.F32},
        rwkv=Rwkv(head=16, decay=32, mix=8, fused=False),
    ),
    Family(
        "rwkv7", "rwkv7", hidden=192, heads=0, kv_heads=0, head=0, ffn=192, tokenizer="world",
        rwkv=Rwkv(head=64, decay=24, rate=16, residual=8, gate=40),
    ),
    Family(
        "rwkv7_f16", "rwkv7", hidden=128, heads=0, kv_heads=0, head=0, ffn=160, layers=3, type=Type.F16, types=_PLAIN,
        rwkv=Rwkv(head=64, decay=32, rate=16, residual=32, gate=32),
    ),
    Family(
        "rwkv6qwen2", "rwkv6qwen2", hidden=128, heads=0, kv_heads=2, head=0, ffn=160,
        rwkv=Rwkv(head=16, decay=24, mix=16, biases=True),
    ),
    Family(
        "rwkv6qwen2_f16", "rwkv6qwen2", hidden=64, heads=0, kv_heads=0, head=0, ffn=224, type=Type.F16, types=_PLAIN,
        rwkv=Rwkv(head=32, decay=32, mix=32),
    ),
    Family(
        "arwkv7", "arwkv7", hidden=192, heads=0, kv_heads=0, head=0, ffn=160,
        rwkv=Rwkv(head=64, decay=24, rate=16, residual=8, gate=0),
    ),
    Family(
        "arwkv7_f16", "arwkv7", hidden=128, heads=0, kv_heads=0, head=0, ffn=224, type=Type.F16, types=_PLAIN,
        rwkv=Rwkv(head=64, decay=32, rate=16, residual=32, gate=32, head_norms=False),
    ),
)  # fmt: skip


def add_rwkv_metadata(writer: gguf.GGUFWriter, family: Family) -> None:
    """All keys of the architecture. A head count of 0 is written, as in real files: llama.cpp wants the key."""
    rwkv = family.rwkv
    assert rwkv
    writer.add_name(f"jackfield golden {family.name}")
    writer.add_context_length(family.context)
    writer.add_embedding_length(family.hidden)
    writer.add_block_count(family.layers)
    writer.add_feed_forward_length(family.ffn)
    writer.add_head_count(0)
    if is_hybrid(family):
        writer.add_layer_norm_rms_eps(EPSILON)
        writer.add_token_shift_count(1)
    else:
        writer.add_layer_norm_eps(EPSILON)
    if family.kv_heads:
        writer.add_head_count_kv(family.kv_heads)
    writer.add_vocab_size(VOCABULARY)
    writer.add_wkv_head_size(rwkv.head)
    if rwkv.rescale:
        writer.add_rescale_every_n_layers(rwkv.rescale)
    if rwkv.mix:
        writer.add_time_mix_extra_dim(rwkv.mix)
        writer.add_time_decay_extra_dim(rwkv.decay)
    else:
        writer.add_decay_lora_rank(rwkv.decay)
        writer.add_iclr_lora_rank(rwkv.rate)
        writer.add_value_residual_mix_lora_rank(rwkv.residual)
        writer.add_gate_lora_rank(rwkv.gate)


def is_hybrid(family: Family) -> bool:
    """The layers are Qwen 2's, with RWKV in the place of attention."""
    return not family.architecture.startswith("rwkv") or family.architecture.endswith("qwen2")


def rwkv_tensors(family: Family) -> dict[str, Floats]:
    """Every tensor of the file by name. Values are small, so that the constant in the norm of heads matters."""
    assert family.rwkv
    return _Maker(family, family.rwkv).all()


class _Maker(Maker):
    """Makes the tensors of an RWKV model."""

    def __init__(self, family: Family, rwkv: Rwkv) -> None:
        super().__init__(family)
        self.rwkv = rwkv

    def all(self) -> dict[str, Floats]:
        if is_hybrid(self.family):
            return super().all()
        self.both("token_embd_norm")
        made = super().all()
        self.vector("output_norm.bias", self.family.hidden, mean=0.0, scale=0.3)
        return made

    def both(self, name: str) -> None:
        """Weight and bias of a norm."""
        self.norm(name, self.family.hidden)
        self.vector(f"{name}.bias", self.family.hidden, mean=0.0, scale=0.3)

    def row(self, name: str, mean: float, scale: float) -> None:
        self.vector(f"{name}.weight", self.family.hidden, mean=mean, scale=scale)

    def layer(self, layer: int, block: str) -> None:
        hidden, hybrid = self.family.hidden, is_hybrid(self.family)
        shared = (self.family.kv_heads or hidden // self.rwkv.head) * self.rwkv.head
        small = 1.0 if hybrid else 0.05
        for name, rows, gain in (("receptance", hidden, 1.0), ("key", shared, 1.0), ("value", shared, small)):
            self.matrix(f"{block}time_mix_{name}", rows, hidden, gain=gain)
            if self.rwkv.biases:
                self.vector(f"{block}time_mix_{name}.bias", rows, mean=0.0, scale=0.5)
        self.matrix(f"{block}time_mix_output", hidden, hidden)
        if hybrid:
            self.norm(f"{block}attn_norm", hidden)
            self.norm(f"{block}ffn_norm", hidden)
            self.feed(block)
        else:
            self.both(f"{block}attn_norm")
            self.both(f"{block}attn_norm_2")
            self.channel_mix(block)
        if self.rwkv.mix:
            self.sixth(block)
        else:
            self.seventh(block, layer)

    def channel_mix(self, block: str) -> None:
        hidden, ffn = self.family.hidden, self.family.ffn
        self.row(f"{block}channel_mix_lerp_k", 0.5, 0.3)
        self.matrix(f"{block}channel_mix_key", ffn, hidden)
        self.matrix(f"{block}channel_mix_value", hidden, ffn)
        if self.rwkv.mix:
            self.row(f"{block}channel_mix_lerp_r", 0.5, 0.3)
            self.matrix(f"{block}channel_mix_receptance", hidden, hidden)

    def low_rank(self, block: str, letter: str, rank: int, gain: float) -> None:
        hidden = self.family.hidden
        self.matrix(f"{block}time_mix_{letter}1", rank, hidden)
        self.matrix(f"{block}time_mix_{letter}2", hidden, rank, gain=gain)

    def sixth(self, block: str) -> None:
        hidden, rwkv = self.family.hidden, self.rwkv
        self.row(f"{block}time_mix_lerp_x", 0.5, 0.3)
        if rwkv.fused:
            self.vector(f"{block}time_mix_lerp_fused.weight", 5, 1, 1, hidden, mean=0.5, scale=0.4)
        else:
            for letter in _MIXES:
                self.row(f"{block}time_mix_lerp_{letter}", 0.5, 0.4)
        self.matrix(f"{block}time_mix_w1", 5 * rwkv.mix, hidden)
        self.matrix(f"{block}time_mix_w2", 5, hidden, rwkv.mix, gain=0.5)
        if not is_hybrid(self.family):
            self.vector(f"{block}time_mix_first.weight", hidden // rwkv.head, rwkv.head, mean=0.5, scale=0.5)
            self.both(f"{block}time_mix_ln")
        self.row(f"{block}time_mix_decay", -1.5, 0.8)
        self.low_rank(block, "decay_w", rwkv.decay, 0.7)
        self.matrix(f"{block}time_mix_gate", hidden, hidden)

    def seventh(self, block: str, layer: int) -> None:
        """Layer 0 has the tensors for the weight of the first layer's values too, which nobody reads."""
        hidden, rwkv = self.family.hidden, self.rwkv
        mixes = 6 if rwkv.gate else 5
        self.vector(f"{block}time_mix_lerp_fused.weight", mixes, 1, 1, hidden, mean=0.5, scale=0.4)
        if rwkv.head_norms:
            self.both(f"{block}time_mix_ln")
        self.row(f"{block}time_mix_w0", -0.5, 1.0)
        self.low_rank(block, "w", rwkv.decay, 1.0)
        self.row(f"{block}time_mix_a0", 0.0, 0.7)
        self.low_rank(block, "a", rwkv.rate, 1.0)
        self.row(f"{block}time_mix_v0", 0.0, 0.7)
        self.low_rank(block, "v", rwkv.residual if layer else rwkv.rate, 1.0)
        if rwkv.gate:
            self.low_rank(block, "g", rwkv.gate, 2.0)
        self.row(f"{block}time_mix_k_k", 0.85, 0.3)
        self.row(f"{block}time_mix_k_a", 1.0, 0.3)
        counted = 0.1 if is_hybrid(self.family) else 1.0  # beside larger values
        self.row(f"{block}time_mix_r_k", counted, counted)
