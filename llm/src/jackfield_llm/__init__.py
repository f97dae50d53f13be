"""GGUF language models on jackfield's public API: load a file, ask it, read the answer as it comes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jackfield_llm.comparison import compare_models, default_text
from jackfield_llm.errors import (
    ChatError,
    ContextOverflow,
    EvaluationError,
    ModelError,
    QuantizationError,
    SamplingError,
    SourceError,
    TokenizerError,
)
from jackfield_llm.evaluation import Figures
from jackfield_llm.generation import Generation, Stats
from jackfield_llm.model import Model, load
from jackfield_llm.sampling import Sampler
from jackfield_llm.sources import resolve
from jackfield_llm.tokenizer import Tokenizer

if TYPE_CHECKING:
    from jackfield_llm.quantized_file import quantize

__all__ = [
    "ChatError",
    "ContextOverflow",
    "EvaluationError",
    "Figures",
    "Generation",
    "Model",
    "ModelError",
    "QuantizationError",
    "Sampler",
    "SamplingError",
    "SourceError",
    "Stats",
    "Tokenizer",
    "TokenizerError",
    "compare_models",
    "default_text",
    "load",
    "quantize",
    "resolve",
]


def __getattr__(name: str) -> Any:
    if name != "quantize":
        raise AttributeError(f"module 'jackfield_llm' has no attribute {name!r}")
    # The package gguf, which writes headers, takes as long to import as all the rest.
    from jackfield_llm.quantized_file import quantize  # noqa: PLC0415

    return quantize
