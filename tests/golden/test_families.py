"""The golden data is whole. The families' files come out byte for byte; a float64 model agrees with their recorded
logits, a faulty one does not.
"""

from __future__ import annotations

import hashlib
import json
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

FAMILIES_DIR = Path(__file__).parent / "families"
VOCAB_DIR = Path(__file__).parent / "vocab"
sys.path[:0] = [str(FAMILIES_DIR), str(Path(__file__).parents[2] / "bench")]

import family_files  # noqa: E402
from family_oracle import FAULTS, Model  # noqa: E402
from make_family_goldens import CLOSE, nmse, read  # noqa: E402

RECORDED = json.loads((FAMILIES_DIR / "families.json").read_text())
ARCHITECTURES = {
    "deepseek2", "gemma2", "gemma3", "gpt-oss", "llama", "mistral3", "phi3", "qwen2", "qwen3", "qwen3moe",
    "mamba", "mamba2", "rwkv6", "rwkv7", "rwkv6qwen2", "arwkv7", "qwen3next", "qwen35", "qwen35moe",
}  # fmt: skip
FAULTY = [(name, fault) for name in RECORDED for fault in RECORDED[name]["fault_nmse"]]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Every variant's GGUF file by name."""
    folder = tmp_path_factory.mktemp("families")
    paths = {}
    for family in family_files.FAMILIES:
        paths[family.name] = folder / f"{family.name}.gguf"
        family_files.write(family, paths[family.name])
    return paths


@cache
def read_once(path):
    return read(path)


def distance(name, path, fault=""):
    stored = np.load(FAMILIES_DIR / f"{name}.npz")
    ours = Model(*read_once(path), fault).logits(stored["ids"].tolist())
    return nmse(ours, stored["logits"].astype(np.float64))


def test_every_variant_is_recorded():
    assert list(RECORDED) == [family.name for family in family_files.FAMILIES]
    assert set(FAULTS) == {fault for _, fault in FAULTY}
    assert {family.architecture for family in family_files.FAMILIES} == ARCHITECTURES


@pytest.mark.parametrize("name", RECORDED)
def test_file_comes_out_byte_for_byte(name, files):
    assert hashlib.sha256(files[name].read_bytes()).hexdigest() == RECORDED[name]["sha256"]


@pytest.mark.parametrize("name", RECORDED)
def test_ids_and_logits_have_their_shapes(name):
    stored = np.load(FAMILIES_DIR / f"{name}.npz")
    assert stored["ids"].tolist() == family_files.token_ids(family_files.by_name(name))
    assert stored["logits"].shape == (family_files.LENGTH, family_files.VOCABULARY)
    assert stored["logits"].dtype == np.float32


@pytest.mark.parametrize("name", RECORDED)
def test_a_whole_model_is_close(name, files):
    found = distance(name, files[name])
    assert found < CLOSE / 4
    assert found == pytest.approx(RECORDED[name]["float64_nmse"], rel=0.05, abs=1e-12)


@pytest.mark.parametrize(("name", "fault"), FAULTY)
def test_a_faulty_model_is_far(name, fault, files):
    assert distance(name, files[name], fault) > CLOSE * 4


@pytest.mark.parametrize("folder", [Path(__file__).parent, VOCAB_DIR], ids=lambda folder: folder.name)
def test_golden_files_are_whole(folder):
    listed = {name: sha256 for sha256, name in map(str.split, (folder / "SHA256SUMS").read_text().splitlines())}
    data = {path.name for path in folder.iterdir() if path.suffix in {".inp", ".out", ".json", ".npz"}}
    assert data <= set(listed)
    for name, sha256 in listed.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == sha256, name
