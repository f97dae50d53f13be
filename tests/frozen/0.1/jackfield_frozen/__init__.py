"""A backend written for contract 0.1, kept as it was: it uses what that contract offers, in numpy, on host memory.

Nothing here is ever changed. What a later core must still do for wheels of that time is what this one needs.
"""

from collections import deque
from functools import partial

import numpy as np

from jackfield.backend import (
    DTYPES,
    Backend,
    BadIndex,
    Device,
    Grouping,
    Kernel,
    Limits,
    Memory,
    OutOfMemory,
    Packing,
    Place,
    Program,
    Rates,
    Reason,
    Target,
    Usage,
    hookimpl,
    operand_names,
    work_of,
)

F32 = frozenset({"f32"})
BLOCK, BLOCK_NBYTES = DTYPES["q8_0"].block, DTYPES["q8_0"].block_nbytes
KERNELS = {
    "add": Kernel({"a": F32, "b": F32}, F32),
    "multiply": Kernel(operands={"a": F32, "b": F32}, results=F32, attributes=frozenset()),
    "relu": Kernel({"x": F32}, F32),
    "scale": Kernel({"x": F32}, F32, frozenset({"scale", "bias"})),
    "sum": Kernel({"x": F32}, F32, frozenset({"axis", "keepdims"})),
    "take_rows": Kernel({"x": F32, "rows": frozenset({"i32"})}, F32),
    "linear": Kernel(
        {"x": F32, "weight": frozenset({"f32", "q8_0"})}, F32, layouts={"weight": frozenset({"frozen_planes"})}
    ),
}
TARGET = Target(
    kind="frozen",
    arch="numpy",
    features=frozenset({"host_visible", "zeroed"}),
    limits=Limits(max_buffer=1 << 40, max_operand=1 << 32),
    rates=Rates(multiply_adds=1e9, nbytes=1e9, launch=1e-5),
    stamp=1,
)


def array(place):
    """The tensor of a Place where it lies; blocks as rows of bytes."""
    spec = place.spec
    if spec.dtype.block > 1:
        shape = (*spec.shape[:-1], spec.shape[-1] // BLOCK, BLOCK_NBYTES)
        return np.ndarray(shape, np.uint8, place.buffer, place.offset, (*spec.byte_strides, 1))
    return np.ndarray(spec.shape, spec.dtype.numpy, place.buffer, place.offset, spec.byte_strides)


def planes(data, count):
    """Scales and numbers of packed blocks: f16 (count,), i8 (count, 32)."""
    raw = np.frombuffer(data, np.uint8)
    return raw[: 2 * count].view(np.float16), raw[2 * count :].view(np.int8).reshape(count, BLOCK)


def pack(plain, packed):
    """All scales, then all numbers. Gives the first block whose scale is no finite number."""
    blocks = np.frombuffer(plain, np.uint8).reshape(-1, BLOCK_NBYTES)
    there = np.frombuffer(packed, np.uint8)
    there[: 2 * len(blocks)] = blocks[:, :2].reshape(-1)
    there[2 * len(blocks) :] = blocks[:, 2:].reshape(-1)
    bad = np.flatnonzero(~np.isfinite(planes(packed, len(blocks))[0]))
    return int(bad[0]) if len(bad) else None


def unpack(packed, plain):
    blocks = np.frombuffer(plain, np.uint8).reshape(-1, BLOCK_NBYTES)
    there = np.frombuffer(packed, np.uint8)
    blocks[:, :2] = there[: 2 * len(blocks)].reshape(-1, 2)
    blocks[:, 2:] = there[2 * len(blocks) :].reshape(-1, BLOCK)


def weights(place):
    """A weight as f32, from its plain bytes, its blocks, or its planes."""
    spec = place.spec
    if spec.dtype.name == "f32":
        return array(place)
    if spec.layout == "frozen_planes":
        count = spec.size // BLOCK
        raw = np.ndarray((count * BLOCK_NBYTES,), np.uint8, place.buffer, place.offset)
        scales, numbers = planes(raw.data, count)
        return (scales[:, None].astype(np.float32) * numbers).reshape(spec.shape)
    blocks = np.ascontiguousarray(array(place))
    scales = blocks[..., :2].copy().view(np.float16).astype(np.float32)
    return (scales * blocks[..., 2:].copy().view(np.int8)).reshape(spec.shape)


def linear(x, weight, out):
    rows, table = array(x).astype(np.float64), weights(weight).astype(np.float64)
    if table.ndim < rows.ndim:
        table = table.reshape((1,) * (rows.ndim - table.ndim) + table.shape)
    for axis in range(rows.ndim - 2):
        table = np.repeat(table, rows.shape[axis] // table.shape[axis], axis)
    out[...] = rows @ np.swapaxes(table, -1, -2)


class FrozenProgram(Program):
    def __init__(self, calls):
        self.calls = calls
        self.found = deque()

    def run(self):
        with np.errstate(all="ignore"):
            for call in self.calls:
                call(self.found)

    def check(self):
        if self.found:
            first = self.found.popleft()
            self.found.clear()
            raise BadIndex(first)


def steps_of(placed, found):
    """Computes one step. found: where a bad index is told."""
    step, out = placed.step, array(placed.result)
    if step.op in ("add", "multiply"):
        {"add": np.add, "multiply": np.multiply}[step.op](*map(array, placed.operands), out=out)
    elif step.op == "relu":
        np.maximum(array(placed.operands[0]), 0, out=out)
    elif step.op == "scale":
        out[...] = array(placed.operands[0]) * np.float64(step.attrs["scale"]) + np.float64(step.attrs["bias"])
    elif step.op == "sum":
        np.add.reduce(array(placed.operands[0]), axis=-1, dtype=np.float64, keepdims=step.attrs["keepdims"], out=out)
    elif step.op == "take_rows":
        taken(step, array(placed.operands[0]), array(placed.operands[1]), out, found)
    else:
        linear(*placed.operands, out)


def taken(step, x, rows, out, found):
    inside = (rows >= 0) & (rows < x.shape[-2])
    for at in np.ndindex(rows.shape):
        out[at] = x[(*at[:-1], rows[at])] if inside[at] else 0
    if not inside.all():
        name = operand_names(step.op)[1]
        found.append(f"[{step.op}] {name} holds {rows[~inside][0]}, must be from 0 to {x.shape[-2] - 1}")


def add_relu(first, second):
    """Two steps of one group: what lies between them is not written."""
    a, b = map(array, first.operands)
    out = array(second.result)
    np.maximum(a + b, 0, out=out)


class FrozenDevice(Device):
    name = "frozen:0"
    id = "frozen-00000001"
    model = "numpy on host memory"
    driver = "0.1"
    alignment = 64
    memory = Memory(total=0, free=0)
    target = TARGET

    def alloc(self, nbytes, usage):
        assert isinstance(usage, Usage)
        try:
            return np.zeros(nbytes, np.uint8)
        except (MemoryError, ValueError) as e:
            raise OutOfMemory(f"{self.name}: no {nbytes} bytes for {usage.value}") from e

    def free(self, buffer):
        pass

    def write(self, buffer, offset, data):
        buffer[offset : offset + data.nbytes] = np.frombuffer(data, np.uint8)

    def read(self, buffer, offset, out):
        np.frombuffer(out, np.uint8)[:] = buffer[offset : offset + out.nbytes]

    def host_bytes(self, buffer, offset, nbytes):
        return buffer[offset : offset + nbytes].data

    def compile(self, run, scratch):
        assert scratch is None or isinstance(scratch, Place)
        calls = []
        for group in run:
            if len(group.steps) == 2:
                calls.append(lambda _, steps=group.steps: add_relu(*steps))
            else:
                calls.append(partial(steps_of, group.steps[0]))
        return FrozenProgram(calls)

    def scratch(self, group):
        return 0

    def fuse(self, steps, links):
        """An add whose result only the relu after it reads is made together with it."""
        groups, at = [], 0
        while at < len(steps):
            pair = steps[at : at + 2]
            alone = links[at].result if at < len(links) else -1
            readers = [i for i, link in enumerate(links) if alone in link.operands]
            if [s.op for s in pair] == ["add", "relu"] and readers == [at + 1] and not links[at].outside:
                groups.append((at, at + 1))
                at += 2
            else:
                groups.append((at,))
                at += 1
        return Grouping(tuple(groups), keeps=(), unwritten=True)


class FrozenBackend(Backend):
    name = "frozen"
    api = (0, 1)

    def devices(self):
        assert self.spoken[0] == 0
        return [FrozenDevice()]

    def targets(self):
        return [TARGET]

    def kernels(self):
        return KERNELS

    def why_not(self, step, target):
        if step.op == "sum" and step.attrs["axis"] not in (-1, step.operands[0].rank - 1):
            return Reason(f"sum: only the last axis, not {step.attrs['axis']}", "attribute")
        if step.result.size > 1 << 24:
            return f"{step.op}: at most {1 << 24} elements"
        return None

    def reads(self, step, target):
        return tuple("rows" if step.op == "linear" else "any" for _ in step.operands)

    def pack(self, constant, users, target):
        """Planes, where every user is a linear that has it as its weight alone."""
        if constant.dtype.name != "q8_0" or not users:
            return None
        if any(u.op != "linear" or u.operands[1] != constant or u.operands[0] == constant for u in users):
            return None
        return Packing("frozen_planes", constant.nbytes, pack, unpack, part=None, looks=True)

    def cost(self, step, target):
        work = work_of(step)
        return target.rates.launch + max(
            work.multiply_adds / target.rates.multiply_adds, work.nbytes / target.rates.nbytes
        )


@hookimpl
def jackfield_backend():
    return FrozenBackend()


@hookimpl
def jackfield_diagnose(backend):
    return []


@hookimpl
def jackfield_hardware():
    return []


@hookimpl
def jackfield_spans(device):
    return []
