"""WordPiece vocabularies (BERT), served by the library `tokenizers`.

GGUF files mark the beginning of a word with "▁"; the library marks what is not the beginning, here with the same sign.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers, pre_tokenizers

from jackfield_llm.errors import TokenizerError
from jackfield_llm.tokenizer.vocabulary import Vocabulary

__all__ = ["WordPiece"]

_START = "▁"
_LONGEST_WORD = 1 << 20  # letters; the library would take a longer word for unknown


class WordPiece:
    """The longest tokens from the left, within words that white space, signs and Chinese characters separate."""

    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> None:
        if vocabulary.unknown is None:
            raise TokenizerError("tokenizer.ggml.unknown_token_id: absent; this kind of vocabulary needs one")
        self.texts = vocabulary.tokens
        unknown = vocabulary.tokens[vocabulary.unknown]
        controls = set(vocabulary.controls())
        ids = {
            text[1:] if text[0] == _START and len(text) > 1 else _START + text: token
            for token, text in enumerate(vocabulary.tokens)
            if text not in controls
        }
        ids[unknown] = vocabulary.unknown
        self._library = Library(
            models.WordPiece(
                ids, unk_token=unknown, continuing_subword_prefix=_START, max_input_chars_per_word=_LONGEST_WORD
            )
        )
        self._library.normalizer = normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=True,
            strip_accents=vocabulary.strip_accents,
            lowercase=vocabulary.lowercase,
        )
        self._library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        return list(self._library.encode(text, add_special_tokens=False).ids)

    def piece(self, text: str) -> bytes:
        return text.replace(_START, " ").encode()
