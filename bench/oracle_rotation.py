"""Rotary embedding in float64: frequencies by base, factors, linear and YaRN scaling, and what they do to a vector."""

from __future__ import annotations

import numpy as np
from oracle_file import Array, File

CONTEXT = 256
"""Tokens of llama.cpp's cache when the logits were recorded: it rounds up, and chooses factors by that."""
NEIGHBOURS = {"llama", "mistral3", "deepseek2"}
"""Architectures that turn pairs (2i, 2i + 1); the others turn (i, i + half)."""


class Rotation:
    """What one layer does to queries and keys. local: the layer has a window."""

    def __init__(self, file: File, dims: int, *, local: bool) -> None:
        self.file, self.fault = file, file.fault
        self.dims = dims
        self.own_local = local and file.architecture == "gemma3"
        self.frequencies = self.scaled()
        self.magnitude = self.size_of_result()

    def base(self) -> float:
        if self.own_local and self.fault != "one rotation base":
            return self.file.number("rope.freq_base_swa", 10000.0)
        if self.fault == "no rotation base":
            return 10000.0
        return self.file.number("rope.freq_base", 10000.0)

    def factors(self) -> Array:
        """Divisors of the frequencies."""
        ones = np.ones(self.dims // 2)
        weights = self.file.weights
        if "rope_freqs.weight" in weights:
            return ones if self.fault == "no rope_freqs" else weights["rope_freqs.weight"]
        if "rope_factors_long.weight" not in weights or self.fault == "no factors":
            return ones
        long = self.original_context() < CONTEXT
        long ^= self.fault == "factors of the other length"
        found = weights[f"rope_factors_{'long' if long else 'short'}.weight"]
        return np.resize(found, self.dims // 2)

    def original_context(self) -> int:
        return self.file.size("rope.scaling.original_context_length", self.file.size("context_length"))

    def is_yarn(self) -> bool:
        return self.file.text("rope.scaling.type") == "yarn" and self.fault != "no YaRN"

    def factor(self) -> float:
        if self.fault in {"no rotation scale", "no YaRN"}:
            return 1.0
        if self.own_local and self.fault != "rotation scale everywhere":
            return 1.0
        return self.file.number("rope.scaling.factor", 1.0)

    def scaled(self) -> Array:
        """Radians a position, one a pair."""
        pairs = np.arange(self.dims // 2)
        plain: Array = self.base() ** (-2.0 * pairs / self.dims) / self.factors()
        if not self.is_yarn() or self.fault == "linear for YaRN":
            return plain / self.factor()
        low, high = self.yarn_bounds()
        kept = 1 - np.clip((pairs - low) / max(0.001, high - low), 0, 1)
        mixed: Array = plain * kept + plain / self.factor() * (1 - kept)
        return mixed

    def yarn_bounds(self) -> tuple[float, float]:
        """The pairs between which frequencies go over from kept to divided: those of 32 turns and of one."""

        def pair_of(turns: float) -> float:
            span = np.log(self.original_context() / (turns * 2 * np.pi))
            return float(self.dims * span / (2 * np.log(self.base())))

        low = np.floor(pair_of(self.file.number("rope.scaling.yarn_beta_fast", 32.0)))
        high = np.ceil(pair_of(self.file.number("rope.scaling.yarn_beta_slow", 1.0)))
        return max(0.0, low), min(self.dims - 1.0, high)

    def size_of_result(self) -> float:
        """Times cosine and sine."""
        given = self.file.number("rope.scaling.attn_factor", 1.0)
        if self.fault == "no rotation magnitude":
            return 1.0
        if not self.is_yarn():
            return given
        own = yarn_magnitude(self.factor(), 1.0)
        multiplier = self.file.number("rope.scaling.yarn_log_multiplier")
        if not multiplier or self.fault == "YaRN's own magnitude":
            return given * own
        if self.file.architecture == "deepseek2":  # what the multiplier asks is done to the products instead
            return given
        return given * own / yarn_magnitude(self.factor(), multiplier)

    def turn(self, x: Array) -> Array:
        """x: [positions, heads, dims or more]; the elements behind `dims` stay."""
        angles = np.arange(len(x))[:, None, None] * self.frequencies
        cos, sin, half = np.cos(angles) * self.magnitude, np.sin(angles) * self.magnitude, self.dims // 2
        neighbours = (self.file.architecture in NEIGHBOURS) != (self.fault == "other rotation")
        pair = (slice(0, self.dims, 2), slice(1, self.dims, 2)) if neighbours else (slice(half), slice(half, self.dims))
        a, b = x[..., pair[0]], x[..., pair[1]]
        y = x.copy()
        y[..., pair[0]], y[..., pair[1]] = a * cos - b * sin, a * sin + b * cos
        return y


def yarn_magnitude(factor: float, multiplier: float) -> float:
    return 1.0 if factor <= 1 else float(0.1 * multiplier * np.log(factor) + 1.0)
