"""Record what llama.cpp does when it quantises: which type each tensor gets, and the bytes of the simple types.

    python bench/make_quantize_goldens.py [--dir DIR] [--quantize PATH]

Each model of tests/golden/quantize is written as a file of zeros and shown to `llama-quantize --dry-run` once a file
type. The answers go to `tests/golden/quantize/mixes.json`: `types` names the types, `models` has for each model and
file type a string with a character a tensor, in the order of `MixModel.tensors`, which is the place of its type in
`types` counted from `A`; null where llama.cpp refuses. Some of the tiny models of tests/golden/families are quantised
in earnest: `bytes` has for each, and for each type whose rounding is fixed, the sha256 of the tensors' bytes, by the
order of their names. `llama-quantize` is the one of --quantize, or it is built in the peer's folder (`peer.py`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
from peer import build, tool, version
from peer_sources import LLAMA, PeerError, peer_dir, run

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden" / "quantize"
sys.path[:0] = [str(GOLDEN), str(GOLDEN.parent / "families")]

import family_files  # noqa: E402
from mix_models import FILE_TYPES, MODELS, MixModel, write, write_importance  # noqa: E402

FAMILIES = ("llama", "qwen2", "gemma3_defaults")  # of f32, f16 and bf16
FIXED = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
LINE = re.compile(r"^\[ *\d+/ *\d+\] +(\S+) .*type = +(\w+), size = .*?(?:\((\w+)\))?$", re.MULTILINE)


def quantizer(chosen: str | None) -> Path:
    if chosen:
        return Path(chosen)
    folder = peer_dir(chosen)
    build(folder, os.cpu_count() or 1)
    run([tool("cmake"), "--build", folder / "build", "--target", "llama-quantize"], folder)
    return folder / "build" / "bin" / "llama-quantize"


def ask(program: Path, path: Path, file_type: str, options: list[str]) -> dict[str, str] | None:
    """Type by tensor, or None where llama.cpp refuses."""
    words = [program, "--dry-run", "--allow-requantize", *options, path, file_type]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode:
        return None
    return {name: (new or old).lower() for name, old, new in LINE.findall(done.stdout + done.stderr)}


def record(program: Path, model: MixModel, types: list[str], folder: Path) -> dict[str, str | None]:
    path, importance = folder / f"{model.name}.gguf", folder / f"{model.name}-importance.gguf"
    write(model, path)
    options = list(model.options)
    if model.importance:
        write_importance(model, importance)
        options += ["--imatrix", str(importance)]
    answers: dict[str, str | None] = {}
    for file_type in FILE_TYPES:
        found = ask(program, path, file_type, options)
        if found is None:
            answers[file_type] = None
            continue
        if set(found) != set(model.tensors()):
            raise PeerError(f"{model.name} {file_type}: {len(found)} tensors in llama.cpp's answer")
        for name in found.values():
            if name not in types:
                types.append(name)
        answers[file_type] = "".join(chr(ord("A") + types.index(found[name])) for name in model.tensors())
    path.unlink()
    return answers


def digest(path: Path) -> str:
    """sha256 of all tensors' bytes, by the order of their names."""
    found = hashlib.sha256()
    for tensor in sorted(gguf.GGUFReader(path).tensors, key=lambda t: t.name):
        found.update(tensor.data.tobytes())
    return found.hexdigest()


def quantised(program: Path, name: str, folder: Path) -> dict[str, str]:
    """Digest by file type of what llama.cpp makes of a tiny model."""
    source, target = folder / f"{name}.gguf", folder / "target.gguf"
    family_files.write(family_files.by_name(name), source)
    digests = {}
    for file_type in FIXED:
        words = [program, "--pure", source, target, file_type]
        subprocess.run(words, check=True, capture_output=True)
        digests[file_type] = digest(target)
    return digests


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", help="where the peer's files are kept")
    parser.add_argument("--quantize", help="a llama-quantize that is there")
    chosen = parser.parse_args()
    if chosen.dir:
        os.environ["JACKFIELD_PEER_DIR"] = chosen.dir
    try:
        program = quantizer(chosen.quantize)
        types: list[str] = []
        with tempfile.TemporaryDirectory() as folder:
            models = {model.name: record(program, model, types, Path(folder)) for model in MODELS}
            made = {name: quantised(program, name, Path(folder)) for name in FAMILIES}
        told = version(program.with_name("llama-bench"))
    except PeerError as error:
        print(error, file=sys.stderr)
        return 1
    document = {
        "llama.cpp": f"{LLAMA.package} {LLAMA.version}, {told}",
        "types": types,
        "models": models,
        "bytes": made,
    }
    (GOLDEN / "mixes.json").write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
