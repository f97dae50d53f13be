"""The graph: tensors that remember how they are made. Plain data; an op is kept by its name.

A Tensor is a leaf (input, constant, state), a node (an op that runs) or a view (a window on its operand's bytes, which
never runs). Views are made by the ops of `ops/views.py` and by indexing; both use the arithmetic of `spec`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import EllipsisType
from typing import Literal, Protocol, SupportsIndex, TypeAlias, TypeGuard, runtime_checkable

import numpy as np

from .dtypes import DType, f32
from .errors import AttributeValueError, DTypeError, GraphError, ShapeError
from .spec import Role, Shape, Spec, View, extents_of, slice_view, transpose_view

__all__ = [
    "Attr",
    "Attrs",
    "Function",
    "Source",
    "Tensor",
    "constant",
    "input",
    "root",
    "source_bytes",
    "state",
    "toposort",
    "view",
]


@dataclass(frozen=True, repr=False, slots=True)
class Function:
    """A Python function as an attribute, told by its name."""

    call: Callable[..., object]

    def __repr__(self) -> str:
        return getattr(self.call, "__qualname__", type(self.call).__qualname__)


Attr = bool | int | float | str | None | Function | tuple["Attr", ...]
Kind = Literal["input", "constant", "state", "node", "view"]
Index: TypeAlias = SupportsIndex | slice | EllipsisType


class Attrs(dict[str, Attr]):
    """Attributes of one op by name: a dict that is never changed, so that it can be hashed."""

    __slots__ = ("_hash",)
    _hash: int

    def __hash__(self) -> int:  # type: ignore[override]
        try:
            return self._hash
        except AttributeError:
            self._hash = hash(frozenset(self.items()))
            return self._hash

    def _frozen(self, *_: object, **__: object) -> None:
        raise TypeError("attributes of an op can't be changed")

    __setitem__ = __delitem__ = update = pop = clear = setdefault = popitem = _frozen  # type: ignore[assignment]

    def __reduce__(self) -> tuple[type, tuple[dict[str, Attr]]]:
        return Attrs, (dict(self),)


@runtime_checkable
class Source(Protocol):
    """Where a constant's bytes come from: a numpy array in a jacket, or a tensor of a file.

    data: read-only, dense, exactly Spec.nbytes bytes; may be a window on a file mapping.
    release(): the bytes are not needed for now; a mapping may drop its pages and read them again later.
    """

    @property
    def dtype(self) -> DType: ...
    @property
    def shape(self) -> Shape: ...
    @property
    def data(self) -> memoryview: ...
    def release(self) -> None: ...


@dataclass(frozen=True, eq=False)
class ArraySource:
    """A numpy array as a constant. The array belongs to the graph from here on and must not change."""

    array: np.ndarray
    dtype: DType
    shape: Shape

    @property
    def data(self) -> memoryview:
        return self.array.reshape(-1).view(np.uint8).data.toreadonly()

    def release(self) -> None:
        """Nothing to give back: the array is the only copy."""


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Tensor:
    """One value of the graph; compared by identity.

    kind: leaf ("input", "constant", "state"), "node" or "view".
    op: the op's name; "" for leaves.
    operands: what it is made of, in the order of the op's declaration, None for an absent optional one.
    offset: for a view, bytes from the start of its operand to its own start; else 0.
    source: a constant's bytes.
    """

    kind: Kind
    op: str
    operands: tuple[Tensor | None, ...]
    attrs: Attrs
    spec: Spec
    name: str = ""
    offset: int = 0
    source: Source | None = field(default=None)

    @property
    def shape(self) -> Shape:
        return self.spec.shape

    @property
    def dtype(self) -> DType:
        return self.spec.dtype

    @property
    def rank(self) -> int:
        return self.spec.rank

    @property
    def is_leaf(self) -> bool:
        return not self.op

    @property
    def T(self) -> Tensor:  # noqa: N802 (numpy's name)
        """All axes reversed; a view."""
        axes = tuple(reversed(range(self.rank)))
        if self.dtype.block > 1 and self.rank > 1:
            raise DTypeError(f"[transpose] {self.spec} has blocks along its last axis, which must stay last")
        return view("transpose", self, Attrs(axes=axes), transpose_view(self.spec, axes))

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Tensor:
        """A window by slices with step >= 1; an integer keeps no axis. A view."""
        parts = index if isinstance(index, tuple) else (index,)
        bounds, gone = _bounds(self.spec, parts)
        window = view("slice", self, _slice_attrs(bounds), slice_view(self.spec, bounds))
        if not gone:
            return window
        shape = tuple(n for axis, n in enumerate(window.shape) if axis not in gone)
        strides = tuple(s for axis, s in enumerate(window.spec.byte_strides) if axis not in gone)
        spec = Spec(self.dtype, shape, strides, self.spec.layout, self.spec.role)
        return view("reshape", window, Attrs(shape=shape), View(spec, 0))

    def __iter__(self) -> Iterator[Tensor]:
        raise TypeError("a Tensor has no data to iterate over; compile it and call the plan")

    def __bool__(self) -> bool:
        raise TypeError("a Tensor has no value yet; compile it and call the plan")

    def __repr__(self) -> str:
        return f"<{self.op or self.kind}{f' {self.name}' if self.name else ''}: {self.spec}>"


def _slice_attrs(bounds: Sequence[tuple[int, int, int]]) -> Attrs:
    start, stop, step = (tuple(b[i] for b in bounds) for i in range(3))
    return Attrs(start=start, stop=stop, step=step)


def _bounds(spec: Spec, parts: tuple[Index, ...]) -> tuple[list[tuple[int, int, int]], set[int]]:
    """(start, stop, step) for every axis, and the axes that an integer index removes."""
    dots = [at for at, part in enumerate(parts) if part is Ellipsis]
    if len(dots) > 1:
        raise ShapeError("[slice] more than one '...'")
    if dots:
        whole = [slice(None)] * (spec.rank - len(parts) + 1)
        parts = (*parts[: dots[0]], *whole, *parts[dots[0] + 1 :])
    if len(parts) > spec.rank:
        raise ShapeError(f"[slice] {len(parts)} indices for {spec.rank} axes of {spec}")
    parts = (*parts, *[slice(None)] * (spec.rank - len(parts)))
    bounds = [_cut(axis, n, part) for axis, (n, part) in enumerate(zip(spec.shape, parts, strict=True))]
    gone = {axis for axis, part in enumerate(parts) if not isinstance(part, slice)}
    block = spec.dtype.block
    if block > 1:
        start, stop, step = bounds[-1]
        if start % block or stop % block or step != 1 or spec.rank - 1 in gone:
            raise ShapeError(f"[slice] the last axis of {spec} can only be cut at multiples of {block}, step 1")
    return bounds, gone


def _cut(axis: int, n: int, part: Index) -> tuple[int, int, int]:
    """(start, stop, step) of one axis of extent n."""
    if isinstance(part, slice):
        step = 1 if part.step is None else part.step
        if isinstance(step, SupportsIndex) and operator.index(step) < 1:  # before `indices`, which refuses 0 by itself
            raise AttributeValueError(f"[slice] step is {step} on axis {axis}, must be at least 1")
        start, stop, step = part.indices(n)
        return start, max(start, stop), step
    if not isinstance(part, SupportsIndex):
        raise GraphError(f"[slice] an index is a slice or an int, not {type(part).__name__}")
    at = operator.index(part)
    if not -n <= at < n:
        raise ShapeError(f"[slice] index {at} on axis {axis} of extent {n}")
    return at % n, at % n + 1, 1


def input(name: str, shape: Sequence[int], dtype: DType = f32) -> Tensor:  # noqa: A001 (pinned name)
    """A leaf that the caller fills at each call by its name.

    Raises: GraphError for a name that is no identifier, ShapeError, DTypeError.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise GraphError(f"an input's name must be a Python identifier, not {name!r}")
    return Tensor("input", "", (), Attrs(), _leaf_spec(dtype, shape, "input"), name)


def constant(value: object, name: str = "") -> Tensor:
    """A leaf with fixed data.

    value: a numpy array (or what numpy makes one of), or a Source such as a tensor of a GGUF file. The data must not
        change afterwards. Two constants of one array or one file tensor are one constant to a Session.
    Raises: DTypeError for a numpy dtype jackfield does not know, and for lists that are no array.
    """
    # Arrays first: asking one of a foreign dtype for its buffer, as the test for a Source does, may raise.
    if not isinstance(value, (np.ndarray, np.generic)) and _is_source(value):
        spec = _leaf_spec(value.dtype, value.shape, "constant")
        return Tensor("constant", "", (), Attrs(), spec, name or getattr(value, "name", ""), source=value)
    try:
        array = np.asarray(value)
    except ValueError as e:
        raise DTypeError(f"a constant must be an array, numbers or a Source: {e}") from e
    spec = Spec.of(array, role="constant")
    source = ArraySource(np.ascontiguousarray(array), spec.dtype, spec.shape)
    return Tensor("constant", "", (), Attrs(), spec, name, source=source)


def _is_source(value: object) -> TypeGuard[Source]:
    """By its class where that says so: asking the value itself asks for its bytes, and a file whether it has shrunk."""
    kind = type(value)
    by_class = all(hasattr(kind, name) for name in ("dtype", "shape", "data", "release"))
    return by_class or isinstance(value, Source)


def state(name: str, shape: Sequence[int], dtype: DType = f32) -> Tensor:
    """A leaf that outlives a call: zeros at birth, updated in place by `put_rows`, `write` and their kin.

    Within a Session a state is known by its name; the same name with another Spec is a PlanError.
    Raises: GraphError for a name that is no text or empty, ShapeError, DTypeError.
    """
    if not isinstance(name, str) or not name:
        raise GraphError("a state needs a name, a text: it is how a Session finds it again")
    return Tensor("state", "", (), Attrs(), _leaf_spec(dtype, shape, "state"), name)


def _leaf_spec(dtype: DType, shape: Sequence[int], role: Role) -> Spec:
    """What a user gave, as a Spec."""
    extents = extents_of(shape)
    return _shared_spec(dtype, extents, role) if isinstance(dtype, DType) else Spec(dtype, extents)


@lru_cache(maxsize=512)
def _shared_spec(dtype: DType, shape: Shape, role: Role) -> Spec:
    """Weights of one kind lie in every layer of a model: one Spec for all is faster to compare, and smaller."""
    return Spec(dtype, shape, role=role)


def source_bytes(source: Source, spec: Spec) -> memoryview:
    """All bytes of a constant's source, flat. Raises GraphError where they are not exactly those of its Spec.

    Asked at each use: devices read as many bytes as the Spec says, whatever the source has.
    """
    try:
        data = memoryview(source.data)
    except TypeError as e:
        raise GraphError(f"a constant's source of type {type(source).__name__} has no bytes as its data: {e}") from e
    if not data.c_contiguous or data.nbytes != spec.nbytes:
        lies = "without gaps" if data.c_contiguous else "with gaps"
        raise GraphError(f"a constant's source has {data.nbytes} bytes {lies}: {spec} takes {spec.nbytes} without gaps")
    if data.format == "B" and data.ndim == 1:
        return data
    return np.frombuffer(data, np.uint8).data if data.nbytes else memoryview(b"")


def view(op: str, base: Tensor, attrs: Attrs, window: View) -> Tensor:
    """A view of `base`. Raises ShapeError when it would reach outside the base's bytes."""
    spec, offset = window.spec, window.offset
    if offset < 0 or offset + spec.extent_nbytes > max(base.spec.extent_nbytes, 0):
        reach = offset + spec.extent_nbytes
        raise ShapeError(f"[{op}] {spec} at byte {offset} reaches byte {reach} of {base.spec.extent_nbytes}")
    return Tensor("view", op, (base,), attrs, spec.with_role("temporary"), offset=offset)


def root(tensor: Tensor) -> tuple[Tensor, int]:
    """The tensor whose memory a view lies in, and the view's offset in it, in bytes."""
    offset = 0
    while tensor.kind == "view":
        offset += tensor.offset
        (base,) = tensor.operands
        assert base is not None
        tensor = base
    return tensor, offset


def toposort(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Every tensor that the outputs need, makers before users, in a stable order. Iterative: depth is no limit."""
    order: dict[Tensor, None] = {}
    stack: list[tuple[Tensor, bool]] = [(t, False) for t in reversed(outputs)]
    while stack:
        tensor, ready = stack.pop()
        if ready:
            order[tensor] = None
        elif tensor not in order:
            stack.append((tensor, True))
            stack += [(o, False) for o in reversed(tensor.operands) if o is not None and o not in order]
    return list(order)


def node(op: str, operands: tuple[Tensor | None, ...], attrs: Attrs, spec: Spec) -> Tensor:
    """A tensor that an op will make."""
    return Tensor("node", op, operands, attrs, spec)
