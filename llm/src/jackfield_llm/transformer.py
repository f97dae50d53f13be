"""The graph of a decoder-only transformer: one builder for all families, which differ in their Config.

A graph evaluates `rows` tokens. Padding rows come first: their cache row is -1, so they write to no slot, and `kv_len`
counts real columns only. Lengths are data, so one graph serves the whole context.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import jackfield as jf
from jackfield import ops
from jackfield_llm.attention import Attention
from jackfield_llm.delta_net import DeltaNet
from jackfield_llm.errors import ModelError
from jackfield_llm.feed_forward import FeedForward
from jackfield_llm.graph_parts import Inputs, Parts, last_rows
from jackfield_llm.hyperparameters import Config, Delta, Layer, Mamba, Mamba2, QwenRwkv6, Rwkv6, Rwkv7
from jackfield_llm.latent_attention import LatentAttention
from jackfield_llm.recurrent import Recurrent
from jackfield_llm.rwkv import QwenRwkv6Mix, Rwkv7Mix
from jackfield_llm.rwkv_layer import RwkvLayer
from jackfield_llm.state_space import Mamba2Layer, MambaLayer
from jackfield_llm.weights import Weights

__all__ = ["Graph", "Transformer"]


@dataclass(frozen=True)
class Graph:
    """What a plan computes. logits: f32 [1 or rows, vocabulary], or what they would be made of, [rows, width].

    changes: states of layers that no logits read.
    """

    logits: jf.Tensor
    changes: tuple[jf.Tensor, ...] = ()


class Transformer:
    """Builds graphs over one file's weights.

    context: columns of the cache. cache_dtype: of keys and values; a float dtype, or one of blocks `put_rows` can make.
    rollback: tokens of a recurrent model that can be taken back without being evaluated again.
    Raises: ModelError for weights that do not fit the config, and for heads that are no whole blocks of the cache.
    """

    def __init__(
        self, config: Config, weights: Weights, *, context: int, cache_dtype: jf.DType, rollback: int = 0
    ) -> None:
        self.config, self.weights, self.rollback = config, weights, rollback
        self.recurrent_states: tuple[str, ...] = ()  # names, as of the last graph: all have the same
        _check_blocks(config, cache_dtype)
        shape = weights.shape("token_embd.weight")
        if len(shape) != 2:
            raise ModelError(f"tensor token_embd.weight is {list(shape)}, must be [vocabulary, width]")
        self.vocabulary = shape[0]
        weights.check_layers([(layer.experts, layer.mixer) for layer in config.layers])
        weights.pass_over_layers(len(config.layers), config.predicting)
        self._parts = Parts(config, weights, context=context, cache_dtype=cache_dtype)
        self._attention = (
            Attention(self._parts) if config.latent is None else LatentAttention(self._parts, config.latent)
        )
        self._feed_forward = FeedForward(self._parts)

    def graph(self, rows: int, logits: Literal["last", "all", "none"]) -> Graph:
        """Of `rows` tokens: logits of the last row, or of all of them. "none": what all logits would be made of."""
        c = self.config
        recurrent = Recurrent(c.recurrent, rows, self.rollback) if c.recurrent else None
        i = Inputs(
            jf.input("tokens", (rows,), jf.i32),
            jf.input("positions", (rows,), jf.i32),
            jf.input("slots", (rows,), jf.i32),
            jf.input("kv_len", (1,), jf.i32),
            recurrent,
        )
        embeddings = self.weights.get("token_embd.weight", (self.vocabulary, c.width))
        x = ops.take_rows(embeddings, i.tokens)
        if c.embedding_scale != 1.0:
            x = ops.scale(x, scale=c.embedding_scale)
        if c.embedding_norm:
            x = self._parts.norm(x, "token_embd_norm")
        for number, layer in enumerate(c.layers):
            wanted = 1 if logits == "last" and number == len(c.layers) - 1 else rows
            x = self._block(x, number, layer, i, wanted)
        head = self.weights.maybe("output.weight", (self.vocabulary, c.width))
        y = self._parts.norm(x, "output_norm")
        if logits != "none":
            y = ops.linear(y, embeddings if head is None else head)
        if c.softcap and logits != "none":
            y = ops.scale(ops.tanh(ops.scale(y, scale=1.0 / c.softcap)), scale=c.softcap)
        if recurrent is None:
            return Graph(y)
        self.recurrent_states = recurrent.names
        return Graph(y, tuple(recurrent.changes))

    def _block(self, x: jf.Tensor, number: int, layer: Layer, i: Inputs, wanted: int) -> jf.Tensor:
        """One layer. wanted: how many of the last rows of its result are read; keys and values are made of all rows."""
        if isinstance(layer.mixer, Rwkv6) or (isinstance(layer.mixer, Rwkv7) and layer.mixer.whole):
            return RwkvLayer(self._parts, layer.mixer).build(x, number, i, wanted)
        at, norm = f"blk.{number}.", self._parts.norm
        mixed = self._mixed(norm(x, at + "attn_norm"), number, layer, i, wanted)
        x = ops.add(last_rows(x, wanted), self._post_norm(mixed, at + "post_attention_norm"))
        if not self.config.inner and layer.experts is None:
            return x
        fed = self._feed_forward.build(norm(x, at + self.config.ffn_norm), layer, at)
        return ops.add(x, self._post_norm(fed, at + "post_ffw_norm"))

    def _mixed(self, x: jf.Tensor, number: int, layer: Layer, i: Inputs, wanted: int) -> jf.Tensor:
        """What attention gives, or what stands in its place. x [rows, width] to [wanted, width]."""
        match layer.mixer:
            case QwenRwkv6():
                return QwenRwkv6Mix(self._parts, layer.mixer, number, i).build(x, wanted)
            case Rwkv7():
                return Rwkv7Mix(self._parts, layer.mixer, number, i).build(x, wanted)
            case Mamba():
                return MambaLayer(self._parts, layer.mixer).build(x, number, i, wanted)
            case Mamba2():
                return Mamba2Layer(self._parts, layer.mixer).build(x, number, i, wanted)
            case Delta():
                return DeltaNet(self._parts, layer.mixer).build(x, number, i, wanted)
            case _:
                return self._attention.build(x, number, layer, i, wanted)

    def _post_norm(self, x: jf.Tensor, name: str) -> jf.Tensor:
        return self._parts.norm(x, name) if self.config.post_norms else x


def _check_blocks(config: Config, cache_dtype: jf.DType) -> None:
    for what, size in (("keys", config.head_size), ("values", config.value_size)):
        if size % cache_dtype.block:
            raise ModelError(
                f"cache_dtype {cache_dtype.name!r}: a head's {what} have {size} elements, must be a multiple of "
                f"{cache_dtype.block}; choose a float dtype"
            )
