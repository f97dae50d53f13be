"""What a model may forget, and the variants in which it must show: each name is a fault of `family_oracle.Model`."""

from __future__ import annotations

DELTA = {"qwen3next", "qwen3next_joined", "qwen35", "qwen35moe"}
_RWKV6, _RWKV7 = {"rwkv6", "rwkv6_split"}, {"rwkv7", "rwkv7_f16"}
_QWEN6, _QWEN7 = {"rwkv6qwen2", "rwkv6qwen2_f16"}, {"arwkv7", "arwkv7_f16"}

FAULTS = {
    # rotation
    # pairs (i, i + half) for (2i, 2i + 1) and the reverse
    "other rotation": {
        "llama", "llama_quantised", "qwen2", "qwen3", "gemma3", "mistral", "mistral3", "phi", "phi_long", "gemma2",
        "mixtral", "qwen3moe", "gpt_oss", "deepseek2", "deepseek2_lite", *DELTA,
    },
    "no rotation base": {  # 10000 for the file's
        "llama_rope_freqs", "qwen2", "qwen3", "gemma3", "mistral", "mistral3", "mixtral", "qwen3moe", "gpt_oss",
        "qwen3next", "qwen35",
    },
    "no rope_freqs": {"llama_rope_freqs"},
    "whole head turns": {"phi_long", *DELTA},
    "factors of the other length": {"phi_long", "phi_short"},
    "no factors": {"phi_long", "phi_short"},
    "no rotation magnitude": {"phi_long", "phi_short", "gpt_oss"},
    "YaRN's own magnitude": {"mistral3", "deepseek2", "deepseek2_lite"},  # as without yarn_log_multiplier
    "no YaRN": {"mistral3", "gpt_oss", "deepseek2", "deepseek2_lite"},  # no scaling at all
    "linear for YaRN": {"mistral3", "gpt_oss", "deepseek2", "deepseek2_lite"},
    "one rotation base": {"gemma3", "gemma3_defaults"},  # the file's for windowed layers too
    "no rotation scale": {"gemma3_defaults"},
    "rotation scale everywhere": {"gemma3_defaults"},
    # attention
    "heads in other order": {  # query head h with key head h % kv_heads for h // group
        "llama", "llama_quantised", "gemma3", "mistral", "mistral3", "phi_long", "gemma2", "mixtral", "qwen3moe",
        "gpt_oss", "qwen3next", "qwen35", "rwkv6qwen2",
    },
    "qkv by head": {"phi", "phi_long"},  # queries, keys and values of one head together
    "no bias": {"qwen2", "gpt_oss", "rwkv6qwen2"},
    "no head norms": {"qwen3", "gemma3", "qwen3moe", *DELTA},
    "no window": {"gemma3", "gemma3_defaults", "gemma2", "gpt_oss"},
    "window one longer": {"gemma3", "gemma3_defaults", "gemma2", "gpt_oss"},
    "window in every layer": {"gemma3", "gemma3_defaults", "gemma2", "gpt_oss", "mistral", "phi"},
    "windows in the other layers": {"gemma2", "gpt_oss"},
    "scale of hidden": {"qwen3", "gemma3", "mistral3"},  # 1 / sqrt(hidden / heads) for 1 / sqrt(head)
    "no attention cap": {"gemma2"},
    "no sinks": {"gpt_oss"},
    "no temperature": {"mistral3"},
    "no gate of attention": DELTA,
    "gates before queries": DELTA,
    "gates behind all queries": DELTA,  # for one head's behind its query
    # gated delta net
    "no convolution": DELTA,
    "taps reversed": {"mamba", "falcon_mamba", "mamba2", "mamba2_one_group", *DELTA},
    "no activation after the convolution": DELTA,
    "no unit length": DELTA,
    "key heads in other order": DELTA,  # h % key_heads for h // each, and the reverse
    "joined by part": {"qwen3next_joined"},  # all queries, then all keys, for one key head after the other
    "alpha before beta": DELTA,
    "no bias of time": DELTA,
    "no decay": {"mamba", "falcon_mamba", "mamba2", "mamba2_one_group", *DELTA},
    "decay after the token": DELTA,
    "no beta": DELTA,
    "values for their difference": DELTA,  # plain linear attention, without the delta rule
    "no norm of the result": DELTA,
    "no gate of the result": DELTA,
    "sigmoid for SiLU": DELTA,
    # latent attention
    "no query norm": {"deepseek2"},
    "no latent norm": {"deepseek2", "deepseek2_lite"},
    "no scale of YaRN": {"deepseek2", "deepseek2_lite"},  # of the products, by yarn_log_multiplier
    "scale of the latent": {"deepseek2", "deepseek2_lite"},  # 1 / sqrt(rank + turned) for 1 / sqrt(plain + turned)
    "turned part first": {"deepseek2"},
    # feed-forward
    "silu for gelu": {"gemma3", "gemma2"},
    "gelu for silu": {"llama", "qwen2", "qwen3", "mistral", "mistral3", "phi", "mixtral", "rwkv6qwen2"},
    "up before gate": {"phi", "phi_long"},
    # experts
    "one expert less": {
        "mixtral", "qwen3moe", "gpt_oss", "deepseek2", "deepseek2_lite", "qwen3next", "qwen3next_joined",
        "qwen35moe",
    },
    "first experts": {
        "mixtral", "qwen3moe", "gpt_oss", "deepseek2", "deepseek2_lite", "qwen3next", "qwen3next_joined",
        "qwen35moe",
    },
    "weights not normed": {"mixtral", "qwen3moe", "gpt_oss", "deepseek2", "qwen3next", "qwen3next_joined", "qwen35moe"},
    "weights normed": {"deepseek2_lite"},
    "equal weights": {
        "mixtral", "qwen3moe", "gpt_oss", "deepseek2", "deepseek2_lite", "qwen3next", "qwen3next_joined",
        "qwen35moe",
    },
    "softmax for sigmoid": {"deepseek2"},
    "no selection bias": {"deepseek2"},
    "selection bias in the weights": {"deepseek2"},
    "no expert groups": {"deepseek2"},
    "groups by their best": {"deepseek2"},  # one expert for the sum of two
    "groups by their sum": {"deepseek2"},  # all experts
    "no expert scale": {"deepseek2"},
    "no shared experts": {"deepseek2", "deepseek2_lite", "qwen3next", "qwen3next_joined", "qwen35moe"},
    "no gate of the shared expert": {"qwen3next", "qwen3next_joined", "qwen35moe"},
    "no router bias": {"gpt_oss"},
    "no expert bias": {"gpt_oss"},
    "plain SwiGLU": {"gpt_oss"},
    "no limit": {"gpt_oss"},
    # RWKV
    "no embedding norm": _RWKV6 | _RWKV7,
    "no norm biases": _RWKV6 | _RWKV7,
    "no rescaling": {"rwkv6"},
    "two tokens back": _RWKV6 | _RWKV7 | _QWEN6 | _QWEN7,
    "no shift in the feed-forward": _RWKV6 | _RWKV7,
    "no square": _RWKV6 | _RWKV7,
    "no receptance": _RWKV6,
    "fixed mixes": _RWKV6 | _QWEN6,  # the same for all tokens
    "mixes in other order": _RWKV6 | _RWKV7 | _QWEN6 | _QWEN7,
    "fixed decay": _RWKV6 | _RWKV7 | _QWEN6 | _QWEN7,
    "no memory": _RWKV6,  # of more than one token
    "no bonus": _RWKV6 | _RWKV7 | _QWEN7,
    "no norm of heads": _RWKV6 | _RWKV7 | {"arwkv7"},
    "norm over all heads": _RWKV6 | _RWKV7 | {"arwkv7"},
    "epsilon of the other norms": {"rwkv6"},
    "no gate of heads": _RWKV6 | _RWKV7 | _QWEN6 | {"arwkv7_f16"},
    "no first values": _RWKV7 | _QWEN7,
    "the other share of first values": _RWKV7 | _QWEN7,
    "no unit keys": _RWKV7 | _QWEN7,
    "keys without rate": _RWKV7 | _QWEN7,
    "no tanh": _RWKV7,
    "nothing removed": _RWKV7 | _QWEN7,
    "bonus before the norm": _RWKV7,
    "keys without decay": _QWEN6,
    "no scale of products": _QWEN6,
    "silu for sigmoid": _QWEN6,
    # state spaces
    "no convolution bias": {"mamba", "falcon_mamba", "mamba2", "mamba2_one_group"},
    "no silu": {"mamba", "falcon_mamba", "mamba2", "mamba2_one_group"},  # of what is convolved
    "one tap less": {"mamba", "falcon_mamba", "mamba2", "mamba2_one_group"},  # the one for the oldest input
    "no step bias": {"mamba", "falcon_mamba", "mamba2", "mamba2_one_group"},
    "exp for softplus": {"mamba", "falcon_mamba", "mamba2", "mamba2_one_group"},
    "no step of inputs": {"mamba", "falcon_mamba", "mamba2", "mamba2_one_group"},
    "state forgotten": {"mamba", "falcon_mamba", "mamba2", "mamba2_one_group"},  # with every token
    "read for taken": {"mamba", "falcon_mamba", "mamba2", "mamba2_one_group"},  # the two vectors exchanged
    "no skip": {"mamba", "falcon_mamba", "mamba2", "mamba2_one_group"},
    "no gate": {"mamba", "falcon_mamba", "mamba2", "mamba2_one_group"},
    "no norms of parts": {"falcon_mamba"},
    "groups in turn": {"mamba2"},  # head h with group h % groups for h // heads a group
    "one norm": {"mamba2"},  # of all groups together
    "no norm": {"mamba2", "mamba2_one_group"},
    "gate after the norm": {"mamba2", "mamba2_one_group"},
    # around the layers
    # as if they were layers like the others
    "predicting layers evaluated": {
        "qwen3next_predicting", "qwen35_predicting", "qwen35moe_predicting", "deepseek2_predicting",
    },
    "no post norms": {"gemma3", "gemma2"},
    "no embedding scale": {"gemma3", "gemma2"},
    "no logit cap": {"gemma2"},
}  # fmt: skip
