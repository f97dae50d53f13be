"""Products of other libraries, timed as matmul.py times ours.

Each side has a name and `times(dtype, copies, rows, size)`: seconds of y = x w^T by rows of x, for a weight of size x
size of which `copies` take turns; empty where the side has nothing for the type.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from peer import Peer
from sides import Side, sides_of
from timing import clock_for, in_turn, seconds

BLOCK = 32
Times = dict[int, float]


@dataclass(frozen=True)
class Llama:
    """llama.cpp or its fork through peer_matmul.cpp."""

    side: Side
    threads: int

    @property
    def name(self) -> str:
        return self.side.name

    def command(self, dtype: str, copies: int, rows: Sequence[int], size: int) -> list[str]:
        numbers = [self.threads, int(self.side.pack), copies, size, size, *rows]
        return [self.side.peer.programs["peer-matmul"], dtype, *map(str, numbers)]

    def times(self, dtype: str, copies: int, rows: Sequence[int], size: int) -> Times:
        words = self.command(dtype, copies, rows, size)
        # It aborts for a type that it knows and has no encoder for; what it printed before still counts.
        done = subprocess.run(words, check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        found = dict(line.split() for line in done.stdout.splitlines())
        if "wrong" in found.values():
            print(f"{self.name}: its product is wrong for {dtype}, so it has no figure", file=sys.stderr)
            return {}
        return {m: float(found[str(m)]) for m in rows if str(m) in found} if len(found) == len(rows) else {}


@dataclass(frozen=True)
class Onnx:
    """onnxruntime's MatMulNBits: 4 bits, a scale for every 32 elements, x rounded to int8 (accuracy level 4)."""

    threads: int
    name: str = "onnxruntime 4-bit"

    def times(self, dtype: str, copies: int, rows: Sequence[int], size: int) -> Times:
        if dtype != "q4_0":
            return {}
        sessions = [self._session(size, number) for number in range(copies)]
        found = {}
        for m in rows:
            x = np.random.default_rng(1).standard_normal((m, size)).astype(np.float32)
            calls = [lambda s=session, x=x: s.run(None, {"x": x}) for session in sessions]
            found[m] = seconds(in_turn(calls), clock_for(self.threads))
        return found

    def _session(self, size: int, seed: int) -> Any:
        import onnx  # noqa: PLC0415 - optional
        import onnxruntime  # noqa: PLC0415 - optional

        dice = np.random.default_rng(seed)
        codes = dice.integers(0, 256, (size, size // BLOCK, BLOCK // 2), dtype=np.uint8)
        scales = np.full(size * size // BLOCK, 0.01, np.float32)
        node = onnx.helper.make_node(
            "MatMulNBits",
            ["x", "codes", "scales"],
            ["y"],
            domain="com.microsoft",
            K=size,
            N=size,
            bits=4,
            block_size=BLOCK,
            accuracy_level=4,
        )
        kind = onnx.TensorProto.FLOAT
        graph = onnx.helper.make_graph(
            [node],
            "product",
            [onnx.helper.make_tensor_value_info("x", kind, ["rows", size])],
            [onnx.helper.make_tensor_value_info("y", kind, ["rows", size])],
            [onnx.numpy_helper.from_array(codes, "codes"), onnx.numpy_helper.from_array(scales, "scales")],
        )
        versions = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
        model = onnx.helper.make_model(graph, opset_imports=versions, ir_version=8)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


@dataclass(frozen=True)
class Torch:
    """torch's dynamic int8 linear (oneDNN on x86): a scale a row of the weight, x rounded to int8 as a whole."""

    threads: int
    name: str = "torch int8"

    def times(self, dtype: str, copies: int, rows: Sequence[int], size: int) -> Times:
        if dtype != "q8_0":
            return {}
        import torch  # noqa: PLC0415 - optional

        torch.set_num_threads(self.threads)
        torch.backends.quantized.engine = "onednn"
        plain = torch.nn.Sequential(torch.nn.Linear(size, size, bias=False))
        layers = [torch.ao.quantization.quantize_dynamic(plain, {torch.nn.Linear}) for _ in range(copies)]
        found = {}
        with torch.inference_mode():
            for m in rows:
                x = torch.randn(m, size)
                found[m] = seconds(in_turn([lambda la=layer, x=x: la(x) for layer in layers]), clock_for(self.threads))
        return found


def installed(*names: str) -> bool:
    return all(importlib.util.find_spec(name) for name in names)


def versions() -> dict[str, str]:
    """Of the libraries that are peers here."""
    names = ("onnx", "onnxruntime", "torch", "numpy")
    return {name: importlib.metadata.version(name) for name in names if installed(name)}


def matmul_peers(peers: Sequence[Peer], threads: int) -> list[Llama | Onnx | Torch]:
    """The built peers, and the libraries that are installed here."""
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # before torch is imported
    found: list[Llama | Onnx | Torch] = [Llama(side, threads) for side in sides_of(peers)]
    if installed("onnx", "onnxruntime"):
        found.append(Onnx(threads))
    if installed("torch"):
        found.append(Torch(threads))
    return found
