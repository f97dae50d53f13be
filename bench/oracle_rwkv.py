"""RWKV 6 and 7 in float64: token by token, one matrix a head, as the papers write it; alone or in Qwen's layers.

Source: Peng et al. 2024, "Eagle and Finch", and Peng et al. 2025, "RWKV-7 Goose"; names and what the papers leave open
(epsilons, the order of mixes) as llama.cpp (build 11434) has them.
"""

from __future__ import annotations

import numpy as np
from oracle_experts import Feed, sigmoid
from oracle_file import Array, File

_NORM_EPSILON = 64e-5


class Rwkv:
    """All positions of one sequence at once, but for the recurrence."""

    def __init__(self, file: File) -> None:
        self.file, self.fault = file, file.fault
        self.epsilon = file.number("attention.layer_norm_epsilon")
        self.head = file.size("wkv.head_size")
        self.heads = file.hidden // self.head
        self.rescale = file.size("rescale_every_n_layers")
        self.kv_heads = file.size("attention.head_count_kv") or self.heads
        self.mixer = self.sixth if "6" in file.architecture else self.seventh
        self.alone = file.architecture.startswith("rwkv") and not file.architecture.endswith("qwen2")
        self.first_values: Array | None = None

    def logits(self, ids: list[int]) -> Array:
        """[ids, vocabulary]."""
        x = self.file.weights["token_embd.weight"][ids]
        if self.alone and self.fault != "no embedding norm":
            x = self.norm(x, "token_embd_norm")
        for layer in range(self.file.layers):
            at = f"blk.{layer}."
            x = x + self.mixer(self.norm(x, f"{at}attn_norm"), f"{at}time_mix_")
            if self.alone:
                x = x + self.channel_mix(self.norm(x, f"{at}attn_norm_2"), f"{at}channel_mix_")
            else:
                x = x + Feed(self.file)(self.norm(x, f"{at}ffn_norm"), layer)
            if self.rescale and (layer + 1) % self.rescale == 0 and self.fault != "no rescaling":
                x = x / 2
        logits: Array = self.norm(x, "output_norm") @ self.file.weights["output.weight"].T
        return logits

    def weight(self, name: str) -> Array:
        return self.file.weights[f"{name}.weight"]

    def norm(self, x: Array, name: str) -> Array:
        if not self.alone:
            return self.file.norm(x, name)
        bias = 0.0 if self.fault == "no norm biases" else self.file.weights[f"{name}.bias"]
        return normed(x, self.epsilon) * self.weight(name) + bias

    def before(self, x: Array) -> Array:
        """Each position's predecessor less itself; before the first is nothing."""
        back = 2 if self.fault == "two tokens back" else 1
        return np.concatenate([np.zeros((back, x.shape[1])), x[:-back]]) - x

    def by_head(self, x: Array) -> Array:
        return x.reshape(len(x), self.heads, self.head)

    def low_rank(self, x: Array, name: str) -> Array:
        return x @ self.weight(f"{name}1").T @ self.weight(f"{name}2").T

    # ---- feed-forward

    def channel_mix(self, x: Array, at: str) -> Array:
        step = self.before(x) * (self.fault != "no shift in the feed-forward")
        key = np.maximum((x + step * self.weight(f"{at}lerp_k").reshape(-1)) @ self.weight(f"{at}key").T, 0)
        value: Array = (key if self.fault == "no square" else key**2) @ self.weight(f"{at}value").T
        if f"{at}receptance.weight" not in self.file.weights or self.fault == "no receptance":
            return value
        return value * sigmoid((x + step * self.weight(f"{at}lerp_r").reshape(-1)) @ self.weight(f"{at}receptance").T)

    # ---- version 6

    def mixes(self, x: Array, at: str) -> list[Array]:
        """What decay, key, value, receptance and gate are made of."""
        step = self.before(x)
        low = np.tanh((x + step * self.weight(f"{at}lerp_x").reshape(-1)) @ self.weight(f"{at}w1").T)
        moved = np.einsum("tmr,mnr->mtn", low.reshape(len(x), 5, -1), self.weight(f"{at}w2"))
        if self.fault == "fixed mixes":
            moved = moved * 0
        if f"{at}lerp_fused.weight" in self.file.weights:
            fixed = list(self.weight(f"{at}lerp_fused").reshape(5, -1))
        else:
            fixed = [self.weight(f"{at}lerp_{letter}").reshape(-1) for letter in "wkvrg"]
        if self.fault == "mixes in other order":
            fixed, moved = fixed[::-1], moved[::-1]
        return [x + step * (mu + more) for mu, more in zip(fixed, moved, strict=True)]

    def sixth(self, x: Array, at: str) -> Array:
        xw, xk, xv, xr, xg = self.mixes(x, at)
        r, k, v = (self.file.linear(y, at + name) for y, name in ((xr, "receptance"), (xk, "key"), (xv, "value")))
        r, k, v = self.by_head(r), self.shared(k), self.shared(v)
        moved = np.tanh(xw @ self.weight(f"{at}decay_w1").T) @ self.weight(f"{at}decay_w2").T
        moved = moved * (self.fault != "fixed decay")
        decay = self.by_head(np.exp(-np.exp(moved + self.weight(f"{at}decay").reshape(-1))))
        if f"{at}first.weight" not in self.file.weights:
            return self.linear_attention(r, k, v, decay, self.file.linear(xg, f"{at}gate"), at)
        first = self.weight(f"{at}first").reshape(self.heads, self.head)
        if self.fault == "no bonus":
            first = np.ones_like(first)
        y = np.zeros_like(v)
        state = np.zeros((self.heads, self.head, self.head))  # [head, key, value]
        for t in range(len(x)):
            new = k[t, :, :, None] * v[t, :, None, :]
            y[t] = np.einsum("hi,hij->hj", r[t], state + first[:, :, None] * new)
            state = state * decay[t, :, :, None] + new
            if self.fault == "no memory":
                state = new
        gate = xg @ self.weight(f"{at}gate").T
        return self.mixed(self.head_norm(y, at), gate * sigmoid(gate), at)

    def shared(self, x: Array) -> Array:
        """Keys or values of fewer heads, each for the group of heads that reads it."""
        owner = np.arange(self.heads) // (self.heads // self.kv_heads)
        if self.fault == "heads in other order":
            owner = np.arange(self.heads) % self.kv_heads
        return x.reshape(len(x), self.kv_heads, self.head)[:, owner]

    def linear_attention(self, r: Array, k: Array, v: Array, decay: Array, gate: Array, at: str) -> Array:
        """A token reads the state that it is in, and what fades makes room for what comes."""
        if self.fault != "keys without decay":
            k = k * (1 - decay)
        scale = 1.0 if self.fault == "no scale of products" else self.head**-0.5
        y = np.zeros_like(v)
        state = np.zeros((self.heads, self.head, self.head))  # [head, key, value]
        for t in range(len(v)):
            state = state * decay[t, :, :, None] + k[t, :, :, None] * v[t, :, None, :]
            y[t] = scale * np.einsum("hi,hij->hj", r[t], state)
        gate = gate * sigmoid(gate) if self.fault == "silu for sigmoid" else sigmoid(gate)
        return self.mixed(y.reshape(len(y), -1), gate, at)

    def head_norm(self, y: Array, at: str) -> Array:
        """[positions, heads, head] to [positions, hidden]."""
        flat = y.reshape(len(y), -1)
        if f"{at}ln.weight" not in self.file.weights or self.fault == "no norm of heads":
            return flat
        epsilon = self.epsilon if self.fault == "epsilon of the other norms" else _NORM_EPSILON
        even = normed(flat if self.fault == "norm over all heads" else y, epsilon).reshape(flat.shape)
        return even * self.weight(f"{at}ln") + self.file.weights[f"{at}ln.bias"]

    def mixed(self, y: Array, gate: Array, at: str) -> Array:
        if self.fault == "no gate of heads":
            gate = np.ones_like(gate)
        found: Array = (y * gate) @ self.weight(f"{at}output").T
        return found

    # ---- version 7

    def seventh(self, x: Array, at: str) -> Array:
        step = self.before(x)
        mu = self.weight(f"{at}lerp_fused").reshape(-1, x.shape[1])
        if self.fault == "mixes in other order":
            mu = mu[::-1]
        xr, xw, xk, xv, xa, *xg = (x + step * row for row in mu)
        r, k, v = (y @ self.weight(at + name).T for y, name in ((xr, "receptance"), (xk, "key"), (xv, "value")))
        v = self.with_first(v, xv, at)
        decay = self.decay(xw, at)
        rate = sigmoid(self.low_rank(xa, f"{at}a") + self.weight(f"{at}a0"))
        removed = self.by_head(k * self.weight(f"{at}k_k"))
        if self.fault != "no unit keys":
            removed = removed / np.linalg.norm(removed, axis=-1, keepdims=True)
        if self.fault != "keys without rate":
            k = k * (1 + (rate - 1) * self.weight(f"{at}k_a"))
        r, k, v, decay, rate = map(self.by_head, (r, k, v, decay, rate))
        y = self.delta_rule(r, k, v, decay, removed, removed * rate)
        bonus = np.sum(r * k * self.weight(f"{at}r_k").reshape(self.heads, self.head), -1, keepdims=True) * v
        bonus = bonus * (self.fault != "no bonus")
        if self.fault == "bonus before the norm":
            y, bonus = y + bonus, bonus * 0
        gate = sigmoid(xg[0] @ self.weight(f"{at}g1").T) @ self.weight(f"{at}g2").T if xg else np.ones_like(x)
        return self.mixed(self.head_norm(y, at) + bonus.reshape(x.shape), gate, at)

    def decay(self, x: Array, at: str) -> Array:
        moved = x @ self.weight(f"{at}w1").T
        moved = (moved if self.fault == "no tanh" else np.tanh(moved)) @ self.weight(f"{at}w2").T
        moved = moved * (self.fault != "fixed decay")
        found: Array = np.exp(-np.exp(-0.5) * sigmoid(moved + self.weight(f"{at}w0")))
        return found

    def with_first(self, v: Array, x: Array, at: str) -> Array:
        """Values drawn towards those of the first layer."""
        if self.first_values is None:
            self.first_values = v
            return v
        share = sigmoid(self.low_rank(x, f"{at}v") + self.weight(f"{at}v0"))
        if self.fault == "no first values":
            share = share * 0
        if self.fault == "the other share of first values":
            share = 1 - share
        return v + (self.first_values - v) * share

    def delta_rule(self, r: Array, k: Array, v: Array, decay: Array, removed: Array, replaced: Array) -> Array:
        y = np.zeros_like(v)
        state = np.zeros((self.heads, self.head, self.head))  # [head, value, key]
        for t in range(len(v)):
            answer = np.einsum("hij,hj->hi", state, -removed[t])
            if self.fault == "nothing removed":
                answer = answer * 0
            state = state * decay[t, :, None, :] + v[t, :, :, None] * k[t, :, None, :]
            state = state + answer[:, :, None] * replaced[t, :, None, :]
            y[t] = np.einsum("hij,hj->hi", state, r[t])
        return y


def normed(x: Array, epsilon: float) -> Array:
    x = x - x.mean(-1, keepdims=True)
    even: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)
    return even
