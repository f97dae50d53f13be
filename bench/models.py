"""The model files that are measured, made on the spot and kept in the user's cache folder.

    uv run python bench/models.py [--list] [NAME ...]     make them (all where none is named) and print their paths

The default model's file and what `jackfield quantize` makes of it, and a model of 1.1 billion random weights: its
speed is that of a real one. A file is made once; its name tells what it is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from peer_sources import cache_dir

import jackfield as jf
import jackfield_llm
from jackfield_llm.gguf_header import Entry, write_header
from jackfield_llm.mixes import model_facts
from jackfield_llm.quantization import Tensor, assign, file_type

DEFAULT = "Q4_1"
QUANTISED = ("Q4_0", "Q8_0", "IQ4_NL", "F16", "BF16")
RANDOM = tuple(f"1.1B-{kind}" for kind in ("Q4_0", "Q4_K_M", "Q8_0"))
NAMES = (DEFAULT, *QUANTISED, *RANDOM)
ALIGNMENT = 32
POOL = 1 << 17  # elements of the blocks that a random tensor is drawn from
PIECE = 1 << 18  # blocks written at a time
LETTERS = 256  # bytes, the letters of a byte-level vocabulary


class Drawn(Protocol):
    """A model that `write_random` can make."""

    architecture: str
    vocabulary: int

    def keys(self) -> dict[str, Any]:
        """The architecture's metadata, without the architecture's name in front."""

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes in the order of the file, numpy order."""

    def filled(self, name: str) -> float | None:
        """The number a tensor is full of; None for one that is drawn."""


@dataclass(frozen=True)
class Shape:
    """A model of the llama family. Rows of matrices are as long as the name says, in elements."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    feed: int
    vocabulary: int
    context: int
    architecture: str = "llama"

    def keys(self) -> dict[str, Any]:
        return {
            "block_count": self.layers,
            "context_length": self.context,
            "embedding_length": self.hidden,
            "feed_forward_length": self.feed,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.freq_base": 10000.0,
            "rope.dimension_count": self.hidden // self.heads,
            "vocab_size": self.vocabulary,
        }

    def filled(self, name: str) -> float | None:
        return 1.0 if name.endswith("norm.weight") else None

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        kv = self.hidden // self.heads * self.kv_heads
        yield "token_embd.weight", (self.vocabulary, self.hidden)
        for i in range(self.layers):
            for part, shape in {
                "attn_norm": (self.hidden,),
                "attn_q": (self.hidden, self.hidden),
                "attn_k": (kv, self.hidden),
                "attn_v": (kv, self.hidden),
                "attn_output": (self.hidden, self.hidden),
                "ffn_norm": (self.hidden,),
                "ffn_gate": (self.feed, self.hidden),
                "ffn_up": (self.feed, self.hidden),
                "ffn_down": (self.hidden, self.feed),
            }.items():
                yield f"blk.{i}.{part}.weight", shape
        yield "output_norm.weight", (self.hidden,)
        yield "output.weight", (self.vocabulary, self.hidden)


LARGE = Shape(layers=22, hidden=2048, heads=32, kv_heads=4, feed=5632, vocabulary=32000, context=4096)
"""TinyLlama's."""


def letters() -> list[str]:
    """How a byte-level vocabulary spells the 256 bytes: printable ones as they are, the others from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(spare)) for byte in range(LETTERS)]


def vocabulary(size: int) -> dict[str, Any]:
    """Metadata of a byte-level BPE vocabulary: three special tokens, the bytes, and pairs of bytes up to `size`."""
    alphabet = letters()
    pairs = [(a, b) for a in alphabet for b in alphabet][: size - 3 - LETTERS]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["<bos>", "<eos>", "<pad>", *alphabet, *(a + b for a, b in pairs)],
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (size - 3),
        "tokenizer.ggml.merges": [f"{a} {b}" for a, b in pairs],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }


def metadata(shape: Drawn, kind: str) -> dict[str, Any]:
    return {
        "general.architecture": shape.architecture,
        "general.name": "random weights",
        "general.file_type": file_type(kind).number,
        "general.quantization_version": 2,
        **{f"{shape.architecture}.{key}": value for key, value in shape.keys().items()},
        **vocabulary(shape.vocabulary),
    }


def value_kind(value: object) -> str:
    """The GGUF type of a value; lists stand in the file as arrays."""
    kinds: tuple[tuple[type, str], ...] = (
        (bool, "bool"),
        (int, "u32"),
        (float, "f32"),
        (str, "string"),
        (list, "array"),
    )
    return next(kind for known, kind in kinds if isinstance(value, known))


def drawn(dtype: jf.DType, shape: tuple[int, ...], dice: np.random.Generator) -> Iterator[NDArray[np.uint8]]:
    """The bytes of a random matrix, some at a time: blocks drawn from a pool that holds encoded normal numbers.

    Their spread is 1 / sqrt(columns), so that a row times a vector of ones and minus ones is about 1.
    """
    spread = np.float32(shape[-1] ** -0.5)
    values = dice.standard_normal((POOL // dtype.block, dtype.block), dtype=np.float32) * spread
    pool = np.ascontiguousarray(dtype.encode(values)).view(np.uint8).reshape(-1, dtype.block_nbytes)
    left = int(np.prod(shape)) // dtype.block
    while left:
        count = min(left, PIECE)
        yield pool[dice.integers(0, len(pool), count)]
        left -= count


def write_random(shape: Drawn, kind: str, path: Path) -> None:
    """A model of random weights in a file type of `jackfield quantize`, with the mix that type means.

    Each tensor has a generator of its own, so the file is the same wherever it is made. Memory: a few megabytes.
    """
    head = metadata(shape, kind)
    listed = [Tensor(name, size, "f32") for name, size in shape.tensors()]
    chosen = assign(listed, file_type(kind), model_facts(head))
    dtypes = {tensor.name: jf.dtypes.DTYPES[chosen[tensor.name].dtype] for tensor in listed}
    entries = [Entry(t.name, t.shape, gguf_id(dtypes[t.name]), dtypes[t.name].nbytes(t.shape)) for t in listed]
    part = path.with_suffix(".part")
    write_header(part, head, {key: value_kind(value) for key, value in head.items()}, entries, ALIGNMENT)
    with part.open("ab") as out:
        for number, (tensor, entry) in enumerate(zip(listed, entries, strict=True)):
            value = shape.filled(tensor.name)
            if value is not None:
                out.write(np.full(tensor.shape, value, np.float32).tobytes())
            else:
                for piece in drawn(dtypes[tensor.name], tensor.shape, np.random.default_rng(number)):
                    out.write(piece.tobytes())
            out.write(bytes(-entry.nbytes % ALIGNMENT))
    part.replace(path)


def gguf_id(dtype: jf.DType) -> int:
    assert dtype.gguf_id is not None  # file types name only dtypes a file can hold
    return dtype.gguf_id


def path_of(name: str, folder: Path) -> Path:
    """The file of this name, made in `folder` where it is not there.

    Raises: KeyError for another name than NAMES, jackfield's and jackfield_llm's errors.
    """
    if name not in NAMES:
        raise KeyError(f"models: no model {name!r}; known: {', '.join(NAMES)}")
    if name == DEFAULT:
        return jackfield_llm.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if name in RANDOM:
        path = folder / f"random-{name}.gguf"
        if not path.exists():
            write_random(LARGE, name.removeprefix("1.1B-"), path)
        return path
    path = folder / f"default-{name}.gguf"
    if not path.exists():
        jackfield_llm.quantize(jackfield_llm.resolve(), path, name)
    return path


def bench_folder() -> Path:
    return cache_dir() / "bench"


def main(arguments: Sequence[str] | None = None) -> int:
    return make(__doc__, NAMES, path_of, arguments)


def make(
    doc: str | None, known: Iterable[str], path_of: Callable[[str, Path], Path], arguments: Sequence[str] | None
) -> int:
    """The command: make the files that are named, or all that are known, and print their paths."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", default=[])
    parser.add_argument("--list", action="store_true", help="print the names alone")
    parser.add_argument("--dir", type=Path, help="where the files are kept; default: the user's cache folder")
    chosen = parser.parse_args(arguments)
    if chosen.list:
        print("\n".join(known))
        return 0
    try:
        for name in chosen.names or known:
            print(path_of(name, chosen.dir or bench_folder()), flush=True)
    except (KeyError, jf.Error, OSError) as error:
        print(error.args[0] if isinstance(error, KeyError) else error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
