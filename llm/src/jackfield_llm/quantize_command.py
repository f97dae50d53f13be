"""The command `jackfield quantize`."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

from jackfield_llm import quantized_file
from jackfield_llm.commands import quietly
from jackfield_llm.errors import shown
from jackfield_llm.progress import Bar
from jackfield_llm.quantization import FILE_TYPES
from jackfield_llm.sources import resolve

__all__ = ["quantize"]

_TYPES = f"TYPE is one of {' '.join(FILE_TYPES)}, in any case; Q3_K, Q4_K and Q5_K are the ones with _M."


@click.command(epilog=_TYPES)
@click.argument("source", metavar="IN.gguf")
@click.argument("target", metavar="OUT.gguf", type=click.Path(path_type=Path))
@click.argument("kind", metavar="TYPE")
@click.option("--pure", is_flag=True, help="One type for all matrices, without the mix of the file type.")
@click.option("--token-embedding-type", metavar="DTYPE", help="Type of the token embeddings, such as q8_0.")
@click.option("--output-type", metavar="DTYPE", help="Type of the output matrix, such as q6_K.")
@click.option(
    "--importance",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="How much each column matters: a GGUF file that llama.cpp's llama-imatrix writes.",
)
@click.option("--force", is_flag=True, help="Replace OUT.gguf if it is there.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads that encode. Default: one a core.")
def quantize(
    source: str,
    target: Path,
    kind: str,
    *,
    pure: bool,
    token_embedding_type: str | None,
    output_type: str | None,
    importance: Path | None,
    force: bool,
    threads: int | None,
) -> None:
    """Write a model again, its matrices in smaller types.

    The model IN.gguf becomes OUT.gguf, which appears when it is complete. IN.gguf is a path, hf:owner/repo/file.gguf,
    pkg:NAME==VERSION or "default". Which matrix gets which type is decided as in llama.cpp; vectors, norms and routers
    stay as they are.
    """
    with quietly(), _ended_in_order(), Bar() as bar:
        summary = quantized_file.quantize(
            resolve(source),
            target,
            kind,
            pure=pure,
            token_embedding_type=token_embedding_type,
            output_type=output_type,
            importance=importance,
            force=force,
            threads=threads,
            progress=bar,
        )
    for note in _notes(summary):
        click.echo(f"note: {note}", err=True)
    click.echo(_line(target, summary))


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """A signal that ends programs, as from a batch system or a closed terminal, leaves no half file behind."""
    usual = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    ours = [number for number in usual if signal.getsignal(number) is signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():  # only the main one may set handlers
        ours = []
    for number in ours:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _end(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)  # as shells count it


def _line(target: Path, summary: quantized_file.Summary) -> str:
    types = ", ".join(f"{count} {name}" for name, count in summary.types.most_common())
    before, after = summary.nbytes_before / 1e6, summary.nbytes / 1e6
    return (
        f"{target}: {summary.file_type}, {summary.elements / 1e6:,.1f} M weights, {before:,.1f} MB -> {after:,.1f} MB, "
        f"{summary.bits_per_weight:.2f} bits per weight ({types})"
    )


def _notes(summary: quantized_file.Summary) -> list[str]:
    notes = []
    if summary.requantised:
        types = ", ".join(f"{count} {name}" for name, count in summary.requantised.most_common())
        notes.append(f"quantised before, so that both losses add up: {types}")
    if summary.stand_ins:
        pairs: dict[tuple[str, str], int] = {}
        for pair in summary.stand_ins.values():
            pairs[pair] = pairs.get(pair, 0) + 1
        told = ", ".join(f"{count} {got} for {wanted}" for (wanted, got), count in pairs.items())
        notes.append(f"rows are no whole number of blocks, so another type stands in: {told}")
    if summary.uncovered:
        more = f" and {len(summary.uncovered) - 3} more" if len(summary.uncovered) > 3 else ""
        names = ", ".join(shown(name) for name in summary.uncovered[:3])
        notes.append(f"--importance knows nothing of {names}{more}; these were written without")
    if summary.unguided:
        notes.append(f"{', '.join(summary.unguided)} lose much without --importance")
    return notes
