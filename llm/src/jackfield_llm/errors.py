"""What can go wrong with a language model, as branches of jackfield's own tree.

* jackfield.errors.Error
  - ModelError               a model file that cannot be used
    - TokenizerError         its vocabulary is unknown or contradicts itself; also a ValueError
    - ChatError              its chat template is absent, hostile or refuses the messages; also a ValueError
  - ContextOverflow          more tokens than the context holds; also a ValueError
  - SamplingError            a sampling parameter, or logits, out of range; also a ValueError
  - SourceError              a model that cannot be found, fetched or trusted
  - QuantizationError        a file that cannot be quantised as asked; also a ValueError
  - EvaluationError          two models that cannot be compared; also a ValueError
"""

from __future__ import annotations

from jackfield import Error

__all__ = [
    "ChatError",
    "ContextOverflow",
    "EvaluationError",
    "ModelError",
    "QuantizationError",
    "SamplingError",
    "SourceError",
    "TokenizerError",
    "shown",
]

_LONGEST = 80  # characters of a value from a file that an error repeats


def shown(value: object) -> str:
    """A value out of a file, for an error's text: as Python writes it, so safe for a terminal, cut where it is long."""
    text = repr(value[: _LONGEST + 1] if isinstance(value, (str, bytes)) else value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


class ModelError(Error):
    """A model file that cannot be used."""


class TokenizerError(ModelError, ValueError):
    """A vocabulary that is of an unknown kind, or contradicts itself."""


class ChatError(ModelError, ValueError):
    """A chat template that is absent, hostile, wrong, or that refuses the messages."""


class ContextOverflow(Error, ValueError):
    """More tokens than the context holds; the text names the limit.

    needed, limit: tokens.
    """

    def __init__(self, message: str, *, needed: int, limit: int) -> None:
        super().__init__(message)
        self.needed = needed
        self.limit = limit


class SamplingError(Error, ValueError):
    """A sampling parameter out of its range, or logits nothing can be drawn from."""


class SourceError(Error):
    """A model that cannot be found, fetched or trusted; the text says what was tried."""


class QuantizationError(Error, ValueError):
    """A file that cannot be quantised as asked."""


class EvaluationError(Error, ValueError):
    """Two models that cannot be compared, or a text too short to compare them on."""
