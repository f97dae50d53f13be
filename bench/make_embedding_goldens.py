"""Record llama.cpp's embeddings of tiny random models: the other half of tests/golden/families.

    uv run python bench/make_embedding_goldens.py [--dir DIR] [NAME ...]

As `make_family_goldens.py`, with `llama-embeddings`: for each model ids, what is made of each token, and the vectors of
mean, cls and last pooling go to `tests/golden/families/embeddings_NAME.npz`; digests, versions and the distances of
the float64 model, whole and with faults, to `embeddings.json`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from family_oracle import Array, Model
from make_family_goldens import CLOSE, GOLDEN, make, nmse, read, told
from oracle_encoder import FAULTS, Encoder, pooled
from peer import Peer
from peer_sources import PeerError

from embedding_files import DECODERS, ENCODERS, POOLINGS, Floats, token_ids, write_any  # isort: skip # beside GOLDEN

NAMES = (*(encoder.name for encoder in ENCODERS), *DECODERS)


def llama_embeddings(peer: Peer, model: Path, pooling: str, ids: list[int]) -> tuple[Floats, str]:
    """float32 [ids, width] for pooling "none", else [1, width]; and llama.cpp's version."""
    out = model.with_suffix(".embeddings")
    words = [peer.llama_embeddings, str(model), str(out), pooling, *map(str, ids)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    rows = len(ids) if pooling == "none" else 1
    return np.fromfile(out, dtype=np.float32).reshape(rows, -1), done.stdout.strip()


def oracle_tokens(name: str, metadata: dict[str, object], weights: dict[str, Array], fault: str = "") -> Array:
    """What is made of each token, [ids, width], by the float64 model."""
    ids = token_ids(name)
    if name not in DECODERS:
        return Encoder(metadata, weights, fault).tokens(ids)
    width = weights["output_norm.weight"].shape[0]  # logits by the identity are what the last norm gives
    return Model(metadata, {**weights, "output.weight": np.eye(width)}, fault).logits(ids)


def record(peer: Peer, name: str, folder: Path) -> dict[str, object]:
    """Write the model's npz; its entry of embeddings.json."""
    model, ids = folder / f"{name}.gguf", token_ids(name)
    write_any(name, model)
    tokens, version = llama_embeddings(peer, model, "none", ids)
    vectors = {pooling: llama_embeddings(peer, model, pooling, ids)[0][0] for pooling in POOLINGS}
    metadata, weights = read(model)
    ours = oracle_tokens(name, metadata, weights)
    wide = tokens.astype(np.float64)
    whole = nmse(ours, wide)
    apart = {p: nmse(pooled(ours, p), vectors[p].astype(np.float64)) for p in POOLINGS}
    faults = {
        fault: nmse(oracle_tokens(name, metadata, weights, fault), wide)
        for fault, names in FAULTS.items()
        if name in names
    }
    if not max(apart.values()) < CLOSE / 4:
        raise PeerError(f"goldens: {name} tells nothing: pooled vectors of a whole model must be close, not {apart}")
    entry = told(name, model, f"{version} ({peer.package})", whole, faults)
    stored = GOLDEN / f"embeddings_{name}.npz"
    np.savez_compressed(stored, ids=np.array(ids, dtype=np.int32), tokens=tokens, **vectors)
    return entry


def main(arguments: Sequence[str] | None = None) -> int:
    return make(__doc__, GOLDEN / "embeddings.json", NAMES, record, arguments)


if __name__ == "__main__":
    sys.exit(main())
