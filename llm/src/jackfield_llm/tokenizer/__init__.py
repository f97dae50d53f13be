"""Text to token ids and back, from the metadata of a GGUF file."""

from __future__ import annotations

from jackfield_llm.tokenizer.stream import Stream
from jackfield_llm.tokenizer.tokenizer import Tokenizer

__all__ = ["Stream", "Tokenizer"]
