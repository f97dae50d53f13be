"""GGUF language models on jackfield's public API: load a file, ask it, read the answer as it comes."""

from __future__ import annotations

from jackfield_llm.errors import ChatError, ContextOverflow, ModelError, SamplingError, SourceError, TokenizerError
from jackfield_llm.generation import Generation, Stats
from jackfield_llm.model import Model, load
from jackfield_llm.sampling import Sampler
from jackfield_llm.sources import resolve
from jackfield_llm.tokenizer import Tokenizer

__all__ = [
    "ChatError",
    "ContextOverflow",
    "Generation",
    "Model",
    "ModelError",
    "Sampler",
    "SamplingError",
    "SourceError",
    "Stats",
    "Tokenizer",
    "TokenizerError",
    "load",
    "resolve",
]
