"""How far rounding moves predictions, ours beside llama.cpp's, for each file type.

    uv run python bench/accuracy.py [--types Q4_0,Q8_0,...] [--json FILE]

Two models a type: random weights (4 layers, 1024 wide), and the default model quantised to it. The truth is the float32
run of the same file's decoded weights: the file written again as F32, on the device `reference`. The figure is the mean
KL divergence from it over all positions; both sides keep their caches in f32. The goal is a ratio of at most 1.1; below
NOTHING both sides are as good as exact, and the ratio says nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from models import Shape, write_random
from numpy.typing import NDArray
from peer import Peer, build
from peer_sources import peer_dir

import jackfield_llm
from jackfield_llm.comparison import default_text
from jackfield_llm.evaluation import compare

TYPES = "Q4_0,Q4_1,Q5_0,Q5_1,Q8_0,Q2_K,Q3_K_M,Q4_K_M,Q5_K_M,Q6_K,IQ4_NL,IQ4_XS,MXFP4,F16,BF16"
SMALL = Shape(layers=4, hidden=1024, heads=16, kv_heads=4, feed=2816, vocabulary=4096, context=512)
MOST = 1.1  # our KL over llama.cpp's
NOTHING = 1e-6  # nats
Logits = NDArray[np.float32]


def ours(model: Path, device: str | None, ids: Sequence[int]) -> Logits:
    with jackfield_llm.load(model, device, context=len(ids), cache_dtype="f32") as loaded:
        return loaded.logits(ids)


def theirs(peer: Peer, model: Path, ids: Sequence[int], vocabulary: int) -> Logits:
    out = model.with_suffix(".logits")
    words = [peer.llama_logits, str(model), str(out), *map(str, ids)]
    subprocess.run(words, check=True, capture_output=True)
    return np.fromfile(out, dtype=np.float32).reshape(len(ids), vocabulary)


def measured(peer: Peer, model: Path, ids: Sequence[int]) -> dict[str, float]:
    """KL of both sides from the decoded weights in f32, nats."""
    wide = model.with_name("wide.gguf")
    jackfield_llm.quantize(model, wide, "F32", force=True)
    truth = ours(wide, "reference", ids)
    sides = {"llama.cpp": theirs(peer, model, ids, truth.shape[1]), "jackfield": ours(model, "cpu", ids)}
    return {side: float(compare(truth, logits, [*ids[1:], ids[0]]).kl.mean()) for side, logits in sides.items()}


def ratio(found: dict[str, float]) -> float | None:
    """None where both are as good as exact."""
    return None if max(found.values()) < NOTHING else found["jackfield"] / found["llama.cpp"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", default=TYPES)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--dir", type=Path, help="where the peer is built, as in peer.py")
    chosen = parser.parse_args()
    peer = build(peer_dir(chosen.dir), jobs=2)
    source = jackfield_llm.resolve()
    with jackfield_llm.load(source) as model:
        text = model.tokenize(default_text())[: chosen.tokens]
    random = np.random.default_rng(7).integers(0, SMALL.vocabulary, chosen.tokens).tolist()
    rows, far = {}, []
    print("| type | model | llama.cpp | jackfield | ratio |\n|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as name:
        for kind in chosen.types.split(","):
            files = {"random": Path(name) / "random.gguf", "default": Path(name) / "default.gguf"}
            write_random(SMALL, kind, files["random"])
            jackfield_llm.quantize(source, files["default"], kind, force=True)
            for which, ids in (("random", random), ("default", text)):
                found = measured(peer, files[which], ids)
                by = ratio(found)
                rows[f"{kind} {which}"] = {**found, "ratio": by}
                far += [f"{kind} {which}"] if by is not None and by > MOST else []
                said = "both exact" if by is None else f"{by:.2f}"
                print(
                    f"| {kind} | {which} | {found['llama.cpp']:.3g} | {found['jackfield']:.3g} | {said} |", flush=True
                )
    if chosen.json:
        chosen.json.write_text(json.dumps({"peer": peer.origin(), "rows": rows}, indent=1) + "\n", encoding="utf-8")
    print(f"above {MOST}: {', '.join(far) or 'none'}")
    return 1 if far else 0


if __name__ == "__main__":
    sys.exit(main())
