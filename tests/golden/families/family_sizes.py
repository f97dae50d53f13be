"""What a tiny model's file says of itself: sizes, and what makes one variant different from another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gguf import ExpertGatingFuncType
from gguf import GGMLQuantizationType as Type

VOCABULARY = 320
LENGTH = 40
EPSILON = 1e-5


@dataclass(frozen=True)
class Experts:
    """Feed-forwards of which a token takes a few."""

    count: int
    used: int
    width: int
    """Of one expert."""
    width_key: bool = True
    """The file has `expert_feed_forward_length`; without it the width is the layer's `feed_forward_length`."""
    dense: int = 0
    """Leading layers without experts."""
    shared: int = 0
    """Experts every token takes, as one of so many times the width; 0 leaves the key away."""
    shared_width: int = 0
    """Of the one every token takes, which has a gate of its own; 0 leaves the key away."""
    gating: ExpertGatingFuncType | None = None
    norm: bool = False
    """The weights of the chosen are divided by their sum."""
    scale: float = 0.0
    """Times the weights; 0 leaves the key away."""
    groups: int = 0
    """Groups of experts, of which only `groups_used` are looked at; 0 leaves both keys away."""
    groups_used: int = 0
    selection_bias: bool = False
    """`exp_probs_b.bias`: added for the choice, not for the weights."""
    router_gain: float = 1.5
    gate_gain: float = 1.0


@dataclass(frozen=True)
class Latent:
    """Attention whose keys and values are stored as one short vector a token."""

    queries: int
    """Rank of queries; 0: they come from one matrix."""
    rank: int
    """Of keys and values."""
    plain: int
    """Elements of a head's query and key that do not turn."""
    turned: int
    """Elements that do; the key's are the same for all heads."""
    value: int


@dataclass(frozen=True)
class Rwkv:
    """Layers that mix each token with the one before it and keep a matrix a head, instead of attention."""

    head: int
    decay: int
    """Rank of what makes the decay depend on the token."""
    mix: int = 0
    """Version 6: rank of what makes the mixes with the token before depend on the token."""
    fused: bool = True
    """Version 6: the five mixes of a layer stand in one tensor, as newer converters write them."""
    rescale: int = 0
    """Version 6: every so many layers the stream is halved; 0 leaves the key away."""
    rate: int = 0
    """Version 7: rank of the rate at which the matrix is corrected."""
    residual: int = 0
    """Version 7: rank of the weight of the first layer's values."""
    gate: int = 0
    """Version 7: rank of the gate; 0 is none."""
    head_norms: bool = True
    """Version 7: what is read is normed head by head."""
    biases: bool = False
    """Version 6 in Qwen's layers: receptance, keys and values have biases."""


@dataclass(frozen=True)
class StateSpace:
    """Layers of Mamba, which have neither attention nor a feed-forward of their own."""

    inner: int
    state: int
    rank: int
    """Of the step sizes; in mamba2, where each head has one step size, the heads."""
    taps: int
    """Of the convolution."""
    groups: int = 0
    """Groups of heads that share what is taken in and read out; 0 is the first Mamba, which has none."""
    normed: bool = False
    """Step sizes, inputs and outputs are normed without weights."""


@dataclass(frozen=True)
class Delta:
    """Layers with a gated delta net, whose state is a matrix a head, between layers with attention."""

    taps: int
    """Tokens the convolution in front sees, the last one included."""
    key_heads: int
    heads: int
    """Of values; the heads `i * (heads / key_heads)` and so many on have key head `i`, unless it is their turn."""
    size: int
    """Elements of a head."""
    period: int = 0
    """Every `period`-th layer has attention: `full_attention_interval`; 0 leaves the key away."""
    recurrent: tuple[bool, ...] = ()
    """Which layers have none, where the file lists them, those that predict too: `attention.recurrent_layers`."""
    in_turn: bool = False
    """Value head `h` has key head `h % key_heads`; what decays and what moves have a matrix each."""
    joined: bool = False
    """Queries, keys, values and gates of one key head after the other in one matrix, `ssm_in`."""

    def without_attention(self, layer: int) -> bool:
        return self.recurrent[layer] if self.recurrent else (layer + 1) % self.period != 0


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
    predicting: int = 0
    """Layers behind these, which predict further tokens and have no part in the logits; 0 leaves the key away."""
    context: int = 128
    rope_base: float = 10000.0
    sharpness: float = 1.4
    """Gain of queries and keys: larger makes attention more decided, and errors of rounding larger."""
    tied: bool = False
    """No `output.weight`: logits come from `token_embd.weight`."""
    type: Type = Type.F32
    types: Mapping[str, Type] = field(default_factory=dict)
    """Types of matrices by the name's last part but one (`attn_q`), over `type`."""
    tokenizer: str = "pairs"
    """"pairs", "pieces" or "world": byte-level BPE, SentencePiece or byte strings."""
    rope_dims: int = 0
    """Elements of a head that turn, where the file says it; 0 leaves the key away (then all do)."""
    rope_sections: tuple[int, ...] = ()
    """Pairs that turn by each position of a picture, which are all the same in a text; empty leaves the key away."""
    rope_factors: tuple[float, ...] = ()
    """Divisors of the rotation's frequencies, one a pair: the tensor `rope_freqs.weight`."""
    long_factors: tuple[float, ...] = ()
    """Likewise for contexts longer than `original_context`: the tensor `rope_factors_long.weight`."""
    short_factors: tuple[float, ...] = ()
    """And for shorter ones."""
    rope_scale: float = 1.0
    """Linear scaling: positions of layers without a window are divided by it."""
    yarn: float = 0.0
    """Factor of YaRN scaling; 0 is none."""
    log_multiplier: float = 0.0
    """`yarn_log_multiplier`; 0 leaves the key away."""
    original_context: int = 0
    """0 leaves the key away."""
    attn_factor: float = 0.0
    """Times cosine and sine; 0 leaves the key away."""
    temperature: float = 0.0
    """Growth of the queries with the logarithm of how often the original context has passed; 0 is none."""
    window: int = 0
    """Keys a windowed layer sees, itself included; 0 is no window."""
    period: int = 0
    """Every `period`-th layer has no window; 0 leaves the key away."""
    local_base: float = 0.0
    """Rotation base of windowed layers; 0 leaves the key away."""
    attention_cap: float = 0.0
    """Soft cap of attention's products; 0 leaves the key away."""
    logit_cap: float = 0.0
    experts: Experts | None = None
    latent: Latent | None = None
    rwkv: Rwkv | None = None
    state_space: StateSpace | None = None
    delta: Delta | None = None

    def has_experts(self, layer: int) -> bool:
        return self.experts is not None and layer >= self.experts.dense
