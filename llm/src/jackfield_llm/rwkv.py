"""Time mixing of RWKV: each token is mixed with the one before it, and a matrix a head sums up all others.

Source: Peng et al. 2024, "Eagle and Finch: RWKV with matrix-valued states and dynamic recurrence"; Peng et al. 2025,
"RWKV-7 Goose with expressive dynamic state evolution". Names of tensors, and what no file states, as in llama.cpp
(build 11434).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jackfield as jf
from jackfield import ops
from jackfield_llm.graph_parts import Inputs, Parts, last_rows
from jackfield_llm.hyperparameters import QwenRwkv6, Rwkv6, Rwkv7
from jackfield_llm.recurrent import Recurrent

__all__ = ["QwenRwkv6Mix", "Rwkv6Mix", "Rwkv7Mix", "blend", "step"]

_HEAD_EPS = 64e-5  # of the norm of heads
_FASTEST = -math.exp(-0.5)  # the logarithm of version 7's strongest decay
_UNIT_EPS = 1e-12
_FAR = 2.0**100
_MIXES = "wkvrg"  # of version 6: decay, key, value, receptance, gate


def step(states: Recurrent, name: str, x: jf.Tensor) -> jf.Tensor:
    """The token before each, less itself. name: of the state that holds the last one. x, result: [rows, width]."""
    return ops.subtract(states.shifted(name, x, 1)[: x.shape[0]], x)


def blend(x: jf.Tensor, towards: jf.Tensor, share: jf.Tensor) -> jf.Tensor:
    """x, moved by a share of a step."""
    return ops.add(ops.multiply(share, towards), x)


class _Mix:
    """What all versions share. Padding leaves the matrices alone: its keys are 0 and its decay is 1."""

    def __init__(self, parts: Parts, head: int, number: int, i: Inputs) -> None:
        assert i.recurrent is not None  # config_rwkv says that there are states
        self.parts, self.width, self.states = parts, parts.config.width, i.recurrent
        self.head, self.heads, self.number = head, parts.config.width // head, number
        self.at = f"blk.{number}.time_mix_"

    def vector(self, name: str) -> jf.Tensor:
        return self.parts.weights.get(f"{self.at}{name}.weight", (self.width,))

    def table(self, name: str, shape: tuple[int, ...]) -> jf.Tensor:
        """Numbers that are used one by one."""
        return self.parts.weights.exact(f"{self.at}{name}.weight", shape)

    def linear(self, x: jf.Tensor, name: str, outputs: int = 0) -> jf.Tensor:
        return self.parts.linear(x, self.at + name, outputs or self.width)

    def low_rank(
        self, x: jf.Tensor, name: str, rank: int, between: Callable[[jf.Tensor], jf.Tensor] | None = None
    ) -> jf.Tensor:
        """Through the tensors NAME1 and NAME2."""
        low = self.linear(x, f"{name}1", rank)
        return self.linear(between(low) if between else low, f"{name}2")

    def by_head(self, x: jf.Tensor) -> jf.Tensor:
        return ops.reshape(x, shape=(x.shape[0], self.heads, self.head))

    def step(self, x: jf.Tensor) -> jf.Tensor:
        return step(self.states, f"shift{self.number}", x)

    def live(self, x: jf.Tensor, factor: float = 1.0) -> jf.Tensor:
        """x [rows, any] times the factor, and 0 for padding."""
        if self.states.rows == 1:  # never padding
            return x if factor == 1.0 else ops.scale(x, scale=factor)
        live = self.states.live if factor == 1.0 else ops.scale(self.states.live, scale=factor)
        return ops.multiply(x, live)

    def matrices(self) -> jf.Tensor:
        """As the ops read them, [1, heads * head * head]."""
        taken = self.states.taken(f"wkv{self.number}", (self.heads, self.head, self.head))
        return ops.reshape(taken, shape=(1, self.width * self.head))

    def read(self, packed: jf.Tensor, wanted: int) -> jf.Tensor:
        """The last rows of what the ops give, [wanted, heads, head]; the matrices behind the rows are stored."""
        rows = self.states.rows
        self.states.keep(f"wkv{self.number}", ops.reshape(packed[rows:], shape=(1, self.heads, self.head, self.head)))
        return self.by_head(packed[rows - wanted : rows])

    def head_norm(self, y: jf.Tensor) -> jf.Tensor:
        """y [rows, heads, head] normed head by head, then by the weights of all: [rows, width]."""
        even = ops.reshape(ops.norm(y, eps=_HEAD_EPS), shape=(y.shape[0], self.width))
        bias = self.parts.weights.get(f"{self.at}ln.bias", (self.width,))
        return ops.add(ops.multiply(even, self.vector("ln")), bias)


class Rwkv6Mix(_Mix):
    """Version 6: mixes and decay depend on the token."""

    def __init__(self, parts: Parts, size: Rwkv6 | QwenRwkv6, number: int, i: Inputs) -> None:
        super().__init__(parts, size.head, number, i)
        self.mix_rank, self.decay_rank = size.mix_rank, size.decay_rank

    def build(self, x: jf.Tensor, wanted: int) -> jf.Tensor:
        """x [rows, width], normed, to [wanted, width]."""
        w, k, v, r, g = self.mixes(x)
        packed = ops.rwkv_wkv6(
            self.by_head(self.live(self.linear(k, "key"))),
            self.by_head(self.linear(v, "value")),
            self.by_head(self.linear(r, "receptance")),
            self.table("first", (self.heads, self.head)),
            self.by_head(self.decay(w)),
            self.matrices(),
        )
        y = self.head_norm(self.read(packed, wanted))
        return self.linear(ops.swiglu(self.linear(last_rows(g, wanted), "gate"), y), "output")

    def decay(self, x: jf.Tensor) -> jf.Tensor:
        slope = ops.add(self.low_rank(x, "decay_w", self.decay_rank, ops.tanh), self.vector("decay"))
        if self.states.rows > 1:  # whatever padding has there, its power of e is 0
            slope = ops.add(slope, ops.scale(self.states.live, scale=_FAR, bias=-_FAR))
        return ops.exp(ops.negative(ops.exp(slope)))

    def mixes(self, x: jf.Tensor) -> list[jf.Tensor]:
        """What decay, key, value, receptance and gate are made of, [rows, width] each."""
        (rows, width), rank, count, towards = x.shape, self.mix_rank, len(_MIXES), self.step(x)
        low = ops.tanh(self.linear(blend(x, towards, self.vector("lerp_x")), "w1", count * rank))
        low = ops.transpose(ops.reshape(low, shape=(rows, count, rank)), axes=(1, 0, 2))
        moved = ops.linear(low, self.parts.weights.get(f"{self.at}w2.weight", (count, width, rank)))
        if not self.parts.weights.has(f"{self.at}lerp_fused.weight"):  # as older converters wrote it
            fixed = [self.vector(f"lerp_{letter}") for letter in _MIXES]
            return [blend(x, towards, ops.add(moved[place], mu)) for place, mu in enumerate(fixed)]
        table = ops.reshape(self.table("lerp_fused", (count, 1, 1, width)), shape=(count, 1, width))
        mixed = blend(x, towards, ops.add(moved, table))
        return [mixed[place] for place in range(count)]


class QwenRwkv6Mix(Rwkv6Mix):
    """Version 6 in Qwen's layers: what fades makes room for what comes, and heads share keys and values."""

    def __init__(self, parts: Parts, size: QwenRwkv6, number: int, i: Inputs) -> None:
        super().__init__(parts, size, number, i)
        self.kv_heads = size.kv_heads

    def build(self, x: jf.Tensor, wanted: int) -> jf.Tensor:
        """x [rows, width], normed, to [wanted, width]."""
        w, k, v, r, g = self.mixes(x)
        decay = self.by_head(self.decay(w))
        packed = ops.gated_linear_attention(
            ops.multiply(self.shared(k, "key"), ops.scale(decay, scale=-1.0, bias=1.0)),
            self.shared(v, "value"),
            self.by_head(self.linear(r, "receptance")),
            decay,
            self.matrices(),
            scale=1.0 / math.sqrt(self.head),
        )
        y = ops.reshape(self.read(packed, wanted), shape=(wanted, self.width))
        return self.linear(ops.multiply(y, ops.sigmoid(self.linear(last_rows(g, wanted), "gate"))), "output")

    def shared(self, x: jf.Tensor, name: str) -> jf.Tensor:
        """Keys or values, those of each head again for every head of its group: [rows, heads, head]."""
        y = self.linear(x, name, self.kv_heads * self.head)
        if self.kv_heads == self.heads:
            return self.by_head(y)
        y = ops.reshape(y, shape=(x.shape[0], self.kv_heads, 1, self.head))
        return self.by_head(ops.tile(y, repeats=(1, 1, self.heads // self.kv_heads, 1)))


class Rwkv7Mix(_Mix):
    """Version 7: what a matrix answers to a key is taken from it before the value goes in."""

    def __init__(self, parts: Parts, size: Rwkv7, number: int, i: Inputs) -> None:
        super().__init__(parts, size.head, number, i)
        self.size, self.carried = size, i.carried

    def build(self, x: jf.Tensor, wanted: int) -> jf.Tensor:
        """x [rows, width], normed, to [wanted, width]."""
        count = 6 if self.size.gate_rank else 5
        table = ops.reshape(self.table("lerp_fused", (count, 1, 1, self.width)), shape=(count, 1, self.width))
        mixed = blend(x, self.step(x), table)
        r, w, k, v, a = (mixed[place] for place in range(5))
        rate = ops.sigmoid(ops.add(self.low_rank(a, "a", self.size.rate_rank), self.vector("a0")))
        receptance = self.by_head(self.linear(r, "receptance"))
        value = self.by_head(self.with_first(self.linear(v, "value"), v))
        plain = self.live(self.linear(k, "key"))
        unit = ops.l2_norm(self.by_head(ops.multiply(plain, self.vector("k_k"))), eps=_UNIT_EPS)
        damped = ops.multiply(ops.multiply(plain, self.vector("k_a")), ops.scale(rate, bias=-1.0))
        key = self.by_head(ops.add(plain, damped))
        replaced = ops.multiply(unit, self.by_head(rate))
        decay = self.by_head(self.decay(w))
        packed = ops.rwkv_wkv7(receptance, decay, key, value, ops.negative(unit), replaced, self.matrices())
        bonus = self.bonus(*(last_rows(each, wanted) for each in (receptance, key, value)))
        y = ops.add(self.head_norm(self.read(packed, wanted)), bonus)
        if self.size.gate_rank:
            gate = self.low_rank(last_rows(mixed[5], wanted), "g", self.size.gate_rank, ops.sigmoid)
            y = ops.multiply(y, gate)
        return self.linear(y, "output")

    def decay(self, x: jf.Tensor) -> jf.Tensor:
        low = ops.add(self.low_rank(x, "w", self.size.decay_rank, ops.tanh), self.vector("w0"))
        return ops.exp(self.live(ops.sigmoid(low), _FASTEST))

    def head_norm(self, y: jf.Tensor) -> jf.Tensor:
        """In Qwen's layers there need be none."""
        if self.size.whole or self.parts.weights.has(f"{self.at}ln.weight"):
            return super().head_norm(y)
        return ops.reshape(y, shape=(y.shape[0], self.width))

    def bonus(self, receptance: jf.Tensor, key: jf.Tensor, value: jf.Tensor) -> jf.Tensor:
        """What a token's own value counts besides, [rows, width]. All [rows, heads, head]."""
        weights = ops.reshape(self.vector("r_k"), shape=(self.heads, self.head))
        counted = ops.sum(ops.multiply(ops.multiply(key, receptance), weights), axis=-1, keepdims=True)
        return ops.reshape(ops.multiply(value, counted), shape=(value.shape[0], self.width))

    def with_first(self, value: jf.Tensor, x: jf.Tensor) -> jf.Tensor:
        """Values drawn towards those of layer 0, which has the tensors for it too and does not need them."""
        first = self.carried.setdefault("values", value)
        if self.number == 0:
            rank = self.size.rate_rank
            for place, shape in enumerate(((self.width,), (rank, self.width), (self.width, rank))):
                self.parts.weights.pass_over(f"{self.at}v{place}.weight", shape)
            return value
        share = ops.sigmoid(ops.add(self.low_rank(x, "v", self.size.value_rank), self.vector("v0")))
        return blend(value, ops.subtract(first, value), share)
