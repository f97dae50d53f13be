"""linear on the CPU device: many rows against numpy's f32 product, one row against the rate of a plain read.

Weights are packed, as a plan would have them. One step, one program, the median of rounds. With one thread the clock is
that of the thread, which other processes hardly disturb. GOPS count a multiply-add as two; GB/s are bytes of the
packed weight.

    OPENBLAS_NUM_THREADS=1 uv run python bench/matmul.py [--threads 1] [--level avx2] [--dtypes q4_1,q8_0]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from statistics import median

import numpy as np

from jackfield import ops
from jackfield.backend import DTYPES, Group, Place, PlacedStep, Spec, Step, Usage
from jackfield.dtypes import f32, u8
from jackfield_cpu.backend import CpuBackend
from jackfield_cpu.device import CpuDevice

ROUNDS, ROUND_S = 9, 0.02
SHAPES = [
    (576, 576),
    (1536, 576),
    (576, 1536),
    (49152, 576),
    (4096, 4096),
]  # (N, K): the default model's, and a large one
ROWS = [1, 4, 32, 512]
BACKEND = CpuBackend()


def seconds(call, clock) -> float:
    """Median over rounds of the time of one call, each round long enough to be timed."""
    call()
    start = clock()
    call()
    repeats = max(1, int(ROUND_S / max(clock() - start, 1e-7)))
    times = []
    for _ in range(ROUNDS):
        start = clock()
        for _ in range(repeats):
            call()
        times.append((clock() - start) / repeats)
    return median(times)


def packed_weight(device, dtype, n, k) -> Place:
    """A random weight, packed on the device. Its values do not matter; its scales are small and finite."""
    spec = Spec(dtype, (n, k), role="constant")
    user = Step("linear", (None, spec), spec)
    packing = BACKEND.pack(spec, [user], device.target)
    unit = np.random.default_rng(0).standard_normal((16, k)).astype(np.float32)
    plain = np.resize(dtype.encode(unit), spec.nbytes)
    packed = np.empty(packing.nbytes, np.uint8)
    packing.pack(memoryview(plain), memoryview(packed))
    buffer = device.alloc(packing.nbytes, Usage.CONSTANT)
    device.write(buffer, 0, memoryview(packed))
    return Place(buffer, 0, replace(spec, layout=packing.name))


def product(device, weight, rows):
    """A call that runs linear for so many rows of x."""
    x = np.random.default_rng(1).standard_normal((rows, weight.spec.shape[1])).astype(np.float32)
    source = device.alloc(x.nbytes, Usage.COMPUTE)
    device.write(source, 0, memoryview(x).cast("B"))
    specs = (Spec(f32, x.shape), weight.spec)
    result = ops.linear.infer(list(specs), {})
    step = Step("linear", specs, result, ops.linear.complete({}))
    out = Place(device.alloc(result.nbytes, Usage.COMPUTE), 0, result)
    need = device.scratch([step])
    scratch = Place(device.alloc(max(1, need), Usage.COMPUTE), 0, Spec(u8, (need,)))
    program = device.compile([Group((PlacedStep(step, (Place(source, 0, specs[0]), weight), out),))], scratch)

    def call(_keep=scratch) -> None:  # a program keeps its tensors alive, not its scratch
        program.run()

    return call


def peaks(clock) -> tuple[float, float]:
    """numpy's f32 product in operations a second, and bytes a second of reading 256 MB."""
    a, b = np.ones((512, 1024), np.float32), np.ones((1024, 512), np.float32)
    rate = 2 * 512 * 512 * 1024 / seconds(lambda: a @ b, clock)
    big = np.ones(1 << 28, np.uint8).view(np.int64)
    return rate, big.nbytes / seconds(big.max, clock)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--level", default="")
    parser.add_argument("--dtypes", default="q4_0,q4_1,q5_1,q8_0,q4_K,q5_K,q6_K,f16,f32")
    options = parser.parse_args()
    targets = BACKEND.targets()
    target = next((t for t in targets if t.arch == options.level), None) or BACKEND.devices()[0].target
    device = CpuDevice("cpu:0", target, options.threads)
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    flops, reads = peaks(clock)
    print(f"{target.arch}, {options.threads} threads; numpy f32 {flops / 1e9:.0f} GOPS, reads {reads / 1e9:.1f} GB/s")
    print("dtype      N     K    M      us     GOPS   of numpy    GB/s")
    for name in options.dtypes.split(","):
        for n, k in SHAPES:
            if k % DTYPES[name].block:
                continue
            weight = packed_weight(device, DTYPES[name], n, k)
            for rows in ROWS:
                if rows * n * k > 1 << 32:
                    continue
                t = seconds(product(device, weight, rows), clock)
                rate = 2 * rows * n * k / t
                moved = weight.buffer.nbytes / t / 1e9
                print(
                    f"{name:6} {n:6} {k:5} {rows:4} {t * 1e6:8.1f} {rate / 1e9:7.1f} {rate / flops:10.2f} {moved:7.1f}"
                )


if __name__ == "__main__":
    main()
