"""What all parts of a model's graph share: its inputs, weights by name, linear layers, norms, rotation, the cache."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

import jackfield as jf
from jackfield import ops
from jackfield_llm.hyperparameters import Config, Rope
from jackfield_llm.recurrent import Recurrent
from jackfield_llm.weights import Weights

__all__ = ["Inputs", "Parts", "last_rows"]


@dataclass(frozen=True)
class Inputs:
    """tokens, positions, slots: i32 [rows]; kv_len: i32 [1], columns of the cache that hold a token after this call.

    recurrent: of models whose layers have states besides the cache. carried: what a layer leaves for those behind it.
    """

    tokens: jf.Tensor
    positions: jf.Tensor
    slots: jf.Tensor
    kv_len: jf.Tensor
    recurrent: Recurrent | None = None
    carried: dict[str, jf.Tensor] = field(default_factory=dict)


class Parts:
    """Small graphs over one file's weights. context: columns of the cache. cache_dtype: of keys and values."""

    def __init__(self, config: Config, weights: Weights, *, context: int, cache_dtype: jf.DType) -> None:
        self.config, self.weights = config, weights
        self.context, self.cache_dtype = context, cache_dtype
        self._tables: dict[str, jf.Tensor] = {}

    def table(self, name: str, values: NDArray[np.generic]) -> jf.Tensor:
        """A constant that no file has, made once for all layers and graphs."""
        if name not in self._tables:
            self._tables[name] = jf.constant(values, name=name)
        return self._tables[name]

    def linear(self, x: jf.Tensor, name: str, outputs: int) -> jf.Tensor:
        """x [rows, inputs] to [rows, outputs], with the bias where the file has one."""
        y = ops.linear(x, self.weights.get(name + ".weight", (outputs, x.shape[-1])))
        bias = self.weights.maybe(name + ".bias", (outputs,))
        return y if bias is None else ops.add(y, bias)

    def norm(self, x: jf.Tensor, name: str) -> jf.Tensor:
        """RMS norm of the last axis, or one that takes the mean away and has a bias."""
        weight = self.weights.get(name + ".weight", (x.shape[-1],))
        if self.config.layer_norms:
            y = ops.multiply(ops.norm(x, eps=self.config.eps), weight)
            return ops.add(y, self.weights.get(name + ".bias", (x.shape[-1],)))
        return ops.multiply(ops.rms_norm(x, eps=self.config.eps), weight)

    def rope(self, x: jf.Tensor, r: Rope, positions: jf.Tensor) -> jf.Tensor:
        """x: [1, rows, heads, size]."""
        return ops.rope(
            x,
            positions,
            self._frequency_factors(r),
            mode=r.mode,
            n_dims=r.n_dims,
            base=r.base,
            scale=r.scale,
            ext_factor=r.ext_factor,
            attn_factor=r.attn_factor,
            beta_fast=r.beta_fast,
            beta_slow=r.beta_slow,
            original_context=r.original_context if r.ext_factor else 0,
        )

    def _frequency_factors(self, r: Rope) -> jf.Tensor | None:
        """Divisors of the frequencies, where the file has them; of two lists the one for the length of the cache."""
        shape = (r.n_dims // 2,)
        names = ("rope_factors_short.weight", "rope_factors_long.weight")
        if not any(self.weights.has(name) for name in names):
            return self.weights.maybe("rope_freqs.weight", shape)
        taken, other = names[::-1] if self.context > r.original_context else names
        self.weights.pass_over(other, shape)
        return self.weights.get(taken, shape)

    def store(self, name: str, x: jf.Tensor, slots: jf.Tensor) -> jf.Tensor:
        """New rows [1, rows, heads, size] into a cache; the cache as attention reads it, [1, heads, context, size]."""
        _, rows, heads, size = x.shape
        cache = jf.state(name, (heads, self.context, size), self.cache_dtype)
        by_head = ops.transpose(ops.reshape(x, shape=(rows, heads, size)), axes=(1, 0, 2))
        written = ops.put_rows(cache, by_head, ops.reshape(slots, shape=(1, rows)))
        return ops.reshape(written, shape=(1, heads, self.context, size))


def last_rows(x: jf.Tensor, rows: int, axis: int = 0) -> jf.Tensor:
    """The last rows along an axis: x itself, or a view."""
    extent = x.shape[axis]
    return x if rows == extent else x[(slice(None),) * axis + (slice(extent - rows, extent),)]
