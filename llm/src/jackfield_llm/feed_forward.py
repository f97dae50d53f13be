"""Gated feed-forward: one for all tokens, or experts of which a router chooses a few for each."""

from __future__ import annotations

import jackfield as jf
from jackfield import ops
from jackfield_llm.experts import choose
from jackfield_llm.graph_parts import Parts
from jackfield_llm.hyperparameters import Experts, Layer

__all__ = ["FeedForward"]

_LIMIT, _STEEPNESS = 7.0, 1.702  # of gpt-oss's activation; no file states them


class FeedForward:
    """Builds the feed-forward of a layer: x [rows, width], normed, to [rows, width]. at: the layer's names begin so."""

    def __init__(self, parts: Parts) -> None:
        self.parts, self.config = parts, parts.config

    def build(self, x: jf.Tensor, layer: Layer, at: str) -> jf.Tensor:
        if layer.experts is None:
            return self._plain(x, at, "", self.config.inner)
        y = self._experts(x, layer.experts, at)
        if not layer.experts.shared_inner:
            return y
        return ops.add(y, self._shared(x, layer.experts, at))

    def _shared(self, x: jf.Tensor, experts: Experts, at: str) -> jf.Tensor:
        """The expert that every token takes, as far as its gate lets it."""
        y = self._plain(x, at, "_shexp", experts.shared_inner)
        if not experts.shared_gate:
            return y
        width = self.config.width
        gate = ops.reshape(self.parts.weights.get(at + "ffn_gate_inp_shexp.weight", (width,)), shape=(1, width))
        return ops.multiply(y, ops.sigmoid(ops.linear(x, gate)))

    def _plain(self, x: jf.Tensor, at: str, suffix: str, inner: int) -> jf.Tensor:
        """suffix: what names of the expert for all tokens end in."""
        if self.config.fused:
            gated = ops.swiglu(self.parts.linear(x, f"{at}ffn_up{suffix}", 2 * inner))
        else:
            gate = self.parts.linear(x, f"{at}ffn_gate{suffix}", inner)
            gated = self._gated(gate, self.parts.linear(x, f"{at}ffn_up{suffix}", inner))
        return self.parts.linear(gated, f"{at}ffn_down{suffix}", self.config.width)

    def _gated(self, gate: jf.Tensor, up: jf.Tensor) -> jf.Tensor:
        if self.config.activation == "limited":
            return ops.swiglu_oai(gate, up, alpha=_STEEPNESS, limit=_LIMIT)
        return ops.swiglu(gate, up) if self.config.activation == "silu" else ops.geglu(gate, up)

    def _experts(self, x: jf.Tensor, experts: Experts, at: str) -> jf.Tensor:
        """The sum of what the chosen ones give, each times its weight."""
        rows, width = x.shape
        scores = self.parts.linear(x, at + "ffn_gate_inp", experts.count)
        bias = self.parts.weights.maybe(at + "exp_probs_b.bias", (experts.count,))
        ids, weights = choose(self.parts, scores, bias, experts)
        each = ops.reshape(x, shape=(rows, 1, width))
        gate = self._expert_linear(each, ids, at + "ffn_gate_exps", (experts.count, experts.inner))
        up = self._expert_linear(each, ids, at + "ffn_up_exps", (experts.count, experts.inner))
        y = self._expert_linear(self._gated(gate, up), ids, at + "ffn_down_exps", (experts.count, width))
        return ops.sum(ops.multiply(y, weights), axis=1)

    def _expert_linear(self, x: jf.Tensor, ids: jf.Tensor, name: str, shape: tuple[int, int]) -> jf.Tensor:
        """x [rows, 1 or used, inputs] to [rows, used, outputs]. shape: experts and outputs."""
        y = ops.linear_experts(x, self.parts.weights.get(name + ".weight", (*shape, x.shape[-1])), ids)
        bias = self.parts.weights.maybe(name + ".bias", shape)
        return y if bias is None else ops.add_rows(y, bias, ids)
