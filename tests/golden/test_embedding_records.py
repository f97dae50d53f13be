"""The recorded embeddings are whole: files come out byte for byte, a float64 model agrees, a faulty one does not."""

from __future__ import annotations

import hashlib
import json
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

FAMILIES_DIR = Path(__file__).parent / "families"
sys.path[:0] = [str(FAMILIES_DIR), str(Path(__file__).parents[2] / "bench")]

import embedding_files  # noqa: E402
from make_embedding_goldens import NAMES, oracle_tokens  # noqa: E402
from make_family_goldens import CLOSE, nmse, read  # noqa: E402
from oracle_encoder import FAULTS, pooled  # noqa: E402

RECORDED = json.loads((FAMILIES_DIR / "embeddings.json").read_text())
FAULTY = [(name, fault) for name in RECORDED for fault in RECORDED[name]["fault_nmse"]]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Every model's GGUF file by name."""
    folder = tmp_path_factory.mktemp("embedders")
    paths = {name: folder / f"{name}.gguf" for name in NAMES}
    for name, path in paths.items():
        embedding_files.write_any(name, path)
    return paths


@cache
def read_once(path):
    return read(path)


def stored(name):
    with np.load(FAMILIES_DIR / f"embeddings_{name}.npz") as arrays:
        return {key: arrays[key] for key in arrays.files}


def test_every_model_is_recorded_with_every_fault():
    assert tuple(RECORDED) == NAMES
    assert {(name, fault) for fault, names in FAULTS.items() for name in names} == set(FAULTY)


@pytest.mark.parametrize("name", NAMES)
def test_file_comes_out_byte_for_byte(name, files):
    assert hashlib.sha256(files[name].read_bytes()).hexdigest() == RECORDED[name]["sha256"]


@pytest.mark.parametrize("name", NAMES)
def test_arrays_have_their_shapes(name):
    arrays = stored(name)
    width = arrays["tokens"].shape[1]
    assert arrays.pop("ids").tolist() == embedding_files.token_ids(name)
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.float32)}
    assert {key: array.shape for key, array in arrays.items()} == {
        "tokens": (embedding_files.LENGTH, width),
        **dict.fromkeys(embedding_files.POOLINGS, (width,)),
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_whole_model_is_close(name, files):
    ours, theirs = oracle_tokens(name, *read_once(files[name])), stored(name)
    found = nmse(ours, theirs["tokens"].astype(np.float64))
    assert found == pytest.approx(RECORDED[name]["float64_nmse"], rel=0.05, abs=1e-12)
    for pooling in embedding_files.POOLINGS:
        assert nmse(pooled(ours, pooling), theirs[pooling].astype(np.float64)) < CLOSE / 4


@pytest.mark.parametrize(("name", "fault"), FAULTY)
def test_a_faulty_model_is_far(name, fault, files):
    ours = oracle_tokens(name, *read_once(files[name]), fault)
    assert nmse(ours, stored(name)["tokens"].astype(np.float64)) > CLOSE * 4


@pytest.mark.parametrize("name", NAMES)
def test_each_pooling_gives_another_vector(name):
    arrays = stored(name)
    for one in embedding_files.POOLINGS:
        for other in set(embedding_files.POOLINGS) - {one}:
            assert nmse(arrays[one].astype(np.float64), arrays[other].astype(np.float64)) > CLOSE * 4
