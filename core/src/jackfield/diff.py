"""Two devices side by side: every node of a graph on both, and the first one whose results are not the same.

Each node is compiled alone, so what only shows in company (fusion, the memory of a whole plan) is not seen here.
What "the same" means is the tolerance class of the op, as in `conformance.check`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .backend import Place
from .conformance import Example, compare, expected
from .dtypes import DType
from .dtypes.arrays import element, widened
from .errors import DeviceError, GraphError, PlacementError, PlanError
from .feeds import drawn_into, leaves_of
from .graph import ArraySource, Attrs, Tensor, constant, root, source_bytes, state, view
from .graph import input as graph_input
from .hosting import HostType
from .op import OPS, Array
from .reference import array_at
from .registry import select
from .saved import save
from .session import Output, Session
from .spec import Spec, View
from .updates import Flow, order

__all__ = ["Difference", "NodeResult", "diff"]

Bytes = NDArray[np.uint8]
Mode = Literal["same-inputs", "chained"]
Verdict = Literal["equal", "differs", "refused"]


@dataclass(frozen=True)
class NodeResult:
    """One node on both devices.

    tolerance: class of the op, Q for a product with a block dtype.
    max_abs, max_ulp, index: the largest difference, and where max_abs is; None where there is none to measure: a
        result that is no plain float has no ulp, a finite number beside inf or NaN no max_abs.
    wrong: of "a" and "b", those that are off the op's own meaning; asked only where the two differ on the same inputs.
    text: what differs, or why a side refused; "" for equal.
    """

    node: str
    op: str
    result: str
    verdict: Verdict
    tolerance: str
    max_ulp: int | None = None
    max_abs: float | None = None
    index: tuple[int, ...] | None = None
    wrong: tuple[str, ...] = ()
    text: str = ""


@dataclass(frozen=True)
class Difference:
    """What `diff` found. first: the first node that differs. repro: a graph file of that node and its inputs, or None.

    chained_repro: the file shows the fault only with chained=True, because the node alone is right.
    """

    a: str
    b: str
    mode: Mode
    first: NodeResult | None
    nodes: tuple[NodeResult, ...]
    repro: str | None = None
    chained_repro: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def diff(
    outputs: Output,
    a: str,
    b: str,
    *,
    chained: bool = False,
    inputs: Mapping[str, Any] | None = None,
    seed: int = 0,
    repro: Callable[[str], str | Path | None] | None = None,
) -> Difference:
    """Run every node that these outputs need on two devices, and compare.

    a, b: device selections, such as "reference" and "cuda:0". A node is never moved to another device: one that a side
        refuses is told, not compared, and goes on with what the op's own body makes.
    chained: each side goes on with its own results. Else both get those of a, so that every node stands for itself.
    inputs: arrays by name of inputs and states. Inputs that are missing are drawn from `seed`, at least 0: floats from
        the normal distribution; integers as 0, 1, 2, ... along the last axis, within the tables that they are indices
        of. States that are missing start as zeros.
    repro: from the id of the first node that differs to the file to write it to, or None for no file.
    Where both sides find the same fault in the data, they are equal if all inputs of the node were given; a fault in
    drawn data is no comparison.
    Raises: GraphError for what is no graph; PlanError for wrong inputs or a wrong seed; DeviceNameError, Unavailable
    and its kin for devices that can't be had.
    """
    if not isinstance(seed, Integral) or seed < 0:
        raise PlanError(f"seed is {seed!r}, must be a whole number from 0 on")
    for name in (a, b):
        select(name)
    flow = order(_listed(outputs))
    leaves = leaves_of(flow, inputs or {}, seed)
    work = _Comparison(flow, a, b, leaves, drawn=drawn_into(flow, inputs or {}), chained=chained)
    results = [work.node(node) for node in flow.nodes]
    first = next((r for r in results if r.verdict == "differs"), None)
    path = repro(first.node) if first is not None and repro is not None else None
    mode: Mode = "chained" if chained else "same-inputs"
    if path is None:
        return Difference(a, b, mode, first, tuple(results))
    assert work.single is not None
    whole = chained and not _shows(work.single, a, b)
    save(_cone(work.first_node, leaves) if whole else work.single, path)
    return Difference(a, b, mode, first, tuple(results), str(path), chained_repro=whole)


def _listed(outputs: Output) -> list[Tensor]:
    if isinstance(outputs, Tensor):
        return [outputs]
    if not isinstance(outputs, (Mapping, Sequence)):
        raise GraphError(f"outputs is a {type(outputs).__name__}, must be a Tensor, a list or a dict of them")
    tensors = list(outputs.values() if isinstance(outputs, Mapping) else outputs)
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise GraphError(f"an output is a {type(tensor).__name__}; outputs are Tensors")
    if not tensors:
        raise GraphError("no output is given")
    return tensors


def _shows(graph: Tensor, a: str, b: str) -> bool:
    return diff(graph, a, b).first is not None


# One node on one device


def _posed(node: Tensor, leaf: Callable[[Tensor], Tensor]) -> Tensor:
    """The node on other leaves. leaf: from the tensor whose memory an operand lies in to one with the same bytes."""
    operands: list[Tensor | None] = []
    for operand in node.operands:
        if operand is None:
            operands.append(None)
            continue
        origin, offset = root(operand)
        made = leaf(origin)
        whole = operand is origin and made.shape == operand.shape and operand.spec.is_dense
        operands.append(made if whole else view("slice", made, Attrs(), View(operand.spec, offset)))
    return OPS[node.op](*operands, **node.attrs)


def _plain(spec: Spec) -> tuple[tuple[int, ...], DType]:
    """Shape and dtype of a dense leaf with the memory of this Spec: flat where the Spec has gaps."""
    if spec.is_dense:
        return spec.shape, spec.dtype
    return (spec.extent_nbytes // spec.dtype.block_nbytes * spec.dtype.block,), spec.dtype


class _Side:
    """One device, and the memory of every tensor that nodes read, as it sees them."""

    def __init__(self, device: str, memory: dict[Tensor, Bytes]) -> None:
        self.device, self.memory = device, memory

    def example(self, node: Tensor) -> Example:
        """The node as the kit knows it, with this side's data."""
        op = OPS[node.op]
        present = {name: o for name, o in zip(op.operands, node.operands, strict=True) if o is not None}
        views = {name: View(o.spec, 0) for name, o in present.items()}
        arrays = {name: self._array(o) for name, o in present.items()}
        return Example(op, -1, node.dtype, "dense", {}, views, {}, node.attrs, given=arrays)

    def _array(self, operand: Tensor) -> Array:
        origin, offset = root(operand)
        return array_at(self._bytes(origin), Place(None, offset, operand.spec))

    def _bytes(self, origin: Tensor) -> Bytes:
        if origin.source is not None:
            return np.frombuffer(source_bytes(origin.source, origin.spec), np.uint8)
        return self.memory[origin]

    def run(self, node: Tensor) -> Array:
        """The result, dense. Raises: PlacementError when refused, DeviceError for what the device found or did."""
        feeds: dict[str, Array] = {}
        held: dict[str, Array] = {}
        known: dict[Tensor, Tensor] = {}
        target = root(node.operands[0])[0] if OPS[node.op].updates and node.operands[0] is not None else None

        def leaf(origin: Tensor) -> Tensor:
            if origin.kind == "constant" and origin is not target:
                return origin
            if origin not in known:
                shape, dtype = _plain(origin.spec)
                name = f"value{len(known)}"
                made = (state if origin is target else graph_input)(name, shape, dtype)
                kind = HostType(made.spec)
                array = self._bytes(origin).view(kind.dtype).reshape(kind.shape)
                (held if origin is target else feeds)[name] = array
                known[origin] = made
            return known[origin]

        with Session(self.device, policy="strict") as session:
            plan = session.compile(_posed(node, leaf))
            for name, array in held.items():
                session.states[name].write(array)
            got = plan(**feeds)
        return np.asarray(got).view(element(node.dtype)).reshape(node.spec.units)

    def keep(self, node: Tensor, result: Array) -> None:
        """What later nodes read, with the gaps that the views on it count in."""
        raw = np.zeros(node.spec.extent_nbytes, np.uint8)
        if result.size:
            array_at(raw, Place(None, 0, node.spec))[...] = result
        self.memory[node] = raw

    def as_constants(self, node: Tensor) -> Tensor:
        """The node alone. What it updates is a copy of a constant, because nobody may change a constant."""
        known: dict[Tensor, Tensor] = {}
        target = root(node.operands[0])[0] if OPS[node.op].updates and node.operands[0] is not None else None

        def leaf(origin: Tensor) -> Tensor:
            if origin not in known:
                shape, dtype = _plain(origin.spec)
                kept = origin if origin.kind == "constant" else _constant(self._bytes(origin), shape, dtype)
                known[origin] = OPS["contiguous"](kept) if origin is target else kept
            return known[origin]

        return _posed(node, leaf)


def _constant(raw: Bytes, shape: tuple[int, ...], dtype: DType) -> Tensor:
    return constant(ArraySource(raw, dtype, shape))


def _cone(node: Tensor, leaves: Mapping[Tensor, Bytes]) -> Tensor:
    """The node with all it is made of, inputs as constants. States stay, those that don't start as zeros as copies."""
    made: dict[Tensor, Tensor] = {}
    for tensor in order([node]).tensors:
        operands = tuple(None if o is None else made[o] for o in tensor.operands)
        if tensor.kind == "view":
            assert operands[0] is not None
            made[tensor] = view(tensor.op, operands[0], tensor.attrs, View(tensor.spec, tensor.offset))
        elif tensor.kind == "node":
            made[tensor] = OPS[tensor.op](*operands, **tensor.attrs)
        elif tensor.kind == "input":
            made[tensor] = _constant(leaves[tensor], tensor.shape, tensor.dtype)
        elif tensor.kind == "state" and leaves[tensor].any():
            made[tensor] = OPS["contiguous"](_constant(leaves[tensor], tensor.shape, tensor.dtype))
        else:
            made[tensor] = tensor
    return made[node]


# Comparing


class _Comparison:
    """Node after node, in execution order."""

    def __init__(
        self,
        flow: Flow,
        a: str,
        b: str,
        leaves: Mapping[Tensor, Bytes],
        *,
        drawn: frozenset[Tensor],
        chained: bool,
    ) -> None:
        self.flow, self.drawn, self.chained = flow, drawn, chained
        self.a = _Side(a, dict(leaves))
        self.b = _Side(b, dict(leaves)) if chained else _Side(b, self.a.memory)
        self.first_node: Tensor
        self.single: Tensor | None = None  # the first node that differs, on constants
        self._last = {root(o)[0]: node for node in flow.nodes for o in node.operands if o is not None}

    def node(self, node: Tensor) -> NodeResult:
        example = self.a.example(node)
        made = [self._made(side, node) for side in (self.a, self.b)]
        result = self._judged(node, example, made)
        if result.verdict == "differs" and self.single is None:
            self.first_node, self.single = node, self.a.as_constants(node)
        self._keep(node, example, made)
        return result

    def _made(self, side: _Side, node: Tensor) -> Array | Exception:
        try:
            return side.run(node)
        except (PlacementError, DeviceError) as e:
            return e

    def _keep(self, node: Tensor, example: Example, made: Sequence[Array | Exception]) -> None:
        """Results for later nodes; from here on memory that no later node reads is let go."""
        sides = (self.a, self.b) if self.chained else (self.a,)
        kept = []
        for side, result in zip(sides, made, strict=False):
            if isinstance(result, np.ndarray):
                kept.append(result)
            else:
                kept.append(expected(example if side is self.a else side.example(node))[0])
        for side, result in zip(sides, kept, strict=True):
            if node in self._last:
                side.keep(node, result)
            for operand in node.operands:
                if operand is not None and self._last[root(operand)[0]] is node:
                    side.memory.pop(root(operand)[0], None)

    def _judged(self, node: Tensor, example: Example, made: Sequence[Array | Exception]) -> NodeResult:
        op = OPS[node.op]
        has_blocks = any(o is not None and o.dtype.is_block for o in node.operands)
        tolerance = "Q" if op.tolerance == "M" and has_blocks else op.tolerance

        def result(verdict: Verdict, **found: Any) -> NodeResult:
            return NodeResult(self.flow.ids[node], node.op, str(node.spec), verdict, tolerance, **found)

        reasons = [f"{n}: {_reason(r)}" for n, r in zip("ab", made, strict=True) if isinstance(r, PlacementError)]
        if reasons:
            return result("refused", text="; ".join(reasons))
        a, b = made
        if isinstance(a, Exception) or isinstance(b, Exception):
            verdict, text = _of_faults(a, b, drawn=node in self.drawn)
            return result(verdict, text=text)
        size = _measured(a, b)
        text = compare(example, b, a)
        if not text or self.chained:
            return result("differs" if text else "equal", text=text, **size)
        want, _ = expected(example)
        off = {name: said for name, r in (("a", a), ("b", b)) if (said := compare(example, r, want))}
        if not off:  # each within the class of what the op means: two right answers may be twice as far apart
            return result("equal", **size)
        text = "; ".join(f"{name}: {said}" for name, said in off.items())
        return result("differs", wrong=tuple(off), text=text, **size)


def _reason(refused: Exception) -> str:
    """What each device said, without the heading."""
    lines = str(refused).splitlines()
    return ", ".join(line.strip() for line in lines[2:] or lines)


def _told(made: Array | Exception) -> str:
    return f"raised {type(made).__name__}: {made}" if isinstance(made, Exception) else "gave a result"


def _of_faults(a: Array | Exception, b: Array | Exception, *, drawn: bool) -> tuple[Verdict, str]:
    """Verdict and text where a side raised."""
    both = f"a {_told(a)}, b {_told(b)}"
    if type(a) is not type(b):
        return "differs", both
    if drawn:
        return "refused", f"{both}; nothing was compared: give the inputs that were drawn"
    return "equal", both


def _measured(a: Array, b: Array) -> dict[str, Any]:
    """max_abs, max_ulp and index of two results."""
    if not a.size:
        return {}
    x, y = (widened(r).astype(np.float64) for r in (a, b))
    with np.errstate(invalid="ignore"):
        error = np.abs(x - y)
    error = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.where(np.isnan(error), np.inf, error))
    at = np.unravel_index(int(error.argmax()), error.shape)
    worst = float(error.max())
    return {
        "max_abs": worst if np.isfinite(worst) else None,
        "index": tuple(int(i) for i in at),
        "max_ulp": _ulps(a, b) if a.dtype.names is None and a.dtype.itemsize in (2, 4) else None,
    }


def _ulps(a: Array, b: Array) -> int | None:
    """The largest count of floats between two finite numbers; None for integers."""
    if not np.issubdtype(widened(a).dtype, np.floating):
        return None
    finite = np.isfinite(widened(a)) & np.isfinite(widened(b))
    rank_a, rank_b = (_ranked(r)[finite] for r in (a, b))
    return int(np.abs(rank_a - rank_b).max(initial=0))


def _ranked(x: Array) -> NDArray[np.int64]:
    """Floats as whole numbers in the same order, neighbours one apart, both zeros 0."""
    bits = np.atleast_1d(np.ascontiguousarray(x)).view(f"i{x.dtype.itemsize}").astype(np.int64)
    top = 1 << (8 * x.dtype.itemsize - 1)
    return np.where(bits < 0, -(bits + top), bits).reshape(x.shape)
