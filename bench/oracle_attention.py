"""Attention of heads in float64: grouped, fused, windowed, capped, with sinks, with a temperature."""

from __future__ import annotations

import numpy as np
from oracle_file import Array, File, sigmoid, softmax
from oracle_rotation import Rotation

PERIODS = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2}
"""Architectures with windows, and every how many layers there is none by default. llama.cpp heeds no other's window."""


class Attention:
    """All positions of one sequence at once."""

    def __init__(self, file: File) -> None:
        self.file, self.fault = file, file.fault
        self.window_size = file.size("attention.sliding_window")
        self.period = file.size("attention.sliding_window_pattern", PERIODS.get(file.architecture, 1))

    def is_local(self, layer: int) -> bool:
        """Whether the layer has a window: all but the last of each period."""
        if self.file.architecture not in PERIODS or not self.window_size:
            return False
        return (layer % self.period != self.period - 1) != (self.fault == "windows in the other layers")

    def window(self, layer: int) -> int:
        """Keys a layer sees, itself included; 0 for all."""
        if self.fault == "window in every layer":
            return self.window_size
        if not self.is_local(layer) or self.fault == "no window":
            return 0
        return self.window_size + (self.fault == "window one longer")

    def rotation(self, layer: int) -> Rotation:
        dims = self.file.size("rope.dimension_count", self.file.head)
        return Rotation(
            self.file, self.file.head if self.fault == "whole head turns" else dims, local=self.is_local(layer)
        )

    def projections(self, x: Array, layer: int) -> tuple[Array, Array, Array]:
        """Queries, keys and values, [positions, heads, head] each."""
        file, at = self.file, f"blk.{layer}.attn_"
        counts = (file.heads, file.kv_heads, file.kv_heads)
        if not file.has(f"{at}qkv"):
            found = [file.linear(x, at + name) for name in "qkv"]
        elif self.fault == "qkv by head":
            rows = file.linear(x, f"{at}qkv").reshape(len(x), file.kv_heads, -1, file.head)
            return rows[:, :, :-2].reshape(len(x), -1, file.head), rows[:, :, -2], rows[:, :, -1]
        else:
            found = np.split(file.linear(x, f"{at}qkv"), np.cumsum(counts)[:-1] * file.head, axis=-1)
        q, k, v = (y.reshape(len(x), count, -1) for y, count in zip(found, counts, strict=True))
        return q, k, v

    def split(self, q: Array) -> tuple[Array, Array | None]:
        """Queries, and what gates the result where queries come with as much again, head by head."""
        head = self.file.head
        if q.shape[-1] == head:
            return q, None
        if self.fault == "gates behind all queries":
            whole = q.reshape(len(q), 2, -1, head)
            return whole[:, 0], whole[:, 1]
        if self.fault == "gates before queries":
            return q[..., head:], q[..., :head]
        return q[..., :head], q[..., head:]

    def turned(self, x: Array, layer: int, name: str) -> Array:
        """Normed head by head where the family has such norms, rotated."""
        if self.file.has(f"blk.{layer}.{name}_norm") and self.fault != "no head norms":
            x = self.file.norm(x, f"blk.{layer}.{name}_norm")
        return self.rotation(layer).turn(x)

    def __call__(self, x: Array, layer: int) -> Array:
        file = self.file
        q, k, v = self.projections(x, layer)
        q, gates = self.split(q)
        q, k = self.turned(q, layer, "attn_q"), self.turned(k, layer, "attn_k")
        owner = np.arange(file.heads) // (file.heads // file.kv_heads)
        if self.fault == "heads in other order":
            owner = np.arange(file.heads) % file.kv_heads
        width = file.hidden / file.heads if self.fault == "scale of hidden" else file.head
        products = np.einsum("ihd,jhd->hij", q * self.temperatures(len(x)), k[:, owner]) / np.sqrt(width)
        weights = self.weights(products, layer)
        mixed = np.einsum("hij,jhd->ihd", weights, v[:, owner])
        gated = mixed if gates is None or self.fault == "no gate of attention" else mixed * sigmoid(gates)
        return file.linear(gated.reshape(len(x), -1), f"blk.{layer}.attn_output")

    def temperatures(self, length: int) -> Array:
        """What each position's queries are multiplied by, [positions, 1, 1]."""
        scale = self.file.number("attention.temperature_scale")
        if not scale or self.fault == "no temperature":
            return np.ones((length, 1, 1))
        passed = np.arange(length) // self.file.number("rope.scaling.original_context_length")
        return (1 + scale * np.log(1 + passed))[:, None, None]

    def weights(self, products: Array, layer: int) -> Array:
        """products, result: [heads, queries, keys]."""
        cap = self.file.number("attn_logit_softcapping")
        if cap and self.fault != "no attention cap":
            products = cap * np.tanh(products / cap)
        masked = np.where(seen(products.shape[-1], self.window(layer)), products, -np.inf)
        sinks = self.file.weights.get(f"blk.{layer}.attn_sinks.weight")
        if sinks is None or self.fault == "no sinks":
            return softmax(masked)
        column = np.broadcast_to(sinks[:, None, None], (*masked.shape[:2], 1))
        return softmax(np.concatenate([masked, column], axis=-1))[..., :-1]


def seen(length: int, window: int) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Which keys each position sees, [positions, positions]; window: 0 for all up to its own."""
    distance = np.arange(length)[:, None] - np.arange(length)[None, :]
    return (distance >= 0) & (distance < window) if window else distance >= 0
