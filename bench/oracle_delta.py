"""A gated delta net in float64: projections, a convolution over tokens, a matrix of each head that moves, a gated norm.

Yang et al. 2024, "Gated delta networks: improving Mamba2 with delta rule"; how heads and projections are ordered was
read off llama.cpp.
"""

from __future__ import annotations

import numpy as np
from oracle_file import Array, File, sigmoid


class DeltaNet:
    """All positions of one sequence, token after token."""

    def __init__(self, file: File) -> None:
        self.file, self.fault = file, file.fault
        self.size = file.size("ssm.state_size")
        self.key_heads, self.heads = file.size("ssm.group_count"), file.size("ssm.time_step_rank")
        self.each = self.heads // self.key_heads
        self.in_turn = file.architecture != "qwen3next"

    def __call__(self, x: Array, layer: int) -> Array:
        at = f"blk.{layer}."
        before, gates = self.projections(x, at)
        keys = self.key_heads * self.size
        q, k, v = np.split(self.convolved(before, at), [keys, 2 * keys], axis=-1)
        q, k = self.normed(q), self.normed(k)
        decay, beta = self.decay_and_beta(x, at)
        y = self.scanned(q, k, v.reshape(len(x), self.heads, self.size), decay, beta)
        return self.file.linear(self.gated(y, gates, at).reshape(len(x), -1), f"{at}ssm_out")

    def projections(self, x: Array, at: str) -> tuple[Array, Array]:
        """What the convolution takes, [positions, queries + keys + values], and gates [positions, heads, size]."""
        keys, values = self.key_heads * self.size, self.heads * self.size
        if self.file.has(f"{at}attn_qkv"):
            before, gates = self.file.linear(x, f"{at}attn_qkv"), self.file.linear(x, f"{at}attn_gate")
        elif self.fault == "joined by part":
            before, gates = np.split(self.file.linear(x, f"{at}ssm_in"), [2 * keys + values], axis=-1)
        else:
            by_head = self.file.linear(x, f"{at}ssm_in").reshape(len(x), self.key_heads, -1)
            bounds = np.cumsum([self.size, self.size, self.each * self.size])
            q, k, v, gates = (part.reshape(len(x), -1) for part in np.split(by_head, bounds, axis=-1))
            before = np.concatenate([q, k, v], axis=-1)
        return before, gates.reshape(len(x), self.heads, self.size)

    def convolved(self, x: Array, at: str) -> Array:
        """Each channel over its last tokens, the newest with the last tap, then SiLU."""
        if self.fault == "no convolution":
            return x
        taps = self.file.weights[f"{at}ssm_conv1d.weight"]
        if self.fault == "taps reversed":
            taps = taps[:, ::-1]
        padded = np.concatenate([np.zeros((taps.shape[1] - 1, x.shape[1])), x])
        y: Array = sum(padded[j : j + len(x)] * taps[:, j] for j in range(taps.shape[1]))
        return y if self.fault == "no activation after the convolution" else y * sigmoid(y)

    def normed(self, x: Array) -> Array:
        """Queries or keys of unit length, [positions, heads of values, size]."""
        x = x.reshape(len(x), self.key_heads, self.size)
        if self.fault != "no unit length":
            x = x / np.sqrt((x * x).sum(-1, keepdims=True) + self.file.epsilon)
        heads = np.arange(self.heads)
        in_turn = self.in_turn != (self.fault == "key heads in other order")
        return x[:, heads % self.key_heads if in_turn else heads // self.each]

    def decay_and_beta(self, x: Array, at: str) -> tuple[Array, Array]:
        """What is left of a head's matrix, and how far it moves: [positions, heads] each."""
        if self.in_turn:
            beta, alpha = self.file.linear(x, f"{at}ssm_beta"), self.file.linear(x, f"{at}ssm_alpha")
        else:
            both = self.file.linear(x, f"{at}ssm_ba").reshape(len(x), self.key_heads, 2, self.each)
            beta, alpha = (both[:, :, part].reshape(len(x), -1) for part in (0, 1))
        if self.fault == "alpha before beta":
            beta, alpha = alpha, beta
        if self.fault != "no bias of time":
            alpha = alpha + self.file.weights[f"{at}ssm_dt.bias"]
        decay = np.exp(np.log1p(np.exp(alpha)) * self.file.weights[f"{at}ssm_a"])
        ones = np.ones_like(decay)
        return ones if self.fault == "no decay" else decay, ones if self.fault == "no beta" else sigmoid(beta)

    def scanned(self, q: Array, k: Array, v: Array, decay: Array, beta: Array) -> Array:
        matrix, y = np.zeros((self.heads, self.size, self.size)), np.zeros_like(v)
        for t in range(len(v)):
            if self.fault != "decay after the token":
                matrix = matrix * decay[t, :, None, None]
            answer = np.einsum("hji,hi->hj", matrix, k[t])
            if self.fault == "values for their difference":
                answer = np.zeros_like(answer)
            matrix = matrix + np.einsum("hj,hi->hji", beta[t, :, None] * (v[t] - answer), k[t])
            y[t] = np.einsum("hji,hi->hj", matrix, q[t])
            if self.fault == "decay after the token":
                matrix = matrix * decay[t, :, None, None]
        return y if self.fault == "no scale of queries" else y / np.sqrt(self.size)

    def gated(self, y: Array, gates: Array, at: str) -> Array:
        """Normed head by head, times SiLU of the gates."""
        normed = y if self.fault == "no norm of the result" else self.file.norm(y, f"{at}ssm_norm")
        if self.fault == "no gate of the result":
            return normed
        return normed * sigmoid(gates) * (1 if self.fault == "sigmoid for SiLU" else gates)
