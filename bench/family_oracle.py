"""Every recorded family in float64 numpy, as plain as can be: a second opinion on the recorded logits.

`make_family_goldens.py` runs it beside llama.cpp. Run whole it must agree; with one fault of `family_faults.FAULTS` it
must not, which shows that the recorded logits can tell a right model from one that forgot something.
"""

from __future__ import annotations

import numpy as np
from family_faults import FAULTS
from oracle_attention import Attention
from oracle_delta import DeltaNet
from oracle_experts import Feed
from oracle_file import Array, File
from oracle_latent import LatentAttention
from oracle_rwkv import Rwkv
from oracle_state_space import STATE_SPACES

__all__ = ["FAULTS", "Array", "Model"]

SCALED = {"gemma2", "gemma3"}
"""Architectures that multiply embeddings by sqrt(hidden) and norm what attention and feed-forward give."""
DELTA = {"qwen3next", "qwen35", "qwen35moe"}
POST_NAMED = {"gpt-oss", *DELTA}
"""Architectures whose norm before the feed-forward is called after the attention it follows."""


class Model:
    """One file's metadata and tensors, evaluated at all positions of one sequence."""

    def __init__(self, metadata: dict[str, object], weights: dict[str, Array], fault: str = "") -> None:
        self.file, self.fault = File(metadata, weights, fault), fault
        latent = self.file.size("attention.kv_lora_rank") > 0
        self.attention = LatentAttention(self.file) if latent else Attention(self.file)
        self.delta = DeltaNet(self.file) if self.file.architecture in DELTA else None
        self.feed = Feed(self.file)
        kind = STATE_SPACES.get(self.file.architecture)
        self.state_space = kind(self.file) if kind else None
        self.scaled = self.file.architecture in SCALED

    def logits(self, ids: list[int]) -> Array:
        """[ids, vocabulary]."""
        file = self.file
        if "rwkv" in file.architecture:
            return Rwkv(file).logits(ids)
        x = file.weights["token_embd.weight"][ids]
        if self.scaled and self.fault != "no embedding scale":
            x = x * np.float64(file.hidden) ** 0.5
        before_feed = "post_attention_norm" if file.architecture in POST_NAMED else "ffn_norm"
        for layer in range(file.layers):
            if self.state_space:
                x = x + self.state_space(file.norm(x, f"blk.{layer}.attn_norm"), layer)
                continue
            mixer = self.delta if self.delta and file.has(f"blk.{layer}.ssm_conv1d") else self.attention
            attended = mixer(file.norm(x, f"blk.{layer}.attn_norm"), layer)
            x = x + self.post_norm(attended, f"blk.{layer}.post_attention_norm")
            fed = self.feed(file.norm(x, f"blk.{layer}.{before_feed}"), layer)
            x = x + self.post_norm(fed, f"blk.{layer}.post_ffw_norm")
        out = file.weights.get("output.weight", file.weights["token_embd.weight"])
        logits: Array = file.norm(x, "output_norm") @ out.T
        cap = file.number("final_logit_softcapping")
        return cap * np.tanh(logits / cap) if cap and self.fault != "no logit cap" else logits

    def post_norm(self, x: Array, name: str) -> Array:
        return self.file.norm(x, name) if self.scaled and self.fault != "no post norms" else x
