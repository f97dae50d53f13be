"""Contract data to the plain tuples the native module takes."""

from __future__ import annotations

from collections.abc import Sequence

from jackfield.backend import PlacedStep, Spec, Step

from . import _native

__all__ = ["ATTRIBUTES", "TABLE", "placed_tuple", "step_tuple", "view_tuple"]

TABLE = _native.kernels()
ATTRIBUTES = {op: tuple(attributes) for op, (_, attributes, _) in TABLE.items()}


def view_tuple(spec: Spec, address: int = 0) -> _native.View:
    return address, spec.dtype.name, spec.layout, spec.role == "constant", spec.shape, spec.byte_strides


def step_tuple(step: Step, addresses: Sequence[int] | None = None, result: int = 0) -> _native.Step:
    """A step for `why_not` and `scratch` (no addresses) or for a Program."""
    operands = [
        view_tuple(spec, addresses[i] if addresses else 0) if spec is not None else None
        for i, spec in enumerate(step.operands)
    ]
    attrs = [step.attrs[name] for name in ATTRIBUTES[step.op]]
    return step.op, view_tuple(step.result, result), operands, attrs


def placed_tuple(placed: PlacedStep) -> _native.Step:
    addresses = [place.buffer.address + place.offset if place is not None else 0 for place in placed.operands]
    return step_tuple(placed.step, addresses, placed.result.buffer.address + placed.result.offset)
