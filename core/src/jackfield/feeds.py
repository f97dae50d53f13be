"""What goes into a graph that is only tried: the bytes of every input and state, given or drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .conformance.cases import raw_blocks
from .dtypes import bool_
from .dtypes.arrays import as_bytes, convert
from .errors import PlanError
from .graph import Tensor, root
from .hosting import HostType, array_of, bytes_of
from .op import OPS, Array
from .updates import Flow

__all__ = ["drawn_into", "leaves_of"]

Bytes = NDArray[np.uint8]


def leaves_of(flow: Flow, given: Mapping[str, Any], seed: int) -> dict[Tensor, Bytes]:
    """The bytes of every input and state."""
    leaves = {t.name: t for t in flow.tensors if t.kind in ("input", "state")}
    if unknown := sorted(set(given) - set(leaves)):
        raise PlanError(f"there is no input or state {unknown[0]!r}; the graph has: {', '.join(leaves) or 'none'}")
    rng = np.random.default_rng(seed)
    bounds = _bounds(flow)
    found = {}
    for tensor in flow.tensors:
        if tensor.kind not in ("input", "state"):
            continue
        if tensor.name in given:
            found[tensor] = _handed(tensor, given[tensor.name])
        elif tensor.kind == "state":
            found[tensor] = np.zeros(tensor.spec.nbytes, np.uint8)
        else:
            found[tensor] = _drawn(tensor, rng, bounds.get(tensor))
    return found


def drawn_into(flow: Flow, given: Mapping[str, Any]) -> frozenset[Tensor]:
    """Every tensor that a drawn input goes into."""
    found: set[Tensor] = set()
    for tensor in flow.tensors:
        if (tensor.kind == "input" and tensor.name not in given) or any(o in found for o in tensor.operands):
            found.add(tensor)
    return frozenset(found)


# By op and operand with indices: the operands with the table, the first that is there, or "" for the result; the axis
# that is indexed, and what is one past its last index, counted from the axis's end.
_TABLES: Mapping[tuple[str, str], tuple[tuple[tuple[str, int], ...], int]] = {
    ("take_rows", "rows"): ((("x", -2),), 0),
    ("put_rows", "rows"): ((("target", -2),), 0),
    ("take_rows_backward", "rows"): ((("", -2),), 0),
    ("linear_experts", "ids"): ((("weight", 0),), 0),
    ("add_rows", "ids"): ((("table", 0),), 0),
    ("ssm_scan", "ids"): ((("state", 0),), 0),
    ("attention", "kv_rows"): ((("k", -2),), 0),
    ("attention", "kv_len"): ((("kv_rows", -1), ("k", -2)), 1),
}


@dataclass(frozen=True)
class _Bound:
    """What drawn indices must lie below. skips: others become -1 and not a second index of the same row."""

    below: int
    skips: bool


def _bounds(flow: Flow) -> dict[Tensor, _Bound]:
    """By input: the tightest bound of all tables that it holds indices of."""
    found: dict[Tensor, _Bound] = {}
    for node in flow.nodes:
        named = {"": node, **dict(zip(OPS[node.op].operands, node.operands, strict=True))}
        for name, operand in named.items():
            if operand is None or (node.op, name) not in _TABLES:
                continue
            tables, more = _TABLES[node.op, name]
            below = next(t.shape[axis] + more for n, axis in tables if (t := named[n]) is not None)
            known = found.get(root(operand)[0], _Bound(below, skips=False))
            found[root(operand)[0]] = _Bound(min(below, known.below), known.skips or node.op == "put_rows")
    return found


def _handed(tensor: Tensor, value: Any) -> Bytes:
    kind = HostType(tensor.spec)
    if isinstance(value, np.ndarray) and value.dtype.kind == "V" and value.dtype.itemsize == kind.dtype.itemsize:
        value = value.view(kind.dtype)  # a .npy file has no word for bf16 and its kin
    array = array_of(value, kind, tensor.name, tensor.kind)
    return np.frombuffer(bytes_of(array), np.uint8).copy()


def _drawn(tensor: Tensor, rng: np.random.Generator, bound: _Bound | None) -> Bytes:
    dtype, shape = tensor.dtype, tensor.shape
    if dtype.is_block:
        return _raw(raw_blocks(dtype, tensor.spec.units, rng))
    if dtype is bool_:
        values: Array = rng.random(shape) < 0.5
    elif dtype.is_integer:
        values = np.arange(shape[-1] if shape else 1)
        if bound is not None:
            values = np.where(values < bound.below, values, -1) if bound.skips else values % max(bound.below, 1)
        values = np.broadcast_to(values.reshape(shape[-1:]), shape)
    else:
        values = rng.standard_normal(shape).astype(np.float32)
    return _raw(convert(values, dtype)[0])


def _raw(array: Array) -> Bytes:
    """All bytes of a tensor, dense."""
    return as_bytes(array.reshape(-1)).reshape(-1)
