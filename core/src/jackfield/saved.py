"""Graphs in files: an npz with the structure as JSON and each constant's bytes. No pickle, nothing is executed.

`graph.json` lists the tensors, makers before users; a node is rebuilt by its op, so a file can't hold a step that the
op's own checks would refuse. Constants are read when the file is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .dtypes import DType, by_name
from .dtypes.arrays import element
from .errors import GraphError
from .graph import Attr, Attrs, Function, Tensor, constant, source_bytes, state, toposort, view
from .graph import input as graph_input
from .op import OPS
from .spec import Spec, View

__all__ = ["Outputs", "load_graph", "save"]

SCHEMA = "jackfield.graph/1"
STRUCTURE = "graph"
Outputs = Tensor | tuple[Tensor, ...] | dict[str, Tensor]


def save(outputs: Tensor | Sequence[Tensor] | Mapping[str, Tensor], path: str | Path) -> None:
    """Write the graph of one output, a sequence or a mapping of them. The file is replaced whole or not at all."""
    names, tensors = _flat(outputs)
    order = toposort(tensors)
    numbers = {tensor: i for i, tensor in enumerate(order)}
    arrays: dict[str, Any] = {}
    for tensor, i in numbers.items():
        if tensor.source is not None:
            arrays[f"c{i}"] = np.asarray(source_bytes(tensor.source, tensor.spec))
    document = {
        "schema": SCHEMA,
        "outputs": {"names": names, "tensors": [numbers[t] for t in tensors], "single": isinstance(outputs, Tensor)},
        "tensors": [_entry(tensor, numbers) for tensor in order],
    }
    arrays[STRUCTURE] = np.frombuffer(json.dumps(document, allow_nan=True).encode(), np.uint8)
    target = Path(path)
    part = target.with_name(target.name + ".part")
    try:
        with part.open("wb") as file:
            np.savez(file, **arrays)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _flat(outputs: Any) -> tuple[list[str] | None, list[Tensor]]:
    if isinstance(outputs, Tensor):
        return None, [outputs]
    if not isinstance(outputs, Iterable):
        raise GraphError(f"the outputs are {outputs!r:.60}: must be a Tensor, a sequence or a mapping of Tensors")
    names = list(outputs) if isinstance(outputs, Mapping) else None
    tensors = list(outputs.values()) if isinstance(outputs, Mapping) else list(outputs)
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise GraphError(f"an output is a {type(tensor).__name__}; outputs are Tensors")
    if not tensors:
        raise GraphError("no output is given")
    return names, tensors


def _entry(tensor: Tensor, numbers: Mapping[Tensor, int]) -> dict[str, Any]:
    spec = tensor.spec
    entry: dict[str, Any] = {"kind": tensor.kind, "dtype": spec.dtype.name, "shape": spec.shape, "name": tensor.name}
    if tensor.op:
        if functions := [value for value in tensor.attrs.values() if isinstance(value, Function)]:
            raise GraphError(f"[{tensor.op}] holds the Python function {functions[0]!r}, which no graph file can keep")
        entry |= {"op": tensor.op, "attrs": dict(tensor.attrs)}
        entry["operands"] = [None if o is None else numbers[o] for o in tensor.operands]
    if tensor.kind == "view":
        entry |= {"strides": spec.byte_strides, "offset": tensor.offset}
    return entry


def load_graph(path: str | Path) -> Outputs:
    """The outputs as they were given to `save`.

    Raises: OSError when the file can't be opened, GraphError when it is not what `save` writes.
    """
    with Path(path).open("rb") as raw:  # numpy leaves a file open that it can't read, so it is opened here
        try:
            return _read(raw, path)
        except GraphError:
            raise
        except Exception as e:
            # numpy's reader of headers, zipfile and the decompressors raise many kinds, such as tokenize.TokenError,
            # and OSError where the directory of the archive points behind its end
            raise GraphError(f"{path}: no graph file: {type(e).__name__}: {e}") from e


def _read(raw: BinaryIO, path: str | Path) -> Outputs:
    if raw.read(2) != b"PK":
        raise GraphError(f"{path}: no graph file: must be what jackfield.save wrote, an npz archive")
    raw.seek(0)
    file = np.load(raw, allow_pickle=False)
    if not isinstance(file, np.lib.npyio.NpzFile):
        raise GraphError(f"{path}: no graph file: not an npz archive")
    with file:
        return _Reader(file).outputs()


class _Reader:
    """One open file."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._document = _dict(json.loads(self._bytes(STRUCTURE).tobytes().decode()), "graph")
        if self._document.get("schema") != SCHEMA:
            raise GraphError(f"graph file: schema is {self._document.get('schema')!r}, must be {SCHEMA!r}")

    def _bytes(self, name: str) -> np.ndarray[Any, Any]:
        if name not in self._file.files:
            raise GraphError(f"graph file: {name} is missing")
        array = self._file[name]
        if array.dtype != np.uint8 or array.ndim != 1:
            raise GraphError(f"graph file: {name} is {array.dtype}{list(array.shape)}, must be one row of bytes")
        return array

    def outputs(self) -> Outputs:
        tensors: list[Tensor] = []
        for i, entry in enumerate(_list(self._document.get("tensors"), "tensors")):
            tensors.append(self._tensor(i, _dict(entry, f"tensors[{i}]"), tensors))
        asked = _dict(self._document.get("outputs"), "outputs")
        chosen = [_pick(n, tensors, "outputs") for n in _list(asked.get("tensors"), "outputs.tensors")]
        if not chosen:
            raise GraphError("graph file: no outputs")
        names = asked.get("names")
        if names is not None:
            return dict(zip([_str(n, "outputs.names") for n in _list(names, "outputs.names")], chosen, strict=True))
        return chosen[0] if asked.get("single") is True else tuple(chosen)

    def _tensor(self, i: int, entry: Mapping[str, Any], before: Sequence[Tensor]) -> Tensor:
        kind, name = entry.get("kind"), _str(entry.get("name", ""), f"tensors[{i}].name")
        dtype = by_name(_str(entry.get("dtype"), f"tensors[{i}].dtype"))
        shape = _ints(entry.get("shape"), f"tensors[{i}].shape")
        if kind == "input":
            return graph_input(name, shape, dtype)
        if kind == "state":
            return state(name, shape, dtype)
        if kind == "constant":
            return self._constant(i, name, dtype, shape)
        if kind == "node":
            return _node(entry, before, dtype, shape)
        if kind == "view":
            return _view(entry, before, dtype, shape)
        raise GraphError(f"graph file: tensors[{i}].kind is {kind!r}")

    def _constant(self, i: int, name: str, dtype: DType, shape: tuple[int, ...]) -> Tensor:
        spec = Spec(dtype, shape, role="constant")
        raw = self._bytes(f"c{i}")
        if raw.nbytes != spec.nbytes:
            raise GraphError(f"graph file: constant c{i} has {raw.nbytes} bytes, {spec} takes {spec.nbytes}")
        if dtype.numpy is not None:
            return constant(raw.view(element(dtype)).reshape(shape), name)
        return constant(_Blocks(dtype, shape, raw), name)


class _Blocks:
    """Bytes of a block dtype as a Source."""

    def __init__(self, dtype: DType, shape: tuple[int, ...], raw: np.ndarray[Any, Any]) -> None:
        self.dtype, self.shape = dtype, shape
        raw.flags.writeable = False
        self.data = raw.data

    def release(self) -> None:
        """Nothing to give back: these bytes are the only copy."""


def _node(entry: Mapping[str, Any], before: Sequence[Tensor], dtype: DType, shape: tuple[int, ...]) -> Tensor:
    name, operands = _op(entry), _operands(entry, before)
    if OPS[name].is_view:
        raise GraphError(f"graph file: {name} only makes views")
    made = OPS[name](*operands, **_attrs(entry))
    if (made.dtype, made.shape) != (dtype, shape):
        raise GraphError(f"graph file: {name} makes {made.spec}, the file says {dtype}{list(shape)}")
    return made


def _view(entry: Mapping[str, Any], before: Sequence[Tensor], dtype: DType, shape: tuple[int, ...]) -> Tensor:
    name, operands = _op(entry), _operands(entry, before)
    if not OPS[name].is_view or len(operands) != 1 or operands[0] is None:
        raise GraphError(f"graph file: {name} of {len(operands)} operands is no view")
    strides, offset = _ints(entry.get("strides"), "strides"), entry.get("offset")
    if type(offset) is not int or dtype is not operands[0].dtype:
        raise GraphError(f"graph file: a view of {operands[0].spec} is {dtype} at {offset!r}")
    return view(name, operands[0], Attrs(_attrs(entry)), View(Spec(dtype, shape, strides), offset))


def _op(entry: Mapping[str, Any]) -> str:
    name = _str(entry.get("op"), "op")
    if name not in OPS:
        raise GraphError(f"graph file: this jackfield has no op {name!r}")
    return name


def _operands(entry: Mapping[str, Any], before: Sequence[Tensor]) -> list[Tensor | None]:
    numbers = _list(entry.get("operands"), "operands")
    return [None if n is None else _pick(n, before, "operands") for n in numbers]


def _pick(number: Any, tensors: Sequence[Tensor], at: str) -> Tensor:
    if type(number) is not int or not 0 <= number < len(tensors):
        raise GraphError(f"graph file: {at} names tensor {number!r}, {len(tensors)} are known there")
    return tensors[number]


def _attrs(entry: Mapping[str, Any]) -> dict[str, Attr]:
    return {k: _frozen(v) for k, v in _dict(entry.get("attrs"), "attrs").items()}


def _frozen(value: Any) -> Attr:
    if isinstance(value, list):
        return tuple(_frozen(v) for v in value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise GraphError(f"graph file: an attribute is {type(value).__name__}")


def _ints(value: Any, at: str) -> tuple[int, ...]:
    numbers = _list(value, at)
    if not all(type(n) is int and abs(n) < 2**62 for n in numbers):
        raise GraphError(f"graph file: {at} must hold whole numbers")
    return tuple(numbers)


def _list(value: Any, at: str) -> list[Any]:
    if not isinstance(value, list):
        raise GraphError(f"graph file: {at} is {type(value).__name__}, must be a list")
    return value


def _dict(value: Any, at: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise GraphError(f"graph file: {at} is {type(value).__name__}, must be an object")
    return value


def _str(value: Any, at: str) -> str:
    if not isinstance(value, str):
        raise GraphError(f"graph file: {at} is {type(value).__name__}, must be text")
    return value
