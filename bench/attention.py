"""Attention and its neighbours on the CPU device against a simple roofline measured in the same run.

Prompt steps are compared with the rate of numpy's f32 matrix product, decode steps with the rate at which numpy reads
memory, small steps with nothing: their time is what a decode pays for each of them. One step, one program, the median
of rounds. With one thread the clock is that of the thread, which other processes hardly disturb.

    OPENBLAS_NUM_THREADS=1 uv run python bench/attention.py [--threads 1] [--level avx2]
"""

from __future__ import annotations

import argparse
import itertools
import time

import numpy as np
from timing import seconds

from jackfield import ops
from jackfield.backend import Group, Place, PlacedStep, Spec, Step, Usage
from jackfield.dtypes import by_name, of_numpy, u8
from jackfield_cpu.backend import CpuBackend
from jackfield_cpu.device import CpuDevice

DTYPES = ("float16", "q8_0", "q4_0")


def program(device, op, arrays, copies=1, **attrs):
    """A call that runs `copies` equal steps on these arrays; elements of a cache of blocks are blocks."""
    specs, places = [], []
    for name in op.operands:
        array = arrays.get(name)
        if array is None:
            specs.append(None)
            places.append(None)
            continue
        base = array if array.base is None else array.base
        if array.dtype.names:
            block = by_name(array.dtype.names[0])
            spec = Spec(block, (*array.shape[:3], array.shape[3] * block.block), array.strides)
        else:
            spec = Spec(of_numpy(array.dtype), array.shape, array.strides)
        buffer = device.alloc(base.nbytes, Usage.COMPUTE)
        device.write(buffer, 0, memoryview(np.ascontiguousarray(base).reshape(-1).view(np.uint8)))
        specs.append(spec)
        places.append(Place(buffer, 0, spec))
    result = op.infer(specs, attrs)
    step = Step(op.name, tuple(specs), result, op.complete(attrs))
    out = places[0] if op.updates else Place(device.alloc(result.nbytes, Usage.COMPUTE), 0, result)
    need = device.scratch([step])
    scratch = Place(device.alloc(need, Usage.COMPUTE), 0, Spec(u8, (need,))) if need else None
    placed = PlacedStep(step, tuple(places), out)
    compiled = device.compile([Group((placed,))] * copies, scratch)

    def call(_scratch=scratch):  # the work memory lives as long as the call
        compiled.run()

    return call


def cache(rows, heads, size, dtype):
    """A cache (rows, heads, size) seen as (1, heads, rows, size), or (1, heads, rows, blocks)."""
    base = np.random.default_rng(0).standard_normal((1, rows, heads, size))
    if dtype not in np.sctypeDict:
        block = by_name(dtype)
        coded = block.encode(base).reshape(1, rows, heads, -1).copy()
        return coded.view([(dtype, "u1", block.block_nbytes)]).transpose(0, 2, 1, 3)
    return base.astype(dtype).transpose(0, 2, 1, 3)


def prompts(device, peak):
    print("prompt: T queries over T columns, causal")
    shapes = ((512, 9, 3, 64), (128, 9, 3, 64), (512, 32, 8, 128), (32, 9, 3, 64), (512, 4, 1, 256))
    for (T, H, G, D), dtype in itertools.product(shapes, DTYPES):
        q = np.random.default_rng(1).standard_normal((1, T, H, D)).astype(np.float32).transpose(0, 2, 1, 3)
        k, v = cache(1024, G, D, dtype), cache(1024, G, D, dtype)
        kv_len = np.array([T], np.int32)
        run = program(device, ops.attention, {"q": q, "k": k, "v": v, "kv_len": kv_len}, scale=D**-0.5, causal=True)
        took = seconds(run, device.clock)
        flops = 2 * H * (T * (T + 1) // 2) * 2 * D
        print(
            f"  T {T:4} heads {H:2}/{G} size {D:3} {dtype:7}: {took * 1e3:8.3f} ms {flops / took / 1e9:7.1f} GFLOP/s "
            f"= {100 * flops / took / peak:3.0f} % of the matrix product"
        )


def decodes(device, rate):
    print("decode: 1 query, a cache of 4096")
    shapes = (
        (64, 9, 3, 64),
        (512, 9, 3, 64),
        (2048, 9, 3, 64),
        (4096, 9, 3, 64),
        (4096, 32, 8, 128),
        (4096, 32, 32, 128),
    )
    for (n, H, G, D), dtype in itertools.product(shapes, DTYPES):
        q = np.random.default_rng(1).standard_normal((1, H, 1, D)).astype(np.float32)
        k, v = cache(4096, G, D, dtype), cache(4096, G, D, dtype)
        kv_len = np.array([n], np.int32)
        run = program(device, ops.attention, {"q": q, "k": k, "v": v, "kv_len": kv_len}, scale=D**-0.5, causal=True)
        took = seconds(run, device.clock)
        nbytes = k[:, :, :n].nbytes + v[:, :, :n].nbytes
        print(
            f"  columns {n:4} heads {H:2}/{G:2} size {D:3} {dtype:7}: {took * 1e6:8.1f} us, {took * 1e9 / n:6.1f} ns a "
            f"column, {nbytes / took / 1e9:6.2f} GB/s = {100 * nbytes / took / rate:3.0f} % of reading"
        )


def small(device):
    print("steps of a decode, each the 200th part of a run of 200")
    rng = np.random.default_rng(2)
    x = rng.standard_normal((1, 576)).astype(np.float32)
    wide = rng.standard_normal((1, 1536)).astype(np.float32)
    heads = rng.standard_normal((1, 1, 9, 64)).astype(np.float32)
    row = np.array([5], np.int32)
    rope = {"mode": "normal", "n_dims": 64}
    steps = {
        "add 1": (ops.add, {"a": x[:, :1].copy(), "b": x[:, :1].copy()}, {}),
        "add 576": (ops.add, {"a": x, "b": x}, {}),
        "multiply 576 by a row": (ops.multiply, {"a": x, "b": x[0].copy()}, {}),
        "rms_norm 576": (ops.rms_norm, {"x": x}, {"eps": 1e-5}),
        "swiglu 1536": (ops.swiglu, {"gate": wide, "up": wide}, {}),
        "rope 9 heads of 64": (ops.rope, {"x": heads, "positions": row}, rope),
        "put_rows 192 to f16": (
            ops.put_rows,
            {"target": np.zeros((1024, 192), np.float16), "x": x[:, :192].copy(), "rows": row},
            {},
        ),
        "softmax 512": (ops.softmax, {"x": wide[:, :512].reshape(1, 1, 1, 512).copy()}, {}),
        "argmax 49152": (ops.argmax, {"x": rng.standard_normal((1, 49152)).astype(np.float32)}, {}),
    }
    for name, (op, arrays, attrs) in steps.items():
        took = seconds(program(device, op, arrays, copies=200, **attrs), device.clock) / 200
        print(f"  {name:24} {took * 1e9:8.0f} ns")


def large(device):
    print("steps of a prompt of 512")
    rng = np.random.default_rng(2)
    x = rng.standard_normal((512, 576)).astype(np.float32)
    wide = rng.standard_normal((512, 1536)).astype(np.float32)
    heads = rng.standard_normal((1, 512, 9, 64)).astype(np.float32)
    rows = np.arange(512, dtype=np.int32)
    steps = {
        "add": (ops.add, {"a": x, "b": x}, {}, 3),
        "multiply by a row": (ops.multiply, {"a": x, "b": x[0].copy()}, {}, 2),
        "rms_norm": (ops.rms_norm, {"x": x}, {"eps": 1e-5}, 2),
        "swiglu": (ops.swiglu, {"gate": wide, "up": wide}, {}, 3),
        "rope": (ops.rope, {"x": heads, "positions": rows}, {"mode": "normal", "n_dims": 64}, 2),
        "put_rows f16": (
            ops.put_rows,
            {"target": np.zeros((1024, 192), np.float16), "x": x[:, :192].copy(), "rows": rows},
            {},
            1.5,
        ),
        "put_rows f16, heads": (
            ops.put_rows,
            {
                "target": np.zeros((1024, 3, 64), np.float16).transpose(1, 0, 2),
                "x": heads[0, :, :3].transpose(1, 0, 2),
                "rows": rows,
            },
            {},
            1.5,
        ),
    }
    for name, (op, arrays, attrs, moves) in steps.items():
        took = seconds(program(device, op, arrays, **attrs), device.clock)
        elements = arrays[op.operands[op.updates]].size
        print(f"  {name:24} {took * 1e6:8.1f} us {4 * moves * elements / took / 1e9:6.1f} GB/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--level", default=None)
    asked = parser.parse_args()
    backend = CpuBackend()
    level = asked.level or backend.devices()[0].target.arch
    device = CpuDevice("cpu:0", next(t for t in backend.targets() if t.arch == level), asked.threads)
    device.clock = time.thread_time if asked.threads == 1 else time.perf_counter
    a = np.random.default_rng(0).standard_normal((1024, 1024)).astype(np.float32)
    peak = 2 * 1024**3 / seconds(lambda: a @ a, time.thread_time)
    ints = np.ones(4 << 20, np.int64)
    rate = ints.nbytes / seconds(ints.max, time.thread_time)
    print(f"level {device.target.arch}, {asked.threads} threads")
    print(f"numpy: product {peak / 1e9:.0f} GFLOP/s, reading {rate / 1e9:.1f} GB/s")
    prompts(device, peak)
    decodes(device, rate)
    small(device)
    large(device)


if __name__ == "__main__":
    main()
