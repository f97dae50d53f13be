"""Contract data to the plain tuples the native module takes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from jackfield.backend import PlacedStep, Spec, Step, operand_names

from . import _native

__all__ = ["ATTRIBUTES", "OPERANDS", "TABLE", "operand_order", "placed_tuple", "step_tuple", "view_tuple"]

TABLE = _native.kernels()
OPERANDS = {op: tuple(row[0] for row in operands) for op, (operands, _, _) in TABLE.items()}
ATTRIBUTES = {op: tuple(attributes) for op, (_, attributes, _) in TABLE.items()}


@cache
def operand_order(op: str) -> tuple[int, ...]:
    """For each operand of the kernel, in its own order: where it stands in the op's declaration."""
    declared = operand_names(op)
    return tuple(declared.index(name) for name in OPERANDS[op])


def view_tuple(spec: Spec, address: int = 0) -> _native.View:
    return address, spec.dtype.name, spec.layout, spec.role == "constant", spec.shape, spec.byte_strides


def step_tuple(step: Step, addresses: Sequence[int] | None = None, result: int = 0) -> _native.Step:
    """A step for `why_not` and `scratch` (no addresses) or for a Program."""
    operands = []
    for i in operand_order(step.op):
        spec = step.operands[i]
        operands.append(None if spec is None else view_tuple(spec, addresses[i] if addresses else 0))
    attrs = [step.attrs[name] for name in ATTRIBUTES[step.op]]
    return step.op, view_tuple(step.result, result), operands, attrs


def placed_tuple(placed: PlacedStep) -> _native.Step:
    addresses = [place.buffer.address + place.offset if place is not None else 0 for place in placed.operands]
    return step_tuple(placed.step, addresses, placed.result.buffer.address + placed.result.offset)
