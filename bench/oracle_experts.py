"""A layer's feed-forward in float64: one for all, or experts of which a router chooses a few for each token."""

from __future__ import annotations

import numpy as np
from oracle_file import Array, File, sigmoid, softmax

GELU = {"gemma2", "gemma3"}
NORMED = {"llama", "mistral3", "qwen3moe", "gpt-oss", "qwen3next", "qwen35moe"}
"""Architectures that divide the weights of the chosen by their sum whatever the file says."""
SIGMOID = 2


class Feed:
    """All positions of one sequence at once."""

    def __init__(self, file: File) -> None:
        self.file, self.fault = file, file.fault

    def __call__(self, x: Array, layer: int) -> Array:
        at = f"blk.{layer}.ffn_"
        if not self.file.has(f"{at}gate_inp"):
            return self.plain(x, at, "")
        y = self.experts(x, layer)
        shared = self.file.has(f"{at}up_shexp") and self.fault != "no shared experts"
        return y + self.plain(x, at, "_shexp") * self.shared_gate(x, at) if shared else y

    def shared_gate(self, x: Array, at: str) -> Array | float:
        """How much of the shared expert each position takes, [positions, 1]; 1 where it has no gate."""
        if not self.file.has(f"{at}gate_inp_shexp") or self.fault == "no gate of the shared expert":
            return 1.0
        return sigmoid(x @ self.file.weights[f"{at}gate_inp_shexp.weight"])[:, None]

    def plain(self, x: Array, at: str, suffix: str) -> Array:
        up = self.file.linear(x, f"{at}up{suffix}")
        if self.file.has(f"{at}gate{suffix}"):
            gate = self.file.linear(x, f"{at}gate{suffix}")
        else:
            gate, up = np.split(up, 2, axis=-1)
        if self.fault == "up before gate":
            gate, up = up, gate
        return self.file.linear(self.activated(gate, up), f"{at}down{suffix}")

    def activated(self, gate: Array, up: Array) -> Array:
        if self.file.architecture == "gpt-oss" and self.fault != "plain SwiGLU":
            return self.limited(gate, up)
        if (self.file.architecture in GELU) != (self.fault in {"silu for gelu", "gelu for silu"}):
            return 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * up
        return gate * sigmoid(gate) * up

    def limited(self, gate: Array, up: Array) -> Array:
        """gpt-oss: gate * sigmoid(1.702 gate) * (up + 1), the gate at most 7 and up within 7."""
        if self.fault != "no limit":
            gate, up = np.minimum(gate, 7.0), np.clip(up, -7.0, 7.0)
        return gate * sigmoid(1.702 * gate) * (up + 1)

    def experts(self, x: Array, layer: int) -> Array:
        chosen, weights = self.route(x, layer)
        y = np.zeros((len(x), self.file.hidden))
        for position in range(len(x)):
            for expert, weight in zip(chosen[position], weights[position], strict=True):
                y[position] += weight * self.one(x[position], f"blk.{layer}.ffn_", int(expert))
        return y

    def one(self, x: Array, at: str, expert: int) -> Array:
        gate, up = (self.expert_linear(x, f"{at}{name}_exps", expert) for name in ("gate", "up"))
        return self.expert_linear(self.activated(gate, up), f"{at}down_exps", expert)

    def expert_linear(self, x: Array, name: str, expert: int) -> Array:
        y: Array = self.file.weights[f"{name}.weight"][expert] @ x
        bias = self.file.weights.get(f"{name}.bias")
        return y if bias is None or self.fault == "no expert bias" else y + bias[expert]

    def route(self, x: Array, layer: int) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.intp]], Array]:
        """Experts and their weights, [positions, used] each."""
        file, used = self.file, self.file.size("expert_used_count")
        scores = x @ file.weights[f"blk.{layer}.ffn_gate_inp.weight"].T
        bias = file.weights.get(f"blk.{layer}.ffn_gate_inp.bias")
        if bias is not None and self.fault != "no router bias":
            scores = scores + bias
        gating = file.size("expert_gating_func")
        probabilities = (
            sigmoid(scores) if gating == SIGMOID and self.fault != "softmax for sigmoid" else softmax(scores)
        )
        preferred = self.preferred(probabilities, layer)
        used -= self.fault == "one expert less"
        chosen = np.argsort(-preferred, axis=-1, kind="stable")[:, :used]
        if self.fault == "first experts":
            chosen = np.broadcast_to(np.arange(used), chosen.shape)
        source = preferred if self.fault == "selection bias in the weights" else probabilities
        return chosen, self.weights(np.take_along_axis(source, chosen, axis=-1))

    def preferred(self, probabilities: Array, layer: int) -> Array:
        """What the choice goes by, [positions, experts]; -inf for the experts of groups that are out."""
        file = self.file
        bias = file.weights.get(f"blk.{layer}.exp_probs_b.bias")
        if bias is not None and self.fault != "no selection bias":
            probabilities = probabilities + bias
        groups = file.size("expert_group_count")
        if groups < 2 or self.fault == "no expert groups":
            return probabilities
        grouped = np.sort(probabilities.reshape(len(probabilities), groups, -1), axis=-1)
        taken = {"groups by their best": 1, "groups by their sum": grouped.shape[-1]}.get(self.fault, 2)
        best = grouped[..., -taken:].sum(-1)
        kept = np.argsort(-best, axis=-1, kind="stable")[:, : file.size("expert_group_used_count")]
        allowed = np.zeros(best.shape, dtype=bool)
        np.put_along_axis(allowed, kept, values=True, axis=-1)
        return np.where(np.repeat(allowed, grouped.shape[-1], axis=-1), probabilities, -np.inf)

    def weights(self, found: Array) -> Array:
        normed = self.file.architecture in NORMED or bool(self.file.number("expert_weights_norm"))
        if normed != (self.fault in {"weights not normed", "weights normed"}):
            found = found / found.sum(-1, keepdims=True)
        if self.fault == "equal weights":
            found = np.broadcast_to(found.mean(-1, keepdims=True), found.shape)
        scale = self.file.number("expert_weights_scale")
        return found * scale if scale and self.fault != "no expert scale" else found
