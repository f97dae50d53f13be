"""Which tensor of a model gets which type when a file is quantised. Names and numbers in, names out; no file is read.

The mixes are those of llama.cpp, so that a file type means the same in both: its source (build 11434) was read for the
rules, and its `llama-quantize --dry-run` was run on made models whose tables the tests hold. docs/quantize.md tells the
rules in words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jackfield_llm.errors import QuantizationError

__all__ = ["FILE_TYPES", "Choice", "FileType", "Model", "Tensor", "assign", "block", "fallback", "file_type", "model_facts"]


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
    upper = name.upper()
    found = FILE_TYPES.get(_ALIASES.get(upper, upper))
    if found is not None:
        return found
    import difflib  # noqa: PLC0415 - needed for this text only

    near = difflib.get_close_matches(upper, FILE_TYPES, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise QuantizationError(f"there is no file type {name!r}{hint} known: {' '.join(FILE_TYPES)}")


@dataclass(frozen=True)
class Tensor:
    """What a decision needs of a tensor. shape: numpy order. dtype: name of the type it has."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Model:
    """What a decision needs of a model. importance: whether an importance file is given."""

    architecture: str = ""
    layers: int = 0
    heads: int = 0
    kv_heads: int = 0
    experts: int = 0
    importance: bool = False

    @property
    def shared(self) -> int:
        """Query heads that share a key and value head, rounded down."""
        return self.heads // self.kv_heads if self.kv_heads else 0

    @property
    def seventy(self) -> bool:
        """Whether llama.cpp takes this for a model of 70 billion weights: it knows them by their layers."""
        if self.architecture == "llama":
            return self.layers == 80 and self.heads != self.kv_heads
        return self.layers == _LAYERS_OF_70B.get(self.architecture, -1)


_LAYERS_OF_70B = {"qwen2": 80, "deci": 80, "olmo": 80, "jais2": 68}


def model_facts(metadata: Mapping[str, Any], *, importance: bool = False) -> Model:
    """The facts, as metadata tells them; what it does not tell counts as 0, as in llama.cpp."""
    architecture = metadata.get("general.architecture")
    architecture = architecture if isinstance(architecture, str) else ""

    def number(name: str, default: int) -> int:
        value = metadata.get(f"{architecture}.{name}", default)
        if isinstance(value, Sequence) and not isinstance(value, str) and len(value):
            value = value[0]  # one a layer: llama.cpp asks the first
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default

    heads = number("attention.head_count", 0)
    return Model(
        architecture=architecture,
        layers=number("block_count", 0),
        heads=heads,
        kv_heads=number("attention.head_count_kv", heads),
        experts=number("expert_count", 0),
        importance=importance,
    )


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
    *(f"time_mix_{part}.weight" for part in ("first", "w0", "w1", "w2", "v0", "v1", "v2", "a0", "a1", "a2", "g1", "g2")),
    *(f"time_mix_{part}.weight" for part in ("decay_w1", "decay_w2", "lerp_fused")),
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
    **dict.fromkeys(("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "mxfp4"), 32),
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


# ---- the mixes

_LOWEST = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M")


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
        kind, name = role(tensor.name), self.file.name
        if kind == "output" or (kind == "token_embd" and self.tied):
            return self._output(tensor)
        if name == "MXFP4_MOE":
            return "mxfp4" if len(tensor.shape) > 2 and tensor.shape[-3] > 1 else "q8_0"
        if kind == "token_embd":
            return _EMBEDDINGS.get(name, self.file.main)
        index = self.met.get(kind, 0)
        self.met[kind] = index + 1
        if name in _LOWEST:
            return self._lowest(kind, index)
        if kind == "v":
            return self._values(index)
        if kind in ("down", "gate", "up") and self.model.experts > 1:
            index = _layer(tensor.name, index)  # experts do not come in order, so their names say where they are
        if kind == "down":
            return self._down(index)
        if kind in ("gate", "up"):
            inner = name == "IQ3_XS" and self._eighth() <= index < 7 * self.model.layers // 8
            return "iq3_xxs" if inner else self.file.main
        if kind in ("k", "q"):
            return self._keys_and_queries(kind)
        return self._attention_output() if kind == "attn_output" else self.file.main

    def _eighth(self) -> int:
        return self.model.layers // 8

    def _output(self, tensor: Tensor) -> str:
        name, main = self.file.name, self.file.main
        if self.output_type is not None:
            return self.output_type
        unfit = tensor.shape[-1] % block(main) != 0
        if name == "MXFP4_MOE" or self.model.architecture == "falcon" or unfit:
            return "q8_0"
        if name in _LOWEST or name == "IQ3_XXS":
            return "q5_K"
        return main if main == "q8_0" else "q6_K"

    def _lowest(self, kind: str, index: int) -> str:
        """The file types of two bits and less."""
        name, model = self.file.name, self.model
        better = "iq3_s" if name in ("IQ2_S", "IQ2_M") else "q2_K"
        if kind == "v":
            return "q4_K" if model.shared >= 4 or model.experts >= 4 else better
        if kind == "k" and model.experts == 8:
            return "q4_K"
        if kind == "down" and index < self._eighth():
            return better
        if kind == "attn_output":
            if model.experts == 8:
                return "q5_K"
            return {"IQ1_S": "iq2_xxs", "IQ1_M": "iq2_xxs", "IQ2_S": "iq3_s", "IQ2_M": "iq3_s"}.get(name, self.file.main)
        return self.file.main

    def _values(self, index: int) -> str:
        model = self.model
        if model.experts == 8:
            return "q8_0"
        chosen = self._plain_values(index)
        return "q5_K" if model.seventy and chosen in ("q3_K", "q4_K") else chosen

    def _plain_values(self, index: int) -> str:
        name, main, shared = self.file.name, self.file.main, self.model.shared >= 4
        if name == "Q2_K":
            return "q4_K" if shared else "q3_K"
        if name == "IQ3_XXS":
            return "q4_K" if shared else main if self.model.importance else "iq3_s"
        if name in ("Q2_K_S", "IQ3_XS", "IQ3_S"):
            return "q4_K" if shared else main
        if name in ("IQ4_NL", "IQ4_XS"):
            return "q5_K" if shared else main
        if name == "Q3_K_M":
            return "q5_K" if index < 2 else "q4_K"
        if name in ("Q4_K_M", "Q5_K_M"):
            return "q6_K" if more_bits(index, self.v_tensors) else main
        if name == "Q4_K_S":
            return "q5_K" if index < 4 else main
        return {"IQ3_M": "q4_K", "Q3_K_L": "q5_K"}.get(name, main)

    def _keys_and_queries(self, kind: str) -> str:
        if kind == "k" and self.model.experts == 8:
            return "q8_0"
        return {"IQ3_XS": "iq3_xxs", "IQ3_XXS": "iq2_s"}.get(self.file.name, self.file.main)

    def _down(self, index: int) -> str:
        name, main, model = self.file.name, self.file.main, self.model
        falcon, early = model.architecture == "falcon", index < self._eighth()
        more = more_bits(index, model.layers)
        if name == "Q2_K":
            return "q3_K"
        if name == "Q2_K_S":
            return "q4_K" if early else main
        if name == "IQ3_XXS":
            return main if model.importance else "q4_K" if early else "q3_K"
        if name == "Q3_K_M":
            first = index < model.layers // 16
            return "q5_K" if first else main if falcon and not more else "q4_K"
        if name == "Q3_K_L":
            return "q4_K" if falcon else "q5_K"
        if name == "IQ3_M":
            return "q4_K" if early or (model.experts == 8 and more) else main
        if name == "Q4_K_M" and falcon:
            return "q6_K" if index < model.layers // 16 else "q5_K" if more else main
        if name in ("Q4_K_M", "Q5_K_M"):
            return "q6_K" if more else main
        if name == "Q4_K_S":
            return "q5_K" if early and not falcon else main
        if early and not model.importance:
            return {"IQ4_NL": "q5_K", "IQ4_XS": "q5_K"}.get(name, main)
        return {"Q4_0": "q4_1", "Q5_0": "q5_1"}.get(name, main) if early else main

    def _attention_output(self) -> str:
        name, main = self.file.name, self.file.main
        if self.model.architecture == "falcon":
            return "q4_K" if name == "Q3_K_L" else main
        if self.model.experts == 8:
            return "q5_K" if name in _BETTER_FOR_8_EXPERTS else main
        return _ATTENTION_OUTPUT.get(name, main)


_EMBEDDINGS = {
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS"), "q2_K"),
    **dict.fromkeys(("IQ2_S", "IQ2_M", "IQ3_XXS"), "iq3_s"),
    **dict.fromkeys(("TQ1_0", "TQ2_0", "Q2_0"), "q4_K"),
}
_ATTENTION_OUTPUT = {"Q2_K": "q3_K", "IQ3_XXS": "iq3_s", "Q3_K_M": "q4_K", "IQ3_M": "q4_K", "Q3_K_L": "q5_K"}
_BETTER_FOR_8_EXPERTS = (
    *("Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M"),
    *("IQ3_XXS", "IQ3_XS", "IQ3_S", "IQ3_M", "IQ4_NL", "IQ4_XS"),
)
_BLOCK_NAME = re.compile(r"blk\.(\d{1,9})\.")


def more_bits(index: int, count: int) -> bool:
    """Whether this one of `count` layers gets more bits: the first and last eighth, and every third between."""
    eighth = count // 8
    return index < eighth or index >= 7 * count // 8 or (index - eighth) % 3 == 2


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
