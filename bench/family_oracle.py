"""The four families in float64 numpy, as plain as can be: a second opinion on the recorded logits.

`make_family_goldens.py` runs it beside llama.cpp. Run whole it must agree; with one `fault` it must not, which shows
that the recorded logits can tell a right model from one that forgot something.
"""

from __future__ import annotations

import numpy as np

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

FAULTS = {
    # pairs (i, i + half) for (2i, 2i + 1) and the reverse
    "other rotation": {"llama", "llama_quantised", "qwen2", "qwen3", "gemma3"},
    "no rotation base": {"llama_rope_freqs", "qwen2", "qwen3", "gemma3"},  # 10000 for the file's
    "no rope_freqs": {"llama_rope_freqs"},
    # query head h with key head h % kv_heads for h // group
    "heads in other order": {"llama", "llama_quantised", "gemma3"},
    "no bias": {"qwen2"},
    "no head norms": {"qwen3", "gemma3"},
    "no window": {"gemma3", "gemma3_defaults"},
    "window one longer": {"gemma3", "gemma3_defaults"},
    "window in every layer": {"gemma3", "gemma3_defaults"},
    "one rotation base": {"gemma3", "gemma3_defaults"},  # the file's for windowed layers too
    "no rotation scale": {"gemma3_defaults"},
    "rotation scale everywhere": {"gemma3_defaults"},
    "no post norms": {"gemma3"},
    "no embedding scale": {"gemma3"},
    "silu for gelu": {"gemma3"},
    "gelu for silu": {"llama", "qwen2", "qwen3"},
    "scale of hidden": {"qwen3", "gemma3"},  # 1 / sqrt(hidden / heads) for 1 / sqrt(head)
}
"""A fault and the variants in which it must show."""


class Model:
    """One file's metadata and tensors, evaluated at all positions of one sequence."""

    def __init__(self, metadata: dict[str, object], weights: dict[str, Array], fault: str = "") -> None:
        self.architecture = str(metadata["general.architecture"])
        self.metadata = metadata
        self.weights = weights
        self.fault = fault
        self.layers = self.size("block_count", 0)
        self.heads = self.size("attention.head_count", 0)
        self.kv_heads = self.size("attention.head_count_kv", self.heads)
        self.hidden = self.size("embedding_length", 0)
        self.head = self.size("attention.key_length", self.hidden // self.heads)
        self.epsilon = self.number("attention.layer_norm_rms_epsilon", 0.0)
        self.window_size = self.size("attention.sliding_window", 0)
        self.period = self.size("attention.sliding_window_pattern", 6)

    def number(self, name: str, default: float) -> float:
        """An architecture's key."""
        return float(self.metadata.get(f"{self.architecture}.{name}", default))  # type: ignore[arg-type]

    def size(self, name: str, default: int) -> int:
        return int(self.number(name, default))

    def logits(self, ids: list[int]) -> Array:
        """[ids, vocabulary]."""
        x = self.weights["token_embd.weight"][ids]
        if self.architecture == "gemma3" and self.fault != "no embedding scale":
            x = x * np.float64(self.hidden) ** 0.5
        for layer in range(self.layers):
            attended = self.attention(self.norm(x, f"blk.{layer}.attn_norm"), layer)
            x = x + self.post_norm(attended, f"blk.{layer}.post_attention_norm")
            fed = self.feed(self.norm(x, f"blk.{layer}.ffn_norm"), layer)
            x = x + self.post_norm(fed, f"blk.{layer}.post_ffw_norm")
        out = self.weights.get("output.weight", self.weights["token_embd.weight"])
        logits: Array = self.norm(x, "output_norm") @ out.T
        return logits

    def norm(self, x: Array, name: str) -> Array:
        mean_square: Array = (x * x).mean(-1, keepdims=True)
        return x / np.sqrt(mean_square + self.epsilon) * self.weights[f"{name}.weight"]

    def post_norm(self, x: Array, name: str) -> Array:
        return self.norm(x, name) if f"{name}.weight" in self.weights and self.fault != "no post norms" else x

    def linear(self, x: Array, name: str) -> Array:
        y = x @ self.weights[f"{name}.weight"].T
        bias = self.weights.get(f"{name}.bias")
        return y if bias is None or self.fault == "no bias" else y + bias

    def feed(self, x: Array, layer: int) -> Array:
        gate = self.linear(x, f"blk.{layer}.ffn_gate")
        gelu = (self.architecture == "gemma3") != (self.fault in {"silu for gelu", "gelu for silu"})
        if gelu:
            gate = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        else:
            gate = gate / (1 + np.exp(-gate))
        return self.linear(gate * self.linear(x, f"blk.{layer}.ffn_up"), f"blk.{layer}.ffn_down")

    def is_local(self, layer: int) -> bool:
        """Whether the layer has a window: all but the last of each period."""
        return self.window_size > 0 and layer % self.period != self.period - 1

    def window(self, layer: int) -> int:
        """Keys a layer sees, itself included; 0 for all."""
        if self.fault == "window in every layer":
            return self.window_size
        if not self.is_local(layer) or self.fault == "no window":
            return 0
        return self.window_size + (self.fault == "window one longer")

    def frequencies(self, layer: int) -> Array:
        """Radians a position, one a pair."""
        local = self.is_local(layer)
        base = self.number("rope.freq_base", 10000.0) if self.fault != "no rotation base" else 10000.0
        if local and self.fault != "one rotation base":
            base = self.number("rope.freq_base_swa", 10000.0)
        scale = self.number("rope.scaling.factor", 1.0)
        if self.fault == "no rotation scale" or (local and self.fault != "rotation scale everywhere"):
            scale = 1.0
        pairs = np.arange(self.head // 2)
        factors = self.weights.get("rope_freqs.weight")
        if factors is None or self.fault == "no rope_freqs":
            factors = np.ones(self.head // 2)
        return base ** (-2.0 * pairs / self.head) / factors / scale

    def rotate(self, x: Array, layer: int) -> Array:
        """x: [positions, heads, head]."""
        angles = np.arange(len(x))[:, None, None] * self.frequencies(layer)
        cos, sin, half = np.cos(angles), np.sin(angles), self.head // 2
        neighbours = (self.architecture == "llama") != (self.fault == "other rotation")
        first = (slice(0, None, 2), slice(1, None, 2)) if neighbours else (slice(0, half), slice(half, None))
        a, b = x[..., first[0]], x[..., first[1]]
        y = np.empty_like(x)
        y[..., first[0]], y[..., first[1]] = a * cos - b * sin, a * sin + b * cos
        return y

    def heads_of(self, x: Array, layer: int, name: str, count: int) -> Array:
        """[positions, heads, head], normed where the family has head norms, rotated."""
        y: Array = self.linear(x, f"blk.{layer}.{name}").reshape(len(x), count, self.head)
        if f"blk.{layer}.{name}_norm.weight" in self.weights and self.fault != "no head norms":
            y = self.norm(y, f"blk.{layer}.{name}_norm")
        return self.rotate(y, layer)

    def attention(self, x: Array, layer: int) -> Array:
        q = self.heads_of(x, layer, "attn_q", self.heads)
        k = self.heads_of(x, layer, "attn_k", self.kv_heads)
        v = self.linear(x, f"blk.{layer}.attn_v").reshape(len(x), self.kv_heads, self.head)
        owner = np.arange(self.heads) // (self.heads // self.kv_heads)
        if self.fault == "heads in other order":
            owner = np.arange(self.heads) % self.kv_heads
        distance = np.arange(len(x))[:, None] - np.arange(len(x))[None, :]
        seen = distance >= 0
        if window := self.window(layer):
            seen &= distance < window
        width = self.hidden / self.heads if self.fault == "scale of hidden" else self.head
        scores = np.einsum("ihd,jhd->hij", q, k[:, owner]) / np.sqrt(width)
        scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = np.einsum("hij,jhd->ihd", weights, v[:, owner])
        return self.linear(mixed.reshape(len(x), -1), f"blk.{layer}.attn_output")
