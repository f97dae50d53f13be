"""The weights of a tiny model, the same on every machine.

They come from raw 64-bit outputs of PCG64 and integer sums, so that no version of numpy, its distributions or the
machine's mathematics library changes a byte. Each tensor has a generator of its own, seeded by the names of variant and
tensor: one more tensor moves no other.
"""

from __future__ import annotations

import zlib

import numpy as np
from family_sizes import VOCABULARY, Delta, Experts, Family, Latent, StateSpace
from gguf import GGMLQuantizationType as Type

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float32]]

HEAD_NORMS = {"qwen3", "qwen3moe", "gemma3", "qwen3next", "qwen35", "qwen35moe"}
POST_NORMS = {"gemma2", "gemma3"}
QKV_BIAS = {"qwen2", "gpt-oss"}
NEVER_SMALL = {"ffn_gate_inp", "ssm_conv1d", "ssm_norm"}
NORMS_BEFORE_FEED = dict.fromkeys(("gpt-oss", "qwen3next", "qwen35", "qwen35moe"), "post_attention_norm")
GATED_SHARED = {"qwen3next", "qwen35moe"}


def gaussian(label: str, shape: tuple[int, ...], scale: float, mean: float = 0.0) -> Floats:
    """Nearly normal float32 numbers of deviation `scale` round `mean`: sums of four uniform 16-bit integers."""
    count = int(np.prod(shape))
    raw = np.random.PCG64(zlib.crc32(label.encode())).random_raw(count).astype("<u8", copy=False)
    sums = raw.view("<u2").reshape(count, 4).sum(axis=1, dtype=np.int64) - 131070
    deviation = 37837.22  # of such a sum: 65536 * sqrt(4 / 12)
    values: Floats = (sums.astype(np.float64) * (scale / deviation) + mean).astype(np.float32)
    return values.reshape(shape)


def tensors(family: Family) -> dict[str, Floats]:
    """Every tensor of the file by name, float32, shapes in numpy order ([out, in] for matrices).

    Matrices keep the size of what passes (deviation 1 / sqrt(in)); queries and keys are larger, so that attention is
    neither flat nor a single peak and each error of rotation, mask or scale shows in the logits.
    """
    return Maker(family).all()


def type_of(family: Family, name: str, values: Floats) -> Type:
    """The type a tensor is stored in: what the family says for matrices, float32 for all that is none."""
    stem, _, last = name.rpartition(".")
    short = stem.rpartition(".")[2]
    if last != "weight" or values.ndim == 1 or short in NEVER_SMALL:
        return Type.F32
    return family.types.get(short, family.type)


class Maker:
    """Makes one family's tensors, in the order of the file."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.made: dict[str, Floats] = {}

    def matrix(self, name: str, *shape: int, gain: float = 1.0, inputs: int = 0) -> None:
        """inputs: how many elements a product sums over, where it is not the last axis."""
        scale = gain / float(inputs or shape[-1]) ** 0.5
        self.made[f"{name}.weight"] = gaussian(f"{self.family.name} {name}", shape, scale)

    def vector(self, name: str, *shape: int, mean: float, scale: float) -> None:
        self.made[name] = gaussian(f"{self.family.name} {name}", shape, scale, mean)

    def norm(self, name: str, size: int) -> None:
        self.vector(f"{name}.weight", size, mean=1.0, scale=0.2)

    def all(self) -> dict[str, Floats]:
        family = self.family
        scaled = family.architecture in POST_NORMS  # the model itself multiplies by sqrt(hidden)
        self.matrix("token_embd", VOCABULARY, family.hidden, gain=1.0 if scaled else float(family.hidden) ** 0.5)
        self.norm("output_norm", family.hidden)
        if not family.tied:
            self.matrix("output", VOCABULARY, family.hidden)
        factors = {"freqs": family.rope_factors, "factors_long": family.long_factors}
        for name, values in (factors | {"factors_short": family.short_factors}).items():
            if values:
                self.made[f"rope_{name}.weight"] = np.array(values, dtype=np.float32)
        for layer in range(family.layers):
            self.layer(layer, f"blk.{layer}.")
        for layer in range(family.layers, family.layers + family.predicting):
            self.predicting(layer, f"blk.{layer}.")
        return self.made

    def layer(self, layer: int, block: str) -> None:
        family, hidden = self.family, self.family.hidden
        self.norm(f"{block}attn_norm", hidden)
        if family.state_space:
            self.state_space(block, family.state_space)
            return
        if family.delta and layer < family.layers and family.delta.without_attention(layer):
            self.delta(block, family.delta)
        elif family.latent:
            self.latent(block, family.latent)
        elif family.architecture == "phi3":
            self.fused(block)
        else:
            self.attention(block)
        self.norm(block + NORMS_BEFORE_FEED.get(family.architecture, "ffn_norm"), hidden)
        if family.experts and family.has_experts(layer):
            self.experts(block, family.experts)
        else:
            self.feed(block)
        self.extras(block)

    def predicting(self, layer: int, block: str) -> None:
        """A layer with attention, whatever the others have, and what makes its input and logits of its own."""
        hidden = self.family.hidden
        self.layer(layer, block)
        self.matrix(f"{block}nextn.eh_proj", hidden, 2 * hidden)
        self.norm(f"{block}nextn.enorm", hidden)
        self.norm(f"{block}nextn.hnorm", hidden)
        self.norm(f"{block}nextn.shared_head_norm", hidden)
        if not self.family.tied:
            self.matrix(f"{block}nextn.embed_tokens", VOCABULARY, hidden)
            self.matrix(f"{block}nextn.shared_head_head", VOCABULARY, hidden)

    def attention(self, block: str) -> None:
        family, hidden = self.family, self.family.hidden
        queries, keys = family.heads * family.head, family.kv_heads * family.head
        gates = queries if family.delta else 0
        self.matrix(f"{block}attn_q", queries + gates, hidden, gain=family.sharpness)
        self.matrix(f"{block}attn_k", keys, hidden, gain=family.sharpness)
        self.matrix(f"{block}attn_v", keys, hidden)
        self.matrix(f"{block}attn_output", hidden, queries)

    def fused(self, block: str) -> None:
        """Queries, keys and values in one matrix. The values get the gain of the others too."""
        family, hidden = self.family, self.family.hidden
        self.matrix(
            f"{block}attn_qkv", (family.heads + 2 * family.kv_heads) * family.head, hidden, gain=family.sharpness
        )
        self.matrix(f"{block}attn_output", hidden, family.heads * family.head)

    def latent(self, block: str, latent: Latent) -> None:
        family, hidden = self.family, self.family.hidden
        queries = family.heads * (latent.plain + latent.turned)
        if latent.queries:
            self.matrix(f"{block}attn_q_a", latent.queries, hidden)
            self.norm(f"{block}attn_q_a_norm", latent.queries)
            self.matrix(f"{block}attn_q_b", queries, latent.queries, gain=family.sharpness)
        else:
            self.matrix(f"{block}attn_q", queries, hidden, gain=family.sharpness)
        self.matrix(f"{block}attn_kv_a_mqa", latent.rank + latent.turned, hidden, gain=family.sharpness)
        self.norm(f"{block}attn_kv_a_norm", latent.rank)
        shape = (family.heads, latent.rank, latent.plain)
        self.matrix(f"{block}attn_k_b", *shape, gain=family.sharpness, inputs=latent.rank)
        self.matrix(f"{block}attn_v_b", family.heads, latent.value, latent.rank)
        self.matrix(f"{block}attn_output", hidden, family.heads * latent.value)

    def state_space(self, block: str, size: StateSpace) -> None:
        """Decays are from nearly none to half a token's; the convolution has no tap that does little."""
        hidden, grouped = self.family.hidden, size.groups * size.state
        channels = size.inner + 2 * grouped
        self.matrix(f"{block}ssm_in", size.inner + channels + size.rank if grouped else 2 * size.inner, hidden)
        self.vector(f"{block}ssm_conv1d.weight", channels, size.taps, mean=0.0, scale=0.6)
        self.vector(f"{block}ssm_conv1d.bias", channels, mean=0.0, scale=0.5)
        if grouped:
            self.vector(f"{block}ssm_dt.bias", size.rank, mean=-0.5, scale=0.7)
            self.vector(f"{block}ssm_a", size.rank, 1, mean=-0.5, scale=0.14)
            self.vector(f"{block}ssm_d", size.rank, 1, mean=1.0, scale=0.7)
            self.vector(f"{block}ssm_norm.weight", size.groups, size.inner // size.groups, mean=1.0, scale=0.2)
        else:
            self.matrix(f"{block}ssm_x", size.rank + 2 * size.state, size.inner, gain=1.5)
            self.matrix(f"{block}ssm_dt", size.inner, size.rank)
            self.vector(f"{block}ssm_dt.bias", size.inner, mean=-0.5, scale=0.7)
            self.vector(f"{block}ssm_a", size.inner, size.state, mean=-0.5, scale=0.14)
            self.vector(f"{block}ssm_d", size.inner, mean=1.0, scale=0.7)
        self.matrix(f"{block}ssm_out", hidden, size.inner, gain=2.0)

    def delta(self, block: str, delta: Delta) -> None:
        """Decays of a token lie round exp(-0.2), within one layer from nearly none to exp(-2)."""
        hidden, keys, values = self.family.hidden, delta.key_heads * delta.size, delta.heads * delta.size
        if delta.joined:
            self.matrix(f"{block}ssm_in", 2 * keys + 2 * values, hidden)
        else:
            self.matrix(f"{block}attn_qkv", 2 * keys + values, hidden)
            self.matrix(f"{block}attn_gate", values, hidden)
        self.matrix(f"{block}ssm_conv1d", 2 * keys + values, delta.taps, gain=1.5)
        self.vector(f"{block}ssm_dt.bias", delta.heads, mean=0.0, scale=1.0)
        self.vector(f"{block}ssm_a", delta.heads, mean=-0.3, scale=0.08)
        if delta.in_turn:
            self.matrix(f"{block}ssm_beta", delta.heads, hidden, gain=1.5)
            self.matrix(f"{block}ssm_alpha", delta.heads, hidden, gain=1.5)
        else:
            self.matrix(f"{block}ssm_ba", 2 * delta.heads, hidden, gain=1.5)
        self.norm(f"{block}ssm_norm", delta.size)
        self.matrix(f"{block}ssm_out", hidden, values, gain=2.0)

    def feed(self, block: str) -> None:
        family, hidden = self.family, self.family.hidden
        if family.architecture == "phi3":
            self.matrix(f"{block}ffn_up", 2 * family.ffn, hidden)
        else:
            self.matrix(f"{block}ffn_gate", family.ffn, hidden)
            self.matrix(f"{block}ffn_up", family.ffn, hidden)
        self.matrix(f"{block}ffn_down", hidden, family.ffn, gain=2.0)

    def experts(self, block: str, experts: Experts) -> None:
        hidden, count, width = self.family.hidden, experts.count, experts.width
        self.matrix(f"{block}ffn_gate_inp", count, hidden, gain=experts.router_gain)
        self.matrix(f"{block}ffn_gate_exps", count, width, hidden, gain=experts.gate_gain)
        self.matrix(f"{block}ffn_up_exps", count, width, hidden, gain=experts.gate_gain)
        self.matrix(f"{block}ffn_down_exps", count, hidden, width, gain=2.0 / experts.gate_gain**2)
        if experts.selection_bias:
            self.vector(f"{block}exp_probs_b.bias", count, mean=0.0, scale=0.3)
        shared = experts.shared * width
        if self.family.architecture in GATED_SHARED:
            shared = experts.shared_width or self.family.ffn
            self.vector(f"{block}ffn_gate_inp_shexp.weight", hidden, mean=0.0, scale=2.0 / float(hidden) ** 0.5)
        if shared:
            self.matrix(f"{block}ffn_gate_shexp", shared, hidden)
            self.matrix(f"{block}ffn_up_shexp", shared, hidden)
            self.matrix(f"{block}ffn_down_shexp", hidden, shared, gain=2.0)
        if self.family.architecture == "gpt-oss":
            self.vector(f"{block}ffn_gate_inp.bias", count, mean=0.0, scale=0.7)
            self.vector(f"{block}ffn_gate_exps.bias", count, width, mean=0.0, scale=0.7)
            self.vector(f"{block}ffn_up_exps.bias", count, width, mean=0.0, scale=0.7)
            self.vector(f"{block}ffn_down_exps.bias", count, hidden, mean=0.0, scale=0.5)

    def extras(self, block: str) -> None:
        """Biases and norms that some architectures have besides."""
        family, hidden, architecture = self.family, self.family.hidden, self.family.architecture
        if architecture in QKV_BIAS:
            self.vector(f"{block}attn_q.bias", family.heads * family.head, mean=0.0, scale=0.5)
            self.vector(f"{block}attn_k.bias", family.kv_heads * family.head, mean=0.0, scale=0.5)
            self.vector(f"{block}attn_v.bias", family.kv_heads * family.head, mean=0.0, scale=0.5)
        if architecture == "gpt-oss":
            self.vector(f"{block}attn_output.bias", hidden, mean=0.0, scale=0.5)
            self.vector(f"{block}attn_sinks.weight", family.heads, mean=1.0, scale=1.0)
        if architecture in HEAD_NORMS and f"{block}attn_k.weight" in self.made:
            self.vector(f"{block}attn_q_norm.weight", family.head, mean=1.4, scale=0.3)
            self.vector(f"{block}attn_k_norm.weight", family.head, mean=1.4, scale=0.3)
        if architecture in POST_NORMS:
            self.norm(f"{block}post_attention_norm", hidden)
            self.norm(f"{block}post_ffw_norm", hidden)
