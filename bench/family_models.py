"""Models of experts and of Mamba with random weights, made on the spot and kept in the user's cache folder.

    uv run python bench/family_models.py [NAME ...]     make them (all where none is named) and print their paths

Sizes are those of small models that exist; their speed is that of real ones. A file is made once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models import Drawn, make, write_random

EPSILON = 1e-5
CONTEXT = 4096


@dataclass(frozen=True)
class Sparse:
    """A model of the qwen3moe family. width: of an expert; used: experts that a token takes."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    experts: int
    used: int
    width: int
    vocabulary: int
    architecture: str = "qwen3moe"

    def keys(self) -> dict[str, Any]:
        return {
            "block_count": self.layers,
            "context_length": CONTEXT,
            "embedding_length": self.hidden,
            "feed_forward_length": self.used * self.width,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads,
            "attention.key_length": self.head,
            "attention.value_length": self.head,
            "attention.layer_norm_rms_epsilon": EPSILON,
            "rope.freq_base": 1000000.0,
            "expert_count": self.experts,
            "expert_used_count": self.used,
            "expert_feed_forward_length": self.width,
            "vocab_size": self.vocabulary,
        }

    def filled(self, name: str) -> float | None:
        return 1.0 if name.endswith("norm.weight") else None

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        queries, keys, hidden = self.heads * self.head, self.kv_heads * self.head, self.hidden
        yield "token_embd.weight", (self.vocabulary, hidden)
        for i in range(self.layers):
            for part, shape in {
                "attn_norm": (hidden,),
                "attn_q": (queries, hidden),
                "attn_k": (keys, hidden),
                "attn_v": (keys, hidden),
                "attn_output": (hidden, queries),
                "attn_q_norm": (self.head,),
                "attn_k_norm": (self.head,),
                "ffn_norm": (hidden,),
                "ffn_gate_inp": (self.experts, hidden),
                "ffn_gate_exps": (self.experts, self.width, hidden),
                "ffn_up_exps": (self.experts, self.width, hidden),
                "ffn_down_exps": (self.experts, hidden, self.width),
            }.items():
                yield f"blk.{i}.{part}.weight", shape
        yield "output_norm.weight", (hidden,)
        yield "output.weight", (self.vocabulary, hidden)


@dataclass(frozen=True)
class Recurrent:
    """A model of the mamba family, or of mamba2 where there are groups; logits come from the embeddings.

    rank: of the step sizes; in mamba2 the heads.
    """

    layers: int
    hidden: int
    inner: int
    state: int
    rank: int
    vocabulary: int
    groups: int = 0
    taps: int = 4

    @property
    def architecture(self) -> str:
        return "mamba2" if self.groups else "mamba"

    def keys(self) -> dict[str, Any]:
        return {
            "block_count": self.layers,
            "context_length": CONTEXT,
            "embedding_length": self.hidden,
            "feed_forward_length": 0,
            "attention.head_count": 0,
            "attention.layer_norm_rms_epsilon": EPSILON,
            "ssm.conv_kernel": self.taps,
            "ssm.inner_size": self.inner,
            "ssm.state_size": self.state,
            "ssm.time_step_rank": self.rank,
            "vocab_size": self.vocabulary,
            **({"ssm.group_count": self.groups} if self.groups else {}),
        }

    def filled(self, name: str) -> float | None:
        """Decays and step sizes of some hundredths and tenths, as trained models have them."""
        values = {"ssm_a": -4.0, "ssm_d": 1.0, "ssm_dt.bias": -3.0, "ssm_conv1d.bias": 0.0}
        part = name.split(".", 2)[-1]
        return values.get(part, 1.0 if name.endswith("norm.weight") else None)

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield "token_embd.weight", (self.vocabulary, self.hidden)
        for i in range(self.layers):
            for part, shape in self.layer().items():
                yield f"blk.{i}.{part}", shape
        yield "output_norm.weight", (self.hidden,)

    def layer(self) -> dict[str, tuple[int, ...]]:
        inner, shared = self.inner, self.groups * self.state
        channels = inner + 2 * shared
        own: dict[str, tuple[int, ...]]
        if self.groups:
            own = {
                "ssm_dt.bias": (self.rank,),
                "ssm_a": (self.rank, 1),
                "ssm_d": (self.rank, 1),
                "ssm_norm.weight": (self.groups, inner // self.groups),
            }
        else:
            own = {
                "ssm_x.weight": (self.rank + 2 * self.state, inner),
                "ssm_dt.weight": (inner, self.rank),
                "ssm_dt.bias": (inner,),
                "ssm_a": (inner, self.state),
                "ssm_d": (inner,),
            }
        return {
            "attn_norm.weight": (self.hidden,),
            "ssm_in.weight": (inner + channels + self.rank if self.groups else 2 * inner, self.hidden),
            "ssm_conv1d.weight": (channels, self.taps),
            "ssm_conv1d.bias": (channels,),
            **own,
            "ssm_out.weight": (self.hidden, inner),
        }


SPARSE = Sparse(layers=12, hidden=1024, heads=16, kv_heads=4, head=64, experts=32, used=4, width=512, vocabulary=32000)
MAMBA = Recurrent(layers=24, hidden=768, inner=1536, state=16, rank=48, vocabulary=50280)
MAMBA2 = Recurrent(layers=24, hidden=768, inner=1536, state=128, rank=24, groups=1, vocabulary=50288)
"""The last two have the sizes of mamba-130m and mamba2-130m."""

MODELS: Mapping[str, tuple[Drawn, str]] = {
    "moe-Q4_0": (SPARSE, "Q4_0"),
    "moe-Q8_0": (SPARSE, "Q8_0"),
    "mamba-Q8_0": (MAMBA, "Q8_0"),
    "mamba2-Q8_0": (MAMBA2, "Q8_0"),
}
"""What each name is, and its file type."""


def path_of(name: str, folder: Path) -> Path:
    """The file of this name, made in `folder` where it is not there. Raises: KeyError for a name that is unknown."""
    if name not in MODELS:
        raise KeyError(f"family_models: no model {name!r}; known: {', '.join(MODELS)}")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"random-{name}.gguf"
    if not path.exists():
        write_random(*MODELS[name], path)
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    return make(__doc__, MODELS, path_of, arguments)


if __name__ == "__main__":
    sys.exit(main())
