"""Record llama.cpp's embeddings of tiny random models: the other half of tests/golden/families.

    uv run python bench/make_embedding_goldens.py [--dir DIR] [NAME ...]

As `make_family_goldens.py`, with `llama-embeddings`: for each model ids, what is made of each token, and the vectors of
mean, cls and last pooling go to `tests/golden/families/embeddings_NAME.npz`; digests, versions and the distances of
the float64 model, whole and with faults, to `embeddings.json`.
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
from family_oracle import Array, Model
from make_family_goldens import CLOSE, GOLDEN, nmse, read
from oracle_encoder import FAULTS, Encoder, pooled
from peer import Peer, build
from peer_sources import PeerError, digest, peer_dir

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
    print(f"{name}: float64 model {whole:.1e}, {apart}; " + ", ".join(f"{k} {v:.1e}" for k, v in faults.items()))
    if not max(whole, *apart.values()) < CLOSE / 4 or not all(value > CLOSE * 4 for value in faults.values()):
        raise PeerError(f"goldens: {name} tells nothing: a whole model must be close and a faulty one far")
    stored = GOLDEN / f"embeddings_{name}.npz"
    np.savez_compressed(stored, ids=np.array(ids, dtype=np.int32), tokens=tokens, **vectors)
    return {
        "sha256": digest(model),
        "llama.cpp": f"{version} ({peer.package})",
        "float64_nmse": float(f"{whole:.3g}"),
        "fault_nmse": {fault: float(f"{value:.3g}") for fault, value in faults.items()},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="models; all where none is named")
    parser.add_argument("--dir", help="where the peer is built, as in peer.py")
    chosen = parser.parse_args(arguments)
    index = GOLDEN / "embeddings.json"
    entries = json.loads(index.read_text()) if index.exists() else {}
    try:
        peer = build(peer_dir(chosen.dir), jobs=2)
        with tempfile.TemporaryDirectory() as folder:
            for name in chosen.names or NAMES:
                entries[name] = record(peer, name, Path(folder))
    except PeerError as error:
        print(error, file=sys.stderr)
        return 1
    index.write_text(json.dumps({name: entries[name] for name in NAMES if name in entries}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
