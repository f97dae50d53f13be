"""The tiny models of tests/golden/families: written anew, with what llama.cpp said of them; and files that lie."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parents[1] / "golden" / "families"
sys.path.insert(0, str(FOLDER))

import family_files  # noqa: E402

RECORDS = json.loads((FOLDER / "families.json").read_text())
NAMES = tuple(RECORDS)
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}answer:{% endif %}"
)


def write(name: str, path: Path, *, template: str | None = None) -> Path:
    """The model file of that name; template: a chat template it does not have by itself."""
    family = family_files.by_name(name)
    if template is None:
        family_files.write(family, path)
        return path
    plain = family_files.TOKENIZERS[family.tokenizer]

    def with_template(writer: Any) -> None:
        plain(writer)
        writer.add_chat_template(template)

    family_files.TOKENIZERS[family.tokenizer] = with_template
    try:
        family_files.write(family, path)
    finally:
        family_files.TOKENIZERS[family.tokenizer] = plain
    return path


def predicts(name: str, tensor: str) -> bool:
    """Whether the tensor is in a layer of the tiny model that predicts further tokens."""
    family = family_files.by_name(name)
    behind = range(family.layers, family.layers + family.predicting)
    return any(tensor.startswith(f"blk.{number}.") for number in behind)


def golden(name: str) -> tuple[list[int], np.ndarray]:
    """Ids, and llama.cpp's logits f32 [tokens, vocabulary]."""
    with np.load(FOLDER / f"{name}.npz") as stored:
        return stored["ids"].tolist(), stored["logits"]


def copied(plan: Any) -> list[str]:
    """What a plan copies: where strides can't express a reshape, and where a kernel takes a view dense."""
    report = plan.explain().to_dict()
    reshaped = [node["id"] for node in report["nodes"] if node["op"] == "contiguous"]
    return reshaped + [entry["why"] for entry in report["inserted"]]


def nmse(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Mean square of the difference over the mean square of the second, in float64."""
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    assert a.shape == b.shape
    return float(np.mean((a - b) ** 2) / np.mean(b**2))


@dataclass
class Changed:
    """A GGUF file whose metadata and tensors are not what they were; stands for jackfield.gguf.File."""

    metadata: dict[str, Any]
    tensors: dict[str, Any]

    def close(self) -> None: ...


class Tensor:
    """A tensor that says something else of itself."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, data: memoryview | None = None) -> None:
        self.shape, self.data = shape, data
        self._dtype = dtype

    @property
    def dtype(self) -> Any:
        if isinstance(self._dtype, Exception):
            raise self._dtype
        return self._dtype

    def release(self) -> None: ...
