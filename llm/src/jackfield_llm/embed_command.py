"""The command `jackfield embed`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import click
import numpy as np
from numpy.typing import NDArray

from jackfield_llm.commands import for_documents, quietly, standard_input
from jackfield_llm.embedding import POOLINGS, chosen_pooling
from jackfield_llm.model import Model, load
from jackfield_llm.sources import DEFAULT, resolve

__all__ = ["embed"]


@click.command()
@click.argument("texts", metavar="TEXT...", nargs=-1, required=True)
@click.option(
    "-m",
    "--model",
    metavar="SOURCE",
    help=f"A path, hf:owner/repo/file.gguf or pkg:NAME==VERSION. Default: {DEFAULT}.",
)
@click.option("-d", "--device", metavar="SELECTION", help="Devices, such as cpu or reference. Default: the best.")
@click.option(
    "-c",
    "--context",
    type=click.IntRange(min=1),
    help="The most tokens of a text. Default: what the model knows, at most 4096 where it has attention.",
)
@click.option("--pooling", type=click.Choice(POOLINGS), help="How one vector is made of many. Default: the file's.")
@click.option("--raw", is_flag=True, help="Leave the vectors as long as they are; otherwise all have the length 1.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def embed(
    *,
    texts: Sequence[str],
    model: str | None,
    device: str | None,
    context: int | None,
    pooling: str | None,
    raw: bool,
    as_json: bool,
) -> None:
    """Print a vector for each TEXT, one a line.

    A single TEXT of - is standard input, each of its lines a text. Models made for this are best, such as bert and
    nomic-bert files, but any will do.
    """
    with (
        quietly(),
        for_documents(as_json=as_json) as place,
        load(resolve(model), device, context=context) as opened,
    ):
        given = _lines() if tuple(texts) == ("-",) else list(texts)
        vectors = opened.embed(given, pooling=pooling, normalize=not raw)
        if place is not None:
            click.echo(json.dumps(_document(opened, vectors, pooling, normalized=not raw)), file=place)
            return
        for row in _words(vectors):
            click.echo(row)


def _lines() -> list[str]:
    return standard_input().read().splitlines()


def _words(vectors: NDArray[np.float32]) -> Iterator[str]:
    """As many digits as a float32 has."""
    for vector in vectors:
        yield " ".join(f"{value:.8g}" for value in vector.tolist())


def _document(
    model: Model, vectors: NDArray[np.float32], pooling: str | None, *, normalized: bool
) -> dict[str, object]:
    return {
        "schema": "jackfield.embed/1",
        "device": model.device_names,
        "architecture": model.config.architecture,
        "pooling": chosen_pooling(pooling, model.config),
        "normalized": normalized,
        "width": vectors.shape[1],
        "embeddings": vectors.tolist(),
    }
