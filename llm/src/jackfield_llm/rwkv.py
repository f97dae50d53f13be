"""The layers of RWKV: each token is mixed with the one before it, and a matrix a head sums up all others.

Source: Peng et al. 2024, "Eagle and Finch: RWKV with matrix-valued states and dynamic recurrence"; Peng et al. 2025,
"RWKV-7 Goose with expressive dynamic state evolution". Names of tensors, and what no file states, as in llama.cpp
(build 11434).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jackfield as jf
from jackfield import ops
from jackfield_llm.errors import ModelError
from jackfield_llm.graph_parts import Inputs, Parts, last_rows
from jackfield_llm.hyperparameters import Rwkv6, Rwkv7

__all__ = ["Rwkv6Layer", "Rwkv7Layer"]

_HEAD_EPS = 64e-5  # of the norm of heads
_FASTEST = -math.exp(-0.5)  # the logarithm of version 7's strongest decay
_UNIT_EPS = 1e-12
_FAR = 2.0**100
_MIXES = "wkvrg"  # of version 6: decay, key, value, receptance, gate


class _Layer:
    """What both versions share. Padding leaves the matrices alone: its keys are 0 and its decay is 1."""

    def __init__(self, parts: Parts, head: int, number: int, i: Inputs) -> None:
        assert i.recurrent is not None  # config_rwkv says that there are states
        self.parts, self.width, self.states = parts, parts.config.width, i.recurrent
        self.head, self.heads, self.number = head, parts.config.width // head, number
        self.at = f"blk.{number}."

    def vector(self, name: str) -> jf.Tensor:
        return self.parts.weights.get(f"{self.at}{name}.weight", (self.width,))

    def table(self, name: str, shape: tuple[int, ...]) -> jf.Tensor:
        """Numbers that are used one by one. Raises: ModelError for ones that are rounded to a smaller type."""
        found = self.parts.weights.get(f"{self.at}{name}.weight", shape)
        if found.dtype != jf.f32:
            raise ModelError(f"tensor {self.at}{name}.weight is {found.dtype}: must be f32")
        return found

    def across(self, x: jf.Tensor, name: str) -> jf.Tensor:
        return self.parts.linear(x, f"{self.at}{name}", self.width)

    def low_rank(
        self, x: jf.Tensor, name: str, rank: int, between: Callable[[jf.Tensor], jf.Tensor] | None = None
    ) -> jf.Tensor:
        """Through the tensors NAME1 and NAME2."""
        low = self.parts.linear(x, f"{self.at}{name}1", rank)
        return self.parts.linear(between(low) if between else low, f"{self.at}{name}2", self.width)

    def by_head(self, x: jf.Tensor) -> jf.Tensor:
        return ops.reshape(x, shape=(x.shape[0], self.heads, self.head))

    def live(self, x: jf.Tensor, factor: float = 1.0) -> jf.Tensor:
        """x [rows, any] times the factor, and 0 for padding."""
        if self.states.rows == 1:  # never padding
            return x if factor == 1.0 else ops.scale(x, scale=factor)
        live = self.states.live if factor == 1.0 else ops.scale(self.states.live, scale=factor)
        return ops.multiply(x, live)

    def step(self, name: str, x: jf.Tensor) -> jf.Tensor:
        """The token before each, less itself. name: of the state that holds the last one."""
        joined = self.states.shifted(f"{name}{self.number}", x, 1)
        return ops.subtract(joined[: x.shape[0]], x)

    def matrices(self) -> jf.Tensor:
        """As the ops read them, [1, heads * head * head]."""
        taken = self.states.taken(f"wkv{self.number}", (self.heads, self.head, self.head))
        return ops.reshape(taken, shape=(1, self.width * self.head))

    def kept(self, packed: jf.Tensor) -> jf.Tensor:
        """Store the matrices behind the rows of what the ops give; the rows, [rows, heads, head]."""
        rows = self.states.rows
        self.states.keep(f"wkv{self.number}", ops.reshape(packed[rows:], shape=(1, self.heads, self.head, self.head)))
        return self.by_head(packed[:rows])

    def head_norm(self, y: jf.Tensor) -> jf.Tensor:
        """y [rows, heads, head] normed head by head, then by the weights of all: [rows, width]."""
        even = ops.reshape(ops.norm(y, eps=_HEAD_EPS), shape=(y.shape[0], self.width))
        bias = self.parts.weights.get(f"{self.at}time_mix_ln.bias", (self.width,))
        return ops.add(ops.multiply(even, self.vector("time_mix_ln")), bias)

    def channel_mix(self, x: jf.Tensor, step: jf.Tensor) -> jf.Tensor:
        """The feed-forward: relu squared between two matrices."""
        mixed = blend(x, step, self.vector("channel_mix_lerp_k"))
        inside = self.parts.linear(mixed, f"{self.at}channel_mix_key", self.parts.config.inner)
        return self.across(ops.reglu(inside, inside), "channel_mix_value")


class Rwkv6Layer(_Layer):
    """Version 6: mixes and decay depend on the token."""

    def __init__(self, parts: Parts, size: Rwkv6, number: int, i: Inputs) -> None:
        super().__init__(parts, size.head, number, i)
        self.size = size

    def build(self, x: jf.Tensor, wanted: int) -> jf.Tensor:
        """x [rows, width], the stream before the layer, to [wanted, width] behind it."""
        x = ops.add(x, self.time_mix(self.parts.norm(x, f"{self.at}attn_norm")))
        normed = self.parts.norm(x, f"{self.at}attn_norm_2")
        step = last_rows(self.step("mix_shift", normed), wanted)
        normed = last_rows(normed, wanted)
        receptance = self.across(blend(normed, step, self.vector("channel_mix_lerp_r")), "channel_mix_receptance")
        x = ops.add(last_rows(x, wanted), ops.multiply(ops.sigmoid(receptance), self.channel_mix(normed, step)))
        halved = self.size.rescale and (self.number + 1) % self.size.rescale == 0
        return ops.scale(x, scale=0.5) if halved else x

    def time_mix(self, x: jf.Tensor) -> jf.Tensor:
        w, k, v, r, g = self.mixes(x, self.step("shift", x))
        packed = ops.rwkv_wkv6(
            self.by_head(self.live(self.across(k, "time_mix_key"))),
            self.by_head(self.across(v, "time_mix_value")),
            self.by_head(self.across(r, "time_mix_receptance")),
            self.table("time_mix_first", (self.heads, self.head)),
            self.by_head(self.decay(w)),
            self.matrices(),
        )
        gated = ops.swiglu(self.across(g, "time_mix_gate"), self.head_norm(self.kept(packed)))
        return self.across(gated, "time_mix_output")

    def decay(self, x: jf.Tensor) -> jf.Tensor:
        slope = self.low_rank(x, "time_mix_decay_w", self.size.decay_rank, ops.tanh)
        slope = ops.add(slope, self.vector("time_mix_decay"))
        if self.states.rows > 1:  # whatever padding has there, its power of e is 0
            slope = ops.add(slope, ops.scale(self.states.live, scale=_FAR, bias=-_FAR))
        return ops.exp(ops.negative(ops.exp(slope)))

    def mixes(self, x: jf.Tensor, step: jf.Tensor) -> list[jf.Tensor]:
        """What decay, key, value, receptance and gate are made of, [rows, width] each."""
        (rows, width), rank, count = x.shape, self.size.mix_rank, len(_MIXES)
        first = blend(x, step, self.vector("time_mix_lerp_x"))
        low = ops.tanh(self.parts.linear(first, f"{self.at}time_mix_w1", count * rank))
        low = ops.transpose(ops.reshape(low, shape=(rows, count, rank)), axes=(1, 0, 2))
        moved = ops.linear(low, self.parts.weights.get(f"{self.at}time_mix_w2.weight", (count, width, rank)))
        if not self.parts.weights.has(f"{self.at}time_mix_lerp_fused.weight"):  # as older converters wrote it
            fixed = [self.vector(f"time_mix_lerp_{letter}") for letter in _MIXES]
            return [blend(x, step, ops.add(moved[place], mu)) for place, mu in enumerate(fixed)]
        table = ops.reshape(self.table("time_mix_lerp_fused", (count, 1, 1, width)), shape=(count, 1, width))
        mixed = blend(x, step, ops.add(moved, table))
        return [mixed[place] for place in range(count)]


class Rwkv7Layer(_Layer):
    """Version 7: what a matrix answers to a key is taken from it before the value goes in."""

    def __init__(self, parts: Parts, size: Rwkv7, number: int, i: Inputs) -> None:
        super().__init__(parts, size.head, number, i)
        self.size, self.i = size, i

    def build(self, x: jf.Tensor, wanted: int) -> jf.Tensor:
        """x [rows, width], the stream before the layer, to [wanted, width] behind it."""
        x = ops.add(x, self.time_mix(self.parts.norm(x, f"{self.at}attn_norm")))
        normed = self.parts.norm(x, f"{self.at}attn_norm_2")
        step = last_rows(self.step("mix_shift", normed), wanted)
        return ops.add(last_rows(x, wanted), self.channel_mix(last_rows(normed, wanted), step))

    def time_mix(self, x: jf.Tensor) -> jf.Tensor:
        step, size = self.step("shift", x), self.size
        table = ops.reshape(self.table("time_mix_lerp_fused", (6, 1, 1, self.width)), shape=(6, 1, self.width))
        mixed = blend(x, step, table)
        r, w, k, v, a, g = (mixed[place] for place in range(6))
        rate = ops.sigmoid(ops.add(self.low_rank(a, "time_mix_a", size.rate_rank), self.vector("time_mix_a0")))
        value = self.by_head(self.with_first(self.across(v, "time_mix_value"), v))
        receptance = self.by_head(self.across(r, "time_mix_receptance"))
        plain = self.live(self.across(k, "time_mix_key"))
        unit = ops.l2_norm(self.by_head(ops.multiply(plain, self.vector("time_mix_k_k"))), eps=_UNIT_EPS)
        damped = ops.multiply(ops.multiply(plain, self.vector("time_mix_k_a")), ops.scale(rate, bias=-1.0))
        key = self.by_head(ops.add(plain, damped))
        packed = ops.rwkv_wkv7(
            receptance,
            self.by_head(self.decay(w)),
            key,
            value,
            ops.negative(unit),
            ops.multiply(unit, self.by_head(rate)),
            self.matrices(),
        )
        y = ops.add(self.head_norm(self.kept(packed)), self.bonus(receptance, key, value))
        gate = self.low_rank(g, "time_mix_g", size.gate_rank, ops.sigmoid)
        return self.across(ops.multiply(y, gate), "time_mix_output")

    def decay(self, x: jf.Tensor) -> jf.Tensor:
        low = self.low_rank(x, "time_mix_w", self.size.decay_rank, ops.tanh)
        return ops.exp(self.live(ops.sigmoid(ops.add(low, self.vector("time_mix_w0"))), _FASTEST))

    def bonus(self, receptance: jf.Tensor, key: jf.Tensor, value: jf.Tensor) -> jf.Tensor:
        """What a token's own value counts besides, [rows, width]. All [rows, heads, head]."""
        weights = ops.reshape(self.vector("time_mix_r_k"), shape=(self.heads, self.head))
        counted = ops.sum(ops.multiply(ops.multiply(key, receptance), weights), axis=-1, keepdims=True)
        return ops.reshape(ops.multiply(value, counted), shape=(value.shape[0], self.width))

    def with_first(self, value: jf.Tensor, x: jf.Tensor) -> jf.Tensor:
        """Values drawn towards those of layer 0, which has the tensors for it too and does not need them."""
        names = [f"time_mix_v{place}" for place in range(3)]
        first = self.i.carried.setdefault("values", value)
        if self.number == 0:
            shapes = (self.width,), (self.size.rate_rank, self.width), (self.width, self.size.rate_rank)
            for name, shape in zip(names, shapes, strict=True):
                self.parts.weights.pass_over(f"{self.at}{name}.weight", shape)
            return value
        share = ops.sigmoid(ops.add(self.low_rank(x, "time_mix_v", self.size.value_rank), self.vector(names[0])))
        return blend(value, ops.subtract(first, value), share)


def blend(x: jf.Tensor, step: jf.Tensor, share: jf.Tensor) -> jf.Tensor:
    """x, moved by a share of the step."""
    return ops.add(ops.multiply(share, step), x)
