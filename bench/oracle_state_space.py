"""Mamba's layers in float64, one token after the other: convolution, step sizes, a state that decays, a gate.

Source: Gu and Dao 2023, "Mamba"; Dao and Gu 2024, "Transformers are SSMs".
"""

from __future__ import annotations

import numpy as np
from oracle_file import Array, File


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


class Mamba:
    """All positions of one sequence, from an empty state. Every channel has a step size of its own."""

    def __init__(self, file: File) -> None:
        self.file, self.fault = file, file.fault
        self.inner, self.size = file.size("ssm.inner_size"), file.size("ssm.state_size")
        self.rank = file.size("ssm.time_step_rank")

    def __call__(self, x: Array, layer: int) -> Array:
        """x, result: [positions, hidden]."""
        file, at = self.file, f"blk.{layer}.ssm_"
        both = file.linear(x, f"{at}in")
        inside, gate = both[:, : self.inner], both[:, self.inner :]
        inside = self.convolved(inside, at)
        parts = file.linear(inside, f"{at}x")
        low, taken, read = np.split(parts, [self.rank, self.rank + self.size], axis=1)
        if file.metadata.get("mamba.ssm.dt_b_c_rms") and self.fault != "no norms of parts":
            low, taken, read = map(file.plain_norm, (low, taken, read))
        if self.fault == "read for taken":
            taken, read = read, taken
        steps = self.steps(low @ file.weights[f"{at}dt.weight"].T, at)
        ones = (len(x), self.inner, 1)
        y = self.scanned(inside.reshape(ones), steps, file.weights[f"{at}a"], taken[:, None], read[:, None])
        y = self.gated(y[:, :, 0] + self.skipped(inside, file.weights[f"{at}d"]), gate)
        return file.linear(y, f"{at}out")

    def convolved(self, x: Array, at: str) -> Array:
        """x, result: [positions, channels]. The last tap is for the position itself."""
        taps, bias = self.file.weights[f"{at}conv1d.weight"], self.file.weights[f"{at}conv1d.bias"]
        if self.fault == "taps reversed":
            taps = taps[:, ::-1]
        count = taps.shape[1]
        before = np.zeros((count - 1, x.shape[1]))
        padded = np.concatenate([before, x])
        first = 1 if self.fault == "one tap less" else 0
        y = sum(padded[j : j + len(x)] * taps[:, j] for j in range(first, count))
        y = y + (0 if self.fault == "no convolution bias" else bias)
        return y if self.fault == "no silu" else silu(y)

    def steps(self, x: Array, at: str) -> Array:
        """Step sizes of what they are made of."""
        biased = x if self.fault == "no step bias" else x + self.file.weights[f"{at}dt.bias"]
        return np.exp(biased) if self.fault == "exp for softplus" else np.logaddexp(0, biased)

    def scanned(self, x: Array, steps: Array, rates: Array, taken: Array, read: Array) -> Array:
        """x, result: [positions, heads, elements]; steps: [positions, heads]; rates: [heads, state or 1].

        taken, read: [positions, groups, state].
        """
        heads, groups = x.shape[1], taken.shape[1]
        owner = np.arange(heads) // (heads // groups)
        if self.fault == "groups in turn":
            owner = np.arange(heads) % groups
        if self.fault == "no decay":
            rates = rates * 0
        state = np.zeros((heads, x.shape[2], taken.shape[2]))
        rows = []
        for token, step, into, out in zip(x, steps, taken[:, owner], read[:, owner], strict=True):
            if self.fault == "state forgotten":
                state = state * 0
            new = token * step[:, None] if self.fault != "no step of inputs" else token
            state = state * np.exp(step[:, None] * rates)[:, None] + new[:, :, None] * into[:, None]
            rows.append((state * out[:, None]).sum(-1))
        return np.array(rows)

    def skipped(self, x: Array, factor: Array) -> Array:
        return x * (0 if self.fault == "no skip" else factor)

    def gated(self, y: Array, gate: Array) -> Array:
        return y if self.fault == "no gate" else y * silu(gate)


class Mamba2(Mamba):
    """Every head has a step size; groups of heads share what is taken in and read out; a norm follows the gate."""

    def __call__(self, x: Array, layer: int) -> Array:
        file, at, length = self.file, f"blk.{layer}.ssm_", len(x)
        groups, heads = file.size("ssm.group_count"), self.rank
        shared = groups * self.size
        gate, rest, step = np.split(file.linear(x, f"{at}in"), [self.inner, 2 * self.inner + 2 * shared], axis=1)
        rest = self.convolved(rest, at)
        inside, taken, read = np.split(rest, [self.inner, self.inner + shared], axis=1)
        if self.fault == "read for taken":
            taken, read = read, taken
        inside = inside.reshape(length, heads, -1)
        by_group = (length, groups, self.size)
        steps = self.steps(step, at)
        y = self.scanned(inside, steps, file.weights[f"{at}a"], taken.reshape(by_group), read.reshape(by_group))
        y = (y + self.skipped(inside, file.weights[f"{at}d"])).reshape(length, self.inner)
        return file.linear(self.normed(y, gate, at), f"{at}out")

    def normed(self, y: Array, gate: Array, at: str) -> Array:
        """The gate, then an RMS norm of each group."""
        weight = self.file.weights[f"{at}norm.weight"]
        by_group = (len(y), 1, weight.size) if self.fault == "one norm" else (len(y), *weight.shape)
        if self.fault == "gate after the norm":
            return self.gated(self.file.plain_norm(y.reshape(by_group)).reshape(y.shape) * weight.ravel(), gate)
        gated = self.gated(y, gate)
        if self.fault == "no norm":
            return gated
        return self.file.plain_norm(gated.reshape(by_group)).reshape(y.shape) * weight.ravel()


STATE_SPACES = {"mamba": Mamba, "mamba2": Mamba2}
"""By architecture."""
