"""Text out of tokens that come one by one; a character spread over several of them is held back until it is whole."""

from __future__ import annotations

import codecs
from collections.abc import Callable

__all__ = ["Stream"]


class Stream:
    """Incremental decoder. What it gives, put together, is what decoding all tokens at once gives."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that is complete after this token; "" while a character is unfinished."""
        return self._decoder.decode(self._token_bytes(token))

    def flush(self) -> str:
        """What was held back, when no more tokens come: U+FFFD for an unfinished character."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
