"""Latent attention: the cache holds one vector a token, of which keys and values of all heads are made.

Nothing is made of it but by the heads' own matrices, so these are moved to the other side: a query goes through its
head's key matrix before it meets the cache, and what attention gives goes through the head's value matrix. All heads
then share one key, and the value is its first part: a view.
Source: DeepSeek-AI 2024, "DeepSeek-V2", section 2.1 and appendix B.
"""

from __future__ import annotations

import numpy as np

import jackfield as jf
from jackfield import ops
from jackfield_llm.graph_parts import Inputs, Parts, last_rows
from jackfield_llm.hyperparameters import Latent, Layer

__all__ = ["LatentAttention"]


class LatentAttention:
    """Builds the attention of a layer: x [rows, width] to [wanted, width]; the cache is filled from all rows."""

    def __init__(self, parts: Parts, latent: Latent) -> None:
        self.parts, self.config, self.latent = parts, parts.config, latent

    def build(self, x: jf.Tensor, number: int, layer: Layer, i: Inputs, wanted: int) -> jf.Tensor:
        c, size, at = self.config, self.latent, f"blk.{number}."
        cache = self.parts.store(f"k{number}", self._key(x, layer, at, i), i.slots)
        attended = ops.attention(
            self._queries(last_rows(x, wanted), layer, at, last_rows(i.positions, wanted)),
            cache,
            cache[:, :, :, : size.rank],
            kv_len=i.kv_len,
            scale=c.attention_scale,
            causal=True,
            window=layer.window,
        )
        matrix = self.parts.weights.get(at + "attn_v_b.weight", (c.heads, size.value, size.rank))
        every = self.parts.table("attention_heads", np.arange(c.heads, dtype=np.int32)[None])
        # Each head has its matrix, as an expert has: so the heads of a row end side by side, without a copy.
        values = ops.linear_experts(
            ops.reshape(attended, shape=(wanted, c.heads, size.rank)),
            matrix,
            ops.broadcast_to(every, shape=(wanted, c.heads)),
        )
        joined = ops.reshape(values, shape=(wanted, c.heads * size.value))
        return self.parts.linear(joined, at + "attn_output", c.width)

    def _key(self, x: jf.Tensor, layer: Layer, at: str, i: Inputs) -> jf.Tensor:
        """The vector of each token, normed, and the part that turns: [1, rows, 1, rank + turned]."""
        size, rows = self.latent, x.shape[0]
        both = self.parts.linear(x, at + "attn_kv_a_mqa", size.rank + size.turned)
        latent = self.parts.norm(both[:, : size.rank], at + "attn_kv_a_norm")
        turned = ops.reshape(both[:, size.rank :], shape=(1, rows, 1, size.turned))
        turned = self.parts.rope(turned, layer.rope, i.positions)
        return ops.concatenate(ops.reshape(latent, shape=(1, rows, 1, size.rank)), turned, axis=3)

    def _queries(self, x: jf.Tensor, layer: Layer, at: str, positions: jf.Tensor) -> jf.Tensor:
        """As the cache's vectors want them: [1, heads, rows, rank + turned]."""
        c, size, rows = self.config, self.latent, x.shape[0]
        whole = size.plain + size.turned
        if size.query_rank:
            low = self.parts.norm(self.parts.linear(x, at + "attn_q_a", size.query_rank), at + "attn_q_a_norm")
            q = self.parts.linear(low, at + "attn_q_b", c.heads * whole)
        else:
            q = self.parts.linear(x, at + "attn_q", c.heads * whole)
        q = ops.reshape(q, shape=(1, rows, c.heads, whole))
        plain = ops.transpose(ops.reshape(q, shape=(rows, c.heads, whole))[:, :, : size.plain], axes=(1, 0, 2))
        matrix = self.parts.weights.get(at + "attn_k_b.weight", (c.heads, size.rank, size.plain))
        moved = ops.reshape(ops.linear(plain, matrix), shape=(1, c.heads, rows, size.rank))
        turned = self.parts.rope(q[:, :, :, size.plain :], layer.rope, positions)
        return ops.concatenate(moved, ops.transpose(turned, axes=(0, 2, 1, 3)), axis=3)
