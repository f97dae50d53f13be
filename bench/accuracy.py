"""How far rounding moves predictions, ours beside llama.cpp's, for each file type.

    uv run python bench/accuracy.py [--types Q4_0,Q8_0,...] [--tokens 128] [--json FILE]

Two models a type: random weights (4 layers, 1024 wide), and the default model quantised to it. The truth is the float32
run of the same file's decoded weights: the file written again as F32, on the device `reference`. The figure is the mean
KL divergence from it over all positions; both sides keep their caches in f32. Beside the means stands the difference
of the sides, position by position, with its standard error. The goal is a ratio of at most 1.1; below NOTHING both
sides are as good as exact, and the ratio says nothing. Rows of the default model hold no whole super-blocks, so its
types of 256 are those that `jackfield quantize` takes instead; the random model has the types themselves, and IQ2 and
IQ3 are measured with it alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from aims import counted
from machine import origin
from models import Shape, write_random
from numpy.typing import NDArray
from peer import Peer, build
from peer_sources import digest, peer_dir

import jackfield_llm
from jackfield_llm.comparison import default_text
from jackfield_llm.evaluation import compare

TYPES = (
    "Q4_0,Q4_1,Q5_0,Q5_1,Q8_0,Q2_K,Q3_K_M,Q4_K_M,Q5_K_M,Q6_K,IQ4_NL,IQ4_XS,MXFP4,"
    "IQ2_XXS,IQ2_XS,IQ2_S,IQ3_XXS,IQ3_S,F16,BF16"
)
SMALL = Shape(layers=4, hidden=1024, heads=16, kv_heads=4, feed=2816, vocabulary=4096, context=512)
RANDOM_ONLY = ("IQ2", "IQ3")
"""Types of which the default model could hold next to nothing, and whose search for the best codes takes minutes."""
MOST = 1.1  # our KL over llama.cpp's
NOTHING = 1e-6  # nats
Logits = NDArray[np.float32]
Divergence = NDArray[np.float64]
"""KL divergence by position, nats."""


def ours(model: Path, device: str | None, ids: Sequence[int]) -> Logits:
    with jackfield_llm.load(model, device, context=len(ids), cache_dtype="f32") as loaded:
        return loaded.logits(ids)


def theirs(peer: Peer, model: Path, ids: Sequence[int], vocabulary: int) -> Logits:
    out = model.with_suffix(".logits")
    words = [peer.llama_logits, str(model), str(out), *map(str, ids)]
    subprocess.run(words, check=True, capture_output=True)
    return np.fromfile(out, dtype=np.float32).reshape(len(ids), vocabulary)


def measured(peer: Peer, model: Path, ids: Sequence[int]) -> dict[str, Divergence]:
    """KL of both sides from the decoded weights in f32."""
    wide = model.with_name("wide.gguf")
    jackfield_llm.quantize(model, wide, "F32", force=True)
    truth = ours(wide, "reference", ids)
    sides = {"llama.cpp": theirs(peer, model, ids, truth.shape[1]), "jackfield": ours(model, "cpu", ids)}
    return {side: compare(truth, logits, [*ids[1:], ids[0]]).kl for side, logits in sides.items()}


def judged(found: Mapping[str, Divergence]) -> dict[str, Any]:
    """A row of the result: means, the paired difference (ours less llama.cpp's) and its standard error, the verdict.

    The standard error takes positions as independent. ratio: None where both sides are as good as exact.
    """
    peer, mine = (float(found[side].mean()) for side in ("llama.cpp", "jackfield"))
    differences = found["jackfield"] - found["llama.cpp"]
    error = float(differences.std(ddof=1) / len(differences) ** 0.5)
    by = None if max(peer, mine) < NOTHING else mine / peer if peer else float("inf")
    sure = "" if mine - MOST * peer > 2 * error else ", by less than two standard errors"
    exact = "met (both exact)" if by is None else f"met (at most {MOST} times)"
    verdict = exact if by is None or by <= MOST else f"missed (at most {MOST} times{sure})"
    return {
        "llama.cpp": peer,
        "jackfield": mine,
        "difference": mine - peer,
        "standard_error": error,
        "ratio": by,
        "positions": len(differences),
        "verdict": verdict,
    }


def print_row(kind: str, which: str, row: Mapping[str, Any]) -> None:
    said = "both exact" if row["ratio"] is None else f"{row['ratio']:.2f}"
    print(
        f"| {kind} | {which} | {row['llama.cpp']:.3g} | {row['jackfield']:.3g} "
        f"| {row['difference']:.2g} ± {row['standard_error']:.2g} | {said} | {row['verdict']} |",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", default=TYPES)
    parser.add_argument("--tokens", type=int, default=128, help="positions of each model, two at least")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--dir", type=Path, help="where the peer is built, as in peer.py")
    chosen = parser.parse_args()
    peer = build(peer_dir(chosen.dir), jobs=2)
    source = jackfield_llm.resolve()
    with jackfield_llm.load(source) as model:
        text = model.tokenize(default_text())[: chosen.tokens]
    random = np.random.default_rng(7).integers(0, SMALL.vocabulary, chosen.tokens).tolist()
    rows: dict[str, dict[str, Any]] = {}
    print(
        "| type | model | llama.cpp | jackfield | difference | ratio | goal |\n|---|---|---|---|---|---|---|",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as name:
        for kind in chosen.types.split(","):
            files = {"random": Path(name) / "random.gguf"}
            write_random(SMALL, kind, files["random"])
            if not kind.startswith(RANDOM_ONLY):
                files["default"] = Path(name) / "default.gguf"
                jackfield_llm.quantize(source, files["default"], kind, force=True)
            for which, ids in (("random", random), ("default", text)):
                if which not in files:
                    continue
                row = judged(measured(peer, files[which], ids)) | {"sha256": digest(files[which])}
                rows[f"{kind} {which}"] = row
                print_row(kind, which, row)
    goals = counted([row["verdict"] for row in rows.values()])
    print("\ngoals: " + ", ".join(f"{count} {word}" for word, count in goals.items()))
    if chosen.json:
        document = {"machine": origin(), "peer": peer.origin, "source_sha256": digest(source), "tokens": chosen.tokens}
        chosen.json.write_text(json.dumps(document | {"goals": goals, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return 1 if goals["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
