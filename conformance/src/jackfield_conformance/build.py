"""Small programs built by hand on a device, for the suites that ask about memory, order, threads and lifetimes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from jackfield.backend import Buffer, Group, Place, PlacedStep, Program, Reason, Spec, Step, Usage
from jackfield.conformance.cases import Example, made
from jackfield.conformance.check import compare, expected
from jackfield.dtypes import f32, u8
from jackfield.dtypes.arrays import as_bytes, element
from jackfield.op import OPS, Array

from .direct import UNWRITTEN, refused
from .trials import Refused, Subject

__all__ = ["Bench", "Vector", "filled", "simple_op"]

Bytes = NDArray[np.uint8]
F32 = NDArray[np.float32]

# The first of these that a device takes on f32 vectors carries the suites that are not about numbers.
SIMPLE = ("add", "multiply", "subtract", "square", "relu", "scale", "silu", "tanh", "contiguous", "sigmoid", "gelu")


def filled(nbytes: int, seed: int) -> Bytes:
    """Bytes that differ from seed to seed and from place to place."""
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def vector_step(op: str, shape: tuple[int, ...]) -> Step:
    """The op on f32 operands of one shape."""
    count = len([name for name in OPS[op].operands if name not in OPS[op].optional])
    spec = Spec(f32, shape)
    return Step(op, (spec,) * count + (None,) * (len(OPS[op].operands) - count), spec, OPS[op].complete({}))


def simple_op(subject: Subject, shape: tuple[int, ...]) -> str:
    """The op that carries a trial. Raises: Refused where the device takes none of them."""
    for name in SIMPLE:
        if refused(vector_step(name, shape), subject.backend, subject.device) is None:
            return name
    text = f"none of {', '.join(SIMPLE)} is taken on f32{list(shape)}, and this trial needs one"
    raise Refused(Reason(text, "op"))


class Bench:
    """Memory and programs of one trial; as a `with` block it frees all at its end."""

    def __init__(self, subject: Subject, seed: int = 0) -> None:
        self.subject, self.device, self.seed = subject, subject.device, seed
        self.buffers: list[Buffer] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        while self.buffers:
            self.device.free(self.buffers.pop())

    def floats(self, count: int, mark: int = 0) -> F32:
        """Uniform numbers between -2 and 2."""
        rng = np.random.default_rng((self.seed, mark))
        return rng.uniform(-2, 2, count).astype(np.float32)

    def alloc(self, nbytes: int, usage: Usage = Usage.COMPUTE) -> Buffer:
        buffer = self.device.alloc(nbytes, usage)
        self.buffers.append(buffer)
        return buffer

    def free(self, buffer: Buffer) -> None:
        self.buffers = [b for b in self.buffers if b is not buffer]
        self.device.free(buffer)

    def hold(self, array: Array, usage: Usage = Usage.COMPUTE) -> Place:
        """An array in a buffer of its own."""
        raw = as_bytes(array.reshape(-1)).reshape(-1)
        buffer = self.alloc(raw.nbytes, usage)
        self.device.write(buffer, 0, raw.data)
        return Place(buffer, 0, Spec.of(array))

    def room(self, spec: Spec) -> Place:
        """An unwritten tensor in a buffer of its own."""
        return Place(self.hold(np.full(spec.nbytes, UNWRITTEN, np.uint8)).buffer, 0, spec)

    def compile(self, steps: Sequence[PlacedStep]) -> Program:
        """One run, a group a step, with the scratch they ask for."""
        need = max((self.device.scratch([p.step]) for p in steps), default=0)
        scratch = Place(self.alloc(need), 0, Spec(u8, (need,))) if need else None
        return self.device.compile([Group((p,)) for p in steps], scratch)

    def read(self, place: Place) -> Array:
        """The dense tensor there."""
        raw = np.zeros(place.spec.nbytes, np.uint8)
        self.device.read(place.buffer, place.offset, raw.data)
        return raw.view(element(place.spec.dtype)).reshape(place.spec.units)

    def vector(self, count: int, *, start: int = 0, apart: bool = False, mark: int = 0) -> Vector:
        """A simple op on f32[count], compiled. start: bytes ahead of the first tensor. apart: buffers of their own."""
        name = simple_op(self.subject, (count,))
        step = vector_step(name, (count,))
        spec, unit = step.result, self.device.alignment
        used = [i for i, operand in enumerate(step.operands) if operand is not None]
        if apart:
            places = [Place(self.alloc(spec.nbytes), 0, spec) for _ in (*used, None)]
        else:
            stride = -(-spec.nbytes // unit) * unit
            main = self.alloc(start + (len(used) + 1) * stride)
            places = [Place(main, start + i * stride, spec) for i in range(len(used) + 1)]
        operands = tuple(places[used.index(i)] if i in used else None for i in range(len(step.operands)))
        placed = PlacedStep(step, operands, places[-1])
        vector = Vector(self, name, placed, self.compile([placed]), [places[used.index(i)] for i in used], places[-1])
        vector.put(self.floats(count, mark))
        return vector


@dataclass
class Vector:
    """One compiled step on f32 vectors. data: what its first operand holds; the others hold it reversed."""

    bench: Bench
    op: str
    placed: PlacedStep
    program: Program
    operands: list[Place]
    result: Place
    data: F32 = field(default_factory=lambda: np.zeros(0, np.float32))

    def put(self, data: F32) -> None:
        """Write the operands."""
        self.data = data.copy()
        device = self.bench.device
        for number, place in enumerate(self.operands):
            array = data if number == 0 else np.ascontiguousarray(data[::-1])
            device.write(place.buffer, place.offset, array.view(np.uint8).data)

    def example(self, data: F32) -> Example:
        names = OPS[self.op].operands
        arrays = {names[i]: data if i == 0 else np.ascontiguousarray(data[::-1]) for i in range(len(self.operands))}
        return made(OPS[self.op], arrays)

    def run(self) -> None:
        """Run and wait."""
        self.program.run()
        self.bench.device.synchronize()
        self.program.check()

    def get(self) -> Array:
        return self.bench.read(self.result)

    def mistakes(self, *, run: bool = True, of: F32 | None = None) -> list[str]:
        """What is wrong with the result. of: the operand it is the result of, if not the one written last."""
        if run:
            self.run()
        example = self.example(self.data if of is None else of)
        text = compare(example, self.get(), expected(example)[0])
        return [f"{self.op} f32{list(self.data.shape)}: {text}"] if text else []
