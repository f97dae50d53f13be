"""Which role in a model gets more bits than the rest: the mixes of llama.cpp's file types, as a table.

Source: llama.cpp (build 11434) was read for the rules; what its `llama-quantize --dry-run` said of made models is what
the tests compare with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["LOWEST", "At", "Model", "model_facts", "more_bits", "rule"]

LOWEST = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M")
"""File types of less than three bits, which have rules of their own."""


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


@dataclass(frozen=True)
class At:
    """Where a rule is asked. index: which tensor of its role this is, from 0; v_tensors: how many values there are."""

    index: int
    v_tensors: int
    model: Model

    @property
    def early(self) -> bool:
        return self.index < self.model.layers // 8

    @property
    def first(self) -> bool:
        return self.index < self.model.layers // 16

    @property
    def middle(self) -> bool:
        return not self.early and self.index < 7 * self.model.layers // 8

    @property
    def more(self) -> bool:
        return more_bits(self.index, self.model.layers)

    @property
    def shared(self) -> bool:
        return self.model.shared >= 4

    @property
    def eight(self) -> bool:
        return self.model.experts == 8

    @property
    def falcon(self) -> bool:
        return self.model.architecture == "falcon"

    @property
    def unguided(self) -> bool:
        return not self.model.importance


def more_bits(index: int, count: int) -> bool:
    """Whether this one of `count` layers gets more bits: the first and last eighth, and every third between."""
    eighth = count // 8
    return index < eighth or index >= 7 * count // 8 or (index - eighth) % 3 == 2


def _always(_: At) -> bool:
    return True


_ANY = "*"
_MAIN = ""

# By role: file types, when, and the dtype. The first row that applies counts; where none does, the file's main dtype.
_RULES: Mapping[str, tuple[tuple[str, Callable[[At], bool], str], ...]] = {
    "token_embd": (
        ("IQ1_S IQ1_M IQ2_XXS IQ2_XS", _always, "q2_K"),
        ("IQ2_S IQ2_M IQ3_XXS", _always, "iq3_s"),
        ("TQ1_0 TQ2_0 Q2_0", _always, "q4_K"),
    ),
    "v": (
        (" ".join(LOWEST), lambda at: at.shared or at.model.experts >= 4, "q4_K"),
        ("IQ2_S IQ2_M", _always, "iq3_s"),
        (" ".join(LOWEST), _always, "q2_K"),
        (_ANY, lambda at: at.eight, "q8_0"),
        ("Q2_K Q2_K_S IQ3_XXS IQ3_XS IQ3_S", lambda at: at.shared, "q4_K"),
        ("IQ4_NL IQ4_XS", lambda at: at.shared, "q5_K"),
        ("Q2_K", _always, "q3_K"),
        ("IQ3_XXS", lambda at: at.unguided, "iq3_s"),
        ("Q3_K_M", lambda at: at.index < 2, "q5_K"),
        ("Q3_K_M IQ3_M", _always, "q4_K"),
        ("Q3_K_L", _always, "q5_K"),
        ("Q4_K_S", lambda at: at.index < 4, "q5_K"),
        ("Q4_K_M Q5_K_M", lambda at: more_bits(at.index, at.v_tensors), "q6_K"),
    ),
    "k": (
        (" ".join(LOWEST), lambda at: at.eight, "q4_K"),
        (_ANY, lambda at: at.eight, "q8_0"),
        ("IQ3_XS", _always, "iq3_xxs"),
        ("IQ3_XXS", _always, "iq2_s"),
    ),
    "q": (
        ("IQ3_XS", _always, "iq3_xxs"),
        ("IQ3_XXS", _always, "iq2_s"),
    ),
    "attn_output": (
        (" ".join(LOWEST), lambda at: at.eight, "q5_K"),
        ("IQ1_S IQ1_M", _always, "iq2_xxs"),
        ("IQ2_S IQ2_M", _always, "iq3_s"),
        ("Q3_K_L", lambda at: at.falcon, "q4_K"),
        (_ANY, lambda at: at.falcon, _MAIN),
        ("Q2_K Q3_K_S Q3_K_M Q4_K_S Q4_K_M", lambda at: at.eight, "q5_K"),
        ("IQ3_XXS IQ3_XS IQ3_S IQ3_M IQ4_NL IQ4_XS", lambda at: at.eight, "q5_K"),
        (_ANY, lambda at: at.eight, _MAIN),
        ("Q2_K", _always, "q3_K"),
        ("IQ3_XXS", _always, "iq3_s"),
        ("Q3_K_M IQ3_M", _always, "q4_K"),
        ("Q3_K_L", _always, "q5_K"),
    ),
    "down": (
        ("IQ2_S IQ2_M", lambda at: at.early, "iq3_s"),
        (" ".join(LOWEST), lambda at: at.early, "q2_K"),
        ("Q2_K", _always, "q3_K"),
        ("Q2_K_S", lambda at: at.early, "q4_K"),
        ("IQ3_XXS", lambda at: at.unguided and at.early, "q4_K"),
        ("IQ3_XXS", lambda at: at.unguided, "q3_K"),
        ("IQ3_M", lambda at: at.early or (at.eight and at.more), "q4_K"),
        ("Q3_K_M", lambda at: at.first, "q5_K"),
        ("Q3_K_M", lambda at: at.more or not at.falcon, "q4_K"),
        ("Q3_K_L", lambda at: at.falcon, "q4_K"),
        ("Q3_K_L", _always, "q5_K"),
        ("Q4_K_S", lambda at: at.early and not at.falcon, "q5_K"),
        ("Q4_K_M", lambda at: at.falcon and at.first, "q6_K"),
        ("Q4_K_M", lambda at: at.falcon and at.more, "q5_K"),
        ("Q4_K_M", lambda at: at.more and not at.falcon, "q6_K"),
        ("Q5_K_M", lambda at: at.more, "q6_K"),
        ("IQ4_NL IQ4_XS", lambda at: at.unguided and at.early, "q5_K"),
        ("Q4_0", lambda at: at.early and not at.unguided, "q4_1"),
        ("Q5_0", lambda at: at.early and not at.unguided, "q5_1"),
    ),
    "gate": (("IQ3_XS", lambda at: at.middle, "iq3_xxs"),),
    "up": (("IQ3_XS", lambda at: at.middle, "iq3_xxs"),),
}


def rule(role: str, file_type: str, at: At) -> str:
    """The dtype a role gets in a file type; "" for the main one of the file."""
    for files, applies, dtype in _RULES.get(role, ()):
        if (files == _ANY or file_type in files.split()) and applies(at):
            return dtype
    return _MAIN
