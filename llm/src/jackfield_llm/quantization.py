"""Which tensor of a model gets which type when a file is quantised. Names and numbers in, names out; no file is read.

All is as llama.cpp (build 11434) has it, so that a file type means the same in both: its `llama-quantize --dry-run` was
run on made models, and the tests hold its answers. docs/quantize.md tells it in words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from jackfield_llm.errors import QuantizationError
from jackfield_llm.mixes import LOWEST, At, Model, rule

__all__ = ["FILE_TYPES", "Choice", "FileType", "Tensor", "assign", "block", "fallback", "file_type", "is_quantised"]


@dataclass(frozen=True)
class FileType:
    """What a whole file is quantised to.

    name: as llama.cpp spells it. number: of `general.file_type`. main: dtype of the matrices no rule names.
    mixed: whether other rules apply at all.
    """

    name: str
    number: int
    main: str
    mixed: bool = True


_ROWS = (
    FileType("F32", 0, "f32", mixed=False),
    FileType("F16", 1, "f16", mixed=False),
    FileType("BF16", 32, "bf16", mixed=False),
    FileType("Q4_0", 2, "q4_0"),
    FileType("Q4_1", 3, "q4_1"),
    FileType("Q5_0", 8, "q5_0"),
    FileType("Q5_1", 9, "q5_1"),
    FileType("Q8_0", 7, "q8_0"),
    FileType("Q2_K", 10, "q2_K"),
    FileType("Q2_K_S", 21, "q2_K"),
    FileType("Q3_K_S", 11, "q3_K"),
    FileType("Q3_K_M", 12, "q3_K"),
    FileType("Q3_K_L", 13, "q3_K"),
    FileType("Q4_K_S", 14, "q4_K"),
    FileType("Q4_K_M", 15, "q4_K"),
    FileType("Q5_K_S", 16, "q5_K"),
    FileType("Q5_K_M", 17, "q5_K"),
    FileType("Q6_K", 18, "q6_K"),
    FileType("IQ1_S", 24, "iq1_s"),
    FileType("IQ1_M", 31, "iq1_m"),
    FileType("IQ2_XXS", 19, "iq2_xxs"),
    FileType("IQ2_XS", 20, "iq2_xs"),
    FileType("IQ2_S", 28, "iq2_xs"),
    FileType("IQ2_M", 29, "iq2_s"),
    FileType("IQ3_XXS", 23, "iq3_xxs"),
    FileType("IQ3_XS", 22, "iq3_s"),
    FileType("IQ3_S", 26, "iq3_s"),
    FileType("IQ3_M", 27, "iq3_s"),
    FileType("IQ4_NL", 25, "iq4_nl"),
    FileType("IQ4_XS", 30, "iq4_xs"),
    FileType("TQ1_0", 36, "tq1_0"),
    FileType("TQ2_0", 37, "tq2_0"),
    FileType("MXFP4_MOE", 38, "mxfp4"),
    FileType("MXFP4", 38, "mxfp4", mixed=False),
    FileType("NVFP4", 39, "nvfp4", mixed=False),
    FileType("Q1_0", 40, "q1_0"),
    FileType("Q2_0", 41, "q2_0"),
)
FILE_TYPES: Mapping[str, FileType] = {row.name: row for row in _ROWS}
_ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}


def file_type(name: str) -> FileType:
    """The file type of this name, in any case. Raises: QuantizationError with the nearest name and all names."""
    upper = str(name).upper()
    found = FILE_TYPES.get(_ALIASES.get(upper, upper))
    if found is not None:
        return found
    import difflib  # noqa: PLC0415 - needed for this text only

    near = difflib.get_close_matches(upper, FILE_TYPES, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise QuantizationError(f"there is no file type {name!r}{hint}; known: {' '.join(FILE_TYPES)}")


@dataclass(frozen=True)
class Tensor:
    """What a decision needs of a tensor. shape: numpy order. dtype: name of the type it has."""

    name: str
    shape: tuple[int, ...]
    dtype: str


# ---- which tensors are quantised at all

# Names with one of these parts stay as they are: norms, routers, small convolutions and states, positions.
_KEPT = (
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    *(f"time_mix_{part}.weight" for part in ("first", "w0", "w1", "w2", "v0", "v1", "v2", "a0", "a1", "a2")),
    *(f"time_mix_{part}.weight" for part in ("g1", "g2", "decay_w1", "decay_w2", "lerp_fused")),
    "attn_rel_b.weight",
    ".position_embd",
    "sam.pos_embd",
    "sam.neck.",
    "sam.net_",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
    "a.rvq.codebook",
    "mm.a.code_embd",
)
_KEPT_NAMES = ("position_embd.weight", "token_types.weight")


def is_quantised(tensor: Tensor) -> bool:
    """Whether a tensor is a matrix (or a stack of them) that quantising touches."""
    name = tensor.name
    axes = len(tensor.shape) - next((i for i, extent in enumerate(tensor.shape) if extent > 1), len(tensor.shape))
    if axes < 2 or not name.endswith("weight") or name in _KEPT_NAMES:
        return False
    return not any(part in name for part in _KEPT)


# ---- what a tensor is for

_ROLES = (
    ("attn_qkv.weight", "v"),
    ("attn_kv_b.weight", "v"),
    ("attn_v.weight", "v"),
    ("attn_k.weight", "k"),
    ("attn_q.weight", "q"),
    ("attn_output.weight", "attn_output"),
    ("ffn_up", "up"),
    ("ffn_gate", "gate"),
    ("ffn_down", "down"),
)


def role(name: str) -> str:
    """output, token_embd, v (also where it is fused with others), k, q, attn_output, up, gate, down, or ""."""
    if name == "output.weight":
        return "output"
    if name in ("token_embd.weight", "per_layer_token_embd.weight"):
        return "token_embd"
    return next((found for part, found in _ROLES if part in name), "")


# ---- fallbacks

_BLOCKS = {
    **dict.fromkeys(("f32", "f16", "bf16", "f64", "i8", "i16", "i32", "i64"), 1),
    **dict.fromkeys(("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q8_1", "iq4_nl", "mxfp4"), 32),
    **dict.fromkeys(("nvfp4", "q2_0"), 64),
    "q1_0": 128,
}  # the others: 256
_SMALLER_BLOCKS = {
    **dict.fromkeys(("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs"), "iq4_nl"),
    **dict.fromkeys(("q2_0", "q2_K", "q3_K", "tq1_0", "tq2_0"), "q4_0"),
    "q4_K": "q5_0",
    "q5_K": "q5_1",
    "q6_K": "q8_0",
    # llama.cpp has no rule for these, and stops.
    "nvfp4": "mxfp4",
    "q1_0": "q4_0",
}


def block(dtype: str) -> int:
    """Elements of a block."""
    return _BLOCKS.get(dtype, 256)


def fallback(dtype: str, columns: int) -> str:
    """The dtype of a tensor whose rows have so many elements: `dtype`, or what stands in for it."""
    if columns % block(dtype) == 0:
        return dtype
    smaller = _SMALLER_BLOCKS.get(dtype, dtype)
    return smaller if columns % block(smaller) == 0 else "f16"


# ---- the choice


@dataclass
class _Mixer:
    """Goes through the tensors in llama.cpp's order and counts what it has met, as the rules ask for it."""

    file: FileType
    model: Model
    v_tensors: int
    tied: bool
    output_type: str | None
    met: dict[str, int] = field(default_factory=dict)

    def choose(self, tensor: Tensor) -> str:
        """The dtype before fallbacks."""
        kind = role(tensor.name)
        if kind == "output" or (kind == "token_embd" and self.tied):
            return self._output(tensor)
        if self.file.name == "MXFP4_MOE":
            return "mxfp4" if len(tensor.shape) > 2 and tensor.shape[-3] > 1 else "q8_0"
        index = self.met.get(kind, 0)
        self.met[kind] = index + 1
        lowest = self.file.name in LOWEST
        if kind in ("down", "gate", "up") and self.model.experts > 1 and not lowest:
            index = _layer(tensor.name, index)  # experts do not come in order, so their names say where they are
        chosen = rule(kind, self.file.name, At(index, self.v_tensors, self.model)) or self.file.main
        if kind == "v" and self.model.seventy and not lowest and chosen in ("q3_K", "q4_K"):
            return "q5_K"
        return chosen

    def _output(self, tensor: Tensor) -> str:
        name, main = self.file.name, self.file.main
        if self.output_type is not None:
            return self.output_type
        unfit = tensor.shape[-1] % block(main) != 0
        if name == "MXFP4_MOE" or main == "q8_0" or self.model.architecture == "falcon" or unfit:
            return "q8_0"
        return "q5_K" if name == "IQ3_XXS" or name in LOWEST else "q6_K"


_BLOCK_NAME = re.compile(r"blk\.(\d{1,9})\.")


def _layer(name: str, otherwise: int) -> int:
    match = _BLOCK_NAME.match(name)
    return int(match[1]) if match else otherwise


def _order(tensor: Tensor) -> tuple[int, bytes]:
    """Tensors are counted by layer and then by name, wherever they stand in the file."""
    return _layer(tensor.name, -1), tensor.name.encode()


@dataclass(frozen=True)
class Choice:
    """The dtype a tensor gets, and the one it would have if its rows were long enough; the same where they are."""

    dtype: str
    wanted: str


def assign(
    tensors: Iterable[Tensor],
    file: FileType,
    model: Model,
    *,
    pure: bool = False,
    token_embedding_type: str | None = None,
    output_type: str | None = None,
) -> dict[str, Choice]:
    """The dtype of every tensor by name.

    pure: the main dtype for all, whatever the mix says.
    token_embedding_type, output_type: dtypes of these two; where a model has no output.weight, its embeddings are both.
    """
    ordered = sorted(tensors, key=_order)
    mixer = _Mixer(
        file,
        model,
        v_tensors=sum(role(t.name) == "v" for t in ordered),
        tied=all(t.name != "output.weight" for t in ordered),
        output_type=output_type,
    )
    chosen = {}
    for tensor in ordered:
        if not is_quantised(tensor):
            chosen[tensor.name] = Choice(tensor.dtype, tensor.dtype)
            continue
        kind = role(tensor.name)
        if kind == "token_embd" and token_embedding_type is not None:
            wanted = token_embedding_type
        elif kind == "output" and output_type is not None:
            wanted = output_type
        else:
            wanted = mixer.choose(tensor) if file.mixed and not pure else file.main
        chosen[tensor.name] = Choice(fallback(wanted, tensor.shape[-1]), wanted)
    return chosen
