"""Record which type llama.cpp gives each tensor when it quantises, for the models of tests/golden/quantize.

    python bench/make_quantize_goldens.py [--dir DIR] [--quantize PATH]

Each model is written as a file of zeros and shown to `llama-quantize --dry-run` once a file type. The answers go to
`tests/golden/quantize/mixes.json`: `types` names the types, `models` has for each model and file type a string with a
character a tensor, in the order of `MixModel.tensors`, which is the place of its type in `types` counted from `A`; null
where llama.cpp refuses. `llama-quantize` is the one of --quantize, or it is built in the peer's folder (`peer.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from peer import PACKAGE, VERSION, PeerError, build, peer_dir, run, tool, version

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden" / "quantize"
sys.path.insert(0, str(GOLDEN))

from mix_models import FILE_TYPES, MODELS, MixModel, write, write_importance  # noqa: E402

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
        told = version(program.with_name("llama-bench"))
    except PeerError as error:
        print(error, file=sys.stderr)
        return 1
    document = {"llama.cpp": f"{PACKAGE} {VERSION}, {told}", "types": types, "models": models}
    (GOLDEN / "mixes.json").write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
