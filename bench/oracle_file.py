"""One model file as the float64 oracle sees it: metadata, dequantised tensors, the fault to make."""

from __future__ import annotations

import numpy as np

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


class File:
    """Metadata by short names, tensors by GGUF names, and the operations every part needs."""

    def __init__(self, metadata: dict[str, object], weights: dict[str, Array], fault: str = "") -> None:
        self.architecture = str(metadata["general.architecture"])
        self.metadata = metadata
        self.weights = weights
        self.fault = fault
        predicting = self.size("nextn_predict_layers") if fault != "predicting layers evaluated" else 0
        self.layers = self.size("block_count") - predicting
        self.heads = self.size("attention.head_count")
        self.kv_heads = self.size("attention.head_count_kv", self.heads)
        self.hidden = self.size("embedding_length")
        self.head = self.size("attention.key_length", self.hidden // max(1, self.heads))
        self.epsilon = self.number("attention.layer_norm_rms_epsilon")

    def text(self, name: str) -> str:
        return str(self.metadata.get(f"{self.architecture}.{name}", ""))

    def number(self, name: str, default: float = 0.0) -> float:
        """An architecture's key."""
        return float(self.metadata.get(f"{self.architecture}.{name}", default))  # type: ignore[arg-type]

    def size(self, name: str, default: int = 0) -> int:
        return int(self.number(name, default))

    def has(self, name: str) -> bool:
        return f"{name}.weight" in self.weights

    def plain_norm(self, x: Array) -> Array:
        mean_square: Array = (x * x).mean(-1, keepdims=True)
        return x / np.sqrt(mean_square + self.epsilon)

    def norm(self, x: Array, name: str) -> Array:
        return self.plain_norm(x) * self.weights[f"{name}.weight"]

    def linear(self, x: Array, name: str) -> Array:
        y = x @ self.weights[f"{name}.weight"].T
        bias = self.weights.get(f"{name}.bias")
        return y if bias is None or self.fault == "no bias" else y + bias


def softmax(x: Array) -> Array:
    weights = np.exp(x - x.max(-1, keepdims=True))
    normed: Array = weights / weights.sum(-1, keepdims=True)
    return normed


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))
