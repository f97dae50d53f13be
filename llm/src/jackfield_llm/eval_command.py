"""The command `jackfield eval`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from jackfield_llm.commands import for_documents, quietly
from jackfield_llm.comparison import compare_models, default_text, default_window
from jackfield_llm.errors import EvaluationError
from jackfield_llm.evaluation import Estimate, Figures
from jackfield_llm.model import CACHE_DTYPES, Model, load
from jackfield_llm.progress import Bar
from jackfield_llm.sources import resolve

__all__ = ["evaluate"]


@click.command("eval")
@click.argument("model", required=False)
@click.option(
    "--against",
    required=True,
    metavar="FILE|DEVICE",
    help="Another model file with the same vocabulary, or another device for the same file.",
)
@click.option("--text", metavar="FILE", help="A text to judge by; - is standard input. Default: one of this package.")
@click.option(
    "--context", type=click.IntRange(min=2), help="Tokens evaluated together. Default: 512, or what the models know."
)
@click.option("--tokens", type=click.IntRange(min=2), help="At most so many tokens of the text. Default: all.")
@click.option("-d", "--device", metavar="SELECTION", help="Devices, such as cpu or reference. Default: the best.")
@click.option(
    "--cache-dtype",
    type=click.Choice(list(CACHE_DTYPES)),
    default="f16",
    show_default=True,
    help="Dtype of the keys and values of MODEL; the other's are f16.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def evaluate(
    *,
    model: str | None,
    against: str,
    text: str | None,
    context: int | None,
    tokens: int | None,
    device: str | None,
    cache_dtype: str,
    as_json: bool,
) -> None:
    """Compare a model's predictions with another's.

    The other is another file, or the same one on another device. MODEL and FILE are a path, hf:owner/repo/file.gguf,
    pkg:NAME==VERSION or "default", which MODEL is where none is given. Both read a text; after each token P is what
    the other model expects next, and Q what MODEL expects.

    \b
    KL divergence  mean of sum P (log P - log Q), in nats; 0 where both agree
    RMS of dp      root of the mean square of Q(t) - P(t), t being the token that came, as llama.cpp defines it
    same top       share of positions where both have the same likeliest token
    perplexity     exp of the mean of -log Q(t), and of -log P(t)

    Each with its standard error over the positions.
    """  # noqa: D301 - \b is click's sign not to wrap
    with quietly(), for_documents(as_json=as_json) as place:
        source = resolve(model)
        other = resolve(against) if _is_source(against) else None
        words = _text(text)
        window = context or default_window(source, other or source)
        with _models(source, other, device, against, window, cache_dtype) as (judged, base), Bar(steps=True) as bar:
            found = compare_models(
                judged,
                base,
                words,
                window=window,
                tokens=tokens,
                report=lambda done, total: bar("comparing", done, total),
            )
            alike = other is not None and other != source and other.name == source.name
            names = {
                "model": str(source) if alike else source.name,
                "device": judged.device_names,
                "cache_dtype": cache_dtype,
                "against": str(other) if alike else (other or source).name,
                "against_device": base.device_names,
                "text": "jackfield_llm/eval_text.txt" if text is None else text,
                "window": window,
            }
        if other in (None, source) and cache_dtype == _BASE_CACHE and names["device"] == names["against_device"]:
            click.echo(f"note: both sides are {names['model']} on {names['device']}: they can't differ", err=True)
        click.echo(_table(names, found) if place is None else _document(names, found), file=place)


def _is_source(against: str) -> bool:
    """Whether this names a model file; what else it may be is a device."""
    return (
        against == "default"
        or against.startswith(("hf:", "pkg:"))
        or against.endswith(".gguf")
        or Path(against).expanduser().exists()
    )


def _text(path: str | None) -> str:
    if path is None:
        return default_text()
    try:
        if path == "-":
            return "" if sys.stdin is None else sys.stdin.read()
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as e:
        raise EvaluationError(f"{path}: is no UTF-8 text: byte {e.start} is wrong") from e
    except OSError as e:
        raise EvaluationError(f"{path}: can't be read: {e.strerror or e}") from e


_BASE_CACHE = "f16"  # of the model compared with, whatever the other's


@contextmanager
def _models(
    source: Path, other: Path | None, device: str | None, against: str, window: int, cache_dtype: str
) -> Iterator[tuple[Model, Model]]:
    """The model judged, and the one it is compared with."""
    with ExitStack() as open_models:
        judged = open_models.enter_context(load(source, device, context=window, cache_dtype=cache_dtype))
        where = (source, against) if other is None else (other, device)
        yield judged, open_models.enter_context(load(*where, context=window, cache_dtype=_BASE_CACHE))


def _document(names: dict[str, Any], found: Figures) -> str:
    return json.dumps({"schema": "jackfield.eval/1", **names, **asdict(found)}, ensure_ascii=False)


def _table(names: dict[str, Any], found: Figures) -> str:
    rows = (
        ("model", f"{names['model']} on {names['device']}, cache of {names['cache_dtype']}"),
        ("against", f"{names['against']} on {names['against_device']}"),
        ("text", f"{names['text']}: {found.positions} tokens predicted, {_windows(found.positions, names['window'])}"),
        ("KL divergence", f"{_said(found.kl, 6)}; 99th percentile {found.kl_99:.6f}, largest {found.kl_max:.6f}"),
        ("RMS of dp", _percent(found.rms)),
        ("same top", _percent(found.agreement)),
        ("perplexity", f"{_said(found.perplexity, 4)} against {_said(found.base_perplexity, 4)}"),
        ("ratio", _said(found.ratio, 6)),
    )
    return "\n".join(f"{name:<14} {value}" for name, value in rows)


def _windows(positions: int, window: int) -> str:
    return f"windows of {window}" if positions > window else "one window"


def _said(estimate: Estimate, digits: int) -> str:
    return f"{estimate.value:.{digits}f} +- {estimate.error:.{digits}f}"


def _percent(estimate: Estimate) -> str:
    return f"{100 * estimate.value:.3f} % +- {100 * estimate.error:.3f} %"
