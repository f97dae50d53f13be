"""A gated delta net in the place of attention: a matrix a head is all that a layer keeps of the tokens before.

Queries, keys and values go through a short convolution over the last tokens; queries and keys are made as long as 1.
What the matrix answers to a key is moved towards the value, and what it answers to the query is normed and gated.
Source: Yang et al. 2024, "Gated delta networks: improving Mamba2 with delta rule"; the order of heads and projections
as llama.cpp (build 11434) has it.
"""

from __future__ import annotations

import math

import numpy as np

import jackfield as jf
from jackfield import ops
from jackfield_llm.graph_parts import Inputs, Parts, last_rows
from jackfield_llm.hyperparameters import Delta
from jackfield_llm.recurrent import Recurrent

__all__ = ["DeltaNet"]


class DeltaNet:
    """Builds the delta net of a layer: x [rows, width] to [wanted, width]; the states take in all rows.

    The op takes key heads in turn. Where one serves `each` value heads that lie together, heads [keys, each] are laid
    out as `each` sequences of `keys` heads, which is a view: the queries and keys of one sequence serve all.
    """

    def __init__(self, parts: Parts, sizes: Delta) -> None:
        self.parts, self.config, self.sizes = parts, parts.config, sizes

    def build(self, x: jf.Tensor, number: int, i: Inputs, wanted: int) -> jf.Tensor:
        assert i.recurrent is not None, "a config with a delta net says that it is recurrent"
        at = f"blk.{number}."
        before, gates = self._projections(x, at, wanted)
        heads = self._convolved(before, number, i.recurrent)
        decay, beta = self._decay_and_beta(x, at, i.recurrent)
        y = self._answers(heads, decay, beta, f"scan{number}", i.recurrent)
        normed = self.parts.norm(last_rows(y, wanted), at + "ssm_norm")
        gated = ops.swiglu(ops.reshape(gates, shape=normed.shape), normed)
        joined = ops.reshape(gated, shape=(wanted, self.sizes.values))
        return self.parts.linear(joined, at + "ssm_out", self.config.width)

    def _answers(
        self, heads: jf.Tensor, decay: jf.Tensor, beta: jf.Tensor, name: str, recurrent: Recurrent
    ) -> jf.Tensor:
        """What the matrices answer to the queries, a row a token. heads: as `_convolved` gives them."""
        keys, size = self.sizes.key_heads, self.sizes.size
        q, k = self._of_length_one(heads[:, :, : 2 * keys])
        v = self._by_sequence(heads[0, :, 2 * keys :])
        sequences, rows, each = v.shape[:3]
        shape, snapshots = (self.sizes.heads, size, size), recurrent.snapshots
        state = ops.reshape(recurrent.taken(name, shape), shape=(sequences, each, size, size))
        packed = ops.gated_delta_net(q, k, v, decay, beta, state, snapshots=snapshots)
        recurrent.keep(name, ops.reshape(packed[sequences * rows :], shape=(snapshots, *shape)))
        y = ops.reshape(packed[: sequences * rows], shape=v.shape)
        return y[0] if self.sizes.in_turn else ops.transpose(y, axes=(1, 2, 0, 3))

    def _by_sequence(self, x: jf.Tensor) -> jf.Tensor:
        """x [rows, heads, n] as the op takes it: [1, rows, heads, n], or [each, rows, keys, n]."""
        rows, heads, n = x.shape
        if self.sizes.in_turn:
            return ops.reshape(x, shape=(1, rows, heads, n))
        by_key = ops.reshape(x, shape=(rows, self.sizes.key_heads, self.sizes.each, n))
        return ops.transpose(by_key, axes=(2, 0, 1, 3))

    def _projections(self, x: jf.Tensor, at: str, wanted: int) -> tuple[jf.Tensor, jf.Tensor]:
        """What the convolution takes, [rows, channels], and gates, [wanted, values] or by heads."""
        weights, linear, sizes = self.parts.weights, self.parts.linear, self.sizes
        separate = weights.has(at + "attn_qkv.weight") or weights.has(at + "attn_gate.weight")
        if not sizes.parted and (weights.has(at + "ssm_in.weight") or not separate):
            return self._joined(x, at, wanted)
        gates = linear(last_rows(x, wanted), at + "attn_gate", sizes.values)
        return linear(x, at + "attn_qkv", sizes.channels), gates

    def _joined(self, x: jf.Tensor, at: str, wanted: int) -> tuple[jf.Tensor, jf.Tensor]:
        """The same from one matrix of older files, which has queries, keys, values and gates of one key head together.

        The convolution wants all queries, then all keys and values: heads are taken by number.
        """
        sizes, rows, each = self.sizes, x.shape[0], self.sizes.each
        made = self.parts.linear(x, at + "ssm_in", sizes.channels + sizes.values)
        numbers = np.arange(sizes.key_heads * (2 + 2 * each), dtype=np.int32).reshape(sizes.key_heads, -1)
        order_of_heads = np.concatenate([numbers[:, 0], numbers[:, 1], numbers[:, 2 : 2 + each].reshape(-1)])
        order = ops.broadcast_to(self.parts.table("delta_heads", order_of_heads), shape=(rows, len(order_of_heads)))
        heads = ops.take_rows(ops.reshape(made, shape=(rows, numbers.size, sizes.size)), order)
        by_key = ops.reshape(last_rows(made, wanted), shape=(wanted, sizes.key_heads, 2 + 2 * each, sizes.size))
        return ops.reshape(heads, shape=(rows, sizes.channels)), by_key[:, :, 2 + each :]

    def _convolved(self, before: jf.Tensor, number: int, recurrent: Recurrent) -> jf.Tensor:
        """Heads of queries, keys and values, [1, rows, heads, size]."""
        sizes, name = self.sizes, f"blk.{number}.ssm_conv1d.weight"
        taps = self.parts.weights.exact(name, (sizes.channels, sizes.taps))
        joined = recurrent.shifted(f"conv{number}", before, sizes.taps - 1)
        channels = ops.reshape(ops.transpose(joined, axes=(1, 0)), shape=(1, sizes.channels, joined.shape[0]))
        mixed = ops.silu(ops.ssm_conv(channels, taps))
        return ops.reshape(mixed, shape=(1, before.shape[0], 2 * sizes.key_heads + sizes.heads, sizes.size))

    def _of_length_one(self, x: jf.Tensor) -> tuple[jf.Tensor, jf.Tensor]:
        """x [1, rows, 2 * keys, size]: queries and keys, [1, rows, keys, size] each."""
        keys, size = self.sizes.key_heads, self.sizes.size
        unit = ops.scale(ops.rms_norm(x, eps=self.config.eps / size), scale=1.0 / math.sqrt(size))
        return unit[:, :, :keys], unit[:, :, keys:]

    def _decay_and_beta(self, x: jf.Tensor, at: str, recurrent: Recurrent) -> tuple[jf.Tensor, jf.Tensor]:
        """The logarithm of what stays and the part that moves, as `_by_sequence` with one number a head.

        Both are 0 for padding: all stays and nothing moves.
        """
        rows, heads, weights = x.shape[0], self.sizes.heads, self.parts.weights
        fading, moving = self._raw(x, at)
        shape = fading.shape[1:]
        bias = ops.reshape(weights.get(at + "ssm_dt.bias", (heads,)), shape=shape)
        slope = ops.reshape(weights.get(at + "ssm_a", (heads,)), shape=shape)
        decay = ops.multiply(ops.softplus(ops.add(fading, bias)), slope)
        beta = ops.sigmoid(moving)
        if rows > 1:  # a call of one token has no padding
            live = ops.reshape(recurrent.live, shape=(rows, *[1] * len(shape)))
            decay, beta = ops.multiply(decay, live), ops.multiply(beta, live)
        decay, beta = (self._by_sequence(ops.reshape(part, shape=(rows, heads, 1))) for part in (decay, beta))
        return decay, beta

    def _raw(self, x: jf.Tensor, at: str) -> tuple[jf.Tensor, jf.Tensor]:
        """What decay and beta are made of, [rows, heads] or [rows, keys, each]."""
        rows, heads, keys, each = x.shape[0], self.sizes.heads, self.sizes.key_heads, self.sizes.each
        if self.sizes.parted:
            return self.parts.linear(x, at + "ssm_alpha", heads), self.parts.linear(x, at + "ssm_beta", heads)
        both = ops.reshape(self.parts.linear(x, at + "ssm_ba", 2 * heads), shape=(rows, keys, 2, each))
        return both[:, :, 1], both[:, :, 0]
