"""Models that exist only as names and shapes: what llama.cpp is asked about which type it gives each tensor.

Rows are as short as the question allows: 256 elements fit every type, 288 only blocks of 32, 40 none.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

FILE_TYPES = (
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q2_K_S", "Q3_K_S", "Q3_K_M", "Q3_K_L"),
    *("Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M"),
    *("IQ3_XXS", "IQ3_XS", "IQ3_S", "IQ3_M", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4_MOE", "Q2_0"),
)


@dataclass(frozen=True)
class MixModel:
    """One made model. columns: elements of the rows. experts: 0 for a model that has none.

    options: of llama-quantize. importance: whether an importance file is given.
    """

    name: str
    architecture: str = "llama"
    layers: int = 32
    heads: int = 8
    kv_heads: int = 8
    experts: int = 0
    tied: bool = False
    fused: bool = False
    columns: int = 256
    importance: bool = False
    options: tuple[str, ...] = ()

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes (numpy order)."""
        row = (2, self.columns)
        made: dict[str, tuple[int, ...]] = {"token_embd.weight": row, "output_norm.weight": (self.columns,)}
        if not self.tied:
            made["output.weight"] = row
        names = ["attn_qkv"] if self.fused else ["attn_q", "attn_k", "attn_v"]
        for layer in range(self.layers):
            at = f"blk.{layer}."
            made |= {f"{at}{name}.weight": row for name in (*names, "attn_output")}
            made[f"{at}attn_norm.weight"] = (self.columns,)
            if self.experts:
                made |= {f"{at}ffn_{name}_exps.weight": (self.experts, *row) for name in ("gate", "up", "down")}
                made[f"{at}ffn_gate_inp.weight"] = (self.experts, self.columns)
                made |= {f"{at}ffn_{name}_shexp.weight": row for name in ("gate", "up", "down")}
            else:
                made |= {f"{at}ffn_{name}.weight": row for name in ("gate", "up", "down")}
        return made

    def metadata(self) -> dict[str, int]:
        """Keys below the architecture's name, all whole numbers."""
        counts = {
            "context_length": 64,
            "embedding_length": self.columns,
            "block_count": self.layers,
            "feed_forward_length": self.columns,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads,
        }
        return counts | ({"expert_count": self.experts, "expert_used_count": 2} if self.experts else {})


MODELS = (
    MixModel("plain"),
    MixModel("shared_heads", kv_heads=2, layers=20, tied=True),
    MixModel("importance", layers=19, importance=True),
    MixModel("eight_experts", kv_heads=2, layers=17, experts=8),
    MixModel("four_experts", layers=9, experts=4),
    MixModel("seventy", kv_heads=1, layers=80),
    MixModel("falcon", architecture="falcon", kv_heads=1, layers=34, fused=True),
    MixModel("rows_of_288", layers=10, columns=288, tied=True),
    MixModel("rows_of_40", layers=3, columns=40),
    MixModel("pure", layers=3, options=("--pure",)),
    MixModel("named", layers=3, options=("--token-embedding-type", "q4_0", "--output-tensor-type", "q5_1")),
    MixModel("named_tied", layers=3, tied=True, options=("--output-tensor-type", "q5_1")),
)


def by_name(name: str) -> MixModel:
    return next(model for model in MODELS if model.name == name)


def write(model: MixModel, path: Path) -> None:
    """The model as a GGUF file whose weights are zeros."""
    writer = gguf.GGUFWriter(path, model.architecture)
    for key, value in model.metadata().items():
        writer.add_uint32(f"{model.architecture}.{key}", value)
    for key in ("layer_norm_rms_epsilon", "layer_norm_epsilon"):
        writer.add_float32(f"{model.architecture}.attention.{key}", 1e-5)
    for name, shape in model.tensors().items():
        writer.add_tensor(name, np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_importance(model: MixModel, path: Path) -> None:
    """An importance file that says something of one tensor: that there is one changes the mixes."""
    writer = gguf.GGUFWriter(path, "")
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", ["made"])
    writer.add_uint32("imatrix.chunk_count", 1)
    writer.add_uint32("imatrix.chunk_size", 64)
    name = "blk.0.attn_q.weight"
    writer.add_tensor(f"{name}.in_sum2", np.ones((1, model.columns), np.float32))
    writer.add_tensor(f"{name}.counts", np.ones((1, 1), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
