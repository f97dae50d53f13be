"""Two models read the same text, and their predictions are compared; the figures are those of `evaluation`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import jackfield as jf
from jackfield_llm.config import read_config
from jackfield_llm.errors import EvaluationError, shown
from jackfield_llm.evaluation import Figures, Positions, compare, figures, joined
from jackfield_llm.model import Model
from jackfield_llm.tokenizer import Tokenizer

__all__ = ["Window", "check_vocabularies", "compare_models", "default_text", "default_window", "windows"]

_WINDOW = 512


def default_text() -> str:
    """The text of this package: plain English of a few hundred words, written for it."""
    return (resources.files("jackfield_llm") / "eval_text.txt").read_text(encoding="utf-8")


def default_window(*paths: Path) -> int:
    """Tokens of a window: 512, or what the model with the shortest context knows."""
    known = []
    for path in paths:
        with jf.gguf.open(path) as file:
            known.append(read_config(file.metadata).context)
    return min(_WINDOW, *known)


@dataclass(frozen=True)
class Window:
    """Tokens that are evaluated together from an empty cache, and what came after each of them."""

    ids: tuple[int, ...]
    targets: tuple[int, ...]


def windows(text: Sequence[int], length: int, bos: int | None) -> Iterator[Window]:
    """Cut a text into windows of at most `length` tokens; every token is a target once.

    bos: put in front of each window; None for none, and then the text's first token is no target.
    """
    front = [] if bos is None else [bos]
    targets = text if front else text[1:]
    for at in range(0, len(targets), length):
        part = targets[at : at + length]
        before = text[at : at + len(part) - len(front)]
        yield Window((*front, *before), tuple(part))


def check_vocabularies(judged: Tokenizer, base: Tokenizer) -> None:
    """Raises EvaluationError unless both give every id the same meaning."""
    if judged.vocab_size != base.vocab_size:
        raise EvaluationError(
            f"the vocabularies have {judged.vocab_size} and {base.vocab_size} tokens: only models with the same one "
            "can be compared"
        )
    for token in range(judged.vocab_size):
        one, other = judged.token_bytes(token), base.token_bytes(token)
        if one != other:
            raise EvaluationError(
                f"token {token} is {shown(one)} in one model and {shown(other)} in the other: only models with the "
                "same vocabulary can be compared"
            )


def compare_models(
    judged: Model,
    base: Model,
    text: str,
    *,
    window: int,
    tokens: int | None = None,
    report: Callable[[int, int], None] | None = None,
) -> Figures:
    """Figures of one model's predictions beside another's, over a text.

    window: tokens evaluated together, from an empty cache; both models' contexts must hold them.
    tokens: only so many of the text. report: called with the tokens done and those in all.
    Raises: EvaluationError for vocabularies that differ, one Model given as both, a window or a number of tokens below
        1, or a text of fewer than two tokens to predict.
    """
    if judged is base:
        raise EvaluationError("both sides are one Model, whose cache holds one text at a time: load the file twice")
    for name, count in (("window", window), ("tokens", tokens)):
        if count is not None and count < 1:
            raise EvaluationError(f"{name} is {count}: must be at least 1")
    check_vocabularies(judged.tokenizer, base.tokenizer)
    bos = judged.tokenizer.bos_id if judged.tokenizer.adds_bos else None
    cut = list(windows(judged.tokenize(text)[:tokens], window, bos))
    total, done = sum(len(one.targets) for one in cut), 0
    parts: list[Positions] = []
    for one in cut:
        pairs = zip(base.logit_parts(one.ids), judged.logit_parts(one.ids), strict=True)
        at = 0
        for theirs, ours in pairs:
            parts.append(compare(theirs, ours, one.targets[at : at + len(ours)]))
            at += len(ours)
            done += len(ours)
            if report is not None:
                report(done, total)
    return figures(joined(parts))
