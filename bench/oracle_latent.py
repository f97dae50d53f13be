"""Latent attention in float64, the long way: keys and values of every head are made of the short vector of a token."""

from __future__ import annotations

import numpy as np
from oracle_attention import seen
from oracle_file import Array, File, softmax
from oracle_rotation import Rotation, yarn_magnitude


class LatentAttention:
    """All positions of one sequence at once."""

    def __init__(self, file: File) -> None:
        self.file, self.fault = file, file.fault
        self.rank = file.size("attention.kv_lora_rank")
        self.turned = file.size("rope.dimension_count")
        self.plain = file.size("attention.key_length_mla") - self.turned
        self.rotation = Rotation(file, self.turned, local=False)

    def __call__(self, x: Array, layer: int) -> Array:
        at = f"blk.{layer}.attn_"
        plain, turned = self.queries(x, at)
        latent, key = np.split(self.file.linear(x, f"{at}kv_a_mqa"), [self.rank], axis=-1)
        if self.fault != "no latent norm":
            latent = self.file.norm(latent, f"{at}kv_a_norm")
        keys = np.einsum("jr,hrn->jhn", latent, self.file.weights[f"{at}k_b.weight"])
        values = np.einsum("jr,hvr->jhv", latent, self.file.weights[f"{at}v_b.weight"])
        key = self.rotation.turn(key[:, None])[:, 0]
        products = np.einsum("ihn,jhn->hij", plain, keys) + np.einsum("iht,jt->hij", turned, key)
        weights = softmax(np.where(seen(len(x), 0), products * self.scale(), -np.inf))
        mixed = np.einsum("hij,jhv->ihv", weights, values)
        return self.file.linear(mixed.reshape(len(x), -1), f"{at}output")

    def queries(self, x: Array, at: str) -> tuple[Array, Array]:
        """The part that does not turn and the part that has, [positions, heads, .] each."""
        if self.file.has(f"{at}q_a"):
            low = self.file.linear(x, f"{at}q_a")
            low = low if self.fault == "no query norm" else self.file.norm(low, f"{at}q_a_norm")
            q = self.file.linear(low, f"{at}q_b")
        else:
            q = self.file.linear(x, f"{at}q")
        q = q.reshape(len(x), self.file.heads, self.plain + self.turned)
        if self.fault == "turned part first":
            turned, plain = np.split(q, [self.turned], axis=-1)
        else:
            plain, turned = np.split(q, [self.plain], axis=-1)
        return plain, self.rotation.turn(turned)

    def scale(self) -> float:
        """Times the products. The file's multiplier is a tenth of what YaRN's formula takes."""
        width = self.rank + self.turned if self.fault == "scale of the latent" else self.plain + self.turned
        multiplier = 10 * self.file.number("rope.scaling.yarn_log_multiplier")
        grown = yarn_magnitude(self.rotation.factor(), multiplier)
        return float((1.0 if self.fault == "no scale of YaRN" else grown**2) / np.sqrt(width))
