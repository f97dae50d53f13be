"""`linear` on the CPU device, type by type, against the peers' products in the same run and the machine's roofline.

    uv run python bench/matmul.py [--threads 1] [--level avx2] [--dtypes q4_1,q8_0] [--rows 1,512] [--json FILE]

`--json` keeps every sample, the goals with their verdicts, the command lines of the peers and how they were built.

K = N = 4096; rows of x: 1, 4, 32, 512. Hot: one weight, over and over. Cold: copies take turns, more than the last
cache holds. Weights are packed, as a plan would have them; a time holds all a product needs, rounding x included. Sides
alternate, the figure is the median of rounds. With one thread the clock is that of the thread, which other processes
hardly disturb. GOPS count a multiply-add as two. The roofline is measured beside each type; of a product it is the
larger of its operations over the peak and, cold, its bytes over the read rate. Peers: llama.cpp as it is and packed,
ik_llama.cpp packed (peer.py); for q4_0, onnxruntime's 4-bit product and, for q8_0, torch's dynamic int8, where these
packages are installed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import roofline
from aims import counted, matmul_aim
from machine import cpu_name, last_cache_nbytes, origin
from matmul_peers import Llama, Times, matmul_peers, versions
from peer import Peer, build_all, read_peers
from peer_sources import PeerError, peer_dir
from sides import shown
from timing import Call, clock_for, in_turn, seconds

from jackfield import ops
from jackfield.backend import DTYPES, Group, Place, PlacedStep, Spec, Step, Usage
from jackfield.dtypes import DType, f32, u8
from jackfield_cpu.backend import CpuBackend
from jackfield_cpu.device import CpuDevice

SIZE = 4096
ROWS = (1, 4, 32, 512)
BACKEND = CpuBackend()
OURS = "jackfield"


def weights(device: CpuDevice, dtype: DType, n: int, k: int, copies: int) -> list[Place]:
    """Equal random weights, packed on the device where it packs them. Their scales are small and finite."""
    spec = Spec(dtype, (n, k), role="constant")
    user = Step("linear", (None, spec), spec)
    unit = np.random.default_rng(0).standard_normal((16, k)).astype(np.float32)
    data = np.resize(dtype.encode(unit).view(np.uint8), spec.nbytes)
    packing = BACKEND.pack(spec, [user], device.target)
    if packing is not None:
        packed = np.empty(packing.nbytes, np.uint8)
        packing.pack(memoryview(data), memoryview(packed))
        data, spec = packed, replace(spec, layout=packing.name)
    places = []
    for _ in range(copies):
        buffer = device.alloc(data.nbytes, Usage.CONSTANT)
        device.write(buffer, 0, memoryview(data))
        places.append(Place(buffer, 0, spec))
    return places


def product(device: CpuDevice, made: Sequence[Place], rows: int) -> Call:
    """A call that runs linear for so many rows of x with the next of the weights."""
    x = np.random.default_rng(1).standard_normal((rows, made[0].spec.shape[1])).astype(np.float32)
    source = device.alloc(x.nbytes, Usage.COMPUTE)
    device.write(source, 0, memoryview(x).cast("B"))
    specs = (Spec(f32, x.shape), made[0].spec)
    result = ops.linear.infer(list(specs), {})
    step = Step("linear", specs, result, ops.linear.complete({}))
    out = Place(device.alloc(result.nbytes, Usage.COMPUTE), 0, result)
    need = device.scratch([step])
    scratch = Place(device.alloc(max(1, need), Usage.COMPUTE), 0, Spec(u8, (need,)))
    programs = [
        device.compile([Group((PlacedStep(step, (Place(source, 0, specs[0]), weight), out),))], scratch)
        for weight in made
    ]
    run = in_turn([program.run for program in programs])

    def call(_keep: Place = scratch) -> None:  # a program keeps its tensors alive, not its scratch
        run()

    return call


@dataclass(frozen=True)
class Ours:
    """Our side of the products."""

    device: CpuDevice
    name: str = OURS

    def times(self, dtype: str, copies: int, rows: Sequence[int], size: int) -> Times:
        """Seconds of a product by rows; empty where linear has no kernel for the type."""
        if dtype not in BACKEND.kernels()["linear"].operands["weight"]:
            return {}
        made = weights(self.device, DTYPES[dtype], size, size, copies)
        clock = clock_for(self.device.threads)
        found = {m: seconds(product(self.device, made, m), clock) for m in rows}
        for place in made:
            self.device.free(place.buffer)
        return found


def copies_beyond_cache(nbytes: int) -> int:
    """How many weights of so many bytes are twice as large as the last cache."""
    return max(2, -(-2 * last_cache_nbytes() // nbytes))


def ideal_s(dtype: str, rows: int, size: int, threads: int, peaks: roofline.Roofline, *, cold: bool) -> float:
    """Seconds the roofline leaves for a product."""
    kind = {"f32": "f32", "f16": "f32", "bf16": "bf16"}.get(dtype, "int8")
    peak = peaks.get(kind, peaks["f32"])[threads]
    reading = DTYPES[dtype].nbytes((size, size)) / roofline.read_rate(peaks, threads) if cold else 0.0
    return max(2 * rows * size * size / peak, reading)


Samples = dict[int, list[float]]
"""Seconds of a product, by rows."""


def measured(sides: Sequence[Any], dtype: str, copies: int, chosen: argparse.Namespace) -> dict[str, Samples]:
    """Samples by side of alternating rounds; sides without the type are left out."""
    seen: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for _ in range(chosen.rounds):
        for side in sides:
            for rows, took in side.times(dtype, copies, chosen.rows, chosen.size).items():
                seen[side.name][rows].append(took)
    return {name: dict(found) for name, found in seen.items()}


def lines(
    dtype: str, heat: str, found: Mapping[str, Samples], peaks: roofline.Roofline, chosen: argparse.Namespace, void: str
) -> Iterator[dict[str, Any]]:
    """Rows of the result, a side each. void: why no goal can be judged."""
    for rows in chosen.rows:
        ideal = ideal_s(dtype, rows, chosen.size, chosen.threads, peaks, cold=heat == "cold")
        aim = matmul_aim(dtype, rows, heat, chosen.threads, peaks) if chosen.size == SIZE else None
        for side, samples in found.items():
            took, gops = median(samples[rows]), 2 * rows * chosen.size**2 / 1e9
            yield {
                "dtype": dtype,
                "weight": heat,
                "rows": rows,
                "side": side,
                "samples": samples[rows],
                "seconds": took,
                "gops": gops / took,
                "share_of_roofline": ideal / took,
                "ours_to_it": took / median(found[OURS][rows]) if OURS in found and side != OURS else None,
                "goal": aim.judged(1e9 * gops / took, void=void) if aim and side == OURS else None,
            }


def print_line(line: Mapping[str, Any]) -> None:
    ratio = f"{line['ours_to_it']:8.2f}" if line["ours_to_it"] else " " * 8
    goal = f"  goal {line['goal']['verdict']}" if line["goal"] else ""
    print(
        f"{line['dtype']:8} {line['weight']:5} {line['rows']:4}  {line['side']:18} {line['seconds'] * 1e6:10.1f} "
        f"{line['gops']:8.1f} {line['share_of_roofline']:8.0%} {ratio}{goal}",
        flush=True,
    )


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    every = [name for name, dtype in DTYPES.items() if dtype.block > 1 and name not in {"q8_1", "q8_K"}]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--level", default="", help="instruction set of ours; the best where none is named")
    parser.add_argument("--dtypes", type=lambda text: text.split(","), default=[*every, "f16", "bf16", "f32"])
    parser.add_argument("--rows", type=lambda text: [int(part) for part in text.split(",")], default=ROWS)
    parser.add_argument("--size", type=int, default=SIZE, help="K and N")
    parser.add_argument("--rounds", type=int, default=3, help="turns of every side")
    parser.add_argument("--hot-only", action="store_true")
    parser.add_argument("--no-peers", action="store_true", help="measure ours alone")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--dir", help="where the peers are built, as in peer.py")
    parser.add_argument(
        "--peers", type=Path, metavar="FILE", help="peers that are built already, as peer.py prints them"
    )
    parser.add_argument("--roofline", metavar="PROGRAM", help="a roofline that is built already")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parsed(arguments)
    if unknown := [name for name in chosen.dtypes if name not in DTYPES]:
        print(f"matmul: {unknown[0]}: no such dtype; known: {' '.join(DTYPES)}", file=sys.stderr)
        return 1
    target = next((t for t in BACKEND.targets() if t.arch == chosen.level), BACKEND.devices()[0].target)
    ours = Ours(CpuDevice("cpu:0", target, chosen.threads))
    try:
        folder = peer_dir(chosen.dir)
        program = chosen.roofline or roofline.build(folder)
        peers = [] if chosen.no_peers else read_peers(chosen.peers) if chosen.peers else build_all(folder, 2)
        sides = [ours, *matmul_peers(peers, chosen.threads)] if not chosen.no_peers else [ours]
        document = compared(sides, peers, program, chosen)
    except PeerError as error:
        print(error, file=sys.stderr)
        return 1
    goals = counted([line["goal"]["verdict"] for line in document["products"] if line["goal"]])
    print("\ngoals: " + ", ".join(f"{count} {kind}" for kind, count in goals.items()))
    if chosen.json:
        head = {"machine": origin(), "command": shown([Path(sys.argv[0]).name, *sys.argv[1:]]), "level": target.arch}
        chosen.json.write_text(json.dumps(head | {"goals": goals} | document, indent=1) + "\n")
    return 0


def compared(
    sides: Sequence[Any], peers: Sequence[Peer], program: Path | str, chosen: argparse.Namespace
) -> dict[str, Any]:
    """All products, printed as they come; the document without its head."""
    void = "; ".join(f"{peer.name}: not built for this CPU" for peer in peers if not peer.native)
    said = f"; VOID: {void}" if void else ""
    print(f"{cpu_name()}, level {sides[0].device.target.arch}, {chosen.threads} threads{said}")
    print(f"{'dtype':8} {'':5} {'rows':>4}  {'side':18} {'us':>10} {'GOPS':>8} {'roofline':>8} {'ours to it':>10}")
    rooflines: list[roofline.Roofline] = []
    result, commands = [], []
    for dtype in chosen.dtypes:
        if chosen.size % DTYPES[dtype].block:
            continue
        rooflines.append(roofline.measure(program, chosen.threads, quick=chosen.size < SIZE))
        nbytes = DTYPES[dtype].nbytes((chosen.size, chosen.size))
        for heat, copies in {"hot": 1, "cold": copies_beyond_cache(nbytes)}.items():
            if heat == "cold" and chosen.hot_only:
                continue
            words = (dtype, copies, chosen.rows, chosen.size)
            commands += [shown(side.command(*words)) for side in sides if isinstance(side, Llama)]
            found = measured(sides, dtype, copies, chosen)
            for line in lines(dtype, heat, found, rooflines[-1], chosen, void):
                print_line(line)
                result.append(line)
    peaks = roofline.medians(rooflines) if rooflines else {}
    print(f"\n{roofline.table(peaks)}")
    return {
        "sizes": {"threads": chosen.threads, "size": chosen.size, "rows": chosen.rows, "rounds": chosen.rounds},
        "void": void,
        "peers": [peer.origin for peer in peers],
        "libraries": versions(),
        "commands": commands,
        "roofline": peaks,
        "roofline_samples": rooflines,
        "products": result,
    }


if __name__ == "__main__":
    sys.exit(main())
