"""Record llama.cpp's logits for the tiny random models of tests/golden/families.

    uv run python bench/make_family_goldens.py [--dir DIR] [NAME ...]

For each variant: write its GGUF file into a temporary folder, run `llama-logits` (built by `peer.py`) over its ids,
store ids and logits as `tests/golden/families/NAME.npz`, and in `families.json` the file's sha256, llama.cpp's version,
and the distance (NMSE, the mean square of the difference over the mean square of the logits) of a float64 model, whole
and with faults, from what was recorded. It ends with an error where the whole model is not close or a fault does not
show.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
from family_oracle import FAULTS, Array, Model
from peer import Peer, build
from peer_sources import PeerError, digest, peer_dir

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden" / "families"
sys.path.insert(0, str(GOLDEN))

from family_files import FAMILIES, VOCABULARY, Family, Floats, by_name, token_ids, write  # noqa: E402

CLOSE = 1e-3
"""The bound of the tests: a right model is well below, a faulty one above."""


def nmse(ours: Array, theirs: Array) -> float:
    return float(((ours - theirs) ** 2).mean() / (theirs**2).mean())


def llama_logits(peer: Peer, model: Path, ids: list[int]) -> tuple[Floats, str]:
    """[ids, VOCABULARY] float32, and llama.cpp's version."""
    out = model.with_suffix(".logits")
    words = [peer.llama_logits, str(model), str(out), *map(str, ids)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    return np.fromfile(out, dtype=np.float32).reshape(len(ids), VOCABULARY), done.stdout.strip()


def read(model: Path) -> tuple[dict[str, object], dict[str, Array]]:
    """Metadata and tensors of a file as the package gguf reads them, tensors dequantised to float64."""
    reader = gguf.GGUFReader(model)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    weights = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float64) for t in reader.tensors}
    return metadata, weights


def record(peer: Peer, family: Family, folder: Path) -> dict[str, object]:
    """Write the variant's npz; its entry of families.json."""
    model, ids = folder / f"{family.name}.gguf", token_ids(family)
    write(family, model)
    logits, version = llama_logits(peer, model, ids)
    metadata, weights = read(model)
    whole = nmse(Model(metadata, weights).logits(ids), logits.astype(np.float64))
    faults = {
        fault: nmse(Model(metadata, weights, fault).logits(ids), logits.astype(np.float64))
        for fault, names in FAULTS.items()
        if family.name in names
    }
    print(f"{family.name}: float64 model {whole:.1e}; " + ", ".join(f"{k} {v:.1e}" for k, v in faults.items()))
    if not whole < CLOSE / 4 or not all(value > CLOSE * 4 for value in faults.values()):
        raise PeerError(f"goldens: {family.name} tells nothing: a whole model must be close and a faulty one far")
    np.savez_compressed(GOLDEN / f"{family.name}.npz", ids=np.array(ids, dtype=np.int32), logits=logits)
    return {
        "sha256": digest(model),
        "llama.cpp": f"{version} ({peer.package})",
        "float64_nmse": float(f"{whole:.3g}"),
        "fault_nmse": {fault: float(f"{value:.3g}") for fault, value in faults.items()},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="variants; all where none is named")
    parser.add_argument("--dir", help="where the peer is built, as in peer.py")
    chosen = parser.parse_args(arguments)
    index = GOLDEN / "families.json"
    entries = json.loads(index.read_text()) if index.exists() else {}
    families = [by_name(name) for name in chosen.names] or list(FAMILIES)
    try:
        peer = build(peer_dir(chosen.dir), jobs=2)
        with tempfile.TemporaryDirectory() as folder:
            for family in families:
                entries[family.name] = record(peer, family, Path(folder))
    except PeerError as error:
        print(error, file=sys.stderr)
        return 1
    ordered = {family.name: entries[family.name] for family in FAMILIES if family.name in entries}
    index.write_text(json.dumps(ordered, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
