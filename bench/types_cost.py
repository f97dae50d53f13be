"""What each file type costs: size, time to quantise, and how far predictions move.

    python bench/types_cost.py [MODEL] [--device NAME] [--text FILE] [--types Q8_0,Q4_0,...] [--json FILE]

MODEL (default: the default model) is quantised to each type into a temporary folder. What comes out is written as F32,
which holds the same weights, and compared with MODEL as F32, as `jackfield eval` does: so each device has kernels for
it, and what is seen is the type and not how a device multiplies it. Needs a few times the disk of MODEL in F32.
Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from machine import origin

import jackfield_llm
from jackfield_llm.comparison import compare_models, default_text
from jackfield_llm.quantized_file import quantize

TYPES = "Q8_0,Q6_K,Q5_K_M,Q5_1,Q5_0,Q4_K_M,Q4_K_S,Q4_1,Q4_0,IQ4_NL,IQ4_XS,MXFP4,NVFP4,Q3_K_M,IQ3_S,Q2_K,IQ2_XS"
COLUMNS = ("type", "bits per weight", "MB", "quantised in", "KL", "99 % of KL", "RMS of dp", "same top", "perplexity")


class Remembered:
    """A model that evaluates each window once."""

    def __init__(self, model: jackfield_llm.Model) -> None:
        self.tokenizer = model.tokenizer
        self._model = model
        self._known: dict[tuple[int, ...], list[np.ndarray]] = {}

    def logit_parts(self, ids: Sequence[int]) -> Iterator[np.ndarray]:
        key = tuple(ids)
        if key not in self._known:
            self._known[key] = list(self._model.logit_parts(ids))
        return iter(self._known[key])


def row(kind: str, found: dict[str, object]) -> str:
    def said(name: str, digits: int, factor: float = 1.0) -> str:
        estimate = found[name]
        return f"{estimate['value'] * factor:.{digits}f} ± {estimate['error'] * factor:.{digits}f}"

    return (
        f"| {kind} | {found['bits_per_weight']:.2f} | {found['nbytes'] / 1e6:.1f} | {found['seconds']:.1f} s "
        f"| {said('kl', 4)} | {found['kl_99']:.3f} | {said('rms', 1, 100)} % | {said('agreement', 1, 100)} % "
        f"| {said('perplexity', 1)} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="path, hf: or pkg: of a model")
    parser.add_argument("--device")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--types", default=TYPES)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    source = jackfield_llm.resolve(chosen.model)
    text = chosen.text.read_text("utf-8") if chosen.text else default_text()
    results = {}
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        quantize(source, folder / "base.gguf", "F32")
        with jackfield_llm.load(folder / "base.gguf", chosen.device, context=chosen.window) as base:
            remembered = Remembered(base)
            for kind in chosen.types.split(","):
                began = time.perf_counter()
                summary = quantize(source, folder / "small.gguf", kind, force=True)
                seconds = time.perf_counter() - began
                quantize(folder / "small.gguf", folder / "wide.gguf", "F32", force=True)
                with jackfield_llm.load(folder / "wide.gguf", chosen.device, context=chosen.window) as model:
                    figures = compare_models(model, remembered, text, window=chosen.window)
                sizes = {"bits_per_weight": summary.bits_per_weight, "nbytes": summary.nbytes, "seconds": seconds}
                results[kind] = {**asdict(figures), **sizes, "types": dict(summary.types)}
                print(row(kind, results[kind]), flush=True)
    if chosen.json:
        document = {"machine": origin(), "model": source.name, "window": chosen.window, "types": results}
        chosen.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
