"""A backend of a dozen native kernels, for the tests of the conformance kit. As it stands here it is right.

`mutant:0` runs its steps in the caller's thread, `mutant:1` on a queue.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Mapping, Sequence

import numpy as np

from jackfield.backend import (
    DTYPES,
    Backend,
    BadIndex,
    Buffer,
    Device,
    DeviceError,
    Group,
    Kernel,
    KernelError,
    Memory,
    OutOfMemory,
    Packing,
    Place,
    PlacedStep,
    Program,
    Reads,
    Reason,
    Spec,
    Step,
    Target,
    Usage,
)

KIND = "mutant"
TOTAL = 1 << 32
CODES = {"f32": 0, "f16": 1, "i32": 2, "i64": 3, "q8_0": 4, "q4_0": 5}
OTHER = 6
ROW = 64  # bytes a packed row is padded to


def names(*dtypes: str) -> frozenset[str]:
    return frozenset(dtypes)


F32, FLOATS, INDEX = names("f32"), names("f32", "f16"), names("i32", "i64")
BLOCKS = names("q8_0", "q4_0")
EVERY = frozenset(DTYPES)
SPLIT = "split"

KERNELS = {
    "add": Kernel({"a": FLOATS, "b": FLOATS}, FLOATS),
    "multiply": Kernel({"a": FLOATS, "b": FLOATS}, FLOATS),
    "relu": Kernel({"x": FLOATS}, FLOATS),
    "contiguous": Kernel({"x": EVERY}, EVERY),
    "cast": Kernel({"x": FLOATS | BLOCKS | names("i32")}, FLOATS | names("i32", "q8_0"), names("dtype")),
    "softmax": Kernel({"x": F32, "mask": FLOATS}, F32, names("scale")),
    "rms_norm": Kernel({"x": FLOATS}, FLOATS, names("eps")),
    "sum": Kernel({"x": FLOATS}, FLOATS, names("axis", "keepdims")),
    "argmax": Kernel({"x": FLOATS}, names("i32"), names("axis")),
    "linear": Kernel({"x": FLOATS, "weight": FLOATS | BLOCKS}, F32, names("precision"), {"weight": names(SPLIT)}),
    "take_rows": Kernel({"x": FLOATS | BLOCKS, "rows": INDEX}, F32, frozenset(), {"x": names(SPLIT)}),
    "put_rows": Kernel({"target": FLOATS | names("q8_0"), "x": FLOATS, "rows": INDEX}, FLOATS | names("q8_0")),
    "gated_linear_attention": Kernel(dict.fromkeys(("k", "v", "q", "g", "state"), F32), F32, names("scale")),
    "attention": Kernel(
        {"q": F32, "k": FLOATS, "v": FLOATS, "mask": FLOATS, "kv_len": names("i32")},
        F32,
        names("scale", "causal", "kv_limit", "precision"),
    ),
}
NUMBERS = {op: number for number, op in enumerate(KERNELS)}
CASTS = {
    **dict.fromkeys(("f32", "f16"), names("f32", "f16", "i32", "q8_0")),
    "i32": names("i32", "f32"),
    "q8_0": names("f32", "f16"),
    "q4_0": names("f32", "f16"),
}
HOW: dict[str, Reads] = {"rms_norm": "dense", "linear": "rows", "attention": "rows"}


class View(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("shape", ctypes.c_int64 * 4),
        ("stride", ctypes.c_int64 * 4),
        ("dtype", ctypes.c_int32),
        ("unit", ctypes.c_int32),
        ("packed_row", ctypes.c_int64),
    )


class Found(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("step", ctypes.c_int32), ("value", ctypes.c_int64))


class NativeStep(ctypes.Structure):
    _fields_ = (
        ("op", ctypes.c_int32),
        ("present", ctypes.c_int32),
        ("inputs", View * 5),
        ("out", View),
        ("ints", ctypes.c_int64 * 4),
        ("floats", ctypes.c_double * 2),
        ("scratch", ctypes.c_void_p),
    )


class Library:
    """The kernels. holds_gil: no call lets other threads run."""

    def __init__(self, path: str, *, holds_gil: bool = False) -> None:
        lib = (ctypes.PyDLL if holds_gil else ctypes.CDLL)(path)
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        declared: dict[str, tuple[object, Sequence[object]]] = {
            "set_fault": (ctypes.c_int, (ctypes.c_char_p,)),
            "buffer_new": (pointer, (number,)),
            "buffer_free": (None, (pointer,)),
            "run_steps": (None, (pointer, number, pointer)),
            "pack_q4_0": (None, (pointer, pointer, number, number, number, number)),
            "unpack_q4_0": (None, (pointer, pointer, number, number, number)),
            "queue_new": (pointer, ()),
            "queue_submit": (None, (pointer, pointer, number, pointer)),
            "queue_wait": (None, (pointer,)),
            "crash": (None, ()),
            "say": (None, (ctypes.c_char_p,)),
        }
        for name, (result, arguments) in declared.items():
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)


def address(data: memoryview) -> int:
    return np.frombuffer(data, np.uint8).ctypes.data if data.nbytes else 0


class NativeBuffer:
    __slots__ = ("address", "nbytes")

    def __init__(self, place: int, nbytes: int) -> None:
        self.address, self.nbytes = place, nbytes


def padded(values: Sequence[int], fill: int) -> list[int]:
    return [*[fill] * (4 - len(values)), *values]


def packed_row_nbytes(spec: Spec) -> int:
    return -(-spec.row_nbytes // ROW) * ROW


def view_of(place: Place, *, units: bool = False, axis: int | None = None) -> View:
    """units: extents in blocks. axis: one that was reduced, and comes back with extent 1."""
    spec = place.spec
    shape, strides = list(spec.units if units else spec.shape), list(spec.byte_strides)
    if axis is not None:
        shape.insert(axis, 1)
        strides.insert(axis, 0)
    return View(
        place.buffer.address + place.offset,
        (ctypes.c_int64 * 4)(*padded(shape, 1)),
        (ctypes.c_int64 * 4)(*padded(strides, 0)),
        OTHER if units else CODES[spec.dtype.name],
        spec.dtype.block_nbytes,
        packed_row_nbytes(spec) if spec.layout else 0,
    )


def bound(placed: PlacedStep, scratch: Place | None) -> NativeStep:
    """A step as the kernels read it."""
    step, attrs = placed.step, placed.step.attrs
    made = NativeStep(op=NUMBERS[step.op])
    made.scratch = scratch.buffer.address + scratch.offset if scratch is not None else 0
    axis = None
    if step.op == "sum" and attrs["axis"] is None:
        made.ints[0] = 4  # all of them
    elif step.op in ("sum", "argmax"):
        assert step.operands[0] is not None
        rank = step.operands[0].rank
        axis = int(attrs["axis"]) % rank  # type: ignore[arg-type]
        made.ints[0], made.ints[1] = 4 - rank + axis, int(attrs["axis"])  # type: ignore[arg-type]
        axis = None if attrs.get("keepdims") else axis
    places = list(placed.operands)
    if step.op == "attention":
        length = places.pop()
        places = [*places[:4]]
        made.ints[0] = bool(attrs["causal"])
        if length is not None:
            made.ints[1] = length.buffer.address + length.offset
            made.ints[2] = length.spec.byte_strides[0]
    made.floats[0] = float(attrs.get("scale", attrs.get("eps", 0.0)))  # type: ignore[arg-type]
    for i, place in enumerate(places):
        if place is not None and i < 5:
            made.inputs[i] = view_of(place, units=step.op == "contiguous")
            made.present |= 1 << i
    made.out = view_of(placed.result, units=step.op == "contiguous", axis=axis)
    return made


class NativeProgram(Program):
    def __init__(self, device: NativeDevice, placed: Sequence[PlacedStep], scratch: Place | None) -> None:
        self.device = device
        self.ops = [p.step.op for p in placed]
        self.steps = (NativeStep * len(placed))(*(bound(p, scratch) for p in placed))
        self.found = Found()

    def run(self) -> None:
        self.device.start(self)

    def check(self) -> None:
        self.device.synchronize()
        kind, op, value = self.found.kind, self.ops[self.found.step] if self.ops else "", self.found.value
        self.found.kind = 0
        if kind == 1:
            raise BadIndex(f"[{op}] the index {value} lies outside its axis")
        if kind == 2:
            raise KernelError(f"[{op}] block {value} of x holds inf, NaN or too large a number")


class NativeDevice(Device):
    """Steps run at once."""

    def __init__(self, library: Library, name: str) -> None:
        self.library, self.name = library, name
        self.target = Target(kind=KIND, arch="native")
        self.used = 0

    @property
    def memory(self) -> Memory:  # type: ignore[override]
        return Memory(TOTAL, TOTAL - self.used)

    def alloc(self, nbytes: int, usage: Usage) -> Buffer:
        place = self.library.buffer_new(nbytes) if self.used + nbytes <= TOTAL else None
        if not place:
            raise OutOfMemory(f"{self.name}: no {nbytes} bytes for {usage.value}; {self.used} of {TOTAL} are in use")
        self.used += nbytes
        return NativeBuffer(place, nbytes)

    def free(self, buffer: Buffer) -> None:
        self.synchronize()
        place, buffer.address = buffer.address, 0
        if not place:
            raise DeviceError(f"{self.name}: this buffer was freed before")
        self.used -= buffer.nbytes
        self.library.buffer_free(place)

    def inside(self, buffer: Buffer, offset: int, nbytes: int) -> int:
        if not buffer.address or offset < 0 or offset + nbytes > buffer.nbytes:
            raise DeviceError(f"{self.name}: {nbytes} bytes at {offset} of a buffer of {buffer.nbytes}")
        return int(buffer.address) + offset

    def write(self, buffer: Buffer, offset: int, data: memoryview) -> None:
        place = self.inside(buffer, offset, data.nbytes)
        self.synchronize()
        ctypes.memmove(place, address(data), data.nbytes)

    def read(self, buffer: Buffer, offset: int, out: memoryview) -> None:
        place = self.inside(buffer, offset, out.nbytes)
        self.synchronize()
        ctypes.memmove(address(out), place, out.nbytes)

    def scratch(self, group: Sequence[Step]) -> int:
        return max(scratch_nbytes(step) for step in group)

    def compile(self, run: Sequence[Group], scratch: Place | None) -> Program:
        return NativeProgram(self, [placed for group in run for placed in group.steps], scratch)

    def start(self, program: NativeProgram) -> None:
        self.library.run_steps(program.steps, len(program.steps), ctypes.addressof(program.found))


class QueueDevice(NativeDevice):
    """Steps are queued, and whoever needs their results waits."""

    def __init__(self, library: Library, name: str) -> None:
        super().__init__(library, name)
        self.queue = library.queue_new()
        self.lock = threading.Lock()
        self.queued: list[NativeProgram] = []  # what the queue still reads

    def start(self, program: NativeProgram) -> None:
        with self.lock:
            self.queued.append(program)
            self.library.queue_submit(self.queue, program.steps, len(program.steps), ctypes.addressof(program.found))

    def synchronize(self) -> None:
        with self.lock:
            done, self.queued = self.queued, []
        self.library.queue_wait(self.queue)
        del done


def scratch_nbytes(step: Step) -> int:
    """Numbers in f64: softmax keeps one row, attention one row of weights and one of what is seen."""
    if step.op == "softmax":
        return 8 * step.result.shape[-1]
    if step.op == "attention":
        assert step.operands[1] is not None
        return 16 * step.operands[1].shape[-2]
    return 0


class NativeBackend(Backend):
    name = KIND
    api = (0, 1)

    def __init__(self, library: Library) -> None:
        self.library = library
        self._devices, self._pid = self.opened(), os.getpid()

    def opened(self) -> Sequence[Device]:
        return NativeDevice(self.library, f"{KIND}:0"), QueueDevice(self.library, f"{KIND}:1")

    def devices(self) -> Sequence[Device]:
        if self._pid != os.getpid():  # threads of the parent are not in its child
            self._devices, self._pid = self.opened(), os.getpid()
        return self._devices

    def kernels(self) -> Mapping[str, Kernel]:
        return KERNELS

    def targets(self) -> Sequence[Target]:
        return (Target(kind=KIND, arch="native"),)

    def why_not(self, step: Step, target: Target) -> Reason | str | None:
        first = step.operands[0]
        if step.op == "cast" and first is not None and step.result.dtype.name not in CASTS[first.dtype.name]:
            return Reason(f"cast: not from {first.dtype} to {step.result.dtype}", "dtype")
        return None

    def reads(self, step: Step, target: Target) -> tuple[Reads, ...]:
        return (HOW.get(step.op, "any"),) * len(step.operands)

    def pack(self, constant: Spec, users: Sequence[Step], target: Target) -> Packing | None:
        if any(user.op not in ("linear", "take_rows") for user in users):
            return None
        if constant.dtype.name != "q4_0" or not constant.size:
            return None
        blocks, row = constant.units[-1], packed_row_nbytes(constant)
        rows = constant.nbytes // constant.row_nbytes
        nbytes = self.packed_nbytes(rows, row, constant)

        def pack(plain: memoryview, packed: memoryview) -> None:
            self.library.pack_q4_0(address(plain), address(packed), rows, blocks, row, packed.nbytes)

        def unpack(packed: memoryview, plain: memoryview) -> None:
            self.library.unpack_q4_0(address(packed), address(plain), rows, blocks, row)

        return Packing(SPLIT, nbytes, pack, unpack)

    def packed_nbytes(self, rows: int, row: int, constant: Spec) -> int:
        return rows * row
