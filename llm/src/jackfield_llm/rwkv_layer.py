"""Whole layers of RWKV: time mixing, then a feed-forward that mixes each token with the one before it as well."""

from __future__ import annotations

from dataclasses import dataclass

import jackfield as jf
from jackfield import ops
from jackfield_llm.graph_parts import Inputs, Parts, last_rows
from jackfield_llm.hyperparameters import Rwkv6, Rwkv7
from jackfield_llm.rwkv import Rwkv6Mix, Rwkv7Mix, blend, step

__all__ = ["RwkvLayer"]


@dataclass(frozen=True)
class RwkvLayer:
    """Builds a layer of either version."""

    parts: Parts
    size: Rwkv6 | Rwkv7

    def build(self, x: jf.Tensor, number: int, i: Inputs, wanted: int) -> jf.Tensor:
        """x [rows, width], the stream before the layer, to [wanted, width] behind it."""
        at, rows = f"blk.{number}.", x.shape[0]
        mix: Rwkv6Mix | Rwkv7Mix
        if isinstance(self.size, Rwkv6):
            mix = Rwkv6Mix(self.parts, self.size, number, i)
        else:
            mix = Rwkv7Mix(self.parts, self.size, number, i)
        x = ops.add(x, mix.build(self.parts.norm(x, f"{at}attn_norm"), rows))
        fed = self._channel_mix(self.parts.norm(x, f"{at}attn_norm_2"), number, i, wanted)
        return self._halved(ops.add(last_rows(x, wanted), fed), number)

    def _channel_mix(self, x: jf.Tensor, number: int, i: Inputs, wanted: int) -> jf.Tensor:
        """relu squared between two matrices; in version 6 times what a third one lets through."""
        assert i.recurrent is not None  # config_rwkv says that there are states
        at, width = f"blk.{number}.channel_mix_", self.parts.config.width
        towards = last_rows(step(i.recurrent, f"mix_shift{number}", x), wanted)
        x = last_rows(x, wanted)

        def mixed(letter: str) -> jf.Tensor:
            return blend(x, towards, self.parts.weights.get(f"{at}lerp_{letter}.weight", (width,)))

        key = self.parts.linear(mixed("k"), f"{at}key", self.parts.config.inner)
        value = self.parts.linear(ops.reglu(key, key), f"{at}value", width)
        if isinstance(self.size, Rwkv7):
            return value
        return ops.multiply(ops.sigmoid(self.parts.linear(mixed("r"), f"{at}receptance", width)), value)

    def _halved(self, x: jf.Tensor, number: int) -> jf.Tensor:
        every = self.size.rescale if isinstance(self.size, Rwkv6) else 0
        return ops.scale(x, scale=0.5) if every and (number + 1) % every == 0 else x
