"""The graph of a decoder-only transformer: one builder for Llama, Qwen and Gemma, which differ in their Config.

A graph evaluates `rows` tokens. Padding rows come first: their cache row is -1, so they write to no slot, and `kv_len`
counts real columns only. Lengths are data, so one graph serves the whole context.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import jackfield as jf
from jackfield import ops
from jackfield_llm.config import Config, Layer
from jackfield_llm.errors import ModelError
from jackfield_llm.weights import Weights

__all__ = ["Transformer"]


@dataclass(frozen=True)
class _Inputs:
    """tokens, positions, slots: i32 [rows]; kv_len: i32 [1], columns of the cache that hold a token after this call."""

    tokens: jf.Tensor
    positions: jf.Tensor
    slots: jf.Tensor
    kv_len: jf.Tensor


class Transformer:
    """Builds graphs over one file's weights.

    context: columns of the cache. cache_dtype: of keys and values; a float dtype, or one of blocks `put_rows` can make.
    Raises: ModelError for weights that do not fit the config, and for heads that are no whole blocks of the cache.
    """

    def __init__(self, config: Config, weights: Weights, *, context: int, cache_dtype: jf.DType) -> None:
        self.config, self.weights = config, weights
        self.context, self.cache_dtype = context, cache_dtype
        _check_blocks(config, cache_dtype)
        shape = weights.shape("token_embd.weight")
        if len(shape) != 2:
            raise ModelError(f"tensor token_embd.weight is {list(shape)}, must be [vocabulary, width]")
        self.vocabulary = shape[0]
        weights.check_layers(len(config.layers))

    def graph(self, rows: int, logits: Literal["last", "all"]) -> jf.Tensor:
        """Logits f32 of the last row, [1, vocabulary], or of all rows, [rows, vocabulary]."""
        c = self.config
        i = _Inputs(
            jf.input("tokens", (rows,), jf.i32),
            jf.input("positions", (rows,), jf.i32),
            jf.input("slots", (rows,), jf.i32),
            jf.input("kv_len", (1,), jf.i32),
        )
        embeddings = self.weights.get("token_embd.weight", (self.vocabulary, c.width))
        x = ops.take_rows(embeddings, i.tokens)
        if c.embedding_scale != 1.0:
            x = ops.scale(x, scale=c.embedding_scale)
        for number, layer in enumerate(c.layers):
            wanted = 1 if logits == "last" and number == len(c.layers) - 1 else rows
            x = self._block(x, number, layer, i, wanted)
        head = self.weights.maybe("output.weight", (self.vocabulary, c.width))
        y = ops.linear(self._norm(x, "output_norm"), embeddings if head is None else head)
        if c.softcap:
            y = ops.scale(ops.tanh(ops.scale(y, scale=1.0 / c.softcap)), scale=c.softcap)
        return y

    def _block(self, x: jf.Tensor, number: int, layer: Layer, i: _Inputs, wanted: int) -> jf.Tensor:
        """One layer. wanted: how many of the last rows of its result are read; keys and values are made of all rows."""
        at = f"blk.{number}."
        attended = self._attention(self._norm(x, at + "attn_norm"), number, layer, i, wanted)
        x = ops.add(_last(x, wanted), self._post_norm(attended, at + "post_attention_norm"))
        fed = self._feed_forward(self._norm(x, at + "ffn_norm"), at)
        return ops.add(x, self._post_norm(fed, at + "post_ffw_norm"))

    def _attention(self, x: jf.Tensor, number: int, layer: Layer, i: _Inputs, wanted: int) -> jf.Tensor:
        c, at = self.config, f"blk.{number}."
        q = self._heads(self._linear(_last(x, wanted), at + "attn_q", c.heads * c.head_size), c.heads, c.head_size)
        k = self._heads(self._linear(x, at + "attn_k", c.kv_heads * c.head_size), c.kv_heads, c.head_size)
        v = self._heads(self._linear(x, at + "attn_v", c.kv_heads * c.value_size), c.kv_heads, c.value_size)
        q = self._rope(self._head_norm(q, at + "attn_q_norm"), layer, _last(i.positions, wanted))
        k = self._rope(self._head_norm(k, at + "attn_k_norm"), layer, i.positions)
        keys = self._store(f"k{number}", k, i.slots)
        values = self._store(f"v{number}", v, i.slots)
        attended = ops.attention(
            ops.transpose(q, axes=(0, 2, 1, 3)),
            keys,
            values,
            kv_len=i.kv_len,
            scale=c.attention_scale,
            causal=True,
            window=layer.window,
        )
        joined = ops.reshape(attended, shape=(wanted, c.heads * c.value_size))
        return self._linear(joined, at + "attn_output", c.width)

    @staticmethod
    def _heads(x: jf.Tensor, heads: int, size: int) -> jf.Tensor:
        """[rows, heads * size] to [1, rows, heads, size]."""
        return ops.reshape(x, shape=(1, x.shape[0], heads, size))

    def _head_norm(self, x: jf.Tensor, name: str) -> jf.Tensor:
        """RMS norm of each head, where the family has one."""
        if not self.config.head_norms:
            return x
        weight = self.weights.get(name + ".weight", (x.shape[-1],))
        return ops.multiply(ops.rms_norm(x, eps=self.config.eps), weight)

    def _rope(self, x: jf.Tensor, layer: Layer, positions: jf.Tensor) -> jf.Tensor:
        r = layer.rope
        factors = self.weights.maybe("rope_freqs.weight", (r.n_dims // 2,))
        return ops.rope(
            x,
            positions,
            factors,
            mode=r.mode,
            n_dims=r.n_dims,
            base=r.base,
            scale=r.scale,
            ext_factor=r.ext_factor,
            attn_factor=r.attn_factor,
            beta_fast=r.beta_fast,
            beta_slow=r.beta_slow,
            original_context=r.original_context,
        )

    def _store(self, name: str, x: jf.Tensor, slots: jf.Tensor) -> jf.Tensor:
        """New rows into a cache [heads, context, size]; the cache as attention reads it, [1, heads, context, size]."""
        _, rows, heads, size = x.shape
        cache = jf.state(name, (heads, self.context, size), self.cache_dtype)
        by_head = ops.transpose(ops.reshape(x, shape=(rows, heads, size)), axes=(1, 0, 2))
        written = ops.put_rows(cache, by_head, ops.reshape(slots, shape=(1, rows)))
        return ops.reshape(written, shape=(1, heads, self.context, size))

    def _feed_forward(self, x: jf.Tensor, at: str) -> jf.Tensor:
        inner = self.config.inner
        gate, up = self._linear(x, at + "ffn_gate", inner), self._linear(x, at + "ffn_up", inner)
        gated: Callable[..., jf.Tensor] = ops.swiglu if self.config.activation == "silu" else ops.geglu
        return self._linear(gated(gate, up), at + "ffn_down", self.config.width)

    def _linear(self, x: jf.Tensor, name: str, outputs: int) -> jf.Tensor:
        y = ops.linear(x, self.weights.get(name + ".weight", (outputs, x.shape[-1])))
        bias = self.weights.maybe(name + ".bias", (outputs,))
        return y if bias is None else ops.add(y, bias)

    def _norm(self, x: jf.Tensor, name: str) -> jf.Tensor:
        weight = self.weights.get(name + ".weight", (self.config.width,))
        return ops.multiply(ops.rms_norm(x, eps=self.config.eps), weight)

    def _post_norm(self, x: jf.Tensor, name: str) -> jf.Tensor:
        return self._norm(x, name) if self.config.post_norms else x


def _check_blocks(config: Config, cache_dtype: jf.DType) -> None:
    for what, size in (("keys", config.head_size), ("values", config.value_size)):
        if size % cache_dtype.block:
            raise ModelError(
                f"cache_dtype {cache_dtype.name!r}: a head's {what} have {size} elements, must be a multiple of "
                f"{cache_dtype.block}; choose a float dtype"
            )


def _last(x: jf.Tensor, rows: int) -> jf.Tensor:
    """The last rows: x itself, or a view."""
    return x if rows == x.shape[0] else x[x.shape[0] - rows :]
