"""The layers of Mamba: a short convolution along the tokens, then a state that decays, takes in and is read out.

Source: Gu and Dao 2023, "Mamba"; Dao and Gu 2024, "Transformers are SSMs".
"""

from __future__ import annotations

from dataclasses import dataclass

import jackfield as jf
from jackfield import ops
from jackfield_llm.graph_parts import Inputs, Parts, last_rows
from jackfield_llm.hyperparameters import Mamba, Mamba2
from jackfield_llm.recurrent import Recurrent

__all__ = ["Mamba2Layer", "MambaLayer"]

_FAR = 2.0**100  # softplus of its negative is 0 exactly, and it plus itself no infinity


@dataclass(frozen=True)
class MambaLayer:
    """Builds a layer whose channels have a step size each: x [rows, width], normed, to [wanted, width]."""

    parts: Parts
    size: Mamba

    def build(self, x: jf.Tensor, number: int, i: Inputs, wanted: int) -> jf.Tensor:
        states, size, at, rows = _states(i), self.size, f"blk.{number}.ssm_", x.shape[0]
        both = self.parts.linear(x, at + "in", 2 * size.inner)
        inside = convolved(self.parts, states, number, both[:, : size.inner], size.taps)
        low, taken, read = self._parts_of(inside, at)
        self.parts.weights.get(at + "dt.bias", (size.inner,))  # which the product may not lack
        steps = idle(states, self.parts.linear(low, at + "dt", size.inner))
        shape = (size.inner, 1, size.state)
        name = f"scan{number}"
        scanned = ops.ssm_scan(
            states.state(name, shape),
            ops.reshape(inside, shape=(1, rows, size.inner, 1)),
            ops.reshape(steps, shape=(1, rows, size.inner)),
            self.parts.weights.exact(at + "a", (size.inner, size.state)),
            ops.reshape(taken, shape=(1, rows, 1, size.state)),
            ops.reshape(read, shape=(1, rows, 1, size.state)),
            states.source,
        )
        states.keep(name, ops.reshape(scanned[rows * size.inner :], shape=(1, *shape)))
        y = last_rows(ops.reshape(scanned[: rows * size.inner], shape=(rows, size.inner)), wanted)
        skip = self.parts.weights.exact(at + "d", (size.inner,))
        y = ops.add(y, ops.multiply(last_rows(inside, wanted), skip))
        y = ops.swiglu(last_rows(both[:, size.inner :], wanted), y)
        return self.parts.linear(y, at + "out", self.parts.config.width)

    def _parts_of(self, inside: jf.Tensor, at: str) -> tuple[jf.Tensor, jf.Tensor, jf.Tensor]:
        """What step sizes are made of, [rows, rank], what the state takes in and what reads it, [rows, state] each."""
        rank, state = self.size.rank, self.size.state
        every = self.parts.linear(inside, at + "x", rank + 2 * state)
        low, taken, read = every[:, :rank], every[:, rank : rank + state], every[:, rank + state :]
        if not self.size.normed:
            return low, taken, read
        eps = self.parts.config.eps
        return ops.rms_norm(low, eps=eps), ops.rms_norm(taken, eps=eps), ops.rms_norm(read, eps=eps)


@dataclass(frozen=True)
class Mamba2Layer:
    """Builds a layer whose heads have a step size each: x [rows, width], normed, to [wanted, width]."""

    parts: Parts
    size: Mamba2

    def build(self, x: jf.Tensor, number: int, i: Inputs, wanted: int) -> jf.Tensor:
        states, size, at, rows = _states(i), self.size, f"blk.{number}.ssm_", x.shape[0]
        grouped = size.groups * size.state
        channels = size.inner + 2 * grouped
        every = self.parts.linear(x, at + "in", size.inner + channels + size.heads)
        inside = convolved(self.parts, states, number, every[:, size.inner : size.inner + channels], size.taps)
        bias = self.parts.weights.get(at + "dt.bias", (size.heads,))
        steps = idle(states, ops.add(every[:, size.inner + channels :], bias))
        shape = (size.heads, size.inner // size.heads, size.state)
        by_head = ops.reshape(inside[:, : size.inner], shape=(1, rows, *shape[:2]))
        by_group = (1, rows, size.groups, size.state)
        name = f"scan{number}"
        scanned = ops.ssm_scan(
            states.state(name, shape),
            by_head,
            ops.reshape(steps, shape=(1, rows, size.heads)),
            self.parts.weights.exact(at + "a", (size.heads, 1)),
            ops.reshape(inside[:, size.inner : size.inner + grouped], shape=by_group),
            ops.reshape(inside[:, size.inner + grouped :], shape=by_group),
            states.source,
            snapshots=states.snapshots,
        )
        states.keep(name, ops.reshape(scanned[rows * size.inner :], shape=(states.snapshots, *shape)))
        y = ops.reshape(scanned[: rows * size.inner], shape=(1, rows, *shape[:2]))
        skipped = ops.multiply(last_rows(by_head, wanted, axis=1), self.parts.weights.exact(at + "d", (size.heads, 1)))
        y = ops.reshape(ops.add(last_rows(y, wanted, axis=1), skipped), shape=(wanted, size.inner))
        gated = ops.swiglu(last_rows(every[:, : size.inner], wanted), y)
        return self.parts.linear(self._normed(gated, at), at + "out", self.parts.config.width)

    def _normed(self, x: jf.Tensor, at: str) -> jf.Tensor:
        """RMS norm of each group. x, result: [rows, inner]."""
        shape = (self.size.groups, self.size.inner // self.size.groups)
        normed = ops.rms_norm(ops.reshape(x, shape=(x.shape[0], *shape)), eps=self.parts.config.eps)
        return ops.reshape(ops.multiply(normed, self.parts.weights.exact(at + "norm.weight", shape)), shape=x.shape)


def convolved(parts: Parts, states: Recurrent, number: int, x: jf.Tensor, taps: int) -> jf.Tensor:
    """Each channel convolved with its taps, the last for the token itself, and silu. x, result: [rows, channels]."""
    (rows, channels), at = x.shape, f"blk.{number}.ssm_conv1d."
    weight, bias = parts.weights.exact(at + "weight", (channels, taps)), parts.weights.get(at + "bias", (channels,))
    behind = ops.transpose(states.shifted(f"conv{number}", x, taps - 1), axes=(1, 0))
    y = ops.ssm_conv(ops.reshape(behind, shape=(1, channels, taps - 1 + rows)), weight)
    return ops.silu(ops.add(ops.reshape(y, shape=(rows, channels)), bias))


def idle(states: Recurrent, steps: jf.Tensor) -> jf.Tensor:
    """What step sizes are made of, so low for padding that its step is 0 and the state stays. steps: [rows, any]."""
    if states.rows == 1:  # never padding
        return steps
    return ops.add(steps, ops.scale(states.live, scale=_FAR, bias=-_FAR))


def _states(i: Inputs) -> Recurrent:
    assert i.recurrent is not None  # config_state_space says that there are states
    return i.recurrent
