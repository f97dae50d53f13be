"""What a model file says of the model it holds, as data. Nothing here knows metadata, a graph or a device."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "Config",
    "Delta",
    "Encoder",
    "Experts",
    "Latent",
    "Layer",
    "Mamba",
    "Mamba2",
    "QwenRwkv6",
    "RecurrentKind",
    "Rope",
    "Rwkv6",
    "Rwkv7",
    "Temperature",
]


@dataclass(frozen=True)
class Rope:
    """Rotary embedding as `jf.ops.rope` takes it. mode: "normal" or "neox"."""

    mode: str
    n_dims: int
    base: float
    scale: float = 1.0
    ext_factor: float = 0.0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    original_context: int = 0


@dataclass(frozen=True)
class Experts:
    """Feed-forwards of which a router chooses a few for each token.

    inner: width of one expert. shared_inner: of the one every token takes besides, 0 for none; shared_gate: as far as a
        gate of its own lets it.
    gating: "softmax" or "sigmoid", which makes the router's scores weights. normed: the weights of the chosen are
        divided by their sum. scale: times the weights.
    groups: of neighbouring experts; only the groups_used whose two best sum to most are looked at. 1 for all.
    """

    count: int
    used: int
    inner: int
    shared_inner: int = 0
    shared_gate: bool = False
    gating: str = "softmax"
    normed: bool = True
    scale: float = 1.0
    groups: int = 1
    groups_used: int = 1


@dataclass(frozen=True)
class Latent:
    """Attention that keeps one short vector a token for all heads.

    query_rank: of queries, 0 where they come from one matrix. rank: elements of that vector.
    plain, turned: elements of a head's query that stay and that the rotation turns. value: elements of a head's value.
    """

    query_rank: int
    rank: int
    plain: int
    turned: int
    value: int


@dataclass(frozen=True)
class Mamba:
    """A state-space layer whose channels have a step size each.

    inner: channels. state: numbers of the state a channel. taps: of the convolution. rank: of the step sizes.
    normed: what step sizes are made of, and what the state takes in and is read out by, is normed without weights.
    """

    inner: int
    state: int
    taps: int
    rank: int
    normed: bool


@dataclass(frozen=True)
class Mamba2:
    """A state-space layer whose heads have a step size each. groups: of heads, which share what is taken in and read.

    inner, state, taps: as of Mamba.
    """

    inner: int
    state: int
    taps: int
    heads: int
    groups: int


@dataclass(frozen=True)
class Delta:
    """A gated delta net in the place of attention.

    taps: tokens its convolution sees. key_heads: of queries and keys. size: elements of a head, of values too.
    heads: of values; `each` neighbours have one key head, or, in_turn, head h has key head h % key_heads.
    parted: what decays and what moves are made by a matrix each, not by one.
    """

    taps: int
    key_heads: int
    heads: int
    size: int
    in_turn: bool = False
    parted: bool = False

    @property
    def each(self) -> int:
        return self.heads // self.key_heads

    @property
    def values(self) -> int:
        """Elements of all values of a token."""
        return self.heads * self.size

    @property
    def channels(self) -> int:
        """Of the convolution: all queries, keys and values."""
        return 2 * self.key_heads * self.size + self.values


@dataclass(frozen=True)
class Temperature:
    """Queries at position p are multiplied by 1 + growth * log(1 + p // length)."""

    growth: float
    length: int


@dataclass(frozen=True)
class Encoder:
    """What a model of the BERT kind has, which makes a vector of each token and sees the text to both sides.

    layers: how many, all alike. rope: None where the file has learned positions. types: token types, of which a text
    has the first. gated: the feed-forward has a gate (SiLU); without one it is GELU.
    """

    layers: int
    rope: Rope | None
    types: int
    gated: bool


@dataclass(frozen=True)
class Rwkv6:
    """A whole layer of RWKV 6. head: elements of a head.

    mix_rank, decay_rank: of what makes the mixes with the token before, and the decay, depend on the token.
    rescale: behind every so many layers the stream is halved, 0 for none.
    """

    head: int
    mix_rank: int
    decay_rank: int
    rescale: int


@dataclass(frozen=True)
class QwenRwkv6:
    """RWKV 6 in the place of Qwen 2's attention. kv_heads: of keys and values, which groups of heads share.

    head, mix_rank, decay_rank: as of Rwkv6.
    """

    head: int
    kv_heads: int
    mix_rank: int
    decay_rank: int


@dataclass(frozen=True)
class Rwkv7:
    """A layer of RWKV 7. head: elements of a head. whole: the feed-forward is RWKV's too, else Qwen 2's.

    decay_rank, rate_rank, value_rank, gate_rank: of what makes the decay, the rate at which a matrix is corrected, the
        weight of the first layer's values and the gate depend on the token. A gate_rank of 0: there is no gate.
    """

    head: int
    decay_rank: int
    rate_rank: int
    value_rank: int
    gate_rank: int
    whole: bool = True


@dataclass(frozen=True)
class RecurrentKind:
    """What a model's states need. taps: rows before the first that a layer looks back at.

    snapshots: the ops can give the states before the last one too.
    """

    taps: int
    snapshots: bool


@dataclass(frozen=True)
class Layer:
    """What may differ from layer to layer. window: columns of a sliding window, 0 for the whole context.

    mixer: hyperparameters of what stands in the place of attention, None for attention; its type says which it is.
    """

    rope: Rope
    window: int = 0
    experts: Experts | None = None
    mixer: object | None = None


@dataclass(frozen=True)
class Config:
    """A decoder-only transformer of the Llama kind.

    width: of the residual stream. heads, kv_heads, head_size, value_size: of attention, as the cache holds them.
    inner: width of the feed-forward, 0 for layers without one. context: tokens, the most the model was made for.
    eps: of the RMS norms. embedding_scale: factor on token embeddings. attention_scale: factor on query-key products.
    activation: "silu", "gelu" (tanh form) or "limited" (gpt-oss) of the gated feed-forward.
    softcap: on the logits, attention_softcap: on the products of attention, 0 for none.
    head_norms: queries and keys are normed head by head. post_norms: so are what attention and feed-forward give.
    attention_gate: queries come with as many elements more, whose sigmoid is multiplied with what attention gives.
    sinks: a logit a head that takes weight and yields none. fused: one matrix makes queries, keys and values, another
        gate and up. ffn_norm: what the norm before the feed-forward is called.
    encoder: where it is no decoder; `layers` is empty then, and eps of the layer norms.
    pooling: what the file says makes one vector of many: "mean", "cls", "last", "rank", or "" for nothing.
    layer_norms: norms take the mean away and have biases. embedding_norm: the embeddings are normed.
    predicting: layers behind `layers` that the file has for predicting further tokens; nothing here evaluates them.
    """

    architecture: str
    width: int
    heads: int
    kv_heads: int
    head_size: int
    value_size: int
    inner: int
    context: int
    eps: float
    layers: tuple[Layer, ...]
    attention_scale: float
    embedding_scale: float = 1.0
    activation: str = "silu"
    softcap: float = 0.0
    attention_softcap: float = 0.0
    head_norms: bool = False
    post_norms: bool = False
    attention_gate: bool = False
    sinks: bool = False
    fused: bool = False
    ffn_norm: str = "ffn_norm"
    temperature: Temperature | None = None
    latent: Latent | None = None
    layer_norms: bool = False
    embedding_norm: bool = False
    recurrent: RecurrentKind | None = None
    encoder: Encoder | None = None
    pooling: str = ""
    predicting: int = 0
