"""The graph of an encoder of the BERT kind: texts side by side, every token seeing the whole of its text.

A graph evaluates `streams` texts of `rows` tokens. Padding comes last: `kv_len` says how many tokens of each text
count, so that no other is seen, and what is made of padding is not read. There is no cache.
"""

from __future__ import annotations

import numpy as np

import jackfield as jf
from jackfield import ops
from jackfield_llm.errors import ModelError
from jackfield_llm.graph_parts import Parts
from jackfield_llm.hyperparameters import Config, Encoder
from jackfield_llm.weights import Weights

__all__ = ["EncoderGraphs"]


class EncoderGraphs:
    """Builds graphs over one file's weights.

    context: the most tokens a text may have. Raises: ModelError for weights that do not fit the config.
    """

    def __init__(self, config: Config, encoder: Encoder, weights: Weights, *, context: int) -> None:
        self.config, self.encoder, self.weights, self.context = config, encoder, weights, context
        if encoder.rope is None and context > config.context:
            raise ModelError(
                f"context {context}: must be at most {config.context}, for which the file has positions; load with less"
            )
        shape = weights.shape("token_embd.weight")
        if len(shape) != 2:
            raise ModelError(f"tensor token_embd.weight is {list(shape)}, must be [vocabulary, width]")
        self.vocabulary = shape[0]
        weights.check_layers([None] * encoder.layers)
        self._parts = Parts(config, weights, context=context, cache_dtype=jf.f32)

    def graph(self, streams: int, rows: int) -> jf.Tensor:
        """f32 [streams, rows, width]: what is made of each token.

        Inputs: tokens i32 [streams * rows], positions i32 [rows], kv_len i32 [streams].
        """
        positions, kv_len = jf.input("positions", (rows,), jf.i32), jf.input("kv_len", (streams,), jf.i32)
        x = self._embedded(jf.input("tokens", (streams * rows,), jf.i32), positions)
        for number in range(self.encoder.layers):
            x = self._layer(x, f"blk.{number}.", positions, kv_len)
        return ops.reshape(x, shape=(streams, rows, self.config.width))

    def _embedded(self, tokens: jf.Tensor, positions: jf.Tensor) -> jf.Tensor:
        """[streams * rows, width]: token, token type and position, normed."""
        width, rows, weights = self.config.width, positions.shape[0], self.weights
        x = ops.take_rows(weights.get("token_embd.weight", (self.vocabulary, width)), tokens)
        types = weights.maybe("token_types.weight", (self.encoder.types, width))
        if types is not None:
            first = self._parts.table("first_token_type", np.zeros(1, np.int32))
            x = ops.add(x, ops.take_rows(types, first))
        if self.encoder.rope is None:
            table = weights.get("position_embd.weight", (self.config.context, width))
            by_text = ops.reshape(x, shape=(x.shape[0] // rows, rows, width))
            x = ops.reshape(ops.add(by_text, ops.take_rows(table, positions)), shape=x.shape)
        return self._norm(x, "token_embd_norm")

    def _layer(self, x: jf.Tensor, at: str, positions: jf.Tensor, kv_len: jf.Tensor) -> jf.Tensor:
        """Attention, then feed-forward, each added to what it was made of and normed."""
        x = self._norm(ops.add(x, self._attention(x, at, positions, kv_len)), at + "attn_output_norm")
        return self._norm(ops.add(x, self._feed_forward(x, at)), at + "layer_output_norm")

    def _attention(self, x: jf.Tensor, at: str, positions: jf.Tensor, kv_len: jf.Tensor) -> jf.Tensor:
        c, rows = self.config, positions.shape[0]
        q, k, v = self._projections(x, at, rows)
        if self.encoder.rope is not None:
            q = self._parts.rope(q, self.encoder.rope, positions)
            k = self._parts.rope(k, self.encoder.rope, positions)
        q, k, v = (ops.transpose(part, axes=(0, 2, 1, 3)) for part in (q, k, v))
        attended = ops.attention(q, k, v, kv_len=kv_len, scale=c.attention_scale)
        return self._parts.linear(ops.reshape(attended, shape=x.shape), at + "attn_output", c.width)

    def _projections(self, x: jf.Tensor, at: str, rows: int) -> tuple[jf.Tensor, jf.Tensor, jf.Tensor]:
        """Queries, keys and values, [streams, rows, heads, size] each, of one matrix or of three."""
        c, streams = self.config, x.shape[0] // rows
        if self.weights.has(at + "attn_qkv.weight"):
            joined = self._parts.linear(x, at + "attn_qkv", 3 * c.width)
            every = ops.reshape(joined, shape=(streams, rows, 3 * c.heads, c.head_size))
            q, k, v = (every[:, :, part * c.heads : (part + 1) * c.heads] for part in range(3))
        else:
            shape = (streams, rows, c.heads, c.head_size)
            q, k, v = (
                ops.reshape(self._parts.linear(x, f"{at}attn_{name}", c.width), shape=shape) for name in ("q", "k", "v")
            )
        return q, k, v

    def _feed_forward(self, x: jf.Tensor, at: str) -> jf.Tensor:
        c, linear = self.config, self._parts.linear
        if self.encoder.gated:
            inner = ops.swiglu(linear(x, at + "ffn_gate", c.inner), linear(x, at + "ffn_up", c.inner))
        else:
            inner = ops.gelu(linear(x, at + "ffn_up", c.inner))
        return linear(inner, at + "ffn_down", c.width)

    def _norm(self, x: jf.Tensor, name: str) -> jf.Tensor:
        """Layer norm of the last axis."""
        weight = self.weights.get(name + ".weight", (x.shape[-1],))
        bias = self.weights.get(name + ".bias", (x.shape[-1],))
        return ops.add(ops.multiply(ops.norm(x, eps=self.config.eps), weight), bias)
