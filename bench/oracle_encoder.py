"""The encoders bert and nomic-bert in float64, as plain as can be, and the ways of making one vector of many."""

from __future__ import annotations

import numpy as np
from oracle_file import Array, File, softmax
from oracle_rotation import Rotation

FAULTS = {
    "no positions": {"bert", "bert_fused", "bert_bare"},
    "positions one later": {"bert", "bert_fused", "bert_bare"},
    "other rotation": {"nomic_bert", "nomic_bert_half"},
    "no rotation base": {"nomic_bert", "nomic_bert_half"},
    "no rotation": {"nomic_bert", "nomic_bert_half"},
    "no token types": {"bert", "bert_bare", "nomic_bert", "nomic_bert_half"},
    "second token type": {"bert", "bert_bare", "nomic_bert"},
    "no embedding norm": {"bert", "bert_fused", "bert_bare", "nomic_bert", "nomic_bert_half"},
    "causal": {"bert", "bert_fused", "bert_bare", "nomic_bert", "nomic_bert_half"},
    "norms before": {"bert", "bert_fused", "bert_bare", "nomic_bert", "nomic_bert_half"},
    "rms norms": {"bert", "bert_fused", "bert_bare", "nomic_bert", "nomic_bert_half"},
    "no norm biases": {"bert", "bert_fused", "bert_bare", "nomic_bert", "nomic_bert_half"},
    "epsilon of 1e-12": {"bert", "bert_fused", "bert_bare", "nomic_bert", "nomic_bert_half"},
    "no bias": {"bert", "bert_fused"},
    "qkv by head": {"bert_fused", "nomic_bert"},
    "scale of hidden": {"bert", "bert_fused", "bert_bare", "nomic_bert", "nomic_bert_half"},
    "silu for gelu": {"bert", "bert_fused", "bert_bare"},
    "gelu for silu": {"nomic_bert", "nomic_bert_half"},
    "up before gate": {"nomic_bert", "nomic_bert_half"},
}
"""What an encoder may forget, and the variants in which it must show."""


class Encoder:
    """One file's metadata and tensors, evaluated at all positions of one sequence."""

    def __init__(self, metadata: dict[str, object], weights: dict[str, Array], fault: str = "") -> None:
        self.file, self.fault = File(metadata, weights, fault), fault
        self.epsilon = 1e-12 if fault == "epsilon of 1e-12" else self.file.number("attention.layer_norm_epsilon")
        self.rotates = "position_embd.weight" not in weights
        self.rotation = Rotation(self.file, self.file.head, local=False)

    def tokens(self, ids: list[int]) -> Array:
        """[ids, hidden]: what is made of each token."""
        x = self.embedded(ids)
        for layer in range(self.file.layers):
            x = self.layer(x, f"blk.{layer}.")
        return x

    def embedded(self, ids: list[int]) -> Array:
        weights, fault = self.file.weights, self.fault
        x = weights["token_embd.weight"][ids]
        if "token_types.weight" in weights and fault != "no token types":
            x = x + weights["token_types.weight"][int(fault == "second token type")]
        if not self.rotates and fault != "no positions":
            first = int(fault == "positions one later")
            x = x + weights["position_embd.weight"][first : first + len(ids)]
        return x if fault == "no embedding norm" else self.norm(x, "token_embd_norm")

    def norm(self, x: Array, name: str) -> Array:
        weights = self.file.weights
        centred = x if self.fault == "rms norms" else x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + self.epsilon)
        bias = 0.0 if self.fault == "no norm biases" else weights[f"{name}.bias"]
        normed: Array = scaled * weights[f"{name}.weight"] + bias
        return normed

    def layer(self, x: Array, at: str) -> Array:
        if self.fault == "norms before":
            x = x + self.attention(self.norm(x, f"{at}attn_output_norm"), at)
            return x + self.feed(self.norm(x, f"{at}layer_output_norm"), at)
        x = self.norm(x + self.attention(x, at), f"{at}attn_output_norm")
        return self.norm(x + self.feed(x, at), f"{at}layer_output_norm")

    def attention(self, x: Array, at: str) -> Array:
        file = self.file
        q, k, v = self.projections(x, at)
        if self.rotates and self.fault != "no rotation":
            q, k = self.rotation.turn(q), self.rotation.turn(k)
        width = file.hidden if self.fault == "scale of hidden" else file.head
        products = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(width)
        if self.fault == "causal":
            products = np.where(np.tri(len(x), dtype=bool), products, -np.inf)
        mixed = np.einsum("hij,jhd->ihd", softmax(products), v)
        return file.linear(mixed.reshape(len(x), -1), f"{at}attn_output")

    def projections(self, x: Array, at: str) -> tuple[Array, Array, Array]:
        """Queries, keys and values, [positions, heads, head] each."""
        file = self.file
        if not file.has(f"{at}attn_qkv"):
            found = [file.linear(x, f"{at}attn_{name}") for name in "qkv"]
        elif self.fault == "qkv by head":
            by_head = file.linear(x, f"{at}attn_qkv").reshape(len(x), file.heads, 3, file.head)
            found = [by_head[:, :, part] for part in range(3)]
        else:
            found = np.split(file.linear(x, f"{at}attn_qkv"), 3, axis=-1)
        q, k, v = (part.reshape(len(x), file.heads, file.head) for part in found)
        return q, k, v

    def feed(self, x: Array, at: str) -> Array:
        file = self.file
        up = file.linear(x, f"{at}ffn_up")
        if not file.has(f"{at}ffn_gate"):
            inner = silu(up) if self.fault == "silu for gelu" else gelu(up)
            return file.linear(inner, f"{at}ffn_down")
        gate = file.linear(x, f"{at}ffn_gate")
        if self.fault == "up before gate":
            gate, up = up, gate
        return file.linear((gelu if self.fault == "gelu for silu" else silu)(gate) * up, f"{at}ffn_down")


def silu(x: Array) -> Array:
    y: Array = x / (1 + np.exp(-x))
    return y


def gelu(x: Array) -> Array:
    """The form with a tangent, which llama.cpp uses."""
    y: Array = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return y


def pooled(tokens: Array, pooling: str) -> Array:
    """[hidden] of [ids, hidden]."""
    return {"mean": tokens.mean(0), "cls": tokens[0], "last": tokens[-1]}[pooling]
