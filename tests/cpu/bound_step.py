"""One step that stays bound, built on `one_step`: numpy arrays and their views as operands, runs again after an operand
changed, targets that are updated where they lie.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from one_step import BACKEND, GUARD, Tensor, content, device, guarded

from jackfield.backend import DeviceError, Group, Place, PlacedStep, Spec, Step
from jackfield.dtypes import DType, of_numpy, u8
from jackfield.op import Op


def whole(array: np.ndarray) -> np.ndarray:
    """The array that this is a view of, or itself."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def tensor_of(array: np.ndarray, block: DType | None = None) -> Tensor:
    """An array, or a view with the array it is cut from; of a block dtype, raw bytes (..., blocks, bytes of one)."""
    if array.base is None:
        array = np.ascontiguousarray(array)
    base = whole(array)
    at = array.__array_interface__["data"][0] - base.__array_interface__["data"][0] if array.size else 0
    if block is None:
        spec = Spec(of_numpy(array.dtype), array.shape, array.strides)
    else:
        spec = Spec(block, (*array.shape[:-2], array.shape[-2] * block.block), array.strides[:-1])
    return Tensor(spec, base.ravel(order="K").view(np.uint8), at)


class BoundStep:
    """A program of one step.

    arrays: by operand name. blocks: the dtype of operands that are blocks. strides: bytes of the result's axes.
    """

    def __init__(self, op: Op, arrays, level, threads=1, *, attrs=None, strides=(), blocks=None):
        self.device = device(level, threads)
        given = {n: tensor_of(arrays[n], (blocks or {}).get(n)) for n in op.operands if arrays.get(n) is not None}
        self.names, self.nbytes = list(op.operands), {n: t.raw.nbytes for n, t in given.items()}
        self.places = self._placed(op, arrays, given)
        specs = tuple(p.spec if p else None for p in self.places)
        result = op.infer(specs, attrs or {})
        result = replace(result, strides=specs[0].strides if op.updates else strides)
        self.out_nbytes = result.extent_nbytes
        blank = Tensor(result, np.full(self.out_nbytes, 0xFF, np.uint8))
        first = self.places[0]
        self.out = replace(first, spec=result) if op.updates else guarded(self.device, blank)
        step = Step(op.name, specs, result, op.complete(attrs or {}))
        assert (reason := BACKEND.why_not(step, self.device.target)) is None, reason
        self.need = self.device.scratch([step])
        self.scratch = guarded(self.device, Tensor(Spec(u8, (self.need,)), np.full(self.need, 0xFF, np.uint8)))
        self.program = self.device.compile([Group((PlacedStep(step, self.places, self.out),))], self.scratch)

    def _placed(self, op, arrays, given):
        """Views of one array lie in one allocation; but what an op updates is its own."""
        places, shared = {}, {}
        for name, tensor in given.items():
            owner = whole(arrays[name])
            base = name if op.updates or not owner.flags.c_contiguous else id(owner)
            if base not in shared:
                shared[base] = guarded(self.device, tensor)
            places[name] = Place(shared[base].buffer, GUARD + tensor.offset, tensor.spec)
        return tuple(places.get(name) for name in op.operands)

    def write(self, name, array):
        place = self.places[self.names.index(name)]
        self.device.write(place.buffer, GUARD, memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8)))

    def run(self):
        """The fault found in the data, or None."""
        self.program.run()
        content(self.device, self.scratch, self.need)
        try:
            self.program.check()
        except DeviceError as fault:
            return fault
        return None

    def result(self) -> np.ndarray:
        """A copy of the result; nothing between its elements may have changed."""
        spec, raw = self.out.spec, content(self.device, self.out, self.out_nbytes)
        window = np.ndarray(spec.shape, spec.dtype.numpy, raw.data, 0, spec.byte_strides)
        made = window.copy()
        window[...] = np.frombuffer(b"\xff" * window.itemsize, window.dtype)[0]
        assert (raw == 0xFF).all(), "bytes between the elements of the result were changed"
        return made

    def target(self) -> np.ndarray:
        """The bytes of the whole allocation the target is a view of."""
        return content(self.device, self.places[0], self.nbytes[self.names[0]])


def run(op, arrays, level, threads=1, *, strides=(), **attrs) -> np.ndarray:
    """The result of one step that finds no fault."""
    step = BoundStep(op, arrays, level, threads, attrs=attrs, strides=strides)
    fault = step.run()
    assert fault is None, fault
    return step.result()
