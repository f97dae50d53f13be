"""One step on the CPU device through the contract alone, at any instruction-set level and number of threads.

Every operand and the result lie between guard bytes that are NaN as floats; a changed guard is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from jackfield.backend import DTYPES, DType, Group, Place, PlacedStep, Spec, Step, Usage
from jackfield.dtypes import of_numpy
from jackfield.op import OPS
from jackfield_cpu import _native
from jackfield_cpu.backend import CpuBackend
from jackfield_cpu.device import CpuDevice

GUARD = 192  # bytes, a multiple of the alignment
LEVELS = [name for name, lacks in _native.levels() if not lacks]
BACKEND = CpuBackend()

Raw = NDArray[np.uint8]


@dataclass
class Tensor:
    """What a Spec says and the bytes of its allocation; `offset` is where the first element lies in them."""

    spec: Spec
    raw: Raw
    offset: int = 0


def plain(array: NDArray[np.generic], dtype: DType | None = None, shape: tuple[int, ...] | None = None) -> Tensor:
    """A dense array; or the bytes of blocks, with their dtype and shape."""
    spec = Spec(dtype or of_numpy(array.dtype), array.shape if shape is None else shape)
    return Tensor(spec, np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def spaced(array: NDArray[np.generic]) -> Tensor:
    """The array as a view that takes every second index of each axis of a larger one; between them lies NaN."""
    parent = np.empty([2 * n + 1 for n in array.shape], array.dtype)
    parent.reshape(-1).view(np.uint8)[...] = 0xFF
    window = parent[(slice(1, None, 2),) * array.ndim]
    window[...] = array
    return Tensor(
        Spec(of_numpy(array.dtype), array.shape, window.strides), parent.reshape(-1).view(np.uint8), sum(parent.strides)
    )


@cache
def device(level: str, threads: int) -> CpuDevice:
    target = next(t for t in BACKEND.targets() if t.arch == level)
    return CpuDevice("cpu:0", target, threads)


def guarded(on: CpuDevice, tensor: Tensor) -> Place:
    buffer = on.alloc(tensor.raw.nbytes + 2 * GUARD, Usage.COMPUTE)
    on.write(buffer, 0, memoryview(np.full(buffer.nbytes, 0xFF, np.uint8)))
    on.write(buffer, GUARD, memoryview(tensor.raw))
    return Place(buffer, GUARD + tensor.offset, tensor.spec)


def content(on: CpuDevice, place: Place, nbytes: int) -> Raw:
    whole = np.empty(nbytes + 2 * GUARD, np.uint8)
    on.read(place.buffer, 0, memoryview(whole))
    assert (whole[:GUARD] == 0xFF).all(), "bytes before a tensor were changed"
    assert (whole[-GUARD:] == 0xFF).all(), "bytes behind a tensor were changed"
    return whole[GUARD:-GUARD]


def packed(tensor: Tensor, op: str = "linear") -> Tensor:
    """The constant as the backend packs it for `op`; checks that unpacking gives the plain bytes back.

    What is written lies between guard bytes, which must stay.
    """
    spec = replace(tensor.spec, role="constant")
    table = "x" if op == "take_rows" else "weight"
    user = Step(op, tuple(spec if name == table else None for name in OPS[op].operands), spec)
    packing = BACKEND.pack(spec, [user], BACKEND.targets()[0])
    assert packing is not None, f"no packing for {spec}"
    assert packing.unpack is not None
    raw = between_guards(packing.nbytes, lambda to: packing.pack(memoryview(tensor.raw), to))
    back = between_guards(tensor.raw.nbytes, lambda to: packing.unpack(memoryview(raw), to))
    np.testing.assert_array_equal(back, tensor.raw)
    return Tensor(replace(spec, layout=packing.name), raw)


def between_guards(nbytes: int, fill: Callable[[memoryview], None]) -> Raw:
    whole = np.full(nbytes + 2 * GUARD, 0xA5, np.uint8)
    fill(memoryview(whole[GUARD : GUARD + nbytes]))
    assert (whole[:GUARD] == 0xA5).all(), "bytes before what was packed were changed"
    assert (whole[GUARD + nbytes :] == 0xA5).all(), "bytes behind what was packed were changed"
    return whole[GUARD : GUARD + nbytes]


def run(
    op: str,
    operands: list[Tensor],
    shape: tuple[int, ...],
    *,
    on: CpuDevice,
    strides: tuple[int, ...] = (),
    dtype: DType = DTYPES["f32"],
    **attrs: object,
) -> NDArray[np.generic]:
    """The result of one step. Raises: what the program's check raises."""
    result = Spec(dtype, shape, strides)
    step = Step(op, tuple(t.spec for t in operands), result, OPS[op].complete(attrs))
    assert BACKEND.why_not(step, on.target) is None
    nbytes = sum((n - 1) * s for n, s in zip(result.units, result.byte_strides, strict=True)) + dtype.block_nbytes
    places = tuple(guarded(on, t) for t in operands)
    out = guarded(on, Tensor(result, np.full(max(nbytes, 0), 0xFF, np.uint8)))
    scratch_nbytes = on.scratch([step])
    scratch = guarded(on, Tensor(Spec(DTYPES["u8"], (scratch_nbytes,)), np.full(scratch_nbytes, 0xFF, np.uint8)))
    program = on.compile([Group((PlacedStep(step, places, out),))], scratch)
    program.run()
    for place, tensor in zip(places, operands, strict=True):
        np.testing.assert_array_equal(content(on, place, tensor.raw.nbytes), tensor.raw)
    content(on, scratch, scratch_nbytes)
    raw = content(on, out, max(nbytes, 0))
    made = np.ndarray(shape, dtype.numpy, raw.data, 0, result.byte_strides).copy() if nbytes > 0 else np.empty(shape)
    if strides:  # what lies between the elements must still be guard bytes
        np.ndarray(shape, dtype.numpy, raw.data, 0, result.byte_strides)[...] = np.frombuffer(b"\xff" * 4, dtype.numpy)
        assert (raw == 0xFF).all(), "bytes between the elements of the result were changed"
    program.check()
    return made
