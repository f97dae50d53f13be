"""Memory-bound kernels of the CPU device at 16 MiB, as a share of the rate at which memory is copied in the same run.

    uv run python bench/memory_ops.py [KERNEL ...] [--threads 1,2] [--mib 16] [--level avx2] [--json FILE]

KERNEL is a name as the table has it; all where none is given.

A copy reads each byte and writes it; so a kernel that reads R and writes W bytes would take as long as a copy of
(R + W) / 2. The copy is numpy's, and at every number of threads also `memcpy` in C (roofline.py); a kernel is compared
with the faster of the two. They are measured in turn with the kernels, medians of rounds. One step, one program; with
one thread the clock of ours and of numpy's copy is the thread's, which other processes hardly disturb.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import roofline
from aims import counted
from attention import program
from machine import cpu_name, origin
from peer_sources import PeerError, peer_dir
from targets import COPIES_SHARE
from timing import Call, clock_for, seconds

from jackfield import ops
from jackfield_cpu.backend import CpuBackend
from jackfield_cpu.device import CpuDevice

COLUMNS = 1024
TURNS = 5
GOAL_MIB = 16
"""The size that the goal speaks of."""


@dataclass(frozen=True)
class Kernel:
    """One step. reads, writes: bytes that must move, each counted once."""

    name: str
    op: Any
    arrays: Mapping[str, np.ndarray]
    attrs: Mapping[str, Any]
    reads: int
    writes: int


def kernels(nbytes: int) -> Iterator[Kernel]:
    """Kernels whose tensor x has so many bytes: f32 rows of COLUMNS."""
    dice = np.random.default_rng(0)
    x = dice.standard_normal((nbytes // 4 // COLUMNS, COLUMNS), dtype=np.float32)
    rows = np.arange(len(x), dtype=np.int32)
    heads, head = x.reshape(1, len(x), COLUMNS // 64, 64), x.reshape(1, -1, 1, 64)
    half = np.zeros(x.shape, np.float16)
    yield Kernel("add", ops.add, {"a": x, "b": x.copy()}, {}, 2 * nbytes, nbytes)
    yield Kernel("multiply by a row", ops.multiply, {"a": x, "b": x[0].copy()}, {}, nbytes, nbytes)
    yield Kernel("multiply by a column", ops.multiply, {"a": x, "b": x[:, :1].copy()}, {}, nbytes, nbytes)
    yield Kernel("rms_norm", ops.rms_norm, {"x": x}, {"eps": 1e-5}, nbytes, nbytes)
    yield Kernel("norm", ops.norm, {"x": x}, {"eps": 1e-5}, nbytes, nbytes)
    for mode in ("normal", "neox"):
        rope = {"mode": mode, "n_dims": 64}
        yield Kernel(f"rope, {mode}", ops.rope, {"x": heads, "positions": rows}, rope, nbytes, nbytes)
        one = {"x": head, "positions": np.arange(head.shape[1], dtype=np.int32)}
        yield Kernel(f"rope of one head, {mode}", ops.rope, one, rope, nbytes, nbytes)
    count, side = head.shape[1], 256
    rows_of, columns_of = np.divmod(np.arange(count, dtype=np.int32), side)
    picture = {"x": head, "positions": np.stack([np.zeros_like(rows_of), rows_of, columns_of, np.zeros_like(rows_of)])}
    lists = {"mode": "mrope", "n_dims": 64, "sections": (8, 12, 12, 0)}
    yield Kernel("rope of one head, mrope", ops.rope, picture, lists, nbytes, nbytes)
    yield Kernel("cast to f16", ops.cast, {"x": x}, {"dtype": "f16"}, nbytes, nbytes // 2)
    yield Kernel("silu", ops.silu, {"x": x}, {}, nbytes, nbytes)
    yield Kernel("gelu", ops.gelu, {"x": x}, {}, nbytes, nbytes)
    yield Kernel("swiglu", ops.swiglu, {"gate": x, "up": x.copy()}, {}, 2 * nbytes, nbytes)
    yield Kernel("softmax", ops.softmax, {"x": x}, {}, nbytes, nbytes)
    yield from turned(nbytes, x)
    yield from copies(nbytes, x)
    into_half: dict[str, Any] = {"target": half, "x": x, "rows": rows}
    yield Kernel("put_rows to f16", ops.put_rows, into_half, {}, nbytes, nbytes // 2)
    yield Kernel("put_rows", ops.put_rows, {"target": x.copy(), "x": x, "rows": rows}, {}, nbytes, nbytes)
    back = rows[::-1].copy()
    yield Kernel("take_rows", ops.take_rows, {"x": x, "rows": back}, {}, nbytes, nbytes)
    yield Kernel("take_rows of f16", ops.take_rows, {"x": half, "rows": back}, {}, nbytes // 2, nbytes)
    yield Kernel("argmax", ops.argmax, {"x": x}, {}, nbytes, 0)
    yield Kernel("argmax of columns", ops.argmax, {"x": x}, {"axis": 0}, nbytes, 0)
    yield Kernel("argmax of long rows' columns", ops.argmax, {"x": x.reshape(-1, 4096)}, {"axis": 0}, nbytes, 0)
    yield Kernel("sum of rows", ops.sum, {"x": x}, {}, nbytes, 0)
    yield Kernel("sum of columns", ops.sum, {"x": x}, {"axis": 0}, nbytes, 0)
    yield Kernel("sum of a middle axis", ops.sum, {"x": x.reshape(-1, 64, COLUMNS)}, {"axis": 1}, nbytes, 0)


def turned(nbytes: int, x: np.ndarray) -> Iterator[Kernel]:
    """Elementwise ops of operands that lie together along another axis than the last."""
    y, half = x.reshape(COLUMNS, -1), x.astype(np.float16)
    yield Kernel("add of columns", ops.add, {"a": y.copy(), "b": x.T}, {}, 2 * nbytes, nbytes)
    yield Kernel("multiply columns by a row", ops.multiply, {"a": x.T, "b": y[0].copy()}, {}, nbytes, nbytes)
    yield Kernel("silu of columns", ops.silu, {"x": x.T}, {}, nbytes, nbytes)
    yield Kernel("add of columns f16", ops.add, {"a": half.T, "b": half.T.copy()}, {}, nbytes, nbytes // 2)


def copies(nbytes: int, x: np.ndarray) -> Iterator[Kernel]:
    """Copies by shape of the view: all bytes are read once and written once."""
    bytes_, rows = x.view(np.uint8).reshape(-1), len(x)
    for dtype in ("i1", "f2", "f4", "i8"):
        turned = bytes_.view(dtype).reshape(-1, COLUMNS).T
        yield Kernel(f"contiguous of columns {dtype}", ops.contiguous, {"x": turned}, {}, nbytes, nbytes)
    odd = x.reshape(-1)[: (rows - 1) * (COLUMNS - 3)].reshape(rows - 1, COLUMNS - 3).T
    yield Kernel("contiguous, odd extents", ops.contiguous, {"x": odd}, {}, odd.nbytes, odd.nbytes)
    heads = x.reshape(rows, COLUMNS // 64, 64)
    for order in ((1, 0, 2), (1, 2, 0), (2, 1, 0)):
        name = f"contiguous of heads {order[0]}{order[1]}{order[2]}"
        yield Kernel(name, ops.contiguous, {"x": heads.transpose(order)}, {}, nbytes, nbytes)
    sides = {"a": x[:, : COLUMNS // 2], "b": x[:, COLUMNS // 2 :]}
    yield Kernel("concatenate", ops.concatenate, sides, {"axis": 1}, nbytes, nbytes)
    turned_sides = {"a": x.T, "b": x.T}
    yield Kernel("concatenate columns", ops.concatenate, turned_sides, {"axis": 1}, 2 * nbytes, 2 * nbytes)
    yield Kernel("tile", ops.tile, {"x": x}, {"repeats": (1, 2)}, nbytes, 2 * nbytes)
    short = {"x": x.reshape(-1, 4)}
    yield Kernel("tile of rows of 4", ops.tile, short, {"repeats": (1, 2)}, nbytes, 2 * nbytes)


def copying(nbytes: int) -> Call:
    """numpy's copy of so many bytes, on one thread."""
    source, target = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    return lambda: np.copyto(target, source)


def measured(device: CpuDevice, chosen: argparse.Namespace, tool: Path | str) -> list[dict[str, Any]]:
    """A row a kernel, for the threads of the device."""
    nbytes = chosen.mib << 20
    found = [kernel for kernel in kernels_kept(nbytes) if not chosen.kernels or kernel.name in chosen.kernels]
    calls = {kernel.name: program(device, kernel.op, kernel.arrays, **kernel.attrs) for kernel in found}
    copy, clock, rates = copying(nbytes), clock_for(device.threads), []
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(TURNS):
        rates.append(nbytes / seconds(copy, clock))
        rates.append(roofline.measure(tool, device.threads, quick=True)["copy_16MiB"][device.threads])
        for name, call in calls.items():
            times[name].append(seconds(call, clock))
    rate = max(median(rates[::2]), median(rates[1::2]))
    goal = chosen.mib == GOAL_MIB
    return [row(kernel, times[kernel.name], rate, device.threads, goal=goal) for kernel in found]


def kernels_kept(nbytes: int) -> list[Kernel]:
    known = CpuBackend().kernels()
    return [kernel for kernel in kernels(nbytes) if kernel.op.name in known]


def verdict(share: float) -> str:
    """Whether a kernel reaches its part of the rate of copying."""
    return f"{'met' if share >= COPIES_SHARE else 'missed'} (at least {COPIES_SHARE:.0%} of copying)"


def row(kernel: Kernel, samples: Sequence[float], rate: float, threads: int, *, goal: bool) -> dict[str, Any]:
    took = median(samples)
    moved = (kernel.reads + kernel.writes) / 2
    return {
        "kernel": kernel.name,
        "threads": threads,
        "samples": list(samples),
        "seconds": took,
        "bytes_per_s": moved / took,
        "copy_bytes_per_s": rate,
        "share_of_copy": moved / took / rate,
        "goal": verdict(moved / took / rate) if goal else "",
    }


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    for found in rows:
        low = "  missed" if found["goal"].startswith("missed") else ""
        print(
            f"{found['kernel']:<28} {found['threads']:>7} {found['seconds'] * 1e6:10.0f} "
            f"{found['bytes_per_s'] / 1e9:8.1f} {found['copy_bytes_per_s'] / 1e9:8.1f} "
            f"{found['share_of_copy']:8.0%}{low}",
            flush=True,
        )


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="*", metavar="KERNEL")
    parser.add_argument("--threads", type=lambda text: [int(part) for part in text.split(",")], default=[1, 2])
    parser.add_argument("--mib", type=int, default=16, help="size of a tensor")
    parser.add_argument("--level", default="", help="instruction set; the best where none is named")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--dir", help="where the roofline is built, as in peer.py")
    parser.add_argument("--roofline", metavar="PROGRAM", help="a roofline that is built already")
    chosen = parser.parse_args(arguments)
    known = [kernel.name for kernel in kernels_kept(1 << 20)] if chosen.kernels else []
    if unknown := sorted(set(chosen.kernels) - set(known)):
        parser.error(f"no kernel {unknown[0]!r}; known: {'; '.join(known)}")
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parsed(arguments)
    backend = CpuBackend()
    target = next((t for t in backend.targets() if t.arch == chosen.level), backend.devices()[0].target)
    print(f"{cpu_name()}, level {target.arch}, {chosen.mib} MiB; the aim is {COPIES_SHARE:.0%} of copying")
    print(f"{'kernel':<28} {'threads':>7} {'us':>10} {'GB/s':>8} {'copying':>8} {'share':>8}")
    rows = []
    try:
        tool = chosen.roofline or roofline.build(peer_dir(chosen.dir))
        for threads in chosen.threads:
            found = measured(CpuDevice("cpu:0", target, threads), chosen, tool)
            print_rows(found)
            rows += found
    except PeerError as error:
        print(error, file=sys.stderr)
        return 1
    goals = counted([found["goal"] for found in rows])
    print("\ngoals: " + ", ".join(f"{count} {kind}" for kind, count in goals.items()))
    if chosen.json:
        document = {"machine": origin(), "level": target.arch, "mib": chosen.mib, "goals": goals, "kernels": rows}
        chosen.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
