"""Attention of heads: grouped, from three matrices or one, normed, turned, windowed, capped, with sinks."""

from __future__ import annotations

import numpy as np

import jackfield as jf
from jackfield import ops
from jackfield_llm.graph_parts import Inputs, Parts, last_rows
from jackfield_llm.hyperparameters import Layer

__all__ = ["Attention"]


class Attention:
    """Builds the attention of a layer: x [rows, width] to [wanted, width]; keys and values are made of all rows."""

    def __init__(self, parts: Parts) -> None:
        self.parts, self.config = parts, parts.config

    def build(self, x: jf.Tensor, number: int, layer: Layer, i: Inputs, wanted: int) -> jf.Tensor:
        c, parts, at = self.config, self.parts, f"blk.{number}."
        q, k, v = self._fused(x, at, wanted) if c.fused else self._separate(x, at, wanted)
        q, gates = (q[:, :, :, : c.head_size], q[:, :, :, c.head_size :]) if c.attention_gate else (q, None)
        q = parts.rope(self._head_norm(q, at + "attn_q_norm"), layer.rope, last_rows(i.positions, wanted))
        k = parts.rope(self._head_norm(k, at + "attn_k_norm"), layer.rope, i.positions)
        q = self._tempered(q, last_rows(i.positions, wanted))
        keys = parts.store(f"k{number}", k, i.slots)
        values = parts.store(f"v{number}", v, i.slots)
        attended = ops.attention(
            ops.transpose(q, axes=(0, 2, 1, 3)),
            keys,
            values,
            sinks=parts.weights.get(at + "attn_sinks.weight", (c.heads,)) if c.sinks else None,
            kv_len=i.kv_len,
            scale=c.attention_scale,
            causal=True,
            window=layer.window,
            logit_softcap=c.attention_softcap,
        )
        joined = ops.reshape(attended, shape=(wanted, c.heads * c.value_size))
        if gates is not None:
            joined = ops.multiply(joined, ops.reshape(ops.sigmoid(gates), shape=joined.shape))
        return parts.linear(joined, at + "attn_output", c.width)

    def _separate(self, x: jf.Tensor, at: str, wanted: int) -> tuple[jf.Tensor, jf.Tensor, jf.Tensor]:
        """Queries with gates behind them where they have some, keys and values, [1, rows, heads, size] each."""
        c = self.config
        return (
            self._heads(last_rows(x, wanted), at + "attn_q", c.heads, c.head_size * (2 if c.attention_gate else 1)),
            self._heads(x, at + "attn_k", c.kv_heads, c.head_size),
            self._heads(x, at + "attn_v", c.kv_heads, c.value_size),
        )

    def _fused(self, x: jf.Tensor, at: str, wanted: int) -> tuple[jf.Tensor, jf.Tensor, jf.Tensor]:
        """The same from one matrix: views of what it makes."""
        c = self.config
        every = self._heads(x, at + "attn_qkv", c.heads + 2 * c.kv_heads, c.head_size)
        q, k, v = (
            every[:, :, first : first + count]
            for first, count in ((0, c.heads), (c.heads, c.kv_heads), (c.heads + c.kv_heads, c.kv_heads))
        )
        return last_rows(q, wanted, axis=1), k, v

    def _heads(self, x: jf.Tensor, name: str, heads: int, size: int) -> jf.Tensor:
        return ops.reshape(self.parts.linear(x, name, heads * size), shape=(1, x.shape[0], heads, size))

    def _head_norm(self, x: jf.Tensor, name: str) -> jf.Tensor:
        """RMS norm of each head, where the family has one."""
        return self.parts.norm(x, name) if self.config.head_norms else x

    def _tempered(self, q: jf.Tensor, positions: jf.Tensor) -> jf.Tensor:
        """Queries, larger the further they stand, where the file asks for it."""
        t = self.config.temperature
        if t is None:
            return q
        growth = 1.0 + t.growth * np.log1p(np.arange(self.parts.context) // t.length)
        table = self.parts.table("attention_temperature", growth.astype(np.float32)[:, None])
        return ops.multiply(q, ops.reshape(ops.take_rows(table, positions), shape=(1, q.shape[1], 1, 1)))
