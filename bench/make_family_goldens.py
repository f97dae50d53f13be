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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np
from family_oracle import FAULTS, Array, Model
from peer import Peer, build
from peer_sources import PeerError, digest, peer_dir

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden" / "families"
sys.path.insert(0, str(GOLDEN))

from family_files import FAMILIES, VOCABULARY, Floats, by_name, token_ids, write  # noqa: E402

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


def record(peer: Peer, name: str, folder: Path) -> dict[str, object]:
    """Write the variant's npz; its entry of families.json."""
    family = by_name(name)
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
    entry = told(family.name, model, f"{version} ({peer.package})", whole, faults)
    np.savez_compressed(GOLDEN / f"{family.name}.npz", ids=np.array(ids, dtype=np.int32), logits=logits)
    return entry


def told(name: str, model: Path, version: str, whole: float, faults: Mapping[str, float]) -> dict[str, object]:
    """The entry of a recording. Raises PeerError where it would tell nothing."""
    print(f"{name}: float64 model {whole:.1e}; " + ", ".join(f"{k} {v:.1e}" for k, v in faults.items()))
    if not whole < CLOSE / 4 or not all(value > CLOSE * 4 for value in faults.values()):
        raise PeerError(f"goldens: {name} tells nothing: a whole model must be close and a faulty one far")
    return {
        "sha256": digest(model),
        "llama.cpp": version,
        "float64_nmse": float(f"{whole:.3g}"),
        "fault_nmse": {fault: float(f"{value:.3g}") for fault, value in faults.items()},
    }


def make(
    doc: str | None,
    index: Path,
    known: Sequence[str],
    record: Callable[[Peer, str, Path], dict[str, object]],
    arguments: Sequence[str] | None,
) -> int:
    """The command: record what is named, or all that is known, and keep the index in the order of what is known."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="all where none is named")
    parser.add_argument("--dir", help="where the peer is built, as in peer.py")
    chosen = parser.parse_args(arguments)
    if unknown := sorted(set(chosen.names) - set(known)):
        parser.error(f"no model {unknown[0]!r}; known: {', '.join(known)}")
    entries = json.loads(index.read_text()) if index.exists() else {}
    try:
        peer = build(peer_dir(chosen.dir), jobs=2)
        with tempfile.TemporaryDirectory() as folder:
            for name in chosen.names or known:
                entries[name] = record(peer, name, Path(folder))
    except PeerError as error:
        print(error, file=sys.stderr)
        return 1
    index.write_text(json.dumps({name: entries[name] for name in known if name in entries}, indent=1) + "\n")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    return make(__doc__, GOLDEN / "families.json", [family.name for family in FAMILIES], record, arguments)


if __name__ == "__main__":
    sys.exit(main())
