"""How fast weights come to the CPU device: packing by type beside a plain copy, and a whole model with its peak memory.

    uv run python bench/packing.py [--mib 8] [MODEL.gguf ...]

Types: one thread, the clock of the thread, GB/s of plain bytes read; the copy is numpy's of the same bytes. A model:
a process of its own, all its matrices as operands of one plan, with the threads of JACKFIELD_CPU_THREADS. Seconds on
the wall, processor seconds in all, and the largest resident size above that before, the file in the page cache.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from timing import seconds

import jackfield as jf
from jackfield.backend import Spec, Step
from jackfield.dtypes import DTYPES
from jackfield_cpu.backend import CpuBackend

COLUMNS = 2048


def packing_rate(name: str, nbytes: int) -> tuple[float, float]:
    """Bytes a second of packing this dtype, and of a copy."""
    dtype, backend = DTYPES[name], CpuBackend()
    row = COLUMNS // dtype.block * dtype.block_nbytes
    rows = max(16, nbytes // row // 16 * 16)
    spec = Spec(dtype, (rows, COLUMNS), role="constant")
    packing = backend.pack(spec, [Step("linear", (None, spec), spec)], backend.targets()[0])
    assert packing is not None
    plain = np.random.default_rng(0).integers(0, 256, rows * row, np.uint8)
    packed, copied = np.zeros(packing.nbytes, np.uint8), np.zeros_like(plain)
    pack_s = seconds(lambda: packing.pack(plain.data, packed.data), time.thread_time)
    copy_s = seconds(lambda: np.copyto(copied, plain), time.thread_time)
    return plain.nbytes / pack_s, plain.nbytes / copy_s


def upload(path: Path) -> dict[str, float]:
    """One plan with every matrix of the file; in a process that does nothing else."""
    jf.Session(device="cpu").close()
    before = resource.getrusage(resource.RUSAGE_SELF)
    with jf.gguf.open(path) as file:
        tensors = [t for t in file.tensors.values() if len(t.shape) == 2]
        inputs = {n: jf.input(f"x{n}", (1, n)) for n in sorted({t.shape[1] for t in tensors})}
        outputs = tuple(jf.ops.linear(inputs[t.shape[1]], jf.constant(t, name=t.name)) for t in tensors)
        wall, cpu = time.perf_counter(), time.process_time()
        jf.compile(outputs, device="cpu")
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    after = resource.getrusage(resource.RUSAGE_SELF)
    scale = 1 if sys.platform == "darwin" else 1024
    grown = (after.ru_maxrss - before.ru_maxrss) * scale
    return {"wall_s": wall, "cpu_s": cpu, "grown": grown, "plain": float(sum(t.nbytes for t in tensors))}


def main() -> None:
    parser = argparse.ArgumentParser(description="Packing weights and bringing them to the CPU device")
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--mib", type=int, default=8, help="of plain bytes a type; 1 packs on one thread always")
    parser.add_argument("--upload", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.upload:
        print(json.dumps(upload(args.upload)))
        return
    for name, dtype in DTYPES.items():
        if name in ("f32", "f16", "bf16") or (dtype.is_block and not dtype.is_activation):
            pack, copy = packing_rate(name, args.mib << 20)
            print(f"{name:<8} {pack / 1e9:6.1f} GB/s of {copy / 1e9:5.1f} copied: {100 * pack / copy:4.0f} %")
    for path in args.models:
        command = [sys.executable, __file__, "--upload", str(path)]
        told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        print(
            f"{path.name}: {told['plain'] / 1e6:.0f} MB of matrices in {told['wall_s'] * 1e3:.0f} ms, "
            f"{told['cpu_s'] * 1e3:.0f} ms of processor; memory grew by {told['grown'] / 1e6:.0f} MB at most"
        )


if __name__ == "__main__":
    main()
